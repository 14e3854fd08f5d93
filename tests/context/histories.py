"""Random conversations for property tests: valid ones, and ones with every damage that clients produce."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from proxy.context import carried, conversation, pins, planner, tokens, view
from proxy.context.conversation import Conversation
from proxy.context.edits import Edits
from proxy.context.planner import Plan
from proxy.context.policy import ModelPolicy
from proxy.context.situation import Limits, NeedSizes, NeedSummary, Situation
from proxy.context.steps import at_once

Raw = dict[str, Any]

WORDS = st.text(alphabet="abcdefgh \n", min_size=0, max_size=120)
LONG = st.tuples(st.text(alphabet="abcd \n", min_size=1, max_size=20), st.integers(1, 60)).map(
    lambda drawn: drawn[0] * drawn[1]
)
"""Up to 1,200 characters, cheap to draw and to shrink."""
IDS = st.sampled_from(["call_0", "call_1", "call_2", "call_3"])
NAMES = st.sampled_from(["read_file", "run", "search"])
PICTURES = st.sampled_from(["low", "high", "auto"]).map(
    lambda detail: {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": detail}}
)
PICTURED = st.tuples(LONG, st.lists(PICTURES, min_size=1, max_size=3)).map(
    lambda drawn: [*drawn[1][1:], {"type": "text", "text": drawn[0]}, drawn[1][0]]
)
CONTENT = st.one_of(
    WORDS,
    LONG,
    LONG.map(lambda text: [{"type": "text", "text": text}]),
    WORDS.map(lambda text: [{"type": "text", "text": text}]),
    WORDS.map(lambda text: [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]),
    st.tuples(WORDS, WORDS).map(lambda two: [{"type": "text", "text": text} for text in two]),
)


def count(text: str) -> int:
    """Four characters a token: enough for arithmetic, and instant."""
    return -(-len(text) // 4)


@st.composite
def tool_round(draw: st.DrawFn) -> list[Raw]:
    ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
    calls = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": draw(NAMES), "arguments": json.dumps({"a": draw(st.one_of(WORDS, LONG))})},
        }
        for id_ in ids
    ]
    content = draw(st.one_of(st.none(), WORDS))
    results = [
        {"role": "tool", "tool_call_id": id_, "content": draw(CONTENT)} for id_ in draw(st.permutations(ids))
    ]
    if draw(st.integers(0, 9)) == 0:
        results.insert(draw(st.integers(0, len(results))), {"role": "system", "content": "reminder"})
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]


@st.composite
def legacy_round(draw: st.DrawFn) -> list[Raw]:
    name = draw(NAMES)
    call = {"name": name, "arguments": "{}"}
    return [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": name, "content": draw(LONG)},
    ]


@st.composite
def plain_protocol_round(draw: st.DrawFn) -> list[Raw]:
    return [
        {"role": "assistant", "content": '{"action": "read"}'},
        {"role": "user", "content": "TOOL_RESULTS " + draw(LONG)},
    ]


USER = st.one_of(CONTENT, CONTENT, PICTURED).map(lambda content: [{"role": "user", "content": content}])
ASSISTANT = CONTENT.map(lambda content: [{"role": "assistant", "content": content, "vendor": 1.0}])
VALID = st.one_of(USER, ASSISTANT, tool_round(), legacy_round(), plain_protocol_round())

DAMAGED: st.SearchStrategy[list[Raw]] = st.one_of(
    tool_round().map(lambda messages: messages[1:]),
    tool_round().map(lambda messages: messages[:-1]),
    st.sampled_from(
        [
            [{"role": "assistant", "content": None, "tool_calls": None}],
            [{"role": "assistant", "content": None, "tool_calls": [{"function": None}]}],
            [{"role": "user"}],
            [{"role": "user", "content": []}],
            [{"role": "user", "content": 123}],
            [{"role": "tool", "content": "orphan"}],
            [{"role": "tool", "tool_call_id": None, "content": [{"type": "text"}]}],
            [{"role": "system", "content": "a reminder in mid-history"}],
            [{"role": "critic", "content": "an unknown role"}],
            [{"content": "no role"}],
        ]
    ),
)
HEADS = st.lists(
    st.sampled_from([{"role": "system", "content": "You are."}, {"role": "developer", "content": "x"}]),
    max_size=2,
)


@st.composite
def conversations(draw: st.DrawFn, *, damaged: bool = True) -> Conversation:
    kinds = st.one_of(VALID, VALID, VALID, DAMAGED) if damaged else VALID
    length = draw(st.sampled_from([0, 1, 3, 6, 12, 20]))
    parts = draw(st.lists(kinds, min_size=length, max_size=length))
    return read([*draw(HEADS), *(message for part in parts for message in part)])


def read(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    return conversation.read([json.dumps(message, ensure_ascii=False).encode() for message in messages])


def situation(
    talk: Conversation, limits: Limits | None, policy: ModelPolicy, counter: Callable[[str], int] = count
) -> Situation:
    """The conversation, measured by the given counter."""
    sizes = [tokens.message_size(message, counter, "") for message in talk.messages]
    head = len(talk.head)
    fixed = tokens.request_size(sizes[:head], 0)
    pinned = pins.pinned(talk, policy)
    return Situation(talk, tuple(sizes[head:]), fixed, policy, limits, counter, pinned=pinned)


def apply(conversation: Conversation, edits: Edits) -> Conversation:
    """The view, made without a pause."""
    return at_once(view.applying(conversation, edits))


Step = Callable[[Situation], Edits | Plan | NeedSummary | NeedSizes]


def answered(case: Situation, step: Step, summary: str | None) -> Edits | Plan:
    """A step to its end: every summary answered with the same text, every size measured."""
    while True:
        match said := step(case):
            case NeedSummary():
                case = replace(case, summaries={**case.summaries, said.stop: summary})
            case NeedSizes():
                sizes = {m.raw: tokens.message_size(m, case.count, "") for m in said.messages}
                case = replace(case, made={**case.made, **sizes})
            case _:
                return said


def planned(case: Situation, edits: Edits, summary: str | None) -> Plan:
    """Planning to its end, with what is written into the edits then."""
    last = case

    def step(known: Situation) -> Plan | NeedSummary | NeedSizes:
        nonlocal last
        last = known
        return at_once(planner.planning(known, edits))

    done = answered(case, step, summary)
    assert isinstance(done, Plan)
    if done.edits == edits:
        return done
    written = at_once(carried.writing(last, done.edits))
    return Plan(written, last.tokens(written))
