"""A compaction that is asked for: by a course of values, over HTTP, and on the command line."""

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from proxy.config import SideCalls
from proxy.context.conversation import conversation_of, read_message
from proxy.context.invariants import broken
from proxy.context.policy import Mode, ModelPolicy
from proxy.exchange import Compaction, Learn, Save, Send, SideCallFailed
from proxy.wire.usage import Usage
from tests.context.histories import conversations
from tests.desk import Desk
from tests.edge.proxied import proxied
from tests.integration.test_side_calls import POLICY, strict, talk
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, ScriptedUpstream, json_answer
from tests.test_exchange import chat

POLICY_OF_MUCH = ModelPolicy(window=100_000)
HEAD = {"role": "system", "content": "Be good. " * 20}
NAMES = {
    "model", "reason", "messages", "summary", "covers", "tokens_before", "tokens_after", "actions", "side_calls",
}  # fmt: skip


def body(*messages: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages)}).encode()


def messages_of(found: Compaction) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(bytes(found.messages))
    return read


def test_far_under_the_threshold_everything_up_to_the_newest_round_is_summarised() -> None:
    desk = Desk(POLICY_OF_MUCH)
    said = chat(20)
    found = desk.compact(body(HEAD, *said))
    assert found.reason == "compacted"
    assert found.covers is not None
    assert (found.covers.first, found.covers.last) == (1, len(said) - 1)
    assert found.covers.messages == len(said) - 1
    after = messages_of(found)
    assert after[0] == HEAD
    assert found.summary
    assert found.summary in after[1]["content"]
    assert after[-1]["content"].endswith(said[-1]["content"])
    assert found.tokens_after < found.tokens_before / 2


def test_over_the_target_as_much_is_kept_as_ever() -> None:
    policy = ModelPolicy(window=3000, reserve_output=100, strategies=("summarize", "drop"))
    by_hand, served = Desk(policy), Desk(policy)
    found = by_hand.compact(body(HEAD, *chat(40)))
    served.run(body(HEAD, *chat(40)))
    assert messages_of(found) == json.loads(served.sent[-1])["messages"]


def test_the_configured_order_of_the_ladder_does_not_keep_it_from_a_summary() -> None:
    found = Desk(replace(POLICY_OF_MUCH, strategies=("elide", "drop"))).compact(body(*chat(20)))
    assert found.reason == "compacted"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_it_is_done_in_every_mode_since_it_was_asked_for(mode: Mode) -> None:
    assert Desk(POLICY_OF_MUCH, mode=mode).compact(body(*chat(20))).reason == "compacted"


def test_without_a_known_window_it_is_done_as_well() -> None:
    found = Desk(replace(POLICY_OF_MUCH, window=None)).compact(body(*chat(20)))
    assert found.reason == "compacted"
    assert found.covers is not None
    assert found.covers.messages == len(chat(20)) - 1


def test_nothing_is_sent_saved_or_learned_and_the_next_request_goes_on_as_it_was() -> None:
    desk = Desk(POLICY_OF_MUCH)
    desk.compact(body(*chat(20)))
    assert not [command for command in desk.done if isinstance(command, Send | Save | Learn)]
    desk.run(body(*chat(20)))
    assert desk.sent == [body(*chat(20))]


def test_whoever_goes_on_with_the_whole_history_needs_no_second_summary_of_it() -> None:
    desk = Desk(ModelPolicy(window=3000, reserve_output=100, strategies=("summarize", "drop")))
    desk.compact(body(*chat(40)))
    asked = desk.side_calls
    verdict = desk.run(body(*chat(40)))
    assert desk.side_calls == asked
    assert verdict.actions.startswith("summarize=")


def test_the_messages_that_come_back_can_be_gone_on_with() -> None:
    desk = Desk(POLICY_OF_MUCH)
    first = messages_of(desk.compact(body(HEAD, *chat(20))))
    more = [{"role": "assistant", "content": "Fine. " * 50}, {"role": "user", "content": "Go on. " * 50}]
    again = desk.compact(body(*first, *more))
    assert again.reason == "compacted"
    order = desk.asked[-1]["messages"][1]["content"]
    assert "Summary of" in order, "what the earlier summary holds is not lost"


def test_a_side_call_that_fails_takes_nothing_away_and_tells_its_usage() -> None:
    desk = Desk(POLICY_OF_MUCH, summaries=[SideCallFailed("timeout", Usage(700, 30))])
    found = desk.compact(body(*chat(20)))
    assert (found.reason, found.summary, found.covers) == ("side_call_failed", None, None)
    assert messages_of(found) == chat(20)
    assert found.tokens_after == found.tokens_before
    (call,) = found.side_calls
    assert (call.outcome, call.prompt_tokens, call.completion_tokens) == ("timeout", 700, 30)


def test_where_no_side_call_may_be_made_none_is() -> None:
    desk = Desk(POLICY_OF_MUCH, may_ask=False)
    found = desk.compact(body(*chat(20)))
    assert (found.reason, desk.side_calls) == ("side_call_failed", 0)
    assert [call.outcome for call in found.side_calls] == ["not_asked"]


SHORT: list[list[dict[str, Any]]] = [
    [],
    [HEAD],
    [{"role": "user", "content": "Hello."}],
    [HEAD, {"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}],
]


@pytest.mark.parametrize("said", SHORT)
def test_what_has_no_older_part_stays_as_it_is_without_a_side_call(said: list[dict[str, Any]]) -> None:
    desk = Desk(POLICY_OF_MUCH)
    found = desk.compact(body(*said))
    assert (found.reason, found.actions, desk.side_calls) == ("nothing_to_compact", "none", 0)
    assert messages_of(found) == said


def test_what_was_decided_before_applies_and_is_told() -> None:
    desk = Desk(ModelPolicy(window=3000, reserve_output=100, strategies=("summarize", "drop")))
    desk.run(body(*chat(40)))
    found = desk.compact(body(*chat(40)))
    assert found.reason in ("checkpoint", "compacted")
    assert found.covers is not None
    assert found.summary


@given(conversations(damaged=False))
@settings(max_examples=60, deadline=None)
def test_whatever_the_history_what_comes_back_keeps_the_promises_and_is_never_larger(history: Any) -> None:
    desk = Desk(replace(POLICY_OF_MUCH, repair=False))
    found = desk.compact(body(*(json.loads(message.raw) for message in history.messages)))
    after = conversation_of([read_message(json.dumps(each).encode()) for each in messages_of(found)])
    before = conversation_of([read_message(json.dumps(json.loads(m.raw)).encode()) for m in history.messages])
    assert not broken(before, after)
    assert found.tokens_after <= found.tokens_before or found.reason != "compacted"


# --- over HTTP ----------------------------------------------------------------------------------------------


def answered(content: str, **fields: Any) -> Answer:
    message = {"role": "assistant", "content": content}
    told = {"prompt_tokens": 321, "completion_tokens": 4, "total_tokens": 325}
    return json_answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": told, **fields})


async def test_the_endpoint_gives_messages_that_serve_as_a_request_of_their_own() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post("/-/compact", talk(4))
        assert answer.status == 200
        found = answer.json()
        assert set(found) == NAMES
        assert found["reason"] == "compacted"
        (call,) = upstream.side_calls
        assert not upstream.main_calls
        assert call.request.target == "/chat/completions"
        (spent,) = found["side_calls"]
        assert spent["outcome"] == "used"
        assert spent["prompt_tokens"] > 0
        again = await client.post(
            "/v1/chat/completions", json.dumps({"model": "m", "messages": found["messages"]}).encode()
        )
        assert (again.status, again.header("x-context-actions")) == (200, "none")


@pytest.mark.parametrize(
    ("failure", "outcome", "prompt_tokens"),
    [
        (answered(""), "empty", 321),
        (answered("SECRET FAILURE " * 9999), "longer_than_source", 321),
        (json_answer({"error": {"message": "SECRET FAILURE"}}, status=400), "status_400", None),
    ],
)
async def test_b18_a_side_call_that_fails_gives_the_messages_as_they_came_with_the_reason_and_the_usage(
    failure: Answer, outcome: str, prompt_tokens: int | None
) -> None:
    async with (
        strict(side_failures=[failure]) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=SideCalls(attempts=1)) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post("/-/compact", talk(4))
    found = answer.json()
    assert (answer.status, found["reason"]) == (200, "side_call_failed")
    assert found["messages"] == json.loads(talk(4))["messages"]
    assert found["tokens_before"] == found["tokens_after"]
    (call,) = found["side_calls"]
    assert (call["outcome"], call["prompt_tokens"]) == (outcome, prompt_tokens)
    assert b"SECRET" not in answer.body
    assert "SECRET" not in proxy.log


async def test_a_summary_by_hand_serves_the_conversation_that_goes_on_as_it_was() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY) as proxy,
        RawClient(proxy.url) as client,
    ):
        found = (await client.post("/-/compact", talk(12))).json()
        answer = await client.post("/v1/chat/completions", talk(12))
        assert len(upstream.side_calls) == 1
        assert upstream.main_calls[0].body["messages"] == found["messages"]
    assert (answer.header("x-context-actions") or "").startswith("summarize=")


async def test_the_side_call_of_a_compaction_carries_the_credential_of_whoever_asks() -> None:
    async with (
        strict() as upstream,
        proxied(upstream.url, policy=POLICY) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post("/-/compact?x=1", talk(4), [("api-key", "K1"), ("x-context-mode", "off")])
        (call,) = upstream.side_calls
        assert call.request.header("api-key") == "K1"


@pytest.mark.parametrize("odd", [b"", b"null", b"[]", b"<html>", b'{"messages":3}', b"[" * 50_000])
async def test_what_is_no_chat_body_is_told_so(odd: bytes) -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        answer = await client.post("/-/compact", odd)
        assert (answer.status, answer.json()["error"]["code"]) == (400, "no_chat_request")
        assert "/chat/completions" in answer.json()["error"]["message"]
        assert (await client.get("/-/compact")).status == 405
        assert not upstream.requests


async def test_a_body_over_the_limit_is_told_so() -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.url, max_body=100) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post("/-/compact", talk(4))).status == 413


# --- on the command line ------------------------------------------------------------------------------------


async def compacted(*arguments: str, given: bytes) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    command = [sys.executable, "-m", "proxy", "compact", "-", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    out, said = await process.communicate(given)
    return process.returncode or 0, out.decode(), said.decode()


async def test_the_command_tells_the_summary_in_words_and_gives_the_messages_as_json() -> None:
    async with strict() as upstream:
        status, told, said = await compacted(
            "--upstream", upstream.base_url, "--window", "2000", given=talk(4)
        )
        assert (status, said) == (0, "")
        assert "the older part is summarised" in told
        assert "side call  used" in told
        status, told, _ = await compacted(
            "--json", "--upstream", upstream.base_url, given=talk(4) + b"\n" + talk(5)
        )
        found = [json.loads(line) for line in told.splitlines()]
        assert [each["reason"] for each in found] == ["compacted", "compacted"]
        assert set(found[0]) == NAMES
        assert found[0]["summary"] in json.dumps(found[0]["messages"])


async def test_the_command_fails_where_no_summary_was_to_be_had_and_says_why() -> None:
    async with strict(side_failures=[answered("")] * 2) as upstream:
        status, told, said = await compacted("--upstream", upstream.base_url, given=talk(4))
    assert (status, said) == (1, "")
    assert "no summary was to be had" in told
    assert "side call  empty; tokens: 321 in, 4 out" in told


async def test_the_command_says_what_it_lacks() -> None:
    status, told, said = await compacted(given=talk(4))
    assert (status, told) == (2, "")
    assert "--upstream" in said
    status, told, said = await compacted("--upstream", "http://127.0.0.1:9/v1", given=b"{")
    assert (status, told) == (1, "")
    assert "no JSON" in said


async def test_an_upstream_that_is_not_there_is_a_failed_side_call() -> None:
    status, told, _ = await compacted("--upstream", "http://127.0.0.1:9/v1", given=talk(4))
    assert status == 1
    assert "side call  unreachable; tokens: not told" in told
