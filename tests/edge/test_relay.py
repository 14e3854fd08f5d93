"""Requests that are not managed, and answers of every kind: the same bytes on both sides."""

import asyncio

import pytest

from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, bytes_answer, json_answer, raw_answer

OK = json_answer({"ok": True})
JSON = (("Content-Type", "application/json"),)
SSE = peers.SSE_HEADERS
CHAT = "/v1/chat/completions"
ONE = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
STREAM = b'{"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}}'


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/models", None),
        ("GET", "/v1/files/a%2Fb%20c?limit=10&after=%E2%82%AC+x", None),
        ("DELETE", "/v1/files/file-1", None),
        ("OPTIONS", "/v1/models", None),
        ("POST", "/v1/embeddings", b'{"input": "x"}'),
        ("PUT", "/v1/x", b""),
        ("PATCH", "/v1/x", b"\x00\xff binary"),
        ("PROPFIND", "/unknown//path;p=1", None),
        (
            "POST",
            "/v1/audio/transcriptions",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--',
        ),
    ],
)
async def test_b101_every_path_and_method_is_relayed(method: str, target: str, body: bytes | None) -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request(method, target, body, [("X-Mine", "1")])
        request = upstream.requests[0]
    assert (request.method, request.target, request.body) == (method, target, body or b"")
    assert request.header("x-mine") == "1"
    assert (response.status, response.json()) == (200, {"ok": True})


async def test_the_upstream_hears_the_clients_fields_and_not_one_more() -> None:
    sent = [
        ("x-b", "2"),
        ("X-A", "1"),
        ("Cookie", "c=1"),
        ("x-b", "3"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
    ]
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.request("GET", "/v1/models", None, sent)
        request = upstream.requests[0]
    assert request.headers == (
        ("Host", f"127.0.0.1:{upstream.port}"),
        ("x-b", "2"),
        ("X-A", "1"),
        ("Cookie", "c=1"),
        ("x-b", "3"),
    )


async def test_a_body_keeps_its_framing_on_the_way_up() -> None:
    async with (
        ScriptedUpstream(otherwise=OK) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.request("POST", "/v1/embeddings", b"12345")
        await client.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        await client.read()
        await client.request("GET", "/v1/models")
        known, chunked, none = upstream.requests
    assert (known.header("content-length"), known.header("transfer-encoding"), known.body) == (
        "5",
        None,
        b"12345",
    )
    assert (chunked.header("content-length"), chunked.header("transfer-encoding")) == (None, "chunked")
    assert chunked.body == b"abcde"
    assert (none.header("content-length"), none.header("transfer-encoding")) == (None, None)


async def test_a_body_goes_up_as_it_comes() -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(b"POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc")
        await upstream.until(lambda: upstream.open_connections == 1)
        await client.send(b"def")
        assert (await client.read()).status == 200
        assert upstream.requests[0].body == b"abcdef"


async def test_an_answers_head_keeps_its_status_reason_order_case_and_repetition() -> None:
    answer = Answer(
        418,
        (
            ("set-cookie", "a=1"),
            ("X-RateLimit", "9"),
            ("Set-Cookie", "b=2"),
            ("Keep-Alive", "timeout=5"),
            *JSON,
        ),
        (b"{}",),
        reason="Short and stout",
    )
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        head = (await client.request("GET", "/v1/models")).head
    assert (head.status, head.reason) == (418, "Short and stout")
    assert head.headers == (
        ("set-cookie", "a=1"),
        ("X-RateLimit", "9"),
        ("Set-Cookie", "b=2"),
        *JSON,
        ("Content-Length", "2"),
    )


async def test_a_head_that_is_no_utf8_arrives_as_it_was() -> None:
    head = b"HTTP/1.1 200 D'accord \xe9\r\nX-Name: caf\xe9\r\nContent-Length: 0\r\n\r\n"
    async with (
        ScriptedUpstream([raw_answer(head)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).head.raw == head


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("GET", peers.empty_answer(204, (("X-A", "1"),))),
        ("GET", peers.empty_answer(304, (("ETag", '"1"'), ("Content-Length", "5")))),
        ("HEAD", bytes_answer(b"12345")),
        ("HEAD", Answer(200, JSON, (b"12345",), Framing.CHUNKED)),
    ],
)
async def test_answers_without_a_body_leave_the_connection_usable(method: str, answer: Answer) -> None:
    async with (
        ScriptedUpstream([answer, OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request(method, "/v1/models")
        assert (response.status, response.body) == (answer.status, b"")
        assert response.header("content-length") == dict(answer.headers).get(
            "Content-Length", "5" if answer.framing is Framing.LENGTH else None
        )
        assert (await client.request("GET", "/v1/models")).status == 200


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED, Framing.UNTIL_CLOSE])
async def test_an_answer_is_framed_so_that_its_end_is_known(framing: Framing) -> None:
    async with (
        ScriptedUpstream([Answer(200, JSON, (b"12", b"345"), framing), OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models")
        assert (response.body, response.complete) == (b"12345", True)
        assert (response.header("content-length") is None) == (framing is not Framing.LENGTH)
        assert (await client.request("GET", "/v1/models")).status == 200


async def test_a_client_of_http_1_0_gets_an_answer_without_chunks() -> None:
    async with (
        ScriptedUpstream([Answer(200, JSON, (b"12", b"345"), Framing.CHUNKED)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        response = await client.read()
    assert (response.head.version, response.body, response.complete) == ("1.0", b"12345", True)
    assert response.header("transfer-encoding") is None


@pytest.mark.parametrize("target", ["/v1/models", CHAT])
async def test_each_chunk_is_relayed_before_the_next_one_comes(target: str) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    sent = (b"data: 1\n\n", b": keep-alive\n\n", b"data: 2\n\n")
    pieces = (sent[0], gates[0], sent[1], gates[1], sent[2], gates[2], b"data: [DONE]\n\n")
    async with (
        ScriptedUpstream([Answer(200, SSE, pieces, Framing.CHUNKED)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(target, STREAM)
        await client.read_head()
        for gate, piece in zip(gates, sent, strict=True):
            assert await client.read_chunk() == piece
            gate.set()
        assert await client.read_chunk() == b"data: [DONE]\n\n"
        assert await client.read_chunk() is None
        assert client.ended is True


async def test_the_head_of_a_stream_is_relayed_before_its_first_byte() -> None:
    gate = asyncio.Event()
    async with (
        ScriptedUpstream([Answer(200, SSE, (gate, b"data: 1\n\n"), Framing.CHUNKED)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, STREAM)
        assert (await client.read_head()).status == 200
        gate.set()
        assert await client.read_chunk() == b"data: 1\n\n"


async def test_b87_an_event_of_five_megabytes_is_relayed_intact() -> None:
    stream = b"data: {" + b"x" * 5_000_000 + b"}\n\ndata: [DONE]\n\n"
    async with (
        ScriptedUpstream([Answer(200, SSE, peers.slices(stream, 70_001), Framing.CHUNKED)]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, STREAM)
    assert response.complete
    assert response.body == stream


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_b91_a_body_of_thirty_megabytes_is_forwarded(target: str) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 30_000_000 + b'"}]}'
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(target, body)).status == 200
        assert upstream.requests[0].body == body


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_b91_a_body_over_our_own_limit_gets_an_error_of_our_own(framing: str) -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url, max_body=1000) as proxy,
        RawClient(proxy.url) as client,
    ):
        if framing == "length":
            response = await client.post(CHAT, b"x" * 1001)
        else:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head.encode() + b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n")
            response = await client.read()
        assert response.status == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert response.header("connection") == "close"
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert not upstream.requests


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
async def test_b93_an_encoded_answer_passes_raw_with_its_field_and_its_length(encoding: str) -> None:
    body = b"\x1f\x8b\x00 not even valid \xff"
    answer = bytes_answer(body, headers=(*JSON, ("Content-Encoding", encoding)))
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, ONE, [("Accept-Encoding", encoding)])
        assert upstream.requests[0].header("accept-encoding") == encoding
    assert (response.body, response.header("content-encoding")) == (body, encoding)
    assert response.header("content-length") == str(len(body))


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_b92_an_encoded_request_body_goes_on_untouched(target: str) -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(target, b"\x1f\x8b\x08 odd", [("Content-Encoding", "gzip")])
        request = upstream.requests[0]
    assert response.status == 200
    assert (request.body, request.header("content-encoding")) == (b"\x1f\x8b\x08 odd", "gzip")


@pytest.mark.parametrize("target", [CHAT, "/v1/embeddings"])
async def test_b98_a_client_that_waits_for_100_continue_gets_it_from_us(target: str) -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        await client.send(head.encode())
        assert (await client.read_head()).status == 100
        await client.send(b"{}")
        assert (await client.read()).status == 200
        assert upstream.requests[0].header("expect") is None


async def test_b99_long_header_lines_pass_both_ways() -> None:
    token = "t" * 16_384
    answer = json_answer({}, headers=(*JSON, ("X-Long", token)))
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models?q=" + token, None, [("Authorization", token)])
        assert upstream.requests[0].header("authorization") == token
        assert upstream.requests[0].target == "/v1/models?q=" + token
    assert (response.status, response.header("x-long")) == (200, token)


@pytest.mark.parametrize(
    ("base", "target", "arrives"),
    [
        ("", CHAT, CHAT),
        ("/v1", CHAT, CHAT),
        ("/v1", "/chat/completions", CHAT),
        ("/api/v1", CHAT + "?api-version=a%20b+c", "/api/v1/chat/completions?api-version=a%20b+c"),
        (
            "",
            "/openai/deployments/d%2Fe/chat/completions?x=%41",
            "/openai/deployments/d%2Fe/chat/completions?x=%41",
        ),
    ],
)
async def test_b100_the_url_arrives_joined_and_never_encoded_again(
    base: str, target: str, arrives: str
) -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url + base) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(target, ONE)
        assert upstream.requests[0].target == arrives


async def test_b102_localhost_works_where_only_ipv4_listens() -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(f"http://localhost:{upstream.port}/v1") as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200


async def test_redirects_and_cookies_are_the_clients_affair() -> None:
    moved = peers.empty_answer(204, ())
    redirect = Answer(307, (("Location", "/elsewhere"), ("Set-Cookie", "a=1; Path=/")), (b"moved",))
    async with (
        ScriptedUpstream([redirect, moved]) as upstream,
        # The library's own jar takes no cookies from an address, so the upstream has a name here.
        proxied(f"http://localhost:{upstream.port}") as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models")
        assert (response.status, response.header("location")) == (307, "/elsewhere")
        await client.request("GET", "/v1/models")
        assert upstream.request_count == 2
        assert upstream.requests[1].header("cookie") is None


async def test_interim_answers_end_at_this_hop() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    answer = Answer(200, JSON, (b"{}",), interim=hints)
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models")
    assert (response.status, response.interim) == (200, ())


async def test_a_request_to_another_protocol_is_answered_as_a_plain_one() -> None:
    async with (
        ScriptedUpstream([OK, OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        h2c = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")]
        response = await client.request("POST", "/v1/embeddings", b"12345", h2c)
        assert (response.status, upstream.requests[0].body) == (200, b"12345")
        assert upstream.requests[0].header("upgrade") is None
        assert (await client.request("GET", "/v1/models")).status == 200


async def test_tunnels_are_refused() -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        await client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert (await client.read()).status == 501


async def test_a_proxy_style_target_reaches_our_upstream_and_no_other() -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "http://elsewhere.invalid/v1/models?a=%20")
        assert response.status == 200
        assert upstream.requests[0].target == "/v1/models?a=%20"


async def test_a_request_with_two_framings_is_not_smuggled_on() -> None:
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(
            b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        assert (await client.read()).status in (200, 400)
        assert all(request.header("content-length") is None for request in upstream.requests)


@pytest.mark.parametrize(
    ("head", "arrives"),
    [
        ("GET http://evil.example/v1/models", "/v1/models"),
        ("GET ftp://evil.example:1/v1/models", "/v1/models"),
        ("GET //evil.example/v1/models", "/v1//evil.example/v1/models"),
        ("GET /\\evil.example/models", "/v1/\\evil.example/models"),
        ("GET /@evil.example/models", "/v1/@evil.example/models"),
        ("GET /models", "/v1/models"),
        ("POST http://evil.example/v1/chat/completions", CHAT),
    ],
)
async def test_no_request_chooses_the_upstream(head: str, arrives: str) -> None:
    fields = "Host: evil.example\r\nX-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\nContent-Length: 0"
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.base_url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(f"{head} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        assert (await client.read()).status == 200
        (request,) = upstream.requests
    assert (request.target, request.headers_named("host")) == (arrives, [f"127.0.0.1:{upstream.port}"])


LONG = "x" * 140_000


@pytest.mark.parametrize(
    "head",
    [
        f"GET /v1/{LONG} HTTP/1.1\r\nHost: h",
        f"GET / HTTP/1.1\r\nHost: h\r\nX-Long: {LONG}",
        f"GET / HTTP/1.1\r\nHost: h\r\n{LONG}: 1",
        "GET / HTTP/1.1\r\nHost: h" + "".join(f"\r\nX-{number}: 1" for number in range(1001)),
    ],
    ids=("target", "value", "name", "number"),
)
async def test_a_head_that_is_too_large_is_told_so(head: str) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        await client.send(f"{head}\r\n\r\n".encode())
        response = await client.read()
        assert upstream.connections == 0
    assert (response.status, response.json()["error"]["code"]) == (431, "headers_too_large")
