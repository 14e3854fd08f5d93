"""The one module that opens connections: calls to an upstream, and their answers as they come.

Rules. Nothing is added to a call, decoded, redirected or repeated but by this file's own rule: one repetition, on a
fresh connection, when a reused one was found closed before the upstream said anything and nothing of the body is lost.
Foreign errors leave as errors of ours, `from` their cause. Whoever gets a `Reply` closes it; a reply that was not read
to its end takes its connection with it, so an upstream never goes on working for a client that left.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import (
    BytesPayload,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    Payload,
    StreamReader,
    hdrs,
)
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_writer import StreamWriter
from multidict import CIMultiDict
from yarl import URL

from proxy.edge import headers
from proxy.edge.headers import RawHeaders, asks_for_websocket
from proxy.errors import (
    ClientStalled,
    ConfigError,
    TransomError,
    UpstreamBroke,
    UpstreamTimeout,
    UpstreamUnreachable,
)

LINE_BYTES: Final = 128 * 1024
"""The longest header line or status line that is read. The library's 8,190 bytes are less than some tokens (B99)."""

MOST_HEADERS: Final = 1000
"""The most header lines that are read. The library's default is 128."""

_PIECE_BYTES: Final = 256 * 1024
"""A whole body is written in pieces of this size: larger writes block the loop, and the library warns of them."""

_KEPT_BYTES: Final = 64 * 1024
"""Of a streamed body so much is kept for a repetition; a longer one is never held."""

_IDLE_CONNECTION: Final = 4.0
"""Seconds. llama.cpp, uvicorn and node close an idle connection after 5; the library would keep it for 15 (B103)."""

_DNS_CACHE: Final = 10
"""Seconds. Long enough for a burst of calls, short enough to follow a server that moved."""

_AUTOMATIC: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Fields that the library adds when they are missing; what a client did not say the upstream must not hear."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `connect` for a connection with all that belongs to it, `idle` between two bytes either way."""

    connect: float = 10.0
    idle: float = 600.0


@dataclass(frozen=True, slots=True)
class Way:
    """How a server is reached: through the Unix socket `path`, through an HTTP proxy, with `tls`; or straight."""

    path: str = ""
    proxy: URL | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of_environment(cls, origin: str, tls: ssl.SSLContext | None) -> Self:
        """Through the proxy that the environment names for this origin, if any. Raises ConfigError."""
        parts = urlsplit(origin)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if not proxy or proxy_bypass(parts.netloc) or proxy_bypass(parts.hostname or ""):
            return cls(tls=tls)
        url = URL(proxy if "://" in proxy else f"http://{proxy}")
        if url.scheme != "http" or not url.host:
            raise ConfigError(
                f"The environment names a proxy for {parts.scheme} that does not begin with http://, and"
                " upstream.trust_env says to use it. Name another one, or put the server's host into NO_PROXY."
            )
        return cls(proxy=url, tls=tls)


DIRECT: Final = Way()


async def next_piece(content: StreamReader, patience: float) -> bytes:
    """The next bytes of a client's body, none at its end. Raises ClientStalled when none come for so many seconds."""
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

    __slots__ = ("_broken", "_response", "headers", "reason", "status")

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self._broken: TransomError | None = None
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: RawHeaders = response.raw_headers

    async def chunk(self) -> bytes:
        """All bytes that are there, waiting for some; none at the end. Raises UpstreamBroke and UpstreamTimeout."""
        if self._broken is not None:
            raise self._broken
        try:
            return await self._response.content.readany()
        except _FOREIGN as cause:
            self._broken = _ours(cause, _CUT_SHORT)
            if rest := self._rest():
                return rest
            raise self._broken from cause

    def ready(self) -> bytes:
        """The bytes that are there already, without waiting; none when the answer broke or ended."""
        return b"" if self._response.content.exception() else self._response.content.read_nowait()

    def switched(self) -> Any:
        """The library's own protocol of a connection that the upstream has switched; `close` still ends it."""
        connection = self._response.connection
        if connection is None or connection.protocol is None:
            raise RuntimeError("Only an answer with 101 has a connection of its own.")
        return connection.protocol

    def close(self) -> None:
        """End the call. A connection whose answer was read to the end is kept for the next one, any other closed."""
        self._response.close()

    def _rest(self) -> bytes:
        # A reader that has an error gives out nothing more, also what came before it. That belongs to the client (B90).
        content = self._response.content
        return content._read_nowait(-1) if content.total_bytes else b""


class Upstream:
    """Calls to one base URL's host. To be used as `async with`, which opens and closes its connections."""

    def __init__(self, timeouts: Timeouts, way: Way = DIRECT) -> None:
        self._timeouts = timeouts
        self._way = way
        self._pooled: ClientSession | None = None
        self._fresh: ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._pooled = self._session(reuse=True)
        self._fresh = self._session(reuse=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None

    async def call(self, method: str, url: str, fields: Sequence[tuple[str, str]], body: Body) -> Reply:
        """Send a request and wait for the head of its answer. `fields` goes out as it is, after `Host`.

        Raises UpstreamUnreachable, UpstreamTimeout and UpstreamBroke.
        """
        pooled, fresh = self._sessions()
        call, flight = _Call(method, url, fields, body, self._timeouts.idle), _Flight()
        try:
            response = await call.attempt(pooled, flight)
        except _Dropped:
            # B103: most likely the upstream closed the idle connection while our request was on its way to it.
            if not flight.reused or (isinstance(body, Upload) and not body.can_repeat):
                raise
            response = await call.attempt(fresh, _Flight())
        if response.status == 101:  # never asked for: `Upgrade` ends at this hop
            response.close()
            raise UpstreamBroke("The upstream switched protocols without being asked to.")
        return _sound(response)

    async def upgrade(self, url: str, fields: Sequence[tuple[str, str]]) -> Reply:
        """Ask for a WebSocket, on a connection of its own; a 101 among the answers is one that was asked for.

        Raises what `call` raises.
        """
        _, fresh = self._sessions()
        response = await _Call("GET", url, fields, None, self._timeouts.idle).attempt(fresh, _Flight())
        if response.status == 101 and not _is_websocket(response):
            response.close()
            raise UpstreamBroke("The upstream switched to another protocol than the one that was asked for.")
        return _sound(response)

    def _sessions(self) -> tuple[ClientSession, ClientSession]:
        if self._pooled is None or self._fresh is None:
            raise RuntimeError("An Upstream makes calls only inside its `async with`.")
        return self._pooled, self._fresh

    def _connector(self, *, reuse: bool) -> aiohttp.BaseConnector:
        way, idle = self._way, _IDLE_CONNECTION if reuse else None
        if way.path:
            return aiohttp.UnixConnector(way.path, limit=0, force_close=not reuse, keepalive_timeout=idle)
        return aiohttp.TCPConnector(
            limit=0,  # 100 by default, and the rest would queue in silence: how many there are the clients decide
            ttl_dns_cache=_DNS_CACHE,
            happy_eyeballs_delay=0.25,  # `localhost` is often ::1 first where the server has only 127.0.0.1 (B102)
            ssl=way.tls or True,  # True: the certificate is verified, by the system's authorities
            force_close=not reuse,
            keepalive_timeout=idle,
        )

    def _session(self, *, reuse: bool) -> ClientSession:
        timeouts, connector = self._timeouts, self._connector(reuse=reuse)
        connector._factory = partial(_connection, asyncio.get_running_loop())
        return ClientSession(
            connector=connector,
            proxy=self._way.proxy,  # not the library's trust_env, which would also send credentials out of a .netrc
            # 300 s in all by default: a long answer would be cut off in the middle.
            timeout=aiohttp.ClientTimeout(
                total=None, connect=timeouts.connect, sock_connect=timeouts.connect, sock_read=timeouts.idle
            ),
            auto_decompress=False,  # the client gets the bytes that its Accept-Encoding asked for (B93)
            cookie_jar=aiohttp.DummyCookieJar(),  # or one client's cookies would be sent for another
            skip_auto_headers=_AUTOMATIC,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            max_headers=MOST_HEADERS,
            trace_configs=[_watching_reuse()],
            request_class=_Request,
        )


def is_listened_on(path: str) -> bool:
    """Whether a process listens on this Unix socket, or may do so for all that can be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose queue is full would keep us waiting
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


# ----------------------------------------------------------------------------------------------------------- details


class _Begun(aiohttp.ClientConnectionError):
    """The connection went away behind the first byte of an answer and before the end of its head."""


class _Connection(ResponseHandler):
    """The library's connection, which also knows whether the upstream has said anything to the newest request.

    What it has begun to answer it has taken in, and must not get again. An answer that stops being HTTP breaks off: the
    library closes the connection and leaves the reader waiting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._has_begun = False

    def set_response_params(self, **parameters: Any) -> None:
        """Be ready for the answer to another request."""
        self._has_begun = False
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, interim ones included."""
        self._has_begun = self._has_begun or bool(data)
        super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """What whoever waits for the head of the answer is told, and who reads its body where that stops being HTTP."""
        if self._has_begun and isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
            exc, exc_cause = _Begun(), exc
        super().set_exception(exc, exc if exc_cause is None else exc_cause)
        if self._payload is not None and isinstance(exc, HttpProcessingError):
            self._payload.set_exception(aiohttp.ClientPayloadError("no more HTTP"))


def _connection(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Connection(loop)


class _Request(ClientRequest):
    """A request whose fields are written as the bytes they came as: the library leaves out what is not UTF-8.

    It offers no other place to do so than where a body is written, so a request without one gets one of no bytes.
    """

    async def send(self, conn: Connection) -> ClientResponse:
        """Write the request."""
        if not self._body and not self._is_utf8():
            self._body = BytesPayload(b"")
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Write the body, and before it the head that waits in the writer."""
        if isinstance(writer, StreamWriter) and (head := writer._headers_buf) and not self._is_utf8():
            writer._headers_buf = self._in_bytes(head)
        await super().write_bytes(writer, conn, content_length)

    def _in_bytes(self, head: bytes) -> bytes:
        """The same head with every byte of its fields; the library has refused control characters in them."""
        line, *_ = head.partition(b"\r\n")
        fields = [
            f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in self.headers.items()
        ]
        return b"\r\n".join([line, *fields, b"", b""])

    def _is_utf8(self) -> bool:
        return all(value.isascii() or _ESCAPED.search(value) is None for value in self.headers.values())


_ESCAPED: Final = re.compile("[\udc80-\udcff]")
"""What stands in a text for bytes that are not UTF-8 (`surrogateescape`)."""


class _Dropped(UpstreamUnreachable):
    """The connection went away before anything was answered."""


@dataclass(slots=True)
class _Flight:
    """One attempt at a call; the library's trace marks here whether its connection had been used before."""

    reused: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """What is asked of the upstream, once or twice."""

    method: str
    url: str
    fields: Sequence[tuple[str, str]]
    body: Body
    idle: float

    async def attempt(self, session: ClientSession, flight: _Flight) -> ClientResponse:
        """Send it, and wait for the head of the answer."""
        return await session.request(
            self.method,
            URL(self.url, encoded=True),  # or it would be decoded and encoded again (B100)
            headers=self.fields,
            data=_payload(self.body, self.idle),
            allow_redirects=False,  # a redirect is the client's to follow, with its own judgement of the target
            trace_request_ctx=flight,
            middlewares=(self._send,),
        )

    async def _send(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Send it with all of its fields: of two whose names differ in case alone the library keeps one.

        Foreign errors become ours here, inside the library's own loop, which would repeat calls by its own rule.
        """
        whole = CIMultiDict([(hdrs.HOST, request.headers[hdrs.HOST]), *self.fields])
        whole.extend([field for field in request.headers.items() if field[0] not in whole])
        request.headers = whole
        try:
            return await send(request)
        except _FOREIGN as cause:
            if isinstance(cause.__cause__, ClientStalled):  # it ended the call where its body was read
                raise cause.__cause__ from None
            raise _ours(cause, _UNANSWERED) from cause


def _sound(response: ClientResponse) -> Reply:
    """The reply, where it can be relayed as what it says it is. Raises UpstreamBroke."""
    wrong = ""
    if response.status < 101:
        wrong = "The upstream answered with a status that HTTP does not have."
    elif not headers.is_framed_plainly(response.raw_headers):
        wrong = "The upstream answered in a transfer coding that nobody asked for."
    if wrong:
        response.close()
        raise UpstreamBroke(wrong)
    return Reply(response)


def _is_websocket(response: ClientResponse) -> bool:
    """Whether both the library and the upstream have left HTTP for the protocol that was asked for."""
    connection = response.connection
    has_left = connection is not None and connection.protocol is not None and connection.protocol.upgraded
    return has_left and asks_for_websocket(response.raw_headers)


def _watching_reuse() -> aiohttp.TraceConfig:
    async def reused(
        session: ClientSession, context: SimpleNamespace, parameters: aiohttp.TraceConnectionReuseconnParams
    ) -> None:
        context.trace_request_ctx.reused = True

    watching = aiohttp.TraceConfig()
    watching.on_connection_reuseconn.append(reused)
    return watching


_FOREIGN = (aiohttp.ClientError, asyncio.TimeoutError, OSError)

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
    (_Begun, UpstreamBroke, "The upstream closed the connection in the head of its answer."),
    (aiohttp.ClientConnectionError, _Dropped, "The upstream closed the connection before it answered."),
    (aiohttp.ClientResponseError, UpstreamBroke, "The upstream answered with something that is not HTTP."),
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


class _Outgoing(Payload):
    """A body on its way up. Raises TimeoutError, to the library, when the upstream takes none of it for `idle` seconds.

    All of it goes into the kernel's hands: what waits in a buffer would keep a connection open that was given up, for
    as long as the upstream likes.
    """

    def __init__(self, pieces: AsyncIterator[bytes], idle: float) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._idle = idle

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Not to be had: what went up is not kept."""
        raise TypeError("A body on its way up cannot be shown.")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it whole."""
        transport = writer.transport if isinstance(writer, StreamWriter) else None
        if transport is not None:
            transport.set_write_buffer_limits(
                high=1, low=0
            )  # with a TLS connection 0 would be over its limit too
        try:
            async for piece in self._pieces:
                await asyncio.sleep(
                    0
                )  # a refusal that has come is read before a write finds the connection closed
                async with asyncio.timeout(self._idle):
                    await writer.write(piece)
                    await writer.drain()
        except (TimeoutError, asyncio.CancelledError):
            if transport is not None:
                transport.abort()
            raise


def _payload(body: Body, idle: float) -> bytes | Payload | None:
    match body:
        case Upload():
            return _Outgoing(body.pieces(), idle)
        case bytes() if body:
            return _Outgoing(_pieces(body), idle)
        case _:
            return body


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]
