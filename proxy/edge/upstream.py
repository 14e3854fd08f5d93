"""Calls to an upstream, and their answers as they come.

Rules. Nothing is added to a call but the context of a trace, and nothing decoded, redirected or repeated but by this
file's own rule: one repetition, on a fresh connection, when a reused one was found closed before the upstream said
anything and nothing of the body is lost. Foreign errors leave as errors of ours, `from` their cause. Whoever gets a
`Reply` closes it; a reply that was not read to its end takes its connection with it, so an upstream never goes on
working for a client that left.

Heads are written here and not by the library, whose requests leave out what is not UTF-8, merge fields and add some of
their own, and cost more than all else in a small call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeAlias

import aiohttp
import msgspec
from aiohttp import StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage

from proxy.edge import headers
from proxy.edge.connections import DIRECT, Begun, Connections, Ends, Line, Taken, Timeouts, Way
from proxy.edge.headers import Heads, RawHeaders, asks_for_websocket
from proxy.errors import ClientStalled, TransomError, UpstreamBroke, UpstreamTimeout, UpstreamUnreachable

_AT_ONCE: Final = 16 * 1024
"""A request up to this size is written at once: the kernel takes it in any state of the connection."""

_PIECE_BYTES: Final = 256 * 1024
"""A whole body is written in pieces of this size: larger writes block the loop."""

_KEPT_BYTES: Final = 64 * 1024
"""Of a streamed body so much is kept for a repetition; a longer one is never held."""


async def next_piece(content: StreamReader, patience: float) -> bytes:
    """The next bytes of a client's body, none at its end. Raises ClientStalled when none come for so many seconds."""
    if content.exception() is None and ((piece := content.read_nowait()) or content.is_eof()):
        return piece  # nearly always all of it is there, and then no timer is set
    try:
        async with asyncio.timeout(patience):
            return await content.readany()
    except TimeoutError as cause:
        raise ClientStalled(
            "The body of this request stopped coming before its end; client_idle_timeout in this proxy's configuration"
            " says how long it waits."
        ) from cause


class Upload:
    """A client's body on its way up, piece by piece as it comes, each within `patience` seconds.

    `size` counts the bytes that went by. While they are few they are kept, so that a call can be repeated.
    """

    __slots__ = ("_content", "_kept", "_patience", "size")

    def __init__(self, content: StreamReader, patience: float) -> None:
        self._content = content
        self._patience = patience
        self._kept: list[bytes] = []
        self.size = 0

    @property
    def can_repeat(self) -> bool:
        """Whether `pieces` can still begin at the beginning."""
        return self.size <= _KEPT_BYTES

    def at_once(self) -> bytes | None:
        """All of it, where it is there already and short."""
        content = self._content
        if content.exception() is not None or not content.is_eof() or content.total_bytes > _AT_ONCE:
            return None
        if piece := content.read_nowait():
            self.size += len(piece)
            self._kept.append(piece)
        return b"".join(self._kept)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces until the body ends; raises what ended it early."""
        for piece in self._kept:
            yield piece
        while piece := await next_piece(self._content, self._patience):
            self.size += len(piece)
            if self.can_repeat:
                self._kept.append(piece)
            else:
                self._kept.clear()
            yield piece


Body: TypeAlias = bytes | Upload | None
"""What goes up: a whole body, one that still comes from the client, or none at all."""


class Reply:
    """An upstream's answer: its head, and its body as it comes."""

    __slots__ = ("_broken", "_content", "_sending", "_taken", "headers", "reason", "status")

    def __init__(
        self,
        message: RawResponseMessage,
        content: StreamReader,
        taken: Taken,
        sending: "asyncio.Task[None] | None",
        heads: Heads,
    ) -> None:
        """`sending` is what still goes up."""
        self._content = content
        self._taken = taken
        self._sending = sending
        self._broken: TransomError | None = None
        self.status = message.code
        self.reason = message.reason
        self.headers = heads.of(message.raw_headers)
        content.on_eof(self._end)

    async def chunk(self) -> bytes:
        """All bytes that are there, waiting for some; none at the end. Raises UpstreamBroke and UpstreamTimeout."""
        if self._broken is not None:
            raise self._broken
        try:
            return await self._content.readany()
        except _FOREIGN as cause:
            self._broken = _ours(cause, _CUT_SHORT)
            if rest := self._rest():
                return rest
            raise self._broken from cause

    def ready(self) -> bytes:
        """The bytes that are there already, without waiting; none when the answer broke or ended."""
        return b"" if self._content.exception() else self._content.read_nowait()

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read."""
        return self._content.at_eof() and self._content.exception() is None

    def switched(self) -> Line:
        """The library's own protocol of a connection that the upstream has switched; `close` still ends it."""
        return self._taken.line

    def close(self) -> None:
        """End the call. A connection whose answer was read to the end is kept for the next one, any other closed."""
        _give_up(self._sending)
        self._taken.close()

    def _end(self) -> None:
        """The answer has come to its end, and the connection is free unless the request has not."""
        if self._taken.line.upgraded:
            return
        if self._sending is None or self._sending.done():
            self._taken.give_back()
        else:
            self.close()

    def _rest(self) -> bytes:
        # A reader that has an error gives out nothing more, also what came before it. That belongs to the client (B90).
        content = self._content
        return content._read_nowait(-1) if content.total_bytes else b""


class Upstream:
    """Calls to one base URL's host. To be used as `async with`, which opens and closes its connections.

    `mark` says what each call's fields become that belongs to a trace, `ends` is told where its connections begin.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        way: Way = DIRECT,
        mark: Callable[[RawHeaders], RawHeaders] | None = None,
        ends: Ends | None = None,
    ) -> None:
        self._idle = timeouts.idle
        self._mark = mark
        self._heads = Heads()
        self._connections = Connections(timeouts, way, ends)

    async def __aenter__(self) -> Self:
        await self._connections.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.__aexit__(kind, error, trace)

    async def call(self, method: str, url: str, fields: RawHeaders, body: Body) -> Reply:
        """Send a request and wait for the head of its answer. `fields` goes out as it is, after `Host`.

        Raises UpstreamUnreachable, UpstreamTimeout and UpstreamBroke.
        """
        if self._mark is not None:
            fields = self._mark(fields)
        call = _Call(method, *_parted(url), fields, body, self._idle, self._heads)
        taken = self._connections.kept(call.origin) or await self._opened(call, closes=False)
        try:
            reply = await call.on(taken)
        except _Dropped:
            # B103: most likely the upstream closed the idle connection while our request was on its way to it.
            if not taken.was_used or (isinstance(body, Upload) and not body.can_repeat):
                raise
            reply = await call.on(await self._opened(call, closes=True))
        if reply.status == 101:  # never asked for: `Upgrade` ends at this hop
            reply.close()
            raise UpstreamBroke("The upstream switched protocols without being asked to.")
        return _sound(reply)

    async def upgrade(self, url: str, fields: RawHeaders) -> Reply:
        """Ask for a WebSocket, on a connection of its own; a 101 among the answers is one that was asked for.

        Raises what `call` raises.
        """
        if self._mark is not None:
            fields = self._mark(fields)
        call = _Call("GET", *_parted(url), fields, None, self._idle, self._heads)
        reply = await call.on(await self._opened(call, closes=True))
        if reply.status == 101 and not (reply.switched().upgraded and asks_for_websocket(reply.headers)):
            reply.close()
            raise UpstreamBroke("The upstream switched to another protocol than the one that was asked for.")
        return _sound(reply)

    async def _opened(self, call: "_Call", *, closes: bool) -> Taken:
        try:
            return await self._connections.opened(call.origin, closes=closes)
        except _FOREIGN as cause:
            raise _ours(cause, _UNANSWERED) from cause


# ----------------------------------------------------------------------------------------------------------- details


class _Dropped(UpstreamUnreachable):
    """The connection went away before anything was answered."""


def _parted(url: str) -> tuple[str, str]:
    """A URL's origin and target."""
    start = url.find("/", url.find("://") + 3)
    return (url, "/") if start < 0 else (url[:start], url[start:])


class _Call(msgspec.Struct, frozen=True):
    """What is asked of the upstream, once or twice; `heads` makes those of its answers."""

    method: str
    origin: str
    target: str
    fields: RawHeaders
    body: Body
    idle: float
    heads: Heads

    async def on(self, taken: Taken) -> Reply:
        """Send it on this connection, and wait for the head of the answer."""
        reply: Reply | None = None
        sending: asyncio.Task[None] | None = None
        try:
            taken.line.expect(has_body=self.method != hdrs.METH_HEAD, idle=self.idle)
            sending = self._send(taken)
            message, content = await taken.line.read()
            while 100 <= message.code < 200 and message.code != 101:  # interim answers are for this hop
                if sending is None or sending.done():
                    taken.line.go_on()
                message, content = await taken.line.read()
            reply = Reply(message, content, taken, sending, self.heads)
        except _FOREIGN as cause:
            if isinstance(cause.__cause__, ClientStalled):  # it ended the call where its body was read
                raise cause.__cause__ from None
            raise _ours(cause, _UNANSWERED) from cause
        finally:
            if reply is None:
                _give_up(sending)
                taken.close()
        return reply

    def _send(self, taken: Taken) -> "asyncio.Task[None] | None":
        """Write the request; what still writes of it, where that takes its time."""
        transport, body = taken.line.transport, self.body
        if transport is None:
            raise aiohttp.ServerDisconnectedError
        if isinstance(body, Upload):
            is_chunked = headers.find(self.fields, b"content-length") is None
            head = self._head(taken, b"Transfer-Encoding: chunked\r\n" if is_chunked else b"")
            whole = body.at_once()
            if whole is None:
                pieces = _chunked(body.pieces()) if is_chunked else body.pieces()
                return asyncio.create_task(_poured(head, pieces, taken.line, self.idle))
            body = _chunk(whole) + _LAST_CHUNK if is_chunked else whole
        else:
            head, body = self._head(taken, b"" if body is not None else self._none_said()), body or b""
        if len(head) + len(body) > _AT_ONCE:
            return asyncio.create_task(_poured(head, _pieces(body), taken.line, self.idle))
        transport.write(head + body)
        taken.line.start_timeout()
        return None

    def _none_said(self) -> bytes:
        """That there is no body, where one is usual (RFC 9110 section 8.6)."""
        is_usual = self.method not in _BODILESS and headers.find(self.fields, b"content-length") is None
        return b"Content-Length: 0\r\n" if is_usual else b""

    def _head(self, taken: Taken, framing: bytes) -> bytes:
        place = taken.place
        # What is not UTF-8 in a target came to us so decoded, and goes on as the bytes that it was.
        target = self.target.encode("utf-8", "surrogateescape")
        beside = [framing] if framing else []
        if place.credential:
            beside.append(b"Proxy-Authorization: %b\r\n" % place.credential)
        if taken.closes and headers.find(self.fields, b"connection") is None:
            beside.append(b"Connection: close\r\n")
        head = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b" % (
            self.method.encode(),
            place.prefix,
            target,
            place.host,
            headers.lines(self.fields),
            b"".join(beside),
        )
        if not head.count(b"\r") == head.count(b"\n") == 2 + len(self.fields) + len(beside):
            raise ValueError("A line break in a field would begin another field.")
        return head + b"\r\n"


_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


async def _poured(head: bytes, pieces: AsyncIterator[bytes], line: Line, idle: float) -> None:
    """Write a request whose body is large or still comes; whoever waits for its answer is told what goes wrong.

    All of it goes into the kernel's hands: what waits in a buffer would keep a connection open that was given up, for
    as long as the upstream likes.
    """
    transport = line.transport
    if transport is None:
        return
    transport.set_write_buffer_limits(high=1, low=0)  # with a TLS connection 0 would be over its limit too
    is_written = False
    try:
        async for piece in pieces:
            await _put(head + piece, transport, line, idle)
            head = b""
        if head:
            await _put(head, transport, line, idle)
        line.start_timeout()
        is_written = True
    except TimeoutError as cause:
        line.set_exception(cause)
    except (TransomError, web.RequestPayloadError, OSError) as cause:
        line.set_exception(aiohttp.ClientConnectionError("The request could not be written."), cause)
    finally:
        if not is_written:
            transport.abort()


async def _put(data: bytes, transport: asyncio.Transport, line: Line, idle: float) -> None:
    """Write these bytes, and wait until the kernel has taken them. Raises TimeoutError and OSError."""
    await line.hear()
    transport.write(data)
    if line.writing_paused:
        async with asyncio.timeout(idle):
            await line.drain()
    else:  # all of it was taken at once, and no timer is set
        await line.drain()


def _give_up(sending: "asyncio.Task[None] | None") -> None:
    if sending is not None:
        sending.cancel()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


async def _chunked(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield _chunk(piece)
    yield _LAST_CHUNK


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


_LAST_CHUNK: Final = b"0\r\n\r\n"


def _sound(reply: Reply) -> Reply:
    """The same, where it can be relayed as what it says it is. Raises UpstreamBroke."""
    wrong = ""
    if reply.status < 101:
        wrong = "The upstream answered with a status that HTTP does not have."
    elif not headers.is_framed_plainly(reply.headers):
        wrong = "The upstream answered in a transfer coding that nobody asked for."
    elif not headers.are_named_plainly(reply.headers):
        wrong = "The upstream answered with a space behind the name of a field."
    if wrong:
        reply.close()
        raise UpstreamBroke(wrong)
    return reply


_FOREIGN = (aiohttp.ClientError, HttpProcessingError, asyncio.TimeoutError, OSError)

_Row: TypeAlias = tuple[type[Exception], type[TransomError], str]

_UNANSWERED: Final[tuple[_Row, ...]] = (
    (aiohttp.ConnectionTimeoutError, UpstreamTimeout, "The upstream could not be connected to in time."),
    (asyncio.TimeoutError, UpstreamTimeout, "The upstream did not answer in time."),
    (
        aiohttp.ClientSSLError,
        UpstreamUnreachable,
        "No secure connection to the upstream: check its certificate.",
    ),
    (
        aiohttp.ClientProxyConnectionError,  # a kind of connector error, and so before that one
        UpstreamUnreachable,
        "The proxy before the upstream cannot be reached.",
    ),
    (
        aiohttp.ClientHttpProxyError,
        UpstreamUnreachable,
        "The proxy before the upstream did not open a way to it.",
    ),
    (aiohttp.ClientConnectorDNSError, UpstreamUnreachable, "The name of the upstream cannot be resolved."),
    (
        aiohttp.ClientConnectorError,
        UpstreamUnreachable,
        "The upstream cannot be reached: nothing accepts there.",
    ),
    (Begun, UpstreamBroke, "The upstream closed the connection in the head of its answer."),
    (aiohttp.ClientConnectionError, _Dropped, "The upstream closed the connection before it answered."),
    (HttpProcessingError, UpstreamBroke, "The upstream answered with something that is not HTTP."),
    (aiohttp.ClientError, UpstreamUnreachable, "The upstream could not be called."),
    (OSError, _Dropped, "The connection to the upstream failed before it answered."),
)
"""What the library raises before there is a head, most particular first."""

_CUT_SHORT: Final[tuple[_Row, ...]] = (
    (asyncio.TimeoutError, UpstreamTimeout, "The upstream went silent in the middle of its answer."),
    (Exception, UpstreamBroke, "The upstream's answer ended before it was complete."),
)
"""And what while the body comes."""


def _ours(cause: Exception, table: Sequence[_Row]) -> TransomError:
    return next(ours(message) for foreign, ours, message in table if isinstance(cause, foreign))
