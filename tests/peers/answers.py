"""What a scripted upstream may answer: a head, and a body in pieces with gates and cuts between them.

Rules. An answer is a frozen value that says exactly which bytes are sent and when; nothing is added but the one framing
header that the framing needs, and not even that when the answer gives it itself. Waiting is for events that a test
sets, never for time. Bodies that are compressed come so from the caller.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from http import HTTPStatus

from proxy.demo.replies import Event, sse

Headers = Sequence[tuple[str, str]]

JSON_HEADERS: Headers = (("Content-Type", "application/json"),)
SSE_HEADERS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


class Cut(Enum):
    """How a connection ends: RESET sends RST, CLOSE sends FIN.

    A reset throws away what the peer's kernel has not taken yet, so behind more than some 10 KB put a gate before it
    and open that when the peer has read.
    """

    RESET = "reset"
    CLOSE = "close"


class Framing(Enum):
    """How the end of the body is told.

    LENGTH       Content-Length, over all pieces, those behind a cut included
    CHUNKED      Transfer-Encoding: chunked, one chunk a piece
    UNTIL_CLOSE  no header; the connection is closed behind the body
    NONE         no header and no body, as with 204 and 304
    RAW          the pieces are everything, status line and headers included
    """

    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until-close"
    NONE = "none"
    RAW = "raw"


Piece = bytes | asyncio.Event | Cut
"""Bytes to send, an event to wait for, or the end of the connection here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. Build it by the functions below, change it by `replace`, `cut_at`, `pausing`.

    interim  bytes sent before the head, such as `HTTP/1.1 100 Continue` with its blank line
    before   waited for before anything is sent
    then     the connection ends so behind the whole answer, and no header announced it
    """

    status: int = 200
    headers: Headers = JSON_HEADERS
    pieces: tuple[Piece, ...] = ()
    framing: Framing = Framing.LENGTH
    version: str = "1.1"
    reason: str | None = None
    interim: bytes = b""
    before: asyncio.Event | None = None
    then: Cut | None = None

    @property
    def body(self) -> bytes:
        return b"".join(piece for piece in self.pieces if isinstance(piece, bytes))

    def head(self) -> bytes:
        """Status line and headers as they are sent."""
        reason = HTTPStatus(self.status).phrase if self.reason is None else self.reason
        lines = [f"HTTP/{self.version} {self.status} {reason}"]
        lines += [f"{name}: {value}" for name, value in (*self.headers, *self._framing_header())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def wire(self, piece: bytes) -> bytes:
        """A piece of the body as it is sent."""
        if self.framing is Framing.CHUNKED:
            return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return piece

    def cut_at(self, offset: int, how: Cut = Cut.RESET) -> "Answer":
        """The same answer, but the connection ends when `offset` bytes of the body have been sent."""
        return self._with_piece_at(offset, how)

    def pausing(self, offset: int, gate: asyncio.Event) -> "Answer":
        """The same answer, but behind `offset` bytes of the body it waits for the gate."""
        return self._with_piece_at(offset, gate)

    def _framing_header(self) -> Headers:
        given = {name.lower() for name, _ in self.headers}
        needed = {
            Framing.LENGTH: ("Content-Length", str(len(self.body))),
            Framing.CHUNKED: ("Transfer-Encoding", "chunked"),
        }.get(self.framing)
        return () if needed is None or needed[0].lower() in given else (needed,)

    def _with_piece_at(self, offset: int, added: Piece) -> "Answer":
        if offset > len(self.body):
            raise ValueError(f"The body has {len(self.body)} bytes; nothing can be put behind byte {offset}.")
        pieces: list[Piece] = []
        left: int | None = offset
        for piece in self.pieces:
            if left is None or not isinstance(piece, bytes) or len(piece) < left:
                pieces.append(piece)
                left = left if left is None or not isinstance(piece, bytes) else left - len(piece)
            else:
                pieces += [part for part in (piece[:left], added, piece[left:]) if part != b""]
                left = None
        return replace(self, pieces=tuple(pieces if left is None else [*pieces, added]))


def raw_answer(*pieces: Piece) -> Answer:
    """Exactly these bytes, head and all; `raw_answer(Cut.RESET)` hangs up without a word."""
    return Answer(pieces=pieces, framing=Framing.RAW)


def bytes_answer(body: bytes, *, status: int = 200, headers: Headers = JSON_HEADERS) -> Answer:
    return Answer(status, headers, (body,) if body else ())


def json_answer(value: object, *, status: int = 200, headers: Headers = JSON_HEADERS) -> Answer:
    return bytes_answer(json.dumps(value, ensure_ascii=False).encode(), status=status, headers=headers)


def sse_answer(events: Sequence[Event], *, headers: Headers = SSE_HEADERS, **how: object) -> Answer:
    """A stream, one HTTP chunk an event; `how` goes to `sse`."""
    return Answer(200, headers, sse(events, **how), Framing.CHUNKED)  # type: ignore[arg-type]


def empty_answer(status: int, headers: Headers = ()) -> Answer:
    """An answer without a body and without a word about its length: 204, 304."""
    return Answer(status, headers, (), Framing.NONE)


def slices(body: bytes, *sizes: int) -> tuple[bytes, ...]:
    """The body divided into pieces of these sizes, the last size repeated; `slices(body, 1)` is byte by byte."""
    return tuple(_slices(body, sizes))


def _slices(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = number = 0
    while start < len(body):
        size = sizes[min(number, len(sizes) - 1)]
        yield body[start : start + size]
        start, number = start + size, number + 1
