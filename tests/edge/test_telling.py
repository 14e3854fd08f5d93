"""What the log tells of each request: its name, its counts and times, and at debug what was decided."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.context.policy import Mode, ModelPolicy
from tests.edge.proxied import proxied
from tests.edge.test_fail_open import DROPPED, FAULT, LONG, TOO_LONG, Parts, measuring
from tests.edge.test_metrics import CHAT, GOOD, WHOLE, chat, words
from tests.peers.client import RawClient, Response
from tests.peers.upstream import Reply, ScriptedUpstream, json_answer

NAMED = [("Content-Type", "application/json"), ("x-request-id", "req-from:client.1")]
THEIRS = (("Content-Type", "application/json"), ("x-request-id", "req-of-upstream"))
MADE = 16
"""Characters of a request id that is made here."""


async def one(
    body: bytes,
    *,
    fields: Sequence[tuple[str, str]] = NAMED,
    path: str = CHAT,
    answer: Reply = GOOD,
    policy: ModelPolicy | None = None,
    parts: Parts | None = None,
) -> tuple[Response, dict[str, Any], str | None]:
    """The answer to one request, its event, and the request id that the upstream got."""
    async with (
        ScriptedUpstream([answer]) as upstream,
        proxied(upstream.url, policy=policy, parts=parts) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(path, body, fields)
    return response, proxy.events()[0], upstream.requests[0].header("x-request-id")


# --- request id ---------------------------------------------------------------------------------------------------


async def test_a_clients_request_id_names_the_request_and_goes_on() -> None:
    response, event, sent = await one(chat("x"))
    assert event["request_id"] == response.header("x-request-id") == sent == "req-from:client.1"


@pytest.mark.parametrize("odd", [None, "", "with space", "x" * 129, "a\u00e9", 'a"b'])
async def test_where_there_is_none_that_a_log_can_take_one_is_made_and_the_upstreams_request_stays(
    odd: str | None,
) -> None:
    fields = [] if odd is None else [("x-request-id", odd)]
    response, event, sent = await one(chat("x"), fields=fields)
    made = str(event["request_id"])
    assert len(made) == MADE
    assert response.header("x-request-id") == made
    assert sent == odd


async def test_an_upstreams_own_id_stays_in_the_answer_and_both_are_in_the_log() -> None:
    response, event, _ = await one(chat("x"), answer=json_answer(WHOLE, headers=THEIRS))
    assert response.head.headers_named("x-request-id") == ["req-of-upstream"]
    assert (event["request_id"], event["upstream_request_id"]) == ("req-from:client.1", "req-of-upstream")


async def test_an_answer_that_passes_unmanaged_gets_no_field() -> None:
    response, event, _ = await one(b"{}", path="/v1/embeddings")
    assert response.header("x-request-id") is None
    assert event["request_id"] == "req-from:client.1"


async def test_our_own_answers_and_refusals_carry_the_id() -> None:
    async with proxied("http://127.0.0.1:9/v1") as proxy, RawClient(proxy.url) as client:
        for answer in (await client.get("/-/state", NAMED[1:]), await client.post(CHAT, chat("x"), NAMED)):
            assert answer.header("x-request-id") == "req-from:client.1"


async def test_a_fault_of_ours_is_told_with_the_requests_id() -> None:
    async with (
        ScriptedUpstream([json_answer(WHOLE)]) as upstream,
        proxied(upstream.url, parts=measuring(FAULT)(), policy=DROPPED) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, LONG, NAMED)
        (fault,) = proxy.events("internal_error")
    assert fault["request_id"] == response.header("x-request-id") == "req-from:client.1"


# --- the event of a request ---------------------------------------------------------------------------------------


async def test_a_cut_is_told_with_counts_times_and_what_the_upstream_reported() -> None:
    response, event, _ = await one(LONG, policy=DROPPED)
    assert event["level"] == "info"
    assert (event["model"], event["mode"], event["status"]) == ("m", "manage", 200)
    assert event["actions"] == response.header("x-context-actions")
    assert (event["window"], event["window_source"]) == (4000, "configured")
    assert (event["original_tokens"], event["tokens"]) == (
        int(response.header("x-context-original-tokens") or 0),
        int(response.header("x-context-tokens") or 0),
    )
    assert (event["reported_tokens"], event["cached_tokens"], event["factor"]) == (1000, 600, 1.0)
    assert event["removed_tokens"] > 500
    assert event["beginning"] == "first"
    assert event["added"].keys() == {"before", "after"}
    assert event["spent"].keys() >= {"lookup", "measure", "send", "relay"}


async def test_b130_a_bypass_is_told_by_its_reason() -> None:
    _, event, _ = await one(LONG, policy=DROPPED, parts=measuring(FAULT)())
    assert (event["reason"], event["actions"], event["status"]) == ("measure", "bypass=measure", 200)
    _, event, _ = await one(b"no json")
    assert (event["reason"], event["status"]) == ("not_json", 200)


@pytest.mark.parametrize("member", [b"model", b"max_tokens"])
async def test_b130_a_member_that_no_reader_takes_is_no_fault_of_ours(member: bytes) -> None:
    digits = b"9" * 5000  # JSON as such, and more of them than a number is read of
    answer, event, _ = await one(b'{"%b":%b,"messages":[{"role":"user","content":"x"}]}' % (member, digits))
    assert event["reason"] == "not_json"
    assert answer.header("x-context-actions") is None


async def test_b106_of_a_client_that_left_all_is_told_that_was_known() -> None:
    slow = json_answer(WHOLE).pausing(20, asyncio.Event())
    async with (
        ScriptedUpstream([slow]) as upstream,
        proxied(upstream.url, policy=DROPPED) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, LONG)
        await client.read_head()
        await client.reset()
        await asyncio.wait_for(upstream.requests[0].client_gone.wait(), 20)
    (event,) = proxy.events()
    assert (event["reason"], event["complete"], event["window"]) == ("client_gone", False, 4000)
    assert event["actions"].startswith("drop=")
    assert event["added"]["before"] >= 0


async def test_what_probes_and_scrapers_ask_is_told_at_debug_alone() -> None:
    async with proxied("http://127.0.0.1:9/v1") as proxy, RawClient(proxy.url) as client:
        for path in ("/-/healthz", "/-/readyz", "/-/metrics", "/-/state", "/-/nothing"):
            await client.get(path)
        levels = [event["level"] for event in proxy.events()]
    assert levels == ["debug"] * 3 + ["info"] * 2


async def test_an_unknown_window_and_an_unmanaged_endpoint_are_warned_of_once() -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        for model in ("m", "n", "m"):
            await client.post(CHAT, chat(words("one"), model=model))
            await client.post("/v1/responses", b"{}")
        unknown, unmanaged = proxy.events("window_unknown"), proxy.events("endpoint_not_managed")
    assert [(event["model"], event["level"]) for event in unknown] == [("m", "warning"), ("n", "warning")]
    assert [(event["endpoint"], event["level"]) for event in unmanaged] == [("responses", "warning")]


# --- decisions ----------------------------------------------------------------------------------------------------


async def planned(
    *bodies: bytes, policy: ModelPolicy = DROPPED, script: Sequence[Reply] | None = None
) -> list[dict[str, Any]]:
    """The events `plan` of these requests, one after the other."""
    async with (
        ScriptedUpstream(script or [json_answer(WHOLE)] * len(bodies)) as upstream,
        proxied(upstream.url, policy=policy) as proxy,
        RawClient(proxy.url) as client,
    ):
        for body in bodies:
            await client.post(CHAT, body, NAMED)
    return proxy.events("plan")


async def test_what_was_decided_is_told_at_debug() -> None:
    (plan,) = await planned(LONG)
    assert (plan["level"], plan["why"], plan["request_id"]) == (
        "debug",
        "over_threshold",
        "req-from:client.1",
    )
    assert plan["original_tokens"] > plan["trigger"] > max(plan["target"], plan["tokens"])
    (place,) = plan["places"]
    assert (place["action"], place["first"], place["new"]) == ("drop", 0, True)
    assert plan["edits"] == 1


async def test_a_cut_that_stands_is_told_as_that() -> None:
    longer = json.loads(LONG)
    longer["messages"] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    _, plan = await planned(LONG, json.dumps(longer).encode())
    assert plan["why"] == "checkpoint"
    assert [place["new"] for place in plan["places"]] == [False]


DECISIONS = {
    "window_unknown": ModelPolicy(),
    "under_threshold": ModelPolicy(window=20_000),
    "observed_only": ModelPolicy(window=4000, reserve_output=500, mode=Mode.OBSERVE),
}


@pytest.mark.parametrize(("why", "policy"), DECISIONS.items())
async def test_why_nothing_was_done_is_told_as_well(why: str, policy: ModelPolicy) -> None:
    (plan,) = await planned(LONG, policy=policy)
    assert (plan["why"], plan["edits"], plan["places"]) == (why, 0, [])


async def test_after_a_refusal_the_decision_that_went_on_is_told() -> None:
    script = [json_answer(TOO_LONG, status=400), json_answer(WHOLE)]
    (plan,) = await planned(LONG, policy=ModelPolicy(window=100_000), script=script)
    assert plan["why"] == "over_threshold"
    assert plan["trigger"] < 2000
