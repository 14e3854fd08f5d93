"""What the relay of the measuring programs notes of calls, before an upstream that plays a script.

Rules. What went by is held against what was scripted, byte by byte; no model runs here.
"""

import asyncio
import json
from dataclasses import replace

import pytest

from benchmarks.served import LEFT, Call, Cost, counting_relay
from tests.peers.answers import SSE_HEADERS, Answer, Framing, json_answer, slices
from tests.peers.client import RawClient
from tests.peers.scripted import ScriptedUpstream

CHAT = "/v1/chat/completions"
TIMINGS = {"prompt_n": 5, "cache_n": 20, "predicted_n": 3}
USAGE = {"prompt_tokens": 25, "completion_tokens": 3}
WHOLE = json_answer({"id": "whole", "choices": [], "usage": USAGE, "timings": TIMINGS})


def stream(*events: object) -> Answer:
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    return Answer(200, SSE_HEADERS, slices(body, 7), Framing.CHUNKED)


STREAMS = {
    "usage in an event of its own": stream(
        {"id": "streamed", "choices": [{"delta": {"content": "Hi"}}]},
        {"id": "streamed", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
        {"id": "streamed", "choices": [], "usage": USAGE, "timings": TIMINGS},
    ),
    "no usage": stream(
        {"id": "streamed", "choices": [{"delta": {"content": "Hi"}}]},
        {"id": "streamed", "choices": [{"delta": {}, "finish_reason": "stop"}], "timings": TIMINGS},
    ),
}


async def noted(answer: Answer, target: str = CHAT) -> list[Call]:
    """The calls that the relay noted of one request, which the client got this very answer to."""
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        counting_relay(upstream.url) as relay,
        RawClient(relay.url) as client,
    ):
        got = await client.post(target, b'{"messages":[]}')
        assert (got.status, got.body) == (answer.status, answer.body)
        assert [request.body for request in upstream.requests] == [b'{"messages":[]}']
        return relay.calls


async def test_a_whole_answer_passes_unchanged_and_tells_its_cost() -> None:
    (call,) = await noted(WHOLE)
    assert (call.id, call.asked, call.processed, call.cached, call.generated) == ("whole", 25, 5, 20, 3)
    assert call.body == b'{"messages":[]}'


@pytest.mark.parametrize("answer", STREAMS.values(), ids=STREAMS)
async def test_a_stream_passes_unchanged_and_tells_its_cost(answer: Answer) -> None:
    (call,) = await noted(answer)
    assert (call.id, call.asked, call.processed, call.generated) == ("streamed", 25, 5, 3)


async def test_a_refusal_costs_nothing_and_a_question_is_no_call() -> None:
    (call,) = await noted(json_answer({"error": {"message": "too long"}}, status=400))
    assert (call.status, call.asked, call.id) == (400, 0, "")
    assert await noted(json_answer({"input_tokens": 7}), f"{CHAT}/input_tokens") == []


async def test_a_call_that_its_client_gives_up_is_noted_as_such() -> None:
    never = asyncio.Event()
    async with ScriptedUpstream(otherwise=replace(WHOLE, before=never)) as upstream:
        async with counting_relay(upstream.url) as relay:
            async with RawClient(relay.url) as client:
                await client.start(CHAT, b"{}")
                await upstream.received(1)
            await asyncio.wait_for(upstream.requests[0].client_gone.wait(), 5)
        assert [(call.status, call.body) for call in relay.calls] == [(LEFT, b"{}")]
        assert (relay.left, relay.refusals) == (1, 0)


def test_costs_add_up() -> None:
    call = Call(b"", 200, 0.5, "a", USAGE, TIMINGS)
    assert Cost.of([]) == Cost()
    assert Cost.of([call, call]) == Cost(2, 50, 10, 40, 6, 1.0)
