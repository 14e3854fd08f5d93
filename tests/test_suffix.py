"""A summary that is asked for behind the forwarded prompt, which the upstream's cache holds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from proxy.context import summary
from proxy.context.policy import CacheKey, CarryPolicy, ModelPolicy, SummaryMode, SummaryPolicy
from proxy.exchange import Ask, Order, Prepare, SideCallFailed, Terms
from tests.desk import Desk
from tests.test_exchange import body as request

SUFFIX = SummaryPolicy(mode=SummaryMode.SUFFIX, prepare_at=0)
POLICY = ModelPolicy(
    window=8000,
    reserve_output=100,
    strategies=("summarize", "drop"),
    summary=SUFFIX,
    carry=CarryPolicy(share=0),
)
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def turns(number: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{role} {place}: " + "and more of it " * 90}
        for place in range(start, number)
        for role in ("user", "assistant")
    ]


def rounds(number: int) -> list[dict[str, Any]]:
    """One wish, and an agent that works on it by calls of a tool."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "Mend the parser in src/parse.c."}]
    for place in range(number):
        call = {"id": f"c{place}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        talk.append({"role": "assistant", "content": None, "tool_calls": [call]})
        talk.append({"role": "tool", "tool_call_id": f"c{place}", "content": f"line {place} " * 250})
    return talk


def grown(desk: Desk, talk: Sequence[dict[str, Any]], **members: Any) -> None:
    """The requests of a client whose history grows by one message after the other, each time to a user or a tool."""
    for stop, message in enumerate(talk, start=1):
        if message["role"] in ("user", "tool"):
            desk.run(request(*talk[:stop], **members))


def orders(desk: Desk) -> list[tuple[int, Order]]:
    """The orders with the number of main calls that were sent before each."""
    sent, found = 0, []
    for command in desk.done:
        match command:
            case Ask(order=order) | Prepare(order=order):
                found.append((sent, order))
            case _:
                sent += hasattr(command, "verdict")
    return found


@pytest.mark.parametrize("talk", [turns(30), rounds(50)], ids=["a_chat", "an_agent"])
@pytest.mark.parametrize("prepare_at", [0.0, 0.8])
def test_the_order_begins_with_the_bytes_of_the_prompt_that_was_forwarded_last(
    talk: list[dict[str, Any]], prepare_at: float
) -> None:
    desk = Desk(replace(POLICY, summary=replace(SUFFIX, prepare_at=prepare_at)))
    grown(desk, talk, tools=[TOOL])
    behind = [(sent, order) for sent, order in orders(desk) if order.mode is SummaryMode.SUFFIX]
    assert len(behind) >= 3, "several cuts, each with a summary of the one before"
    for sent, order in behind:
        last = messages_of(desk.sent[sent - 1])
        asked = messages_of(order.body)
        same = [each for each, other in zip(asked, last, strict=False) if each == other]
        new = 2 if asked[len(same) - 1]["role"] == "tool" else 1
        assert len(same) == len(asked) - new, "all but the order is what the upstream read before"
        assert json.loads(order.body)["tools"] == json.loads(desk.sent[sent - 1])["tools"]


def messages_of(body: bytes) -> list[Any]:
    found: list[Any] = json.loads(body)["messages"]
    return found


def test_behind_a_user_message_it_is_the_end_of_that_one_and_no_second_in_a_row() -> None:
    talk = [message for message in turns(60) if message["role"] == "user"]
    desk = Desk(POLICY)
    grown(desk, talk)
    behind = [messages_of(order.body) for _, order in orders(desk) if order.mode is SummaryMode.SUFFIX]
    assert behind
    for messages in behind:
        assert messages[-1]["content"].startswith(("user ", "["))
        assert summary.SUFFIX[:40] in messages[-1]["content"]


def test_tools_stay_and_may_not_be_called_and_what_shapes_an_answer_is_left_out() -> None:
    desk = Desk(POLICY)
    shaping = {"response_format": {"type": "json_object"}, "stop": ["x"], "n": 2, "logprobs": True}
    kept = {"reasoning_effort": "low", "prompt_cache_key": "mine", "user": "u", "cache_salt": "s"}
    asked = {"temperature": 1.5, "tool_choice": "required", "max_tokens": 90, "stream": True}
    grown(desk, turns(12), tools=[TOOL], **shaping, **kept, **asked)
    order = json.loads(orders(desk)[0][1].body)
    assert {name: order[name] for name in kept} == kept
    assert order["tools"] == [TOOL]
    assert order["tool_choice"] == "none"
    assert order["max_tokens"] == 1000, "the summary's own limit, by the client's name for it"
    assert order["stream"] is False
    assert not {*shaping, "temperature"} & set(order)


@pytest.mark.parametrize("members", [{}, {"tools": None}, {"tools": []}], ids=str)
def test_without_tools_nothing_is_forbidden_which_upstreams_would_refuse(members: dict[str, Any]) -> None:
    desk = Desk(POLICY)
    grown(desk, turns(12), **members)
    assert "tool_choice" not in json.loads(orders(desk)[0][1].body)


def test_the_cache_key_is_that_of_the_main_calls() -> None:
    desk = Desk(replace(POLICY, prompt_cache_key=CacheKey.AUTO))
    grown(desk, turns(12))
    key = json.loads(desk.sent[-1])["prompt_cache_key"]
    assert json.loads(orders(desk)[0][1].body)["prompt_cache_key"] == key


def test_an_earlier_summary_stands_in_the_prompt_and_is_to_be_merged() -> None:
    desk = Desk(POLICY)
    grown(desk, turns(30))
    first, second = (messages_of(order.body) for _, order in orders(desk)[:2])
    assert "Merge it" not in first[-1]["content"]
    assert "Merge it" in second[-1]["content"]
    assert any("a summary" in message["content"] for message in second[:-1])


def test_the_transcript_is_at_hand_for_a_model_that_writes_none() -> None:
    desk = Desk(POLICY)
    grown(desk, turns(12))
    order = orders(desk)[0][1]
    assert order.instead is not None
    assert order.instead.mode is SummaryMode.TRANSCRIPT
    assert [message["role"] for message in messages_of(order.instead.body)] == ["system", "user"]


@dataclass
class Elsewhere(Desk):
    """A desk whose side calls go to another server, or another model."""

    @property
    def terms(self) -> Terms:
        return replace(super().terms, shares_cache=False)


def test_another_model_or_server_has_no_such_prompt_in_its_cache_and_is_shown_a_transcript() -> None:
    desk = Elsewhere(POLICY)
    grown(desk, turns(12))
    assert [order.mode for _, order in orders(desk)] == [SummaryMode.TRANSCRIPT]


def test_in_a_small_window_less_is_summarised_so_that_the_answer_has_room_behind_the_prompt() -> None:
    desk = Desk(replace(POLICY, window=2500))
    talk = [{**message, "content": message["content"][:300]} for message in turns(60)]
    verdicts = [desk.run(request(*talk[:stop])) for stop in range(1, len(talk), 2)]
    behind = [order for _, order in orders(desk) if order.mode is SummaryMode.SUFFIX]
    assert behind
    for order in behind:
        assert desk.count(order.body.decode()) + json.loads(order.body)["max_tokens"] < 2500
    cuts = [verdict for verdict in verdicts if verdict.side_calls]
    assert all(len(verdict.side_calls) == 1 for verdict in cuts), "and no second call for the rest"
    assert all((verdict.forwarded or 0) < 0.7 * 2500 for verdict in cuts)


def test_a_prompt_that_leaves_no_room_for_an_answer_is_not_asked_behind() -> None:
    desk = Desk(POLICY)
    desk.run(request(*turns(40), {"role": "user", "content": "Go on."}))
    assert orders(desk)[0][1].mode is SummaryMode.TRANSCRIPT


def test_what_was_dropped_without_a_summary_is_not_in_the_prompt_so_it_is_asked_of_a_transcript() -> None:
    desk = Desk(POLICY, summaries=[SideCallFailed("timeout"), "a summary"])
    grown(desk, turns(30))
    modes = [order.mode for _, order in orders(desk)]
    assert modes[:2] == [SummaryMode.SUFFIX, SummaryMode.TRANSCRIPT]


def test_instructions_of_ones_own_are_told_that_the_conversation_is_the_transcript() -> None:
    own = replace(SUFFIX, prompt="Summarise the transcript in {words} words.")
    desk = Desk(replace(POLICY, summary=own))
    grown(desk, turns(12))
    order = orders(desk)[0][1]
    told = messages_of(order.body)[-1]["content"]
    assert told.startswith("Summarise the transcript in 600 words.")
    assert told.endswith(summary.ABOVE.strip())
    assert not order.given.in_sections, "whoever asks in other words gets other headings"


def test_compacting_on_demand_asks_in_the_same_way() -> None:
    desk = Desk(POLICY)
    desk.compact(request(*turns(6), tools=[TOOL]))
    assert [order.mode for _, order in orders(desk)] == [SummaryMode.SUFFIX]


@pytest.mark.parametrize("mode", list(SummaryMode), ids=str)
@pytest.mark.parametrize("prepare_at", [0.0, 0.8])
def test_b109_whoever_asks_for_a_summary_would_take_the_one_that_it_asks_for(
    mode: SummaryMode, prepare_at: float
) -> None:
    """Else two requests of a conversation, of which a part was dropped, would each begin the same side call."""
    own = replace(SUFFIX, mode=mode, prepare_at=prepare_at)
    desk = Desk(replace(POLICY, window=3000, summary=own), summaries=[SideCallFailed("timeout")])
    grown(desk, turns(40))
    made = [command for command in desk.done if isinstance(command, Ask | Prepare)]
    assert len(made) > 5
    assert all(each.welcome.issuperset(each.order.keys) for each in made)
