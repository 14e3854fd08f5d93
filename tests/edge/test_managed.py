"""Chat requests: the client's bytes under budget, answers read as they go by, modes, and what is said about it."""

import asyncio
import json

import pytest

from proxy.context.policy import Mode, ModelPolicy, UsageMode
from proxy.edge.usagetap import UsageTap
from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, bytes_answer, json_answer, sse_answer

CHAT = "/v1/chat/completions"
JSON = (("Content-Type", "application/json"),)
SPENT = peers.usage(50, 5)
WHOLE = peers.completion(peers.text_message("Hello."), usage=SPENT)
SAID = peers.chunks(peers.text_message("Hello there."))
EVENTS = [*SAID, peers.usage_chunk(SPENT)]
OWN_ERROR = {"message", "type", "param", "code"}

ODD_SPELLING = (
    b'{ "model":"m" ,"messages":[ {"content":"caf\\u00e9 \\ud83d\\ude00","role":"user","x":1.0e-7} ],\n'
    b'"seed":12345678901234567890, "temperature":1.0,"user":"a","metadata":{"b":[ ]} }\r\n'
)


def asks(**fields: object) -> bytes:
    """A chat request's body with one short message."""
    messages = [{"role": "user", "content": "Say hello."}]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


@pytest.mark.parametrize("window", [None, 100_000])
async def test_b73_under_budget_the_upstream_gets_the_clients_very_bytes(window: int | None) -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE)]) as upstream,
        proxied(upstream.url, policy=ModelPolicy(window=window)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, ODD_SPELLING)
        request = upstream.requests[0]
    assert request.body == ODD_SPELLING
    assert request.header("content-length") == str(len(ODD_SPELLING))
    assert response.json() == WHOLE
    assert response.header("x-context-actions") == "none"
    assert response.header("x-context-checkpoint") == "none"
    assert response.header("x-context-window") == (None if window is None else str(window))


ODD_BODIES = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b'{"messages":null}',
    b'{"messages":"x"}',
    b'{"messages":[1,null,{}],"model":5}',
    b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    b'{"messages":[],"stream":true,"tools":["\xff\xfe"]}',
    b'\xef\xbb\xbf{"messages":[]}',
    b'{"model":"m","model":"n","messages":[]}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"messages":[{"role":"user","content":' + b"[" * 10_000 + b"]" * 10_000 + b"}]}",
    b'{"stream":true,"messages":[' + b"{}," * 250_000 + b"{}]}",
    b'{"stream":true,"messages":[{"role":"user","content":[' + b"{}," * 250_000 + b"{}]}]}",
    b'{"stream":true,"messages":[],' + b'"a":1,' * 250_000 + b'"b":1}',
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
async def test_b123_odd_bodies_are_forwarded_verbatim_and_the_upstream_judges(body: bytes) -> None:
    refusal = json_answer({"error": {"message": "bad request"}}, status=400)
    async with (
        ScriptedUpstream([refusal]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, body)
        assert [request.body for request in upstream.requests] == [body]
        assert not proxy.events("internal_error")
    assert (response.status, response.json()) == (400, {"error": {"message": "bad request"}})


# ------------------------------------------------------------------------------------------------------------- usage


async def test_b83_injected_usage_is_read_and_taken_out_again_for_a_client_that_did_not_ask() -> None:
    asked = peers.sse(EVENTS)
    unasked = peers.sse(SAID)
    async with (
        ScriptedUpstream([sse_answer(EVENTS)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(
            CHAT, asks(stream=True, stream_options={"x": 1}), [("Accept-Encoding", "gzip")]
        )
        request = upstream.requests[0]
        (event,) = proxy.events()
    assert b"".join(asked) != b"".join(unasked)
    assert response.body == b"".join(unasked)
    assert response.complete
    assert request.json()["stream_options"] == {"x": 1, "include_usage": True}
    assert request.header("accept-encoding") == "identity"
    assert response.header("x-context-actions") == "include_usage"
    assert (event["reported_tokens"], event["actions"]) == (50, "include_usage")


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_b81_b85_a_client_that_asked_gets_the_upstreams_very_bytes(size: int) -> None:
    stream = b"\xef\xbb\xbf: hi\r\ndata:{}\r\rdata: [\ndata: ]\n\nid: 1\nretry: 5\n\n" + b"".join(
        peers.sse(EVENTS, done=False)
    ).removesuffix(b"\n\n")
    answer = Answer(200, peers.SSE_HEADERS, peers.slices(stream, size), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True, stream_options={"include_usage": True}))
        (event,) = proxy.events()
    assert (response.body, response.complete) == (stream, True)
    assert event["reported_tokens"] == 50


@pytest.mark.parametrize("is_asked", [False, True])
async def test_b86_odd_events_never_break_the_stream(is_asked: bool) -> None:
    odd = ("{}", '{"choices":[]}', '{"choices":null}', "[]", "null", "{no json", '{"error":{"message":"x"}}')
    stream = b"".join(peers.sse(odd, done=False)) + b"data: \xff\xfe\n\n" + b"".join(peers.sse(SAID))
    answer = Answer(200, peers.SSE_HEADERS, peers.slices(stream, 11), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True, stream_options={"include_usage": is_asked}))
        assert (response.body, response.complete) == (stream, True)
        told = [line for line in map(json.loads, proxy.log.splitlines()) if line["event"] != "window_unknown"]
        assert {line["level"] for line in told} <= {"debug", "info"}


async def test_an_unknown_window_is_said_once_for_each_model_and_not_where_it_is_known() -> None:
    answer = json_answer(peers.completion(peers.text_message("Hello."), usage=peers.usage(50, 5)))
    async with ScriptedUpstream(otherwise=answer) as upstream, proxied(upstream.url) as proxy:
        for model in ("a", "b", "a", "a"):
            async with RawClient(proxy.url) as client:
                await client.post(CHAT, asks(model=model))
        assert [told["model"] for told in proxy.events("window_unknown")] == ["a", "b"]
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url, policy=ModelPolicy(window=5000)) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(CHAT, asks())
        assert proxy.events("window_unknown") == []


async def test_b51_a_count_that_stands_still_while_more_is_sent_is_told_once_for_each_model() -> None:
    answer = json_answer(peers.completion(peers.text_message("Hello."), usage=peers.usage(2048, 5)))
    said = [{"role": "user", "content": "word " * 1600}]
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url, policy=ModelPolicy(window=100_000)) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in range(4):
            assert (await client.post(CHAT, asks(messages=said))).status == 200
            said += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "word " * 400}]
        assert [told["counted"] for told in proxy.events("prompt_seems_cut")] == [2048]


@pytest.mark.parametrize("streams", [False, True], ids=("asked whole", "asked as stream"))
@pytest.mark.parametrize("answers_stream", [False, True], ids=("answered whole", "answered as stream"))
@pytest.mark.parametrize("label", ["application/json", "text/event-stream", "text/plain", None])
async def test_b89_an_answer_is_read_as_what_it_is_and_relayed_as_it_was_labelled(
    streams: bool, answers_stream: bool, label: str | None
) -> None:
    body = b"".join(peers.sse(EVENTS)) if answers_stream else b" \n\n" + json.dumps(WHOLE).encode()
    fields = () if label is None else (("Content-Type", label),)
    answer = Answer(200, fields, peers.slices(body, 100), Framing.CHUNKED)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=ModelPolicy(usage=UsageMode.PASSIVE)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=streams))
        (event,) = proxy.events()
    assert (response.body, response.header("content-type"), response.complete) == (body, label, True)
    assert event["reported_tokens"] == 50


async def test_b89_a_document_in_place_of_a_stream_keeps_its_length_and_its_bytes() -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True))
        (event,) = proxy.events()
    assert response.header("content-length") == str(len(response.body))
    assert (response.json(), event["reported_tokens"]) == (WHOLE, 50)


async def test_a_stream_with_a_length_loses_the_length_with_the_event() -> None:
    stream = b"".join(peers.sse(EVENTS))
    async with (
        ScriptedUpstream([bytes_answer(stream, headers=peers.SSE_HEADERS)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True))
    assert response.header("content-length") is None
    assert response.complete
    assert b'"usage"' not in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")


async def test_b84_an_upstream_that_refuses_the_option_is_asked_again_without_it_and_remembered() -> None:
    refusal = json_answer({"error": {"message": "Unrecognized argument: stream_options"}}, status=400)
    stream = sse_answer(SAID)
    async with (
        ScriptedUpstream([refusal, stream, stream]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in range(2):
            assert (await client.post(CHAT, asks(stream=True))).body == stream.body
        bodies = [request.body for request in upstream.requests]
    assert b"include_usage" in bodies[0]
    assert bodies[1:] == [asks(stream=True)] * 2


async def test_b84_a_refusal_that_goes_on_and_on_is_given_up_before_the_second_call() -> None:
    endless = (b'{"error": {"message": "stream_options' + b"x" * 2_000_000, asyncio.Event())
    refusal = Answer(400, JSON, endless, Framing.CHUNKED)
    async with (
        ScriptedUpstream([refusal, sse_answer(SAID)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(CHAT, asks(stream=True))).status == 200
        await upstream.until(upstream.requests[0].client_gone.is_set)


async def test_a_refusal_is_relayed_verbatim_however_long_it_is() -> None:
    body = b'{"error": "' + b"x" * 3_000_000 + b'"}'
    answers = [
        Answer(400, JSON, peers.slices(body, 50_000), framing)
        for framing in (Framing.CHUNKED, Framing.LENGTH)
    ]
    async with (
        ScriptedUpstream(answers) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in answers:
            response = await client.post(CHAT, asks())
            assert (response.status, response.body, response.complete) == (400, body, True)


async def test_a_refusal_that_breaks_off_is_broken_off() -> None:
    answer = Answer(400, JSON, (b'{"error": "12345"}',)).cut_at(10, peers.Cut.CLOSE)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks())
        (event,) = proxy.events()
    assert (response.status, response.body, response.complete) == (400, b'{"error": ', False)
    assert not event["complete"]


async def test_b90_a_stream_that_breaks_off_teaches_nothing() -> None:
    stream = [{**each, "usage": SPENT} for each in SAID]
    answer = sse_answer(stream)
    async with (
        ScriptedUpstream([answer.cut_at(len(answer.body) - 5, peers.Cut.CLOSE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True))
        (event,) = proxy.events()
    assert (response.body, response.complete) == (answer.body[:-5], False)
    assert (event["reported_tokens"], event["complete"]) == (None, False)


def test_a_document_that_is_too_long_to_keep_passes_unread() -> None:
    tap = UsageTap(strips=False)
    document = b'{"x":"' + b"x" * 5_000_000 + b'","usage":{"prompt_tokens":5}}'
    assert b"".join(tap.feed(piece) for piece in peers.slices(document, 100_000)) + tap.end() == document
    assert tap.usage is None


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_blank_lines_before_an_answer_do_not_decide_what_it_is(size: int) -> None:
    for body in (b"\r\n\n " + json.dumps(WHOLE).encode(), b"\n\n" + b"".join(peers.sse(EVENTS))):
        tap = UsageTap(strips=False)
        assert b"".join(tap.feed(piece) for piece in peers.slices(body, size)) + tap.end() == body
        assert tap.usage is not None
        assert tap.usage.prompt_tokens == 50


# ------------------------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("by", ["header", "configuration"])
async def test_mode_off_is_bytes_in_and_bytes_out(by: str) -> None:
    policy = ModelPolicy(window=10, mode=Mode.OFF if by == "configuration" else Mode.MANAGE)
    fields = [("X-Context-Mode", "off")] if by == "header" else []
    async with (
        ScriptedUpstream([sse_answer(EVENTS)]) as upstream,
        proxied(upstream.url, policy=policy) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True), fields)
        request = upstream.requests[0]
    assert request.body == asks(stream=True)
    assert request.header("x-context-mode") is None
    assert response.body == b"".join(peers.sse(EVENTS))
    assert not any(name.startswith("x-context") for name, _ in response.head.headers)


async def test_mode_off_by_header_streams_a_body_up_as_it_comes() -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nx-context-mode: off\r\nContent-Length: 4\r\n\r\n"
        await client.send(head.encode() + b"ab")
        await upstream.until(lambda: upstream.open_connections == 1)
        await client.send(b"cd")
        assert (await client.read()).status == 200
        assert upstream.requests[0].body == b"abcd"


async def test_mode_observe_measures_and_changes_nothing() -> None:
    async with (
        ScriptedUpstream([sse_answer(EVENTS)]) as upstream,
        proxied(upstream.url, policy=ModelPolicy(window=10)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, asks(stream=True), [("x-context-mode", "Observe")])
        (event,) = proxy.events()
        assert upstream.requests[0].body == asks(stream=True)
    assert response.header("x-context-window") == "10"
    assert int(response.header("x-context-tokens") or 0) > 0
    assert (event["mode"], event["actions"]) == ("observe", "none")


async def test_a_mode_header_that_means_nothing_is_ignored_and_said() -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(CHAT, asks(), [("x-context-mode", "of")])).status == 200
        assert upstream.requests[0].header("x-context-mode") is None
        assert [event["mode"] for event in proxy.events()] == ["manage"]
        assert len(proxy.events("mode_header_ignored")) == 1


# ---------------------------------------------------------------------------------------------------- what is counted


async def test_an_over_budget_request_is_compacted_and_says_so() -> None:
    history = [{"role": role, "content": f"{role} {'word ' * 200}"} for role in ("user", "assistant") * 20]
    body = json.dumps(
        {"model": "m", "messages": [*history, {"role": "user", "content": "And now?"}]}
    ).encode()
    policy = ModelPolicy(window=4000, reserve_output=500, strategies=("drop",))
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        proxied(upstream.url, policy=policy) as proxy,
        RawClient(proxy.url) as client,
    ):
        first = await client.post(CHAT, body)
        again = await client.post(CHAT, body)
        assert upstream.requests[0].body == upstream.requests[1].body
        assert len(upstream.requests[0].body) < len(body) / 2
        event, _ = proxy.events()
    assert (first.header("x-context-actions") or "").startswith("drop=")
    assert first.header("x-context-checkpoint") == again.header("x-context-checkpoint") != "none"
    assert event["tokens"] < event["original_tokens"]
    assert event["window"] == 4000


async def test_endpoints_that_generate_but_are_not_managed_are_said_once_and_pass() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for path in ("/v1/responses", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/embeddings"):
            assert (await client.post(path, b"{}")).status == 200
        said = [event["endpoint"] for event in proxy.events("endpoint_not_managed")]
        assert [request.body for request in upstream.requests] == [b"{}"] * 5
    assert said == ["responses", "messages", "completions"]


async def test_one_event_a_request_tells_counts() -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE), json_answer({}, status=404)]) as upstream,
        proxied(upstream.url, policy=ModelPolicy(window=5000)) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post(CHAT + "?api-version=1", asks())
        await client.request("GET", "/v1/models?key=1")
        chat, models = proxy.events()
    assert (chat["method"], chat["path"], chat["status"], chat["mode"]) == ("POST", CHAT, 200, "manage")
    assert (chat["model"], chat["window"], chat["actions"]) == ("m", 5000, "none")
    assert (chat["bytes_in"], chat["bytes_out"]) == (len(asks()), len(answer.body))
    assert (chat["tokens"], chat["reported_tokens"]) == (None, 50), "so small that it was not counted"
    assert {"lookup", "send", "relay"} <= set(chat["spent"])
    assert (models["path"], models["status"], models["bytes_in"]) == ("/v1/models", 404, 0)


# --------------------------------------------------------------------------------------------------- own endpoints


async def test_healthz_answers_without_the_upstream() -> None:
    async with proxied("http://127.0.0.1:9/v1") as proxy, RawClient(proxy.url) as client:
        response = await client.request("GET", "/-/healthz")
        assert (response.status, response.json()) == (200, {"status": "ok"})
        assert (await client.request("HEAD", "/-/healthz")).status == 200
        assert (await client.post("/-/healthz", b"{}")).status == 405


@pytest.mark.parametrize("path", ["/-/page", "/-/unknown", "/-/healthz/x"])
async def test_unknown_paths_of_our_own_are_not_forwarded(path: str) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        response = await client.request("GET", path)
        assert (response.status, set(response.json()["error"])) == (404, OWN_ERROR)
        assert not upstream.requests
