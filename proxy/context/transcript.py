"""A range of the history as one plain text, within so many tokens: what the model that summarises is shown.

Rules. Every message of the range is in it, in its order; long texts keep head and tail. Where room is short the output
of tools is clipped first and what people and the model said after it. Its size is told by the sizes that were measured
of the messages, at each message's own characters per token. No line of the conversation can pass for the fence or for
the label of another item.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from proxy.context.clip import LEAST, clip
from proxy.context.conversation import Message
from proxy.context.steps import Pace, Steps
from proxy.context.tokens import Size

FENCE = "=" * 12

_LABEL_TOKENS = 10
"""Before an item, rounded up."""

_LOOKED_AT, _TRIED, _WRITTEN = 5.0, 0.7, 15.0
"""Microseconds in which the texts of a message are measured, in which it is told what they take once they are clipped,
and in which its items are written."""

_WORTH_PARTS = 1.5
_LEAST_ROOM = 1500
"""Tokens. Up to so many times the room is clipped into it, and whatever there is into a smaller one: the order itself
takes most of such a window, and each further call keeps the client waiting."""

_OUTPUT_IN_PARTS = 0.25
"""The part of an item's limit at which tool output is clipped before a range is taken in several parts."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """The most characters of one text, and of one tool result."""

    texts: int
    outputs: int


class _Measured(NamedTuple):
    """What the size of a message's items is told from: the lengths of its texts, its tokens a character, and the tokens
    of its labels."""

    is_result: bool
    lengths: tuple[int, ...]
    rate: float
    labels: int


@dataclass(frozen=True, slots=True)
class Source:
    """A range of the history, and by what the size of each of its messages is told. `source` makes one."""

    messages: tuple[Message, ...]
    measured: tuple[_Measured, ...]

    @property
    def characters(self) -> int:
        """The length of all its texts."""
        return sum(sum(each.lengths) + 1 for each in self.measured)

    def before(self, length: int) -> "Source":
        """Its first messages, so many."""
        return Source(self.messages[:length], self.measured[:length])

    def tokens(self, clipping: Clipping) -> float:
        """What its transcript takes, about."""
        return sum(self.each(clipping))

    def each(self, clipping: Clipping) -> Iterator[float]:
        """The same of each message."""
        texts, outputs = clipping.texts, clipping.outputs
        for is_result, lengths, rate, labels in self.measured:
            limit = outputs if is_result else texts
            yield labels + rate * sum([length if length < limit else limit for length in lengths])


def source(messages: Sequence[Message], sizes: Sequence[Size]) -> Steps[Source]:
    """These messages with their measured sizes."""
    measured, pace = list[_Measured](), Pace()
    for message, size in zip(messages, sizes, strict=True):
        lengths = tuple(map(len, _texts(message)))
        rate = (size.tokens - sum(size.media)) / max(1, sum(lengths))
        labels = _LABEL_TOKENS * max(1, sum(map(bool, lengths)) + len(message.media))
        measured.append(_Measured(message.is_result, lengths, rate, labels))
        if pace.is_over(_LOOKED_AT):
            yield
    return Source(tuple(messages), tuple(measured))


def part(
    source: Source, cuts: Sequence[int], room: float | None, most_parts: int, item_characters: int
) -> int:
    """How many of the first messages are to be summarised at once: all, or where that is far beyond the room, up to one
    of these cuts, so that all are taken in parts of about one size. Beyond `most_parts` the parts are larger than the
    room, and are clipped.
    """
    everything = len(source.messages)
    if room is None or room < _LEAST_ROOM or not cuts:
        return everything
    tokens = list(accumulate(source.each(Clipping(item_characters, _least_output(item_characters)))))
    parts = min(ceil(tokens[-1] / max(1.0, room)), most_parts)
    if parts <= 1 or tokens[-1] <= _WORTH_PARTS * room:
        return everything
    share = tokens[-1] / parts
    fitting = [cut for cut in cuts if cut <= bisect_right(tokens, max(share, min(share * 1.2, room)))]
    return fitting[-1] if fitting else cuts[0]


def _least_output(item_characters: int) -> int:
    return max(LEAST, int(item_characters * _OUTPUT_IN_PARTS))


def fitting(source: Source, item_characters: int, room: float | None) -> Steps[Clipping]:
    """The least clipping at which the transcript is within the room: tool output first, then texts, and at last the
    rest of tool output.
    """
    most = max(item_characters, LEAST)
    if room is None:
        return Clipping(most, most)
    ways: tuple[tuple[int, int, Callable[[int], Clipping]], ...] = (
        (most, most, lambda limit: Clipping(limit, limit)),
        (LEAST, most, lambda limit: Clipping(most, limit)),
        (LEAST, most, lambda limit: Clipping(limit, LEAST)),
        (0, LEAST, lambda limit: Clipping(LEAST, limit)),
    )
    pace = Pace()
    for low, high, make in ways:  # noqa: B007 - the way that is left is the one that is taken
        if pace.is_over(_TRIED * len(source.messages)):
            yield
        if source.tokens(make(low)) <= room:
            break
    while low < high:
        if pace.is_over(_TRIED * len(source.messages)):
            yield
        middle = (low + high + 1) // 2
        low, high = (middle, high) if source.tokens(make(middle)) <= room else (low, middle - 1)
    return make(low)


def written(source: Source, clipping: Clipping, room: float | None) -> Steps[str]:
    """The transcript. What no clipping brings within the room loses its middle."""
    lines, pace = list[str](), Pace()
    for message in source.messages:
        lines += _items(message, clipping)
        if pace.is_over(_WRITTEN):
            yield
    text = "\n".join(lines)
    tokens = source.tokens(clipping)
    return text if room is None or tokens <= room else clip(text, int(len(text) * room / tokens))


def defanged(text: str) -> str:
    """A text in which no line can pass for the fence, or for the label of another item."""
    return _LABEL.sub(r"\1(", text).replace(FENCE, FENCE[:-1] + "-")


_LINE_START = r"(?:^|[\r\v\f\x1c-\x1e\x85\u2028\u2029])"
_UNSEEN = r"[ \t\u00a0\u00ad\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000\ufeff]"
_LABEL = re.compile(
    rf"({_LINE_START}{_UNSEEN}*)\[(?={_UNSEEN}*(?:user|assistant|system|developer|tool|function|unknown)\b)",
    re.I | re.M,
)
"""A model may take any of these for the end of a line, and sees none of what comes before the label."""


def _texts(message: Message) -> tuple[str, ...]:
    return (
        message.reasoning,
        message.text or message.refusal,
        *(call.arguments for call in message.calls),
    )


def _items(message: Message, clipping: Clipping) -> Iterator[str]:
    name = f" {message.name}" if message.name else ""
    label = defanged(f"tool result{name}" if message.is_result else f"{message.role or 'unknown'}{name}")
    limit = clipping.outputs if message.is_result else clipping.texts
    if message.reasoning:
        yield f"[{label}, reasoning] {_shown(message.reasoning, max(limit // 2, min(limit, LEAST)))}"
    if text := message.text or message.refusal:
        yield f"[{label}] {_shown(text, limit)}"
    for media in message.media:
        yield f"[{label}] ({media.kind or 'attachment'} not shown)"
    for call in message.calls:
        yield f"[{label} calls {defanged(call.name)}] {_shown(call.arguments or '(no arguments)', limit)}"


def _shown(text: str, limit: int) -> str:
    if limit >= LEAST or len(text) <= limit:
        return defanged(clip(text, limit))
    return f"{defanged(text[:limit])} [{len(text) - limit} characters not shown]"
