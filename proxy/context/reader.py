"""Reads conversations with a memory for what was read before, since clients resend everything with every request.

Rules. What a message says is read once. A body that begins as an earlier one did - the same bytes up to the list of
messages, and then the same messages - is recognised by comparing bytes, and no JSON of that is looked into again:
after equal bytes a parser is in an equal state. Memory is bounded by what the messages take, least recently used first
out. One reader serves a whole process, on one thread.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.context import rawjson
from proxy.context.conversation import Conversation, Message, conversation_of, read_message

MOST_NEW_VALUES: Final = 200_000
"""JSON values of messages that are decoded at once. Ten thousand messages have less than half, and one that is made to
be slow costs ten microseconds."""

MOST_FOLLOWERS: Final = 64
"""Messages that are known to stand behind one other; of many conversations with one beginning the newest count."""

MOST_HEADS: Final = 256
LONGEST_HEAD: Final = 256 * 1024
"""Of what stands before the messages, in bytes: tools, for many clients."""

_SEPARATOR: Final = re.compile(rb"[ \t\n\r]*(?:,[ \t\n\r]*(?=[^\] \t\n\r])|(?=\]))")
"""What stands between two messages, or nothing before the end of the list."""


class _Entry:
    """A message, and those that were seen behind it, the newest first."""

    __slots__ = ("followers", "is_gone", "message")

    def __init__(self, message: Message | None = None) -> None:
        self.message = message
        self.followers: list[_Entry] = []
        self.is_gone = False

    def follow(self, other: "_Entry") -> None:
        """Know this one behind it."""
        if other in self.followers:
            return
        alive = [each for each in self.followers if not each.is_gone]
        self.followers = [other, *alive[: MOST_FOLLOWERS - 1]]


@dataclass(frozen=True, slots=True)
class Recognised:
    """The messages with which a list begins that were read before: `body[start:stop]`, the comma behind them with it.

    `head` is what stands before the list, its bracket included; empty where nothing was recognised.
    """

    head: bytes = b""
    stop: int = 0
    entries: Sequence[_Entry] = ()

    @property
    def start(self) -> int:
        return len(self.head)


NOTHING_KNOWN: Final = Recognised()


class Reader:
    """`most_bytes` of memory for messages."""

    def __init__(self, most_bytes: int = 64 * 1024 * 1024) -> None:
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
        position = stop = len(head)
        found: list[_Entry] = []
        while entry is not None:
            followers, entry = entry.followers, None
            for each in followers:
                if each.message is not None and body.startswith(each.message.raw, position):
                    separator = _SEPARATOR.match(body, position + len(each.message.raw))
                    if separator is not None:
                        position = stop = separator.end()
                        found.append(each)
                        entry = each
                    break
        return Recognised(head, stop, found) if found else NOTHING_KNOWN

    def read(
        self, raws: Sequence[bytes], known: Recognised = NOTHING_KNOWN, head: bytes = b""
    ) -> Conversation:
        """The conversation of the messages that were recognised and the raw ones behind them.

        `head` is what stands before all of them in the body, to recognise the next by. Raises `rawjson.NotJSON` when a
        message cannot be decoded, `rawjson.TooManyValues` when too much is new.
        """
        unseen = b",".join([raw for raw in raws if raw not in self._seen])
        if rawjson.has_more_values(unseen, MOST_NEW_VALUES):
            raise rawjson.TooManyValues("too many new values")
        for entry in known.entries:
            if entry.message is not None and not entry.is_gone:
                self._seen.move_to_end(entry.message.raw)
        entries = [*known.entries, *map(self._entry, raws)]
        self._remember(entries, len(known.entries), head)
        return conversation_of([entry.message for entry in entries if entry.message is not None])

    def _entry(self, raw: bytes) -> _Entry:
        entry = self._seen.get(raw)
        if entry is not None:
            self._seen.move_to_end(raw)
            return entry
        entry = self._seen[raw] = _Entry(read_message(raw))
        self._bytes += _footprint(raw)
        while self._bytes > self._most_bytes:
            self._drop(*self._seen.popitem(last=False))
        return entry

    def _drop(self, raw: bytes, entry: _Entry) -> None:
        self._bytes -= _footprint(raw)
        entry.is_gone = True
        entry.followers = []

    def _remember(self, entries: Sequence[_Entry], known: int, head: bytes) -> None:
        """What follows what: the messages from `known` on are new behind those before them."""
        if not head or len(head) > LONGEST_HEAD or not entries:
            return
        root = self._heads.setdefault(head, _Entry())
        self._heads.move_to_end(head)
        if len(self._heads) > MOST_HEADS:
            self._heads.popitem(last=False)
        before = entries[known - 1] if known else root
        for entry in entries[known:]:
            if entry.is_gone or entry.message is None or not _ends_itself(entry.message.raw):
                return
            before.follow(entry)
            before = entry


def _ends_itself(raw: bytes) -> bool:
    """Whether it is plain where it ends, whatever follows; a number is not (1 and 12)."""
    return raw.startswith(b"{")


def _footprint(raw: bytes) -> int:
    """Bytes of memory for a message, about: its raw bytes, its texts, and the objects around them."""
    return 2 * len(raw) + 2000
