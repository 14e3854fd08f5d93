"""The usage of an answer, read while the answer goes by, whatever shape and encoding it has.

Rules. What goes on are the upstream's own bytes, but for usage-only events where they are to be taken out; of an
encoded answer nothing is ever taken out. What cannot be read goes by all the same, and there is then no usage. A
document is kept within a bound, and of a stream no more than an event.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from proxy.edge.encodings import Decoder, Undecodable, answer_bound, take_all, take_turn
from proxy.wire import chat
from proxy.wire.sse import Observer, UsageFilter
from proxy.wire.usage import Usage

DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""So much of an answer that is no stream is kept, to read its usage; a longer one goes by unread."""


class UsageTap:
    """Reads the usage of an answer that goes by, as a stream or as one document, whichever it turns out to be.

    Servers answer streams with documents, documents with streams, and label either as the other (B89), so the first
    byte that says something decides. `strips` takes usage-only events out.
    """

    usage: Usage | None = None
    unread = ""
    _events: Observer | None = None  # of a stream
    _is_document: bool | None = None
    _room = DOCUMENT_BYTES

    def __init__(self, *, strips: bool) -> None:
        self._strips = strips
        self._document: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes; those that go on."""
        if self._is_document is None:
            start = chunk.removeprefix(_BOM).lstrip()
            if not start:
                return chunk  # blank lines, which some send to keep a connection busy
            self._is_document = start.startswith(_DOCUMENT_STARTS)
            if not self._is_document:
                self._events = UsageFilter() if self._strips else Observer()
        if self._events is not None:
            return self._events.feed(chunk)
        self._room -= len(chunk)
        if self._room >= 0:
            self._document.append(chunk)
        else:
            self._document.clear()
        return chunk

    async def read_on(self) -> None:
        """Nothing is left to do: `feed` reads at once."""

    def end(self) -> bytes:
        """Nothing more comes; the bytes that still go on."""
        if self._events is not None:
            rest = self._events.end()
            self.usage = self._events.usage
            return rest
        if self._document:
            self.usage = chat.usage_of(b"".join(self._document))
        return b""


class EncodedTap:
    """Reads the usage of an encoded answer in a decoded copy. `unread`: why that could not be, a fixed word, or empty.

    An answer that lacks the end of its encoding is read as far as it came: servers that flush every event often leave
    it out.
    """

    def __init__(self, codings: Sequence[bytes]) -> None:
        self._tap = UsageTap(strips=False)
        self._pieces: Iterator[bytes] = iter(())
        self._decoder: Decoder | None = None
        self.usage: Usage | None = None
        self.unread = ""
        try:
            self._decoder = Decoder(codings, _BOUND)
        except Undecodable as fault:
            self.unread = fault.reason

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes, all of which go on; they are read by `read_on`."""
        if self._decoder is not None:
            self._pieces = self._decoder.pieces(chunk)
        return chunk

    async def read_on(self) -> None:
        """Read what was fed last; in a thread where much comes of it."""
        try:
            if take_turn(self._pieces, self._tap.feed):
                await take_all(self._pieces, self._tap.feed)
        except Undecodable as fault:
            self.unread = fault.reason
            self._decoder, self._tap = None, UsageTap(strips=False)  # what they hold is of no use any more

    def end(self) -> bytes:
        """Nothing more comes, and nothing was held back."""
        self._tap.end()
        self.usage = self._tap.usage
        return b""


def tap(codings: Sequence[bytes], *, strips: bool) -> UsageTap | EncodedTap:
    """A tap for an answer with these content codings."""
    return EncodedTap(codings) if codings else UsageTap(strips=strips)


_BOUND: Final = answer_bound(1024 * 1024 * 1024)
"""Of an answer nothing is held but a document or an event, so that only the work is bounded."""

_BOM: Final = b"\xef\xbb\xbf"
_DOCUMENT_STARTS: Final = (b"{", b"[", b"<", b'"')
"""JSON or HTML. No line of an event stream that means anything begins so."""
