"""The answer on its way to the client: its head, its framing, its bytes, and its end or its breaking off.

Rules. Every chunk goes out as it came, at once. An answer ends as complete only when the upstream's did; otherwise the
connection is broken off in a way that no client takes for an end. Nothing is added to an answer but framing and the
fields that are handed in. Once a byte went out there is no other answer to this request.
"""

import socket
import struct
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter

from proxy.edge import headers
from proxy.edge.upstream import Reply
from proxy.errors import TransomError
from proxy.wire import chat

JSON: Final = "application/json"

_REQUEST_ID: Final = headers.REQUEST_ID.decode()
_WITHOUT_BODY: Final = frozenset({204, 304})
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET: Final = struct.pack("ii", 1, 0)


class ClientGone(Exception):
    """The client closed the connection; nobody waits for this answer any more."""


class Tap(Protocol):
    """Sees the bytes of an answer go by; what it returns is what goes on. `read_on` does what could wait until then."""

    def feed(self, chunk: bytes) -> bytes: ...

    async def read_on(self) -> None: ...

    def end(self) -> bytes: ...


class Downstream:
    """One answer, written head and all by us: the library's own would add `Date`, `Server` and `Content-Type`.

    The library takes this object as its response when the handler is done; there is then nothing left to prepare or to
    end, and whether the connection may be used again is told by `keep_alive`. `request_id` names the request in the
    log; it is told to the client where something of ours is added to an answer that has no such name, or the answer is
    our own. `upstream_id` is the upstream's own name for it.
    """

    upstream_id = ""
    started = False
    complete = False
    sent_bytes = 0
    sent_status: int | None = None
    _is_chunked = False

    def __init__(self, request: web.BaseRequest, request_id: str) -> None:
        self._request = request
        self.request_id = request_id
        self._keeps = request.keep_alive

    # --- what the library asks of a response ------------------------------------------------------------------

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing to prepare: the head is written by `start`."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing to end: that is for `finish` and `break_off`."""

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        return self._keeps and self.complete

    # --- what we do -------------------------------------------------------------------------------------------

    def close_after(self) -> None:
        """Let no other request follow on this connection."""
        self._keeps = False

    async def let_body_come(self) -> None:
        """Tell a client that waits for it to send its body (B98). Raises ClientGone."""
        request = self._request
        if request.version >= (1, 1) and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            await self._write(_CONTINUE)

    async def start(
        self, status: int, reason: str, fields: bytes, *, has_length: bool, first: bytes = b""
    ) -> None:
        """Write the head, with the first bytes of the body where they are there. `fields`: lines with their CRLF."""
        self.started = True
        self.sent_status = status
        is_newer = self._request.version >= (1, 1)
        is_open = not has_length and self._has_body(status)
        if is_open and not is_newer:
            self._keeps = False  # HTTP/1.0 knows only the end of the connection
        head = b"HTTP/1.%d %d %b\r\n%b" % (
            is_newer,
            status,
            reason.encode("utf-8", "surrogateescape"),
            fields,
        )
        if is_open and is_newer:
            self._is_chunked = True
            head += b"Transfer-Encoding: chunked\r\n"
        if not self._keeps:
            head += b"Connection: close\r\n"
        elif not is_newer:
            head += b"Connection: keep-alive\r\n"
        self.sent_bytes += len(first)
        body = b"%x\r\n%b\r\n" % (len(first), first) if first and self._is_chunked else first
        await self._write(b"%b\r\n%b" % (head, body))  # in one write: half the system calls of a short answer
        if self._is_chunked:
            self._request.writer.enable_chunking()

    async def switch(self, reason: str, fields: bytes) -> None:
        """Write the head of a 101; what follows is no HTTP. `fields`: lines with their CRLF. Raises ClientGone."""
        self.started = True
        self.sent_status = 101
        self._keeps = False
        await self._write(b"HTTP/1.1 101 %b\r\n%b\r\n" % (reason.encode("utf-8", "surrogateescape"), fields))

    async def send(self, chunk: bytes) -> None:
        """Write a chunk of the body; waits while the client reads too slowly. Raises ClientGone."""
        if chunk:
            self.sent_bytes += len(chunk)
            await self._write(chunk)

    async def finish(self) -> None:
        """End the answer as complete."""
        if self._is_chunked:  # else the end of the last bytes says it
            try:
                await self._request.writer.write_eof()
            except ConnectionError as cause:
                raise ClientGone from cause
        self.complete = True

    def break_off(self) -> None:
        """End the answer so that it is seen to be incomplete; what was sent still arrives."""
        self._keeps = False
        transport = self._request.transport
        if transport is None:
            return
        if self._request.version < (1, 1):
            # The end of the connection would be the end of the answer; a reset is not.
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.close()

    async def refuse(self, error: TransomError) -> None:
        """Answer with an error of our own; breaks off an answer that has begun. Raises ClientGone."""
        if self.started:
            self.break_off()
            return
        await self.say(error.status, chat.error_body(error.message, error.kind, error.code), error.fields)

    async def say(self, status: int, body: bytes, fields: bytes = b"", kind: str = JSON) -> None:
        """Answer with something of our own, JSON unless another `kind` is named. Raises ClientGone."""
        fields += b"Content-Type: %b\r\nContent-Length: %d\r\n" % (kind.encode(), len(body))
        fields += b"%b: %b\r\n" % (headers.REQUEST_ID, self.request_id.encode())
        shown = body if self._has_body(status) else b""
        await self.start(status, HTTPStatus(status).phrase, fields, has_length=True, first=shown)
        await self.finish()

    def _has_body(self, status: int) -> bool:
        return self._request.method != hdrs.METH_HEAD and status not in _WITHOUT_BODY

    async def _write(self, data: bytes) -> None:
        try:
            await self._request.writer.write(data)
        except ConnectionError as cause:
            raise ClientGone from cause


async def relay(
    reply: Reply,
    client: Downstream,
    *,
    added: Iterable[tuple[str, str]] = (),
    already: bytes = b"",
    tap: Tap | None = None,
    rewrites: bool = False,
) -> bool:
    """Pass an answer on, chunk by chunk; whether it came to its end. What broke off is broken off here too.

    `already` was read of the body before. `tap` sees every byte; `rewrites` says that it may leave some out, so that
    the answer's length is not the upstream's. Raises ClientGone.
    """
    client.upstream_id = headers.request_id(reply.headers)
    ours = tuple(added)
    # An answer to which nothing is added stays as it is.
    if ours and headers.REQUEST_ID not in reply.headers.places:
        ours = (*ours, (_REQUEST_ID, client.request_id))
    fields = headers.for_client(reply.headers, ours, keep_length=not rewrites)
    has_length = not rewrites and headers.find(reply.headers, b"content-length") is not None
    first = already or reply.ready()
    shown = tap.feed(first) if tap else first
    await client.start(reply.status, reply.reason, fields, has_length=has_length, first=shown)
    broken = await _pass_on(reply, client, tap)
    if tap and (rest := tap.end()):
        await client.send(rest)
    if broken:
        client.break_off()
    else:
        await client.finish()
    return not broken


async def _pass_on(reply: Reply, client: Downstream, tap: Tap | None) -> bool:
    """All chunks that still come, each before it is read; whether the answer broke off."""
    try:
        if tap:
            await tap.read_on()
        while not reply.is_over and (chunk := await reply.chunk()):
            await client.send(tap.feed(chunk) if tap else chunk)
            if tap:
                await tap.read_on()
    except TransomError:
        return True
    return False
