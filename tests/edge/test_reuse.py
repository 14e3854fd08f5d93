"""Connections to the upstream that are kept: nothing of one call is taken for the answer to the next."""

import asyncio

import pytest

from proxy.config import Upstream as UpstreamOptions
from tests.edge.proxied import proxied
from tests.peers.client import RawClient
from tests.peers.upstream import Piece, ScriptedUpstream, bytes_answer, json_answer, raw_answer

OK = json_answer({"ok": True})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
OTHERS = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsecret!!"
PATIENT = UpstreamOptions("http://", idle_timeout=0.2)


@pytest.mark.parametrize(
    ("came", "comes"),
    [
        (HEAD + b"{}" + OTHERS, b""),
        (HEAD, b"{}" + OTHERS),
        (HEAD + b"{}", OTHERS),
        (HEAD + b"{}", OTHERS[:30]),
        (HEAD + b"{}", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n" + OTHERS),
        (EMPTY + OTHERS, b""),
        (EMPTY, OTHERS),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n" % len(OTHERS), OTHERS),
    ],
)
async def test_what_comes_behind_an_answer_is_nobodys(came: bytes, comes: bytes) -> None:
    heard = asyncio.Event()
    pieces: tuple[Piece, ...] = (came, heard, comes)
    async with ScriptedUpstream([raw_answer(*pieces), OK]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start("/v1/embeddings", {})
            await client.read_head()
            heard.set()
            while await client.read_chunk() is not None:
                pass
            first = await upstream.received(1)
            await upstream.until(lambda: first.answered.is_set() or first.client_gone.is_set())
        async with RawClient(proxy.url) as other:
            assert (await other.post("/v1/embeddings", {})).json() == {"ok": True}
        assert upstream.connections == 2


async def test_a_connection_over_which_nothing_else_came_is_kept() -> None:
    async with ScriptedUpstream(otherwise=OK) as upstream, proxied(upstream.url) as proxy:
        for _ in range(3):
            async with RawClient(proxy.url) as client:
                assert (await client.post("/v1/embeddings", {})).status == 200
        assert upstream.connections == 1


@pytest.mark.parametrize("target", ["/v1/embeddings", "/v1/chat/completions"])
@pytest.mark.parametrize("size", [10, 100_000])
async def test_an_upstream_that_says_no_more_than_that_it_goes_on_is_given_up(target: str, size: int) -> None:
    silent = raw_answer(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", asyncio.Event())
    async with (
        ScriptedUpstream([silent]) as upstream,
        proxied(upstream.url, options=PATIENT) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(target, b"x" * size)).status == 504


@pytest.mark.parametrize("name", ["Content-Length ", "Transfer-Encoding ", "X-Any\t"])
async def test_a_field_that_two_readers_would_take_for_different_ones_is_not_passed_on(name: str) -> None:
    answer = raw_answer(f"HTTP/1.1 200 OK\r\n{name}: 2\r\nContent-Type: text/plain\r\n\r\n".encode())
    async with (
        ScriptedUpstream([answer, bytes_answer(b"")]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post("/v1/embeddings", {})
        assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")
