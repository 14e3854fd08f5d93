"""A request as it came beside what was forwarded of it, message by message: for people who look at both.

Rules. Which message became which is told by the bytes alone, so that nothing has to be kept but the two bodies: history
is cut off at its beginning, so the newest messages are the same ones on both sides, and the rest follows from the end
on. Order is kept on both sides. Long texts are shown by head and tail, and what differs is marked; what is shown is
never written back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from proxy.context import rawjson
from proxy.context.conversation import Message, read_message

LONGEST = 6000
"""Characters of a text that are shown of one stretch of it."""

SHORTEST_LIKENESS = 24
"""Characters that two texts begin with alike, where one was made of the other by leaving out its middle."""


class Edit(StrEnum):
    """What became of a message."""

    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a text: `same`, `changed`, or a `gap` that says how many characters are not shown."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One message on one side: `index` counts from the start of `messages`, `size` are bytes."""

    index: int
    role: str
    name: str
    size: int
    text: tuple[Stretch, ...]
    calls: tuple[str, ...]
    media: int


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of the comparison; a side is None where there is no such message."""

    edit: Edit
    original: Shown | None
    forwarded: Shown | None


@dataclass(frozen=True, slots=True)
class Side:
    """The messages of one body, read and raw."""

    raws: tuple[bytes, ...]
    messages: tuple[Message, ...]


def compare(original: bytes, forwarded: bytes) -> tuple[Pair, ...]:
    """The two bodies side by side. Raises NotJSON for what is no chat request."""
    return tuple(_pairs(_side(original), _side(forwarded)))


def _side(body: bytes) -> Side:
    raws = tuple(rawjson.elements(rawjson.members(body).get("messages", b"")))
    return Side(raws, tuple(map(read_message, raws)))


def _pairs(left: Side, right: Side) -> Iterator[Pair]:
    became, next_new = _became(left, right), 0
    for i in range(len(left.raws)):
        stop = became.get(i)
        if stop is None:
            yield _pair(left, right, i, None)
            continue
        for j in range(next_new, stop):
            yield _pair(left, right, None, j)
        yield _pair(left, right, i, stop)
        next_new = stop + 1
    for j in range(next_new, len(right.raws)):
        yield _pair(left, right, None, j)


def _became(left: Side, right: Side) -> dict[int, int]:
    """What each message became; those that are missing are gone."""
    both = zip(left.raws, right.raws, strict=False)
    head = next(
        (at for at, (one, other) in enumerate(both) if one != other), min(len(left.raws), len(right.raws))
    )
    found = {at: at for at in range(head)}
    stop = len(left.raws)
    for j in range(len(right.raws) - 1, head - 1, -1):
        match = next((i for i in range(stop - 1, head - 1, -1) if _is_made_of(left, i, right, j)), None)
        if match is not None:
            found[match] = j
            stop = match
    return found


def _is_made_of(left: Side, i: int, right: Side, j: int) -> bool:
    if left.raws[i] == right.raws[j]:
        return True
    before, after = left.messages[i], right.messages[j]
    if after.role != before.role:
        return False
    if after.answers or before.answers:
        return after.answers == before.answers
    if after.calls or before.calls:
        return [call.id for call in after.calls] == [call.id for call in before.calls]
    shorter, longer = sorted((after.text, before.text), key=len)
    return (bool(shorter) and shorter in longer) or _alike(shorter, longer) >= SHORTEST_LIKENESS


def _alike(one: str, other: str) -> int:
    """Characters that two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


# --- one message ------------------------------------------------------------------------------------------------


def _pair(left: Side, right: Side, i: int | None, j: int | None) -> Pair:
    before = left.messages[i].text if i is not None else ""
    after = right.messages[j].text if j is not None else ""
    if i is None or j is None:
        edit = Edit.ADDED if i is None else Edit.REMOVED
    else:
        edit = Edit.SAME if left.raws[i] == right.raws[j] else Edit.CHANGED
    head, tail = _common(before, after) if edit is Edit.CHANGED else (0, 0)
    kind = "same" if edit is Edit.SAME else "changed"

    def shown(side: Side, index: int | None) -> Shown | None:
        return None if index is None else _shown(side.messages[index], index, head, tail, kind)

    return Pair(edit, shown(left, i), shown(right, j))


def _common(before: str, after: str) -> tuple[int, int]:
    """Characters that two texts begin and end with alike."""
    head = _alike(before, after)
    return head, _alike(before[head:][::-1], after[head:][::-1])


def _shown(message: Message, index: int, head: int, tail: int, kind: str) -> Shown:
    text = message.text or message.refusal
    pieces = (
        (text[:head], "same"),
        (text[head : len(text) - tail], kind),
        (text[len(text) - tail :], "same"),
    )
    return Shown(
        index=index,
        role=_written(message.role),
        name=_written(message.name or message.answers),
        size=len(message.raw),
        text=tuple(stretch for piece, kind in pieces if piece for stretch in _stretches(piece, kind)),
        calls=tuple(_written(f"{call.name}({_bounded(call.arguments)})") for call in message.calls),
        media=len(message.media),
    )


def _stretches(text: str, kind: str) -> Iterator[Stretch]:
    if len(text) <= LONGEST:
        yield Stretch(kind, _written(text))
        return
    half = LONGEST // 2
    yield Stretch(kind, _written(text[:half]))
    yield Stretch("gap", f"{len(text) - 2 * half:,} characters")
    yield Stretch(kind, _written(text[-half:]))


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _written(text: str) -> str:
    """As UTF-8 can carry it."""
    return text.encode("utf-8", "replace").decode()
