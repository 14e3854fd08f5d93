"""What a long conversation costs a real model server: through Transom, with the last messages that fit, and whole.

Run: python -m benchmarks.real_server [FOLDER] [--steps 40] [--window 4096] [--ways transom keep-last whole] [--each]
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl`, of which the user's texts are taken; without either they
are made up, the same every time.

llama.cpp's server with SmolLM2-135M and one slot is installed where it is missing and started anew for each way. One
client holds the conversation with it, at temperature 0, every second answer as a stream: a user message of about
--characters, an answer of at most --answer tokens, and on with both in the history.

  transom    the proxy with its defaults, its summaries written by the same model
  keep-last  no proxy; the client sends the newest messages that fit, told the server's exact count of them
  whole      no proxy; the client sends everything, also after the first refusal

  asked      prompt tokens of all calls, the proxy's own among them
  processed  those of them that the model had to read; the rest came from the server's prompt cache
  generated  tokens that the model wrote, summaries among them
  longest    seconds of the step that took longest, waiting for a summary included

All are the server's own words (`timings`), noted by a relay before it that sees every call. Its sum of what was read is
compared with the server's own (`/metrics`); where they differ, or a summary was given up because it took longer than
the proxy's deadline, that is said and the exit status is 1. On a busy machine raise the deadline: --deadline 300.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final, NoReturn

import aiohttp
import openai

from benchmarks.memory import served
from benchmarks.served import CHAT, Call, Cost, Relay, counting_relay, model_server, prompt_tokens_total
from benchmarks.speed import machine
from benchmarks.speed.tables import table
from tests.integration.llama_server import MODEL, MODEL_WHEEL, SERVER_WHEEL
from tests.replay import recordings

Messages = list[dict[str, Any]]

SYSTEM: Final = {"role": "system", "content": "You are a helpful assistant. Answer in a sentence or two."}

# --- what the user says -----------------------------------------------------------------------------------

_SUBJECTS = (
    "the harbour",
    "our library",
    "a small orchard",
    "the old mill",
    "this archive",
    "the night train",
)
_DEEDS = ("was measured", "is closed", "needs repair", "was sold", "was moved", "is described", "has grown")
_PLACES = ("near the river", "in the north", "behind the station", "at the market", "under the bridge")


def made_up(number: int, characters: int) -> str:
    """A user's text about something of its own, the same for the same number."""
    chance = random.Random(number)  # noqa: S311 - a seed, for the same texts every time
    text = f"Note {number}."
    while len(text) < characters:
        when = f"{chance.choice(('On day', 'In week', 'Since year'))} {chance.randrange(1, 2000)}"
        deed = f"{chance.choice(_SUBJECTS)} {chance.choice(_DEEDS)} {chance.choice(_PLACES)}"
        text += f" {when} {deed}, which {chance.randrange(2, 90)} people have seen."
    return f"{text} What does this note say?"


def texts_of(folder: Path | None, count: int, characters: int) -> list[str]:
    """So many texts of users, each of another recorded conversation while there are enough; or made-up ones."""
    if folder is None:
        return [made_up(number, characters) for number in range(1, count + 1)]
    return [text for text, _ in zip(_recorded(folder, characters), range(count), strict=False)]


def _recorded(folder: Path, characters: int) -> Iterator[str]:
    for recording in recordings(folder):
        said = (json.loads(raw) for raw in recording.raws)
        texts = (each["content"] for each in said if each["role"] == "user")
        long = (
            text for text in texts if isinstance(text, str) and text.isascii() and len(text) >= characters
        )
        if text := next(long, None):
            yield text[:characters]


# --- one conversation -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One question and what came of it. `id` is that of the answer, nothing where it was refused."""

    seconds: float
    id: str = ""
    text: str = ""
    actions: str = ""


Choice = Callable[[Messages], Awaitable[Messages]]
"""What of its history a client sends."""


async def everything(history: Messages) -> Messages:
    """All of it."""
    return history


@dataclass(slots=True)
class NewestThatFit:
    """The system message and the newest others, chosen anew for each request by the server's own count of them.

    `most`: the most tokens of a prompt; `tokens`: those of the newest one.
    """

    base_url: str
    most: int
    tokens: int = 0

    async def __call__(self, history: Messages) -> Messages:
        head, *others = history
        async with aiohttp.ClientSession() as client:
            while True:
                kept = [head, *others]
                asked = {"model": MODEL, "messages": kept}
                async with client.post(f"{self.base_url}{CHAT}/input_tokens", json=asked) as answer:
                    self.tokens = (await answer.json())["input_tokens"]
                if self.tokens <= self.most or len(others) == 1:
                    return kept
                others = others[1:]


async def conversation(
    base_url: str, texts: Sequence[str], answer: int, choose: Choice = everything
) -> AsyncIterator[Step]:
    """A client's conversation, step by step: every second answer is a stream, each of at most `answer` tokens.

    A question that was refused stays in the history, without an answer.
    """
    history: Messages = [SYSTEM]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=600) as client:
        for number, text in enumerate(texts, 1):
            history.append({"role": "user", "content": text})
            began = time.perf_counter()
            step = await _asked(client, await choose(history), answer, streams=number % 2 == 0)
            yield Step(time.perf_counter() - began, *step)
            if step[0]:
                history.append({"role": "assistant", "content": step[1]})


async def _asked(
    client: openai.AsyncOpenAI, messages: Any, answer: int, *, streams: bool
) -> tuple[str, str, str]:
    """Id and text of the answer, and what the proxy says that it did; no id where it was refused."""
    create = client.chat.completions.with_raw_response.create
    try:
        raw: Any = await create(
            model=MODEL, messages=messages, max_tokens=answer, temperature=0, seed=1, stream=streams
        )
    except openai.APIStatusError as refusal:
        return "", "", refusal.response.headers.get("x-context-actions", "")
    actions = raw.headers.get("x-context-actions", "")
    if not streams:
        whole = raw.parse()
        return whole.id, whole.choices[0].message.content or "", actions
    chunks = [chunk async for chunk in raw.parse()]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    return chunks[-1].id, text, actions


# --- the ways ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """What all ways have in common: the window of the server, the most tokens of an answer, and the user's texts.

    `deadline`: seconds that the proxy waits for a summary, None = its default.
    """

    window: int
    answer: int
    texts: Sequence[str]
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A conversation by one way, what all its calls cost the server, and what those cost that its client did not make.

    `metered`: the prompt tokens read by the server's own sum; `left`: calls that were given up.
    """

    steps: Sequence[Step]
    cost: Cost
    side: Cost
    seconds: float
    metered: int
    left: int

    @property
    def answered(self) -> int:
        return sum(bool(step.id) for step in self.steps)

    @property
    def refused(self) -> int:
        return len(self.steps) - self.answered

    def doubts(self) -> Iterator[str]:
        """What these figures do not show."""
        if self.left:
            yield f"{self.left} calls were given up, and are not in it."
        if self.metered != self.cost.processed:
            yield f"The server says that it read {self.metered:,} tokens."


@asynccontextmanager
async def _by_proxy(relay: Relay, settings: Settings) -> AsyncIterator[tuple[str, Choice]]:
    deadline = () if settings.deadline is None else (f"side_calls: {{deadline: {settings.deadline}s}}",)
    lines = (
        "listen: 127.0.0.1:0",
        "log: {format: json}",
        f"upstream: {{base_url: {relay.base_url}}}",
        *deadline,
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "transom.yaml"
        config.write_text("\n".join(lines), encoding="utf-8")
        async with served("--config", str(config)) as (_, url):
            yield f"{url}/v1", everything


@asynccontextmanager
async def _keeping_last(relay: Relay, settings: Settings) -> AsyncIterator[tuple[str, Choice]]:
    yield relay.base_url, NewestThatFit(relay.base_url, settings.window - settings.answer)


@asynccontextmanager
async def _whole(relay: Relay, settings: Settings) -> AsyncIterator[tuple[str, Choice]]:
    yield relay.base_url, everything


WAYS: Final = {"transom": _by_proxy, "keep-last": _keeping_last, "whole": _whole}


Told = Callable[[Step, Sequence[Call]], None]
"""Takes a step that is done, and the calls that the server got for it."""


async def outcome(way: str, settings: Settings, told: Told) -> Outcome:
    """The whole conversation by one way, against a server of its own; each step is told when it is done."""
    with model_server(window=settings.window) as server:
        async with counting_relay(server.url) as relay, WAYS[way](relay, settings) as (base_url, choose):
            steps, known = [], 0
            began = time.perf_counter()
            async for step in conversation(base_url, settings.texts, settings.answer, choose):
                told(step, relay.calls[known:])
                known = len(relay.calls)
                steps.append(step)
            seconds = time.perf_counter() - began
            metered = await prompt_tokens_total(server.url)
    side = Cost.of(relay.beside(step.id for step in steps))
    return Outcome(steps, Cost.of(relay.calls), side, seconds, metered, relay.left)


# --- the command ------------------------------------------------------------------------------------------

COLUMNS: Final = (
    "way",
    "answered",
    "refused",
    "asked",
    "processed",
    "from cache",
    "generated",
    "side calls",
    "seconds",
    "median step",
    "longest",
)


def rows(way: str, found: Outcome) -> Iterator[tuple[str, ...]]:
    """A row of the table, and one for the proxy's own calls where there are any."""
    cost, side = found.cost, found.side
    taken = [step.seconds for step in found.steps]
    yield (
        way,
        *map(str, (found.answered, found.refused)),
        *(f"{tokens:,}" for tokens in (cost.asked, cost.processed, cost.cached, cost.generated)),
        str(side.calls),
        *(f"{seconds:.1f}" for seconds in (found.seconds, median(taken), max(taken))),
    )
    if side.calls:
        tokens = (f"{each:,}" for each in (side.asked, side.processed, side.cached, side.generated))
        yield ("of which side calls", "", "", *tokens, str(side.calls), f"{side.seconds:.1f}", "", "")


def _tell(step: Step, calls: Sequence[Call]) -> None:
    cost = ", ".join(f"{call.processed} of {call.asked} read, {call.generated} written" for call in calls)
    print(
        f"  {step.seconds:6.1f} s  {'answered' if step.id else 'refused '}  {step.actions or '-':30}  {cost}",
        flush=True,
    )


def _silent(step: Step, calls: Sequence[Call]) -> None:
    """Told nothing."""


def conversing(description: str | None, steps: int) -> argparse.ArgumentParser:
    """Arguments for a conversation of so many steps, if nothing else is said."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("TRANSOM_SHARED_DATA")
    add = parser.add_argument
    add("folder", type=Path, nargs="?", default=Path(shared) if shared else None)
    add("--steps", type=int, default=steps)
    add("--window", type=int, default=4096, help="tokens, a multiple of 256")
    add("--characters", type=int, default=900, help="of each user message")
    add("--answer", type=int, default=48, help="the most tokens of an answer")
    return parser


def arguments() -> argparse.ArgumentParser:
    parser = conversing(__doc__, 40)
    add = parser.add_argument
    add("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    add(
        "--deadline",
        type=float,
        help="seconds that the proxy waits for a summary; its default where left out",
    )
    add("--each", action="store_true", help="print each step too")
    return parser


async def run(options: argparse.Namespace) -> int:
    texts = texts_of(options.folder, options.steps, options.characters)
    settings = Settings(options.window, options.answer, texts, options.deadline)
    lines: list[tuple[str, ...]] = []
    doubts = []
    for way in options.ways:
        if options.each:
            print(f"{way}:", flush=True)
        found = await outcome(way, settings, _tell if options.each else _silent)
        lines += rows(way, found)
        if options.each:
            print(table(COLUMNS, list(rows(way, found))), flush=True)
        doubts += [f"{way}: {doubt}" for doubt in found.doubts()]
    versions = (f"{name} {metadata.version(name)}" for name in (SERVER_WHEEL, MODEL_WHEEL))
    kind = "made-up" if options.folder is None else "recorded"
    print(machine.running(*versions))
    print(
        f"{len(texts)} steps of {options.characters} characters ({kind}), a window of {options.window} tokens.\n"
    )
    print("\n".join([table(COLUMNS, lines), *doubts]))
    return 1 if doubts else 0


def main(words: Sequence[str] | None = None) -> int:
    return asyncio.run(run(arguments().parse_args(words)))


def _stop(*_: object) -> NoReturn:
    """Whoever ends this program ends what it started too."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
