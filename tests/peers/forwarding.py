"""An HTTP proxy that opens ways by CONNECT, to one server whatever host is asked for.

Rules. It joins the two connections byte for byte and remembers the heads that it has seen. What asks for anything but a
way is answered with 501.
"""

import asyncio
from types import TracebackType
from typing import Self


class ForwardProxy:
    """Opens ways to the server on this port of 127.0.0.1; `answer` is what a client hears that asks for one."""

    def __init__(self, port: int, *, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> None:
        self.port = port
        self.answer = answer
        self.heads: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.own_port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    def url(self, user: str = "") -> str:
        """Its URL, with a user and a password where they are given as `user:password`."""
        return f"http://{user}@127.0.0.1:{self.own_port}" if user else f"http://127.0.0.1:{self.own_port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        is_way = head.startswith(b"CONNECT ") and b" 200 " in self.answer
        writer.write(self.answer if head.startswith(b"CONNECT ") else b"HTTP/1.1 501 No\r\n\r\n")
        if not is_way:
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)
        for source, target in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(_copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
    except ConnectionError:
        pass
    finally:
        target.close()
