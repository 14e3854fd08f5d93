"""What `/-/state` shows and forgets, tenants by header, and clients that slide their own window."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proxy.config import Secret, Tenant
from proxy.config import Upstream as UpstreamOptions
from proxy.context.policy import CacheKey, ModelPolicy, SummaryPolicy
from tests.edge.proxied import proxied
from tests.integration.test_side_calls import POLICY, post, strict, talk
from tests.peers.client import RawClient

ONE_SLOT = UpstreamOptions("http://replaced", slots=1)


async def state(url: str) -> list[dict[str, Any]]:
    async with RawClient(url) as client:
        answer = await client.request("GET", "/-/state")
    rows: list[dict[str, Any]] = json.loads(answer.body)["conversations"]
    return rows


async def test_state_lists_a_conversation_by_counts_and_never_by_content() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        first = json.loads(talk(12))
        answer = {"role": "assistant", "content": "Now nothing."}
        grown = {**first, "messages": [*first["messages"], answer, {"role": "user", "content": "And then?"}]}
        for body in (first, grown):
            await post(proxy.url, json.dumps(body).encode())
        (row,) = await state(proxy.url)
        assert (row["model"], row["window"], row["requests"], row["messages"]) == ("m", 2000, 2, 27)
        assert row["original_tokens"] > 2000 > row["forwarded_tokens"]
        assert row["last_action"].startswith("summarize=")
        assert row["compactions"] == 1
        assert "Question" not in json.dumps(row)


async def test_a_forgotten_conversation_is_planned_from_nothing() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        await post(proxy.url, talk(12))
        (row,) = await state(proxy.url)
        async with RawClient(proxy.url) as client:
            done = await client.request("DELETE", f"/-/state/{row['id']}")
        assert (done.status, json.loads(done.body)) == (200, {"forgotten": 2})
        await post(proxy.url, talk(12))
        assert len(upstream.side_calls) == 2


async def test_an_unknown_id_is_a_404_and_another_method_a_405() -> None:
    async with strict() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        assert (await client.request("DELETE", "/-/state/nobody")).status == 404
        assert (await client.request("POST", "/-/state")).status == 405
        assert (await client.request("GET", "/-/nothing")).status == 404
        assert upstream.requests == []


def sliding(steps: int) -> Iterator[bytes]:
    """The requests of a client that keeps the newest 27 messages itself."""
    body = json.loads(talk(30))
    system, *history = body["messages"]
    for start in range(0, 2 * steps, 2):
        yield json.dumps({**body, "messages": [system, *history[start : start + 27]]}).encode()


async def test_a_client_that_slides_its_own_window_causes_no_side_call_a_turn() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        for request in sliding(15):
            assert (await post(proxy.url, request)).status == 200
        assert len(upstream.side_calls) == 2


async def test_after_a_sliding_client_a_growing_one_gets_summaries_again() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        for request in sliding(4):
            await post(proxy.url, request)
        for turns in range(12, 30):
            await post(proxy.url, talk(turns, last="A growing chat."))
        assert len(upstream.side_calls) > 2


async def test_tenants_are_told_apart_by_a_header_where_credentials_rotate() -> None:
    tenant = Tenant("X-Tenant", Secret("k"))
    async with strict() as upstream, proxied(upstream.url, policy=POLICY, tenant=tenant) as proxy:
        for key in ("3", "4"):
            await post(proxy.url, talk(12), ("Authorization", f"Bearer {key}"))
        assert len(upstream.side_calls) == 2, "without the header the credential tells them apart"
        upstream.calls.clear()
        for who, key in (("ada", "1"), ("ada", "2"), ("bob", "2")):
            await post(proxy.url, talk(12), ("X-Tenant", who), ("Authorization", f"Bearer {key}"))
        assert len(upstream.side_calls) == 2


async def test_a_cache_key_is_the_same_for_a_conversation_and_differs_between_two() -> None:
    policy = replace(POLICY, prompt_cache_key=CacheKey.AUTO)
    async with strict() as upstream, proxied(upstream.url, policy=policy) as proxy:
        first = await post(proxy.url, talk(2))
        await post(proxy.url, talk(4))
        await post(proxy.url, talk(0, last="Another chat."))
        own = json.loads(talk(2)) | {"prompt_cache_key": "mine"}
        await post(proxy.url, json.dumps(own).encode())
        keys = [body["prompt_cache_key"] for body in upstream.main_bodies]
        assert keys[0] == keys[1] != keys[2]
        assert keys[3] == "mine"
        assert first.header("x-context-actions") == "prompt_cache_key"


async def test_nothing_is_prepared_on_an_upstream_with_one_slot() -> None:
    policy = ModelPolicy(window=2000, reserve_output=200, summary=SummaryPolicy(prepare_at=0.3))
    async with strict() as upstream, proxied(upstream.url, policy=policy, options=ONE_SLOT) as proxy:
        for turns in range(1, 6):
            await post(proxy.url, talk(turns))
        assert upstream.side_calls == []
