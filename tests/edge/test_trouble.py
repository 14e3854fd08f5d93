"""An upstream in trouble: broken answers, stale connections, silence, nobody there, and errors of its own."""

import asyncio
import socket
from dataclasses import replace

import pytest

from proxy.config import Upstream as UpstreamOptions
from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Cut, Framing, ScriptedUpstream, json_answer, raw_answer

OK = json_answer({"ok": True})
JSON = (("Content-Type", "application/json"),)
SSE = peers.SSE_HEADERS
CHAT = "/v1/chat/completions"
ONE = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
STREAM = b'{"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}}'


@pytest.mark.parametrize("how", list(Cut))
@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.LENGTH])
async def test_b90_a_broken_answer_is_broken_off_after_what_came(framing: Framing, how: Cut) -> None:
    stream = b"".join(b"data: %d\n\n" % number for number in range(3))
    arrived = asyncio.Event()
    answer = (
        Answer(200, SSE, (stream, b"data: 4"), framing).cut_at(len(stream), how).pausing(len(stream), arrived)
    )
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, STREAM)
        await client.read_head()
        assert await client.read_bytes(len(stream)) == stream
        arrived.set()
        assert await client.read_chunk() is None
        assert client.ended is False


async def test_b90_what_came_before_the_break_reaches_a_client_that_reads_late() -> None:
    body = bytes(range(256)) * 40_000
    answer = Answer(200, JSON, (*peers.slices(body, 100_000), Cut.CLOSE, b"never"), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start("/v1/embeddings", {})
        await client.read_head()
        got = b""
        while (chunk := await client.read_chunk()) is not None:
            got += chunk
        assert (len(got), client.ended) == (len(body), False)
        assert got == body


async def test_b90_a_client_of_http_1_0_does_not_take_a_break_for_the_end() -> None:
    arrived = asyncio.Event()
    answer = Answer(200, JSON, (b"123", arrived, Cut.CLOSE, b"45"), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        await client.read_head()
        assert await client.read_chunk() == b"123"
        arrived.set()
        assert await client.read_chunk() is None
        assert client.ended is False


@pytest.mark.parametrize("target", ["/v1/embeddings", CHAT])
async def test_b103_a_reused_connection_that_was_closed_meanwhile_is_replaced_once(target: str) -> None:
    async with (
        ScriptedUpstream([OK, raw_answer(Cut.CLOSE), OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(target, ONE)).status == 200
        assert (await client.post(target, ONE)).status == 200
        first, stale, repeated = upstream.requests
    assert stale.connection == first.connection != repeated.connection
    assert stale.body == repeated.body == ONE


async def test_b103_a_long_body_that_was_streamed_up_is_gone_and_not_repeated() -> None:
    async with (
        ScriptedUpstream([OK, raw_answer(Cut.CLOSE), OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post("/v1/embeddings", ONE)
        assert (await client.post("/v1/embeddings", b"x" * 100_000)).status == 502
        assert upstream.request_count == 2


async def test_b103_a_call_is_not_repeated_on_a_fresh_connection_or_after_a_byte_of_an_answer() -> None:
    started = raw_answer(b"HTTP/1.1 200 OK\r\nContent-", Cut.CLOSE)
    async with (
        ScriptedUpstream([raw_answer(Cut.CLOSE), OK, started]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        fresh = await client.post(CHAT, ONE)
        await client.post(CHAT, ONE)
        begun = await client.post(CHAT, ONE)
        assert upstream.request_count == 3
    assert (fresh.status, fresh.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert (begun.status, begun.json()["error"]["code"]) == (502, "upstream_closed")


@pytest.mark.parametrize("how", list(Cut))
@pytest.mark.parametrize(
    "said",
    [
        b"H",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    ],
)
async def test_b103_a_reused_connection_that_has_begun_to_answer_is_not_replaced(
    said: bytes, how: Cut
) -> None:
    arrived = asyncio.Event()
    async with (
        ScriptedUpstream([OK, raw_answer(said, arrived, how), OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post("/v1/embeddings", ONE)).status == 200
        await client.start("/v1/embeddings", ONE)
        await upstream.received(2)
        async with RawClient(proxy.url) as other:
            for _ in range(20):  # what has been said is heard meanwhile
                await other.request("GET", "/-/healthz")
        arrived.set()
        response = await client.read()
        assert response.status == 502 or not response.complete
        assert upstream.request_count == 2


LLAMA_CPP = (*JSON, ("Keep-Alive", "timeout=5, max=100"))


@pytest.mark.parametrize("fields", [LLAMA_CPP, JSON], ids=["llama.cpp", "uvicorn"])
@pytest.mark.parametrize("how", list(Cut))
async def test_b103_posts_to_a_server_that_closes_idle_connections_never_fail(
    fields: tuple[tuple[str, str], ...], how: Cut
) -> None:
    """Both close 5 s after an answer, without a word: before the next request, or while it is on its way."""
    answer = json_answer({"ok": True}, headers=fields)
    closing = replace(answer, then=Cut.CLOSE)
    script = [answer, raw_answer(how), answer, closing, answer, raw_answer(how), closing, closing, answer]
    async with (
        ScriptedUpstream(script) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in range(7):
            assert (await client.post(CHAT, ONE)).status == 200
        assert [request.body for request in upstream.requests] == [ONE] * len(script)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_b103_the_library_repeats_nothing_of_its_own(method: str) -> None:
    async with (
        ScriptedUpstream([raw_answer(Cut.CLOSE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request(method, "/v1/models")).status == 502
        assert upstream.request_count == 1


async def test_an_upstream_that_is_not_there_is_a_502_of_our_own() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with proxied(f"http://127.0.0.1:{port}/v1") as proxy, RawClient(proxy.url) as client:
            for target in ("/v1/models", CHAT):
                response = await client.post(target, ONE)
                assert response.status == 502
                assert response.json()["error"]["code"] == "upstream_unreachable"
                assert response.header("content-type") == "application/json"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"])
async def test_an_upstream_that_speaks_something_else_is_a_502_of_our_own(answer: bytes) -> None:
    async with (
        ScriptedUpstream([raw_answer(answer, Cut.CLOSE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models")
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")


@pytest.mark.parametrize("target", ["/v1/embeddings", CHAT])
async def test_an_upstream_that_stays_silent_is_a_504_of_our_own(target: str) -> None:
    silent = Answer(200, JSON, before=asyncio.Event())
    async with (
        ScriptedUpstream([silent]) as upstream,
        proxied(upstream.url, options=UpstreamOptions("", idle_timeout=0.05)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(target, ONE)
        await upstream.until(upstream.requests[0].client_gone.is_set)
    assert (response.status, response.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_an_upstream_that_goes_silent_in_its_answer_is_broken_off() -> None:
    stalled = Answer(200, SSE, (b"data: 1\n\n", asyncio.Event()), Framing.CHUNKED)
    async with (
        ScriptedUpstream([stalled]) as upstream,
        proxied(upstream.url, options=UpstreamOptions("", idle_timeout=0.05)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, STREAM)
    assert (response.body, response.complete) == (b"data: 1\n\n", False)


STATUSES = (400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 529)


BODIES = (b'{"error": {"message": "no"}}', b"<html>\r\n<h1>Too large</h1>", b"")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", BODIES, ids=("json", "html", "empty"))
async def test_b120_b122_b124_b125_errors_of_the_upstream_pass_verbatim_and_are_asked_for_once(
    body: bytes, stream: bool
) -> None:
    fields = (("Content-Type", "text/html"), ("Retry-After", "7"), ("x-ratelimit-remaining", "0"))
    answers = [Answer(status, fields, (body,), reason="Odd") for status in STATUSES]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for status in STATUSES:
            response = await client.post(CHAT, STREAM if stream else ONE)
            assert (response.status, response.body) == (status, body)
            for name, value in fields:
                assert response.header(name) == value
        assert upstream.request_count == len(STATUSES)
