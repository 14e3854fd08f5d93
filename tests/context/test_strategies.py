"""Each way of making a view smaller, by example."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from proxy.context import planner
from proxy.context.conversation import Conversation
from proxy.context.edits import NOTHING, Cut, Edits, Rewrite
from proxy.context.policy import DropPolicy, ElidePolicy, ModelPolicy
from proxy.context.situation import Limits, NeedSummary, Situation
from proxy.context.steps import at_once
from proxy.context.strategies import drop, elide, summarize
from tests.context.histories import apply, read, situation

LONG = "line of output\n" * 40
SMALL = Limits(10_000, 9_500, 9_000, 8_000, 1)
USER = {"role": "user", "content": "go"}


def called(name: str, id_: str = "a", **result: Any) -> list[dict[str, Any]]:
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": id_, "content": LONG, **result}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, answer]


def case(*messages: dict[str, Any], keep: int = 0, limits: Limits = SMALL, **policy: Any) -> Situation:
    """A situation whose newest round is a short user message after an answer, so that everything before it may go.

    No user message is carried unless the policy says so.
    """
    policy = {"keep_user_tokens": 0, **policy}
    talk = read([*messages, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}])
    return situation(talk, limits, ModelPolicy(elide=ElidePolicy(keep=keep), **policy))


def edits_of(of: Situation) -> Edits:
    return at_once(elide.planning(of, NOTHING))


def elided(of: Situation) -> Conversation:
    return apply(of.conversation, edits_of(of))


def test_a_marker_says_what_went_from_which_tool_and_how_large_it_was() -> None:
    view = elided(case(USER, *called("read_file")))
    assert view.history[2].text == "[Output of read_file left out here: 600 characters, 41 lines.]"


def test_b09_a_result_of_the_deprecated_function_role_is_elided_too() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}}
    view = elided(case(USER, call, {"role": "function", "name": "old", "content": LONG}))
    assert view.history[2].text.startswith("[Output of old left out here:")
    assert view.history[2].role == "function"


def test_tool_results_in_plain_chat_stay_recognisable_when_they_are_elided() -> None:
    view = elided(
        case(
            USER, {"role": "assistant", "content": "{}"}, {"role": "user", "content": f"TOOL_RESULTS {LONG}"}
        )
    )
    assert view.history[2].text.startswith("TOOL_RESULTS [Output of a tool left out here:")
    assert view.history[2].is_result


def test_b71_a_result_of_several_parts_becomes_one_text_and_keeps_its_other_fields() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    view = elided(case(USER, *called("shot", content=parts, vendor={"x": 1.0})))
    message = json.loads(view.history[2].raw)
    assert isinstance(message["content"], str)
    assert message["vendor"] == {"x": 1.0}
    assert b'"vendor": {"x": 1.0}' in view.history[2].raw


def test_a_result_that_is_shorter_than_its_marker_is_left_alone() -> None:
    of = case(USER, *called("read_file", content="ok"))
    assert edits_of(of) == NOTHING


def test_b68_a_result_that_is_a_marker_already_is_left_alone() -> None:
    of = case(USER, *called("read_file"))
    marker = elided(of).history[2].text
    again = case(USER, *called("read_file", content=marker))
    assert edits_of(again) == NOTHING


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 8])
def test_b37_the_newest_results_stay_whole_whatever_their_number(keep: int) -> None:
    rounds = [message for number in range(3) for message in called("f", f"c{number}")]
    view = elided(case(USER, *rounds, keep=keep))
    whole = [message.text == LONG for message in view.history if message.is_result]
    assert whole == [number >= 3 - keep for number in range(3)]


def test_b67_oldest_results_go_first_and_only_as_many_as_the_target_needs() -> None:
    rounds = [message for number in range(4) for message in called("f", f"c{number}")]
    of = case(USER, *rounds)
    whole = of.tokens(NOTHING)
    edits = edits_of(replace(of, limits=Limits(whole, whole, whole, whole, whole - 150)))
    assert [rewrite.index for rewrite in edits.rewrites] == [2, 4]


def test_b66_the_marker_is_the_configured_one_and_a_tools_odd_name_cannot_break_it() -> None:
    answered = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}]
    talk = read([USER, *called("read\n\u202e{file}" + "x" * 99), *answered])
    of = situation(talk, SMALL, ModelPolicy(elide=ElidePolicy(keep=0, marker="(gone: {tool}, {lines})")))
    text = apply(talk, edits_of(of)).history[2].text
    assert text.startswith("(gone: read{file}xxx")
    assert "\n" not in text
    assert len(text) < 100


def test_the_newest_round_is_never_elided() -> None:
    talk = read([USER, *called("f")])
    assert edits_of(situation(talk, SMALL, ModelPolicy(elide=ElidePolicy(keep=0)))) == NOTHING


def turns(number: int, size: int = 80) -> list[dict[str, Any]]:
    return [
        message
        for n in range(number)
        for message in (
            {"role": "user", "content": f"question {n} " + "q" * size},
            {"role": "assistant", "content": f"answer {n} " + "a" * size},
        )
    ]


def test_a_cut_keeps_as_much_as_the_target_allows() -> None:
    of = case(*turns(20))
    whole = of.tokens(NOTHING)
    limits = Limits(whole, whole, whole, whole - 1, whole // 2)
    edits = drop.plan(replace(of, limits=limits), NOTHING)
    assert edits.cut is not None
    assert edits.cut.stop % 2 == 0, "before a user message"
    kept = replace(of, limits=limits).tokens(edits)
    assert whole // 2 - 60 < kept <= whole // 2


def test_what_a_summary_must_cover_goes_from_the_end_of_the_last_to_the_cut() -> None:
    of = case(*turns(20))
    whole = of.tokens(NOTHING)
    of = replace(of, limits=Limits(10 * whole, whole, whole, whole - 1, whole // 2))
    need = summarize.plan(of, NOTHING)
    assert isinstance(need, NeedSummary)
    assert (need.start, need.previous) == (0, "")
    first = summarize.plan(replace(of, summaries={need.stop: "so far"}), NOTHING)
    assert isinstance(first, Edits)
    assert first.cut is not None
    grown = case(*turns(40))
    more = grown.tokens(first)
    again = summarize.plan(replace(grown, limits=Limits(10 * more, more, more, more - 1, more // 2)), first)
    assert isinstance(again, NeedSummary)
    assert (again.start, again.previous) == (first.cut.stop, "so far")


def test_a_sliding_window_moves_in_batches_so_that_the_prompt_is_append_only_between_two_moves() -> None:
    policy = ModelPolicy(drop=DropPolicy(max_turns=6))
    views = []
    for number in range(1, 40):
        talk = read(turns(number)[:-1])
        plan = at_once(planner.planning(situation(talk, None, policy), NOTHING))
        assert isinstance(plan, planner.Plan)
        view = apply(talk, plan.edits)
        assert len(view.turn_starts) <= 6
        assert view.history[-1].raw == talk.history[-1].raw
        views.append([message.raw for message in view.history])
    extends = [later[: len(earlier)] == earlier for earlier, later in pairwise(views)]
    assert extends.count(False) == 11, "every third turn once the window of six is full"


def test_b02_a_sliding_window_never_leaves_a_result_without_its_call() -> None:
    talk = read([USER, *called("f", "a"), {"role": "user", "content": "b"}, *called("f", "b")])
    policy = ModelPolicy(drop=DropPolicy(max_turns=1))
    plan = at_once(planner.planning(situation(talk, None, policy), NOTHING))
    assert isinstance(plan, planner.Plan)
    view = apply(talk, plan.edits)
    assert [message.role for message in view.history] == ["user", "assistant", "tool"]


def test_edits_behind_a_new_cut_stay_and_those_before_it_go() -> None:
    edits = Edits(None, (Rewrite(1, "x", "elide"), Rewrite(5, "y", "elide")))
    assert edits.with_cut(Cut(3)).rewrites == (Rewrite(5, "y", "elide"),)
