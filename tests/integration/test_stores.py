"""One conversation served by several processes over one store, by one over a restart, and by one whose store is gone.

Every summary differs from every other, so that a second side call for one cut shows in what is forwarded.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.context.calibration import CalibrationPolicy
from proxy.context.policy import ModelPolicy, SummaryPolicy
from proxy.edge.memories import Memories
from proxy.stores import open_store
from tests.edge.proxied import Lettered, proxied
from tests.peers.client import RawClient
from tests.peers.upstream import StrictUpstream, marked
from tests.stores.bench import WIDE, Heard
from tests.stores.redis_server import RedisServer, running

CHAT = "/v1/chat/completions"
WINDOW = 2000
TURNS = 40
# What is learned of a model is shared within a second; here it is left out, so that no second need pass.
POLICY = ModelPolicy(
    window=WINDOW,
    reserve_output=200,
    summary=SummaryPolicy(prepare_at=0),
    calibration=CalibrationPolicy(lowest=1, highest=1),
)


@pytest.fixture
def redis_server(tmp_path: Path) -> Any:
    with running(tmp_path) as server:
        yield server


def strict() -> StrictUpstream:
    return StrictUpstream(window=WINDOW, is_side_call=marked("working memory"))


@pytest.fixture
async def upstream() -> AsyncIterator[StrictUpstream]:
    async with strict() as made:
        yield made


@asynccontextmanager
async def process(upstream: StrictUpstream, store: str, heard: Heard) -> AsyncIterator[str]:
    """A proxy with a store of its own at this URL; the proxy's URL."""
    async with open_store(store, WIDE, heard) as opened:
        memories = Memories(opened.store, upstream.url, shared=opened.shared)
        async with proxied(upstream.url, policy=POLICY, parts=(Lettered(), memories)) as proxy:
            yield proxy.url


def talk(turns: int) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 20})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 20})
    return json.dumps({"model": "m", "messages": [*messages, {"role": "user", "content": "Next?"}]}).encode()


async def send(url: str, turns: int) -> str:
    """One request; what was done, as the answer's header says."""
    async with RawClient(url) as client:
        answer = await client.post(CHAT, talk(turns), [("Authorization", "Bearer a-key")])
    assert answer.status == 200
    return answer.header("x-context-actions") or ""


async def served(urls: Sequence[str], turns: range) -> None:
    """The requests of a growing chat, each to the next proxy."""
    for number in turns:
        await send(urls[number % len(urls)], number)


@pytest.fixture
async def alone() -> list[bytes]:
    """What a single process with a store of its own forwards."""
    async with strict() as upstream, process(upstream, "memory", Heard()) as url:
        await served([url], range(TURNS))
        assert 1 < len(upstream.side_calls) < TURNS / 4
        return [call.request.body for call in upstream.main_calls]


async def test_two_processes_over_redis_forward_what_a_single_one_does(
    upstream: StrictUpstream, alone: list[bytes], redis_server: RedisServer
) -> None:
    heard = Heard()
    async with (
        process(upstream, redis_server.url, heard) as one,
        process(upstream, redis_server.url, heard) as other,
    ):
        await served([one, other], range(TURNS))
    assert [call.request.body for call in upstream.main_calls] == alone
    assert heard.events == []


@pytest.mark.parametrize("processes", [1, 3])
async def test_processes_over_one_sqlite_file_forward_what_a_single_one_does_over_a_restart_too(
    upstream: StrictUpstream, alone: list[bytes], tmp_path: Path, processes: int
) -> None:
    store, heard = f"sqlite:///{tmp_path}/transom.db", Heard()
    for turns in (range(TURNS // 2), range(TURNS // 2, TURNS)):
        async with AsyncExitStack() as stack:
            entered = [process(upstream, store, heard) for _ in range(processes)]
            urls = [await stack.enter_async_context(each) for each in entered]
            await served(urls, turns)
    assert [call.request.body for call in upstream.main_calls] == alone
    assert heard.events == []


async def test_a_conversation_is_forgotten_with_what_was_stored_of_it_before_a_restart(
    upstream: StrictUpstream, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/transom.db"
    async with process(upstream, store, Heard()) as url:
        await served([url], range(TURNS))
    asked = len(upstream.side_calls)
    async with process(upstream, store, Heard()) as url, RawClient(url) as client:
        await send(url, TURNS - 1)
        assert len(upstream.side_calls) == asked
        (row,) = json.loads((await client.request("GET", "/-/state")).body)["conversations"]
        assert (await client.request("DELETE", f"/-/state/{row['id']}")).status == 200
        await send(url, TURNS - 1)
        assert len(upstream.side_calls) == asked + 1
        assert "Memory written before" not in upstream.side_calls[-1].request.body.decode(), (
            "nothing older was found to go on from"
        )


async def test_without_its_redis_the_proxy_answers_from_what_it_has_and_makes_no_side_call(
    upstream: StrictUpstream, redis_server: RedisServer
) -> None:
    heard = Heard()
    async with process(upstream, redis_server.url, heard) as url:
        await served([url], range(TURNS // 2))
        before, asked = upstream.main_bodies[-1]["messages"], len(upstream.side_calls)
        redis_server.kill()
        assert "summarize=" in await send(url, TURNS // 2 - 1)
        assert upstream.main_bodies[-1]["messages"] == before
        await served([url], range(TURNS // 2, TURNS))
        assert "drop=" in await send(url, TURNS)
        assert len(upstream.side_calls) == asked
        redis_server.start()
        await heard.until("store_back")
        await served([url], range(TURNS, TURNS * 2))
        assert len(upstream.side_calls) > asked
    assert heard.names == ["store_down", "store_back"]


async def test_no_text_of_a_conversation_that_needed_no_summary_is_stored(
    upstream: StrictUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "transom.db"
    async with process(upstream, f"sqlite:///{path}", Heard()) as url:
        assert await send(url, 2) == "none"
    stored = path.read_bytes()
    for word in (b"Question", b"what and why", b"so and so", b"Be brief", b"a-key"):
        assert word not in stored
