"""An upstream that leaves HTTP: it answers a request with given bytes, and then the test holds the raw connection.

Rules. Nothing is known here of what is spoken after the head. A `Line` waits for the other side as `RawClient` does,
bounded, so that a test fails instead of hanging.
"""

import asyncio
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

PATIENCE = 20.0
"""Seconds after which a test that waits for the other side is given up."""

SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
"""What a server answers to the handshake that RFC 6455 has as its example."""


class Line:
    """One connection, once its request's head is there and answered."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.reader = reader
        self.writer = writer

    @property
    def fields(self) -> list[bytes]:
        """The lines of the request's head, the first one included."""
        return self.head.split(b"\r\n")[:-2]

    def send(self, data: bytes) -> None:
        """Hand these bytes to the loop, without waiting for anybody to take them."""
        self.writer.write(data)

    def close(self) -> None:
        """Say no more and close, once all that was sent is taken."""
        self.writer.close()

    def reset(self) -> None:
        """End the connection by RST."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """All that comes until the other side closes or resets the connection."""
        got = bytearray()
        async with asyncio.timeout(PATIENCE):
            try:
                while data := await self.reader.read(1 << 16):
                    got += data
            except ConnectionError:
                pass
        return bytes(got)

    @property
    def untaken(self) -> int:
        """Bytes that were sent and are not in the kernel's hands yet."""
        return self.writer.transport.get_write_buffer_size()


class SwitchingUpstream:
    """Reads the head of a request, answers it with `answer`, and hands the connection over by `line`."""

    def __init__(
        self, answer: bytes = SWITCH, *, closes: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.closes = closes
        self.tls = tls
        self.lines: list[Line] = []
        self._came: asyncio.Queue[Line] = asyncio.Queue()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for line in self.lines:
            line.writer.transport.abort()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def line(self) -> Line:
        """The next connection."""
        async with asyncio.timeout(PATIENCE):
            return await self._came.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        line = Line(head, reader, writer)
        self.lines.append(line)
        line.send(self.answer)
        if self.closes:
            writer.close()
        self._came.put_nowait(line)
