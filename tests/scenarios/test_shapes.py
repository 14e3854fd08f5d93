"""Hostile shapes: heads that eat the window, hundreds of calls at once, histories of one kind, and nothing at all.

Rules. Nothing raises, however odd a message is; what a server would have taken of the client it takes of us, and a
damaged order of calls and results is forwarded in one that every strict server takes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.edits import SummaryRole
from proxy.context.policy import DropPolicy, ElidePolicy, ImagePolicy, ModelPolicy, OnOverflow, Orphans
from proxy.demo.rules import Temper
from proxy.errors import ContextOverflow
from proxy.wire.chat import NotManaged
from tests.context import histories
from tests.scenarios.messages import (
    DEVELOPER,
    PICTURE,
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    call,
    calls,
    filler,
    mixed,
    result,
    said,
    step,
    steps,
    talk,
    text_of,
    text_part,
    turns,
    user,
)
from tests.scenarios.scene import (
    BOUNDLESS,
    LADDERS,
    POLICY,
    TEMPERS,
    WINDOW,
    Scene,
    broken,
    once,
    refusals,
    takers,
)

BOOK = filler("book", 3 * WINDOW * 4)

# --- heads --------------------------------------------------------------------------------------------------------


def head_of(share: float, role: str = "system") -> Message:
    """A head that takes this share of the window."""
    return {"role": role, "content": filler("rule", int(WINDOW * 4 * share))}


BODIES: Mapping[str, Sequence[Message]] = {
    "question": [QUESTION],
    "talk": talk(12)[1:],
    "agent": agent(20, 60)[1:],
    "tiny agent": agent(12, 8)[1:],
}


@pytest.mark.parametrize(("share", "limit"), [(0.5, 400), (0.8, 400), (0.9, 400), (0.95, None)])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("ladder", LADDERS)
def test_a_head_that_eats_most_of_the_window_leaves_room_for_the_newest_round(
    share: float, body: Sequence[Message], ladder: tuple[str, ...], limit: int | None
) -> None:
    fields: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
    sent = once([head_of(share), *body], replace(POLICY, strategies=ladder), **fields)
    assert sent.messages[0] == head_of(share)
    assert refusals(sent, WINDOW, TEMPERS) == {}


@pytest.mark.parametrize("share", [0.99, 1.0, 1.5, 10.0])
@pytest.mark.parametrize(
    "roles", [["system"], ["developer"], ["developer", "developer"], ["system", "developer"]]
)
def test_a_head_that_leaves_no_room_is_forwarded_whole_or_refused_as_configured(
    share: float, roles: Sequence[str]
) -> None:
    heads = [head_of(share / len(roles), role) for role in roles]
    sent = once([*heads, *BODIES["talk"]], fits=False)
    assert sent.messages[: len(heads)] == heads
    assert sent.verdict.reason
    assert sent.side_calls == (), "a summary would not help"
    with pytest.raises(ContextOverflow, match="However, the messages that must stay"):
        once([*heads, *BODIES["talk"]], replace(POLICY, on_overflow=OnOverflow.REFUSE))


@pytest.mark.parametrize("ladder", LADDERS)
def test_two_developer_messages_are_the_head_of_a_long_talk(ladder: tuple[str, ...]) -> None:
    heads = [DEVELOPER, {"role": "developer", "content": [text_part("Second.")]}]
    sent = once([*heads, *talk(30)[1:]], replace(POLICY, strategies=ladder))
    assert sent.messages[:2] == heads
    assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}


# --- rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize("place", ["newest", "old"])
@pytest.mark.parametrize("ladder", [LADDERS[0], LADDERS[2]])
def test_two_hundred_calls_at_once_keep_two_hundred_results_or_go(
    size: int, place: str, ladder: tuple[str, ...]
) -> None:
    later = [] if place == "newest" else [said("Done."), QUESTION]
    policy = replace(POLICY, window=24_000, strategies=ladder)
    sent = once([SYSTEM, TASK, *step(0, size, width=200), *later], policy)
    assert refusals(sent, 24_000, TEMPERS) == {}
    assert len(sent.of_role("tool")) == 200 or (place == "old" and not sent.of_role("tool"))


def test_two_hundred_calls_with_one_result_get_the_other_199() -> None:
    opener, first, *_ = step(0, 40, width=200)
    sent = once([SYSTEM, TASK, opener, first, said("Done."), QUESTION], replace(POLICY, window=24_000))
    assert refusals(sent, 24_000, TEMPERS) == {}
    assert sent.done() == {"repair": 199}


@pytest.mark.parametrize("order", [1, -1])
def test_two_hundred_results_in_any_order_answer_their_calls(order: int) -> None:
    opener, *answers = step(0, 400, width=200)
    sent = once([SYSTEM, TASK, opener, *answers[::order], said("Done."), QUESTION])
    assert refusals(sent, WINDOW, TEMPERS) == {}


# --- histories of one kind -----------------------------------------------------------------------------------------

ONE_KIND: Mapping[str, Sequence[Message]] = {
    "results": [result(f"x{n}", filler(f"orphan {n}", 500)) for n in range(30)],
    "one result": [result("x", BOOK)],
    "answers": [said(filler(f"answer {n}", 500)) for n in range(30)],
    "one answer": [said(BOOK)],
    "questions": [user(filler(f"question {n}", 500)) for n in range(30)],
    "calls without results": [*(calls(call(f"x{n}", why="w" * 400)) for n in range(30)), QUESTION],
    "rounds without a user": steps(30),
    "pictures": [user([PICTURE]) for _ in range(60)],
    "empty texts": [user("") if n % 2 else said("") for n in range(600)],
}


@pytest.mark.parametrize("history", ONE_KIND.values(), ids=ONE_KIND)
@pytest.mark.parametrize("head", [[], [SYSTEM]], ids=["no head", "head"])
@pytest.mark.parametrize(
    ("ladder", "orphans"),
    [(LADDERS[0], Orphans.TEXT), (LADDERS[1], Orphans.DROP), (LADDERS[2], Orphans.TEXT)],
)
def test_a_history_of_one_kind_is_made_to_fit(
    history: Sequence[Message], head: Sequence[Message], ladder: tuple[str, ...], orphans: Orphans
) -> None:
    sent = once([*head, *history], replace(POLICY, strategies=ladder, orphans=orphans))
    assert not sent.is_untouched
    assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}
    assert sent.messages[: len(head)] == head
    assert len(sent.messages) > len(head)


@pytest.mark.parametrize("messages", [[], [SYSTEM], [DEVELOPER, SYSTEM], [QUESTION], [said("Hello.")]])
@pytest.mark.parametrize("max_turns", [None, 0, 1])
@pytest.mark.parametrize("role", list(SummaryRole))
def test_next_to_nothing_is_forwarded_as_it_is(
    messages: Sequence[Message], max_turns: int | None, role: SummaryRole
) -> None:
    policy = replace(POLICY, drop=DropPolicy(max_turns=max_turns), summary_role=role)
    assert once(messages, policy).is_untouched
    assert once(messages, replace(policy, window=16), fits=False).messages == list(messages)


# --- damaged histories ---------------------------------------------------------------------------------------------


def doubled(place: int) -> list[Message]:
    """A conversation in which one message is sent twice, as clients do that lost a connection."""
    history = mixed(3, 200)
    return [*history[: place + 1], *history[place:]]


@pytest.mark.parametrize("place", range(1, len(mixed(3, 200))))
@pytest.mark.parametrize("window", [300, 900, 100_000])
def test_a_message_that_a_client_sent_twice_is_refused_by_no_server_that_took_it(
    place: int, window: int
) -> None:
    history = doubled(place)
    sent = once(history, replace(POLICY, window=window))
    if history[place]["role"] == "tool":
        assert refusals(sent, window, TEMPERS) == {}


@pytest.mark.parametrize("place", range(2, len(mixed(2, 200))))
@pytest.mark.parametrize("orphans", list(Orphans))
def test_a_result_of_nobodys_call_is_refused_by_no_server_that_took_it(place: int, orphans: Orphans) -> None:
    history = mixed(2, 200)
    with_orphan = [*history[:place], result("nobody", "what nobody asked for"), *history[place:]]
    once(with_orphan, replace(POLICY, orphans=orphans))


def test_without_repair_a_damaged_history_that_fits_keeps_its_bytes() -> None:
    history = [SYSTEM, result("x", "orphan"), TASK, calls(call("a"), call("b")), result("b", "B"), QUESTION]
    assert once(history, replace(POLICY, repair=False)).is_untouched


def test_a_repaired_history_is_summarised_and_found_again() -> None:
    damaged = [SYSTEM, TASK, result("x", "orphan"), *mixed(20)[1:]]
    scene = Scene(replace(POLICY, strategies=("summarize", "drop")))
    first = scene.send(damaged)
    assert len(first.side_calls) == 1
    again = scene.send([*damaged, said("So."), QUESTION])
    assert again.side_calls == ()
    assert again.messages[:2] == first.messages[:2]


POLICIES = st.builds(
    lambda window, ladder, fields: ModelPolicy(window=window, strategies=tuple(ladder), **fields),
    st.sampled_from([120, 300, 700, 1500, None]),
    st.sampled_from([*LADDERS, ("elide",), ("shorten",), ("summarize",), ("drop",)]),
    st.fixed_dictionaries(
        {"elide": st.builds(ElidePolicy, st.integers(0, 3))},
        optional={
            "drop": st.builds(DropPolicy, st.integers(0, 3)),
            "images": st.builds(ImagePolicy, st.integers(0, 3)),
            "orphans": st.sampled_from(Orphans),
            "vision": st.booleans(),
            "pin": st.just(("abc",)),
            "protect_tools": st.just(("run",)),
            "keep_user_tokens": st.just(60),
        },
    ),
)
RAW = histories.conversations().map(lambda talk: [json.loads(message.raw) for message in talk.messages])


@given(RAW, POLICIES, st.booleans())
def test_any_history_is_forwarded_with_every_promise_kept(
    messages: list[Any], policy: ModelPolicy, fails: bool
) -> None:
    sent = Scene(policy, fails=fails).sent(messages)
    assert broken(sent, policy) == []


SOUND = histories.conversations(damaged=False).map(
    lambda talk: [json.loads(message.raw) for message in talk.messages]
)


@given(SOUND, POLICIES, st.booleans())
def test_what_a_server_takes_of_a_client_it_takes_of_us(
    messages: list[Any], policy: ModelPolicy, fails: bool
) -> None:
    sent = Scene(policy, fails=fails).sent(messages)
    assert refusals(sent, BOUNDLESS, takers(sent.request)) == {}


JSON = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 1.5, 10**30, "", "x", "y" * 3000, "\ud83d", "user", "tool", "assistant", "c1x0"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "text", "image_url", "url", "function", "id", "name"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
FIELDS = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "function_call",
    "reasoning_content",
    "audio",
    "x",
)


@st.composite
def mangled(draw: st.DrawFn) -> list[Any]:
    """A long history in which some fields, or whole messages, are any JSON at all."""
    history: list[Any] = [dict(message) for message in draw(st.sampled_from([agent(8), mixed(4), talk(7)]))]
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(history) - 1))
        if draw(st.booleans()) or not isinstance(history[index], dict):
            history[index] = draw(JSON)
        else:
            history[index] = {**history[index], draw(st.sampled_from(FIELDS)): draw(JSON)}
    return history


@given(mangled(), POLICIES)
def test_any_json_anywhere_raises_nothing_and_keeps_every_promise(
    messages: list[Any], policy: ModelPolicy
) -> None:
    try:
        sent = Scene(policy).sent(messages)
    except NotManaged:
        return
    assert broken(sent, policy) == []


def test_the_newest_round_of_three_windows_and_the_oldest_leave_one_another_alone() -> None:
    history = [SYSTEM, user(BOOK), said(BOOK), *turns(2), user([text_part(BOOK), PICTURE])]
    sent = once(history)
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert PICTURE in sent.messages[-1]["content"]
    assert text_of(sent.messages[-1]).count("characters left out here") == 1
