"""A raw HTTP/1.1 client: sends the bytes it is given, shows the bytes that come, leaves when it is told to.

Rules. Nothing is added to a request but what `request_bytes` says it adds, and nothing is decoded but the framing. An
answer that ends before its framing says so is no error here but a fact: `complete` is False. Only connecting and
waiting can fail, and waiting is bounded so that a test fails instead of hanging.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

PATIENCE = 20.0
"""Seconds after which waiting for bytes is given up with `TimeoutError`, unless a client has a patience of its own."""

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers, in order and case as they came; `raw` are their bytes with the blank line."""

    version: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        return next(iter(self.headers_named(name)), None)

    def headers_named(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. `interim`: heads with a 1xx status that came before. `chunks`: the body as it was framed."""

    head: Head
    chunks: tuple[bytes, ...]
    complete: bool
    interim: tuple[Head, ...] = ()

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def header(self, name: str) -> str | None:
        return self.head.header(name)

    def json(self) -> Any:
        return json.loads(self.body)


class Disconnected(Exception):
    """The server closed or reset the connection where a head was awaited."""


def request_bytes(
    method: str, target: str, *, host: str, body: bytes | None = None, headers: Sequence[tuple[str, str]] = ()
) -> bytes:
    """A request with `Host`, with `Content-Length` where there is a body, and with the given headers behind."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


class RawClient:
    """One connection. `async with RawClient(url) as client:`, then `send` and `read`, as often as wanted.

    `url` is that of a TCP server, or `unix:` and the path of a socket.

    `ended` tells how the newest body ended: None while it runs, True at its proper end, False when cut off. `was_reset`
    tells whether the server's RST was seen.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        parts = urlsplit(url)
        self._path = parts.path if parts.scheme == "unix" else ""
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 80
        self.ended: bool | None = None
        self.was_reset = False
        self._patience = patience
        self._method = "GET"
        self._left: int | None = 0
        self._is_chunked = False
        self._buffer = bytearray()

    async def __aenter__(self) -> Self:
        if self._path:
            self._reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_BLOCK)
        else:
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=_BLOCK)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def send(self, data: bytes) -> None:
        """Sends exactly these bytes and waits until the kernel took most of them."""
        self._writer.write(data)
        async with asyncio.timeout(self._patience):
            await self._writer.drain()

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Response:
        """Sends one request and reads its whole answer."""
        self._method = method
        host = f"{self.host}:{self.port}"
        await self.send(request_bytes(method, target, host=host, body=body, headers=headers))
        return await self.read()

    async def get(self, target: str, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """Gets a target."""
        return await self.request("GET", target, None, headers)

    async def post(
        self,
        target: str,
        body: object,
        headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),),
    ) -> Response:
        """Posts bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.request("POST", target, data, headers)

    async def start(self, target: str, body: object, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Like `post`, but returns when the request is sent; go on with `read_head` and `read_chunk`."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._method = "POST"
        sent = request_bytes("POST", target, host=f"{self.host}:{self.port}", body=data, headers=headers)
        await self.send(sent)

    async def read(self) -> Response:
        """The next whole answer. Raises `Disconnected` when the connection ends before a head."""
        interim = []
        while (head := await self.read_head()).status < 200:
            interim.append(head)
        chunks = []
        while (chunk := await self.read_chunk()) is not None:
            chunks.append(chunk)
        return Response(head, tuple(chunks), bool(self.ended), tuple(interim))

    async def read_head(self) -> Head:
        """The next status line and headers, also of a 1xx answer. Raises `Disconnected`."""
        raw = await self._take_through(b"\r\n\r\n")
        if raw is None:
            raise Disconnected(f"The server closed the connection after {bytes(self._buffer)!r}.")
        line, *rest = raw[:-4].decode("latin-1").split("\r\n")
        version, _, status_and_reason = line.partition(" ")
        status, _, reason = status_and_reason.partition(" ")
        headers = tuple(
            (name, value.strip(" \t")) for name, _, value in (each.partition(":") for each in rest)
        )
        head = Head(version.removeprefix("HTTP/"), int(status), reason, headers, raw)
        if head.status >= 200:
            self._open_body(head)
        return head

    async def read_chunk(self) -> bytes | None:
        """The next chunk as the server framed it, or what has come of an unframed body; None at the body's end.

        Of a chunk that is cut off, what came of it.
        """
        if self.ended is not None:
            return None
        return await (self._read_framed() if self._is_chunked else self._read_plain())

    async def read_bytes(self, size: int) -> bytes:
        """Reads chunks until so many bytes of the body have come, or it ended."""
        got = bytearray()
        while len(got) < size and (chunk := await self.read_chunk()) is not None:
            got += chunk
        return bytes(got)

    def hand(self, data: bytes) -> None:
        """Hands these bytes to the loop, without waiting for anybody to take them."""
        self._writer.write(data)

    @property
    def untaken(self) -> int:
        """Bytes that were handed over and are not in the kernel's hands yet."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def unread(self) -> bytes:
        """What has come of an answer and was not asked for yet."""
        return bytes(self._buffer)

    async def read_raw(self, size: int) -> bytes:
        """Exactly so many bytes, whatever they are; fewer where the server closed before."""
        taken = await self._take(size)
        return bytes(self._buffer) if taken is None else taken

    def send_no_more(self) -> None:
        """Closes this half of the connection."""
        self._writer.write_eof()

    async def disconnect(self) -> None:
        """Closes the connection: FIN, or RST by the kernel when unread bytes are waiting."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            self.was_reset = True

    async def reset(self) -> None:
        """Ends the connection by RST."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        await self.disconnect()

    async def closed_by_server(self) -> bool:
        """Waits for the server's next move on an idle connection: True when it closes, False when it sends."""
        return not await self._more()

    def _open_body(self, head: Head) -> None:
        self._is_chunked = (head.header("transfer-encoding") or "").lower() == "chunked"
        length = head.header("content-length")
        self._left = int(length) if length is not None and not self._is_chunked else None
        if self._method == "HEAD" or head.status in (204, 304):
            self._is_chunked, self._left = False, 0
        self.ended = True if self._left == 0 else None

    async def _read_framed(self) -> bytes | None:
        line = await self._take_through(b"\r\n")
        size = int((line or b"-1").partition(b";")[0], 16)
        if size > 0:
            chunk = await self._take(size + 2)
            self.ended = None if chunk is not None else False
            return self._leftover(size) if chunk is None else chunk[:-2]
        while line is not None and (line := await self._take_through(b"\r\n")) != b"\r\n":
            pass  # trailers
        self.ended = line is not None
        return None

    async def _read_plain(self) -> bytes | None:
        if not self._buffer and not await self._more():
            self.ended = self._left is None and not self.was_reset
            return None
        got = bytes(self._buffer if self._left is None else self._buffer[: self._left])
        del self._buffer[: len(got)]
        if self._left is not None:
            self._left -= len(got)
            self.ended = True if self._left == 0 else None
        return got

    def _leftover(self, size: int) -> bytes | None:
        """What came of a chunk that was cut off."""
        return bytes(self._buffer[:size]) or None

    async def _take_through(self, end: bytes) -> bytes | None:
        while (found := self._buffer.find(end)) < 0:
            if not await self._more():
                return None
        return await self._take(found + len(end))

    async def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not await self._more():
                return None
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _more(self) -> bool:
        """Waits for bytes; False when none will come."""
        try:
            async with asyncio.timeout(self._patience):
                got = await self._reader.read(_BLOCK)
        except ConnectionError:
            self.was_reset = True
            return False
        self._buffer += got
        return bool(got)
