"""Bodies both ways: of any size in little memory, broken ones broken off, odd ones untouched.

Rules. A body that breaks on one side is seen to be broken on the other, and nobody waits for its end. Memory is looked
at while bytes flow, never time.
"""

import asyncio
import contextlib
import hashlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from proxy.config import Upstream as UpstreamOptions
from proxy.context.policy import Mode, ModelPolicy
from tests.edge.crossing import ASKED, CHAT, FILES, OK, cross, head
from tests.edge.proxied import proxied
from tests.peers.client import RawClient, request_bytes
from tests.peers.upstream import ScriptedUpstream, bytes_answer, raw_answer

BOTH = pytest.mark.parametrize("target", [FILES, CHAT])

# ------------------------------------------------------------------------------------------------- bodies that break

BROKEN_CHUNKS = (b"zz\r\n", b"-1\r\n", b"F" * 18 + b"\r\n", b"3\r\nabcdef\r\n")


@BOTH
@pytest.mark.parametrize("bad", BROKEN_CHUNKS)
async def test_b90_an_answer_that_stops_being_http_is_broken_off(target: str, bad: bytes) -> None:
    arrived = asyncio.Event()
    beginning = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = raw_answer(beginning + b"9\r\ndata: 1\n\n\r\n", arrived, bad, asyncio.Event())
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(target, ASKED)
        await client.read_head()
        assert await client.read_chunk() == b"data: 1\n\n"
        arrived.set()
        while await client.read_chunk() is not None:
            pass
        assert client.ended is False
        await upstream.drained()
    (event,) = proxy.events()
    assert (event["reason"], event["complete"]) == ("upstream_broke", False)


@BOTH
@pytest.mark.parametrize("bad", BROKEN_CHUNKS)
async def test_b123_a_body_that_stops_being_http_is_refused_and_no_one_waits_for_its_end(
    target: str, bad: bytes
) -> None:
    async with (
        ScriptedUpstream(otherwise=OK) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        # The first answer tells that the second request's head has been taken in, too.
        await client.send(head("GET", "/v1/models") + head("POST", target, b"Transfer-Encoding: chunked"))
        await client.read()
        await client.send(b"3\r\nabc\r\n" + bad)
        response = await client.read()
        assert await client.closed_by_server()
        assert all(request.method == "GET" for request in upstream.requests)
        assert not [line for line in proxy.log.splitlines() if '"level":"error"' in line]
    assert (response.status, response.json()["error"]["code"]) == (400, "bad_request")


@BOTH
@pytest.mark.parametrize("size", [50_000, 10_000_000])
async def test_b120_a_refusal_that_comes_while_the_body_still_goes_up_is_the_answer(
    target: str, size: int
) -> None:
    said = b'{"error": {"message": "too large"}}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
        await writer.drain()
        writer.close()  # with the body unread, which the kernel makes a reset

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, proxied(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:
        for _ in range(5):
            async with RawClient(proxy.url) as client:
                raw = request_bytes("POST", target, host="h", body=b"x" * size)
                sending = asyncio.create_task(client.send(raw))
                response = await client.read()
                sending.cancel()
                await asyncio.wait([sending])
            assert (response.status, response.body) == (413, said)


@BOTH
async def test_an_upstream_that_takes_nothing_of_a_body_is_given_up_in_time(target: str) -> None:
    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A reader of streams stops taking bytes in when nobody asks it for any.
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(take_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    raw = request_bytes("POST", target, host="h", body=b"x" * 20_000_000)
    async with (
        server,
        proxied(url, options=UpstreamOptions("", idle_timeout=0.2)) as proxy,
        RawClient(proxy.url) as client,
    ):
        sending = asyncio.create_task(client.send(raw))
        response = await client.read()
        sending.cancel()
        await asyncio.wait([sending])
    assert (response.status, response.json()["error"]["code"]) == (504, "upstream_timeout")


# ------------------------------------------------------------------------------------------------ bodies of all sizes


@pytest.mark.parametrize("framing", ["length", "chunked"])
@BOTH
async def test_b91_a_chat_body_of_just_the_limit_passes_and_other_bodies_have_none(
    target: str, framing: str
) -> None:
    for size, limit in ((1000, 1000), (1001, 1000)):
        body = b"x" * size
        raw = (
            request_bytes("POST", target, host="h", body=body)
            if framing == "length"
            else head("POST", target, b"Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
        )
        crossing = await cross(raw, max_body=limit)
        passes = target == FILES or size <= limit
        assert crossing.response.status == (200 if passes else 413)
        assert [request.body for request in crossing.requests] == ([body] if passes else [])


ODD_BODIES = (
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"model": "m", "messages": null}',
    b'{"messages": [1, null, {}]}',
    b'{"model": "m", "messages": [{"role": "tool", "content": "lost"}], "stream": true, "max_tokens": 1e9}',
    b'\xef\xbb\xbf{"messages": []}',
    b'{"a": 1, "a": 2, "messages": [ ], "x": 1e-7, "y": 12345678901234567890}\r\n',
    b"\x1f\x8b\x08\x00 no gzip",
    b"\xff\xfe\x00",
    b"[" * 10_000,
    b'{"model": "m", "messages": [{"role": "user", "content": "' + b"word " * 20_000 + b'"}]}',
)


@pytest.mark.parametrize("by", ["header", "configuration"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("target", [CHAT, "/chat/completions?a=%20", "/v1/embeddings", "/v1/responses"])
async def test_b123_mode_off_is_bytes_in_and_bytes_out_on_every_path(
    by: str, framing: str, target: str
) -> None:
    policy = ModelPolicy(window=100, mode=Mode.OFF if by == "configuration" else Mode.MANAGE)
    lines = (b"X-Context-Mode: off",) if by == "header" else ()
    answers = [bytes_answer(body[::-1]) for body in ODD_BODIES]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url, policy=policy, max_body=50) as proxy,
        RawClient(proxy.url) as client,
    ):
        for body in ODD_BODIES:
            if framing == "length":
                raw = head("POST", target, *lines, b"Content-Length: %d" % len(body)) + body
            else:
                chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                raw = head("POST", target, *lines, b"Transfer-Encoding: chunked") + chunk + b"0\r\n\r\n"
            await client.send(raw)
            response = await client.read()
            request = upstream.requests[-1]
            assert (request.body, response.body) == (body, body[::-1])
            assert request.header("transfer-encoding") == (None if framing == "length" else "chunked")
            assert not any(name.startswith("x-context") for name, _ in response.head.headers)
        assert upstream.request_count == len(ODD_BODIES)


# ------------------------------------------------------------------------------------------------------------- memory

MIB = 2**20
LARGE = 256
"""Mebibytes that go through."""

GROWTH = 48
"""Mebibytes by which the process may have grown at any moment of that, this test's own peers included."""

PIECE = bytes(range(256)) * 512
PIECES = LARGE * MIB // len(PIECE)


def resident() -> int:
    """Mebibytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // MIB


class Meter:
    """Takes bytes in, keeps their digest and the highest growth of memory since it was made."""

    def __init__(self) -> None:
        self._start = resident()
        self.digest = hashlib.blake2b()
        self.size = self.growth = 0

    def take(self, data: bytes) -> None:
        self.size += len(data)
        self.digest.update(data)
        self.growth = max(self.growth, resident() - self._start)

    async def drain(self, reader: asyncio.StreamReader, size: int) -> None:
        """Take in so many bytes."""
        while size > 0:
            data = await reader.read(min(size, len(PIECE)))
            assert data, "the connection ended early"
            self.take(data)
            size -= len(data)


def expected() -> bytes:
    digest = hashlib.blake2b()
    for _ in range(PIECES):
        digest.update(PIECE)
    return digest.digest()


@contextlib.asynccontextmanager
async def through(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a proxy before this upstream."""

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await serve(reader, writer)

    server = await asyncio.start_server(serve_and_close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxied(f"http://127.0.0.1:{port}") as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


MULTIPART = b"Content-Type: multipart/form-data; boundary=b"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.slow
async def test_a_large_upload_goes_through_in_little_memory(framing: str) -> None:
    arrived: asyncio.Queue[Meter] = asyncio.Queue()
    is_chunked = framing == "chunked"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meter = Meter()
        await reader.readuntil(b"\r\n\r\n")
        if is_chunked:
            while size := int(await reader.readline(), 16):
                await meter.drain(reader, size)
                await reader.readexactly(2)
        else:
            await meter.drain(reader, LARGE * MIB)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await arrived.put(meter)

    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % (LARGE * MIB)
    async with through(serve) as (reader, writer):
        writer.write(head("POST", FILES, MULTIPART, length))
        for _ in range(PIECES):
            writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if is_chunked else PIECE)
            await writer.drain()
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        meter = await arrived.get()
    assert (meter.size, meter.digest.digest()) == (LARGE * MIB, expected())
    assert meter.growth < GROWTH


@pytest.mark.parametrize(
    ("target", "kind"), [(FILES, b"audio/mpeg"), (CHAT, b"text/event-stream"), (CHAT, b"application/json")]
)
@pytest.mark.slow
async def test_a_large_answer_goes_through_in_little_memory(target: str, kind: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ASKED)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, LARGE * MIB)
        )
        for _ in range(PIECES):
            writer.write(PIECE)
            await writer.drain()

    meter = Meter()
    async with through(serve) as (reader, writer):
        writer.write(request_bytes("POST", target, host="h", body=ASKED))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await meter.drain(reader, LARGE * MIB)
    assert (meter.size, meter.digest.digest()) == (LARGE * MIB, expected())
    assert meter.growth < GROWTH
