"""Who leaves when: clients at any moment, and the process when it is told to."""

import asyncio
import json
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.context.policy import ModelPolicy
from tests.edge.proxied import Proxied, proxied
from tests.peers import upstream as peers
from tests.peers.client import Disconnected, RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, json_answer

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
JSON = (("Content-Type", "application/json"),)
ASKED = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
LONG = json.dumps(
    {
        "model": "m",
        "messages": [
            {"role": role, "content": f"{role} {'word ' * 200}"} for role in ("user", "assistant") * 20
        ]
        + [{"role": "user", "content": "And now?"}],
    }
).encode()
COMPACTED = ModelPolicy(window=4000, reserve_output=500, strategies=("summarize", "drop"))


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_a_client_that_leaves_before_the_answer_ends_the_upstreams_work(target: str) -> None:
    async with ScriptedUpstream([Answer(before=asyncio.Event())]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start(target, ASKED)
            request = await upstream.received(1)
        await upstream.until(request.client_gone.is_set)
        await upstream.drained()
    (event,) = proxy.events()
    assert (event["reason"], event["status"]) == ("client_gone", None)


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_a_client_that_leaves_in_the_answer_ends_the_upstreams_work(target: str) -> None:
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", asyncio.Event()), Framing.CHUNKED)
    async with ScriptedUpstream([stream]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start(target, ASKED)
            await client.read_head()
            await client.read_chunk()
            await client.reset()
        await upstream.until(upstream.requests[0].client_gone.is_set)
        await upstream.drained()
    (event,) = proxy.events()
    assert (event["reason"], event["status"], event["complete"]) == ("client_gone", 200, False)


async def test_a_client_that_leaves_in_its_own_body_ends_the_call() -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.send(b"POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc")
            await upstream.until(lambda: upstream.open_connections == 1)
        await upstream.drained()
    assert not upstream.requests


async def test_a_client_that_reads_slowly_slows_the_upstream_down() -> None:
    body = b"x" * 40_000_000
    answer = Answer(200, JSON, peers.slices(body, 1_000_000))
    async with ScriptedUpstream([answer]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start("/v1/embeddings", ASKED)
            assert (await client.read_head()).status == 200
            assert await client.read_chunk()
        await upstream.drained()
    (event,) = proxy.events()
    assert event["reason"] == "client_gone"
    assert event["bytes_out"] < len(body) / 4


@pytest.mark.parametrize("seed", range(3))
async def test_b106_clients_that_leave_at_random_moments_leave_nothing_behind(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a game, not a secret
    stream = tuple(b"data: %d\n\n" % number for number in range(30))
    whole = peers.completion(peers.text_message("Hello."), usage=peers.usage(50, 5))

    def answer(request: peers.Request) -> Answer:
        if dice.random() < 0.3 or request.json()["messages"][0]["role"] == "system":  # the latter a side call
            return json_answer(whole)
        return Answer(200, peers.SSE_HEADERS, (*stream, asyncio.Event()), Framing.CHUNKED)

    async def visit(url: str, steps: int, body: bytes) -> None:
        async with RawClient(url) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            sent = dice.choice([0, 20, len(head), len(head) + 30, len(head) + len(body)])
            await client.send((head + body)[:sent])
            if sent == len(head) + len(body) and steps:
                await client.read_head()
                await client.read_bytes(20 * (steps - 1))
            await (client.reset() if dice.random() < 0.5 else client.disconnect())

    tasks_before = asyncio.all_tasks()
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url, policy=COMPACTED) as proxy,
    ):
        moments = [(dice.randrange(6), dice.choice([ASKED, LONG])) for _ in range(60)]
        await asyncio.gather(*(visit(proxy.url, *moment) for moment in moments))
        # All that is still open waits for a gate that never opens, unless the proxy has closed it.
        await upstream.until(lambda: all(_is_over(request) for request in upstream.requests))
        async with RawClient(proxy.url) as client:
            assert (await client.request("GET", "/-/healthz")).status == 200
        assert not [line for line in proxy.log.splitlines() if json.loads(line)["level"] == "error"]
    assert asyncio.all_tasks() == tasks_before


def _is_over(request: peers.Request) -> bool:
    return request.answered.is_set() or request.client_gone.is_set()


@dataclass
class Streaming:
    """A proxy that is in the middle of a stream; `gate` lets the stream end, `leave` tells the process to."""

    proxy: Proxied
    client: RawClient
    gate: asyncio.Event
    leave: Callable[[], asyncio.Task[object]]


@asynccontextmanager
async def streaming(grace: float = 5.0) -> AsyncIterator[Streaming]:
    gate = asyncio.Event()
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", gate, b"data: [DONE]\n\n"), Framing.CHUNKED)
    async with ScriptedUpstream([stream]) as upstream:
        opened = proxied(upstream.url, grace=grace)
        proxy = await opened.__aenter__()

        async def close() -> object:
            return await opened.__aexit__(None, None, None)

        async with RawClient(proxy.url) as client:
            await client.start(CHAT, ASKED)
            await client.read_head()
            assert await client.read_chunk() == b"data: 1\n\n"
            yield Streaming(proxy, client, gate, lambda: asyncio.create_task(close()))
        await upstream.drained()


async def test_leaving_lets_a_running_stream_end_and_refuses_new_connections() -> None:
    async with streaming() as under_way:
        client, url = under_way.client, under_way.proxy.url
        async with RawClient(url) as other:
            assert (await other.request("GET", "/-/healthz")).header("connection") is None
            leaving = under_way.leave()
            await until_refused(url)
            last = await other.request("GET", "/-/healthz")
            assert (last.status, last.header("connection")) == (200, "close")
            assert await other.closed_by_server()
        under_way.gate.set()
        assert await client.read_chunk() == b"data: [DONE]\n\n"
        assert (await client.read_chunk(), client.ended) == (None, True)
        assert await client.closed_by_server()
        await leaving


async def test_a_kept_connection_brings_its_last_request_after_the_process_was_told_to_stop() -> None:
    async with ScriptedUpstream(otherwise=json_answer({})) as upstream:
        open_proxy = proxied(upstream.url)
        proxy = await open_proxy.__aenter__()
        async with RawClient(proxy.url) as client:
            assert (await client.post(CHAT, ASKED)).header("connection") is None
            leaving = asyncio.create_task(open_proxy.__aexit__(None, None, None))
            await until_refused(proxy.url)
            last = await client.post(CHAT, ASKED)
            assert (last.status, last.header("connection")) == (200, "close")
            assert await client.closed_by_server()
        await leaving


async def test_a_connection_that_waits_to_be_accepted_at_the_stop_is_answered() -> None:
    async with ScriptedUpstream(otherwise=json_answer({})) as upstream:
        open_proxy = proxied(upstream.url)
        proxy = await open_proxy.__aenter__()
        # Without the loop, which therefore cannot have accepted it.
        with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as waiting:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(ASKED)}\r\n\r\n"
            waiting.sendall(head.encode() + ASKED)
            await open_proxy.__aexit__(None, None, None)
            assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_an_idle_connection_is_closed_while_a_stream_still_runs_and_swallows_no_request() -> None:
    async with streaming(grace=20.0) as under_way:
        url = under_way.proxy.url
        async with RawClient(url) as idle, RawClient(url) as kept:
            assert (await kept.request("GET", "/-/healthz")).status == 200
            leaving = under_way.leave()
            assert await idle.closed_by_server()
            assert await kept.closed_by_server()
        under_way.gate.set()
        assert await under_way.client.read_chunk() == b"data: [DONE]\n\n", "before the grace time was over"
        await leaving


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """No file can be opened besides those that are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_process_without_a_descriptor_left_ends_as_any_other() -> None:
    async with streaming() as under_way:
        with socket.create_connection(("127.0.0.1", int(under_way.proxy.url.rpartition(":")[2]))):
            with no_descriptor_left():
                leaving = under_way.leave()
                await asyncio.wait([leaving], timeout=0.1)
                under_way.gate.set()
                assert await under_way.client.read_chunk() == b"data: [DONE]\n\n"
            await leaving


async def test_an_idle_connection_does_not_keep_the_process_for_long() -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url, grace=0.05) as proxy:
        client = RawClient(proxy.url)
        await client.__aenter__()
    assert await client.closed_by_server()
    await client.disconnect()


async def test_leaving_breaks_off_what_does_not_end_within_the_grace_time() -> None:
    async with streaming(grace=0.05) as under_way:
        await under_way.leave()
        assert (await under_way.client.read_chunk(), under_way.client.ended) == (None, False)
    (event,) = under_way.proxy.events()
    assert event["reason"] == "stopped"


async def until_refused(url: str) -> None:
    """Tries to connect until nobody listens any more."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with RawClient(url) as client:
                    await client.request("GET", "/-/healthz")
            except (ConnectionError, Disconnected):
                return


SERVING = """
import asyncio, sys
from proxy.config import Address, Config, Discovery, LogFormat, LogOptions, Upstream
from proxy.edge import logs
from proxy.edge.metrics import Metrics
from proxy.edge.server import Parts
from proxy.edge.service import serve
from tests.edge.proxied import Lettered, memories

options = LogOptions(format=LogFormat.JSON)
config = Config(upstream=Upstream(sys.argv[1]), listen=Address("127.0.0.1", 0), log=options,
    discovery=Discovery(enabled=False))
remembers = memories()
parts = Parts(Lettered(), lambda upstream: remembers, logs.build(options), Metrics(), lambda: True)
asyncio.run(serve(config, parts, grace=20.0))
"""


@asynccontextmanager
async def process(base_url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The proxy as a process of its own, and the URL it told in its log."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVING, base_url, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    assert started.stderr is not None
    try:
        async with asyncio.timeout(20):
            told = json.loads(await started.stderr.readline())
        yield started, told["url"]
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_b112_a_signal_lets_the_stream_end_and_the_process_leaves_with_zero(
    which: signal.Signals,
) -> None:
    gate = asyncio.Event()
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", gate, b"data: [DONE]\n\n"), Framing.CHUNKED)
    async with (
        ScriptedUpstream([stream]) as upstream,
        process(upstream.base_url) as (running, url),
        RawClient(url) as client,
    ):
        await client.start(CHAT, ASKED)
        await client.read_head()
        assert await client.read_chunk() == b"data: 1\n\n"
        running.send_signal(which)
        await until_refused(url)
        gate.set()
        assert await client.read_chunk() == b"data: [DONE]\n\n"
        assert (await client.read_chunk(), client.ended) == (None, True)
        async with asyncio.timeout(20):
            assert await running.wait() == 0


async def test_b112_a_second_signal_ends_the_process_at_once() -> None:
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", asyncio.Event()), Framing.CHUNKED)
    async with (
        ScriptedUpstream([stream]) as upstream,
        process(upstream.base_url) as (running, url),
        RawClient(url) as client,
    ):
        await client.start(CHAT, ASKED)
        await client.read_head()
        running.send_signal(signal.SIGTERM)
        await until_refused(url)
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await running.wait() == -signal.SIGTERM
