"""The course of a request, driven with values: what is sent, what is asked, what is said."""

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.edits import Cut, Edits
from proxy.context.policy import ElidePolicy, ImagePolicy, Mode, ModelPolicy, OnOverflow, UsageMode
from proxy.errors import ContextOverflow
from proxy.exchange import (
    Accepted,
    Ask,
    Learn,
    LookUp,
    Measure,
    Memory,
    Order,
    Outcome,
    Refused,
    Relay,
    Save,
    SideCallFailed,
    Summarised,
)
from proxy.wire.usage import Usage
from tests.desk import Desk

SMALL = ModelPolicy(window=1000, reserve_output=100)
SYSTEM = {"role": "system", "content": "You are a tester."}


def step(number: int, size: int = 400) -> list[dict[str, Any]]:
    """One round of an agent: a call and a result of about `size` characters."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"<{number}> " + "x" * size},
    ]


def turn(number: int, size: int = 400) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"question {number} " + "q" * size},
        {"role": "assistant", "content": f"answer {number} " + "a" * size},
    ]


def body(*messages: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [SYSTEM, *messages], **fields}).encode()


def agent(steps: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "the task"}, *(m for n in range(steps) for m in step(n))]


def chat(turns: int) -> list[dict[str, Any]]:
    return [*(m for n in range(turns) for m in turn(n)), {"role": "user", "content": "and now?"}]


def sent(desk: Desk) -> Any:
    return json.loads(desk.sent[-1])


ODD = (
    b' { "model":"m" ,"temperature": 1e-7,"big":12345678901234567890, '
    b'"messages":[ {"role":"user","content":"h\\u00e9"} ] }\n'
)


def test_b73_a_request_under_the_trigger_is_sent_byte_for_byte() -> None:
    desk = Desk(SMALL)
    verdict = desk.run(ODD)
    assert desk.sent == [ODD]
    assert verdict.actions == "none"
    assert desk.headers["x-context-actions"] == "none"
    assert desk.headers["x-context-checkpoint"] == "none"


def test_an_unknown_window_compacts_nothing() -> None:
    desk = Desk(replace(SMALL, window=None))
    request = body(*agent(50))
    verdict = desk.run(request)
    assert desk.sent == [request]
    assert verdict.window is None
    assert "x-context-window" not in desk.headers


def test_elision_comes_first_and_stops_at_the_target() -> None:
    desk = Desk(replace(SMALL, window=2000))
    verdict = desk.run(body(*agent(16)))
    assert desk.asked == []
    assert verdict.trigger is not None
    assert verdict.forwarded is not None
    assert verdict.actions.startswith("elide=")
    assert verdict.forwarded <= verdict.trigger * 0.5 / 0.85 + 1
    results = [m["content"] for m in sent(desk)["messages"] if m["role"] == "tool"]
    assert results[0] == "[Output of read left out here: 404 characters, 1 lines.]"
    assert results[-3:] == [f"<{n}> " + "x" * 400 for n in (13, 14, 15)]


def test_b76_everything_beside_the_messages_keeps_its_bytes() -> None:
    request = body(*agent(8), tools=[{"type": "function", "function": {"name": "read"}}], temperature=1.0)
    desk = Desk(SMALL)
    desk.run(request)
    assert {k: v for k, v in sent(desk).items() if k != "messages"} == {
        k: v for k, v in json.loads(request).items() if k != "messages"
    }
    assert (
        b'"tools": [{"type": "function", "function": {"name": "read"}}], "temperature": 1.0}' in desk.sent[0]
    )


def test_a_summary_takes_the_place_of_old_turns() -> None:
    desk = Desk(SMALL, summaries=["They talked."])
    verdict = desk.run(body(*chat(6)))
    assert len(desk.asked) == 1
    assert verdict.actions.startswith("summarize=")
    messages = sent(desk)["messages"]
    assert messages[0] == SYSTEM
    assert "They talked." in messages[1]["content"]
    assert messages[-1] == {"role": "user", "content": "and now?"}
    assert [m["role"] for m in messages[1:]] == ["user", "assistant"] * (len(messages) // 2 - 1) + ["user"]


def test_b21_b23_a_side_call_is_plain_text_with_parameters_of_its_own() -> None:
    desk = Desk(replace(SMALL, strategies=("summarize",)))
    tools = [{"type": "function", "function": {"name": "read"}}]
    desk.run(
        body(
            *agent(8),
            tools=tools,
            tool_choice="auto",
            n=2,
            stop=["x"],
            response_format={"type": "text"},
            max_tokens=50,
        )
    )
    (asked,) = desk.asked
    assert sorted(asked) == ["max_tokens", "messages", "model", "stream"]
    assert [m["role"] for m in asked["messages"]] == ["system", "user"]
    assert asked["model"] == "m"
    assert asked["max_tokens"] == 125
    assert "[assistant calls read]" in asked["messages"][1]["content"]


@pytest.mark.parametrize(
    "failed", [SideCallFailed("timeout"), SideCallFailed("status_500"), "", "<think>x</think>", "y" * 99_999]
)
def test_b18_b24_without_a_usable_summary_the_oldest_turns_are_dropped(failed: str | SideCallFailed) -> None:
    desk = Desk(SMALL, summaries=[failed])
    verdict = desk.run(body(*chat(6)))
    assert len(desk.asked) == 1
    assert verdict.actions.startswith("drop=")
    assert "earlier messages of this conversation are left out here.]" in sent(desk)["messages"][1]["content"]
    assert verdict.side_calls[0].outcome != "used"


def test_summarising_first_with_elision_as_the_last_resort_is_as_valid() -> None:
    policy = replace(SMALL, strategies=("summarize", "elide"))
    assert Desk(policy).run(body(*agent(8))).actions.startswith("summarize=")
    assert (
        Desk(policy, summaries=[SideCallFailed("timeout")]).run(body(*agent(8))).actions.startswith("elide=")
    )


def test_b14_the_request_an_agent_works_on_stays_verbatim_through_a_long_run() -> None:
    desk = Desk(replace(SMALL, strategies=("summarize", "drop")))
    desk.run(body(*agent(60)))
    users = [m for m in sent(desk)["messages"] if m["role"] == "user"]
    assert len(users) == 1
    assert users[0]["content"].startswith("the task\n\n[Summary of")


def test_b74_between_two_cuts_each_request_extends_the_one_before() -> None:
    desk = Desk(replace(SMALL, window=2500), summaries=[f"summary {n}" for n in range(100)])
    extends = []
    talk = [{"role": "user", "content": "the task"}]
    for number in range(60):
        talk += step(number)
        desk.run(body(*talk))
        views = [json.loads(b)["messages"] for b in desk.sent[-2:]]
        extends.append(views[-1][: len(views[0])] == views[0])
    assert sum(extends) / len(extends) >= 0.8
    assert len(desk.asked) <= 12


def test_b25_a_second_summary_continues_the_first_and_covers_only_what_came_since() -> None:
    desk = Desk(replace(SMALL, strategies=("summarize", "drop")), summaries=["FIRST", "SECOND"])
    desk.run(body(*agent(8)))
    desk.run(body(*agent(16)))
    first, second = (asked["messages"][1]["content"] for asked in desk.asked)
    assert "FIRST" in second
    assert "<0>" in first
    assert "<0>" not in second
    assert sent(desk)["messages"][1]["content"].count("SECOND") == 1
    assert "FIRST" not in sent(desk)["messages"][1]["content"]


def test_a_checkpoint_is_applied_without_asking_again_and_names_itself() -> None:
    desk = Desk(SMALL, summaries=["S"])
    first = desk.run(body(*chat(6)))
    second = desk.run(body(*chat(6)))
    assert len(desk.asked) == 1
    assert second.checkpoint_id == first.checkpoint_id
    assert desk.sent[0] == desk.sent[1]
    assert desk.headers["x-context-checkpoint"] == first.checkpoint_id


def test_of_two_replicas_that_cut_at_once_both_send_the_winners_view() -> None:
    winner = Edits(Cut(4, "the other's summary", 4))
    desk = Desk(SMALL, on_save=winner)
    desk.run(body(*chat(6)))
    assert "the other's summary" in sent(desk)["messages"][1]["content"]


def test_deeper_edits_on_the_same_prefix_are_not_lost_to_the_shallower_ones_before() -> None:
    desk = Desk(replace(SMALL, window=3000, elide=ElidePolicy(keep=1)), summaries=["S"])
    talk = agent(24)
    first = desk.run(body(*talk))
    assert first.actions.startswith("elide=")
    talk += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "u " * 4000}]
    second = desk.run(body(*talk))
    assert "summarize=" in second.actions
    assert second.trigger is not None
    assert second.forwarded is not None
    assert second.forwarded <= second.trigger
    assert second.checkpoint_id != first.checkpoint_id
    assert desk.run(body(*talk)).actions == second.actions


def test_a_deeper_plan_for_the_very_same_history_replaces_the_one_before() -> None:
    desk = Desk(replace(SMALL, window=2000, strategies=("elide", "drop")))
    desk.run(body(*agent(16)))
    tools = [
        {"type": "function", "function": {"name": f"tool{n}", "description": "d" * 200}} for n in range(12)
    ]
    verdict = desk.run(body(*agent(16), tools=tools))
    assert verdict.trigger is not None
    assert verdict.forwarded is not None
    assert verdict.forwarded <= verdict.trigger
    assert desk.run(body(*agent(16), tools=tools)).forwarded == verdict.forwarded


def test_no_summary_is_asked_for_where_head_and_newest_round_leave_no_room_for_one() -> None:
    desk = Desk(SMALL)
    fixed = {"role": "system", "content": "rule " * 590}
    for turns in range(3, 12):
        desk.run(json.dumps({"model": "m", "messages": [fixed, *chat(turns)]}).encode())
    assert desk.asked == []


def test_b25_a_summary_longer_than_it_may_be_is_clipped() -> None:
    desk = Desk(SMALL, summaries=["word " * 300])
    verdict = desk.run(body(*chat(8)))
    assert verdict.actions.startswith("summarize=")
    assert verdict.trigger is not None
    assert verdict.forwarded is not None
    assert verdict.forwarded < verdict.trigger
    assert "characters left out" in sent(desk)["messages"][1]["content"]


def test_b115_an_edited_old_message_finds_no_checkpoint_and_going_back_finds_it_again() -> None:
    desk = Desk(SMALL, summaries=["ONE", "TWO"])
    original, edited = chat(6), chat(6)
    edited[0] = {"role": "user", "content": "another question " + "q" * 400}
    for talk in (original, edited, original):
        desk.run(body(*talk))
    assert len(desk.asked) == 2
    assert desk.sent[0] == desk.sent[2]
    assert "TWO" in json.loads(desk.sent[1])["messages"][1]["content"]


def test_b116_a_short_list_after_the_clients_own_compaction_is_sent_as_it_is() -> None:
    desk = Desk(SMALL)
    desk.run(body(*chat(6)))
    short = body({"role": "user", "content": "summary of the client"})
    desk.run(short)
    assert desk.sent[-1] == short


def test_b83_usage_is_spliced_into_a_stream_that_lacks_it_and_nothing_else_changes() -> None:
    desk = Desk(SMALL)
    request = body({"role": "user", "content": "hi"}, stream=True)
    verdict = desk.run(request)
    assert desk.sent == [b'{"stream_options":{"include_usage":true},' + request[1:]]
    assert verdict.actions == "include_usage"
    assert next(c for c in desk.done if isinstance(c, Relay)).strip_usage


def test_b83_other_stream_options_stay_when_usage_is_spliced() -> None:
    desk = Desk(SMALL)
    desk.run(body(stream=True, stream_options={"include_usage": False, "include_obfuscation": False}))
    assert sent(desk)["stream_options"] == {"include_usage": True, "include_obfuscation": False}


@pytest.mark.parametrize(
    ("fields", "policy", "mode"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, SMALL, Mode.MANAGE),
        ({"stream": False}, SMALL, Mode.MANAGE),
        ({"stream": True}, replace(SMALL, usage=UsageMode.PASSIVE), Mode.MANAGE),
        ({"stream": True}, SMALL, Mode.OBSERVE),
    ],
)
def test_usage_is_not_spliced_where_it_is_asked_for_or_not_wanted(
    fields: dict[str, Any], policy: ModelPolicy, mode: Mode
) -> None:
    desk = Desk(policy, mode=mode)
    request = body(**fields)
    desk.run(request)
    assert desk.sent == [request]


def test_b84_an_upstream_that_refuses_the_option_is_asked_again_without_and_remembered() -> None:
    desk = Desk(
        SMALL,
        answers=[Refused(400, b'{"error": "Unrecognized request argument: stream_options"}'), Accepted(200)],
    )
    request = body(stream=True)
    verdict = desk.run(request)
    assert desk.sent[-1] == request
    assert len(desk.sent) == 2
    assert verdict.status == 200
    assert verdict.actions == "none"
    desk.run(request)
    assert desk.sent[2:] == [request]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (422, b"extra fields not permitted"),
        (400, b"Stream options are not supported"),
        (400, b"streamOptions: unexpected field"),
        (500, b"'stream_options'"),
        (422, b'{"type": "extra_forbidden"}'),
        (400, b"Unrecognized request argument supplied"),
    ],
)
def test_b84_a_refusal_of_the_option_is_recognised_in_many_wordings(status: int, said: bytes) -> None:
    desk = Desk(SMALL, answers=[Refused(status, said), Accepted(200)])
    assert desk.run(body(stream=True)).status == 200
    assert desk.refuses_usage


def test_b84_an_option_that_was_not_to_blame_is_not_remembered_as_refused() -> None:
    refused = Refused(400, b"Unrecognized request argument supplied: top_q")
    desk = Desk(SMALL, answers=[refused, refused])
    assert desk.run(body(stream=True)).status == 400
    assert not desk.refuses_usage


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_b125_no_other_refusal_is_sent_again(status: int) -> None:
    desk = Desk(SMALL, answers=[Refused(status, b'{"error": {"message": "no"}}')])
    verdict = desk.run(body(*chat(6), stream=True))
    assert len(desk.sent) == 1
    assert verdict.status == status


def test_b32_an_output_limit_that_does_not_fit_beside_the_prompt_is_lowered() -> None:
    desk = Desk(SMALL)
    verdict = desk.run(body({"role": "user", "content": "q" * 1000}, max_tokens=900))
    assert verdict.forwarded is not None
    assert sent(desk)["max_tokens"] == 1000 - 30 - verdict.forwarded
    assert verdict.actions == f"max_tokens={sent(desk)['max_tokens']}"


@pytest.mark.parametrize("limit", [None, 0, -1, "12", 1.5, True, 100])
def test_b32_an_output_limit_is_never_raised_nor_added_nor_judged(limit: object) -> None:
    desk = Desk(SMALL)
    request = body({"role": "user", "content": "q"}, max_tokens=limit)
    desk.run(request)
    assert desk.sent == [request]


def test_the_answers_usage_is_learned_with_the_raw_estimate_of_what_was_really_sent() -> None:
    desk = Desk(replace(SMALL, window=4000), usage=Usage(3000, 5))
    first = desk.run(body({"role": "user", "content": "w" * 8000}))
    assert desk.calibration.samples == 1
    assert first.raw is not None
    second = desk.run(body({"role": "user", "content": "w" * 8000}))
    assert second.original == 3000
    assert (first.usage_based, second.usage_based) == (False, True)


def talk_of(turns: int, first: str = "w" * 6000) -> list[dict[str, Any]]:
    """A chat that begins alike and goes on by long answers."""
    said = [{"role": "user", "content": first}]
    for number in range(turns):
        said.append({"role": "assistant", "content": f"answer {number} " + "a" * 800})
        said.append({"role": "user", "content": f"question {number} " + "q" * 400})
    return said


def test_the_next_count_is_expected_from_the_last_one_of_the_same_conversation() -> None:
    desk = Desk(replace(SMALL, window=60_000), usage=Usage(3000, 5))
    desk.run(body(*talk_of(1)))
    desk.usage = Usage(4100, 5)
    second = desk.run(body(*talk_of(3)))
    third = desk.run(body(*talk_of(3)))
    assert second.original is not None
    assert second.original > 3000
    assert third.original == 4100


@pytest.mark.parametrize(
    "other", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"reasoning_effort": "high"}]
)
def test_a_count_made_with_other_tools_or_settings_is_no_beginning(other: dict[str, Any]) -> None:
    desk = Desk(replace(SMALL, window=60_000), usage=Usage(3000, 5))
    desk.run(body(*talk_of(1)))
    assert desk.run(body(*talk_of(2))).usage_based
    assert not desk.run(body(*talk_of(2), **other)).usage_based


def test_conversations_that_begin_alike_keep_their_own_counts() -> None:
    desk = Desk(replace(SMALL, window=60_000))
    one, other = (
        talk_of(2),
        [*talk_of(1), {"role": "assistant", "content": "other"}, {"role": "user", "content": "x"}],
    )
    for messages, tokens in ((one, 3000), (other, 2800)) * 2:
        desk.usage = Usage(tokens, 5)
        desk.run(body(*messages))
    assert desk.run(body(*one)).original == 3000
    assert desk.run(body(*other)).original == 2800


def test_b58_b90_a_stream_that_broke_off_teaches_nothing() -> None:
    desk = Desk(SMALL, usage=Usage(3000, 5), complete=False)
    desk.run(body({"role": "user", "content": "w" * 2000}))
    assert not any(isinstance(c, Learn) for c in desk.done)


def test_b59_a_request_with_pictures_teaches_nothing() -> None:
    desk = Desk(replace(SMALL, window=None), usage=Usage(90_000, 5))
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    desk.run(body({"role": "user", "content": [{"type": "text", "text": "w" * 8000}, picture]}))
    assert not any(isinstance(c, Learn) for c in desk.done)


def test_b54_of_two_readings_of_a_usage_the_nearer_to_the_estimate_is_learned() -> None:
    desk = Desk(replace(SMALL, window=None), usage=Usage(50, 5, cache_read_tokens=1950))
    desk.run(body({"role": "user", "content": "w" * 8000}))
    assert next(c for c in desk.done if isinstance(c, Learn)).reported_tokens == 2000


def test_observing_measures_and_changes_nothing() -> None:
    desk = Desk(SMALL, mode=Mode.OBSERVE)
    request = body(*chat(6), stream=True)
    verdict = desk.run(request)
    assert desk.sent == [request]
    assert verdict.original is not None
    assert verdict.original > 1000
    assert not any(isinstance(c, Ask | Save) for c in desk.done)
    assert any(isinstance(c, Measure) for c in desk.done)


def test_what_cannot_fit_is_forwarded_by_default() -> None:
    desk = Desk(SMALL)
    request = body({"role": "system", "content": "q" * 9000}, {"role": "user", "content": "go"})
    verdict = desk.run(request)
    assert desk.sent == [request]
    assert verdict.reason == "head_and_tools_over_budget"


def test_a_newest_message_between_budget_and_window_is_sent_whole_and_the_verdict_says_so() -> None:
    desk = Desk(SMALL)
    request = body({"role": "user", "content": "q" * 3600})
    verdict = desk.run(request)
    assert desk.sent == [request]
    assert verdict.reason == "over_budget"


def test_what_cannot_fit_is_refused_with_our_numbers_where_configured() -> None:
    desk = Desk(replace(SMALL, on_overflow=OnOverflow.REFUSE))
    with pytest.raises(ContextOverflow, match=r"window is 1000 tokens.*estimated at 2"):
        desk.run(body({"role": "system", "content": "q" * 9000}, {"role": "user", "content": "go"}))
    assert desk.sent == []


def test_the_headers_say_what_was_done_in_tokens() -> None:
    desk = Desk(SMALL)
    verdict = desk.run(body(*chat(6)))
    assert desk.headers == {
        "x-context-window": "1000",
        "x-context-tokens": str(verdict.forwarded),
        "x-context-original-tokens": str(verdict.original),
        "x-context-actions": verdict.actions,
        "x-context-checkpoint": verdict.checkpoint_id,
    }


def test_a_result_may_be_shortened_then_elided_then_cut_off() -> None:
    desk = Desk(replace(SMALL, elide=ElidePolicy(keep=0)), summaries=[SideCallFailed("status_500")])
    talk = [{"role": "user", "content": "go"}, *step(0, 9000)]
    assert desk.run(body(*talk)).actions == "shorten=1"
    talk += step(1, 1200)
    assert desk.run(body(*talk)).actions == "elide=1"
    for number in range(2, 12):
        talk += step(number, 2200)
        verdict = desk.run(body(*talk))
        assert verdict.reason == ""
        assert "drop=" in verdict.actions


def test_b115_a_client_that_goes_back_gets_its_newest_results_whole() -> None:
    desk = Desk(replace(SMALL, strategies=("elide",), elide=ElidePolicy(keep=0)))
    talk = [message for number in range(8) for message in step(number, 400)]
    history = [{"role": "user", "content": "go"}, *talk]
    assert desk.run(body(*history)).actions.startswith("elide=")
    for length in range(3, len(history), 2):
        desk.run(body(*history[:length]))
        newest = json.loads(desk.sent[-1])["messages"][-1]
        assert newest["content"] == history[length - 1]["content"]


def test_b115_a_picture_that_an_older_chat_lost_is_shown_where_it_is_the_newest() -> None:
    desk = Desk(replace(SMALL, window=100_000, images=ImagePolicy(keep=2)))
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    asked = {"role": "user", "content": [{"type": "text", "text": "what is it"}, picture]}
    chat_of = [message for _ in range(4) for message in (asked, {"role": "assistant", "content": "a cat"})]
    assert desk.run(body(*chat_of, asked)).actions == "images=3"
    assert desk.run(body(asked)).actions == "none"


def test_a_summary_of_less_that_was_under_way_is_gone_on_from() -> None:
    """Another request's side call covers a shorter prefix: the rest is asked for, not dropped."""

    class Earlier(Desk):
        def summarise(self, order: Order) -> Outcome:
            done = super().summarise(order)
            if self.side_calls == 1 and isinstance(done, Summarised):
                return replace(done, key=self.keys[3])
            return done

        def memory(self, command: LookUp) -> Memory:
            self.keys = command.chain
            return super().memory(command)

    desk = Earlier(SMALL, summaries=["ONE", "TWO"])
    verdict = desk.run(body(*chat(20)))
    assert "drop=" not in verdict.actions
    assert [call.outcome for call in verdict.side_calls] == ["used", "used"]


def test_an_upstream_that_adds_more_than_the_target_to_every_prompt_leaves_room_for_history() -> None:
    desk = Desk(replace(SMALL, window=8000))
    for turns in range(4, 60):
        request = body(*chat(turns))
        desk.run(request)
        desk.usage = Usage(5000 + desk.measure(request).estimated_tokens, 5)
    assert desk.waited_for < 12
