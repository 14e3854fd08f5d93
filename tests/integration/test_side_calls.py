"""Side calls through the whole proxy, before a strict upstream whose every summary differs from every other."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.config import SideCalls
from proxy.context.policy import ModelPolicy, SummaryMode, SummaryPolicy
from proxy.demo.replies import Message, text_message
from proxy.demo.rules import Fields, Temper
from tests.edge.proxied import Proxied, proxied
from tests.peers.client import RawClient, Response
from tests.peers.strict import Call, chat_answer
from tests.peers.upstream import Answer, Cut, Framing, StrictUpstream, json_answer, marked, raw_answer

CHAT = "/v1/chat/completions"
POLICY = ModelPolicy(window=2000, reserve_output=200, summary=SummaryPolicy(prepare_at=0))
PATIENCE = 20.0
PATIENT = SideCalls(deadline=PATIENCE)
HASTY = SideCalls(deadline=0.2, attempts=2)


def strict(**options: Any) -> StrictUpstream:
    return StrictUpstream(window=2000, is_side_call=marked("working memory"), **options)


def talk(turns: int, last: str = "And now?") -> bytes:
    """A chat whose words count about the same by any tokenizer."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 40})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 40})
    return json.dumps({"model": "m", "messages": [*messages, {"role": "user", "content": last}]}).encode()


async def post(url: str, body: bytes, *fields: tuple[str, str]) -> Response:
    async with RawClient(url) as client:
        return await client.post(CHAT, body, list(fields))


async def test_b109_ten_identical_over_window_requests_at_once_make_one_side_call_and_get_equal_bytes() -> (
    None
):
    gate = asyncio.Event()
    async with (
        strict(side_gate=gate) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=PATIENT) as proxy,
    ):
        waiting = [asyncio.create_task(post(proxy.url, talk(12))) for _ in range(10)]
        await upstream.until(lambda: len(upstream.side_calls) == 1)
        gate.set()
        answers = await asyncio.gather(*waiting)
        assert [answer.status for answer in answers] == [200] * 10
        assert len(upstream.side_calls) == 1
        assert len({call.request.body for call in upstream.main_calls}) == 1


async def test_b108_a_client_that_gives_up_and_retries_finds_the_summary_of_its_first_try() -> None:
    gate = asyncio.Event()
    async with (
        strict(side_gate=gate) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=PATIENT) as proxy,
    ):
        for _ in range(3):
            async with RawClient(proxy.url) as client:
                head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(talk(12))}\r\n\r\n".encode()
                await client.send(head + talk(12))
                await upstream.until(lambda: len(upstream.side_calls) == 1)
        gate.set()
        answer = await post(proxy.url, talk(12))
        assert answer.status == 200
        assert (answer.header("x-context-actions") or "").startswith("summarize=")
        assert len(upstream.side_calls) == 1


async def test_b26_b110_a_side_call_that_hangs_costs_its_deadline_and_its_connection_is_closed() -> None:
    gate = asyncio.Event()
    async with (
        strict(side_gate=gate) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=HASTY) as proxy,
    ):
        answer = await post(proxy.url, talk(12))
        assert answer.status == 200
        assert (answer.header("x-context-actions") or "").startswith("drop=")
        await asyncio.wait_for(upstream.side_calls[0].request.client_gone.wait(), 5)
        again = await post(proxy.url, talk(20))
        assert again.status == 200
        assert len(upstream.side_calls) == 1, "the upstream is left alone for a while"


BREAKS = {
    "reset": raw_answer(Cut.RESET),
    "500": json_answer({}, status=500),
    "garbage": raw_answer(b"?\r\n\r\n"),
}


@pytest.mark.parametrize("leaves", [False, True], ids=["asker stays", "asker leaves"])
@pytest.mark.parametrize("failure", BREAKS.values(), ids=BREAKS)
async def test_b111_a_side_call_that_breaks_blocks_no_later_request_and_no_other_tenant(
    failure: Answer, leaves: bool
) -> None:
    gate = asyncio.Event()
    async with (
        strict(side_failures=[replace(failure, before=gate)]) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=replace(PATIENT, attempts=1)) as proxy,
    ):
        async with RawClient(proxy.url) as client:
            await client.start(CHAT, talk(12))
            await upstream.until(lambda: len(upstream.side_calls) == 1)
            if leaves:
                await client.reset()
            gate.set()
            if not leaves:
                assert (await client.read()).status == 200
        await told(proxy, "side_call")
        async with asyncio.timeout(PATIENCE / 2):
            again = await post(proxy.url, talk(12))
            other = await post(proxy.url, talk(12), ("Authorization", "Bearer another"))
        assert (again.status, other.status) == (200, 200)
        assert (again.header("x-context-actions") or "").startswith("drop=")
        assert (other.header("x-context-actions") or "").startswith("summarize=")


async def told(proxy: Proxied, name: str) -> None:
    """Wait until an event of this name is logged, while the proxy gets its turns."""
    async with asyncio.timeout(10), RawClient(proxy.url) as client:
        while not proxy.events(name):
            await client.get("/-/healthz")


@pytest.mark.parametrize(
    "failure",
    [
        json_answer({"error": {"message": "SECRET FAILURE"}}, status=500),
        json_answer({"error": {"message": "SECRET FAILURE"}}, status=429),
        json_answer({"error": {"message": "SECRET FAILURE"}}, status=400),
        Answer(200, (("Content-Type", "application/json"),), (b"SECRET FAILURE {",)),
        Answer(200, (("Content-Type", "application/json"),), (b"SECRET", Cut.CLOSE)),
        json_answer({"choices": [{"message": {"role": "assistant", "content": ""}}]}),
        json_answer(
            {"choices": [{"message": {"role": "assistant", "content": "<think>SECRET FAILURE</think>"}}]}
        ),
        json_answer({"choices": [{"message": {"role": "assistant", "content": "SECRET FAILURE " * 9999}}]}),
        json_answer({"choices": []}),
    ],
)
async def test_b18_when_the_side_call_fails_the_request_goes_on_and_the_failures_text_goes_nowhere(
    failure: Answer,
) -> None:
    async with (
        strict(side_failures=[failure] * 2) as upstream,
        proxied(upstream.url, policy=POLICY, side_calls=replace(PATIENT, attempts=1)) as proxy,
    ):
        answer = await post(proxy.url, talk(12))
        assert answer.status == 200
        assert (answer.header("x-context-actions") or "").startswith("drop=")
        assert all(b"SECRET" not in call.request.body for call in upstream.main_calls)
        assert "SECRET" not in proxy.log


async def test_b26_a_dropped_side_call_is_tried_once_more() -> None:
    broken = json_answer({"choices": []}).cut_at(0)
    async with strict(side_failures=[broken]) as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        answer = await post(proxy.url, talk(12))
        assert (answer.header("x-context-actions") or "").startswith("summarize=")
        assert len(upstream.side_calls) == 2


async def test_b117_two_credentials_never_share_a_summary() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        for key in ("ada", "bob", "ada"):
            await post(proxy.url, talk(12), ("Authorization", f"Bearer {key}"))
        assert len(upstream.side_calls) == 2
        bodies = [call.request.body for call in upstream.main_calls]
        assert bodies[0] == bodies[2]
        assert bodies[0] != bodies[1]


async def test_b28_the_side_call_carries_the_clients_credential_model_and_query() -> None:
    async with strict() as upstream, proxied(upstream.url, policy=POLICY) as proxy:
        async with RawClient(proxy.url) as client:
            await client.post(f"{CHAT}?api-version=7", talk(12), [("api-key", "K1")])
        (side,) = upstream.side_calls
        assert side.request.header("api-key") == "K1"
        assert side.request.target == f"{CHAT}?api-version=7"
        assert side.body["model"] == "m"


async def test_a_summary_is_prepared_after_an_answer_and_used_when_the_trigger_is_reached() -> None:
    policy = replace(POLICY, summary=SummaryPolicy(prepare_at=0.5))
    async with strict() as upstream, proxied(upstream.url, policy=policy) as proxy:
        actions: list[str] = []
        for turns in range(1, 12):
            answer = await post(proxy.url, talk(turns))
            actions.append(answer.header("x-context-actions") or "")
            if actions[-1] != "none":
                break
            await upstream.until(lambda: len(proxy.events("side_call")) == len(upstream.side_calls))
        assert len(actions) > 2
        assert actions[-1].startswith("summarize=")
        assert len(upstream.side_calls) == 1
        assert "side_calls" not in proxy.events()[-1], "the request that needed the summary waited for none"


def short_talk_under_a_long_head(turns: int) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "what and why " * 300}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 5})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 5})
    return json.dumps(
        {"model": "m", "messages": [*messages, {"role": "user", "content": "And now?"}]}
    ).encode()


async def test_where_no_cut_reaches_the_target_a_summary_is_prepared_once_and_not_written_anew_at_every_turn() -> (
    None
):
    policy = replace(POLICY, summary=SummaryPolicy(prepare_at=0.5))
    async with strict() as upstream, proxied(upstream.url, policy=policy) as proxy:
        requests = 0
        for turns in range(1, 60):
            requests += 1
            answer = await post(proxy.url, short_talk_under_a_long_head(turns))
            if (answer.header("x-context-actions") or "").startswith("summarize="):
                break
            await upstream.until(lambda: len(proxy.events("side_call")) == len(upstream.side_calls))
        assert requests > 8
        assert len(upstream.side_calls) <= 2, "one ahead, and one of what came after it"


# --- behind the forwarded prompt ------------------------------------------------------------------------------

WINDOW = 12_000
BEHIND = replace(POLICY, window=WINDOW, summary=SummaryPolicy(mode=SummaryMode.SUFFIX, prepare_at=0))
INSTRUCTION = "Write its working memory"
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
MEMORY = "Task: answer each question, what and why.\nDone: so and so."


def is_behind(body: Fields) -> bool:
    return INSTRUCTION in str(body["messages"][-1]["content"])


def answering(*messages: Message) -> Callable[[Fields], Answer]:
    """Answers side calls with these messages, one after the other, streamed as they are asked."""
    left = iter(messages)
    return lambda body: chat_answer(body, next(left), prompt_tokens=500)


def came(upstream: StrictUpstream, call: Call) -> int:
    """The place of a call among all."""
    return upstream.requests.index(call.request)


async def grown(url: str, turns: int) -> list[Response]:
    """A client that goes on with one chat, and the answers to its requests."""
    answers = []
    for number in range(8, turns, 2):
        body = json.loads(talk(number))
        body["tools"] = [TOOL]
        answers.append(await post(url, json.dumps(body).encode()))
    return answers


@pytest.mark.parametrize("temper", [Temper.OPENAI, Temper.TEMPLATE])
async def test_c_a_summary_behind_the_prompt_begins_with_what_a_strict_upstream_has_just_read(
    temper: Temper,
) -> None:
    summarise = answering(*(text_message(MEMORY) for _ in range(9)))
    async with (
        StrictUpstream(window=WINDOW, temper=temper, is_side_call=is_behind, summarise=summarise) as upstream,
        proxied(upstream.url, policy=BEHIND, side_calls=PATIENT) as proxy,
    ):
        answers = await grown(proxy.url, 120)
        assert [answer.status for answer in answers] == [200] * len(answers)
        assert len(upstream.side_calls) >= 2
        for call in upstream.side_calls:
            before = [main for main in upstream.main_calls if came(upstream, main) < came(upstream, call)][-1]
            asked, read = call.body["messages"], before.body["messages"]
            assert asked[:-1] == read[: len(asked) - 1]
            assert (call.body["tools"], call.body["tool_choice"]) == ([TOOL], "none")
            assert call.verdict is not None
        assert any("summarize=" in (answer.header("x-context-actions") or "") for answer in answers)


async def test_c_a_model_that_goes_on_with_the_talk_is_shown_a_transcript_and_the_request_never_notices() -> (
    None
):
    on = text_message("Answer: so and so, what and why, and whatever else there is to be said of it.")
    summarise = answering(on, text_message(MEMORY), on, text_message(MEMORY), *[text_message(MEMORY)] * 9)

    def is_any(body: Fields) -> bool:
        return is_behind(body) or marked("working memory")(body)

    async with (
        StrictUpstream(window=WINDOW, is_side_call=is_any, summarise=summarise) as upstream,
        proxied(upstream.url, policy=BEHIND, side_calls=PATIENT) as proxy,
    ):
        answers = await grown(proxy.url, 180)
        assert [answer.status for answer in answers] == [200] * len(answers)
        told = [(event["mode"], event["outcome"]) for event in proxy.events("side_call")]
        assert told[:4] == [("suffix", "no_sections"), ("transcript", "used")] * 2
        assert {mode for mode, _ in told[4:]} == {"transcript"}, "asked behind the prompt twice, not for ever"


async def test_an_upstream_that_lets_no_tools_be_forbidden_is_asked_without_that() -> None:
    refusal = {"error": {"message": "`tool_choice` must be auto", "type": "invalid_request_error"}}
    async with (
        StrictUpstream(
            window=WINDOW,
            is_side_call=is_behind,
            side_failures=[json_answer(refusal, status=400)],
            summarise=answering(*[text_message(MEMORY)] * 9),
        ) as upstream,
        proxied(upstream.url, policy=BEHIND, side_calls=PATIENT) as proxy,
    ):
        await grown(proxy.url, 60)
        first, second = upstream.side_calls[:2]
        assert "tool_choice" in first.body
        assert "tool_choice" not in second.body
        assert second.body["messages"] == first.body["messages"]
        assert proxy.events("side_call")[0]["outcome"] == "used"


async def test_b110_a_request_waits_no_longer_than_the_deadline_for_both_ways_of_asking_together() -> None:
    loop, on, gates = asyncio.get_running_loop(), asyncio.Event(), [asyncio.Event()]
    late = chat_answer({"stream": True}, text_message("And so on, and so forth."), prompt_tokens=500)
    gates.insert(0, on)

    def summarise(body: Fields) -> Answer:
        loop.call_later(1.5, on.set)
        return replace(late, pieces=(gates.pop(0), *late.pieces), framing=Framing.CHUNKED)

    def is_any(body: Fields) -> bool:
        return is_behind(body) or marked("working memory")(body)

    async with (
        StrictUpstream(window=WINDOW, is_side_call=is_any, summarise=summarise) as upstream,
        proxied(upstream.url, policy=BEHIND, side_calls=SideCalls(deadline=2.0)) as proxy,
    ):
        number, took = 8, 0.0
        while not upstream.side_calls:
            began = loop.time()
            assert (await post(proxy.url, talk(number))).status == 200
            number, took = number + 2, loop.time() - began
        assert [is_behind(call.body) for call in upstream.side_calls] == [True, False]
        assert 1.9 < took < 2.9, "and not what each of them may take, one after the other"
