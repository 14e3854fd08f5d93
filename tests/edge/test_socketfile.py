"""Unix sockets: the proxy behind one, an upstream behind one, and the file's own life."""

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import uvloop

from proxy.config import Secret, SideCalls, SocketFile
from proxy.config import Upstream as UpstreamOptions
from proxy.errors import CannotListen
from tests.edge.proxied import Proxied, proxied
from tests.edge.test_lifetime import COMPACTED, LONG
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.switching import SWITCH
from tests.peers.upstream import ScriptedUpstream, json_answer, raw_answer

OK = json_answer({"ok": True})
CHAT = "/v1/chat/completions"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a socket has a hundred characters at most."""
    with TemporaryDirectory(prefix="transom-") as name:
        yield Path(name)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


async def is_served(proxy: Proxied) -> bool:
    async with RawClient(proxy.url) as client:
        return (await client.request("GET", "/v1/models")).status == 200


async def both_ways(folder: Path) -> None:
    async with (
        ScriptedUpstream(otherwise=OK, at=folder / "up%stream.sock") as upstream,
        proxied(upstream.base_url, listen=SocketFile(str(folder / "proxy.sock"))) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert proxy.url == f"unix:{folder}/proxy.sock"
        assert (await client.request("GET", "/v1/models?a=%2F")).status == 200
        assert (await client.post(CHAT, {"model": "m", "messages": []})).status == 200
        assert [request.target for request in upstream.requests] == ["/v1/models?a=%2F", CHAT]
        assert upstream.requests[0].header("host") == "localhost"
        assert upstream.connections == 1


async def test_requests_pass_from_one_socket_to_another(folder: Path) -> None:
    await both_ways(folder)


def test_requests_pass_on_the_faster_loop_as_well(folder: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(both_ways(folder))
    assert os.listdir(folder) == ["up%stream.sock"]  # the peer's own


async def test_a_websocket_passes_from_one_socket_to_another(folder: Path) -> None:
    answer = raw_answer(SWITCH, b"\x81\x05Hello", peers.Cut.CLOSE)
    async with (
        ScriptedUpstream([answer], at=folder / "up.sock") as upstream,
        proxied(upstream.base_url, listen=SocketFile(str(folder / "proxy.sock"))) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(
            b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert (await client.read_head()).status == 101
        assert await client.read_raw(7) == b"\x81\x05Hello"
        assert await client.closed_by_server()


async def test_a_stale_connection_to_a_socket_is_replaced_as_any_other(folder: Path) -> None:
    script = [OK, raw_answer(peers.Cut.CLOSE), OK]
    async with ScriptedUpstream(script, at=folder / "up.sock") as upstream:
        async with proxied(upstream.base_url) as proxy, RawClient(proxy.url) as client:
            assert [(await client.post("/v1/embeddings", {})).status for _ in range(2)] == [200, 200]
        assert upstream.request_count == 3


async def test_side_calls_go_to_a_socket_of_their_own(folder: Path) -> None:
    summary = json_answer(peers.completion(peers.text_message("They talked."), usage=peers.usage(500, 20)))
    answer = json_answer(peers.completion(peers.text_message("Hello."), usage=peers.usage(50, 5)))
    async with (
        ScriptedUpstream([answer]) as upstream,
        ScriptedUpstream([summary], at=folder / "side.sock") as side,
        proxied(upstream.base_url, policy=COMPACTED, side_calls=SideCalls(base_url=side.base_url)) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(CHAT, LONG)).status == 200
        assert (side.request_count, upstream.request_count) == (1, 1)
        assert side.requests[0].target == CHAT


async def test_an_upstream_whose_socket_is_not_there_is_a_502_of_our_own(folder: Path) -> None:
    base_url = ScriptedUpstream(at=folder / "gone.sock").base_url
    async with proxied(base_url) as proxy, RawClient(proxy.url) as client:
        response = await client.request("GET", "/v1/models")
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert str(folder) not in response.body.decode()


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o640), (0o000, 0o660), (0o077, 0o600), (0o007, 0o660)])
async def test_b134_the_file_is_never_open_to_others(folder: Path, mask: int, mode: int) -> None:
    path = folder / "proxy.sock"
    with umask(mask):
        async with ScriptedUpstream() as upstream, proxied(upstream.url, listen=SocketFile(str(path))):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert os.umask(mask) == mask
    assert not path.exists()


async def test_b134_a_key_behind_a_socket_is_not_open_to_the_network(folder: Path) -> None:
    options = UpstreamOptions("", Secret("configured"))
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, options=options, listen=SocketFile(str(folder / "proxy.sock"))) as proxy,
    ):
        assert not proxy.events("key_is_open_to_the_network")


async def test_what_a_dead_process_has_left_is_replaced(folder: Path) -> None:
    path = folder / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, listen=SocketFile(str(path))) as proxy,
    ):
        assert await is_served(proxy)
    assert not path.exists()


async def test_a_socket_that_is_listened_on_is_left_alone(folder: Path) -> None:
    path = folder / "proxy.sock"
    listen = SocketFile(str(path))
    async with ScriptedUpstream([OK]) as upstream, proxied(upstream.url, listen=listen) as proxy:
        with pytest.raises(CannotListen, match="another process listens there"):
            async with proxied(upstream.url, listen=listen):
                pass
        assert await is_served(proxy)


async def test_a_socket_whose_queue_is_full_is_one_that_is_listened_on(folder: Path) -> None:
    path = folder / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(CannotListen, match="another process listens there"):
            async with proxied("http://127.0.0.1:9", listen=SocketFile(str(path))):
                pass


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_a_file_that_is_no_socket_is_never_removed(folder: Path, kind: str) -> None:
    path = folder / "proxy.sock"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (folder / "mine").write_text("mine")
        path.symlink_to(folder / "mine")
    else:
        path.write_text("mine")
    with pytest.raises(CannotListen, match="a file that is no socket is there"):
        async with proxied("http://127.0.0.1:9", listen=SocketFile(str(path))):
            pass
    assert path.exists()


async def test_a_socket_that_another_process_made_meanwhile_is_not_removed(folder: Path) -> None:
    path = folder / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as successor:
        async with ScriptedUpstream() as upstream, proxied(upstream.url, listen=SocketFile(str(path))):
            path.unlink()
            successor.bind(str(path))
        assert path.is_socket()


@pytest.mark.parametrize("name", ["missing/proxy.sock", "x" * 200])
async def test_a_place_where_no_socket_can_be_is_told(folder: Path, name: str) -> None:
    with pytest.raises(CannotListen, match=r"Cannot listen on unix:.*Name another address"):
        async with proxied("http://127.0.0.1:9", listen=SocketFile(str(folder / name))):
            pass
