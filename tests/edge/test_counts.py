"""The upstream's own count of a prompt: which endpoint is asked, how often, and what it decides.

Rules. The endpoints answer as the real servers do; an endpoint that a test does not name is not there.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.policy import Count, ModelPolicy
from proxy.edge.counts import PAUSES, Counts
from proxy.edge.questions import Answer
from proxy.edge.sidecalls import Origin
from proxy.wire.dialects import Ask
from tests.edge.proxied import Proxied, proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.scripted import Request, ScriptedUpstream
from tests.peers.upstream import Answer as Said
from tests.peers.upstream import json_answer

CHAT = "/v1/chat/completions"
INPUT_TOKENS = "/v1/chat/completions/input_tokens"
TOKENIZE = "/tokenize"
ORIGIN = Origin((), CHAT, "")
BODY = b'{"model":"m","messages":[{"role":"user","content":"Say hello."}],"temperature":0.5}'


class Server:
    """Answers of one endpoint by its name; everything else is not there."""

    def __init__(self, **answers: Callable[[int], object]) -> None:
        self.answers = {
            name.replace("_", " ", 1).replace("_", "/"): answer for name, answer in answers.items()
        }
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def ask(self, ask: Ask, model: str, origin: Origin, body: bytes | None = None) -> Answer:
        self.asked.append(ask.name)
        self.bodies.append(body or b"")
        answer = self.answers.get(ask.name)
        return Answer(404) if answer is None else Answer(200, answer(len(self.asked)))


async def test_the_endpoint_is_found_once_and_asked_from_then_on() -> None:
    server = Server(**{"POST_/tokenize": lambda asked: {"count": 11 * asked, "max_model_len": 4096}})
    counts = Counts(server, server.clock)
    found = [await counts.count("tenant:m", "m", BODY, ORIGIN) for _ in range(3)]
    trials = server.asked.index("POST /tokenize") + 1
    assert server.asked[trials:] == ["POST /tokenize"] * 3
    assert found == [11 * (trials + number) for number in (1, 2, 3)]
    assert json.loads(server.bodies[-1])["messages"] == json.loads(BODY)["messages"]
    assert "temperature" not in json.loads(server.bodies[-1])


async def test_a_server_that_counts_nothing_is_left_alone_ever_longer() -> None:
    server = Server()
    counts = Counts(server, server.clock)
    for pause in PAUSES:
        before = len(server.asked)
        assert await counts.count("tenant:m", "m", BODY, ORIGIN) is None
        trial = len(server.asked) - before
        assert trial > 1
        server.now += pause - 1
        assert await counts.count("tenant:m", "m", BODY, ORIGIN) is None
        assert len(server.asked) == before + trial
        server.now += 1


@pytest.mark.parametrize(
    "odd", [None, [], {"count": -1}, {"count": "many"}, {"count": True}, {"count": 1e300}]
)
async def test_an_answer_that_is_no_count_is_none(odd: object) -> None:
    server = Server(**{"POST_/tokenize": lambda asked: odd if asked > 8 else {"count": 5}})
    counts = Counts(server, server.clock)
    while len(server.asked) < 8:
        assert await counts.count("tenant:m", "m", BODY, ORIGIN) == 5
    assert await counts.count("tenant:m", "m", BODY, ORIGIN) is None


async def test_requests_at_once_find_the_endpoint_together() -> None:
    server = Server(**{"POST_/tokenize": lambda asked: {"count": 7}})
    counts = Counts(server, server.clock)
    found = await asyncio.gather(*(counts.count("tenant:m", "m", BODY, ORIGIN) for _ in range(10)))
    assert found == [7] * 10
    assert server.asked.count("POST /tokenize") == 11


async def test_requests_at_once_that_fail_are_one_failure() -> None:
    class Held(Server):
        gate, waiting = asyncio.Event(), 0

        async def ask(self, ask: Ask, model: str, origin: Origin, body: bytes | None = None) -> Answer:
            self.waiting += 1
            if self.waiting >= 10:
                self.gate.set()
            await self.gate.wait()
            return await super().ask(ask, model, origin, body)

    server = Held(**{"POST_/tokenize": lambda asked: {"count": 7}})
    counts = Counts(server, server.clock)
    server.gate.set()
    assert await counts.count("tenant:m", "m", BODY, ORIGIN) == 7
    server.answers, server.waiting = {"POST /tokenize": lambda asked: {}}, 0
    server.gate.clear()
    found = await asyncio.gather(*(counts.count("tenant:m", "m", BODY, ORIGIN) for _ in range(10)))
    assert (found, server.waiting) == ([None] * 10, 10)
    server.answers = {"POST /tokenize": lambda asked: {"count": 7}}
    server.now += PAUSES[0]
    assert await counts.count("tenant:m", "m", BODY, ORIGIN) == 7


# ------------------------------------------------------------------------------------------------ through the proxy

SPENT = peers.usage(50, 5)
WHOLE = peers.completion(peers.text_message("Hello."), usage=SPENT)
SAID = [{"role": "user", "content": "word " * 300}, {"role": "assistant", "content": "yes " * 300}]
LONG = json.dumps({"model": "m", "messages": [*SAID * 4, {"role": "user", "content": "And now?"}]}).encode()
SHORT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 300}]}).encode()
POLICY = ModelPolicy(window=4096, reserve_output=100)


def counting(factor: float) -> Callable[[Request], Said]:
    """llama.cpp's endpoint, with a token for every so many characters; chats are answered."""

    def answer(request: Request) -> Said:
        if request.path == CHAT:
            return json_answer(WHOLE)
        if request.path == INPUT_TOKENS:
            texts = (message["content"] for message in request.json()["messages"])
            return json_answer({"input_tokens": round(sum(map(len, texts)) * factor) + 10})
        return json_answer({"error": "not found"}, status=404)

    return answer


@asynccontextmanager
async def before(
    answer: Callable[[Request], Said], count: Count
) -> AsyncIterator[tuple[ScriptedUpstream, Proxied, RawClient]]:
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.base_url, policy=replace(POLICY, count=count)) as proxy,
        RawClient(proxy.url) as client,
    ):
        yield upstream, proxy, client


def counted(upstream: ScriptedUpstream) -> list[Any]:
    """The requests that were counted, the tiny ones by which endpoints were tried left out."""
    asked = [request for request in upstream.requests if request.path == INPUT_TOKENS]
    return [request.json() for request in asked if len(request.body) > 200]


async def test_count_local_asks_nobody() -> None:
    async with before(counting(0.25), Count.LOCAL) as (upstream, _, client):
        await client.post(CHAT, LONG)
        assert [request.path for request in upstream.requests] == [CHAT]


async def test_count_upstream_says_the_upstreams_own_count() -> None:
    async with before(counting(0.3), Count.UPSTREAM) as (upstream, proxy, client):
        answered = await client.post(CHAT, SHORT, (("Authorization", "Bearer sesame"),))
        assert len(counted(upstream)) == 1
        assert upstream.requests[0].header("authorization") == "Bearer sesame"
        assert proxy.events()[0]["usage_based"]
    assert answered.header("x-context-tokens") == str(round(1500 * 0.3) + 10)


@pytest.mark.parametrize(
    ("factor", "cuts"), [(0.25, False), (0.5, True)], ids=["as we estimate", "twice as much as we estimate"]
)
async def test_count_auto_asks_near_the_trigger_and_goes_by_the_answer(factor: float, cuts: bool) -> None:
    """2,800 tokens by our estimate, of a trigger at 3,500: the caution for an unknown upstream alone would decide."""
    async with before(counting(factor), Count.AUTO) as (upstream, _, client):
        answered = await client.post(CHAT, LONG)
        assert len(counted(upstream)) == 1
    assert (answered.header("x-context-actions") != "none") == cuts
    assert int(answered.header("x-context-tokens") or 0) <= 4096 - 100


async def test_count_auto_leaves_small_prompts_to_the_estimate() -> None:
    async with before(counting(0.25), Count.AUTO) as (upstream, _, client):
        await client.post(CHAT, SHORT)
        assert [request.path for request in upstream.requests] == [CHAT]


async def test_what_is_counted_is_what_is_sent_when_a_checkpoint_applies() -> None:
    async with before(counting(0.5), Count.UPSTREAM) as (upstream, _, client):
        await client.post(CHAT, LONG)
        grown = json.loads(LONG)["messages"] + [{"role": "assistant", "content": "Now."}, SAID[0]]
        await client.post(CHAT, {"model": "m", "messages": grown})
        sent = [request.json() for request in upstream.requests if request.path == CHAT]
        assert counted(upstream)[-1]["messages"] == sent[-1]["messages"]


async def test_a_server_that_cannot_count_delays_nothing_and_loses_nothing() -> None:
    async with before(lambda _: json_answer(WHOLE), Count.UPSTREAM) as (_, proxy, client):
        assert (await client.post(CHAT, LONG)).status == 200
        assert (await client.post(CHAT, LONG)).status == 200
        assert "internal_error" not in proxy.log


# --- counts that are wrong ------------------------------------------------------------------------------------------


def leaving_out_the_tools(window: int) -> Callable[[Request], Said]:
    """vLLM as it was before 0.9: a chat is refused, or told its usage, by the whole, which the count is not of."""

    def answer(request: Request) -> Said:
        if request.path not in (CHAT, TOKENIZE):
            return json_answer({"error": "not found"}, status=404)
        said = request.json()
        count = sum(len(message["content"]) for message in said["messages"]) // 4
        if request.path == TOKENIZE:
            return json_answer({"count": count})
        count += len(json.dumps(said.get("tools", []))) // 4
        if count > window:
            told = f"maximum context length is {window} tokens. However, your messages resulted in {count} tokens."
            return json_answer({"error": {"message": told, "code": "context_length_exceeded"}}, status=400)
        return json_answer(
            peers.completion(peers.text_message("Hello."), usage={**SPENT, "prompt_tokens": count})
        )

    return answer


TOOLS = [{"type": "function", "function": {"name": "do", "description": "It does. " * 400, "parameters": {}}}]


def asked_to_count(upstream: ScriptedUpstream) -> int:
    tried = [request for request in upstream.requests if request.path == TOKENIZE]
    return len([request for request in tried if len(request.body) > 200])


async def test_a_server_that_reports_more_than_it_counted_is_not_asked_again() -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "word " * 1400}], "tools": TOOLS}
    async with before(leaving_out_the_tools(4096), Count.UPSTREAM) as (upstream, proxy, client):
        for _ in range(2):
            assert (await client.post(CHAT, said)).status == 200
        first, second = (event["tokens"] for event in proxy.events())
        reported = proxy.events()[1]["reported_tokens"]
        assert asked_to_count(upstream) == 1
    assert first < 0.8 * reported
    assert second == pytest.approx(reported, rel=0.02)


async def test_a_server_that_refuses_more_than_it_counted_is_not_asked_again() -> None:
    said = {"model": "m", "messages": [*SAID * 4, {"role": "user", "content": "And now?"}], "tools": TOOLS}
    async with before(leaving_out_the_tools(3000), Count.UPSTREAM) as (upstream, proxy, client):
        for _ in range(2):
            assert (await client.post(CHAT, said)).status == 200
        assert ["recover=1" in event["actions"] for event in proxy.events()] == [True, False]
        assert asked_to_count(upstream) == 1


async def test_a_report_below_the_count_is_no_reason_to_distrust_it() -> None:
    """The prompt may have been cut, or what was read from a cache left out."""
    async with before(counting(0.3), Count.UPSTREAM) as (upstream, _, client):
        for _ in range(3):
            await client.post(CHAT, SHORT)
        assert len(counted(upstream)) == 3
