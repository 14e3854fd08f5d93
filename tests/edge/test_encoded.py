"""Bodies in a content encoding, through the proxy: read, changed where needed, and else the very bytes they were."""

import asyncio
import base64
import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence

import pytest

from proxy.context.conversation import Message
from proxy.context.policy import ModelPolicy, UsageMode
from proxy.context.tokens import Size
from tests.edge.proxied import Lettered, memories, proxied
from tests.peers import codings
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, bytes_answer, json_answer, sse_answer

CHAT = "/v1/chat/completions"
ENCODED = "Content-Encoding"
SPENT = peers.usage(50, 5)
WHOLE = peers.completion(peers.text_message("Hello."), usage=SPENT)
SAID = peers.chunks(peers.text_message("Hello there."))
STREAM = b"".join(peers.sse([*SAID, peers.usage_chunk(SPENT)]))
OK = json_answer(WHOLE)
NAMES = ("gzip", "deflate", "br", "zstd")

ROOMY = ModelPolicy(window=100_000)
TIGHT = ModelPolicy(window=2000, reserve_output=200, strategies=("drop",))
PASSIVE = ModelPolicy(usage=UsageMode.PASSIVE)


def talk(turns: int, **fields: object) -> bytes:
    messages = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 20})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 20})
    messages.append({"role": "user", "content": "Next?"})
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def noise(size: int) -> bytes:
    """Bytes that no coding makes smaller, the same ones each time."""
    return hashlib.shake_256(b"noise").digest(size)


# ---------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("value", codings.VALUES)
async def test_b92_an_encoded_body_is_measured_and_goes_on_as_it_came(value: str) -> None:
    body = codings.encode(value, talk(3))
    async with (
        ScriptedUpstream([OK, OK]) as upstream,
        proxied(upstream.url, policy=ROOMY) as proxy,
        RawClient(proxy.url) as client,
    ):
        plain = await client.post(CHAT, talk(3))
        response = await client.post(CHAT, body, [("cOntent-eNcoding", value)])
        request = upstream.requests[1]
    assert (request.body, request.headers_named(ENCODED)) == (body, [value.strip()])
    assert ("cOntent-eNcoding", value.strip()) in request.headers
    assert request.header("content-length") == str(len(body))
    assert response.json() == WHOLE
    assert response.header("x-context-tokens") == plain.header("x-context-tokens")
    assert response.header("x-context-actions") == "none"


@pytest.mark.parametrize("value", [*codings.VALUES, "deflate (bare)"])
async def test_b92_a_body_that_has_to_change_goes_on_plain(value: str) -> None:
    field = value.removesuffix(" (bare)")
    body = codings.encode(value, talk(40)) if field == value else codings.bare_deflate(talk(40))
    async with (
        ScriptedUpstream([OK, OK]) as upstream,
        proxied(upstream.url, policy=TIGHT) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(CHAT, talk(40), [("X-Mine", "1")])
        response = await client.post(CHAT, body, [(ENCODED, field), ("X-Mine", "1")])
        plain, request = upstream.requests
    assert len(plain.body) < len(talk(40))
    assert request.body == plain.body
    assert request.header("content-length") == str(len(plain.body))
    assert request.headers_named(ENCODED) == ([value] if value == "identity" else [])
    assert request.header("x-mine") == "1"
    assert (response.header("x-context-actions") or "").startswith("drop=")


async def test_b92_codings_in_two_fields_are_one_list_and_both_fields_go() -> None:
    fields = [(ENCODED, "gzip"), ("CONTENT-ENCODING", "BR")]
    body = codings.encode("gzip, br", talk(40))
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, policy=TIGHT) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(CHAT, body, fields)
        (request,) = upstream.requests
    assert request.headers_named(ENCODED) == []
    assert len(request.json()["messages"]) < 80


async def test_b92_a_stream_that_usage_is_spliced_into_goes_plain_and_as_it_came_where_that_is_refused() -> (
    None
):
    refusal = json_answer({"error": {"message": "Unrecognized argument: stream_options"}}, status=400)
    body = codings.zstd(talk(2, stream=True))
    async with (
        ScriptedUpstream([sse_answer(SAID), refusal, sse_answer(SAID)]) as upstream,
        proxied(upstream.url, policy=ROOMY) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in range(2):
            assert (await client.post(CHAT, body, [(ENCODED, "zstd")])).status == 200
        first, second, third = upstream.requests
    for spliced in (first, second):
        assert spliced.json()["stream_options"] == {"include_usage": True}
        assert spliced.header(ENCODED) is None
    assert (third.body, third.header(ENCODED)) == (body, "zstd")


UNREADABLE = {
    "unknown": ("compress", b"\x1f\x9d\x90", "encoding_unknown"),
    "one unknown among known ones": ("gzip, aws-chunked", gzip.compress(talk(40)), "encoding_unknown"),
    "corrupt": ("gzip", b"\x1f\x8b\x08 odd", "encoding_corrupt"),
    "misnamed": ("br", gzip.compress(talk(40)), "encoding_corrupt"),
    "not encoded at all": ("gzip", talk(40), "encoding_corrupt"),
    "cut short": ("gzip", gzip.compress(talk(40))[:-9], "encoding_corrupt"),
    "cut short, zstd": ("zstd", codings.zstd(talk(40))[:-40], "not_json"),
    "garbage behind": ("zstd", codings.zstd(talk(40)) + b"PK", "encoding_corrupt"),
    "empty": ("gzip", b"", "not_json"),
    "no JSON": ("gzip", gzip.compress(b"hello"), "not_json"),
    "bomb": ("gzip", gzip.compress(bytes(1 << 24)), "encoding_too_large"),
    "bomb, br": ("br", codings.br(bytes(1 << 24)), "encoding_too_large"),
    "bomb, zstd": ("zstd", codings.zstd(bytes(1 << 24)), "encoding_too_large"),
    "bomb in a bomb": ("gzip, gzip", gzip.compress(gzip.compress(bytes(1 << 24))), "encoding_too_large"),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_b92_a_body_that_cannot_be_read_goes_on_untouched_and_the_log_says_why(case: str) -> None:
    value, body, reason = UNREADABLE[case]
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, policy=TIGHT) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, body, [(ENCODED, value)])
        (request,) = upstream.requests
        (event,) = proxy.events()
        assert not proxy.events("internal_error")
    assert (request.body, request.headers_named(ENCODED)) == (body, [value])
    assert (response.status, response.json()) == (200, WHOLE)
    assert event["reason"] == reason


async def test_b92_what_would_be_over_our_own_limit_when_decoded_goes_on_untouched() -> None:
    fits, exceeds = talk(10), talk(11)
    async with (
        ScriptedUpstream(otherwise=OK) as upstream,
        proxied(upstream.url, policy=ROOMY, max_body=len(fits)) as proxy,
        RawClient(proxy.url) as client,
    ):
        for body in map(codings.zstd, (fits, exceeds)):
            assert (await client.post(CHAT, body, [(ENCODED, "zstd")])).status == 200
            assert upstream.requests[-1].body == body
        assert [event.get("reason") for event in proxy.events()] == [None, "encoding_too_large"]


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_b92_modes_that_change_nothing_leave_the_encoding_alone(mode: str) -> None:
    body = codings.br(talk(40))
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, policy=TIGHT) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, body, [(ENCODED, "br"), ("x-context-mode", mode)])
        (request,) = upstream.requests
    assert (request.body, request.header(ENCODED)) == (body, "br")
    assert (response.header("x-context-tokens") is None) == (mode == "off")


class Failing(Lettered):
    """Fails on every count."""

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        raise ZeroDivisionError


async def test_b92_after_a_fault_of_ours_the_client_s_encoded_bytes_go_on() -> None:
    body = codings.zstd(talk(3))
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, parts=(Failing(), memories())) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, body, [(ENCODED, "zstd")])
        (request,) = upstream.requests
    assert (request.body, request.header(ENCODED)) == (body, "zstd")
    assert response.header("x-context-actions") == "bypass=measure"


async def test_b92_a_large_encoded_body_in_chunks_is_read_whole() -> None:
    picture = base64.b64encode(noise(6_000_000)).decode()
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    body = codings.zstd(json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode())
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, policy=ROOMY) as proxy,
        RawClient(proxy.url) as client,
    ):
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Encoding: zstd\r\n\r\n"
        )
        await client.send(head.encode())
        for piece in peers.slices(body, 700_000):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.send(b"0\r\n\r\n")
        response = await client.read()
        (request,) = upstream.requests
    assert (response.status, response.header("x-context-actions")) == (200, "none")
    assert (request.body, request.header(ENCODED)) == (body, "zstd")


# ----------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("value", [*codings.VALUES, "deflate (bare)"])
@pytest.mark.parametrize("plain", [STREAM, json.dumps(WHOLE).encode()], ids=["stream", "document"])
async def test_b93_b95_usage_is_read_from_an_encoded_answer_whose_bytes_pass_as_they_are(
    plain: bytes, value: str, size: int
) -> None:
    field = value.removesuffix(" (bare)")
    body = codings.encode(value, plain) if field == value else codings.bare_deflate(plain)
    label = "text/event-stream" if plain is STREAM else "application/json"
    answer = Answer(
        200, (("Content-Type", label), (ENCODED, field)), peers.slices(body, size), Framing.CHUNKED
    )
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=PASSIVE) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1, stream=plain is STREAM), [("Accept-Encoding", field)])
        assert upstream.requests[0].header("accept-encoding") == field.strip()
        (event,) = proxy.events()
    assert (response.body, response.header(ENCODED), response.complete) == (body, field.strip(), True)
    assert event["reported_tokens"] == 50
    assert "usage_unread" not in event


@pytest.mark.parametrize("value", NAMES)
async def test_b93_a_promised_length_is_that_of_the_encoded_bytes(value: str) -> None:
    body = codings.encode(value, json.dumps(WHOLE).encode())
    async with (
        ScriptedUpstream([bytes_answer(body, headers=((ENCODED, value),))]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1))
    assert (response.body, response.header("content-length")) == (body, str(len(body)))


@pytest.mark.parametrize("value", NAMES)
async def test_b95_each_encoded_event_is_relayed_before_the_next_one_comes(value: str) -> None:
    gate = asyncio.Event()
    body = codings.encode(value, STREAM)
    pieces = (body[:20], gate, body[20:])
    answer = Answer(200, (*peers.SSE_HEADERS, (ENCODED, value)), pieces, Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=PASSIVE) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, talk(1, stream=True))
        await client.read_head()
        assert await client.read_chunk() == body[:20]
        gate.set()
        assert await client.read_chunk() == body[20:]
        assert await client.read_chunk() is None
        assert client.ended is True
        assert [event["reported_tokens"] for event in proxy.events()] == [50]


async def test_b95_a_stream_whose_encoding_is_flushed_and_never_ended_is_read_all_the_same() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in STREAM.splitlines(True)]
    answer = Answer(200, (*peers.SSE_HEADERS, (ENCODED, "gzip")), tuple(pieces), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=PASSIVE) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1, stream=True))
        (event,) = proxy.events()
    assert (response.body, response.complete) == (b"".join(pieces), True)
    assert event["reported_tokens"] == 50


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("filler", [b"x" * 5_000_000, base64.b64encode(noise(3_750_000))])
async def test_b87_b95_usage_behind_an_encoded_event_of_five_megabytes_is_read(
    value: str, filler: bytes
) -> None:
    body = codings.encode(value, b"data: {" + filler + b"}\n\n" + STREAM)
    answer = Answer(200, (*peers.SSE_HEADERS, (ENCODED, value)), peers.slices(body, 70_001), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=PASSIVE) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1, stream=True))
        (event,) = proxy.events()
    assert (response.body, response.complete) == (body, True)
    assert event["reported_tokens"] == 50


BROKEN = {
    "corrupt": ("gzip", b"\x1f\x8b\x00 not even valid \xff", "encoding_corrupt"),
    "unknown": ("compress", b"\x1f\x9d\x90", "encoding_unknown"),
    "damaged": ("zstd", codings.zstd(STREAM)[:-1] + b"\0", "encoding_corrupt"),
    "garbage behind": ("br", codings.br(STREAM) + b"more", "encoding_corrupt"),
    "bomb": ("gzip", gzip.compress(bytes(1 << 25)), "encoding_too_large"),
    "bomb, br": ("br", codings.br(bytes(1 << 25)), "encoding_too_large"),
    "bomb, zstd": ("zstd", codings.zstd(bytes(1 << 26)), "encoding_too_large"),
    "bomb in a bomb": ("gzip, gzip", gzip.compress(gzip.compress(bytes(1 << 25))), "encoding_too_large"),
}


@pytest.mark.parametrize("size", [300, 1_000_000])
@pytest.mark.parametrize("case", BROKEN)
async def test_b93_an_answer_that_cannot_be_read_loses_no_byte_and_the_log_says_why(
    case: str, size: int
) -> None:
    value, body, reason = BROKEN[case]
    answer = Answer(200, (*peers.SSE_HEADERS, (ENCODED, value)), peers.slices(body, size), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=PASSIVE) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1, stream=True))
        (event,) = proxy.events()
        assert not proxy.events("internal_error")
    assert (response.body, response.complete, response.header(ENCODED)) == (body, True, value)
    assert (event["reported_tokens"], event["usage_unread"]) == (None, reason)


@pytest.mark.parametrize("value", NAMES)
async def test_b83_of_a_stream_that_is_compressed_though_asked_not_to_be_nothing_is_taken_out(
    value: str,
) -> None:
    body = codings.encode(value, STREAM)
    answer = bytes_answer(body, headers=(*peers.SSE_HEADERS, (ENCODED, value)))
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(1, stream=True), [("Accept-Encoding", value)])
        (event,) = proxy.events()
        assert upstream.requests[0].header("accept-encoding") == "identity"
    assert (response.body, response.header(ENCODED)) == (body, value)
    assert response.header("content-length") == str(len(body))
    assert (event["actions"], event["reported_tokens"]) == ("include_usage", 50)


# ---------------------------------------------------------------------------------------------------------- refusals

TOO_LONG = {
    "error": {
        "message": "maximum context length is 2000 tokens. However, you requested 2400 tokens",
        "code": 400,
    }
}
UNTOLD = ModelPolicy(reserve_output=200, strategies=("drop",))


@pytest.mark.parametrize("value", [*NAMES, "gzip, br"])
@pytest.mark.parametrize("in_stream", [False, True], ids=["by status", "in the first event"])
async def test_b64_b65_an_encoded_refusal_is_read_and_made_good(value: str, in_stream: bool) -> None:
    said = json.dumps(TOO_LONG).encode()
    refusal = bytes_answer(codings.encode(value, said), status=400, headers=((ENCODED, value),))
    if in_stream:
        body = codings.encode(value, b"data: " + said + b"\n\n")
        fields = (*peers.SSE_HEADERS, (ENCODED, value))
        refusal = Answer(200, fields, peers.slices(body, 9), Framing.CHUNKED)
    async with (
        ScriptedUpstream([refusal, sse_answer(SAID)]) as upstream,
        proxied(upstream.url, policy=UNTOLD) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(24, stream=True))
        first, second = upstream.requests
    assert response.body == b"".join(peers.sse(SAID))
    assert len(second.body) < len(first.body)


BEGINNINGS = {
    "good": ("zstd", codings.zstd(STREAM)),
    "corrupt": ("gzip", b"\x1f\x8b\x00 not even valid \xff" * 1000),
    "unknown": ("compress", b"\x1f\x9d\x90" * 1000),
    "bomb": ("br", codings.br(bytes(1 << 25))),
    "nothing but empty members": ("gzip", gzip.compress(b"") * 20_000),
}


@pytest.mark.parametrize("case", BEGINNINGS)
async def test_b65_an_encoded_stream_whose_beginning_was_waited_for_passes_whole(case: str) -> None:
    value, body = BEGINNINGS[case]
    fields = (*peers.SSE_HEADERS, (ENCODED, value))
    async with (
        ScriptedUpstream([Answer(200, fields, peers.slices(body, 5000), Framing.CHUNKED)]) as upstream,
        proxied(upstream.url, policy=UNTOLD) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, talk(24, stream=True))
        assert not proxy.events("internal_error")
    assert (response.body, response.complete, response.header(ENCODED)) == (body, True, value)
