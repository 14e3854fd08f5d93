"""Random conversations for the judges: some that every template takes, and those of the core's own properties.

Rules. What is drawn is a list of decoded messages; `bodies` makes of it the requests of a client that comes to have
that conversation. Ids have nine signs, which the strictest judges want, so that it is never an id that is refused;
texts end with a mark of their own, by which each is found in a prompt, within JSON too.
"""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from proxy.context.conversation import Conversation
from tests.context import histories
from tests.templates.talks import SYSTEM

ANSWER: Final = st.one_of(
    histories.LONG, histories.LONG.map(lambda text: [{"type": "text", "text": text}])
).map(lambda content: [{"role": "assistant", "content": content}])


class Manner(StrEnum):
    """How much the assistant of a conversation does, from what all templates take to what most take."""

    TALKS = "talks"
    CALLS_ONE = "calls one tool at a time, in silence"
    CALLS = "calls tools"


@st.composite
def turn(draw: st.DrawFn, manner: Manner) -> list[histories.Raw]:
    """A question, rounds of calls and an answer."""
    rounds = [] if manner is Manner.TALKS else draw(st.lists(histories.tool_round(), max_size=3))
    done = [[m for m in part if m["role"] != "system"] for part in rounds]
    if manner is Manner.CALLS_ONE:
        done = [_one_call(part) for part in done]
    return [message for part in (draw(histories.USER), *done, draw(ANSWER)) for message in part]


def _one_call(part: Sequence[histories.Raw]) -> list[histories.Raw]:
    """The round with its first call alone."""
    [call, *_] = part[0]["tool_calls"]
    answers = [message for message in part if message.get("tool_call_id") == call["id"]]
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, *answers]


@st.composite
def sound(draw: st.DrawFn) -> list[histories.Raw]:
    """Turns of one manner, below at most one head."""
    manner = draw(st.sampled_from(Manner))
    head = draw(st.sampled_from([[], [dict(SYSTEM)]]))
    turns = draw(st.lists(turn(manner), min_size=2, max_size=5))
    return [*head, *(message for each in turns for message in each)]


def whole() -> st.SearchStrategy[list[histories.Raw]]:
    """The conversations of every shape that the core's own properties are tested with."""
    return histories.conversations(damaged=False).map(_messages).filter(bool)


def damaged() -> st.SearchStrategy[list[histories.Raw]]:
    """Those with every damage that clients produce."""
    return histories.conversations().map(_messages).filter(bool)


def _messages(talk: Conversation) -> list[histories.Raw]:
    return [json.loads(message.raw) for message in talk.messages]


def ends(messages: Sequence[histories.Raw]) -> Iterator[int]:
    """Where a client may have asked: behind a user message, behind all results of a round, and at the end."""
    for index, (message, following) in enumerate(pairwise(messages), 1):
        role, next_role = message.get("role"), following.get("role")
        if role == "user" or (role == "tool" and next_role != "tool"):
            yield index
    yield len(messages)


def bodies(messages: Sequence[histories.Raw]) -> list[dict[str, Any]]:
    """The requests of a client that comes to have this conversation, all texts marked and all ids of nine signs."""
    marked = [_marked(message, mark(index)) for index, message in enumerate(messages)]
    renamed: list[histories.Raw] = json.loads(json.dumps(marked).replace('"call_', '"callid00'))
    return [{"model": "m", "messages": renamed[:end]} for end in ends(renamed)]


def mark(index: int) -> str:
    """What the text of the message at this place ends with, if it has one, and no other text does."""
    return f"mark{index}."


def _marked(message: histories.Raw, ending: str) -> histories.Raw:
    match message.get("content"):
        case str(text) if text:
            return {**message, "content": text + ending}
        case [*parts, {"type": "text", "text": str(text)} as last]:
            return {**message, "content": [*parts, {**last, "text": text + ending}]}
        case _:
            return message
