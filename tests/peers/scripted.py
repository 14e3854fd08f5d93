"""An upstream that plays a script byte for byte over TCP, and records what it is sent.

Rules. Raw bytes in, raw bytes out: HTTP is parsed only as far as needed to know where a request ends. Whatever arrives
is recorded before it is answered. A mistake inside the script (an exception of a handed-in function) fails the test
that owns the upstream, when it leaves the context. Nothing here waits by the clock; the one limit in seconds bounds how
long a test waits for what never comes.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

from tests.peers.answers import Answer, Cut, Framing, bytes_answer

PATIENCE = 20.0
"""Seconds after which a test that waits for an upstream is given up."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_LINGER = struct.pack("ii", 1, 0)

_BACKLOG = 1024
"""Connections that may wait to be accepted. Of a burst beyond that the kernel lets some hang for many seconds."""


@dataclass(slots=True, eq=False)
class Request:
    """A request as it arrived: `head` are the raw bytes up to and with the blank line, `body` is freed of chunking.

    `connection` numbers the TCP connection, from 0. `client_gone` is set when the peer closed or reset the connection
    before the answer was complete, `answered` when all of the answer was handed to the kernel.
    """

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]
    head: bytes
    body: bytes
    connection: int
    client_gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        return next(iter(self.headers_named(name)), None)

    def headers_named(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


Reply = Answer | Callable[[Request], Answer]
"""An answer, or what makes one when the request is there."""


class ScriptedUpstream:
    """Answers request after request from a script, then with `otherwise`, then with a 500 that says so.

    `continues`: an `Expect: 100-continue` is granted before the body is read. `keep`: so many of the newest
    requests stay in `requests`, None = all. `at`: the address it listens on, or the path of a Unix socket. `tls`: of a
    server with https. Use as an asynchronous context manager; `url` is `http://127.0.0.1:PORT`, `base_url` the same
    with `/v1`.
    """

    def __init__(
        self,
        script: Iterable[Reply] = (),
        *,
        otherwise: Reply | None = None,
        continues: bool = True,
        keep: int | None = None,
        port: int = 0,
        at: str | Path = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script = list(script)
        self.otherwise = otherwise
        self.continues = continues
        self.keep = keep
        self.port = port
        self.at = at
        self.tls = tls
        self.requests: list[Request] = []
        self.request_count = 0
        self.incomplete_requests = 0
        self.connections = 0
        self.client_gone = asyncio.Event()
        self._open: set[_Connection] = set()
        self._failures: list[BaseException] = []
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if isinstance(self.at, Path):
            self._server = await loop.create_unix_server(lambda: _Connection(self), self.at)
            return self
        self._server = await loop.create_server(
            lambda: _Connection(self), self.at, self.port, ssl=self.tls, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        for failure in self._failures:
            if error is None:
                raise failure
            error.add_note(f"The upstream's own script failed as well: {failure!r}")

    async def close(self) -> None:
        """Stops listening and drops every connection; the port refuses from now on."""
        if self._server is not None:
            self._server.close()
        tasks = [connection.end() for connection in set(self._open)]
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        if isinstance(self.at, Path):
            return f"http+unix://{quote(str(self.at), safe='')}"
        host = f"[{self.at}]" if ":" in self.at else self.at
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; looked at whenever a request, an answer or a connection comes or ends."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self._changed.wait()

    async def received(self, requests: int) -> Request:
        """Waits for so many requests in all; the last of that many."""
        await self.until(lambda: self.request_count >= requests)
        return self.requests[requests - self.request_count - 1]

    async def drained(self) -> None:
        """Waits until no connection is open."""
        await self.until(lambda: not self._open)

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def next_answer(self, request: Request) -> Answer:
        """What this request is answered with; it is recorded first."""
        self.requests.append(request)
        self.request_count += 1
        if self.keep is not None:
            del self.requests[: -self.keep or None]
        self.changed()
        reply = self.script.pop(0) if self.script else self.otherwise
        if reply is None:
            said = f"The script has no answer for request {self.request_count}: {request.method} {request.target}"
            return bytes_answer(said.encode(), status=500, headers=(("Content-Type", "text/plain"),))
        return reply if isinstance(reply, Answer) else reply(request)

    def opened(self, connection: "_Connection") -> int:
        self._open.add(connection)
        self.connections += 1
        self.changed()
        return self.connections - 1

    def closed(self, connection: "_Connection", failure: BaseException | None) -> None:
        self._open.discard(connection)
        self._failures += [] if failure is None else [failure]
        self.changed()

    def left(self, request: Request) -> None:
        request.client_gone.set()
        self.client_gone.set()
        self.changed()


class _Connection(asyncio.Protocol):
    """One TCP connection: reads requests, plays answers. When the peer leaves, whatever waits here is cancelled."""

    def __init__(self, owner: ScriptedUpstream) -> None:
        self._owner = owner
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._current: Request | None = None
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        if (
            self._owner.tls is None
        ):  # whose transports would say that they are full, and never that they are not
            self._transport.set_write_buffer_limits(high=0)  # so that "flushed" means: in the kernel's hands
        self._number = self._owner.opened(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._task.add_done_callback(self._served)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def pause_writing(self) -> None:
        self._flushed.clear()

    def resume_writing(self) -> None:
        self._flushed.set()

    def end(self) -> Awaitable[None]:
        """Drops the connection from our side."""
        self._current = None
        self._transport.abort()
        self._task.cancel()
        return self._task

    def _leave(self) -> None:
        if not self._gone and self._current is not None:
            self._owner.left(self._current)
        self._gone = True
        self._task.cancel()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._transport.close()
        failure = None if task.cancelled() else task.exception()
        self._owner.closed(self, failure)

    async def _serve(self) -> None:
        while True:
            request = self._current = await self._read_request()
            ends = await self._play(request, self._owner.next_answer(request))
            self._current = None
            self._owner.changed()
            if ends is not None:
                self._hang_up(ends)
                return

    async def _play(self, request: Request, answer: Answer) -> Cut | None:
        """Sends the answer; how the connection is to end behind it, if it is."""
        if answer.before is not None:
            await answer.before.wait()
        await self._send(answer.interim)
        if answer.framing is not Framing.RAW:
            await self._send(answer.head())
        silent = request.method == "HEAD" or answer.framing is Framing.NONE
        for piece in () if silent else answer.pieces:
            match piece:
                case bytes():
                    await self._send(answer.wire(piece))
                case asyncio.Event():
                    await piece.wait()
                case Cut():
                    return piece
        if answer.framing is Framing.CHUNKED and not silent:
            await self._send(b"0\r\n\r\n")
        request.answered.set()
        return answer.then or (Cut.CLOSE if _is_last(request, answer) else None)

    async def _send(self, data: bytes) -> None:
        if data:
            self._transport.write(data)
            await self._flushed.wait()
        if self._transport.is_closing():
            await self._wait_for_the_end()

    async def _wait_for_the_end(self) -> None:
        """The peer is gone, and the loop is about to say so: then this task is cancelled."""
        await asyncio.get_running_loop().create_future()

    def _hang_up(self, cut: Cut) -> None:
        if cut is Cut.RESET:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()
        else:
            self._transport.close()

    async def _read_request(self) -> Request:
        head = await self._take_through(b"\r\n\r\n")
        self._owner.incomplete_requests += 1
        line, *rest = head[:-4].decode("latin-1").split("\r\n")
        method, target, version = line.split(" ", 2)
        headers = tuple(
            (name, value.strip(" \t")) for name, _, value in (each.partition(":") for each in rest)
        )
        request = Request(method, target, version, headers, head, b"", self._number)
        if self._owner.continues and (request.header("expect") or "").lower() == "100-continue":
            await self._send(_CONTINUE)
        if (request.header("transfer-encoding") or "").lower() == "chunked":
            request.body = await self._take_chunks()
        else:
            request.body = await self._take(int(request.header("content-length") or 0))
        self._owner.incomplete_requests -= 1
        return request

    async def _take_chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._take_through(b"\r\n")).partition(b";")[0], 16):
            body += await self._take(size)
            await self._take_through(b"\r\n")
        while await self._take_through(b"\r\n") != b"\r\n":  # trailers
            pass
        return bytes(body)

    async def _take_through(self, end: bytes) -> bytes:
        while (found := self._buffer.find(end)) < 0:
            await self._more()
        return await self._take(found + len(end))

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _more(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()


def _is_last(request: Request, answer: Answer) -> bool:
    """Whether HTTP says that nothing follows on this connection."""
    said = [value.lower() for name, value in answer.headers if name.lower() == "connection"]
    said += [value.lower() for value in request.headers_named("connection")]
    is_old = "1.0" in (request.version.removeprefix("HTTP/"), answer.version)
    return answer.framing is Framing.UNTIL_CLOSE or "close" in said or (is_old and "keep-alive" not in said)
