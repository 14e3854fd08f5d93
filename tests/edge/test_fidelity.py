"""Bytes and fields as they came, both ways, and nothing that two readers could understand differently.

Rules. Whole heads are compared, as bytes, on the side where they arrive: a library on either side would hide what it
mends. What is no clean HTTP is refused before the other side hears of it.
"""

import pytest

from tests.edge.crossing import ASKED, CHAT, CHUNKS, FILES, OK, answered, cross, head
from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient, request_bytes
from tests.peers.upstream import Answer, Cut, Framing, Request, ScriptedUpstream, bytes_answer, raw_answer

BOTH = pytest.mark.parametrize("target", [FILES, CHAT])


# ------------------------------------------------------------------------------------------------------------- fields

ODD_FIELDS = (
    b"x-b: 2",
    b"X-A: 1",
    b"X-Latin: caf\xe9 \xff\x80",
    b"X-UTF8: caf\xc3\xa9 \xe2\x82\xac",
    b"x-B: 3",
    b"X-Empty: ",
    b'X-Quoted: "a, b";  c=d',
    b"COOKIE: a=1; b=2",
    b"cookie: c=3",
    b"Authorization: Bearer t\xf6ken",
    b"Accept-Encoding: gzip, br;q=0.5",
    b"Via: 1.0 fred",
    b"Cache-Control: no-cache",
)
HOP = (
    b"Connection: keep-alive, X-Private",
    b"X-PRIVATE: 1",
    b"Keep-Alive: timeout=5",
    b"TE: trailers",
    b"Trailer: X-T",
    b"Upgrade: h2c",
    b"Proxy-Authorization: Basic x",
    b"Proxy-Connection: keep-alive",
)


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/models", None),
        ("POST", FILES, ASKED),
        ("POST", CHAT, ASKED),
        ("DELETE", "/v1/files/a", b""),
    ],
)
async def test_a_requests_fields_arrive_byte_for_byte_but_for_the_host_and_what_ends_here(
    method: str, target: str, body: bytes | None
) -> None:
    length = () if body is None else (b"Content-Length: %d" % len(body),)
    raw = head(method, target, *HOP[:4], *length, *ODD_FIELDS, *HOP[4:]) + (body or b"")
    crossing = await cross(raw)
    (request,) = crossing.requests
    host = request.headers_named("host")[0].encode()
    start = b"%b %b HTTP/1.1" % (method.encode(), target.encode())
    assert request.head == b"\r\n".join([start, b"Host: " + host, *length, *ODD_FIELDS, b"", b""])
    assert request.body == (body or b"")
    assert host.startswith(b"127.0.0.1:")


async def test_a_body_that_is_streamed_up_goes_behind_a_head_of_odd_bytes() -> None:
    raw = head("POST", FILES, b"X-Latin: caf\xe9", b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    (request,) = (await cross(raw)).requests
    assert request.head.endswith(b"\r\nX-Latin: caf\xe9\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert request.body == b"abc"


@BOTH
async def test_b120_an_answers_head_arrives_byte_for_byte_but_for_what_ends_here(target: str) -> None:
    kept = (
        b"set-cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
        b"X-Latin: caf\xe9 \xff\x80",
        b"Set-Cookie: b=2",
        b"Retry-After: 7",
        b"x-RateLimit-Remaining-Tokens: 0",
        b"WWW-Authenticate: A",
        b"WWW-Authenticate: B",
        b"SET-COOKIE: c",
        b"X-Empty: ",
        b"Date: Tue, 01 Dec 2026 03:23:39 GMT",
        b"Server: llama.cpp",
        b"Access-Control-Allow-Origin: *",
        b"Content-Type: a/b",
        b"Content-Length: 3",
    )
    hop = (b"Connection: close, X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"Proxy-Authenticate: Basic")
    answer = answered(*kept[:3], *hop, *kept[3:], status=b"429 Slow down, \xe9t\xe9  (now)")
    response = (await cross(request_bytes("POST", target, host="h", body=ASKED), answer)).response
    ours = b"".join(
        line + b"\r\n"
        for line in response.head.raw.split(b"\r\n")
        if line.startswith((b"x-context-", b"x-request-id: "))
    )
    assert response.head.raw == b"\r\n".join(
        [b"HTTP/1.1 429 Slow down, \xe9t\xe9  (now)", *kept, ours + b"\r\n"]
    )
    assert (bool(ours), response.body) == (target == CHAT, b"abc")


@BOTH
@pytest.mark.parametrize("size", [16_384, 65_535, 65_536])
async def test_b99_lines_of_64_kib_pass_both_ways(size: int, target: str) -> None:
    value = b"v" * size
    answer = answered(b"X-Long: " + value, b"Content-Length: 3")
    raw = head(
        "POST", f"{target}?q={'q' * size}", b"Authorization: " + value, b"Content-Length: %d" % len(ASKED)
    )
    crossing = await cross(raw + ASKED, answer)
    (request,) = crossing.requests
    assert crossing.response.header("x-long") == value.decode()
    assert (request.header("authorization"), request.target) == (value.decode(), f"{target}?q={'q' * size}")


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/v1//"])
@pytest.mark.parametrize("target", [CHAT, "/chat/completions", "/v1/models", "/models"])
async def test_b100_every_spelling_of_the_base_url_meets_every_one_of_the_path(
    base: str, target: str
) -> None:
    (request,) = (await cross(request_bytes("POST", target, host="h", body=ASKED), base=base)).requests
    short = target.removeprefix("/v1")
    assert request.target == (f"/v1{short}" if "v1" in base else target)


@BOTH
@pytest.mark.parametrize(
    "query", ["a=%2F+%20&b=%e9&c", "&&a=1&", "a=%zz&b={x}|<y>", "api-version=2024-10-21&key=a%26b", "?"]
)
async def test_b100_a_query_is_neither_decoded_nor_encoded(target: str, query: str) -> None:
    (request,) = (await cross(request_bytes("POST", f"{target}?{query}", host="h", body=ASKED))).requests
    assert request.target == f"{target}?{query}"


# ------------------------------------------------------------------------------------------------- one clear framing

UNCLEAR = {
    "length and chunks": (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "chunks and length": (b"Transfer-Encoding: chunked", b"Content-Length: 3"),
    "two lengths": (b"Content-Length: 3", b"Content-Length: 4"),
    "one length twice": (b"Content-Length: 3", b"Content-Length: 3"),
    "a list of lengths": (b"Content-Length: 3, 3",),
    "a signed length": (b"Content-Length: +3",),
    "a negative length": (b"Content-Length: -3",),
    "a length in words": (b"Content-Length: three",),
    "chunked twice": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked and then more": (b"Transfer-Encoding: chunked, identity",),
    "another coding's name": (b"Transfer-Encoding: xchunked",),
    "a folded line": (b"X-A: 1", b" Content-Length: 3"),
    "a bare CR": (b"X-A: 1\rContent-Length: 3",),
    "a bare LF": (b"X-A: 1\nTransfer-Encoding: chunked",),
    "a NUL": (b"X-A: 1\x00",),
    "a space before the colon": (b"Content-Length : 3",),
    "a field without a name": (b": 3",),
    "a second host": (b"Host: other",),
}


@pytest.mark.parametrize("lines", UNCLEAR.values(), ids=UNCLEAR)
@BOTH
async def test_a_request_that_two_readers_would_frame_differently_is_refused(
    lines: tuple[bytes, ...], target: str
) -> None:
    crossing = await cross(head("POST", target, *lines) + CHUNKS)
    assert (crossing.response.status, crossing.response.json()["error"]["code"]) == (400, "bad_request")
    assert not crossing.requests


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((b"Content-Length: 3", b"Transfer-Encoding: chunked"), CHUNKS),
        ((b"Content-Length: 3", b"Content-Length: 3"), b"abc"),
        ((b"Content-Length: 3", b"Content-Length: 4"), b"abc"),
        ((b"Content-Length: -3",), b"abc"),
        ((b"X-A: 1\rSet-Cookie: stolen=1", b"Content-Length: 3"), b"abc"),
        ((b"X-A: 1\x00", b"Content-Length: 3"), b"abc"),
        ((b"Transfer-Encoding: gzip, chunked",), CHUNKS),
        ((b"Transfer-Encoding: gzip",), b"abc"),
    ],
)
@BOTH
async def test_an_answer_that_two_readers_would_frame_differently_is_a_502_of_our_own(
    lines: tuple[bytes, ...], body: bytes, target: str
) -> None:
    raw = request_bytes("POST", target, host="h", body=ASKED)
    response = (await cross(raw, answered(*lines, body=body))).response
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")


async def test_a_folded_line_of_an_answer_is_unfolded() -> None:
    answer = answered(b"X-A: 1", b"  2", b"Content-Length: 3")
    response = (await cross(head("GET", "/v1/models"), answer)).response
    assert (response.head.headers[0][0], response.head.headers[0][1].split()) == ("X-A", ["1", "2"])
    assert b"\r\n " not in response.head.raw


@BOTH
async def test_a_body_in_another_transfer_coding_is_refused_since_it_would_arrive_as_what_it_is_not(
    target: str,
) -> None:
    crossing = await cross(head("POST", target, b"Transfer-Encoding: gzip, chunked") + CHUNKS)
    assert (crossing.response.status, crossing.response.header("connection")) == (501, "close")
    assert not crossing.requests


@BOTH
async def test_a_length_stays_though_connection_lists_it(target: str) -> None:
    lines = (b"Connection: content-length", b"Content-Length: %d" % len(ASKED))
    answer = answered(b"Connection: Content-Length", b"Content-Length: 3")
    crossing = await cross(head("POST", target, *lines) + ASKED, answer)
    (request,) = crossing.requests
    assert (request.header("content-length"), request.header("transfer-encoding")) == (str(len(ASKED)), None)
    assert (crossing.response.body, crossing.response.header("content-length")) == (b"abc", "3")
    assert crossing.response.header("transfer-encoding") is None


async def test_trailers_end_at_this_hop_and_take_nothing_with_them() -> None:
    raw = head("POST", FILES, b"Transfer-Encoding: chunked", b"Trailer: X-T")
    answer = answered(
        b"Transfer-Encoding: chunked", b"Trailer: X-T", body=b"3;e=1\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
    )
    crossing = await cross(raw + b"3;e=1\r\nabc\r\n0\r\nX-T: 1\r\n\r\n", answer)
    assert (crossing.requests[0].body, crossing.response.body) == (b"abc", b"abc")
    assert (crossing.response.complete, crossing.response.header("trailer")) == (True, None)


async def test_requests_in_one_packet_are_answered_one_after_the_other() -> None:
    def echo(request: Request) -> Answer:
        return bytes_answer(request.target.encode() + b" " + request.body)

    raws = [
        request_bytes("POST", CHAT, host="h", body=ASKED),
        head("POST", FILES, b"Transfer-Encoding: chunked") + CHUNKS,
        head("GET", "/v1/models"),
    ]
    async with (
        ScriptedUpstream(otherwise=echo) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(b"".join(raws))
        bodies = [(await client.read()).body for _ in raws]
    assert bodies == [CHAT.encode() + b" " + ASKED, b"/v1/files abc", b"/v1/models "]


# ----------------------------------------------------------------------------------------------- statuses and bodies

STATUSES = (
    b"200 ",
    b"201 Created",
    b"299 Odd",
    b"400 Bad",
    b"402 Pay",
    b"418 I'm a teapot",
    b"451 X",
    b"599 Y",
    b"999 Z",
)


@BOTH
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("body", [b'{"error": {"message": "no"}}', b"<html>\r\n", b"\x00\xff\xfe", b""])
async def test_b120_b122_any_status_with_any_body_passes_verbatim(
    target: str, status: bytes, body: bytes
) -> None:
    answer = answered(b"Content-Length: %d" % len(body), status=status, body=body)
    crossing = await cross(request_bytes("POST", target, host="h", body=ASKED), answer)
    response = crossing.response
    assert response.head.raw.split(b"\r\n", 1)[0] == b"HTTP/1.1 " + status
    assert (response.body, response.complete) == (body, True)
    assert len(crossing.requests) == 1


@BOTH
async def test_a_status_line_without_a_reason_and_without_its_space_passes(target: str) -> None:
    answer = answered(b"Content-Length: 3", status=b"404")
    response = (await cross(request_bytes("POST", target, host="h", body=ASKED), answer)).response
    assert (response.status, response.head.reason, response.body) == (404, "", b"abc")


@BOTH
@pytest.mark.parametrize("status", [b"000 No", b"099 No", b"101 Switching Protocols"])
async def test_a_status_that_no_answer_can_have_is_a_502_of_our_own(target: str, status: bytes) -> None:
    answer = answered(b"Content-Length: 3", status=status)
    response = (await cross(request_bytes("POST", target, host="h", body=ASKED), answer)).response
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_closed")


BARE = [
    answered(b"X-A: 1", status=b"204 No Content", body=b""),
    answered(b"Content-Length: 0", status=b"204 No Content", body=b""),
    answered(b"Content-Length: 0", status=b"205 Reset Content", body=b""),
    answered(b"Transfer-Encoding: chunked", status=b"205 Reset Content", body=b"0\r\n\r\n"),
    answered(b'ETag: "1"', b"Content-Length: 5", status=b"304 Not Modified", body=b""),
]


@BOTH
@pytest.mark.parametrize("answer", BARE, ids=lambda answer: answer.body.split(b"\r\n")[0].decode())
async def test_an_answer_without_a_body_has_none_here_either_and_the_connection_stays(
    target: str, answer: Answer
) -> None:
    async with (
        ScriptedUpstream([answer, OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        bare = await client.post(target, ASKED)
        assert (bare.body, bare.complete) == (b"", True)
        assert answer.body.startswith(bare.head.raw.split(b"\r\n", 1)[0])
        assert (await client.post(target, ASKED)).json() == {"ok": True}


@pytest.mark.parametrize("target", ["/v1/models", CHAT])
async def test_head_gets_the_fields_alone(target: str) -> None:
    answer = Answer(200, (("Content-Length", "1234"), ("ETag", "x")))
    async with (
        ScriptedUpstream([answer, OK]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("HEAD", target)
        assert response.head.raw == b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nETag: x\r\n\r\n"
        assert (await client.request("GET", target)).json() == {"ok": True}
        assert [request.method for request in upstream.requests] == ["HEAD", "GET"]


@BOTH
async def test_interim_answers_of_the_upstream_end_here_and_the_answer_behind_them_passes(
    target: str,
) -> None:
    """Several clients take any of them but 100 for the answer itself."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    answer = Answer(200, peers.JSON_HEADERS, (b"{}",), interim=interim)
    response = (await cross(request_bytes("POST", target, host="h", body=ASKED), answer)).response
    assert (response.status, response.body, response.interim) == (200, b"{}", ())


@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_relayed_and_not_followed(target: str, status: int) -> None:
    answer = Answer(status, (("Location", "http://elsewhere.invalid/a%20b"),), (b"moved",))
    crossing = await cross(request_bytes("POST", target, host="h", body=ASKED), answer)
    assert (crossing.response.status, crossing.response.body) == (status, b"moved")
    assert crossing.response.header("location") == "http://elsewhere.invalid/a%20b"
    assert len(crossing.requests) == 1


@BOTH
async def test_a_preflight_is_the_upstreams_to_answer(target: str) -> None:
    lines = (
        b"Origin: https://app.invalid",
        b"Access-Control-Request-Method: POST",
        b"Access-Control-Request-Headers: authorization,content-type",
    )
    allowed = (
        b"Access-Control-Allow-Origin: https://app.invalid",
        b"Access-Control-Allow-Headers: authorization,content-type",
        b"Vary: Origin",
    )
    crossing = await cross(
        head("OPTIONS", target, *lines), answered(*allowed, status=b"204 No Content", body=b"")
    )
    assert crossing.response.head.raw == b"\r\n".join([b"HTTP/1.1 204 No Content", *allowed, b"", b""])
    assert b"\r\n".join(lines) in crossing.requests[0].head


# --------------------------------------------------------------------------------------------------------- HTTP/1.0


@BOTH
@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED, Framing.UNTIL_CLOSE])
async def test_a_client_of_http_1_0_gets_no_chunks_and_its_connection_ends(
    target: str, framing: Framing
) -> None:
    raw = b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (target.encode(), len(ASKED), ASKED)
    answer = Answer(200, peers.JSON_HEADERS, (b"12", b"345"), framing)
    crossing = await cross(raw, answer)
    response = crossing.response
    assert (response.head.version, response.body, response.complete) == ("1.0", b"12345", True)
    assert (response.header("transfer-encoding"), response.header("connection")) == (None, "close")
    assert (crossing.requests[0].version, crossing.requests[0].body) == ("HTTP/1.1", ASKED)


async def test_a_client_of_http_1_0_may_ask_to_keep_its_connection_where_the_length_is_known() -> None:
    raw = b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    async with (
        ScriptedUpstream(otherwise=OK) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for _ in range(2):
            await client.send(raw)
            response = await client.read()
            assert (response.header("connection"), response.json()) == ("keep-alive", {"ok": True})


async def test_an_upstream_of_http_1_0_that_ends_by_closing_is_framed_in_chunks() -> None:
    answer = raw_answer(b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nabc", Cut.CLOSE)
    response = (await cross(head("GET", "/v1/models"), answer)).response
    assert (response.head.version, response.body, response.complete) == ("1.1", b"abc", True)
    assert response.header("transfer-encoding") == "chunked"
