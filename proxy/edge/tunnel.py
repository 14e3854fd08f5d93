"""What follows a 101: bytes both ways between a client and an upstream, until one of them leaves.

Rules. No byte is looked at, added, left out or put together anew, so frames, masks, extensions and close codes are the
affair of the two ends. What an end does not take is not read from the other one. When one end closes, what it said
before still arrives while the other takes it; then both are closed, and nothing is left of them but the library's own.
"""

import asyncio
import socket
from typing import Any, Final, cast

from aiohttp import hdrs, web

from proxy.edge.headers import asks_for_websocket
from proxy.edge.upstream import Reply

LINGER: Final = 1.0
"""Seconds that an end may take nothing, and the other one stay open, when one of them has closed."""


class End(asyncio.Protocol):
    """One end: the connection of a client or to an upstream, taken from the library that opened it.

    `early` was received before; `received` counts all bytes. The library gets its connection back to clean up.
    """

    def __init__(self, library: Any, early: bytes) -> None:
        self._library = library
        self._transport: asyncio.Transport | None = library.transport
        self._early = early
        self._lost = self._transport is None
        self._reason: Exception | None = None
        self._moved = asyncio.Event()
        self._other = self
        self.received = len(early)
        self.has_ended = self._lost

    @property
    def is_open(self) -> bool:
        """Whether the connection is still there."""
        return not self._lost

    @property
    def untaken(self) -> int:
        """Bytes that wait for this end to take them, where the other one will send no more."""
        if self._transport is None or self._lost or not self._other.has_ended:
            return 0
        return self._transport.get_write_buffer_size()

    # --- what the loop says -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes of this end, which go out at the other one."""
        self.received += len(data)
        self._other._send(data)

    def pause_writing(self) -> None:
        """This end takes no more for now."""
        self._other._read(False)

    def resume_writing(self) -> None:
        """This end takes bytes again."""
        self._other._read(True)

    def eof_received(self) -> bool:
        """This end will say no more. It may still listen, but for as long as `LINGER` alone."""
        self._end()
        # A TLS connection cannot be closed by half.
        return not self._other.has_ended and self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """This end is gone."""
        self._lost, self._reason = True, exc
        self._end()
        self._other._close()

    # --- what the tunnel says ---------------------------------------------------------------------------------

    def join(self, other: "End", moved: asyncio.Event) -> None:
        """Be the end opposite to `other`; `moved` is told when this one closes."""
        self._other, self._moved = other, moved
        if self._transport is not None:
            self._transport.set_protocol(self)

    def begin(self) -> None:
        """Let flow what came early, and all else."""
        self._read(True)
        self._other._send(self._early)
        if self._lost:
            self._moved.set()
            self._other._close()

    def give_back(self) -> None:
        """Let the library clean up; what is still open is broken off."""
        if self._transport is None:
            return
        if self._lost:
            self._library.connection_lost(self._reason)
        else:
            self._transport.set_protocol(self._library)
            self._transport.abort()

    # --- what the other end says ------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _read(self, on: bool) -> None:
        if self._transport is None or self._transport.is_closing() or self.has_ended:
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _end(self) -> None:
        self.has_ended = True
        self._moved.set()
        self._other._hear_no_more()

    def _hear_no_more(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.has_ended or not self._transport.can_write_eof():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # reset already, and the loop is about to say so
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def is_asked_for(request: web.BaseRequest) -> bool:
    """Whether a request asks for a WebSocket as RFC 6455 says: section 4.1."""
    return (
        request.method == hdrs.METH_GET
        and request.version >= (1, 1)
        and not request.body_exists
        and asks_for_websocket(request.raw_headers)
    )


def end_of_client(request: web.BaseRequest) -> End:
    """The connection of a request that was answered with 101."""
    early = _Early()
    request.protocol.set_parser(cast(Any, early))
    return End(request.protocol, bytes(early.data))


def end_of_upstream(reply: Reply) -> End:
    """The connection of an upstream that answered with 101."""
    early = _Early()
    library = reply.switched()
    library.read_timeout = None  # two that talk have pauses of any length
    library.set_parser(early, None)
    if library.transport is not None:
        # Both may be silent for hours, and then only the kernel finds out that a peer is no more.
        connection: socket.socket = library.transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return End(library, bytes(early.data))


async def carry(client: End, upstream: End) -> None:
    """Carry bytes both ways until both ends are closed."""
    moved = asyncio.Event()
    ends = (client, upstream)
    try:
        client.join(upstream, moved)
        upstream.join(client, moved)
        for end in ends:
            end.begin()
        await moved.wait()
        await _linger(ends, moved)
    finally:
        for end in ends:
            end.give_back()


async def _linger(ends: tuple[End, End], moved: asyncio.Event) -> None:
    """Wait while what is on its way arrives."""
    while any(end.is_open for end in ends):
        untaken = sum(end.untaken for end in ends)
        moved.clear()
        try:
            async with asyncio.timeout(LINGER):
                await moved.wait()
        except TimeoutError:
            if sum(end.untaken for end in ends) >= untaken:
                return


class _Early:
    """Takes what the library has received behind a head, in the place of its own reader of frames."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Bytes that came; neither the end of anything, nor too many."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """The connection was closed."""
