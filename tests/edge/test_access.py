"""Tokens and addresses through the whole proxy: who is answered, what the upstream hears, who shares with whom."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Address, Secret, SideCalls, SocketFile, Tenant
from proxy.config import Upstream as UpstreamOptions
from proxy.config.values import Admin, Auth
from proxy.errors import CannotListen
from tests.edge.proxied import Proxied, proxied
from tests.integration.test_side_calls import POLICY, strict, talk
from tests.peers.client import RawClient, Response
from tests.peers.upstream import ScriptedUpstream, json_answer

CHAT = "/v1/chat/completions"
ONE = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
ADA, BOB = "token-of-ada", "token-of-bob"
AUTH = Auth((Secret(ADA), Secret(BOB)))
KEY = "upstream-key"
OPTIONS = UpstreamOptions("", api_key=Secret(KEY), slots=4)
CREDENTIALS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "x-transom-token")

Fields = list[tuple[str, str]]


def bearer(token: str) -> Fields:
    return [("Authorization", f"Bearer {token}")]


async def ask(
    proxy: Proxied, method: str, target: str, fields: Fields, body: bytes | None = None
) -> Response:
    async with RawClient(proxy.url) as client:
        return await client.request(method, target, body, fields)


def heard(upstream: ScriptedUpstream) -> Fields:
    """The credentials that the upstream was sent, of all requests."""
    return [field for each in upstream.requests for field in each.headers if field[0].lower() in CREDENTIALS]


@pytest.mark.parametrize("fields", [[], bearer("wrong"), [("x-api-key", "")]], ids=("none", "wrong", "empty"))
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("POST", "/v1/embeddings"),
        ("OPTIONS", CHAT),
        ("GET", "/-/state"),
        ("GET", "/-/nothing"),
        ("POST", "/-/measure"),
        ("POST", "/-/compact"),
        ("GET", "/%2F-%2Fhealthz"),
        ("GET", "/-/healthz/../../v1/models"),
        ("CONNECT", "example.org:443"),
    ],
)
async def test_without_a_token_there_is_a_401_and_the_upstream_hears_nothing(
    method: str, target: str, fields: Fields
) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url, options=OPTIONS, auth=AUTH) as proxy:
        for extra in ([], [("x-context-mode", "off")]):
            body = ONE if method == "POST" else None
            response = await ask(proxy, method, target, [*fields, *extra], body)
            assert (response.status, response.header("www-authenticate")) == (401, "Bearer")
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert set(error) == {"message", "type", "param", "code"}
        assert upstream.connections == 0
        assert {event["reason"] for event in proxy.events()} == {"invalid_api_key"}


async def test_a_body_without_a_token_is_neither_asked_for_nor_read() -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, auth=AUTH) as proxy,
        RawClient(proxy.url) as client,
    ):
        head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n"
        await client.send(head.encode())
        response = await client.read()
    assert (response.status, response.interim, response.header("connection")) == (401, (), "close")


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api-key", "x-transom-token"])
@pytest.mark.parametrize("key", [KEY, ""])
async def test_with_a_token_the_configured_key_goes_up_in_its_place(name: str, key: str) -> None:
    options = UpstreamOptions("", api_key=Secret(key) if key else None)
    fields = [(name, f"Bearer {ADA}" if name == "Authorization" else ADA)]
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.url, options=options, auth=AUTH) as proxy,
    ):
        for method, target in (("POST", CHAT), ("POST", "/v1/embeddings"), ("GET", "/v1/models")):
            response = await ask(proxy, method, target, fields, ONE if method == "POST" else None)
            assert response.status == 200
        assert heard(upstream) == [("Authorization", f"Bearer {KEY}")] * 3 * bool(key)
        assert all(ADA.encode() not in request.head for request in upstream.requests)
    assert ADA not in proxy.log


async def test_a_clients_own_key_goes_up_when_the_token_stands_beside_it() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.url, options=OPTIONS, auth=AUTH) as proxy,
    ):
        fields = [*bearer("own"), ("X-Transom-Token", ADA)]
        for target in (CHAT, "/v1/embeddings"):
            assert (await ask(proxy, "POST", target, fields, ONE)).status == 200
        assert heard(upstream) == bearer("own") * 2


@pytest.mark.parametrize(
    ("side", "sent", "at_side_calls"),
    [
        (SideCalls(), bearer(ADA), bearer(KEY)),
        (SideCalls(), [*bearer("own"), ("x-transom-token", ADA)], bearer("own")),
        (SideCalls(api_key=Secret("side-key")), bearer(ADA), bearer("side-key")),
    ],
)
async def test_side_calls_never_carry_a_token_either(
    side: SideCalls, sent: Fields, at_side_calls: Fields
) -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, options=OPTIONS, policy=POLICY, auth=AUTH, side_calls=side) as proxy,
    ):
        assert (await ask(proxy, "POST", CHAT, sent, talk(12))).status == 200
        (call,) = upstream.side_calls
        assert [f for f in call.request.headers if f[0].lower() in CREDENTIALS] == at_side_calls
        assert all(ADA.encode() not in request.head for request in upstream.requests)


async def test_b117_holders_of_two_tokens_share_no_summary_whatever_else_they_send_alike() -> None:
    tenant = Tenant("X-Tenant")
    async with (
        strict() as upstream,
        proxied(upstream.url, options=OPTIONS, policy=POLICY, auth=AUTH, tenant=tenant) as proxy,
    ):
        for expected, fields in (
            (1, bearer(ADA)),
            (1, [("api-key", ADA)]),
            (2, bearer(BOB)),
            (3, [*bearer(ADA), ("X-Tenant", "t")]),
            (4, [*bearer(BOB), ("X-Tenant", "t")]),
            (5, [*bearer("own"), ("x-transom-token", ADA)]),
            (6, [*bearer("own"), ("x-transom-token", BOB)]),
        ):
            assert (await ask(proxy, "POST", CHAT, fields, talk(12))).status == 200
            assert len(upstream.side_calls) == expected


async def test_holders_of_a_token_see_and_forget_their_own_conversations_alone() -> None:
    async def rows(token: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads((await ask(proxy, "GET", "/-/state", bearer(token))).body)[
            "conversations"
        ]
        return listed

    async with strict() as upstream, proxied(upstream.url, policy=POLICY, auth=AUTH) as proxy:
        await ask(proxy, "POST", CHAT, bearer(ADA), talk(12))
        (row,) = await rows(ADA)
        assert await rows(BOB) == []
        forget = f"/-/state/{row['id']}"
        assert (await ask(proxy, "DELETE", forget, bearer(BOB))).status == 404
        (still,) = await rows(ADA)
        assert {**still, "seen_seconds_ago": 0, "checkpoint_age_seconds": 0} == {
            **row, "seen_seconds_ago": 0, "checkpoint_age_seconds": 0,
        }  # fmt: skip
        assert (await ask(proxy, "DELETE", forget, bearer(ADA))).status == 200


async def test_a_browsers_question_beforehand_passes_without_a_token_and_without_the_key() -> None:
    fields = [("Origin", "http://app.example"), ("Access-Control-Request-Method", "POST")]
    allowed = json_answer({}, headers=(("Access-Control-Allow-Origin", "*"),))
    async with (
        ScriptedUpstream(otherwise=allowed) as upstream,
        proxied(upstream.url, options=OPTIONS, auth=AUTH) as proxy,
    ):
        response = await ask(proxy, "OPTIONS", CHAT, fields)
        assert (response.status, response.header("access-control-allow-origin")) == (200, "*")
        assert heard(upstream) == []


SOCKET = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]


async def test_a_websocket_needs_a_token_too_and_carries_the_key_in_its_place() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer({}, status=400)) as upstream,
        proxied(upstream.url, options=OPTIONS, auth=AUTH) as proxy,
    ):
        assert (await ask(proxy, "GET", "/v1/realtime", SOCKET)).status == 401
        assert upstream.connections == 0
        assert (await ask(proxy, "GET", "/v1/realtime", [*SOCKET, *bearer(ADA)])).status == 400
        assert heard(upstream) == bearer(KEY)


async def test_without_tokens_a_page_of_another_site_gets_a_websocket_but_not_the_key() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer({}, status=400)) as upstream,
        proxied(upstream.url, options=OPTIONS) as proxy,
    ):
        for origin, sent in (("http://evil.example", []), (proxy.url, bearer(KEY))):
            upstream.requests.clear()
            assert (await ask(proxy, "GET", "/v1/realtime", [*SOCKET, ("Origin", origin)])).status == 400
            assert heard(upstream) == sent


# --- our own endpoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([("Host", "evil.example")], 421),
        ([("Host", "127.0.0.1"), ("Origin", "http://evil.example")], 403),
        ([("Host", "127.0.0.1"), ("Sec-Fetch-Site", "cross-site")], 403),
        ([("Host", "127.0.0.1")], 200),
        ([("Host", "evil.example"), ("Host", "127.0.0.1")], 400),
    ],
)
async def test_our_own_endpoints_are_shut_to_web_pages_of_others(fields: Fields, status: int) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        await client.send(f"GET /-/state HTTP/1.1\r\n{lines}\r\n".encode())
        response = await client.read()
    assert response.status == status
    assert "evil" not in response.body.decode()


async def test_our_own_endpoints_may_have_an_address_of_their_own() -> None:
    admin = Admin(listen=Address("127.0.0.1", 0))
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.url, admin=admin) as proxy,
        RawClient(proxy.url) as client,
        RawClient(proxy.events("listening")[0]["admin"]) as operator,
    ):
        assert [(await client.request("GET", each)).status for each in ("/-/state", "/-/")] == [404, 404]
        assert (await operator.request("GET", "/-/state")).status == 200
        for each in (client, operator):
            assert (await each.request("GET", "/-/healthz")).status == 200
        assert (await operator.request("GET", "/v1/models")).status == 404
        assert (await operator.post(CHAT, ONE)).status == 404
        assert upstream.connections == 0
        assert (await client.post(CHAT, ONE)).status == 200


async def test_our_own_endpoints_may_have_a_socket_of_their_own(tmp_path: Path) -> None:
    admin = Admin(listen=SocketFile(str(tmp_path / "admin.sock")))
    async with ScriptedUpstream() as upstream, proxied(upstream.url, admin=admin) as proxy:
        assert proxy.events("listening")[0]["admin"] == f"unix:{tmp_path}/admin.sock"
        reader, writer = await asyncio.open_unix_connection(tmp_path / "admin.sock")
        writer.write(b"GET /-/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()
    assert not (tmp_path / "admin.sock").exists()


async def test_an_address_that_is_taken_is_told_with_the_option_that_names_it() -> None:
    async with ScriptedUpstream() as upstream:
        admin = Admin(listen=Address("127.0.0.1", upstream.port))
        with pytest.raises(CannotListen, match=r"admin\.listen"):
            async with proxied(upstream.url, admin=admin):
                pass
