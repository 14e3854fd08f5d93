"""Clients that begin to send a body and then say nothing more."""

import asyncio

import pytest

from tests.edge.proxied import proxied
from tests.peers.client import RawClient
from tests.peers.switching import SwitchingUpstream
from tests.peers.upstream import ScriptedUpstream, json_answer

OK = json_answer({"ok": True})
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("target", [CHAT, "/v1/audio/transcriptions"])
@pytest.mark.parametrize(
    "framing", ["Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
async def test_a_body_that_stops_coming_is_answered_with_408_and_holds_nothing(
    target: str, framing: str
) -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, client_idle_timeout=0.05) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(f"POST {target} HTTP/1.1\r\nHost: h\r\n{framing}".encode())
        response = await client.read()
        assert (response.status, response.header("connection")) == (408, "close")
        assert response.json()["error"]["code"] == "request_timeout"
        await upstream.drained()
        assert not upstream.requests
        (event,) = proxy.events()
        assert (event["reason"], event["status"], event["bytes_in"]) == ("request_timeout", 408, 3)


async def test_a_stalled_body_is_not_sent_again_over_a_fresh_connection() -> None:
    async with ScriptedUpstream([OK]) as upstream, proxied(upstream.url, client_idle_timeout=0.05) as proxy:
        async with RawClient(proxy.url) as client:
            assert (await client.post("/v1/embeddings", {})).status == 200
            await client.send(b"POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc")
            assert (await client.read()).status == 408
        assert upstream.connections == 1


async def test_a_client_that_waits_for_its_answer_is_not_stalled() -> None:
    gate = asyncio.Event()
    answer = json_answer({"ok": True}).pausing(0, gate)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, client_idle_timeout=0.01) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start("/v1/embeddings", {})
        assert (await client.read_head()).status == 200
        async with RawClient(proxy.url) as other:
            for _ in range(50):
                await other.request("GET", "/-/healthz")
        gate.set()
        assert await client.read_chunk() == b'{"ok": true}'


async def test_an_upstream_that_reads_slowly_is_no_fault_of_the_client() -> None:
    """Only a wait for the client's next bytes counts, and there is none while the upstream takes nothing."""
    much, patience = b"x" * 40_000_000, 0.3
    async with (
        SwitchingUpstream(answer=b"") as upstream,
        proxied(upstream.url, client_idle_timeout=patience) as proxy,
        RawClient(proxy.url) as client,
        RawClient(proxy.url) as other,
    ):
        client.hand(b"POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(much), much))
        line = await upstream.line()
        clock = asyncio.get_running_loop().time
        end = clock() + 2 * patience
        while clock() < end:
            await other.request("GET", "/-/healthz")
        assert client.untaken > 0
        assert len(await line.read(len(much))) == len(much)
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert (await client.read()).status == 200
