"""The promises of every view, over random histories, budgets and orders of the ladder."""

import json
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.context import clip, invariants, pins
from proxy.context.conversation import Conversation, Message, conversation_of
from proxy.context.edits import NOTHING, Edits, SummaryRole
from proxy.context.policy import DropPolicy, ElidePolicy, ImagePolicy, ModelPolicy, SummaryPolicy
from proxy.context.situation import Limits, NeedSizes, NeedSummary, Situation
from proxy.context.steps import at_once
from proxy.context.strategies import NAMES, STRATEGIES
from tests.context.histories import answered, apply, conversations, planned, read, situation


@st.composite
def cases(draw: st.DrawFn) -> Situation:
    """A conversation, an order of the ladder, and limits from far below its size to above it."""
    talk, policy = draw(conversations()), draw(POLICIES)
    whole = situation(talk, None, policy).tokens(NOTHING)
    trigger = max(1, int(whole * draw(st.floats(0.05, 1.1))))
    return situation(
        talk,
        Limits(
            window=int(trigger * 1.4),
            ceiling=int(trigger * 1.3),
            budget=int(trigger * 1.2),
            trigger=trigger,
            target=int(trigger * draw(st.floats(0.1, 0.95))),
        ),
        policy,
    )


POLICIES = st.builds(
    lambda order, keep, turns, share, max_turns, rest: ModelPolicy(
        strategies=tuple(order),
        elide=ElidePolicy(keep=keep),
        summary=SummaryPolicy(keep_turns=turns, keep_recent=share, max_tokens=40),
        drop=DropPolicy(max_turns=max_turns),
        **rest,
    ),
    st.one_of(st.permutations(sorted(NAMES)), st.just(ModelPolicy().strategies), st.just(("elide", "drop"))),
    st.sampled_from([0, 0, 1, 3]),
    st.integers(0, 3),
    st.floats(0, 0.5),
    st.one_of(st.none(), st.none(), st.integers(0, 4)),
    st.fixed_dictionaries(
        {},
        optional={
            "summary_role": st.sampled_from(SummaryRole),
            "keep_user_tokens": st.sampled_from([0, 40]),
            "pin": st.sampled_from([("abc",), ("a", "b.?d")]),
            "protect_tools": st.just(("run",)),
            "vision": st.booleans(),
            "images": st.builds(ImagePolicy, st.sampled_from([0, 1, 3, 20])),
        },
    ),
)
SUMMARIES = st.sampled_from([None, "a short summary", "long " * 200])


def without_sliding(case: Situation) -> Situation:
    return replace(case, policy=replace(case.policy, drop=DropPolicy(), images=ImagePolicy(), vision=True))


def alone(name: str) -> Callable[[Situation], Edits | NeedSummary | NeedSizes]:
    """One strategy, asked again until every size is known."""

    def step(case: Situation) -> Edits | NeedSummary | NeedSizes:
        edits = at_once(STRATEGIES[name](case, NOTHING))
        made = at_once(case.making(edits)) if isinstance(edits, Edits) else ()
        return NeedSizes(made) if made else edits

    return step


@given(cases(), SUMMARIES)
def test_the_ladder_keeps_every_promise(case: Situation, summary: str | None) -> None:
    plan = planned(case, NOTHING, summary)
    view = apply(case.conversation, plan.edits)
    assert invariants.broken(case.conversation, view, case.policy.summary_role) == []


@given(cases(), st.sampled_from(sorted(NAMES)), SUMMARIES)
def test_every_strategy_alone_keeps_every_promise(case: Situation, name: str, summary: str | None) -> None:
    edits = answered(case, alone(name), summary)
    assert isinstance(edits, Edits)
    assert (
        invariants.broken(case.conversation, apply(case.conversation, edits), case.policy.summary_role) == []
    )


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
    assert apply(case.conversation, plan.edits) is case.conversation


@given(cases(), SUMMARIES)
def test_planning_on_its_own_output_changes_nothing(case: Situation, summary: str | None) -> None:
    if case.policy.summary_role is SummaryRole.USER:
        case = without_sliding(case)  # the block would be one turn more
    first = planned(case, NOTHING, summary)
    # As whoever comes next reads it: a block in a system message of its own stands in the head then.
    view = conversation_of(apply(case.conversation, first.edits).messages)
    again = planned(situation(view, case.limits, case.policy), NOTHING, summary)
    if again.edits:
        assert case.limits is not None
        assert first.tokens > case.limits.trigger
        assert again.tokens < situation(view, case.limits, case.policy).tokens(NOTHING)


@given(cases(), SUMMARIES)
def test_planning_again_from_a_checkpoint_changes_nothing(case: Situation, summary: str | None) -> None:
    first = planned(case, NOTHING, summary)
    again = planned(case, first.edits, summary)
    assert case.limits is not None
    assert again.edits == first.edits or first.tokens > case.limits.trigger


@given(cases(), SUMMARIES)
def test_the_planned_size_is_the_size_of_the_view(case: Situation, summary: str | None) -> None:
    plan = planned(case, NOTHING, summary)
    view = apply(case.conversation, plan.edits)
    measured = situation(view, case.limits, case.policy).tokens(NOTHING)
    carried = len(plan.edits.cut.carried) if plan.edits.cut else 0  # the frames are rounded up
    assert abs(measured - plan.tokens) <= 8 + measured // 50 + 4 * carried


@given(conversations(damaged=False), POLICIES, st.integers(1, 6))
def test_the_sliding_window_never_keeps_more_turns_than_configured_and_never_splits_a_round(
    talk: Conversation, policy: ModelPolicy, turns: int
) -> None:
    policy = replace(policy, drop=DropPolicy(max_turns=turns))
    view = apply(talk, planned(situation(talk, None, policy), NOTHING, None).edits)
    own = policy.summary_role is SummaryRole.USER  # the block then is a user message too
    # Words of the user's behind results that have not been answered stay with them.
    waiting = sum(index > talk.unanswered_from for index in talk.turn_starts)
    assert len(view.turn_starts) <= turns + own + waiting
    assert invariants.broken(talk, view, policy.summary_role) == []


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
    view = apply(talk, planned(situation(talk, None, policy), NOTHING, None).edits)
    assert [m.text for m in view.messages] == ["s", "second", "", "2"]


@given(cases(), SUMMARIES, st.lists(st.floats(0.2, 1), min_size=1, max_size=3))
def test_a_history_that_grows_from_cut_to_cut_keeps_every_promise(
    case: Situation, summary: str | None, shares: list[float]
) -> None:
    """Each plan begins from the edits before, as a client's next requests do."""
    edits, talk = NOTHING, case.conversation
    for share in [*sorted(shares), 1.0]:
        stop = max((cut for cut in talk.safe_cuts if cut <= share * len(talk.history)), default=0)
        so_far = Conversation(talk.head, talk.history if share == 1.0 else talk.history[:stop])
        plan = planned(situation(so_far, case.limits, case.policy), edits, summary)
        edits = plan.edits
        view = apply(so_far, edits)
        assert invariants.broken(so_far, view, case.policy.summary_role) == []


@given(cases())
def test_what_is_over_the_ceiling_at_the_end_has_nothing_left_that_may_be_shortened(case: Situation) -> None:
    case = replace(case, policy=replace(case.policy, strategies=ModelPolicy().strategies))
    plan = planned(case, NOTHING, None)
    assert case.limits is not None
    view = apply(case.conversation, plan.edits)
    if plan.tokens > case.limits.ceiling:
        kept = {case.conversation.history[index].raw for index in range(len(case.sizes))}
        whole = {
            case.conversation.history[index].raw
            for index in range(len(case.sizes))
            if pins.keeps_whole(case, index)
        }
        long = [m for m in view.history if any(len(text) > clip.LEAST for text in _parts_of(m))]
        assert all(m.raw in whole or m.raw not in kept for m in long), (
            "only what is pinned or protected is long"
        )


def _parts_of(message: Message) -> list[str]:
    content = json.loads(message.raw).get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
