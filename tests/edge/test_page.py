"""The page and what it asks for, over HTTP: who gets it, what a browser may do with it, and when it ends."""

import asyncio
import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from proxy.config import Address, Secret
from proxy.config.values import Admin, Auth
from proxy.edge.service import GRACE
from tests.edge.proxied import Proxied, proxied
from tests.integration.test_side_calls import POLICY, post, strict, talk
from tests.peers.client import RawClient
from tests.peers.upstream import ScriptedUpstream, json_answer

ADA = ("Authorization", "Bearer token-of-ada")
AUTH = Auth((Secret("token-of-ada"), Secret("token-of-bob")))


async def told(client: RawClient, *fields: tuple[str, str]) -> Any:
    """The first event of a client that begins to follow."""
    await client.send(b"GET /-/events HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    await client.send("".join(f"{name}: {value}\r\n" for name, value in fields).encode() + b"\r\n")
    head = await client.read_head()
    assert (head.status, head.header("content-type")) == (200, "text/event-stream")
    return await next_event(client)


async def next_event(client: RawClient) -> Any:
    text = b""
    while not text.endswith(b"\n\n"):
        chunk = await client.read_chunk()
        assert chunk is not None
        text += chunk
    return json.loads(text.partition(b"data: ")[2])


async def test_the_page_is_one_document_that_may_run_nothing_but_its_own_script() -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        answer = await client.get("/-/")
        assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
        head = await client.request("HEAD", "/-/")
        assert (head.status, head.body) == (200, b"")
        assert (await client.post("/-/", {})).status == 405
        slip = await client.get("/-")
        assert (slip.status, slip.header("location")) == (308, "/-/")
        assert not upstream.requests, "and nothing of it goes on"
    policy = answer.header("content-security-policy") or ""
    text = answer.body.decode()
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r"""(?:src|href|url\()=?["']?(?:https?:)?//""", text), (
        "nothing is fetched from elsewhere"
    )
    assert not re.findall(r"\s(?:on\w+|style)=", text), "no markup that the policy would not run"
    assert "innerHTML" not in text


async def test_who_follows_is_told_of_a_request_with_its_cut() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY) as proxy,
        RawClient(proxy.url) as client,
    ):
        first = await told(client)
        assert first["health"] == {"store": "ok", "upstream": "unknown", "upstream_status": None}
        assert not first["capture"]
        answer = await post(proxy.url, talk(12))
        change = await next_event(client)
    (row,) = change["conversations"]
    assert row["cuts"] == 1
    assert row["original"] == int(answer.header("x-context-original-tokens") or 0)
    assert row["forwarded"] == int(answer.header("x-context-tokens") or 0)
    assert sum(row["parts"].values()) == row["forwarded"]
    assert row["parts"]["summary"] > 0
    (request,) = change["requests"]
    assert request["actions"] == answer.header("x-context-actions")
    assert 0 < request["added_ms"] <= request["took_ms"]
    assert change["health"]["upstream"] == "ok"
    assert "Question" not in json.dumps(change)


async def test_our_own_endpoints_are_no_requests_that_are_shown() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        async with RawClient(proxy.url) as client:
            await client.get("/-/state")
            await client.post("/-/compact", talk(4))
        async with RawClient(proxy.url) as client:
            assert "requests" not in await told(client)


async def test_a_conversation_that_is_forgotten_goes_from_the_page() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY) as proxy,
        RawClient(proxy.url) as client,
    ):
        await post(proxy.url, talk(12))
        (row,) = (await told(client))["conversations"]
        async with RawClient(proxy.url) as other:
            await other.request("DELETE", f"/-/state/{row['id']}")
        assert (await next_event(client))["gone"] == [row["id"]]


# --- the text of requests -------------------------------------------------------------------------------------


async def opened(proxy: Proxied, name: str, *fields: tuple[str, str]) -> Any:
    async with RawClient(proxy.url) as client:
        return await client.get(f"/-/requests/{name}", fields)


async def test_with_capture_a_request_can_be_opened_beside_what_was_forwarded() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY, capture=True) as proxy:
        await post(proxy.url, talk(12))
        async with RawClient(proxy.url) as client:
            first = await told(client)
        assert first["capture"]
        answer = await opened(proxy, first["requests"][0]["capture"])
        pairs = answer.json()["messages"]
        sent = upstream.main_calls[0].body["messages"]
    assert answer.header("cache-control") == "no-store"
    assert len([pair for pair in pairs if pair["original"]]) == len(json.loads(talk(12))["messages"])
    assert len([pair for pair in pairs if pair["forwarded"]]) == len(sent)
    assert {pair["edit"] for pair in pairs} == {"same", "removed", "changed"}
    assert "Question" not in proxy.log


async def test_without_capture_no_text_is_kept() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        await post(proxy.url, talk(12))
        async with RawClient(proxy.url) as client:
            (request,) = (await told(client))["requests"]
        assert request["capture"] == ""
        answer = await opened(proxy, "anything")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_holder_of_a_token_follows_and_opens_its_own_requests_alone() -> None:
    bob = ("Authorization", "Bearer token-of-bob")
    async with strict() as upstream, proxied(upstream.url, policy=POLICY, auth=AUTH, capture=True) as proxy:
        await post(proxy.url, talk(12), ADA)
        async with RawClient(proxy.url) as client:
            (request,) = (await told(client, ADA))["requests"]
        async with RawClient(proxy.url) as client:
            assert "requests" not in await told(client, bob)
        assert (await opened(proxy, request["capture"], bob)).status == 404
        assert (await opened(proxy, request["capture"])).status == 401
        assert (await opened(proxy, request["capture"], ADA)).status == 200


# --- who gets in, and when it ends ------------------------------------------------------------------------------


async def test_the_page_itself_needs_no_token_and_all_that_it_shows_does() -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, auth=AUTH) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.get("/-/")).status == 200
        assert (await client.get("/-/events")).status == 401
        assert (await client.get("/-/requests/1")).status == 401
        assert (await client.get("/-/", [("Origin", "http://evil.example")])).status == 403
        await client.send(b"GET /-/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert (await client.read()).status == 421


@pytest.mark.parametrize("own_address", [False, True])
async def test_following_ends_at_once_when_the_process_is_told_to_stop(own_address: bool) -> None:
    admin = Admin(listen=Address("127.0.0.1", 0)) if own_address else Admin()
    began = asyncio.get_running_loop().time()
    async with ScriptedUpstream(otherwise=json_answer({})) as upstream:
        async with proxied(upstream.url, admin=admin, grace=GRACE) as proxy:
            client = RawClient(proxy.events("listening")[0].get("admin", proxy.url))
            await client.__aenter__()
            await told(client)
        assert await client.read_chunk() is None
        assert client.ended
        await client.disconnect()
    assert asyncio.get_running_loop().time() - began < GRACE / 3


async def test_a_page_that_is_closed_is_followed_no_longer() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=replace(POLICY, window=None)) as proxy:
        async with RawClient(proxy.url) as client:
            await told(client)
        await post(proxy.url, talk(2))
        await post(proxy.url, talk(3))
    assert not [line for line in proxy.log.splitlines() if json.loads(line)["level"] == "error"]
