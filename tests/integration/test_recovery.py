"""Real sockets: a strict upstream whose window is smaller than the proxy knows, and refusals within a stream."""

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.policy import ModelPolicy, SummaryPolicy
from tests.edge.proxied import proxied
from tests.peers.answers import SSE_HEADERS, Answer, Framing, bytes_answer, json_answer, sse_answer
from tests.peers.client import RawClient
from tests.peers.scripted import ScriptedUpstream
from tests.peers.upstream import StrictUpstream, Temper, marked

CHAT = "/v1/chat/completions"
UNKNOWN = ModelPolicy(reserve_output=200, summary=SummaryPolicy(prepare_at=0))
NO_SIDE_CALLS = ModelPolicy(reserve_output=200, strategies=("drop",))


def talk(turns: int, **fields: Any) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 20})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 20})
    messages.append({"role": "user", "content": "Next?"})
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


@pytest.mark.parametrize("temper", [Temper.OPENAI, Temper.TEMPLATE, Temper.MISTRAL])
@pytest.mark.parametrize("stream", [False, True])
async def test_b64_a_chat_outgrows_a_window_that_nobody_told_and_no_refusal_reaches_the_client(
    temper: Temper, stream: bool
) -> None:
    upstream = StrictUpstream(window=2000, temper=temper, is_side_call=marked("working memory"))
    async with upstream, proxied(upstream.url, policy=UNKNOWN) as proxy, RawClient(proxy.url) as client:
        for turns in range(10, 40):
            assert (await client.post(CHAT, talk(turns, stream=stream))).status == 200
        assert len([each for each in upstream.refusals if "stream_options" not in str(each.body)]) <= 2


SAID = "maximum context length is 2000 tokens. However, you requested 2400 tokens"
OVERFLOW = {"error": {"message": SAID, "code": 400}}
GOOD = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Yes."}, "finish_reason": None}]}


async def test_b65_a_refusal_in_the_first_event_of_a_stream_is_made_good_before_a_byte_goes_out() -> None:
    answers: list[Answer] = [sse_answer([OVERFLOW]), sse_answer([GOOD])]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url, policy=NO_SIDE_CALLS) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post(CHAT, talk(24, stream=True))
        assert b"Yes." in answer.body
        assert b"maximum context" not in answer.body
        first, second = upstream.requests
        assert len(second.body) < len(first.body)


async def test_b65_a_refusal_behind_an_event_is_passed_on_as_it_is() -> None:
    whole = sse_answer([GOOD, OVERFLOW])
    async with (
        ScriptedUpstream([whole]) as upstream,
        proxied(upstream.url, policy=UNKNOWN) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post(CHAT, talk(12, stream=True))
        assert b"Yes." in answer.body
        assert b"maximum context length is 2000" in answer.body
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_b124_no_byte_reaches_the_client_while_a_request_may_be_sent_again(stream: bool) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    good = sse_answer([GOOD]) if stream else json_answer(GOOD)
    answers = [
        replace(json_answer(OVERFLOW, status=400), before=gates[0]),
        replace(good, before=gates[1]),
    ]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url, policy=NO_SIDE_CALLS) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, talk(24, stream=stream))
        reading = asyncio.create_task(client.read())
        for number, gate in enumerate(gates, 1):
            await upstream.received(number)
            await turns(proxy.url)
            assert not reading.done()
            assert client.unread == b""
            gate.set()
        answer = await reading
        assert (answer.status, answer.body, answer.complete) == (200, good.body, True)


async def test_b124_behind_a_comment_that_was_relayed_nothing_is_sent_again() -> None:
    comment, arrived = b": hello\n\n", asyncio.Event()
    refusal = b"data: " + json.dumps(OVERFLOW).encode() + b"\n\n"
    answer = Answer(200, SSE_HEADERS, (comment, arrived, refusal), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=NO_SIDE_CALLS) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, talk(24, stream=True))
        await client.read_head()
        assert await client.read_bytes(len(comment)) == comment
        arrived.set()
        assert await client.read_bytes(len(refusal)) == refusal
        assert (await client.read_chunk(), client.ended) == (None, True)
        assert upstream.request_count == 1


async def turns(url: str) -> None:
    """What has been said is heard meanwhile."""
    async with RawClient(url) as other:
        for _ in range(20):
            await other.get("/-/healthz")


async def test_a_refusal_that_teaches_nothing_reaches_the_client_byte_for_byte() -> None:
    said = json_answer({"error": {"message": "Invalid image url", "code": None}}, status=400)
    async with (
        ScriptedUpstream([said]) as upstream,
        proxied(upstream.url, policy=UNKNOWN) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post(CHAT, talk(12))
        assert (answer.status, json.loads(answer.body)["error"]["message"]) == (400, "Invalid image url")
        assert len(upstream.requests) == 1


async def test_a_compressed_refusal_is_read_too() -> None:
    raw = gzip.compress(json.dumps(OVERFLOW).encode())
    fields = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    answers = [bytes_answer(raw, status=400, headers=fields), sse_answer([GOOD])]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url, policy=NO_SIDE_CALLS) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(CHAT, talk(24), [("Accept-Encoding", "gzip")])).status == 200
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("before", [b"", b": hello\n\n", b"\n"])
async def test_b65_what_stands_before_an_error_in_one_chunk_does_not_hide_it(before: bytes) -> None:
    event = before + b"data: " + json.dumps(OVERFLOW).encode() + b"\n\n"
    answers = [Answer(200, SSE_HEADERS, (event,), Framing.CHUNKED), sse_answer([GOOD])]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url, policy=NO_SIDE_CALLS) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert b"Yes." in (await client.post(CHAT, talk(24, stream=True))).body
