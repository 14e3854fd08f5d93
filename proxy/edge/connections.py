"""The one module that makes sockets: connections to servers, kept for the next call, and how they are reached.

Rules. Connections are the library's, with its resolver and its TLS; what is written on them and what is made of an
answer is another module's. They are kept here, the newest is taken first, and one that has been idle for too long is
closed. Foreign errors leave as they are. Whoever takes a connection gives it back.
"""

import asyncio
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import ClientRequest, hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from proxy.errors import ConfigError

LINE_BYTES: Final = 128 * 1024
"""The longest header line or status line that is read. The library's 8,190 bytes are less than some tokens (B99)."""

MOST_HEADERS: Final = 1000
"""The most header lines that are read. The library's default is 128."""

_IDLE_CONNECTION: Final = 4.0
"""Seconds. llama.cpp, uvicorn and node close an idle connection after 5; the library would keep it for 15 (B103)."""

_TURNS: Final = 8
"""Turns of the loop that bytes which are there may take to be read; two are enough."""

_DNS_CACHE: Final = 10
"""Seconds. Long enough for a burst of calls, short enough to follow a server that moved."""


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


class Ends:
    """The ends of the connections that we have opened. What comes over one of them is a request that we have sent.

    Both ends are looked at: the system gives one port to several connections that lead to different places.
    """

    def __init__(self) -> None:
        # By our own port, which is that of nearly no stranger.
        self._held: dict[int, set[tuple[_End, _End]]] = {}

    def note(self, ours: object, theirs: object) -> None:
        """A connection has been opened between these addresses, as a socket tells them."""
        if (pair := _pair(ours, theirs)) is not None:
            self._held.setdefault(pair[0][1], set()).add(pair)

    def strike(self, ours: object, theirs: object) -> None:
        """It is gone."""
        if (pair := _pair(ours, theirs)) is not None and (held := self._held.get(pair[0][1])):
            held.discard(pair)
            if not held:
                del self._held[pair[0][1]]

    def hold(self, peer: object, own: object) -> bool:
        """Whether a connection that was accepted at the address `own` from `peer` is one of ours."""
        return _pair(peer, own) in self._held.get(_port(peer), ())

    def brought(self, transport: asyncio.BaseTransport | None) -> bool:
        """The same of a connection as it was accepted; of one that is gone it does not matter."""
        if transport is None:
            return False
        peer = transport.get_extra_info("peername")
        return _port(peer) in self._held and self.hold(peer, transport.get_extra_info("sockname"))


_End: TypeAlias = tuple[str, int]


def _port(end: object) -> int:
    """Of an address; 0 for a Unix socket."""
    return end[1] if isinstance(end, tuple) else 0


def _pair(one: object, other: object) -> tuple[_End, _End] | None:
    """Hosts and ports; None for a Unix socket, whose ends have no names. IPv6 sees an end of IPv4 in its own way."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return None
    return (one[0].removeprefix("::ffff:"), one[1]), (other[0].removeprefix("::ffff:"), other[1])


class Begun(aiohttp.ClientConnectionError):
    """The connection went away behind the first byte of an answer and before the end of its head."""


class Line(ResponseHandler):
    """The library's connection, which also knows whether the upstream has said anything to the newest request.

    What it has begun to answer it has taken in, and must not get again. An answer that stops being HTTP breaks off: the
    library closes the connection and leaves the reader waiting. `calls` counts the requests that it has carried.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
        super().__init__(loop)
        self._ends = ends
        self._between: tuple[object, object] = (None, None)
        self._has_begun = False
        self._is_free = False
        self._heard_at = 0.0
        self._listens = False
        self._waiting: select.poll | None = None
        self.calls = 0

    def expect(self, *, has_body: bool, idle: float) -> None:
        """Be ready for the answer to another request, whose pieces come within `idle` seconds of each other."""
        self._has_begun = self._is_free = False
        self.calls += 1
        self.set_response_params(
            skip_payload=not has_body,
            read_until_eof=True,
            auto_decompress=False,  # the client gets the bytes that its Accept-Encoding asked for (B93)
            read_timeout=idle,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            max_headers=MOST_HEADERS,
        )

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, interim ones included."""
        if data and self._is_free:  # nobody asked: it would be taken for the answer to the next call
            self.close()
            return
        self._has_begun = self._has_begun or bool(data)
        super().data_received(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on where reading was paused. The library would have its parser and the transport go on at every read."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def free(self) -> None:
        """Carry no call until there is another."""
        self._is_free = True

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """What whoever waits for the head of the answer is told, and who reads its body where that stops being HTTP."""
        if self._has_begun and isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
            exc, exc_cause = Begun(), exc
        super().set_exception(exc, exc if exc_cause is None else exc_cause)
        if self._payload is not None and isinstance(exc, HttpProcessingError):
            self._payload.set_exception(aiohttp.ClientPayloadError("no more HTTP"))

    def _reschedule_timeout(self) -> None:
        """Something came. The library sets a timer anew for every piece of an answer; this one looks when it is due."""
        self._heard_at = self._loop.time()
        self._listens = True
        if self._read_timeout_handle is None and self._read_timeout:
            self._read_timeout_handle = self._loop.call_later(self._read_timeout, self._look)

    def _drop_timeout(self) -> None:
        """Nothing is waited for; the timer finds that, but for one of a connection that has ended."""
        self._listens = False
        if self.transport is None:
            super()._drop_timeout()

    def _look(self) -> None:
        self._read_timeout_handle = None
        if not self._listens or not self._read_timeout:
            return
        left = self._heard_at + self._read_timeout - self._loop.time()
        if left > 0:
            self._read_timeout_handle = self._loop.call_later(left, self._look)
        else:
            self._on_read_timeout()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._between = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self._ends.note(*self._between)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone, and with it what would keep it in memory."""
        self._ends.strike(*self._between)
        super().connection_lost(exc)
        self._drop_timeout()

    @property
    def can_carry(self) -> bool:
        """Whether nothing has come behind the last answer, in the same piece or unread yet."""
        return not self.calls or (self.is_connected() and not self.should_close and not self._has_more())

    async def hear(self) -> None:
        """Let the loop read what has come. A write that finds the connection closed would lose a refusal (B120)."""
        await asyncio.sleep(0)
        for _ in range(_TURNS):
            if self._reading_paused or not self._has_more():
                return
            await asyncio.sleep(0)

    def _has_more(self) -> bool:
        """Whether the kernel holds bytes for us, or the end."""
        if self.transport is None:
            return False
        if self._waiting is None:
            self._waiting = select.poll()
            self._waiting.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(self._waiting.poll(0))

    def go_on(self) -> None:
        """Wait for more behind an interim answer, with which the library stops waiting by the clock."""
        if not self._buffer:
            self.start_timeout()

    async def drain(self) -> None:
        """Wait until the kernel has taken what was written. Raises ConnectionError."""
        await self._drain_helper()


class Place:
    """Where calls go: `host` is the value of `Host`, `prefix` what stands before the path in a request line.

    `kept` are the connections that wait for a call, each with the time since when. `credential`: for the proxy that
    gets the request itself; empty where there is none.
    """

    __slots__ = ("asked", "credential", "host", "kept", "prefix")

    def __init__(self, origin: str, way: Way) -> None:
        self.kept: deque[tuple[float, Connection]] = deque()
        self.asked = ClientRequest(
            hdrs.METH_GET,
            URL(origin),
            loop=asyncio.get_running_loop(),
            proxy=way.proxy,  # not the library's trust_env, which would also send credentials out of a .netrc
            ssl=way.tls or True,  # True: the certificate is verified, by the system's authorities
        )
        is_for_proxy = way.proxy is not None and not self.asked.is_ssl()
        self.host = self.asked.headers[hdrs.HOST].encode()
        self.prefix = origin.encode() if is_for_proxy else b""
        self.credential = (
            self.asked.headers.get(hdrs.PROXY_AUTHORIZATION, "").encode() if is_for_proxy else b""
        )


class Taken:
    """A connection for one call.

    `was_used`: it has carried a call before, so that the server may just be closing it. `closes`: it will carry no
    other one.
    """

    __slots__ = ("_connection", "_keep", "closes", "line", "place", "was_used")

    def __init__(
        self, connection: Connection, place: Place, keep: Callable[[Place, Connection], None], *, closes: bool
    ) -> None:
        line = connection.protocol
        assert isinstance(line, Line)
        self._connection: Connection | None = connection
        self._keep = keep
        self.line = line
        self.place = place
        self.was_used = line.calls > 0
        self.closes = closes

    def close(self) -> None:
        """End it, also what was written and not taken yet; nothing where it was given back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.line.transport is not None and self.line.writing_paused:
            self.line.transport.abort()
        connection.close()

    def give_back(self) -> None:
        """Keep it for the next call, where it can carry one."""
        self.line.free()
        if self.closes or self.line.should_close:
            self.close()
        elif self._connection is not None:
            self._keep(self.place, self._connection)
            self._connection = None


class Connections:
    """Connections to the servers that one way leads to. To be used as `async with`, which closes them."""

    def __init__(self, timeouts: Timeouts, way: Way = DIRECT, ends: Ends | None = None) -> None:
        self._way = way
        self._ends = ends or Ends()
        self._timeout = aiohttp.ClientTimeout(connect=timeouts.connect, sock_connect=timeouts.connect)
        self._connector: aiohttp.BaseConnector | None = None
        self._clock = time.monotonic
        self._closing: asyncio.TimerHandle | None = None
        self._places: dict[str, Place] = {}  # of the configured upstream, and that of side calls

    async def __aenter__(self) -> Self:
        self._connector = self._librarys()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connector, self._connector = self._connector, None
        if self._closing is not None:
            self._closing.cancel()
        self._close_kept(self._clock())
        if connector is not None:
            await connector.close()

    def kept(self, origin: str) -> Taken | None:
        """A connection to this origin that waits for a call; those that can carry none any more are closed."""
        place = self._places.get(origin)
        if place is None:
            return None
        since = self._clock() - _IDLE_CONNECTION
        while place.kept:
            at, connection = place.kept.pop()
            taken = Taken(connection, place, self._keep, closes=False)
            if at >= since and taken.line.can_carry:
                return taken
            taken.close()
        return None

    async def opened(self, origin: str, *, closes: bool) -> Taken:
        """A new connection to this origin; one that `closes` is not kept.

        Raises aiohttp.ClientError and OSError.
        """
        connector = self._connector
        if connector is None:
            raise RuntimeError("An Upstream makes calls only inside its `async with`.")
        place = self._places.get(origin)
        if place is None:
            place = self._places[origin] = Place(origin, self._way)
        try:
            connection = await connector.connect(place.asked, [], self._timeout)
        except TimeoutError as cause:
            raise aiohttp.ConnectionTimeoutError from cause
        return Taken(connection, place, self._keep, closes=closes)

    def _keep(self, place: Place, connection: Connection) -> None:
        if self._connector is None:
            connection.close()
            return
        place.kept.append((self._clock(), connection))
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(_IDLE_CONNECTION, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = None
        self._close_kept(self._clock() - _IDLE_CONNECTION)
        if any(place.kept for place in self._places.values()):
            self._closing = asyncio.get_running_loop().call_later(_IDLE_CONNECTION, self._close_idle)

    def _close_kept(self, until: float) -> None:
        """Close those that are kept since this moment or longer."""
        for place in self._places.values():
            while place.kept and place.kept[0][0] <= until:
                place.kept.popleft()[1].close()

    def _librarys(self) -> aiohttp.BaseConnector:
        """The library's part in it, which keeps nothing."""
        connector: aiohttp.BaseConnector
        if self._way.path:
            connector = aiohttp.UnixConnector(self._way.path, limit=0, force_close=True)
        else:
            connector = aiohttp.TCPConnector(
                limit=0,  # 100 by default, and the rest would queue in silence: how many there are the clients decide
                ttl_dns_cache=_DNS_CACHE,
                happy_eyeballs_delay=0.25,  # `localhost` is often ::1 first where the server has only 127.0.0.1 (B102)
                force_close=True,
            )
        connector._factory = partial(_line, asyncio.get_running_loop(), self._ends)
        return connector


def _line(loop: asyncio.AbstractEventLoop, ends: Ends) -> ResponseHandler:
    return Line(loop, ends)


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


def unix_listener(path: str, backlog: int) -> socket.socket:
    """A Unix socket that listens at this path, where nothing is yet. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
