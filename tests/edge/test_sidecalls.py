"""Side calls: to whom, with what, how often, and what comes of every kind of answer."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from proxy.config import Secret, SideCalls
from proxy.context.policy import SummaryMode
from proxy.edge.connections import Timeouts
from proxy.edge.headers import Base
from proxy.edge.sidecalls import Answered, Origin, SideCaller
from proxy.edge.upstream import Upstream
from proxy.exchange import SideCallFailed
from tests.peers import codings
from tests.peers import upstream as peers
from tests.peers.upstream import (
    Answer,
    Cut,
    Framing,
    Reply,
    ScriptedUpstream,
    bytes_answer,
    json_answer,
    raw_answer,
)

ORIGIN = Origin(
    (
        (b"Authorization", b"Bearer A"),
        (b"OpenAI-Organization", b"org"),
        (b"Cookie", b"c=1"),
        (b"User-Agent", b"u/1"),
    ),
    "/v1/chat/completions",
    "api-version=1",
)
SPENT = peers.usage(500, 20)
GOOD = json_answer(peers.completion(peers.text_message("They talked."), usage=SPENT))
BUSY = json_answer({"error": {"message": "busy"}}, status=429)


@asynccontextmanager
async def caller(
    base_url: str, options: SideCalls | None = None, *, key: str = "", idle: float = 60.0
) -> AsyncIterator[SideCaller]:
    """A side caller in front of this base URL that does not pause between tries."""
    async with Upstream(Timeouts(idle=idle)) as upstream:
        yield SideCaller(upstream, options or SideCalls(), Base.of(base_url), key=key, pause=0.0)


async def asked(script: Sequence[Reply], options: SideCalls | None = None) -> tuple[object, int]:
    """What comes of one side call to an upstream with this script, and how many calls that took."""
    async with ScriptedUpstream(script) as upstream, caller(upstream.base_url, options) as side:
        return await side.ask(b"{}", ORIGIN), upstream.request_count


async def test_b28_a_side_call_goes_where_the_main_call_goes_with_its_credential() -> None:
    async with ScriptedUpstream([GOOD]) as upstream, caller(upstream.base_url, key="configured") as side:
        outcome = await side.ask(b'{"model":"m"}', ORIGIN)
        request = upstream.requests[0]
    assert isinstance(outcome, Answered)
    assert outcome.text == "They talked."
    assert outcome.usage is not None
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (500, 20)
    assert (request.method, request.target) == ("POST", "/v1/chat/completions?api-version=1")
    assert request.body == b'{"model":"m"}'
    assert request.headers == (
        ("Host", f"127.0.0.1:{upstream.port}"),
        ("Authorization", "Bearer A"),
        ("OpenAI-Organization", "org"),
        ("User-Agent", "u/1"),
        ("Content-Type", "application/json"),
        ("Content-Length", "13"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "identity"),
    )


async def test_b28_a_configured_host_never_hears_the_clients_key_or_query() -> None:
    async with ScriptedUpstream([GOOD, GOOD]) as other:
        for secret, expected in ((Secret("S"), "Bearer S"), (None, None)):
            options = SideCalls(base_url=other.base_url, api_key=secret, model="small")
            async with caller("http://127.0.0.1:9/v1", options, key="configured") as side:
                assert isinstance(await side.ask(b"{}", ORIGIN), Answered)
            request = other.requests[-1]
            assert request.target == "/v1/chat/completions"
            assert request.header("authorization") == expected
            for value in (b"Bearer A", b"org", b"u/1", b"c=1", b"configured", b"api-version"):
                assert value not in request.head


async def test_a_configured_key_alone_replaces_the_clients_at_the_same_upstream() -> None:
    options = SideCalls(api_key=Secret("S"))
    async with ScriptedUpstream([GOOD]) as upstream, caller(upstream.base_url, options) as side:
        assert isinstance(await side.ask(b"{}", ORIGIN), Answered)
        assert upstream.requests[0].headers_named("authorization") == ["Bearer S"]
        assert upstream.requests[0].target == "/v1/chat/completions?api-version=1"


async def test_the_upstreams_configured_key_is_used_when_the_client_sent_none() -> None:
    async with ScriptedUpstream([GOOD]) as upstream, caller(upstream.base_url, key="configured") as side:
        await side.ask(b"{}", Origin((), "/v1/chat/completions", ""))
        assert upstream.requests[0].headers_named("authorization") == ["Bearer configured"]


@pytest.mark.parametrize("value", ["gzip", "br", "zstd"])
async def test_an_answer_that_is_compressed_though_asked_not_to_be_is_read_all_the_same(value: str) -> None:
    answer = bytes_answer(codings.encode(value, GOOD.body), headers=(("Content-Encoding", value),))
    async with ScriptedUpstream([answer]) as upstream, caller(upstream.base_url) as side:
        outcome = await side.ask(b"{}", ORIGIN)
    assert isinstance(outcome, Answered)
    assert outcome.text == "They talked."


REASONING = {"role": "assistant", "content": None, "reasoning_content": "Hm."}
FAILURES = [
    (json_answer(peers.completion(peers.text_message(" \n"), usage=SPENT)), "empty", True),
    (json_answer(peers.completion(REASONING, usage=SPENT)), "empty", True),
    (json_answer(peers.completion(peers.call_message(("c", "f", "{}")), usage=SPENT)), "tool_call", True),
    (json_answer({"usage": SPENT}), "not_json", True),
    (json_answer({"choices": []}), "not_json", False),
    (bytes_answer(b"<html>"), "not_json", False),
    (bytes_answer(b""), "not_json", False),
    (peers.sse_answer([{"error": {"message": "no"}}]), "not_json", False),
    (peers.sse_answer(peers.chunks(peers.call_message(("c", "f", "{}")))), "tool_call", False),
    (bytes_answer(b"x" * 5_000_000), "too_long", False),
    (bytes_answer(b"\x1f\x8b", headers=(("Content-Encoding", "gzip"),)), "encoded", False),
    (
        bytes_answer(gzip.compress(bytes(5_000_000)), headers=(("Content-Encoding", "gzip"),)),
        "encoded",
        False,
    ),
    (json_answer({"error": {"message": "no"}}, status=400), "status_400", False),
    (json_answer({"error": {"message": "no"}}, status=401), "status_401", False),
    (bytes_answer(b"", status=302, headers=(("Location", "/"),)), "status_302", False),
]


NO_SYSTEM = json_answer({"error": {"message": "Jinja Exception: System role not supported"}}, status=500)
MESSAGES = (
    b'{"model":"m","messages":[{"role":"system","content":"Summarise."},{"role":"user","content":"They."}]}'
)


async def test_where_the_chat_template_takes_no_system_message_it_goes_into_the_users() -> None:
    async with ScriptedUpstream([NO_SYSTEM, GOOD]) as upstream, caller(upstream.base_url) as side:
        assert isinstance(await side.ask(MESSAGES, ORIGIN), Answered)
        first, second = upstream.requests
        assert first.body == MESSAGES
        assert second.json() == {
            "model": "m",
            "messages": [{"role": "user", "content": "Summarise.\n\nThey."}],
        }
        assert second.headers_named("content-length") == [str(len(second.body))]


async def test_a_server_that_goes_on_about_its_system_is_asked_twice_and_no_more() -> None:
    async with ScriptedUpstream([NO_SYSTEM, NO_SYSTEM, GOOD]) as upstream, caller(upstream.base_url) as side:
        assert await side.ask(MESSAGES, ORIGIN) == SideCallFailed("status_500")
        assert len(upstream.requests) == 2


@pytest.mark.parametrize(("answer", "reason", "tells_usage"), FAILURES)
async def test_an_answer_that_is_no_use_is_a_fixed_word_and_not_asked_for_again(
    answer: Answer, reason: str, tells_usage: bool
) -> None:
    outcome, calls = await asked([answer, GOOD])
    assert isinstance(outcome, SideCallFailed)
    assert (outcome.reason, calls) == (reason, 1)
    assert (outcome.usage is not None) is tells_usage


TRANSIENT = [
    (BUSY, "status_429"),
    (bytes_answer(b"", status=500), "status_500"),
    (raw_answer(Cut.CLOSE), "unreachable"),
    (GOOD.cut_at(5, Cut.CLOSE), "broken"),
]


@pytest.mark.parametrize(("answer", "reason"), TRANSIENT)
async def test_what_may_pass_is_tried_again_within_the_attempts(answer: Answer, reason: str) -> None:
    outcome, calls = await asked([answer, GOOD])
    assert (isinstance(outcome, Answered), calls) == (True, 2)
    outcome, calls = await asked([answer] * 5, SideCalls(attempts=3))
    assert (outcome, calls) == (SideCallFailed(reason), 3)
    outcome, calls = await asked([answer] * 5, SideCalls(attempts=1))
    assert (outcome, calls) == (SideCallFailed(reason), 1)


async def test_an_upstream_that_is_not_there_is_unreachable() -> None:
    async with caller("http://127.0.0.1:9/v1") as side:
        assert await side.ask(b"{}", ORIGIN) == SideCallFailed("unreachable")


async def test_a_wait_that_is_longer_than_the_deadline_is_not_begun() -> None:
    patient = json_answer({}, status=429, headers=(("Retry-After", "3600"),))
    outcome, calls = await asked([patient, GOOD])
    assert (outcome, calls) == (SideCallFailed("status_429", after=3600.0), 1)


@pytest.mark.parametrize(("value", "least"), [("Fri, 01 Jan 2100 00:00:00 GMT", 10**9), ("soon", None)])
async def test_the_wait_may_be_told_as_a_date_and_what_is_none_is_not_taken_for_one(
    value: str, least: int | None
) -> None:
    busy = json_answer({}, status=429, headers=(("Retry-After", value),))
    outcome, _ = await asked([busy], SideCalls(attempts=1))
    assert isinstance(outcome, SideCallFailed)
    assert (outcome.after or 0) >= (least or 0)
    assert (outcome.after is None) is (least is None)


async def test_the_wait_that_the_upstream_asks_for_is_kept() -> None:
    outcome, calls = await asked([json_answer({}, status=503, headers=(("Retry-After", "0"),)), GOOD])
    assert (isinstance(outcome, Answered), calls) == (True, 2)


@pytest.mark.parametrize(
    "slow",
    [
        Answer(before=asyncio.Event()),
        Answer(200, (), (b"{", asyncio.Event()), Framing.CHUNKED),
    ],
    ids=("before the head", "in the body"),
)
async def test_b110_the_deadline_ends_the_call_and_its_connection(slow: Answer) -> None:
    options = SideCalls(deadline=0.05, attempts=5)
    async with ScriptedUpstream([slow, GOOD]) as upstream, caller(upstream.base_url, options) as side:
        assert await side.ask(b"{}", ORIGIN) == SideCallFailed("timeout")
        await upstream.until(upstream.requests[0].client_gone.is_set)
        assert upstream.request_count == 1
        # The next one is free to try again.
        assert isinstance(await side.ask(b"{}", ORIGIN), Answered)


async def test_silence_counts_as_a_failed_try_and_not_as_the_end() -> None:
    silent = Answer(before=asyncio.Event())
    async with ScriptedUpstream([silent, GOOD]) as upstream, caller(upstream.base_url, idle=0.05) as side:
        assert isinstance(await side.ask(b"{}", ORIGIN), Answered)
        assert upstream.request_count == 2


STREAMED = peers.sse_answer([*peers.chunks(peers.text_message("They talked.")), peers.usage_chunk(SPENT)])
STREAMING = b'{"messages":[],"stream":true,"stream_options":{"include_usage":true}}'


async def test_b27_a_streamed_answer_is_put_together_with_its_usage() -> None:
    async with ScriptedUpstream([STREAMED]) as upstream, caller(upstream.base_url) as side:
        outcome = await side.ask(STREAMING, ORIGIN)
    assert isinstance(outcome, Answered)
    assert outcome.text == "They talked."
    assert outcome.usage is not None
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (500, 20)


async def test_b27_a_stream_that_stalls_once_it_has_begun_is_tried_again() -> None:
    begun = replace(STREAMED, framing=Framing.CHUNKED, pieces=(b'data: {"choices":[]}\n\n', asyncio.Event()))
    options = SideCalls(stall=0.05)
    async with ScriptedUpstream([begun, STREAMED]) as upstream, caller(upstream.base_url, options) as side:
        assert isinstance(await side.ask(STREAMING, ORIGIN), Answered)
        assert upstream.request_count == 2


async def test_b27_where_stream_options_are_refused_the_stream_is_asked_for_without() -> None:
    said = {"error": {"message": "Unrecognized request argument supplied: stream_options"}}
    refusal = json_answer(said, status=400)
    async with ScriptedUpstream([refusal, STREAMED]) as upstream, caller(upstream.base_url) as side:
        assert isinstance(await side.ask(STREAMING, ORIGIN), Answered)
        assert upstream.requests[1].json() == {"messages": [], "stream": True}


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
async def test_where_no_provider_lets_tools_be_forbidden_they_are_only_asked_not_to_be_called(
    status: int,
) -> None:
    said = {"error": {"message": "No endpoints found that support the provided 'tool_choice' value."}}
    body = b'{"messages":[],"tools":[{}],"tool_choice":"none"}'
    async with (
        ScriptedUpstream([json_answer(said, status=status), GOOD]) as upstream,
        caller(upstream.base_url) as side,
    ):
        assert isinstance(await side.ask(body, ORIGIN, SummaryMode.SUFFIX), Answered)
        assert upstream.requests[1].json() == {"messages": [], "tools": [{}]}
