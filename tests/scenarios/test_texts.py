"""Texts that are larger than the window: shortened in the middle, the newest last, and what is to stay stays.

Rules. Only what no cut can take is shortened, and no more than must be. What is pinned, protected, or not a text keeps
its bytes.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context import rawjson
from proxy.context.policy import ElidePolicy, OnOverflow
from proxy.errors import ContextOverflow
from tests.scenarios.messages import (
    PICTURE,
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    arguments_of,
    call,
    calls,
    filler,
    result,
    said,
    step,
    steps,
    talk,
    text_of,
    text_part,
    turn,
    user,
)
from tests.scenarios.scene import LADDERS, POLICY, TEMPERS, WINDOW, Scene, askings, once, refusals

BOOK = filler("book", 3 * WINDOW * 4)
GONE = "characters left out here"
FITTING = LADDERS[:3]


def results_at_end(*contents: Any) -> list[Message]:
    """A round whose results have these contents."""
    made = calls(*(call(f"r{n}") for n in range(len(contents))))
    return [made, *(result(f"r{n}", content) for n, content in enumerate(contents))]


RESULTS: Mapping[str, Sequence[Any]] = {
    "one": [BOOK],
    "one of three": ["short", BOOK, "short too"],
    "three": [BOOK, BOOK[:9000], BOOK],
    "parts": [
        [text_part("stdout"), text_part(BOOK), text_part("stderr", cache_control={"type": "ephemeral"})]
    ],
    "texts in the list": [["stdout", BOOK]],
}


@pytest.mark.parametrize("contents", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("before", [[], steps(3), steps(60)], ids=["first", "fourth", "sixty-first"])
@pytest.mark.parametrize("ladder", FITTING[:2])
def test_b33_newest_results_of_three_windows_keep_head_and_tail(
    contents: Sequence[Any], before: Sequence[Message], ladder: tuple[str, ...]
) -> None:
    history = [SYSTEM, TASK, *before, *results_at_end(*contents)]
    sent = once(history, replace(POLICY, strategies=ladder))
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert text_of(sent.messages[1]).startswith(text_of(TASK))
    for content, shown in zip(contents, sent.messages[-len(contents) :], strict=True):
        assert type(shown["content"]) is type(content)
        assert shown["content"] == content or GONE in json.dumps(shown["content"])
        assert text_of(shown)[:50] == text_of(result("", content))[:50]
        assert text_of(shown)[-50:] == text_of(result("", content))[-50:]


@pytest.mark.parametrize("longest", [0, 2, 4])
def test_of_the_newest_results_the_largest_lose_most_and_small_ones_nothing(longest: int) -> None:
    sizes = [300, 900, 2500, 9000]
    sizes.insert(longest, 40_000)
    contents = [filler(f"text {n}", size) for n, size in enumerate(sizes)]
    sent = once([SYSTEM, TASK, *results_at_end(*contents)])
    shown = [len(text_of(m)) for m in sent.messages[-len(sizes) :]]
    assert [shown[n] for n, size in enumerate(sizes) if size <= 900] == [300, 900]
    cut = [shown[n] for n, size in enumerate(sizes) if size > 900]
    assert max(cut) <= 2 * min(cut), "all down to one length, but for line ends"


WRITTEN = call("w", "write_file", path="a", content=BOOK)
EDITS = call("e", "edit_file", path="a", edits=[{"old": BOOK[:4000], "new": BOOK[:4000]}] * 4)
DEMANDS: Mapping[str, Sequence[Message]] = {
    "one result": results_at_end(BOOK),
    "a large one and a small one": results_at_end(BOOK, "short"),
    "a small one and a large one": results_at_end("short", BOOK),
    "four results": results_at_end(*[BOOK[:9000]] * 4),
    "three large results": results_at_end(*[BOOK] * 3),
    "a result of six parts": results_at_end([text_part(BOOK[:4000])] * 6),
    "one call": [calls(WRITTEN), result("w", "ok")],
    "a call of many texts": [calls(EDITS), result("e", "ok")],
    "two calls at once": [calls(WRITTEN, EDITS), result("w", "ok"), result("e", "ok")],
}


@pytest.mark.parametrize("newest", DEMANDS.values(), ids=DEMANDS)
def test_no_more_is_shortened_than_the_size_demands(newest: Sequence[Message]) -> None:
    sent = once([SYSTEM, TASK, *newest])
    assert sent.verdict.trigger is not None
    assert sent.tokens >= 0.85 * sent.verdict.trigger


def test_old_texts_go_first_and_the_newest_only_when_nothing_else_would_do() -> None:
    question = user(filler("newest", 3000))
    history = [SYSTEM, user(filler("old", 20_000)), said("So."), question]
    sent = once(history, replace(POLICY, strategies=("shorten",)))
    assert sent.messages[-1] == question
    assert GONE in text_of(sent.messages[1])


@pytest.mark.parametrize("ladder", FITTING)
def test_task_and_newest_result_are_both_too_large(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM, user(BOOK), *step(0), *results_at_end(BOOK)]
    sent = once(history, replace(POLICY, strategies=ladder))
    assert GONE in text_of(sent.messages[1])
    assert GONE in text_of(sent.messages[-1])


@pytest.mark.parametrize("ladder", FITTING)
def test_what_was_shortened_stays_as_it_is_while_the_talk_goes_on(ladder: tuple[str, ...]) -> None:
    scene = Scene(replace(POLICY, strategies=ladder))
    history = [SYSTEM, TASK, *results_at_end(BOOK)]
    first = scene.send(history)
    assert scene.send(history).raw == first.raw
    before, breaks = first.messages, 0
    for number in range(12):
        history = [*history, *step(number, 40)]
        shown = scene.send(history).messages
        breaks += shown[: len(before)] != before
        before = shown
    assert breaks <= 1, "the largest result, once it is old"


ODD_TEXTS: Mapping[str, str] = {
    "emoji": "👩‍👩‍👧‍👦👍🏽❤️" * 1200,
    "accents": unicodedata.normalize("NFD", "Zürich Ångström é ") * 1000,
    "no spaces": "x" * 16_000,
    "line ends": "\r\n" * 8000,
    "nulls": "\u0000a" * 8000,
    "half a surrogate pair": "a\ud83d" * 8000,
    "right to left": "שלום עולם " * 2000,
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
@pytest.mark.parametrize("place", ["user", "parts", "result", "arguments"])
def test_odd_texts_are_shortened_between_characters_and_stay_what_they_are(text: str, place: str) -> None:
    history = {
        "user": [user(text)],
        "parts": [user([text_part(text), PICTURE])],
        "result": [TASK, *results_at_end(text)],
        "arguments": [TASK, calls(call("a", "write_file", path="p", content=text)), result("a", "ok")],
    }[place]
    sent = once([SYSTEM, *history])
    assert refusals(sent, WINDOW, TEMPERS) == {}
    shown = "".join(
        [*map(text_of, sent.messages), *(each for m in sent.messages for each in arguments_of(m))]
    )
    assert GONE in shown
    written = [json.loads(each) for m in sent.messages for each in arguments_of(m)]
    assert [each["path"] for each in written if each] == ["p"] * (place == "arguments")


def test_a_base64_picture_is_never_cut_through() -> None:
    data = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "A" * 100_000, "detail": "low"},
    }
    sent = once([SYSTEM, user([text_part(BOOK), data])])
    assert sent.messages[-1]["content"][-1] == data


def test_odd_bytes_beside_the_text_keep_their_spelling() -> None:
    text = json.dumps(BOOK).encode()
    message = (
        b'{ "content" :'
        + text
        + b', "name":"\\u0061da" ,"weight":1.0e-7,"big":12345678901234567890,"role":"user"}'
    )
    scene = Scene()
    sent = scene.run(b'{"model":"m", "messages":[' + message + b'] ,"temperature":1.0}')
    [shown] = rawjson.elements(rawjson.members(sent.raw)["messages"])
    content = rawjson.members(shown)["content"]
    assert shown == message.replace(text, content)
    assert sent.raw.endswith(b' ,"temperature":1.0}')


# --- what must not be shortened ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [user("Hello."), said("Hello to you.")]], ids=["first", "second"])
@pytest.mark.parametrize("ladder", [("shorten",), *LADDERS])
def test_a_pinned_text_is_shortened_neither_in_its_place_nor_in_a_block(
    before: list[Message], ladder: tuple[str, ...]
) -> None:
    rules = user("# AGENTS.md\n" + filler("rule", 1200))
    history = [SYSTEM, *before, rules, said("Read."), user(filler("old", 12_000)), said("So."), QUESTION]
    sent = once(history, replace(POLICY, strategies=ladder, pin=(r"(?m)^# AGENTS\.md$",)))
    assert not sent.is_untouched
    assert any(text_of(rules) in text_of(m) for m in sent.messages)
    assert sent.verdict.pins == sent.verdict.pins_kept == 1


@pytest.mark.parametrize("place", ["question", "result"])
def test_a_pinned_or_protected_newest_message_larger_than_the_window_is_left_to_the_upstream(
    place: str,
) -> None:
    newest = [user(BOOK)] if place == "question" else [TASK, *results_at_end(BOOK)]
    policy = (
        replace(POLICY, pin=("^book",)) if place == "question" else replace(POLICY, protect_tools=("read",))
    )
    sent = once([SYSTEM, *newest], policy, fits=False)
    assert sent.messages[-1] == newest[-1]
    assert sent.verdict.reason
    with pytest.raises(ContextOverflow, match=r"window is 2000 tokens"):
        Scene(replace(policy, on_overflow=OnOverflow.REFUSE)).send([SYSTEM, *newest])


@pytest.mark.parametrize("ladder", FITTING)
def test_what_can_be_shortened_is_not_refused(ladder: tuple[str, ...]) -> None:
    policy = replace(POLICY, strategies=ladder, on_overflow=OnOverflow.REFUSE)
    for history in ([SYSTEM, user(BOOK)], [SYSTEM, TASK, *results_at_end(BOOK, BOOK)], agent(60), talk(40)):
        assert refusals(once(history, policy, max_tokens=100_000), WINDOW, TEMPERS) == {}


@pytest.mark.parametrize("name", ["tools", "functions", "response_format"])
def test_what_cannot_fit_for_its_tools_is_refused_before_it_is_sent(name: str) -> None:
    one = {"name": "read", "description": BOOK, "parameters": {"type": "object"}}
    extra: Any = {
        "tools": [{"type": "function", "function": one}],
        "functions": [one],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"description": BOOK}},
        },
    }[name]
    scene = Scene(replace(POLICY, on_overflow=OnOverflow.REFUSE))
    with pytest.raises(ContextOverflow):
        scene.sent(talk(3), **{name: extra})
    assert scene.desk.sent == []
    assert Scene().sent(talk(3), **{name: extra}).request["messages"][0] == SYSTEM


@pytest.mark.parametrize("turns_kept", [None, 1, 3])
@pytest.mark.parametrize("shape", ["agent", "turns"])
def test_shortening_and_a_sliding_window_work_on_one_conversation(turns_kept: int | None, shape: str) -> None:
    drop = replace(POLICY.drop, max_turns=turns_kept)
    scene = Scene(replace(POLICY, window=800, drop=drop, elide=ElidePolicy(keep=1)))
    if shape == "agent":
        history = [SYSTEM, TASK, *(m for n in range(6) for m in step(n, 4000))]
    else:
        history = [SYSTEM, *(m for n in range(6) for m in turn(n, 4000)), QUESTION]
    for talked in askings(history):
        sent = scene.send(talked)
        assert refusals(sent, 800, TEMPERS) == {}
        assert scene.send(talked).raw == sent.raw
