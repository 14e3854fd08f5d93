"""WebSockets: the handshake on its way up, the answer on its way down, and the bytes behind it, both ways."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvloop
from aiohttp import web

from proxy.config import Secret
from proxy.config import Upstream as UpstreamOptions
from tests.edge.proxied import Proxied, proxied
from tests.peers.client import Disconnected, RawClient
from tests.peers.switching import SWITCH, Line, SwitchingUpstream
from tests.peers.upstream import ScriptedUpstream, bytes_answer, json_answer, raw_answer

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
REALTIME = "/v1/realtime?model=m%20x"
FRAMES = bytes(range(256)) * 40
"""No frames at all: whatever the two ends say to each other is theirs."""


def handshake(*fields: tuple[str, str], method: str = "GET", target: str = REALTIME) -> bytes:
    """The request of RFC 6455 section 1.2, with more fields."""
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: h",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
    ]
    lines += [f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"]
    lines += [f"{name}: {value}" for name, value in fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def tunnelled(proxy: Proxied, upstream: SwitchingUpstream) -> AsyncIterator[tuple[RawClient, Line]]:
    """A client and the line that it has been given."""
    async with RawClient(proxy.url) as client:
        await client.send(handshake())
        assert (await client.read_head()).status == 101
        line = await upstream.line()
        yield client, line
        line.close()


async def test_the_handshake_goes_up_as_it_came_but_for_the_hop() -> None:
    fields = [
        ("Sec-WebSocket-Protocol", "realtime, other"),
        ("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits"),
        ("Origin", "https://app.example"),
        ("Authorization", "Bearer mine"),
        ("X-Context-Mode", "off"),
        ("Proxy-Authorization", "Basic x"),
    ]
    async with (
        SwitchingUpstream() as upstream,
        proxied(upstream.url + "/v1", options=UpstreamOptions("", Secret("configured"))) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake(*fields))
        await client.read_head()
        line = await upstream.line()
        line.close()
    assert line.fields == [
        b"GET /v1/realtime?model=m%20x HTTP/1.1",
        b"Host: 127.0.0.1:%d" % upstream.port,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: " + KEY.encode(),
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Protocol: realtime, other",
        b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        b"Origin: https://app.example",
        b"Authorization: Bearer mine",
    ]


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ((), True),
        ((("Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.mine"),), False),
        ((("api-key", "mine"),), False),
    ],
)
async def test_b134_the_configured_key_goes_up_only_where_the_client_has_none(
    fields: tuple[tuple[str, str], ...], added: bool
) -> None:
    async with (
        SwitchingUpstream() as upstream,
        proxied(upstream.url, options=UpstreamOptions("", Secret("configured"))) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake(*fields))
        await client.read_head()
        line = await upstream.line()
        line.close()
    assert (b"Authorization: Bearer configured" in line.fields) is added


async def test_the_101_comes_down_with_its_fields_and_without_a_body() -> None:
    answer = (
        SWITCH[:-2] + b"sec-websocket-protocol: realtime\r\nX-A: 1\r\nX-A: 2\r\nKeep-Alive: timeout=5\r\n"
    )
    async with (
        SwitchingUpstream(answer + b"Content-Length: 5\r\n\r\n") as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake())
        head = await client.read_head()
        (await upstream.line()).close()
    assert (head.status, head.reason) == (101, "Switching Protocols")
    assert head.headers == (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ("sec-websocket-protocol", "realtime"),
        ("X-A", "1"),
        ("X-A", "2"),
    )


async def test_bytes_pass_both_ways_as_they_are() -> None:
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:
        async with tunnelled(proxy, upstream) as (client, line):
            await client.send(FRAMES)
            assert await line.read(len(FRAMES)) == FRAMES
            for piece in (b"\x81\x05Hello", b"\x89\x00", b"GET / HTTP/1.1\r\n\r\n", FRAMES):
                line.send(piece)
                assert await client.read_raw(len(piece)) == piece
        assert await line.rest() == b""
    (event,) = proxy.events()
    assert (event["status"], event["complete"], event["path"]) == (101, True, "/v1/realtime")
    assert event["bytes_in"] == len(FRAMES)
    assert event["bytes_out"] == len(FRAMES) + 7 + 2 + 18
    assert "reason" not in event


async def test_what_either_side_says_with_its_handshake_is_not_lost() -> None:
    async with (
        SwitchingUpstream(SWITCH + b"\x89\x00early") as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake() + b"eager")
        await client.read_head()
        assert await client.read_raw(7) == b"\x89\x00early"
        line = await upstream.line()
        assert await line.read(5) == b"eager"
        line.close()


async def test_an_upstream_that_says_goodbye_at_once_is_heard() -> None:
    async with (
        SwitchingUpstream(SWITCH + b"\x88\x02\x03\xf0", closes=True) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake())
        assert (await client.read_head()).status == 101
        assert await client.read_raw(4) == b"\x88\x02\x03\xf0"
        assert await client.closed_by_server()


@pytest.mark.parametrize("status", [200, 401, 404, 426, 503])
async def test_a_refusal_is_relayed_and_ends_the_connection(status: int) -> None:
    fields = (
        ("Sec-WebSocket-Version", "13, 8"),
        ("Content-Type", "text/plain"),
        ("WWW-Authenticate", "Bearer"),
    )
    refusal = bytes_answer(b"no, thank you", status=status, headers=fields)
    async with (
        ScriptedUpstream([refusal]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake())
        response = await client.read()
        assert (response.status, response.body) == (status, b"no, thank you")
        assert response.head.headers == (*fields, ("Content-Length", "13"), ("Connection", "close"))
        assert await client.closed_by_server()
        await upstream.drained()


@pytest.mark.parametrize("refusal", [200, 400, 401])
async def test_what_is_sent_behind_a_refused_handshake_is_no_request(refusal: int) -> None:
    async with (
        ScriptedUpstream([json_answer({}, status=refusal)], otherwise=json_answer({})) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake() + b"DELETE /v1/files/f HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.read()).status == refusal
        assert await client.closed_by_server()
        assert [request.method for request in upstream.requests] == ["GET"]
    assert len(proxy.events()) == 1


async def test_what_is_sent_behind_a_handshake_waits_for_its_answer_within_bounds() -> None:
    gate = asyncio.Event()
    refusal = raw_answer(gate, b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
    async with (
        ScriptedUpstream([refusal]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake())
        await upstream.received(1)
        client.hand(b"x" * 40_000_000)
        await many_rounds(proxy)
        assert client.untaken > 20_000_000
        gate.set()
        assert (await client.read_head()).status == 403


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket, h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
async def test_a_switch_to_something_else_is_no_switch(answer: bytes) -> None:
    async with (
        SwitchingUpstream(answer) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(handshake())
        response = await client.read()
        assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")
        assert await (await upstream.line()).rest() == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        handshake(method="POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n{}"),
        handshake(("Content-Length", "2")) + b"{}",
        handshake().replace(b"HTTP/1.1", b"HTTP/1.0"),
        handshake().replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        handshake().replace(b"Upgrade: websocket", b"Upgrade: websocket, h2c"),
        handshake().replace(b"keep-alive, Upgrade", b"keep-alive"),
    ],
)
async def test_what_is_no_proper_handshake_is_a_plain_request(request_bytes: bytes) -> None:
    async with (
        ScriptedUpstream([json_answer({})]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(request_bytes)
        assert (await client.read()).status == 200
        assert upstream.requests[0].header("upgrade") is None
        assert upstream.requests[0].body in (b"", b"{}")


async def test_a_client_that_leaves_ends_the_upstreams_connection() -> None:
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:
        for leave in (RawClient.disconnect, RawClient.reset):
            async with tunnelled(proxy, upstream) as (client, line):
                await client.send(b"\x88\x80mask")
                await leave(client)
                assert await line.rest() in (b"\x88\x80mask", b"")
    assert [event["complete"] for event in proxy.events()] == [True, True]


async def test_an_upstream_that_leaves_ends_the_clients_connection_after_its_last_word() -> None:
    last = b"\x88\x02\x03\xe8" * 500_000
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:
        async with tunnelled(proxy, upstream) as (client, line):
            line.send(last)
            line.close()
            assert await client.read_raw(len(last)) == last
            assert await client.closed_by_server()
        async with tunnelled(proxy, upstream) as (client, line):
            line.writer.transport.abort()
            assert await client.closed_by_server()


async def test_a_client_that_left_unnoticed_while_it_was_not_read_does_no_harm() -> None:
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:
        async with tunnelled(proxy, upstream) as (client, line):
            client.hand(b"x" * 20_000_000)
            await many_rounds(proxy)
            await client.reset()
            line.writer.write_eof()  # the proxy is to pass this on to a connection that is no more
            await line.rest()
        async with RawClient(proxy.url) as other:
            assert (await other.request("GET", "/-/healthz")).status == 200
        assert not [line for line in proxy.log.splitlines() if json.loads(line)["level"] == "error"]


async def test_a_client_that_closes_its_half_still_hears_the_answer() -> None:
    async with (
        SwitchingUpstream() as upstream,
        proxied(upstream.url) as proxy,
        tunnelled(proxy, upstream) as (client, line),
    ):
        await client.send(b"\x88\x80mask")
        client.send_no_more()
        assert await line.rest() == b"\x88\x80mask"
        line.send(b"\x88\x00")
        line.close()
        assert await client.read_raw(2) == b"\x88\x00"
        assert await client.closed_by_server()


async def test_an_upstream_that_does_not_care_that_the_client_left_is_broken_off() -> None:
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:
        async with tunnelled(proxy, upstream) as (client, line):
            client.send_no_more()
            assert await line.rest() == b""  # and yet this upstream does not close
            assert await client.closed_by_server()
        (event,) = proxy.events()
        assert event["complete"]


async def test_a_reader_that_is_slow_slows_the_other_side_down() -> None:
    much = b"x" * 40_000_000
    async with (
        SwitchingUpstream() as upstream,
        proxied(upstream.url) as proxy,
        tunnelled(proxy, upstream) as (client, line),
    ):
        client.hand(much)
        line.send(much)
        await many_rounds(proxy)
        assert client.untaken > len(much) / 2
        assert line.untaken > len(much) / 2
        assert await line.read(len(much)) == much
        assert await client.read_raw(len(much)) == much


async def many_rounds(proxy: Proxied) -> None:
    """Time for whatever can move to move: in each round the proxy reads all that it is ready to read."""
    async with RawClient(proxy.url) as client:
        for _ in range(300):
            await client.request("GET", "/-/healthz")


async def test_leaving_lets_a_tunnel_go_on_and_then_ends_it() -> None:
    tasks_before = asyncio.all_tasks()
    async with SwitchingUpstream() as upstream:
        open_proxy = proxied(upstream.url, grace=0.2)
        proxy = await open_proxy.__aenter__()
        async with tunnelled(proxy, upstream) as (client, line):
            leaving = asyncio.create_task(open_proxy.__aexit__(None, None, None))
            await until_refused(proxy.url)
            await client.send(b"still")
            assert await line.read(5) == b"still"
            line.send(b"there")
            assert await client.read_raw(5) == b"there"
            assert await client.closed_by_server()
            assert await line.rest() == b""
            await leaving
    (event,) = [event for event in proxy.events() if event["path"] == "/v1/realtime"]
    assert (event["reason"], event["complete"], event["bytes_in"]) == ("stopped", False, 5)
    assert asyncio.all_tasks() == tasks_before


async def until_refused(url: str) -> None:
    """Tries to connect until nobody listens any more."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with RawClient(url) as client:
                    await client.request("GET", "/-/healthz")
            except (ConnectionError, Disconnected):
                return


async def test_hundreds_of_tunnels_leave_nothing_behind() -> None:
    tasks_before = asyncio.all_tasks()
    async with SwitchingUpstream() as upstream, proxied(upstream.url) as proxy:

        async def visit(number: int) -> None:
            async with RawClient(proxy.url) as client:
                await client.send(handshake() + b"%04d" % number)
                assert (await client.read_head()).status == 101
                if number % 3 == 0:
                    await client.reset()

        await asyncio.gather(*(visit(number) for number in range(300)))
        for _ in range(300):
            assert len(await (await upstream.line()).rest()) in (0, 4)
        async with RawClient(proxy.url) as client:
            assert (await client.request("GET", "/-/healthz")).status == 200
        assert not [line for line in proxy.log.splitlines() if json.loads(line)["level"] == "error"]
    assert asyncio.all_tasks() == tasks_before


async def test_an_upstream_that_is_not_there_is_a_502_of_our_own() -> None:
    async with ScriptedUpstream() as upstream:
        gone = upstream.url
    async with proxied(gone) as proxy, RawClient(proxy.url) as client:
        await client.send(handshake())
        response = await client.read()
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_unreachable")


async def echo(request: web.Request) -> web.WebSocketResponse:
    """A real server of WebSockets: says back what it hears, and leaves with the code that it is told."""
    answer = web.WebSocketResponse(protocols=("realtime",), compress=True)
    await answer.prepare(request)
    async for message in answer:
        if message.type is aiohttp.WSMsgType.BINARY:
            await answer.send_bytes(message.data)
        elif message.data.isdigit():
            await answer.close(code=int(message.data), message=b"as you wish")
        else:
            await answer.send_str(message.data)
    return answer


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """The base URL of that server."""
    application = web.Application()
    application.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_real_client_and_a_real_server_agree_on_everything_through_the_proxy() -> None:
    async with (
        echoing() as base_url,
        proxied(base_url) as proxy,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{proxy.url}/v1/realtime", protocols=("x", "realtime"), compress=15) as socket,
    ):
        assert (socket.protocol, socket.compress) == ("realtime", 15)
        for text in ("hello", "x" * 1_000_000, ""):
            await socket.send_str(text)
            assert await socket.receive_str() == text
        await socket.send_bytes(FRAMES)
        assert await socket.receive_bytes() == FRAMES
        await socket.ping(b"are you there")
        await socket.send_str("4001")
        closing = await socket.receive()
        assert (closing.type, closing.data, closing.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "as you wish")


SCENES = (
    test_bytes_pass_both_ways_as_they_are,
    test_what_either_side_says_with_its_handshake_is_not_lost,
    test_an_upstream_that_says_goodbye_at_once_is_heard,
    test_a_client_that_leaves_ends_the_upstreams_connection,
    test_an_upstream_that_leaves_ends_the_clients_connection_after_its_last_word,
    test_a_client_that_closes_its_half_still_hears_the_answer,
    test_an_upstream_that_does_not_care_that_the_client_left_is_broken_off,
    test_a_reader_that_is_slow_slows_the_other_side_down,
    test_leaving_lets_a_tunnel_go_on_and_then_ends_it,
    test_hundreds_of_tunnels_leave_nothing_behind,
    test_a_real_client_and_a_real_server_agree_on_everything_through_the_proxy,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.removeprefix("test_"))
def test_the_faster_loop_carries_as_well(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())
