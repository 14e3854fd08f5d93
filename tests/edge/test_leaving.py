"""A client that leaves ends what is done for it, whatever that is just then, and leaves nothing behind.

Rules. What is under way waits at a gate that nobody opens, so that only the leaving can end it. A side call alone goes
on, since whoever comes back needs its summary.
"""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import uvloop

from proxy.config import SideCalls
from proxy.context.conversation import Message
from proxy.context.edits import Edits
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import Size
from proxy.edge.memories import Memories
from proxy.edge.performer import Measures, Remembers
from proxy.exchange import Memory
from tests.edge.proxied import Lettered, Proxied, memories, proxied
from tests.peers import upstream as peers
from tests.peers.client import Disconnected, RawClient, request_bytes
from tests.peers.upstream import Answer, Cut, Framing, ScriptedUpstream, json_answer, raw_answer

CHAT = "/v1/chat/completions"
FILES = "/v1/files"
TALK = [{"role": role, "content": f"{role} {'word ' * 200}"} for role in ("user", "assistant") * 20]
LONG = json.dumps({"model": "m", "messages": [*TALK, {"role": "user", "content": "And now?"}]}).encode()
SHORT = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
STREAM = SHORT[:-1] + b', "stream": true}'
WHOLE = json_answer(
    peers.completion(
        peers.text_message("The user said word, the assistant said word."), usage=peers.usage(50, 5)
    )
)
SUMMARISED = ModelPolicy(window=4000, reserve_output=500, strategies=("summarize", "drop"))
DROPPED = ModelPolicy(window=4000, reserve_output=500, strategies=("drop",))
PEEKED = ModelPolicy(window=10, reserve_output=1, strategies=("drop",))
"""A window that the shortest request fills so far that the head of a stream waits for its first event."""


def leaves(client: RawClient, how: str) -> Awaitable[None]:
    return client.reset() if how == "reset" else client.disconnect()


HOW = pytest.mark.parametrize("how", ["close", "reset"])


async def told(proxy: Proxied, path: str) -> dict[str, Any]:
    """The first event of a path; the proxy gets its turns while it is asked for its health."""
    async with asyncio.timeout(10), RawClient(proxy.url) as other:
        while not (events := [event for event in proxy.events() if event["path"] == path]):
            await other.request("GET", "/-/healthz")
    return events[0]


# ------------------------------------------------------------------------------------------------- before a main call


class WaitingTokenizer(Lettered):
    """Says when it is asked, and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


class WaitingMemories(Memories):
    """Says when it is asked for one thing, and never answers that."""

    def __init__(self, use: str) -> None:
        super().__init__(memories()._store, "")
        self._use = use
        self.asked = asyncio.Event()

    async def recall(self, model: str, chain: Sequence[str], opening: str = "", who: str = "") -> Memory:
        await self._wait_in("recall")
        return await super().recall(model, chain, opening, who)

    async def save(self, key: str, edits: Edits, *, replaces: bool = False) -> Edits:
        await self._wait_in("save")
        return await super().save(key, edits, replaces=replaces)

    async def _wait_in(self, use: str) -> None:
        if use == self._use:
            self.asked.set()
            await asyncio.Event().wait()


def _measuring() -> tuple[asyncio.Event, tuple[Measures, Remembers]]:
    tokenizer = WaitingTokenizer()
    return tokenizer.asked, (tokenizer, memories())


def _remembering(use: str) -> tuple[asyncio.Event, tuple[Measures, Remembers]]:
    remembers = WaitingMemories(use)
    return remembers.asked, (Lettered(), remembers)


@HOW
@pytest.mark.parametrize(
    "make",
    [_measuring, partial(_remembering, "recall"), partial(_remembering, "save")],
    ids=["measure", "look up", "save"],
)
async def test_a_client_that_leaves_while_we_work_is_the_last_of_its_request(
    make: Callable[[], tuple[asyncio.Event, tuple[Measures, Remembers]]], how: str
) -> None:
    asked, parts = make()
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, parts=parts, policy=DROPPED, manage_deadline=1000.0) as proxy,
    ):
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, LONG)
            await asked.wait()
            await leaves(client, how)
        event = await told(proxy, CHAT)
        assert not upstream.requests
    assert (event["reason"], event["status"]) == ("client_gone", None)


@HOW
@pytest.mark.parametrize("target", [CHAT, FILES])
async def test_a_client_that_leaves_in_its_own_body_ends_the_request(target: str, how: str) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.send(request_bytes("POST", target, host="h", body=SHORT)[:-5])
            if target == FILES:
                await upstream.until(lambda: upstream.open_connections == 1)
            await leaves(client, how)
        event = await told(proxy, target)
        await upstream.drained()
        assert not upstream.requests
    assert (event["reason"], event["status"]) == ("client_gone", None)


@HOW
async def test_b108_b110_a_client_that_leaves_while_a_summary_is_written_ends_all_but_the_summary(
    how: str,
) -> None:
    gate = asyncio.Event()
    side_call = Answer(200, WHOLE.headers, (gate, *WHOLE.pieces), Framing.CHUNKED)
    async with (
        ScriptedUpstream([side_call], otherwise=WHOLE) as upstream,
        proxied(upstream.url, policy=SUMMARISED) as proxy,
    ):
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, LONG)
            await upstream.received(1)
            await leaves(client, how)
        assert (await told(proxy, CHAT))["reason"] == "client_gone"
        assert not upstream.requests[0].client_gone.is_set()
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, LONG)
            gate.set()
            response = await client.read()
            assert (response.header("x-context-actions") or "").startswith("summarize=")
        *parts, main = [request.body for request in upstream.requests]
        assert len(parts) == 4, "each part of the history is summarised once, the one that was under way too"
        assert b"The user said word, the assistant said word." in main


# ------------------------------------------------------------------------------------------------ during a main call


def _never() -> asyncio.Event:
    return asyncio.Event()


def _head_alone() -> Answer:
    return Answer(200, peers.SSE_HEADERS, (b'data: {"choi', _never()), Framing.CHUNKED)


def _half_a_refusal() -> Answer:
    return Answer(400, peers.JSON_HEADERS, (b'{"error": {"message": "maximum con', _never()), Framing.CHUNKED)


def _half_a_head() -> Answer:
    return raw_answer(b"HTTP/1.1 200 OK\r\nContent-", _never())


WAITS = {
    "for the head": (SHORT, lambda: Answer(before=_never()), ModelPolicy()),
    "in the head": (SHORT, _half_a_head, ModelPolicy()),
    "for a stream's first event": (STREAM, _head_alone, PEEKED),
    "for the rest of a refusal": (SHORT, _half_a_refusal, ModelPolicy()),
}


@HOW
@pytest.mark.parametrize(("body", "answer", "policy"), WAITS.values(), ids=WAITS)
async def test_b106_a_client_that_leaves_before_it_got_a_byte_ends_the_upstreams_work(
    body: bytes, answer: Callable[[], Answer], policy: ModelPolicy, how: str
) -> None:
    async with ScriptedUpstream([answer()]) as upstream, proxied(upstream.url, policy=policy) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, body)
            request = await upstream.received(1)
            await leaves(client, how)
        await upstream.until(request.client_gone.is_set)
        await upstream.drained()
    (event,) = proxy.events()
    assert (event["reason"], event["status"]) == ("client_gone", None)


@HOW
@pytest.mark.parametrize("target", [CHAT, FILES])
@pytest.mark.parametrize("reads", [0, 1])
async def test_b106_a_client_that_leaves_with_its_socket_full_ends_the_upstreams_work(
    target: str, reads: int, how: str
) -> None:
    body = b"x" * 40_000_000
    answer = Answer(200, peers.JSON_HEADERS, peers.slices(body, 1_000_000), Framing.CHUNKED)
    async with ScriptedUpstream([answer]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.start(target, STREAM)
            await upstream.received(1)
            for _ in range(reads):
                await client.read_head()
            await leaves(client, how)
        await upstream.until(upstream.requests[0].client_gone.is_set)
        await upstream.drained()
        event = await told(proxy, target)
    assert (event["reason"], event["complete"]) == ("client_gone", False)
    assert event["bytes_out"] < len(body) / 2


@HOW
@pytest.mark.parametrize("size", [16_000, 20_000_000])
async def test_b106_a_client_that_leaves_while_the_upstream_takes_nothing_of_a_whole_body_leaves_no_connection(
    size: int, how: str
) -> None:
    """The upstream reads none of it, so that what the kernel does not take waits on our side when the client goes."""
    connected = asyncio.Event()
    peers_of_ours: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is one that reads as well
        peers_of_ours.append(writer)
        connected.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, proxied(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:
        before = descriptors()
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, SHORT[:-1] + b" " * size + b"}")
            await connected.wait()
            await leaves(client, how)
        await no_more(proxy, lambda: descriptors() <= before + 1)  # that of the test's own upstream
        assert (await told(proxy, CHAT))["reason"] == "client_gone"
        for writer in peers_of_ours:
            writer.transport.abort()


# --------------------------------------------------------------------------------------------------- a thousand of them


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one client does: sends so many bytes of its request, reads so many of the answer, and leaves."""

    raw: bytes
    reads: int
    how: str


def planned(dice: random.Random) -> Plan:
    target, body = dice.choice([(CHAT, SHORT), (CHAT, STREAM), (CHAT, LONG), (FILES, SHORT * 3000)])
    raw = request_bytes("POST", target, host="h", body=body)
    sent = dice.choice([0, dice.randrange(200), dice.randrange(len(raw)), len(raw), len(raw), len(raw)])
    reads = dice.choice([0, 0, 1, dice.randrange(3000), 10**9])
    return Plan(raw[:sent], reads if sent == len(raw) else 0, dice.choice(["close", "reset"]))


def answering(dice: random.Random, request: peers.Request) -> Answer:
    """Any of what upstreams do; half of the streams never end."""
    events = tuple(b"data: %d\n\n" % number for number in range(200))
    refusal = {
        "error": {"message": "maximum context length is 2000 tokens", "code": "context_length_exceeded"}
    }
    return dice.choice(
        [
            WHOLE,
            Answer(200, peers.SSE_HEADERS, events, Framing.CHUNKED),
            Answer(200, peers.SSE_HEADERS, (*events, _never()), Framing.CHUNKED),
            Answer(200, peers.SSE_HEADERS, (*events[:3], dice.choice(list(Cut))), Framing.CHUNKED),
            Answer(before=_never()),
            json_answer(refusal, status=400),
            json_answer({}, status=500),
            raw_answer(Cut.RESET),
        ]
    )


async def visit(url: str, plan: Plan) -> None:
    try:
        async with RawClient(url) as client:
            await client.send(plan.raw)
            if plan.reads:
                async with asyncio.timeout(1):  # some answers never come
                    await client.read_head()
                    await client.read_bytes(plan.reads)
            await leaves(client, plan.how)
    except (TimeoutError, ConnectionError, Disconnected):
        pass


async def a_thousand_visits(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a game, not a secret
    plans = [planned(dice) for _ in range(1000)]
    async with (
        ScriptedUpstream(otherwise=partial(answering, random.Random(seed))) as upstream,  # noqa: S311
        proxied(upstream.url, policy=SUMMARISED, side_calls=SideCalls(deadline=1.0)) as proxy,
    ):
        async with RawClient(proxy.url) as client:
            await client.request("GET", "/-/healthz")
        await no_more(proxy, lambda: True)
        tasks, files = len(asyncio.all_tasks()), descriptors()
        crowd = asyncio.Semaphore(100)

        async def one(plan: Plan) -> None:
            async with crowd:
                await visit(proxy.url, plan)

        await asyncio.gather(*map(one, plans))
        # Side calls run to their end, and idle connections to theirs.
        await upstream.drained()
        await no_more(proxy, lambda: len(asyncio.all_tasks()) <= tasks and descriptors() <= files)
        assert (upstream.open_connections, len(asyncio.all_tasks()), descriptors()) == (0, tasks, files)
        errors = [event for event in map(json.loads, proxy.log.splitlines()) if event["level"] == "error"]
    assert not errors


async def no_more(proxy: Proxied, condition: Callable[[], bool]) -> None:
    """Wait for it while the proxy gets its turns, and until the connection that gave them is closed there, too."""
    async with asyncio.timeout(20):
        while True:
            async with RawClient(proxy.url) as other:
                await other.send(
                    request_bytes("GET", "/-/healthz", host="h", headers=[("Connection", "close")])
                )
                await other.read()
                await other.closed_by_server()
            if condition():
                return


@pytest.mark.slow
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_b106_a_thousand_random_disconnects_leave_no_connection_no_task_and_no_descriptor_behind(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def run(course: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(course)

    run(a_thousand_visits(1))
