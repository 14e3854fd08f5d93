"""The page in a real browser, with real traffic behind it: its numbers, its cuts, its keys, what it must not run."""

import contextlib
import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Locator, Page, expect

from proxy.config import Address, Secret
from proxy.config.values import Auth
from proxy.context.policy import Mode
from tests.edge.proxied import proxied
from tests.integration.browser import DESK, PHONE, opened
from tests.integration.test_side_calls import POLICY, post, strict, talk

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def body(number: int, model: str = "m", **more: Any) -> bytes:
    return json.dumps({**json.loads(talk(number)), "model": model, **more}).encode()


def worked(steps: int) -> bytes:
    """An agent that has read so many files."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read all."},
    ]
    for step in range(steps):
        call = {"id": f"c{step}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{step}", "content": f"line {step} " * 100})
    return json.dumps({"model": "agent", "messages": messages, "tools": [TOOL]}).encode()


async def numbers(card: Locator) -> dict[str, int]:
    """The parts of a bar as they are written below it."""
    shown = await card.locator("[data-part]").evaluate_all(
        "nodes => nodes.map(node => [node.dataset.part, node.textContent])"
    )
    return {name: int(text.replace(",", "")) for name, text in shown}


async def widths(card: Locator) -> dict[str, float]:
    """The parts of a bar as shares of its width."""
    found: dict[str, float] = await card.locator(".track").evaluate(
        "track => Object.fromEntries([...track.children].map(node => [node.className,"
        " node.getBoundingClientRect().width / track.getBoundingClientRect().width]))"
    )
    return found


async def test_a_bar_has_the_numbers_that_the_answer_told_and_their_shares_of_the_window() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy, opened(proxy.url) as page:
        answer = await post(proxy.url, worked(12))
        await expect(page.locator(".card")).to_have_count(1)
        card = page.locator(".card")
        await expect(card.locator("h3")).to_contain_text("agent")
        shown, drawn = await numbers(card), await widths(card)
        sent = int(answer.header("x-context-tokens") or 0)
        assert sum(shown.values()) == 2000
        assert shown.pop("free") == 2000 - sent
        assert {"system", "tools", "history"} < set(shown)
        assert {"summary", "elided"} & set(shown)
        assert sum(shown.values()) == sent
        for name, tokens in shown.items():
            assert drawn[name] == pytest.approx(tokens / 2000, abs=0.01), name
        told = (await card.locator(".gauge").get_attribute("aria-label")) or ""
        assert told.startswith(f"{sent:,} of 2,000 tokens: system")
        trigger = int(told.rpartition(" ")[2].replace(",", ""))
        left = await card.locator(".limit").evaluate("node => parseFloat(node.style.left)")
        assert left == pytest.approx(100 * trigger / 2000)


async def test_a_cut_appears_while_one_looks_and_is_said() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy, opened(proxy.url) as page:
        growing = json.loads(talk(5))
        for said in ("So.", "Well."):
            await post(proxy.url, json.dumps(growing).encode())
            growing["messages"] += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": "And then?"},
            ]
        plot = page.locator(".plot svg")
        await expect(plot).to_have_attribute("data-cuts", "0")
        growing["messages"] += [
            {"role": "assistant", "content": "So. " * 900},
            {"role": "user", "content": "Then?"},
        ]
        answer = await post(proxy.url, json.dumps(growing).encode())
        actions = answer.header("x-context-actions") or ""
        await expect(plot).to_have_attribute("data-cuts", "1")
        name, _, count = actions.partition("=")
        assert name in ("summarize", "drop")
        await expect(page.locator("#said")).to_contain_text(f"was cut: {name} {count}")
        await expect(page.locator("#rows tr").first.locator(".chip").first).to_have_text(f"{name} {count}")
        await expect(page.locator("#t-requests")).to_have_text("3")


async def test_what_went_on_before_it_was_counted_is_told_by_the_upstreams_count() -> None:
    small = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello."}]}).encode()
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy, opened(proxy.url) as page:
        await post(proxy.url, small)
        card = page.locator(".card")
        await expect(card.locator("[data-part]")).to_have_count(2)
        shown = await numbers(card)
        assert shown["prompt"] + shown["free"] == 2000
        assert 0 < shown["prompt"] < 50
        await expect(card.locator(".course")).to_be_hidden()


async def test_a_prompt_over_the_window_that_is_only_observed_is_told_as_such() -> None:
    policy = replace(POLICY, mode=Mode.OBSERVE)
    async with strict() as upstream, proxied(upstream.url, policy=policy) as proxy, opened(proxy.url) as page:
        await post(proxy.url, talk(12))
        await expect(page.locator(".card .fill .bad")).to_be_visible()
        await expect(page.locator(".card .last")).to_contain_text("observed only")
        await expect(page.locator("#rows td.status")).to_have_text("400")


async def test_a_server_that_is_not_there_is_told_in_words() -> None:
    async with strict() as upstream:
        gone = upstream.url
    async with proxied(gone, policy=POLICY) as proxy, opened(proxy.url) as page:
        await post(proxy.url, talk(2))
        await expect(page.locator("#upstream")).to_have_text("Upstream out of reach")
        await expect(page.locator("#rows td.status")).to_have_text("502")
        await expect(page.locator("#rows td.done")).to_contain_text("upstream unreachable")


async def test_models_and_health_are_told() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy, opened(proxy.url) as page:
        await expect(page.locator("#upstream")).to_have_text("Upstream not asked yet")
        await post(proxy.url, body(6, "qwen-9"))
        await expect(page.locator("#upstream")).to_have_text("Upstream answers")
        await expect(page.locator("#store")).to_have_text("Store answers")
        await expect(page.locator("#live")).to_have_text("Live")
        row = page.get_by_role("table", name="Models").get_by_role("row").nth(1)
        await expect(row.get_by_role("cell")).to_contain_text(["qwen-9", "2,000", "configured", ""])


# --- by keyboard, and to a screen reader ------------------------------------------------------------------------


async def focused(page: Page) -> str:
    found: str = await page.evaluate(
        "document.activeElement.id || document.activeElement.className || document.activeElement.textContent"
    )
    return found


async def test_everything_is_reached_by_keyboard_and_one_comes_back_from_an_opened_request() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url) as page,
    ):
        for turns in (4, 12):
            await post(proxy.url, talk(turns))
        await expect(page.locator("td.open button")).to_have_count(2)
        await page.keyboard.press("Tab")
        assert await focused(page) == "skip"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await focused(page) == "plot"
        course = page.get_by_role("slider").first
        await expect(course).to_have_attribute("aria-valuetext", re.compile("^Newest: "))
        await page.keyboard.press("Home")
        await expect(course).to_have_attribute("aria-valuetext", re.compile("^Request 1: "))
        while "Open" not in await focused(page):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_be_visible()
        await expect(dialog).to_have_accessible_name("m")
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        assert await focused(page) == "Open"


async def test_a_row_that_has_the_focus_keeps_it_while_others_come() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url) as page,
    ):
        await post(proxy.url, talk(4))
        await page.locator("td.open button").first.focus()
        await post(proxy.url, talk(5))
        await expect(page.locator("#rows tr")).to_have_count(2)
        assert await focused(page) == "Open"


# --- opened -------------------------------------------------------------------------------------------------------


async def test_an_opened_request_shows_the_original_beside_what_was_forwarded_with_the_edits_marked() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url) as page,
    ):
        await post(proxy.url, talk(12))
        await page.get_by_role("button", name="Open request of m").click()
        pairs = page.locator("#pairs")
        block = str(upstream.main_calls[0].body["messages"][1]["content"]).partition("\n\n")[0]
        marked = " ".join(await pairs.locator(".pair.changed mark").all_text_contents())
        assert "[Summary of" in block
        assert block.splitlines()[1] in marked
        cut_off = pairs.locator("details.removed")
        await expect(cut_off).to_contain_text("cut off")
        await cut_off.locator("summary").click()
        await expect(cut_off.locator(".pair").first).to_contain_text("Question 0")
        await expect(cut_off.locator(".pair").first).to_contain_text("Not forwarded")
        await page.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_a_request_whose_text_has_gone_says_so() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url, goes_wrong=True) as page,
    ):
        for turns in range(1, 53):
            await post(proxy.url, body(1, f"m{turns}"))
        await page.get_by_role("button", name="Show all 52 requests").click()
        await page.locator("td.open button").last.click()
        await expect(page.locator("#facts")).to_contain_text("not kept here, or no longer")


EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


async def test_no_text_of_a_request_becomes_markup_or_runs() -> None:
    evil = json.loads(talk(12))
    evil["model"] = EVIL
    evil["messages"][3] = {"role": "user", "content": f"{EVIL} javascript:alert(3) " * 20, "name": EVIL}
    evil["messages"].append({"role": "assistant", "content": EVIL})
    evil["messages"].append({"role": "user", "content": EVIL})
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url) as page,
    ):
        assert (await post(proxy.url, json.dumps(evil).encode())).status == 200
        await expect(page.locator(".card h3")).to_contain_text(EVIL)
        await page.locator("td.open button").click()
        await page.get_by_label("Only what differs").uncheck()
        await expect(page.locator("#pairs")).to_contain_text("<script>alert(2)</script>")
        assert await page.locator("img").count() == 0
        assert await page.locator("script").count() == 1


# --- who may look, and on what ------------------------------------------------------------------------------------


async def test_where_there_are_tokens_the_page_asks_for_one_and_shows_what_its_holder_may_see() -> None:
    auth = Auth((Secret("token-of-ada"), Secret("token-of-bob")))
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, auth=auth, capture=True) as proxy,
        opened(proxy.url, goes_wrong=True) as page,
    ):
        await post(proxy.url, body(12, "of-ada"), ("Authorization", "Bearer token-of-ada"))
        await post(proxy.url, body(12, "of-bob"), ("Authorization", "Bearer token-of-bob"))
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Token").fill("token-of-ada")
        await page.keyboard.press("Enter")
        await expect(page.locator(".card h3")).to_contain_text(["of-ada"])
        await page.locator("td.open button").click()
        await expect(page.locator("#pairs .pair").first).to_be_visible()
        await page.reload()
        await expect(page.locator(".card h3")).to_contain_text(["of-ada"])


CONTRAST = """() => {
  const value = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = (c) => (c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  const light = (text) => value(text).map((c) => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = (node) => { for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor; if (!/, 0\\)|transparent/.test(colour)) return colour; } };
  return ["h1", "h2", ".card h3", ".fill", ".parts li", ".last", ".readout", ".marks span", "th", "td.when", "td.model",
          "td button", ".note", "dt", "dd"].map((name) => {
    const node = document.querySelector(name);
    const [one, other] = [getComputedStyle(node).color, ground(node)].map(light).sort((a, b) => b - a);
    return [name, (one + .05) / (other + .05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=("desk", "phone"))
async def test_it_fits_the_screen_and_can_be_read_in_the_light_and_in_the_dark(
    scheme: str, viewport: dict[str, int]
) -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY, capture=True) as proxy,
        opened(proxy.url, color_scheme=scheme, viewport=viewport) as page,
    ):
        await post(proxy.url, body(12, "a/very-long-name-of-a-model-without-a-break-" * 3))
        await post(proxy.url, worked(12))
        await expect(page.locator(".card")).to_have_count(2)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for name, contrast in await page.evaluate(CONTRAST):
            assert contrast >= 4.5, name
        await page.locator("td.open button").first.click()
        await expect(page.locator("#pairs .pair").first).to_be_visible()
        assert await page.evaluate("document.querySelector('#pairs').scrollWidth <= innerWidth")


async def test_when_the_proxy_goes_the_page_says_so_and_goes_on_when_it_is_back() -> None:
    async with strict() as upstream, contextlib.AsyncExitStack() as first:
        proxy = await first.enter_async_context(proxied(upstream.url, policy=POLICY))
        async with opened(proxy.url, goes_wrong=True) as page:
            await expect(page.locator("#live")).to_have_text("Live")
            await first.aclose()
            await expect(page.locator("#live")).to_have_text("Connection lost, trying again")
            listen = Address("127.0.0.1", urlsplit(proxy.url).port or 0)
            async with proxied(upstream.url, policy=POLICY, listen=listen):
                await expect(page.locator("#live")).to_have_text("Live")
