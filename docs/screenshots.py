"""Makes the pictures of the README: `python -m docs.screenshots` (or `make screenshots`), for which Chromium is needed.

Rules. The page in them is the real one, in a real browser, behind a real proxy with traffic on it. The upstream is the
tests' own, which judges and counts as servers do and has no model behind it; its answers and summaries are written
here. Nothing leaves the machine.
"""

import asyncio
import io
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.async_api import Page, expect

from proxy.config import Address, Config, Discovery, LogFormat, LogLevel, LogOptions, ModelRule
from proxy.config import Upstream as UpstreamOptions
from proxy.context.policy import ModelPolicy
from proxy.demo.replies import completion, text_message, usage
from proxy.edge import logs
from proxy.edge.metrics import Metrics
from proxy.edge.server import Parts
from proxy.edge.service import running
from proxy.edge.tokenizer import Tokenizer
from tests.edge.proxied import memories
from tests.integration.browser import PHONE, opened
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, StrictUpstream, json_answer, marked

IMAGES: Final = Path(__file__).with_name("images")
DESK: Final = {"width": 1200, "height": 980}

WINDOWS: Final[Mapping[str, int]] = {
    "qwen3-coder-30b": 16_384,
    "gpt-oss-20b": 8_192,
    "mistral-small-3.2": 32_768,
}

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "relative to the repository"}},
                "required": ["path"],
            },
        },
    }
    for name, what in (
        ("read_file", "The text of a file, with the numbers of its lines."),
        ("list_files", "The names of all files below a folder."),
        ("run_tests", "Run the tests below a folder and tell what failed."),
        ("edit_file", "Replace lines of a file."),
    )
]

SYSTEM: Final = (
    "You are a careful engineer. Work through the repository step by step, read before you edit, run the tests after"
    " each edit, and say what you did."
)

SUMMARY: Final = """\
Task: make the rounding of amounts half-even in every service, keep public signatures as they are, and list the files \
that were changed.
Decisions: Decimal with ROUND_HALF_EVEN instead of round(), because floats lose cents.
Files: services/orders.py and services/billing.py are changed; services/ledger.py was read and needs no change.
Facts: tests run with `pytest -q services`; before the first edit 3 of 214 failed (test_split_of_a_cent).
Done: orders and billing are edited and their tests pass.
Open: invoices, payments and reports."""

SERVICES: Final = ("orders", "billing", "ledger", "invoices", "payments", "reports", "exports", "accounts")


def side_call(body: Mapping[str, Any]) -> Answer:
    return json_answer(
        completion(text_message(SUMMARY), usage=usage(2400, 190), model=str(body.get("model")))
    )


def source(service: str, lines: int) -> str:
    """A file as a tool shows it."""
    return "\n".join(
        f"{number:4}  amount_{number} = round(price_{number} * quantity_{number}, 2)  # {service}, line {number}"
        for number in range(1, lines + 1)
    )


def thought(service: str, step: int) -> str:
    """What a model says before it calls a tool."""
    reasons = (
        f"services/{service}.py rounds in {step % 5 + 2} places, two of them behind a cache.",
        "The sums are built from floats, so a half cent may fall to either side.",
        "Where a total is split among several people the rest has to go to the first of them.",
        "The tests compare against strings, which hides a difference in the last digit.",
        f"Before the edit I want to see what {step + 1} callers expect.",
    )
    return " ".join(reasons * 2)


def agent(lines: int) -> Iterator[list[dict[str, Any]]]:
    """What an agent and its tools append, step after step."""
    for step in itertools.count():
        service = SERVICES[step % len(SERVICES)]
        name = ("read_file", "run_tests", "edit_file")[step % 3]
        path = json.dumps({"path": f"services/{service}.py"})
        call = {"id": f"call_{step:04}", "type": "function", "function": {"name": name, "arguments": path}}
        size = lines + 7 * (step % 4) if name == "read_file" else 4
        told = (
            source(service, size)
            if name != "run_tests"
            else f"{200 + step} passed, {step % 3} failed in 2.{step} s"
        )
        yield [
            {"role": "assistant", "content": thought(service, step), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": told},
        ]


def talk() -> Iterator[list[dict[str, Any]]]:
    """What two people would say to one another."""
    for turn in itertools.count(1):
        yield [
            {
                "role": "assistant",
                "content": f"About the {turn}. point: " + "it depends on what is measured. " * 22,
            },
            {"role": "user", "content": f"And how would one show that for case {turn}?"},
        ]


async def converse(
    url: str, model: str, parts: Iterator[list[dict[str, Any]]], steps: int, task: str
) -> None:
    """A conversation that grows by one step with each request."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    is_agent = "repository" in task
    async with RawClient(url) as client:
        for _ in range(steps):
            body = {"model": model, "messages": messages} | ({"tools": TOOLS} if is_agent else {})
            answer = await client.post("/v1/chat/completions", body)
            assert answer.status == 200, answer.body
            messages += next(parts)


@asynccontextmanager
async def proxy() -> AsyncIterator[str]:
    """The proxy with some traffic behind it; its address."""
    async with StrictUpstream(
        window=max(WINDOWS.values()), is_side_call=marked("working memory"), summarise=side_call
    ) as upstream:
        rules = tuple(ModelRule(name, ModelPolicy(window=window)) for name, window in WINDOWS.items())
        options = LogOptions(LogLevel.ERROR, LogFormat.JSON)
        config = Config(
            upstream=UpstreamOptions(upstream.base_url, slots=4),
            listen=Address("127.0.0.1", 0),
            log=options,
            models=rules,
            capture=True,
            discovery=Discovery(enabled=False),
        )
        log = logs.build(options, io.StringIO())
        tokenizer, remembers = Tokenizer(log), memories(upstream.base_url)
        async with running(config, Parts(tokenizer, remembers.of, log, Metrics(), lambda: True)) as url:
            task = "Go through the services of this repository and make the rounding of amounts half-even."
            await converse(url, "mistral-small-3.2", talk(), 22, "How does one compare two ways of counting?")
            await converse(url, "gpt-oss-20b", agent(22), 70, task)
            await converse(url, "qwen3-coder-30b", agent(38), 96, task)
            yield url
        tokenizer.close()
        await remembers.close()


async def shot(page: Page, name: str) -> None:
    """What the page shows, in the few colours that it has: a quarter of the bytes."""
    taken = Image.open(io.BytesIO(await page.screenshot()))
    taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


async def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    async with proxy() as url:
        for scheme in ("light", "dark"):
            async with opened(url, viewport=DESK, color_scheme=scheme) as page:
                await expect(page.locator(".card")).to_have_count(len(WINDOWS))
                await shot(page, f"page-{scheme}")
                row = page.locator("#rows tr").filter(has_text="summarize").filter(has_text="elide").first
                await row.get_by_role("button").click()
                await expect(page.locator(".pair mark").first).to_be_visible()
                await shot(page, f"opened-{scheme}")
        async with opened(url, viewport=PHONE, color_scheme="light", device_scale_factor=2) as page:
            await expect(page.locator(".card")).to_have_count(len(WINDOWS))
            await shot(page, "phone")


if __name__ == "__main__":
    asyncio.run(main())
