"""The peers do what they are told: bytes as scripted, gates, cuts, records; and the servers behind real clients.

Rules. The raw client is tested against the scripted upstream and the reverse; what either adds of itself is spelled
out as bytes here.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import openai
import pytest

from proxy.demo.upstream import DemoUpstream
from tests.peers.client import Disconnected, RawClient, request_bytes
from tests.peers.upstream import (
    Accepted,
    Answer,
    Cut,
    Framing,
    Refusal,
    Reply,
    ScriptedUpstream,
    StrictUpstream,
    Temper,
    UsagePlacement,
    bytes_answer,
    call_message,
    chunks,
    empty_answer,
    json_answer,
    marked,
    measure,
    o200k,
    raw_answer,
    slices,
    sse,
    sse_answer,
    text_message,
)

PATH = "/v1/chat/completions"


# --- the scripted upstream and the raw client -----------------------------------------------------------------------


async def test_a_request_is_recorded_as_it_was_sent() -> None:
    head = b"POST /V1/x?a=%2F&b HTTP/1.1\r\nhOsT: up\r\nX-Two: 1\r\nX-Two:  2 \r\nContent-Length: 3\r\n\r\n"
    async with ScriptedUpstream([json_answer({})]) as upstream, RawClient(upstream.url) as client:
        await client.send(head + b"{ }")
        await client.read()
    [request] = upstream.requests
    assert (request.head, request.body) == (head, b"{ }")
    assert (request.method, request.target, request.path) == ("POST", "/V1/x?a=%2F&b", "/V1/x")
    assert request.headers[0] == ("hOsT", "up")
    assert request.headers_named("x-two") == ["1", "2"]


async def test_a_chunked_request_is_recorded_without_its_framing() -> None:
    sent = (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n"
    )
    async with ScriptedUpstream([json_answer({})]) as upstream, RawClient(upstream.url) as client:
        for byte in slices(sent, 1):
            await client.send(byte)
        await client.read()
    assert upstream.requests[0].body == b"abcde"


async def test_an_answer_is_sent_as_scripted_and_nothing_is_added_but_its_framing() -> None:
    headers = (("X-Odd-CASE", "1"), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("X-Long", "x" * 16_384))
    answer = Answer(207, headers, (b"ab", b"", b"c"), Framing.CHUNKED, reason="Such")
    async with ScriptedUpstream([answer]) as upstream, RawClient(upstream.url) as client:
        response = await client.request("GET", "/")
    assert response.head.headers == (*headers, ("Transfer-Encoding", "chunked"))
    assert (response.head.reason, response.chunks, response.complete) == ("Such", (b"ab", b"c"), True)
    long = f"X-Long: {'x' * 16_384}"
    head = f"HTTP/1.1 207 Such\r\nX-Odd-CASE: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n{long}\r\n"
    assert response.head.raw == f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()


async def test_the_script_goes_answer_by_answer_and_says_when_it_is_over() -> None:
    script: list[Reply] = [json_answer(1), lambda request: json_answer(request.path)]
    async with ScriptedUpstream(script) as upstream, RawClient(upstream.url) as client:
        answers = [await client.request("GET", f"/{number}") for number in range(3)]
    assert [answer.body for answer in answers[:2]] == [b"1", b'"/1"']
    assert (answers[2].status, answers[2].body) == (500, b"The script has no answer for request 3: GET /2")
    assert (upstream.connections, upstream.request_count) == (1, 3)


async def test_a_mistake_in_the_script_fails_the_test_that_wrote_it() -> None:
    def mistaken(_: object) -> Answer:
        raise AssertionError("not what was expected")

    async def run() -> None:
        async with ScriptedUpstream([mistaken]) as upstream, RawClient(upstream.url) as client:
            with pytest.raises(Disconnected):
                await client.request("GET", "/")

    with pytest.raises(AssertionError, match="not what was expected"):
        await run()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (bytes_answer(b"abc"), b"abc"),
        (bytes_answer(b""), b""),
        (Answer(pieces=(b"a", b"bc"), framing=Framing.UNTIL_CLOSE), b"abc"),
        (Answer(pieces=(b"abc",), framing=Framing.UNTIL_CLOSE, version="1.0"), b"abc"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", b"\r\nabc"), b"abc"),
        (empty_answer(204), b""),
        (empty_answer(304, (("ETag", '"x"'),)), b""),
    ],
    ids=["length", "no bytes", "until close", "HTTP/1.0", "raw", "204", "304"],
)
async def test_each_framing_has_its_proper_end(answer: Answer, body: bytes) -> None:
    async with ScriptedUpstream([answer]) as upstream, RawClient(upstream.url) as client:
        response = await client.request("GET", "/")
    assert (response.body, response.complete) == (body, True)


async def test_a_head_request_gets_a_head_only() -> None:
    async with (
        ScriptedUpstream([json_answer([1]), json_answer(2)]) as upstream,
        RawClient(upstream.url) as client,
    ):
        response = await client.request("HEAD", "/")
        assert (response.header("Content-Length"), response.body) == ("3", b"")
        assert (await client.request("GET", "/")).body == b"2"


@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.LENGTH])
async def test_b90_a_body_is_cut_off_at_the_very_byte(framing: Framing, how: Cut) -> None:
    answer = Answer(pieces=(b"abc", b"def"), framing=framing).cut_at(4, how)
    async with ScriptedUpstream([answer]) as upstream, RawClient(upstream.url) as client:
        response = await client.request("GET", "/")
        assert (response.body, response.complete) == (b"abcd", False)
        assert client.was_reset is (how is Cut.RESET)
        await upstream.drained()
    assert not upstream.client_gone.is_set()
    assert not upstream.requests[0].answered.is_set()


async def test_a_cut_within_a_chunk_shows_what_came_of_it() -> None:
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
    async with ScriptedUpstream([raw_answer(wire, Cut.CLOSE)]) as upstream, RawClient(upstream.url) as client:
        response = await client.request("GET", "/")
    assert (response.body, response.complete) == (b"ab", False)


@pytest.mark.parametrize("how", Cut)
async def test_the_upstream_can_hang_up_before_it_answers(how: Cut) -> None:
    async with ScriptedUpstream([raw_answer(how)]) as upstream, RawClient(upstream.url) as client:
        with pytest.raises(Disconnected):
            await client.request("GET", "/")
        assert client.was_reset is (how is Cut.RESET)


async def test_b103_an_idle_connection_is_closed_without_a_word() -> None:
    answer = Answer(pieces=(b"{}",), then=Cut.CLOSE)
    async with ScriptedUpstream([answer]) as upstream, RawClient(upstream.url) as client:
        response = await client.request("GET", "/")
        assert response.header("Connection") is None
        assert response.complete
        assert await client.closed_by_server()


async def test_gates_hold_the_first_byte_and_the_bytes_between() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    answer = Answer(pieces=(b"ab", second, b"cd"), framing=Framing.CHUNKED, before=first)
    async with ScriptedUpstream([answer]) as upstream, RawClient(upstream.url) as client:
        await client.start("/", b"{}")
        head = asyncio.ensure_future(client.read_head())
        await upstream.received(1)
        assert not head.done()
        first.set()
        assert (await head).status == 200
        assert await client.read_chunk() == b"ab"
        rest = asyncio.ensure_future(client.read_chunk())
        assert not rest.done()
        second.set()
        assert await rest == b"cd"
        assert await client.read_chunk() is None
    assert upstream.requests[0].answered.is_set()


@pytest.mark.parametrize("by_reset", [False, True])
async def test_b106_the_upstream_notices_that_its_client_left(by_reset: bool) -> None:
    async with ScriptedUpstream([bytes_answer(b"abcdef").pausing(3, asyncio.Event())]) as upstream:
        async with RawClient(upstream.url) as client:
            await client.start("/", b"{}")
            await client.read_head()
            assert await client.read_bytes(3) == b"abc"
            assert upstream.open_connections == 1
            await (client.reset() if by_reset else client.disconnect())
            await upstream.requests[0].client_gone.wait()
        await upstream.drained()
    assert upstream.client_gone.is_set()
    assert not upstream.requests[0].answered.is_set()


async def test_a_client_that_leaves_between_requests_is_not_missed() -> None:
    async with ScriptedUpstream([json_answer({})]) as upstream:
        async with RawClient(upstream.url) as client:
            await client.request("GET", "/")
        await upstream.drained()
    assert not upstream.client_gone.is_set()


async def test_a_request_that_breaks_off_is_counted_and_not_recorded() -> None:
    async with ScriptedUpstream() as upstream:
        async with RawClient(upstream.url) as client:
            await client.send(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        await upstream.until(lambda: upstream.connections == 1 and not upstream.open_connections)
    assert (upstream.requests, upstream.incomplete_requests) == ([], 1)


async def test_b98_the_upstream_may_grant_what_is_expected_and_send_interim_heads() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    sent = request_bytes("POST", "/", host="x", body=b"{}", headers=[("Expect", "100-continue")])
    upstream = ScriptedUpstream([Answer(pieces=(b"{}",), interim=early)])
    async with upstream, RawClient(upstream.url) as client:
        await client.send(sent[:-2])
        assert (await client.read_head()).status == 100
        await client.send(sent[-2:])
        response = await client.read()
    assert [head.status for head in response.interim] == [103]
    assert response.body == b"{}"


async def test_only_the_newest_requests_are_kept_when_so_wished() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer({}), keep=2) as upstream,
        RawClient(upstream.url) as client,
    ):
        for number in range(5):
            await client.request("GET", f"/{number}")
        assert [request.target for request in upstream.requests] == ["/3", "/4"]
        assert (await upstream.received(5)).target == "/4"


async def test_a_closed_upstream_refuses_connections() -> None:
    async with ScriptedUpstream() as upstream:
        await upstream.close()
        with pytest.raises(ConnectionRefusedError):
            async with RawClient(upstream.url):
                pass


async def test_encoded_bodies_pass_as_they_are() -> None:
    packed = gzip.compress(b"{}")
    answer = bytes_answer(packed, headers=(("Content-Encoding", "gzip"),))
    async with ScriptedUpstream([answer, answer]) as upstream:
        async with RawClient(upstream.url) as client:
            assert (await client.request("GET", "/")).body == packed
        async with aiohttp.ClientSession() as session, session.get(upstream.url) as response:
            assert await response.read() == b"{}"


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_b81_events_are_written_with_any_line_end(line_end: str) -> None:
    sent = sse(["a\nb", {"c": 1}], line_end=line_end, comments=["ping"], space=False, done=False)
    lines = [": ping", "", "data:a", "data:b", "", ": ping", "", 'data:{"c":1}', "", ""]
    assert b"".join(sent).decode() == line_end.join(lines)


def test_a_streamed_message_is_the_message() -> None:
    message = call_message(("c1", "read", '{"path": "ä"}'), ("c2", "run", "{}"), text=" So,\n\n this.  ")
    text = ""
    calls: dict[int, dict[str, str]] = {}
    for each in cast(list[dict[str, Any]], chunks(message)):
        delta = each["choices"][0]["delta"]
        text += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"id": call.get("id"), "arguments": ""})
            known["arguments"] += call["function"]["arguments"]
    assert text == message["content"]
    assert calls == {0: {"id": "c1", "arguments": '{"path": "ä"}'}, 1: {"id": "c2", "arguments": "{}"}}


# --- the strict upstream ----------------------------------------------------------------------------------------------

SIDE = {"messages": [{"role": "system", "content": "Write the NOTES."}, {"role": "user", "content": "x"}]}
MAIN = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
ORPHAN = {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}


def events_of(body: bytes) -> list[Any]:
    data = [part.removeprefix("data: ") for part in body.decode().split("\n\n") if part]
    assert data[-1] == "[DONE]"
    return [json.loads(part) for part in data[:-1]]


async def test_the_strict_upstream_judges_counts_and_keeps_main_and_side_calls_apart() -> None:
    upstream = StrictUpstream(window=1000, factor=1.5, hidden=100, is_side_call=marked("NOTES"))
    async with upstream, RawClient(upstream.url) as client:
        first = await client.post(PATH, MAIN)
        refused = await client.post(PATH, ORPHAN)
        summaries = [(await client.post(PATH, SIDE)).json() for _ in range(2)]
    tokens = measure(MAIN, o200k, factor=1.5, hidden=100).total
    assert first.json()["choices"][0]["message"]["content"] == "Reply 1."
    assert first.json()["usage"]["prompt_tokens"] == tokens
    assert refused.status == 400
    assert upstream.main_bodies == [MAIN, ORPHAN]
    assert upstream.side_bodies == [SIDE, SIDE]
    assert [type(call.verdict) for call in upstream.calls] == [Accepted, Refusal, Accepted, Accepted]
    assert upstream.refusals == [call.verdict for call in upstream.main_calls[1:]]
    texts = {summary["choices"][0]["message"]["content"] for summary in summaries}
    assert len(texts) == 2


async def test_side_calls_can_fail_wait_and_be_answered_by_the_test() -> None:
    gate = asyncio.Event()
    upstream = StrictUpstream(
        window=1000,
        is_side_call=marked("NOTES"),
        side_failures=[json_answer({"error": "busy"}, status=429)],
        side_gate=gate,
        summarise=lambda body: json_answer(len(body["messages"])),
    )
    async with upstream, RawClient(upstream.url) as client:
        waiting = asyncio.ensure_future(client.post(PATH, SIDE))
        await upstream.received(1)
        assert not waiting.done()
        gate.set()
        assert (await waiting).status == 429
        assert (await client.post(PATH, SIDE)).body == b"2"
    assert [call.verdict is None for call in upstream.side_calls] == [True, False]


async def test_b84_stream_options_can_be_refused() -> None:
    body = {**MAIN, "stream": True, "stream_options": {"include_usage": True}}
    upstream = StrictUpstream(window=1000, refuses_stream_options=True)
    async with upstream, RawClient(upstream.url) as client:
        refused = await client.post(PATH, body)
        assert (await client.post(PATH, MAIN)).status == 200
    assert refused.status == 400
    assert refused.json()["error"]["message"] == "Unrecognized request argument supplied: stream_options"


@pytest.mark.parametrize(
    ("placement", "places"),
    [
        (UsagePlacement.SEPARATE, ["last without choices"]),
        (UsagePlacement.FINISH, ["finish"]),
        (UsagePlacement.EVERY, ["every"]),
        (UsagePlacement.CHOICE, ["choice"]),
        (UsagePlacement.NEVER, []),
    ],
)
async def test_usage_stands_where_it_was_placed(placement: UsagePlacement, places: list[str]) -> None:
    body = {**MAIN, "stream": True, "stream_options": {"include_usage": True}}
    async with (
        StrictUpstream(window=1000, placement=placement) as upstream,
        RawClient(upstream.url) as client,
    ):
        events = events_of((await client.post(PATH, body)).body)
    told = {
        "last without choices": bool(events[-1].get("usage")) and events[-1]["choices"] == [],
        "finish": bool(events[-1].get("usage"))
        and bool(events[-1]["choices"])
        and not events[0].get("usage"),
        "every": all(event.get("usage") for event in events),
        "choice": any("usage" in choice for event in events for choice in event["choices"]),
    }
    assert [place for place, is_there in told.items() if is_there] == places


async def test_models_are_listed_with_or_without_their_window_and_other_paths_are_unknown() -> None:
    async with StrictUpstream(window=512) as upstream, RawClient(upstream.url) as client:
        [row] = (await client.request("GET", "/v1/models")).json()["data"]
        assert "max_model_len" not in row
        upstream.tells_window = True
        [row] = (await client.request("GET", "/v1/models")).json()["data"]
        assert row["max_model_len"] == 512
        assert (await client.request("GET", "/v1/files")).status == 404
        assert (await client.post(PATH, b"{")).status == 400


# --- the demonstration's upstream, behind the real client --------------------------------------------------------

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        },
    }
    for name, key in (("read_file", "path"), ("run_tests", "command"))
]


@pytest.fixture
async def demo() -> AsyncIterator[DemoUpstream]:
    async with DemoUpstream(window=6000, count=o200k, steps=7, tells_window=True) as upstream:
        yield upstream


@pytest.fixture
async def client(demo: DemoUpstream) -> AsyncIterator[openai.AsyncOpenAI]:
    async with real_client(demo.base_url) as made:
        yield made


def real_client(base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)


async def test_the_real_client_chats(demo: DemoUpstream, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello."}])
    assert "stand-in" in str(answer.choices[0].message.content)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == demo.log[0].prompt_tokens
    assert json.loads(demo.log[0].body)["messages"] == [{"role": "user", "content": "Hello."}]
    [model] = (await client.models.list()).data
    assert (model.id, model.model_dump()["max_model_len"]) == ("demo-model", 6000)


async def test_the_real_client_streams_and_gets_usage_when_it_asks(client: openai.AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello."}]
    whole = await client.chat.completions.create(model="m", messages=messages)
    stream = await client.chat.completions.create(
        model="m", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    events = [event async for event in stream]
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert events[-1].usage == whole.usage
    silent = await client.chat.completions.create(model="m", messages=messages, stream=True)
    assert [event for event in [event async for event in silent] if event.usage or not event.choices] == []


async def test_the_real_client_is_led_through_the_steps_of_a_turn(client: openai.AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Mend the tests."}]
    steps = 0
    while calls := (await said(client, messages)).tool_calls:
        steps += 1
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in calls]
        assert all(isinstance(json.loads(call.function.arguments), dict) for call in calls)
        assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)
    assert steps == 7
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == 8  # one step asks twice
    again = [messages[0], *messages[-3:-1]]  # a history that lost its middle
    told = (await said(client, again)).content
    assert told == "All 7 steps of turn 1 are done; the last prompt held 3 messages."


async def said(client: openai.AsyncOpenAI, messages: list[Any]) -> Any:
    answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    return message


async def test_the_real_client_is_refused_as_by_the_real_server(
    demo: DemoUpstream, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a b " * 6000}])
    assert refusal.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="must be a response to a preceeding message"):
        await client.chat.completions.create(model="m", messages=cast(Any, ORPHAN["messages"]))
    assert [(served.status, served.prompt_tokens) for served in demo.log] == [(400, None), (400, None)]


async def test_a_summary_is_an_extract_that_says_so_and_keeps_its_limit(client: openai.AsyncOpenAI) -> None:
    lines = [f"user: line {number} of the talk" for number in range(300)]
    messages: list[Any] = [
        {"role": "system", "content": "Sum up."},
        {"role": "user", "content": "\n".join(lines)},
    ]
    made = await client.chat.completions.create(model="m", messages=messages, max_tokens=200)
    text = str(made.choices[0].message.content)
    heading, told, *sample = text.splitlines()
    assert heading == "Extract by the demonstration's stand-in, which is no model:"
    assert told == f"{len(sample)} of 300 lines, evenly spread"
    assert [line.removeprefix("- ") for line in sample] == lines[:: 300 // len(sample)]
    assert o200k(text) <= 200
    assert made.choices[0].finish_reason == "stop"
    tiny = await client.chat.completions.create(model="m", messages=messages, max_tokens=5)
    assert tiny.choices[0].finish_reason == "length"


async def test_the_demonstration_takes_other_tempers() -> None:
    messages: list[Any] = [{"role": "user", "content": "a"}] * 2
    demo = DemoUpstream(window=6000, count=o200k, temper=Temper.TEMPLATE)
    async with demo, real_client(demo.base_url) as client:
        with pytest.raises(openai.InternalServerError, match="roles must alternate"):
            await client.chat.completions.create(model="m", messages=messages)


async def test_a_stream_of_scripted_events_reaches_the_real_client() -> None:
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    answer = sse_answer(chunks(text_message("One two three.")), line_end="\r\n", comments=["keep-alive"])
    upstream = ScriptedUpstream([answer])
    async with upstream, real_client(upstream.base_url) as client:
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        words = [event.choices[0].delta.content async for event in stream]
    assert "".join(word or "" for word in words) == "One two three."
    assert upstream.requests[0].path == PATH
