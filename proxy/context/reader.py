"""Reads conversations with a memory for what was read before, since clients resend everything with every request.

Rules. What a message says is read once. A body that begins as an earlier one did - the same bytes up to the list of
messages, and then the same messages - is recognised by comparing bytes, and no JSON of that is looked into again:
after equal bytes a parser is in an equal state. A short body, which is read sooner, is not. Memory is bounded by what
the messages take, least recently used first out. One reader serves a whole process, on one thread.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.context import rawjson
from proxy.context.conversation import (
    HASHED_AT_ONCE,
    Conversation,
    Message,
    conversation_of,
    read_message,
)
from proxy.context.steps import AT_ONCE, Steps, at_once

MOST_NEW_VALUES: Final = 200_000
MOST_VALUES_OF_ONE: Final = 10_000
"""JSON values of messages that are new in a request, and of one message, which is decoded in one step. Ten thousand
messages have less than half as many, and a value costs one to ten microseconds."""

MOST_FOLLOWERS: Final = 512
"""Beginnings of messages that are known behind one other: of that many conversations with one system prompt."""

MOST_ALIKE: Final = 8
"""Messages with one beginning that are known behind one other; the newest count."""

_BEGINNING: Final = 96
"""Bytes by which messages are told apart at first."""

MOST_HEADS: Final = 256
LONGEST_HEAD: Final = 256 * 1024
"""Of what stands before the messages, in bytes: tools, for many clients."""

_SEPARATOR: Final = re.compile(rb"[ \t\n\r]*(?:,[ \t\n\r]*(?=[^\] \t\n\r])|(?=\]))")
"""What stands between two messages, or nothing before the end of the list."""


class _Entry(msgspec.Struct, eq=False):
    """A message, and those that were seen behind it. No message: the beginning of a list, or one that was let go."""

    message: Message | None = None
    is_kept: bool = True
    newest: "_Entry | None" = None
    others: OrderedDict[bytes, list["_Entry"]] | None = None
    """With the newest, once there are two."""

    def other_follower(self, body: bytes, position: int) -> "_Entry | None":
        """The one of those behind it that stands there, where the newest does not."""
        if self.others is None:
            return None
        beginning = body[position : position + _BEGINNING]
        if beginning not in self.others:  # of one that is shorter
            beginning = beginning[: beginning.find(b"}") + 1]
        for each in self.others.get(beginning, ()):
            if each.message is not None and body.startswith(each.message.raw, position):
                return each
        return None

    def follow(self, other: "_Entry") -> "_Entry":
        """Know this one behind it from now on, and answer with the one that others are known behind then.

        That is the other, or none that is kept: where one of them was let go of, and where it is not plain where the
        message ends, whatever follows (1 and 12).
        """
        message = other.message
        if not self.is_kept or message is None or not message.raw.startswith(b"{"):
            return _LET_GO
        before, self.newest = self.newest, other
        if before is not None and before is not other:
            if self.others is None:
                self.others = OrderedDict()
                _add(self.others, before)
            _add(self.others, other)
        return other

    def forget(self) -> None:
        """Be no longer kept, and keep nothing: those before it may know it for long."""
        self.message = self.newest = self.others = None
        self.is_kept = False


def _add(others: OrderedDict[bytes, list[_Entry]], other: _Entry) -> None:
    beginning = other.message.raw[:_BEGINNING] if other.message else b""
    alike = others.get(beginning)
    if alike is None:
        others[beginning] = [other]
        if len(others) > MOST_FOLLOWERS:
            others.popitem(last=False)
        return
    alive = [each for each in alike if each.message is not None and each is not other]
    others[beginning] = [other, *alive[: MOST_ALIKE - 1]]
    others.move_to_end(beginning)


_LET_GO: Final = _Entry(is_kept=False)


class Recognised(msgspec.Struct, frozen=True):
    """The messages with which a list begins that were read before: `body[start:stop]`, the comma behind them with it.

    `head` is what stands before the list, its bracket included; empty where nothing was recognised.
    """

    head: bytes = b""
    start: int = 0
    stop: int = 0
    entries: Sequence[_Entry] = ()
    messages: Sequence[Message] = ()
    """Theirs: an entry may be let go of before this is read."""


NOTHING_KNOWN: Final = Recognised()


SHORT: Final = 2048
"""Bytes of a body: up to twenty messages of a hundred bytes are read in no more time than they are recognised in."""


class Reader:
    """`most_bytes` of memory for messages. Whoever reads a body of up to `short` bytes need not have it recognised."""

    def __init__(self, most_bytes: int = 64 * 1024 * 1024, short: int = SHORT) -> None:
        self.short = short
        self._most_bytes = most_bytes
        self._bytes = 0
        self._seen: OrderedDict[bytes, _Entry] = OrderedDict()
        self._heads: OrderedDict[bytes, _Entry] = OrderedDict()

    def recognise(self, body: bytes) -> Recognised:
        """The messages that this body begins with and an earlier one did; total over all bytes."""
        bracket = body.find(b"[", max(0, body.find(b'"messages"')))
        head = body[: bracket + 1] if bracket < LONGEST_HEAD else b""
        entry = self._heads.get(head)
        if entry is None:
            return NOTHING_KNOWN
        position = len(head)
        found: list[_Entry] = []
        messages: list[Message] = []
        # Every message of every request passes here: what is the case nearly always is looked at first.
        while True:
            follower = entry.newest
            if follower is None:
                break
            message = follower.message
            if message is None or not body.startswith(message.raw, position):
                follower = entry.other_follower(body, position)
                if follower is None or (message := follower.message) is None:
                    break
            end = position + len(message.raw)
            if body.startswith(b",{", end):
                position = end + 1
            elif (separator := _SEPARATOR.match(body, end)) is not None:
                position = separator.end()
            else:
                break
            found.append(follower)
            messages.append(message)
            entry = follower
        return Recognised(head, len(head), position, found, messages) if found else NOTHING_KNOWN

    def read(
        self, raws: Sequence[bytes], known: Recognised = NOTHING_KNOWN, head: bytes = b""
    ) -> Conversation:
        """The same as `reading`, without a pause."""
        return at_once(self.reading(raws, known, head))

    def reading(
        self, raws: Sequence[bytes], known: Recognised = NOTHING_KNOWN, head: bytes = b""
    ) -> Steps[Conversation]:
        """The conversation of the messages that were recognised and the raw ones behind them, with their digests.

        `head` is what stands before all of them in the body, to recognise the next by. Raises `rawjson.NotJSON` when a
        message cannot be decoded, `rawjson.TooManyValues` when too much is new.
        """
        if sum(map(len, raws)) > MOST_VALUES_OF_ONE and self._bounded(raws) > AT_ONCE:
            yield  # and what is shorter cannot have more values than that
        for each in known.entries:
            if each.message is not None:
                self._seen.move_to_end(each.message.raw)
        if len(known.entries) > _LINKS_AT_ONCE:
            yield
        root = self._root(head)
        before = known.entries[-1] if known.entries else root
        messages, weight = list(known.messages), 0
        for raw in raws:
            entry, message = self._entry(raw)
            messages.append(message)
            weight += _WEIGHT + len(raw)
            if weight > AT_ONCE:
                weight = 0
                yield
            if len(raw) > HASHED_AT_ONCE:
                yield from message.making_digest()
            before = before.follow(entry)
        while self._bytes > self._most_bytes:
            self._drop(*self._seen.popitem(last=False))
        return conversation_of(messages)

    def _bounded(self, raws: Sequence[bytes]) -> int:
        """Bytes of those that were not seen before. Raises `rawjson.TooManyValues`."""
        unseen = [raw for raw in raws if raw not in self._seen]
        if any(rawjson.has_more_values(raw, MOST_VALUES_OF_ONE) for raw in unseen):
            raise rawjson.TooManyValues("too many values in a message")
        if rawjson.has_more_values(b",".join(unseen), MOST_NEW_VALUES):
            raise rawjson.TooManyValues("too many new values")
        return sum(map(len, unseen))

    def _entry(self, raw: bytes) -> tuple[_Entry, Message]:
        entry = self._seen.get(raw)
        if entry is not None and entry.message is not None:
            self._seen.move_to_end(raw)
            return entry, entry.message
        message = read_message(raw)
        entry = self._seen[raw] = _Entry(message)
        self._bytes += 2 * len(raw) + _AROUND
        if len(raw) <= HASHED_AT_ONCE:
            message.make_digest()
        return entry, message

    def _drop(self, raw: bytes, entry: _Entry) -> None:
        self._bytes -= 2 * len(raw) + _AROUND
        entry.forget()

    def _root(self, head: bytes) -> _Entry:
        """What the first message is known behind: one that is not kept for a head that is not remembered."""
        if not head or len(head) > LONGEST_HEAD:
            return _LET_GO
        root = self._heads.get(head)
        if root is not None:
            self._heads.move_to_end(head)
            return root
        root = self._heads[head] = _Entry()
        if len(self._heads) > MOST_HEADS:
            self._heads.popitem(last=False)
        return root


_WEIGHT: Final = 2048
"""What a message costs beside its bytes, in bytes."""

_AROUND: Final = 2000
"""Bytes of memory that a message takes about, beside twice its raw bytes, once for its texts."""

_LINKS_AT_ONCE: Final = 1024
