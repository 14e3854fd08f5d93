"""What a request measures, and what would be done to it: by a course of values, over HTTP, and on the command line."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from proxy.context.budget import Window
from proxy.context.policy import Mode, ModelPolicy
from proxy.exchange import LookUp, Measure, SideCallFailed
from proxy.wire.usage import Usage
from tests.context.histories import conversations
from tests.desk import Desk
from tests.edge.proxied import proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import ScriptedUpstream, json_answer
from tests.test_exchange import body, chat

DROPS = ModelPolicy(window=3000, reserve_output=100, strategies=("elide", "drop", "shorten"))
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
HEAD = {"role": "system", "content": "Be good. " * 20}


def parts(found: Any) -> int:
    return int(found.system_tokens + found.tool_tokens + sum(item.tokens for item in found.items))


def test_the_estimate_is_the_sum_of_its_parts() -> None:
    found = Desk(DROPS).measure(body(HEAD, *chat(12), tools=TOOLS))
    assert found.estimated_tokens == parts(found)
    assert found.tool_tokens > 0
    assert found.system_tokens > 40
    assert [item.index for item in found.items] == list(range(2, len(found.items) + 2))
    assert found.items[0].category == "user"
    assert {item.turn for item in found.items} == set(range(1, 14))


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_whatever_the_history_the_parts_make_the_whole_and_nothing_is_asked_or_saved(history: Any) -> None:
    desk = Desk(replace(DROPS, window=1500))
    found = desk.measure(body(*(json.loads(message.raw) for message in history.messages)))
    assert found.estimated_tokens == parts(found)
    assert {type(command) for command in desk.done} <= {LookUp, Measure}
    assert not desk.checkpoints


@pytest.mark.parametrize("turns", [2, 12, 40])
def test_the_plan_is_what_then_happens(turns: int) -> None:
    desk = Desk(DROPS)
    planned = desk.measure(body(HEAD, *chat(turns), tools=TOOLS)).plan
    done = desk.run(body(HEAD, *chat(turns), tools=TOOLS))
    assert (planned.tokens_before, planned.tokens_after) == (done.original, done.forwarded)
    assert planned.actions == done.actions
    assert planned.fits
    assert planned.side_calls == 0


def test_a_checkpoint_is_planned_with_and_its_edits_are_told_apart_from_new_ones() -> None:
    desk = Desk(DROPS)
    desk.run(body(*chat(40)))
    planned = desk.measure(body(*chat(40))).plan
    assert planned.reason == "checkpoint"
    assert planned.checkpoint in desk.checkpoints
    assert planned.edits
    assert not any(edit.is_new for edit in planned.edits)


def test_a_summary_that_would_be_asked_for_is_counted_and_taken_to_be_long() -> None:
    desk = Desk(replace(DROPS, strategies=("summarize", "drop")))
    planned = desk.measure(body(*chat(40))).plan
    done = desk.run(body(*chat(40)))
    assert planned.side_calls == desk.side_calls > 0
    assert planned.edits[0].action == "summarize"
    assert planned.tokens_after >= (done.forwarded or 0)


def test_where_no_side_call_may_be_made_none_is_planned() -> None:
    desk = Desk(
        replace(DROPS, strategies=("summarize", "drop")), summaries=[SideCallFailed("no")], may_ask=False
    )
    planned = desk.measure(body(*chat(40))).plan
    assert planned.side_calls == 0
    assert planned.edits[0].action == "drop"


def test_an_unknown_window_says_so_and_a_discovered_one_where_it_was_found() -> None:
    unknown = Desk(replace(DROPS, window=None)).measure(body(*chat(40)))
    assert (unknown.window, unknown.window_source, unknown.plan.reason) == (None, "unknown", "window_unknown")
    told = Desk(replace(DROPS, window=None), discovered=Window(3000, "vllm: GET v1/models")).measure(
        body(*chat(40))
    )
    assert (told.window, told.window_source, told.plan.reason) == (
        3000,
        "vllm: GET v1/models",
        "over_threshold",
    )
    assert Desk(DROPS).measure(body(*chat(2))).window_source == "configured"


def test_what_the_upstream_counted_last_is_gone_by_and_told() -> None:
    desk = Desk(replace(DROPS, window=30_000))
    said = chat(12)
    raw = desk.measure(body(*said)).estimated_tokens
    assert not desk.measure(body(*said)).calibrated
    desk.usage = Usage(raw + 500, 5)
    desk.run(body(*said))
    found = desk.measure(body(*said))
    assert (found.is_usage_based, found.calibrated, found.last_reported) == (True, True, raw + 500)
    assert found.request_tokens == raw + 500
    assert found.estimated_tokens == raw


def test_observe_plans_nothing() -> None:
    desk = Desk(DROPS, mode=Mode.OBSERVE)
    assert not desk.measure(body(*chat(40))).plan.edits


# --- over HTTP ----------------------------------------------------------------------------------------------

NAMES = {
    "model", "window", "window_source", "threshold_tokens", "target_tokens", "reserve_tokens", "request_tokens",
    "estimated_tokens", "system_tokens", "tool_tokens", "is_usage_based", "calibrated", "last_reported", "items",
    "plan",
}  # fmt: skip


async def test_the_endpoint_measures_a_chat_body_and_nothing_is_sent_upstream() -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.base_url, policy=DROPS) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post("/-/measure", body(HEAD, *chat(40), tools=TOOLS))
        assert not upstream.requests
    assert answer.status == 200
    found = answer.json()
    assert set(found) == NAMES
    assert set(found["items"][0]) == {"index", "turn", "category", "tokens"}
    assert found["estimated_tokens"] == (
        found["system_tokens"] + found["tool_tokens"] + sum(item["tokens"] for item in found["items"])
    )
    assert found["plan"]["tokens_after"] < 3000 < found["plan"]["tokens_before"]


async def test_the_endpoint_tells_what_a_request_then_does() -> None:
    whole = json_answer(peers.completion(peers.text_message("Hello."), usage=peers.usage(900, 5)))
    async with (
        ScriptedUpstream(otherwise=whole) as upstream,
        proxied(upstream.base_url, policy=DROPS) as proxy,
        RawClient(proxy.url) as client,
    ):
        found = (await client.post("/-/measure", body(*chat(40)))).json()
        answer = await client.post("/v1/chat/completions", body(*chat(40)))
    assert answer.header("x-context-tokens") == str(found["plan"]["tokens_after"])
    assert answer.header("x-context-original-tokens") == str(found["request_tokens"])
    assert answer.header("x-context-actions") == found["plan"]["actions"]


@pytest.mark.parametrize("endpoint", ["/-/measure", "/-/compact"])
async def test_a_bare_list_of_messages_is_a_request_too(endpoint: str) -> None:
    whole = json.loads(body(*chat(2)))
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.base_url, policy=DROPS) as proxy,
        RawClient(proxy.url) as client,
    ):
        alone = await client.post(endpoint, json.dumps(whole["messages"]).encode())
        named = await client.post(endpoint, json.dumps({**whole, "model": ""}).encode())
    assert (alone.status, named.status) == (200, 200)
    found, other = alone.json(), named.json()
    assert found | {"side_calls": []} == other | {"side_calls": []}


async def test_a_models_name_that_cannot_be_written_harms_no_endpoint() -> None:
    odd = body(*chat(2), model="half a pair: \ud83d")
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.base_url, policy=replace(DROPS, window=100)) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post("/v1/chat/completions", odd)).status == 200
        assert b"\\ud83d" in upstream.requests[0].body
        assert (await client.get("/-/state")).json()["conversations"][0]["model"] == "half a pair: ?"
        assert (await client.post("/-/measure", odd)).json()["model"] == "half a pair: ?"


@pytest.mark.parametrize("odd", [b"", b"null", b"[]", b"<html>", b'{"messages":3}', b"[" * 50_000])
async def test_what_is_no_chat_body_is_told_so(odd: bytes) -> None:
    async with (
        ScriptedUpstream() as upstream,
        proxied(upstream.base_url) as proxy,
        RawClient(proxy.url) as client,
    ):
        answer = await client.post("/-/measure", odd)
        assert answer.status == 400
        assert answer.json()["error"]["code"] == "no_chat_request"
        assert (await client.get("/-/measure")).status == 405


# --- on the command line ------------------------------------------------------------------------------------


def measured(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "proxy", "measure", *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


def test_a_file_with_a_request_is_told_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_bytes(body(HEAD, *chat(40), tools=TOOLS))
    done = measured(str(file), "--window", "3000")
    assert (done.returncode, done.stderr) == (0, b"")
    told = done.stdout.decode()
    assert "3,000 tokens (configured)" in told
    assert "it is over the threshold" in told
    assert "41 messages" in told
    assert "summaries to be written by the upstream: 4" in told  # in parts, in so small a window


def test_json_gives_one_object_for_each_request_of_a_file_with_many(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(body(*chat(2)) + b"\n\n" + body(*chat(40)) + b"\n")
    done = measured(str(file), "--window", "3000", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["plan"]["reason"] for each in found] == ["under_threshold", "over_threshold"]
    assert set(found[0]) == NAMES


def test_a_list_of_messages_is_a_request_too_also_from_standard_input() -> None:
    messages = json.dumps(chat(2)).encode()
    done = measured("-", "--json", "--model", "gpt-4o", given=messages)
    assert json.loads(done.stdout)["model"] == "gpt-4o"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"{", ":1: this is no JSON"),
        (b'{"messages":[]}\n\nnonsense', ":3: this line is no JSON"),
        (b'{"messages":3}', "this is no chat request"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_line(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(text)
    done = measured(str(file))
    assert done.returncode == 1
    assert said in done.stderr.decode()
    assert str(file) in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = measured(str(tmp_path / "nowhere.json"))
    assert done.returncode == 1
    assert b"cannot be read" in done.stderr
