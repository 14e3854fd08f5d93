"""The server as a process runs it: opens what it needs, listens, and ends gracefully.

Rules. Whatever is opened here is closed here, in reverse order. Nothing of a request is known in this file but that it
goes to the server. What has been accepted gets its time to end when the process is told to stop, and no more.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import _ErrInfo
from structlog.typing import FilteringBoundLogger

from proxy.config import Address, Config, SocketFile
from proxy.config.values import Telemetry
from proxy.edge import listeners, logs
from proxy.edge.connections import LINE_BYTES, MOST_HEADERS
from proxy.edge.downstream import Downstream
from proxy.edge.front import Front
from proxy.edge.listeners import NONE_HELD, Held
from proxy.edge.reloads import Reloads
from proxy.edge.server import LAST_SECOND, Parts
from proxy.edge.workers import Worker
from proxy.errors import ConfigError
from proxy.wire import chat

if TYPE_CHECKING:
    from proxy.edge.tracing import Tracing

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[Downstream]]

_LibrarysHandler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

GRACE: Final = 30.0
"""Seconds that running requests get to end when the process is told to stop (B112)."""

LINGER: Final = 2.0
"""Seconds of them in which an open connection may still bring a request, its last: a balancer that keeps connections
sends on one before it can know that it will be closed, and sends a POST only once."""


@asynccontextmanager
async def running(
    config: Config,
    parts: Parts,
    *,
    grace: float = GRACE,
    held: Held = NONE_HELD,
    reloads: Reloads | None = None,
) -> AsyncIterator[str]:
    """The proxy, listening; the URL it is reached at. Leaving lets running requests end within `grace` seconds.

    What of them is traced is sent in what is then left of that time. `held` are sockets that listen already; `reloads`
    are followed meanwhile.
    """
    clock = asyncio.get_running_loop().time
    with logs.adopted(parts.log):
        tracing, until = _tracing(config.telemetry), clock()
        try:
            async with AsyncExitStack() as stack:
                front = Front(parts, tracing)
                stack.push_async_callback(front.close)
                await front.turn_to(config)
                url = await stack.enter_async_context(_serving(config, front, parts.log, grace, held))
                if reloads is not None:
                    await stack.enter_async_context(_followed(reloads, config, front, parts.log))
                try:
                    yield url
                finally:
                    until = clock() + grace
        finally:
            if tracing is not None:
                await tracing.close(max(until - clock(), LAST_SECOND))


def _tracing(options: Telemetry) -> "Tracing | None":
    """What makes spans, where a collector is configured. Its libraries are an extra, and take their time to import."""
    if options.otlp_endpoint is None:
        return None
    try:
        from proxy.edge.tracing import open_tracing  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigError(
            "telemetry.otlp_endpoint: the packages of OpenTelemetry, which traces need, are not installed; install them"
            " with: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http\n"
            "Without the option, and without OTEL_EXPORTER_OTLP_ENDPOINT in the environment, there are no traces."
        ) from missing
    return open_tracing(options.otlp_endpoint, options.service_name)


@asynccontextmanager
async def _serving(
    config: Config, front: Front, log: FilteringBoundLogger, grace: float, held: Held
) -> AsyncIterator[str]:
    clock = asyncio.get_running_loop().time

    async def drain(library: _Library) -> None:
        end = clock() + grace
        front.stop()
        await library.emptied(min(LINGER, grace))
        await front.drain(end - clock())

    async with (
        _listening(config.listen, front.handle, drain, listeners.MAIN, held) as url,
        _own_address(config, front, held) as own,
    ):
        log.info("listening", url=url, upstream=config.upstream.base_url, **own)
        yield url


@asynccontextmanager
async def _followed(
    reloads: Reloads, config: Config, front: Front, log: FilteringBoundLogger
) -> AsyncIterator[None]:
    """Changes of the configuration are taken over for as long as this lasts."""
    task = asyncio.create_task(reloads.follow(config, front.turn_to, log))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def serve(
    config: Config,
    parts: Parts,
    *,
    grace: float = GRACE,
    worker: Worker | None = None,
    reloads: Reloads | None = None,
) -> None:
    """Run the proxy until SIGTERM or SIGINT; a second signal ends it at once. A worker ends with its parent as well.

    SIGHUP asks for a reload.
    """
    stop = asyncio.Event()
    held = worker.held if worker else NONE_HELD
    with _signals(stop.set), _hangup(reloads):
        async with running(config, parts, grace=grace, held=held, reloads=reloads):
            if worker is not None:
                asyncio.get_running_loop().add_reader(worker.parent, stop.set)
                worker.is_listening()
            await stop.wait()
            parts.log.info("stopping", grace_seconds=grace)
            if worker is not None:
                asyncio.get_running_loop().remove_reader(worker.parent)


@asynccontextmanager
async def _listening(
    listen: Address | SocketFile,
    handler: Handler,
    drain: "Callable[[_Library], Awaitable[None]]",
    option: str,
    held: Held,
) -> AsyncIterator[str]:
    """An address that requests come in at, and its URL. `drain` ends them; `option` is where the address comes from."""
    # The size cap of 1 MiB is the library's `request.read()`; bodies are read here piece by piece without it (B91).
    library = _Library(handler)
    runner = web.ServerRunner(library, shutdown_timeout=LAST_SECOND)
    await runner.setup()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(drain, library)
        sockets: Sequence[socket.socket] = held.get(option, ())
        if not sockets:
            (sockets,) = stack.enter_context(listeners.bound(listen, option))
        for each in sockets:
            site = web.SockSite(runner, each, backlog=listeners.BACKLOG)
            await site.start()
            stack.push_async_callback(_listen_no_more, site, each, library)
        yield _url(runner)


async def _listen_no_more(site: web.SockSite, listening: socket.socket, library: "_Library") -> None:
    """Close the socket, but first take what has connected already: closing would reset that."""
    waiting: list[socket.socket] = []
    with suppress(OSError):  # none is left, or no descriptor is left to take one by
        while True:
            waiting.append(listening.accept()[0])
    await site.stop()
    for each in waiting:
        each.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(library, each)


@asynccontextmanager
async def _own_address(config: Config, front: Front, held: Held) -> AsyncIterator[dict[str, str]]:
    """The address of our own endpoints, where they have one; what the log says of it."""
    listen = config.admin.listen
    if listen is None:
        yield {}
        return

    async def drain(library: _Library) -> None:
        """Nothing else that takes time is asked here."""
        front.end_following()

    async with _listening(listen, front.handle_own, drain, listeners.OWN, held) as url:
        yield {"admin": url}


class _Library(web.Server):
    """The library's server, with its defaults set for a proxy."""

    def __init__(self, handler: Handler) -> None:
        # Cancellation is off by default: the upstream would go on writing for a client that left (B106).
        super().__init__(cast(_LibrarysHandler, handler), handler_cancellation=True)
        self._open: set[web.RequestHandler] = set()
        self._emptied = asyncio.Event()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A connection has been opened."""
        super().connection_made(handler, transport)
        self._open.add(handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A connection is gone."""
        super().connection_lost(handler, exc)
        self._open.discard(handler)
        if not self._open:
            self._emptied.set()

    async def emptied(self, patience: float) -> None:
        """Wait until no connection is open, for so many seconds; then close those that carry no request."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._open:
                    self._emptied.clear()
                    await self._emptied.wait()
        for each in tuple(self._open):
            if isinstance(each, _Connection) and each.is_idle:
                each.force_close()  # the other way would end who listens to it, and leave it open

    def __call__(self) -> web.RequestHandler:
        """One connection."""
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,  # or a body would no longer match its Content-Encoding, which goes on with it (B92)
            max_line_size=LINE_BYTES,  # 8,190 by default: a long token or cookie would be refused (B99)
            max_field_size=LINE_BYTES,
            max_headers=MOST_HEADERS,
            access_log=None,  # it would write queries, and more than a line
        )


class _Connection(web.RequestHandler):
    """The library's connection, whose own error pages would quote the request (B131)."""

    __slots__ = ("_newest",)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._newest: StreamReader | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is read or answered here."""
        return self._current_request is None and not self._messages

    def data_received(self, data: bytes) -> None:
        """Take bytes in. A body that stops being HTTP breaks off: the library leaves its reader waiting."""
        super().data_received(data)
        if not self._messages:
            return
        message, body = self._messages[-1]
        if not isinstance(message, _ErrInfo):
            self._newest = body
        elif self._newest is not None and not self._newest.is_eof():
            self._newest.set_exception(web.RequestPayloadError("no more HTTP"))
            self._newest.feed_eof()  # or the library would go on to read it, until it is answered

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on where reading was paused. The library would have its parser and the transport go on at every read."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or what failed outside of our own handler. The connection ends with it."""
        self.logger.warning("unreadable request, status %s", status, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("An answer has begun; there can be no other.")
        words, code = "This request cannot be read as HTTP/1.1.", "bad_request"
        if isinstance(exc, LineTooLong) or (isinstance(exc, BadHttpMessage) and exc.message == _TOO_MANY):
            status, words, code = 431, _TOO_LARGE, "headers_too_large"
        said = chat.error_body(words, "invalid_request_error", code)
        answer = web.Response(status=status, body=said, content_type="application/json")
        answer.force_close()
        return answer


_TOO_MANY: Final = "Too many headers received"
"""The library's own words; it has no exception of its own for this."""

_TOO_LARGE: Final = (
    f"The head of this request is too large: its first line and each of its fields may have {LINE_BYTES} bytes, and"
    f" there may be {MOST_HEADERS} fields."
)


def _url(runner: web.ServerRunner) -> str:
    address = runner.addresses[0]
    if isinstance(address, str):
        return f"unix:{address}"
    host, port, *_ = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _hangup(reloads: Reloads | None) -> Iterator[None]:
    """SIGHUP, where there is something to read again; else it does what it does to any process."""
    if reloads is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloads.ask)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, the next one does what it does to any process."""
    loop = asyncio.get_running_loop()

    def release() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)

    def first() -> None:
        release()
        stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, first)
    try:
        yield
    finally:
        release()
