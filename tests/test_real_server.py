"""The client of the measurement on a real server, before a stand-in that counts a word as a token; no model runs here.

Rules. The window is so small that it can be worked out by hand: the system message has ten words, each text has nine
and each answer three.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.real_server import (
    COLUMNS,
    SYSTEM,
    NewestThatFit,
    Outcome,
    Step,
    conversation,
    everything,
    made_up,
    rows,
)
from benchmarks.served import CHAT, Call, Cost, Relay
from benchmarks.side_calls import found
from proxy.demo.replies import chunks, completion, text_message
from tests.peers.answers import Answer, json_answer, sse_answer
from tests.peers.scripted import Request, ScriptedUpstream

WINDOW = 40
STEPS = 5
TEXTS = tuple(f"Question {number} has nine words, this one too." for number in range(STEPS))
SAID = "So it is."


def said(request: Request) -> list[str]:
    return [message["content"] for message in json.loads(request.body)["messages"]]


def serve(request: Request) -> Answer:
    tokens = sum(len(text.split()) for text in said(request))
    if request.path.endswith("/input_tokens"):
        return json_answer({"input_tokens": tokens})
    if tokens >= WINDOW:
        return json_answer({"error": {"message": "too long"}}, status=400)
    message = text_message(SAID)
    return (
        sse_answer(chunks(message))
        if json.loads(request.body)["stream"]
        else json_answer(completion(message))
    )


async def held(*, keeps_last: bool) -> tuple[list[Step], list[Request]]:
    """The steps of a conversation, and the chats that the server was asked for."""
    async with ScriptedUpstream(otherwise=serve) as upstream:
        choose = NewestThatFit(upstream.base_url, WINDOW - 1) if keeps_last else everything
        steps = [each async for each in conversation(upstream.base_url, TEXTS, 8, choose)]
        return steps, [request for request in upstream.requests if request.path.endswith(CHAT)]


async def test_every_second_answer_is_a_stream_and_both_kinds_are_read_alike() -> None:
    steps, asked = await held(keeps_last=True)
    assert [json.loads(request.body)["stream"] for request in asked] == [False, True, False, True, False]
    assert all(step.id and step.text == SAID for step in steps)


async def test_what_is_sent_whole_is_refused_from_the_first_prompt_on_that_does_not_fit() -> None:
    steps, asked = await held(keeps_last=False)
    assert [bool(step.id) for step in steps] == [True, True, False, False, False]
    assert said(asked[2]) == [SYSTEM["content"], TEXTS[0], SAID, TEXTS[1], SAID, TEXTS[2]]
    assert said(asked[3])[-2:] == [TEXTS[2], TEXTS[3]], "a refused question stays"


async def test_the_newest_messages_that_fit_are_kept_behind_the_system_message() -> None:
    _, asked = await held(keeps_last=True)
    assert said(asked[1]) == [SYSTEM["content"], TEXTS[0], SAID, TEXTS[1]]
    assert said(asked[2]) == [SYSTEM["content"], SAID, TEXTS[1], SAID, TEXTS[2]]
    assert said(asked[4]) == [SYSTEM["content"], SAID, TEXTS[3], SAID, TEXTS[4]]


def test_made_up_texts_are_as_long_as_asked_for_and_the_same_every_time() -> None:
    texts = [made_up(number, 500) for number in range(20)]
    assert texts == [made_up(number, 500) for number in range(20)]
    assert len(set(texts)) == 20
    assert all(500 <= len(text) < 650 for text in texts)


@pytest.fixture
def outcome() -> Outcome:
    steps = (Step(1.0, "a", "yes"), Step(2.0), Step(6.0, "b", "no"))
    return Outcome(steps, Cost(2, 300, 100, 200, 9, 7.5), Cost(), 9.0, metered=100, left=0)


def cells(row: Sequence[str]) -> dict[str, str]:
    return dict(zip(COLUMNS, row, strict=True))


def test_a_row_tells_what_a_way_cost_and_a_second_one_what_its_client_did_not_ask_for(
    outcome: Outcome,
) -> None:
    (row,) = rows("whole", outcome)
    assert list(cells(row).values()) == [
        "whole",
        "2",
        "1",
        "300",
        "100",
        "200",
        "9",
        "0",
        "9.0",
        "2.0",
        "6.0",
    ]
    _, side = rows("transom", replace(outcome, side=Cost(1, 90, 80, 10, 5, 2.0)))
    assert (cells(side)["processed"], cells(side)["side calls"]) == ("80", "1")


def test_what_the_figures_do_not_show_is_said(outcome: Outcome) -> None:
    assert list(outcome.doubts()) == []
    assert len(list(replace(outcome, metered=101).doubts())) == 1
    assert len(list(replace(outcome, left=1).doubts())) == 1


# --- side calls, asked in one way and another -----------------------------------------------------------------


def call(name: str, processed: int, cached: int = 0) -> Call:
    return Call(b"", 200, 1.0, name, {}, {"prompt_n": processed, "cache_n": cached})


def test_side_calls_are_those_whose_answers_the_client_never_saw_and_the_call_behind_each_is_told_apart() -> (
    None
):
    calls = [call("a", 300), call("side", 20, 2000), call("b", 900), call("c", 250), call("other", 40, 2100)]
    told = found(Relay("", [*calls, call("d", 800)]), ["a", "b", "c", "d"])
    assert [each.id for each in told.side] == ["side", "other"]
    assert [each.id for each in told.behind] == ["b", "d"]
    assert told.row("suffix") == ("suffix", "2", "2,080", "30", "1.0", "850")
