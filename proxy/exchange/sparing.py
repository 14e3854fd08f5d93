"""How the client's own request for a summary is planned: so that it shows most of what is to be summed up.

Rules. No side call is made: a summary of a summary keeps a part of a part. Results are elided and texts shortened, only
as far as the window needs, and from the client's own messages, not from what earlier cuts left of them; where that
is not enough, the oldest turns go. The newest message stays whole. Nothing of it is saved or learned, not where all of
the ladder is needed either, and nothing written into it: a client that goes on with its old history finds the
conversation as it was.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Final

from proxy.context import planner
from proxy.context.conversation import Message
from proxy.context.edits import NOTHING, Edits
from proxy.context.planner import Plan
from proxy.context.policy import CarryPolicy, Mode, RecallPolicy
from proxy.context.situation import NeedSizes, NeedSummary, Situation
from proxy.exchange.case import Case, Draft
from proxy.exchange.commands import Measure, Measured, Outcome, Pause, expect, with_pauses

_MOST_SHRUNK: Final = 4
"""Of a history over so many budgets little would be left of each text: what earlier cuts left says more."""

_WHOLE: Final = frozenset({"images", "elide", "shorten"})
_CUT: Final = _WHOLE | {"drop"}
"""Steps of the ladder, taken in the configured order; what is not configured is not taken."""


def is_spared(case: Case) -> bool:
    """Whether a request is planned like this: it asks for a summary, and history is managed."""
    return case.sound.asks_for_summary and case.terms.mode is Mode.MANAGE and case.limits is not None


def spared(case: Case, draft: Draft) -> Generator[Measure | Pause, Outcome, tuple[Draft, Edits] | None]:
    """The edits of such a request, and the sizes that they took; None where the configured steps bring too little."""
    before = case.memory.edits or NOTHING
    limits = case.situation.limits
    assert limits is not None
    if made := (yield from with_pauses(case.drafted(draft).making(before))):
        # What is said of the request is held against what was in force, whichever of the two it is planned from.
        draft = draft.sized(NeedSizes(made), (yield from _sizes(case, made)))
    if before.cut is None or case.situation.tokens(NOTHING) <= _MOST_SHRUNK * limits.budget:
        begun = NOTHING if before.cut else before
        draft, plan = yield from _planned(case, draft, begun, _WHOLE)
        if plan.tokens <= limits.budget:
            return draft, plan.edits
    draft, plan = yield from _planned(case, draft, before, _CUT)
    return (draft, plan.edits) if plan.tokens <= limits.budget else None


def _planned(
    case: Case, draft: Draft, edits: Edits, strategies: frozenset[str]
) -> Generator[Measure | Pause, Outcome, tuple[Draft, Plan]]:
    while True:
        situation = _as_little(case.drafted(draft), strategies)
        step = yield from with_pauses(planner.planning(situation, edits))
        match step:
            case Plan():
                return draft, step
            case NeedSizes(messages=messages):
                draft = draft.sized(step, (yield from _sizes(case, messages)))
            case NeedSummary():
                raise TypeError("a ladder without a summary has asked for one")


def _sizes(case: Case, messages: tuple[Message, ...]) -> Generator[Measure | Pause, Outcome, Measured]:
    return expect(Measured, (yield Measure(case.request.model, messages)))


def _as_little(situation: Situation, strategies: frozenset[str]) -> Situation:
    """The situation with these steps alone, of which each goes no further than the trigger."""
    assert situation.limits is not None
    steps = tuple(name for name in situation.policy.strategies if name in strategies)
    policy = replace(situation.policy, strategies=steps, carry=CarryPolicy(share=0.0), recall=RecallPolicy())
    limits = replace(situation.limits, target=situation.limits.trigger)
    return replace(situation, policy=policy, limits=limits)
