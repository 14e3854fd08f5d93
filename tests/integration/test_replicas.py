"""Three proxies behind a real nginx, over one real redis-server: what is forwarded, and what is lost when one goes.

Rules. nginx is configured as the page for operators says, and clients reach it over TLS. Conversations go on side by
side, every second one streamed, and outgrow the window several times. Each summary names what it was asked about and
how often that was asked before, so that a second side call for one cut shows in what is forwarded.
"""

import asyncio
import hashlib
import json
import re
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import openai
import pytest

from benchmarks.speed.processes import HOST, free_port
from tests.integration.balancer import nginx
from tests.integration.program import Program, program
from tests.peers.certificates import pem_files
from tests.peers.upstream import (
    Accepted,
    Answer,
    Framing,
    Message,
    Request,
    StrictUpstream,
    chat_answer,
    marked,
    text_message,
)
from tests.stores.redis_server import RedisServer, running

WINDOW: Final = 2000
REPLICAS: Final = 3
TALKS: Final = 6
TURNS: Final = 24
QUESTION: Final = re.compile(r"Talk \d, question \d+")

# What is learned of a model is shared within a second, and a summary is written ahead when there is time: without
# both, what is forwarded depends on nothing but the conversation.
CONFIGURATION: Final = """
listen: {listen}
upstream: {{base_url: {upstream}, slots: 100}}
store: {store}
log: {{format: json}}
discovery: {{enabled: false}}
models:
  - match: "*"
    window: 2000
    reserve_output: 200
    summary: {{prepare_at: 0}}
    calibration: {{lowest: 1, highest: 1}}
"""


def reply(body: Mapping[str, Any]) -> Message:
    """The same to the same question, whoever asks it and whenever."""
    asked = QUESTION.findall(str(body["messages"][-1]["content"]))[-1]
    return text_message(f"This answers {asked}: {'so and so ' * 6}")


def upstream_of() -> StrictUpstream:
    asked: Counter[str] = Counter()

    def summarise(body: Mapping[str, Any]) -> Answer:
        about = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:12]
        asked[about] += 1
        words = (
            f"Summary {about}, number {asked[about]}: the task stands as it was asked. Question what answers"
        )
        return chat_answer(body, text_message(words), prompt_tokens=100)

    return StrictUpstream(
        window=WINDOW, reply=reply, summarise=summarise, is_side_call=marked("working memory")
    )


@dataclass
class Talk:
    """A conversation that grows by a turn with each request; `broken` counts the streams that broke off."""

    client: openai.AsyncOpenAI
    name: str
    streams: bool
    messages: list[Any] = field(default_factory=list)
    broken: int = 0

    async def turn(self) -> None:
        """Ask, and take the answer in. A stream that breaks off is asked for again, as a person would."""
        number = len(self.messages) // 2
        self.messages.append(
            {"role": "user", "content": f"{self.name}, question {number}: {'what and why ' * 80}"}
        )
        text = await (self._streamed() if self.streams else self._whole())
        assert text == str(reply({"messages": self.messages})["content"])
        self.messages.append({"role": "assistant", "content": text})

    async def _whole(self) -> str:
        answer = await self.client.chat.completions.create(model="m", messages=self.messages)
        return answer.choices[0].message.content or ""

    async def _streamed(self) -> str:
        while True:
            stream = await self.client.chat.completions.create(model="m", messages=self.messages, stream=True)
            try:
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            except openai.APIConnectionError:
                self.broken += 1


@dataclass
class Place:
    """Where conversations are held: `url` is nginx's, or that of the only proxy."""

    upstream: StrictUpstream
    url: str
    replicas: dict[int, Program]
    _stack: AsyncExitStack
    _start: Callable[[int], Any]
    tls: ssl.SSLContext
    _started: list[Program] = field(default_factory=list)

    async def start(self, port: int) -> None:
        """Start a replica on this port, again if need be."""
        self.replicas[port] = await self._stack.enter_async_context(self._start(port))
        self._started.append(self.replicas[port])

    def events(self, name: str) -> list[dict[str, Any]]:
        """What all replicas have logged under this name, those that are gone among them."""
        return [event for each in self._started for event in each.events(name)]

    async def talks(self, retries: int, many: int = TALKS) -> list[Talk]:
        """New conversations of a client of their own, which sends a request again so often."""
        http = openai.DefaultAsyncHttpxClient(verify=self.tls)
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="a-key", max_retries=retries, http_client=http
        )
        await self._stack.enter_async_context(client)
        return [Talk(client, f"Talk {number}", streams=bool(number % 2)) for number in range(many)]

    def forwarded(self) -> dict[str, list[bytes]]:
        """The bodies that reached the upstream, by conversation; what was sent again stands there once."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for call in self.upstream.main_calls:
            if call.request.body not in found[_name_of(call.body)]:
                found[_name_of(call.body)].append(call.request.body)
        return dict(found)

    def nothing_was_refused(self) -> None:
        """Assert that each prompt fitted, and that the window was overflown again and again."""
        assert self.upstream.refusals == []
        assert all(isinstance(call.verdict, Accepted) for call in self.upstream.main_calls)

    def each_summary_was_asked_for_once(self, since: int = 0) -> None:
        """Assert that no replica had a summary written that another one has."""
        asked = Counter(call.request.body for call in self.upstream.side_calls[since:])
        assert asked
        assert set(asked.values()) == {1}


def _name_of(body: Mapping[str, Any]) -> str:
    """The conversation that a prompt is of."""
    return str(QUESTION.findall(str(body["messages"][-1]["content"]))[-1]).partition(",")[0]


@asynccontextmanager
async def place(folder: Path, store: str, replicas: int = REPLICAS) -> AsyncIterator[Place]:
    """So many proxies over this store, behind nginx where there are several."""
    ports = [free_port() for _ in range(replicas)]
    files = pem_files(folder)
    async with upstream_of() as upstream, AsyncExitStack() as stack:

        def start(port: int) -> Any:
            config = folder / f"{port}.yaml"
            config.write_text(
                CONFIGURATION.format(listen=f"{HOST}:{port}", upstream=upstream.base_url, store=store)
            )
            return program(config)

        tls = ssl.create_default_context(cafile=files.ca)
        made = Place(upstream, f"http://{HOST}:{ports[0]}", {}, stack, start, tls)
        for port in ports:
            await made.start(port)
        if replicas > 1:
            made.url = stack.enter_context(nginx(folder, files, ports))
        yield made


async def held(talks: Sequence[Talk], turns: int) -> None:
    """So many turns of all conversations, side by side."""

    async def held_one(talk: Talk) -> None:
        for _ in range(turns):
            await talk.turn()

    await asyncio.gather(*map(held_one, talks))


@pytest.fixture(scope="module")
def alone() -> dict[str, list[bytes]]:
    """What a single process with a memory of its own forwards of the same conversations."""
    return {}


@pytest.fixture
async def by_one(tmp_path: Path, alone: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    if not alone:
        folder = tmp_path / "alone"
        folder.mkdir()
        async with place(folder, "memory", replicas=1) as only:
            await held(await only.talks(retries=0), TURNS)
            only.nothing_was_refused()
            assert len(only.upstream.side_calls) > 3 * TALKS, "the window is overflown several times"
            alone.update(only.forwarded())
    return alone


@pytest.fixture
def redis_server(tmp_path: Path) -> Any:
    with running(tmp_path) as server:
        yield server


async def test_replicas_forward_the_very_bytes_that_one_process_does(
    tmp_path: Path, redis_server: RedisServer, by_one: dict[str, list[bytes]]
) -> None:
    async with place(tmp_path, redis_server.url) as several:
        await held(await several.talks(retries=0), TURNS)
        assert several.forwarded() == by_one
        several.nothing_was_refused()
        several.each_summary_was_asked_for_once()
        served = [len(each.events("request")) for each in several.replicas.values()]
        assert min(served) > TALKS * TURNS / 6, "the conversations moved from one replica to the next"


async def test_replicas_that_need_the_same_summary_at_one_moment_go_on_with_one(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with place(tmp_path, redis_server.url) as several:
        (talk,) = await several.talks(retries=0, many=1)
        upstream = several.upstream
        await held([talk], 6)
        upstream.side_gate = gate = asyncio.Event()
        same = [replace(talk, messages=list(talk.messages)) for _ in range(REPLICAS)]
        while not upstream.side_calls:
            seen = upstream.request_count
            turns = asyncio.gather(*(each.turn() for each in same))
            await upstream.received(seen + REPLICAS)
            if upstream.side_calls:
                gate.set()
            await turns
        assert len(upstream.side_calls) == REPLICAS, "each has asked, since none could know of the others"
        assert len({call.request.body for call in upstream.main_calls[-REPLICAS:]}) == 1


async def test_nginx_lets_megabytes_and_websockets_through_shows_no_endpoint_of_ours_and_tells_who_leaves(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with place(tmp_path, redis_server.url) as several:
        fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        async with aiohttp.ClientSession() as client:
            url = f"{several.url}/v1/realtime"
            async with client.get(url, headers=fields, ssl=several.tls) as upgrade:
                assert upgrade.status == 404, "the upstream's own answer"
        assert several.upstream.requests[0].header("upgrade") == "websocket"
        (talk,) = await several.talks(retries=0, many=1)
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "Talk 0, question 0 " + "x " * 1_500_000}],
        }
        chat = talk.client.with_options(timeout=60)
        with pytest.raises(openai.NotFoundError):
            await chat.get(f"{several.url}/-/healthz", cast_to=object)
        answer: Any = await chat.post("/chat/completions", body=body, cast_to=object)
        assert answer["choices"][0]["message"]["content"].startswith("This answers Talk 0, question 0")
        with held_up(several.upstream):
            leaving = asyncio.create_task(talk.turn())
            asked = await several.upstream.received(several.upstream.request_count + 1)
            leaving.cancel()
            await several.upstream.until(asked.client_gone.is_set)


@contextmanager
def held_up(upstream: StrictUpstream) -> Iterator[asyncio.Event]:
    """Whole answers do not begin, and streams stop behind their first event, until the event is set."""
    gate, serve = asyncio.Event(), upstream.otherwise
    assert callable(serve)

    def answer(request: Request) -> Answer:
        made = serve(request)
        if made.framing is not Framing.CHUNKED:
            return replace(made, before=gate)
        return made.pausing(len(next(each for each in made.pieces if isinstance(each, bytes))), gate)

    upstream.otherwise = answer
    try:
        yield gate
    finally:
        upstream.otherwise = serve


async def test_what_a_killed_replica_had_in_hand_is_mended_by_the_clients_own_retry(
    tmp_path: Path, redis_server: RedisServer, by_one: dict[str, list[bytes]]
) -> None:
    async with place(tmp_path, redis_server.url) as several:
        talks = await several.talks(retries=2)
        await held(talks, TURNS // 2)
        seen = several.upstream.request_count
        with held_up(several.upstream) as gate:
            turns = asyncio.gather(*(talk.turn() for talk in talks))
            await several.upstream.received(seen + TALKS)
            await next(iter(several.replicas.values())).killed()
            gate.set()
            await turns
        assert several.upstream.request_count > seen + TALKS, "something was under way there"
        assert sum(talk.broken for talk in talks) <= 1, "only a stream that had begun"
        await held(talks, TURNS - TURNS // 2 - 1)
        assert several.forwarded() == by_one
        several.nothing_was_refused()
        several.each_summary_was_asked_for_once()


async def test_b112_replicas_are_restarted_one_by_one_under_load_and_nothing_is_lost_without_a_retry(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with place(tmp_path, redis_server.url) as several:
        done = asyncio.Event()
        talks = await several.talks(retries=0)

        async def go_on(talk: Talk) -> None:
            while not done.is_set():
                await talk.turn()
                if len(talk.messages) > 2 * TURNS:
                    talk.messages.clear()

        async with asyncio.TaskGroup() as load:
            for talk in talks:
                load.create_task(go_on(talk))
            for port in list(several.replicas):
                before = several.upstream.request_count
                await several.upstream.received(before + 5 * TALKS)
                assert await several.replicas[port].stopped() == 0
                await several.start(port)
            done.set()
        assert sum(talk.broken for talk in talks) == 0
        assert {event["status"] for event in several.events("request")} == {200}
        several.nothing_was_refused()


@pytest.mark.parametrize("keeps", [True, False], ids=["with its data", "without"])
async def test_redis_is_stopped_and_started_again_and_every_request_is_answered(
    tmp_path: Path, keeps: bool
) -> None:
    kept = ("--appendonly", "yes", "--appendfsync", "always") if keeps else ()
    with running(tmp_path, *kept) as redis_server:
        async with place(tmp_path, redis_server.url) as several:
            talks = await several.talks(retries=0)
            await held(talks, TURNS // 3)
            load = asyncio.create_task(held(talks, TURNS))
            await several.upstream.received(several.upstream.request_count + TALKS)
            redis_server.kill()
            await asyncio.gather(*(each.until("store_down") for each in several.replicas.values()))
            await several.upstream.received(several.upstream.request_count + TALKS)
            redis_server.start()
            await asyncio.gather(*(each.until("store_back") for each in several.replicas.values()))
            await load
            assert all(talk.broken == 0 for talk in talks)
            since = len(several.upstream.side_calls)
            await held(talks, TURNS // 2)
            several.each_summary_was_asked_for_once(since)
            several.nothing_was_refused()
            for event, times in (("store_down", REPLICAS), ("store_back", REPLICAS), ("internal_error", 0)):
                assert len(several.events(event)) == times
