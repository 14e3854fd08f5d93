"""Streams of events through the whole proxy: in time, intact, and broken where the upstream's broke.

Rules. The upstream waits at a gate behind each piece until the client has it, so a byte that is held back makes a test
fail. How events are read is tested in tests/wire; here is tested what reaches the client.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from proxy.context.policy import ModelPolicy
from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Cut, Framing, Piece, ScriptedUpstream

CHAT = "/v1/chat/completions"
SPENT = peers.usage(50, 5)
SAID = peers.chunks(peers.text_message("Hello there."))
ASKED = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 100 + b'"}], "stream": true}'
ASKED_WITH_USAGE = ASKED[:-1] + b', "stream_options": {"include_usage": true}}'
FULL = ModelPolicy(window=40, reserve_output=4, strategies=("drop",))
"""A window that the shortest request fills so far that the head of a stream waits for its first event."""

EVENTS = (
    b": hi\n\n",
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b"data: x\r\n\r\n",
    b"data: [DONE]\n\n",
)


def gated(
    pieces: tuple[bytes, ...], *, headers: peers.Headers = peers.SSE_HEADERS
) -> tuple[Answer, list[asyncio.Event]]:
    """An answer that waits behind each piece, and its gates."""
    gates = [asyncio.Event() for _ in pieces]
    played: list[Piece] = [each for pair in zip(pieces, gates, strict=True) for each in pair]
    return Answer(200, headers, tuple(played), Framing.CHUNKED), gates


@pytest.mark.parametrize("asked", [ASKED, ASKED_WITH_USAGE], ids=["usage is taken out", "usage is asked for"])
@pytest.mark.parametrize("policy", [ModelPolicy(), FULL], ids=["fits", "peeked at"])
async def test_b82_b85_each_event_arrives_before_the_next_is_sent(asked: bytes, policy: ModelPolicy) -> None:
    answer, gates = gated(EVENTS)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=policy) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, asked)
        await client.read_head()
        for piece, gate in zip(EVENTS, gates, strict=True):
            assert await client.read_bytes(len(piece)) == piece
            gate.set()
        assert await client.read_chunk() is None
        assert client.ended is True


async def test_pieces_of_events_arrive_as_they_come_at_a_client_that_asked_for_usage() -> None:
    pieces = peers.slices(b"".join(peers.sse([*SAID, peers.usage_chunk(SPENT)])), 13, 1, 40)
    answer, gates = gated(pieces)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, ASKED_WITH_USAGE)
        await client.read_head()
        for piece, gate in zip(pieces, gates, strict=True):
            assert await client.read_chunk() == piece
            gate.set()
        assert await client.read_chunk() is None
    (event,) = proxy.events()
    assert event["reported_tokens"] == 50


async def test_b93_an_encoded_stream_arrives_piece_by_piece_and_byte_for_byte() -> None:
    pieces = peers.slices(gzip.compress(b"".join(EVENTS)), 9)
    answer, gates = gated(pieces, headers=(*peers.SSE_HEADERS, ("Content-Encoding", "gzip")))
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, ASKED_WITH_USAGE, [("Accept-Encoding", "gzip")])
        assert (await client.read_head()).header("content-encoding") == "gzip"
        for piece, gate in zip(pieces, gates, strict=True):
            assert await client.read_chunk() == piece
            gate.set()
        assert await client.read_chunk() is None
        assert client.ended is True


@pytest.mark.parametrize("asked", [ASKED, ASKED_WITH_USAGE], ids=["usage is taken out", "usage is asked for"])
async def test_b87_events_of_five_megabytes_pass_and_the_usage_behind_them_is_read(asked: bytes) -> None:
    large = b'data: {"choices":[{"delta":{"content":"' + b"x" * 5_000_000 + b'"}}]}\n\n'
    rest = b"".join(peers.sse([peers.usage_chunk(SPENT)]))
    answer = Answer(200, peers.SSE_HEADERS, peers.slices(large * 2 + rest, 65_537), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asked)
    assert response.complete
    assert response.body == large * 2 + (rest if asked is ASKED_WITH_USAGE else b"data: [DONE]\n\n")
    (event,) = proxy.events()
    assert event["reported_tokens"] == 50


LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ODD_PLACES = {
    "beside the last choice": [*SAID[:-1], LAST | {"usage": SPENT}],
    "within a choice": [*SAID[:-1], {"choices": [{"delta": {}, "finish_reason": "stop", "usage": SPENT}]}],
    "under x_groq": [*SAID[:-1], LAST | {"x_groq": {"usage": SPENT}}],
    "in every frame": [frame | {"usage": SPENT} for frame in SAID],
    "behind the end": [*SAID, LAST, {"usage": SPENT}],
}


@pytest.mark.parametrize("frames", ODD_PLACES.values(), ids=ODD_PLACES)
@pytest.mark.parametrize("done", [True, False])
async def test_b52_b90_usage_in_odd_places_is_read_with_and_without_done_and_all_of_it_passes(
    frames: list[peers.Event], done: bool
) -> None:
    stream = b"".join(peers.sse(frames, done=done))
    answer = Answer(200, peers.SSE_HEADERS, peers.slices(stream, 50), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, ASKED)
    assert (response.body, response.complete) == (stream, True)
    (event,) = proxy.events()
    assert event["reported_tokens"] == 50


@pytest.mark.parametrize("how", list(Cut))
@pytest.mark.parametrize("policy", [ModelPolicy(), FULL], ids=["fits", "peeked at"])
@pytest.mark.parametrize(
    "beginning", [b"", EVENTS[1], EVENTS[1] + b'data: {"choi'], ids=["none", "one", "a part"]
)
async def test_b90_what_came_of_a_stream_arrives_and_then_it_breaks_here_too(
    how: Cut, policy: ModelPolicy, beginning: bytes
) -> None:
    arrived = asyncio.Event()
    pieces: tuple[Piece, ...] = (beginning, arrived, how) if beginning else (how,)
    answer = Answer(200, peers.SSE_HEADERS, pieces, Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=policy) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, ASKED)
        if not beginning and policy is FULL:
            # Nothing has been said yet, so an answer of our own can still be given where the head was held back.
            response = await client.read()
            assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")
            return
        await client.read_head()
        whole = EVENTS[1] if beginning else b""
        assert await client.read_bytes(len(whole)) == whole
        arrived.set()
        rest = [chunk async for chunk in _chunks(client)]
        assert (b"".join(rest), client.ended) == (beginning.removeprefix(EVENTS[1]), False)
    (event,) = proxy.events()
    assert (event["complete"], event["reported_tokens"]) == (False, None)


async def _chunks(client: RawClient) -> AsyncIterator[bytes]:
    while (chunk := await client.read_chunk()) is not None:
        yield chunk
