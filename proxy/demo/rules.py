"""What strict chat-completions servers refuse, and how they say so.

Rules. Judging is pure and total: any decoded JSON object gives a verdict, never an exception. A body is judged for its
shape first and its length last, as the real servers do, and the first complaint is the answer. The tokens are counted
by an arithmetic of the demonstration's own, so that the proxy's estimate and this count can disagree.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from proxy.demo import refusals
from proxy.demo.counting import (
    Count,
    Fields,
    Prompt,
    fields_of,
    measure,
    message_tokens,
    prompt_of,
    remembering,
)
from proxy.demo.refusals import Refusal

__all__ = [
    "Accepted",
    "Count",
    "Fields",
    "Memory",
    "Prompt",
    "Refusal",
    "Temper",
    "judge",
    "measure",
    "remembering",
]


class Temper(StrEnum):
    """Whose rules are applied.

    OPENAI         the hosted API: pairing of calls and results, roles, shapes; prompt + completion within the window
    TEMPLATE       llama.cpp before a model whose chat template raises: one system message, alternation, a user query
    MISTRAL        mistral-common's request validation in the hosted API's envelope; refuses `stream_options`
    MISTRAL_NINE   the same, and tool call ids must be nine letters or digits
    """

    OPENAI = "openai"
    TEMPLATE = "template"
    MISTRAL = "mistral"
    MISTRAL_NINE = "mistral-9"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request would be served; `prompt_tokens` is what `usage` reports."""

    prompt_tokens: int


class Memory:
    """What was found out about single messages, by their bytes: the weight, and which servers find them sound.

    One memory serves one `count`; it forgets everything when it holds more than `most` messages.
    """

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._known: dict[bytes, _Known] = {}

    def recall(self, message: object) -> "_Known":
        key = _bytes_of(message)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[key] = _Known()
        return known


class _Known:
    __slots__ = ("sound_for", "tokens")

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.sound_for: set[Temper] = set()


class _Server(NamedTuple):
    body: Callable[[Fields], Iterator[Refusal]]
    message: Callable[[int, object], Iterator[Refusal]]
    order: Callable[[Sequence[Fields]], Iterator[Refusal]]
    overflow: Callable[[Fields, Prompt, int], Refusal | None]


_MISTRAL: Final = _Server(
    refusals.mistral_body, refusals.mistral_message, refusals.mistral_order, refusals.mistral_overflow
)

_SERVERS: Final[Mapping[Temper, _Server]] = MappingProxyType(
    {
        Temper.OPENAI: _Server(
            refusals.openai_body, refusals.openai_message, refusals.openai_order, refusals.openai_overflow
        ),
        Temper.TEMPLATE: _Server(
            refusals.template_body,
            refusals.template_message,
            refusals.template_order,
            refusals.template_overflow,
        ),
        Temper.MISTRAL: _MISTRAL,
        Temper.MISTRAL_NINE: _MISTRAL._replace(message=refusals.mistral_nine_message),
    }
)


def judge(
    body: Fields,
    *,
    window: int,
    count: Count,
    temper: Temper,
    factor: float = 1.0,
    hidden: int = 0,
    memory: Memory | None = None,
) -> Refusal | Accepted:
    """Whether a server of this temper with this window (tokens) would serve the decoded body.

    `factor` and `hidden` (tokens) make the server's vocabulary and prompt differ from `count`, see `measure`. Where
    histories are sent again and again, keep a `memory` for them.
    """
    server = _SERVERS[temper]
    complaint = next(server.body(body), None)
    if complaint is not None:
        return complaint
    weight = _weigh(body["messages"], server.message, count, temper, Memory() if memory is None else memory)
    if isinstance(weight, Refusal):
        return weight
    complaint = next(server.order(body["messages"]), None)
    if complaint is not None:
        return complaint
    prompt = prompt_of(weight, body, count, factor=factor, hidden=hidden)
    return server.overflow(body, prompt, window) or Accepted(prompt.total)


def _weigh(
    messages: Sequence[object],
    complaints: Callable[[int, object], Iterator[Refusal]],
    count: Count,
    temper: Temper,
    memory: Memory,
) -> int | Refusal:
    """The weight of all messages together, or what is wrong with one of them."""
    weight = 0
    for index, message in enumerate(messages):
        known = memory.recall(message)
        if temper not in known.sound_for:
            complaint = next(complaints(index, message), None)
            if complaint is not None:
                return complaint
            known.sound_for.add(temper)
        if known.tokens is None:
            known.tokens = message_tokens(fields_of(message), count)
        weight += known.tokens
    return weight


def _bytes_of(message: object) -> bytes:
    try:
        return msgspec.json.encode(message)
    except (UnicodeEncodeError, OverflowError):  # a lone surrogate, an integer of more than 64 bits
        return json.dumps(message).encode()
