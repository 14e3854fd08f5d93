"""The promises of every view, over random histories, budgets and orders of the ladder."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.context import checkpoint, invariants, planner
from proxy.context.checkpoint import NOTHING, Edits
from proxy.context.conversation import Conversation
from proxy.context.planner import Plan
from proxy.context.policy import DropPolicy, ElidePolicy, ModelPolicy, SummaryPolicy
from proxy.context.situation import Limits, NeedSummary, Situation
from proxy.context.strategies import NAMES, STRATEGIES
from tests.context.histories import conversations, read, situation


@st.composite
def cases(draw: st.DrawFn) -> Situation:
    """A conversation, an order of the ladder, and limits from far below its size to above it."""
    talk, policy = draw(conversations()), draw(POLICIES)
    whole = situation(talk, None, policy).tokens(NOTHING)
    trigger = max(1, int(whole * draw(st.floats(0.05, 1.1))))
    return situation(
        talk,
        Limits(int(trigger * 1.4), int(trigger * 1.2), trigger, int(trigger * draw(st.floats(0.1, 0.95)))),
        policy,
    )


POLICIES = st.builds(
    lambda order, keep, turns, share, max_turns: ModelPolicy(
        strategies=tuple(order),
        elide=ElidePolicy(keep=keep),
        summary=SummaryPolicy(keep_turns=turns, keep_recent=share, max_tokens=40),
        drop=DropPolicy(max_turns=max_turns),
    ),
    st.one_of(
        st.permutations(sorted(NAMES)), st.just(("elide", "summarize", "drop")), st.just(("elide", "drop"))
    ),
    st.sampled_from([0, 0, 1, 3]),
    st.integers(0, 3),
    st.floats(0, 0.5),
    st.one_of(st.none(), st.none(), st.integers(0, 4)),
)
SUMMARIES = st.sampled_from([None, "a short summary", "long " * 200])


def without_sliding(case: Situation) -> Situation:
    return replace(case, policy=replace(case.policy, drop=DropPolicy()))


def planned(case: Situation, edits: Edits, summary: str | None) -> Plan:
    """Planning to its end, every needed summary answered with the same text."""
    while isinstance(step := planner.plan(case, edits), NeedSummary):
        case = replace(case, summaries={**case.summaries, step.stop: summary})
    return step


@given(cases(), SUMMARIES)
def test_the_ladder_keeps_every_promise(case: Situation, summary: str | None) -> None:
    plan = planned(case, NOTHING, summary)
    assert invariants.broken(case.conversation, checkpoint.apply(case.conversation, plan.edits)) == []


@given(cases(), st.sampled_from(sorted(NAMES)), SUMMARIES)
def test_every_strategy_alone_keeps_every_promise(case: Situation, name: str, summary: str | None) -> None:
    step = STRATEGIES[name](case, NOTHING)
    if isinstance(step, NeedSummary):
        step = STRATEGIES[name](replace(case, summaries={step.stop: summary}), NOTHING)
    assert isinstance(step, Edits)
    assert invariants.broken(case.conversation, checkpoint.apply(case.conversation, step)) == []


@given(cases(), SUMMARIES)
def test_a_view_is_never_larger_than_what_it_was_made_from(case: Situation, summary: str | None) -> None:
    plan = planned(case, NOTHING, summary)
    assert plan.tokens <= case.tokens(NOTHING)


@given(cases())
def test_what_fits_is_left_alone(case: Situation) -> None:
    case = without_sliding(case)
    assert case.limits is not None
    fits = replace(case.limits, trigger=case.tokens(NOTHING))
    plan = planned(replace(case, limits=fits), NOTHING, None)
    assert plan.edits == NOTHING
    assert checkpoint.apply(case.conversation, plan.edits) is case.conversation


@given(cases(), SUMMARIES)
def test_planning_on_its_own_output_changes_nothing(case: Situation, summary: str | None) -> None:
    edits = planned(case, NOTHING, summary).edits
    view = checkpoint.apply(case.conversation, edits)
    again = planned(situation(view, case.limits, case.policy), NOTHING, summary)
    if again.edits:
        assert case.limits is not None
        assert case.tokens(edits) > case.limits.trigger
        assert again.tokens < situation(view, case.limits, case.policy).tokens(NOTHING)


@given(cases(), SUMMARIES)
def test_planning_again_from_a_checkpoint_changes_nothing(case: Situation, summary: str | None) -> None:
    edits = planned(case, NOTHING, summary).edits
    again = planned(case, edits, summary)
    assert case.limits is not None
    assert again.edits == edits or case.tokens(edits) > case.limits.trigger


@given(cases(), SUMMARIES)
def test_the_planned_size_is_the_size_of_the_view(case: Situation, summary: str | None) -> None:
    plan = planned(case, NOTHING, summary)
    view = checkpoint.apply(case.conversation, plan.edits)
    measured = situation(view, case.limits, case.policy).tokens(NOTHING)
    assert abs(measured - plan.tokens) <= 8 + measured // 50


@given(conversations(damaged=False), POLICIES, st.integers(1, 6))
def test_the_sliding_window_never_keeps_more_turns_than_configured_and_never_splits_a_round(
    talk: Conversation, policy: ModelPolicy, turns: int
) -> None:
    policy = replace(policy, drop=DropPolicy(max_turns=turns))
    view = checkpoint.apply(talk, planned(situation(talk, None, policy), NOTHING, None).edits)
    assert len(view.turn_starts) <= turns
    assert invariants.broken(talk, view) == []


def test_a_sliding_window_of_no_turns_keeps_the_newest_round_and_the_request_it_works_on() -> None:
    talk = read(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "second"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "b", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
        ]
    )
    policy = ModelPolicy(drop=DropPolicy(max_turns=0, notice=""))
    view = checkpoint.apply(talk, planned(situation(talk, None, policy), NOTHING, None).edits)
    assert [m.text for m in view.messages] == ["s", "second", "", "2"]
