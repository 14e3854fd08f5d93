"""Budgets that are small, answers that are long, messages that are larger than the window, and counts at their ends.

Rules. Every server must take what was forwarded wherever that can be made to fit, which `Scene.send` sees to. Nothing
here may loop, and no plan may be made of the output of itself.
"""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context import budget
from proxy.context.policy import DropPolicy, ElidePolicy, ImagePolicy, ModelPolicy, SummaryPolicy
from proxy.exchange import Refused
from tests.scenarios.messages import (
    PICTURE,
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    between,
    call,
    calls,
    filler,
    mixed,
    result,
    said,
    step,
    talk,
    text_of,
    text_part,
    turn,
    user,
)
from tests.scenarios.scene import LADDERS, POLICY, TEMPERS, WINDOW, Scene, once, refusals

LIMITS = ("max_tokens", "max_completion_tokens")
MARGIN = int(WINDOW * POLICY.margin)


@pytest.mark.parametrize("reserve", [4096, 16_384, 1_000_000])
@pytest.mark.parametrize("window", [512, 1000, 2048, 4096, 8192])
def test_b31_a_chat_of_300_tokens_is_left_alone_in_a_window_smaller_than_the_reserve(
    window: int, reserve: int
) -> None:
    sent = once([SYSTEM, user(filler("question", 1150))], ModelPolicy(window=window, reserve_output=reserve))
    assert sent.tokens > 295
    assert sent.is_untouched


@pytest.mark.parametrize("asked", [None, 1, 100, 1_000_000])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 33, 64, 100, 256])
def test_b31_a_window_of_next_to_nothing_gives_a_budget_and_the_newest_message(
    window: int, asked: int | None
) -> None:
    fields: dict[str, Any] = {} if asked is None else {"max_tokens": asked}
    sent = once(mixed(4), ModelPolicy(window=window, reserve_output=4096), fits=False, **fields)
    assert sent.verdict.trigger is not None
    assert sent.verdict.trigger >= 1
    assert text_of(sent.messages[-1]).endswith(text_of(QUESTION))
    assert sent.body.get("max_tokens", 1) >= 1


# --- room for the answer ------------------------------------------------------------------------------------

ASKED = (1, 15, 16, 100, 499, 500, 501, 1000, 1939, 1940, 2000, 16_384, 10**12)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("asked", ASKED)
def test_b32_prompt_and_answer_fit_the_window_together_whatever_was_asked(name: str, asked: int) -> None:
    for size in (10, 1000, 3000, 5000, 5600, 6200, 7000, 7600, 20_000):
        fields: dict[str, Any] = {name: asked}
        sent = once([SYSTEM, user(filler("question", size))], **fields)
        limit = sent.body[name]
        assert 1 <= limit <= asked
        if limit < asked:
            assert sent.tokens + limit <= WINDOW - MARGIN
            assert sent.done()["max_tokens"] == limit


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("history", [agent(40), talk(30), mixed(16)], ids=["agent", "talk", "mixed"])
@pytest.mark.parametrize("ladder", LADDERS[:2])
def test_b32_a_history_is_cut_for_an_answer_of_which_a_quarter_of_the_window_is_kept(
    name: str, history: Sequence[Message], ladder: tuple[str, ...]
) -> None:
    fields: dict[str, Any] = {name: 16_384}
    sent = once(history, replace(POLICY, strategies=ladder), **fields)
    assert sent.body[name] >= WINDOW // 4
    assert sent.body[name] + sent.tokens == WINDOW - MARGIN


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("asked", ASKED)
def test_b32_no_answer_that_is_asked_for_takes_a_history_the_room_that_it_fits(name: str, asked: int) -> None:
    fields: dict[str, Any] = {name: asked}
    sent = once(talk(6), **fields)
    assert sent.tokens > WINDOW * 0.45
    assert sent.messages == talk(6)


def test_b32_of_two_limits_the_newer_one_counts_and_the_other_is_left_alone() -> None:
    fields: dict[str, Any] = {"max_tokens": 5000, "max_completion_tokens": 4000}
    sent = once([SYSTEM, user(filler("question", 4000))], **fields)
    assert sent.body["max_tokens"] == 5000
    assert sent.body["max_completion_tokens"] == WINDOW - MARGIN - sent.tokens


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [None, 0, -5, 1.5, "900", True, [900], {}])
def test_b32_what_is_no_limit_is_left_to_the_upstream_and_none_is_added(name: str, value: object) -> None:
    sent = Scene().sent(talk(20), **{name: value})
    assert not sent.is_untouched
    assert {limit: sent.body[limit] for limit in LIMITS if limit in sent.body} == {name: value}
    unasked = once(talk(20))
    assert not any(limit in unasked.body for limit in LIMITS)


def test_b32_a_limit_is_left_alone_where_that_is_configured_or_the_window_is_unknown() -> None:
    history = [SYSTEM, user(filler("question", 4000))]
    assert once(history, replace(POLICY, clamp_max_tokens=False), fits=False, max_tokens=4000).is_untouched
    assert once(history, replace(POLICY, window=None), max_tokens=10**9).is_untouched


def test_b32_a_limit_is_not_lowered_to_an_answer_that_is_worth_nothing() -> None:
    head = {"role": "system", "content": filler("rule", 4 * (WINDOW - MARGIN - 20))}
    sent = once([head, QUESTION], fits=False, max_tokens=900)
    assert sent.tokens > WINDOW - MARGIN - budget.LEAST_ANSWER
    assert sent.body["max_tokens"] == 900


# --- one message alone ---------------------------------------------------------------------------------------

BOOK = filler("book", 3 * WINDOW * 4)
ALONE: Mapping[str, Any] = {
    "text": BOOK,
    "one line": "x" * len(BOOK),
    "one part": [text_part(BOOK)],
    "parts and a picture": [text_part("What is in it?"), PICTURE, text_part(BOOK)],
    "many parts": [text_part(BOOK[:4000], cache_control={"type": "ephemeral"}) for _ in range(6)],
    "the longest part is not the last": [text_part(BOOK), text_part("What is in it?")],
}


@pytest.mark.parametrize("content", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize(
    "before", [[], turn(0), agent(12)[1:]], ids=["alone", "behind a turn", "behind rounds"]
)
@pytest.mark.parametrize("ladder", [LADDERS[0], ("shorten",)])
def test_b33_a_question_of_three_windows_is_shortened_in_the_middle(
    content: Any, before: Sequence[Message], ladder: tuple[str, ...]
) -> None:
    # Straight behind a result no user may speak.
    spoken = [said("Done.")] if before and before[-1]["role"] == "tool" else []
    sent = once([SYSTEM, *before, *spoken, user(content)], replace(POLICY, strategies=ladder))
    assert refusals(sent, WINDOW, TEMPERS) == {}
    newest = sent.messages[-1]
    assert "characters left out here" in text_of(newest)
    assert type(newest["content"]) is type(content)
    assert text_of(newest).endswith(text_of(user(content))[-50:])
    if isinstance(content, list):
        pictures = [[part for part in parts if part == PICTURE] for parts in (content, newest["content"])]
        assert pictures[0] == pictures[1]
    assert sent.tokens > WINDOW // 2, "no more goes than must"


@pytest.mark.parametrize("strategies", [(), ("elide",), ("images", "elide", "summarize", "drop")])
def test_b33_without_a_step_that_shortens_it_is_left_to_the_upstream(strategies: tuple[str, ...]) -> None:
    sent = once([SYSTEM, user(BOOK)], replace(POLICY, strategies=strategies), fits=False)
    assert sent.is_untouched
    assert sent.verdict.reason


# --- no progress ---------------------------------------------------------------------------------------------

PICTURED = [user([text_part(filler(f"shot {n}", 300)), PICTURE, PICTURE]) for n in range(8)]
HISTORIES: Mapping[str, Sequence[Message]] = {
    "agent": agent(40),
    "parallel agent": agent(12, 500, width=4),
    "talk": talk(20),
    "mixed": mixed(12),
    "pictures": [SYSTEM, *(m for shot in PICTURED for m in (shot, said("I see."))), QUESTION],
    "huge result": [SYSTEM, TASK, *step(0), *step(1, 20_000)],
    "huge question": [SYSTEM, *turn(0), user(BOOK)],
    "huge arguments": [SYSTEM, TASK, calls(call("a", "write_file", content=BOOK)), result("a", "ok")],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize(("ladder", "fails"), [*((each, False) for each in LADDERS), (LADDERS[1], True)])
def test_b35_what_was_made_to_fit_is_left_alone_when_it_comes_back(
    history: Sequence[Message], ladder: tuple[str, ...], fails: bool
) -> None:
    policy = replace(POLICY, strategies=ladder)
    first = Scene(policy, fails=fails).send(history)
    assert not first.is_untouched
    assert first.tokens <= (first.verdict.trigger or 0)
    again = Scene(policy, fails=fails).send(first.messages)
    assert again.is_untouched


MARKERS = (
    "characters left out here",
    "messages of this conversation are left out here",
    "[Summary of",
    "[Output of",
)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("ladder", LADDERS)
def test_b35_two_proxies_in_a_row_stack_no_markers(
    history: Sequence[Message], ladder: tuple[str, ...]
) -> None:
    messages = history
    for window in (2000, 1400, 1000):
        messages = once(messages, replace(POLICY, window=window, strategies=ladder, pin=())).messages
    for message in messages:
        for place in re.split(r"\[End of (?:that message|the summary)\.\]", text_of(message)):
            assert [marker for marker in MARKERS if place.count(marker) > 1] == []


@pytest.mark.parametrize(
    "said_so", ["Invalid image URL: the file could not be downloaded", "Provider returned error"]
)
def test_b35_an_unrelated_refusal_is_passed_on_without_another_try(said_so: str) -> None:
    scene = Scene()
    scene.desk.answers = (Refused(400, json.dumps({"error": {"message": said_so}}).encode()),)
    sent = scene.send(mixed(12))
    assert sent.verdict.status == 400
    [relayed] = [command for command in scene.desk.done if type(command).__name__ == "Relay"]
    assert relayed is scene.desk.done[-1]


NOTHING_TO_DO: Mapping[str, tuple[tuple[str, ...], Sequence[Message]]] = {
    "no results": (("elide",), talk(20)),
    "no pictures": (("images",), talk(20)),
    "no side call": (("summarize",), talk(20)),
    "nothing is old": (("drop", "summarize", "elide"), [SYSTEM, user(BOOK)]),
    "nothing is long": (("shorten",), [SYSTEM, *(m for n in range(120) for m in turn(n, 100)), QUESTION]),
    "nothing but the head": (LADDERS[0], [{"role": "system", "content": BOOK}, QUESTION]),
}


@pytest.mark.parametrize("case", NOTHING_TO_DO.values(), ids=NOTHING_TO_DO)
def test_b36_steps_that_change_nothing_leave_the_bytes_and_store_nothing(
    case: tuple[tuple[str, ...], Sequence[Message]],
) -> None:
    strategies, history = case
    scene = Scene(replace(POLICY, strategies=strategies), fails=True)
    for _ in range(2):
        sent = scene.send(history, fits=False)
        assert sent.is_untouched
        assert sent.saved == 0
        assert sent.verdict.actions == "none"
        assert sent.verdict.reason


# --- counts at their ends ------------------------------------------------------------------------------------


def album(number: int) -> list[Message]:
    """Turns with a picture each and a round of calls."""
    parts = [
        between(
            [user([text_part(filler(f"question {n}", 200)), PICTURE]), said(f"Answer {n}.")], step(n, 300)
        )
        for n in range(number)
    ]
    return [SYSTEM, *(message for part in parts for message in part), QUESTION]


ALBUM = album(10)
COUNTS = (0, 1, 2, len(ALBUM), len(ALBUM) + 5)
KEEPS: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    "elide.keep": lambda kept: {"elide": ElidePolicy(keep=kept)},
    "summary.keep_turns": lambda kept: {"summary": replace(POLICY.summary, keep_turns=kept)},
    "drop.max_turns": lambda kept: {"drop": DropPolicy(max_turns=kept)},
    "images.keep": lambda kept: {"images": ImagePolicy(keep=kept)},
}


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("kept", COUNTS)
@pytest.mark.parametrize("window", [900, None])
@pytest.mark.parametrize("ladder", [LADDERS[0], LADDERS[2]])
def test_b37_head_and_newest_message_survive_every_number_to_keep(
    name: str, kept: int, window: int | None, ladder: tuple[str, ...]
) -> None:
    sent = once(ALBUM, replace(POLICY, window=window, strategies=ladder, **KEEPS[name](kept)))
    assert refusals(sent, window or 1 << 40, TEMPERS) == {}
    assert len(sent.messages) <= len(ALBUM)
    assert sent.messages[0] == SYSTEM
    assert text_of(sent.messages[-1]).endswith(text_of(QUESTION))


def test_b37_no_two_numbers_to_keep_get_into_each_others_way() -> None:
    few = (0, 1, len(ALBUM) + 5)
    for kept in itertools.product(few, repeat=len(KEEPS)):
        changed = [make(number) for make, number in zip(KEEPS.values(), kept, strict=True)]
        fields = {key: value for each in changed for key, value in each.items()}
        sent = once(ALBUM, replace(POLICY, window=900, **fields))
        assert sent.messages[0] == SYSTEM
        assert text_of(sent.messages[-1]).endswith(text_of(QUESTION))


@pytest.mark.parametrize("kept", COUNTS)
def test_b37_so_many_results_stay_whole(kept: int) -> None:
    history = [*agent(20, 900), said("Done."), QUESTION]
    sent = once(history, replace(POLICY, strategies=("elide",), elide=ElidePolicy(keep=kept)), fits=False)
    whole = [message in history for message in sent.of_role("tool")]
    assert sum(whole) >= min(kept, 20)
    assert whole == sorted(whole), "the newest"


@pytest.mark.parametrize("kept", COUNTS)
@pytest.mark.parametrize("fails", [False, True])
def test_b37_so_many_turns_stay_whole_where_they_fit(kept: int, fails: bool) -> None:
    summary = SummaryPolicy(keep_turns=kept, keep_recent=0, max_tokens=60, prepare_at=0)
    sent = Scene(replace(POLICY, strategies=("summarize", "drop"), summary=summary), fails=fails).send(
        talk(40, 100)
    )
    whole = [message for message in sent.of_role("user") if message in talk(40, 100)]
    assert not sent.is_untouched
    assert len(whole) >= min(kept, 2)


@pytest.mark.parametrize("kept", COUNTS)
def test_b37_so_many_turns_and_pictures_are_forwarded_and_no_more(kept: int) -> None:
    policy = replace(POLICY, window=None)
    slid = once(ALBUM, replace(policy, drop=DropPolicy(max_turns=kept)))
    assert len(slid.of_role("user")) <= max(1, kept)
    fewer = once(ALBUM, replace(policy, images=ImagePolicy(keep=kept)))
    pictures = [PICTURE in message["content"] for message in fewer.of_role("user")[:-1]]
    assert sum(pictures) <= kept
    assert pictures == sorted(pictures), "the newest"
    assert sum(pictures) == min(kept, 10), "a batch of one picture is the whole difference"
