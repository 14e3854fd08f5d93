"""A compaction that is asked for, whatever the size: the course of a request up to its summary.

Rules. Planner, strategy and summary are those that serve; only the limits differ, which say that the prompt is too
large as it is. What is kept of a history over the target is kept here too; where all of it would be kept, everything up
to the newest round is summarised. Without a summary nothing more is taken away. Nothing is saved or learned: a new
summary lies ready like one that was written ahead, and until the trigger nobody who goes on with the history as it was
notices it.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace

import msgspec

from proxy.context import planner, summary, view
from proxy.context.edits import NOTHING, Edits
from proxy.context.planner import Plan
from proxy.context.policy import Mode, RecallPolicy
from proxy.context.situation import Limits, Situation
from proxy.exchange.case import Case, Draft, sound
from proxy.exchange.changes import Changes
from proxy.exchange.commands import Command, Measure, Measured, Memory, Outcome, expect, with_pauses
from proxy.exchange.composing import composed
from proxy.exchange.course import all_known, looking_up, met
from proxy.exchange.verdict import SideCall, Terms
from proxy.wire import chat
from proxy.wire.chat import ChatRequest

Compacting = Generator[Command, Outcome, "Compaction"]

LEAST_SUMMARY = 32
"""Tokens; about two sentences."""


@dataclass(frozen=True, slots=True)
class Covered:
    """What the summary stands for: `messages[first:last + 1]` of the request, after the repair of their order."""

    first: int
    last: int
    messages: int


@dataclass(frozen=True, slots=True)
class Spent:
    """One side call: `used`, or the fixed word for why its answer was not; with its usage in either case."""

    outcome: str
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Compaction:
    """What came of it; tokens are those that the upstream is expected to count of the whole prompt.

    reason   compacted; checkpoint (only what was decided before applies); side_call_failed; nothing_to_compact (there
             is no older part, or its summary would make nothing smaller)
    actions  what differs from the messages as they came, as the header says it
    """

    model: str
    reason: str
    messages: msgspec.Raw
    summary: str | None
    covers: Covered | None
    tokens_before: int
    tokens_after: int
    actions: str
    side_calls: tuple[Spent, ...]


def compact(request: ChatRequest, terms: Terms) -> Compacting:
    """The compaction of one request."""
    policy = replace(terms.policy, strategies=("summarize",), recall=RecallPolicy())
    terms = replace(terms, policy=policy, mode=Mode.MANAGE)
    known = yield from sound(request, terms)
    case = yield from all_known(known, terms, expect(Memory, (yield looking_up(known))))
    case, situation = _as_too_large(case)
    draft, edits = yield from _planned(case, situation)
    written = yield from composed(case, draft, edits)
    if case.drafted(draft).tokens(written) <= case.situation.tokens(NOTHING):
        edits = written  # what is carried is worth its place, but for a history of a few lines
    seen = yield from with_pauses(view.applying(case.sound.conversation, edits))
    measured = expect(Measured, (yield Measure(request.model, seen.messages)))
    verdict = case.rewritten(case.verdict(draft, None, edits), measured.sizes)
    return Compaction(
        model=request.model,
        reason=_reason(case, draft, edits),
        messages=msgspec.Raw(chat.messages_member(seen)),
        summary=edits.cut.summary or None if edits.cut else None,
        covers=_covered(case, edits),
        tokens_before=verdict.original or 0,
        tokens_after=verdict.forwarded or 0,
        actions=Changes({}, _repairs(case)).actions(edits),
        side_calls=tuple(map(_spent, draft.side_calls)),
    )


def _spent(call: SideCall) -> Spent:
    usage = call.usage
    return Spent(
        call.outcome, usage.prompt_tokens if usage else None, usage.completion_tokens if usage else None
    )


def _repairs(case: Case) -> tuple[str, ...]:
    return (f"repair={case.sound.repaired}",) if case.sound.repaired else ()


def _planned(case: Case, situation: Situation) -> Generator[Command, Outcome, tuple[Draft, Edits]]:
    draft = case.begun()
    while True:
        facts = replace(situation, summaries=draft.summaries, made=draft.made)
        step = yield from with_pauses(planner.planning(facts, case.memory.edits or NOTHING))
        if isinstance(step, Plan):
            return draft, step.edits
        draft = yield from met(case, draft, step)


def _as_too_large(case: Case) -> tuple[Case, Situation]:
    """The case and its situation, with limits by which the prompt does not fit as it is."""
    own = case.limits
    tokens = case.situation.tokens(case.memory.edits or NOTHING)
    if own is not None and own.target < tokens:
        limits = replace(own, trigger=min(own.trigger, tokens - 1))
        return case, replace(case.situation, limits=limits)
    # Shares of a large window would keep a short talk as it is: it is its own measure.
    limits = Limits(window=tokens, ceiling=tokens, budget=tokens, trigger=tokens - 1, target=0)
    case = _keeping_nothing(case, summary.most_tokens(case.terms.policy.summary.max_tokens, tokens))
    return case, replace(case.situation, limits=limits)


def _keeping_nothing(case: Case, summary_tokens: int) -> Case:
    """The same, with nothing to be kept but what always is, and a summary of at most so many tokens, or of a few."""
    policy = case.terms.policy
    most = max(LEAST_SUMMARY, summary_tokens)
    bounded = replace(policy.summary, keep_recent=0.0, keep_turns=0, max_tokens=most)
    return replace(case, terms=replace(case.terms, policy=replace(policy, summary=bounded)))


def _covered(case: Case, edits: Edits) -> Covered | None:
    if edits.cut is None or not edits.cut.summarised:
        return None
    first = len(case.sound.conversation.head)
    return Covered(first, first + edits.cut.summarised - 1, edits.cut.summarised)


def _reason(case: Case, draft: Draft, edits: Edits) -> str:
    if edits and edits != case.memory.edits:
        return "compacted"
    if draft.side_calls and draft.side_calls[-1].outcome != "used":
        return "side_call_failed"
    return "checkpoint" if edits else "nothing_to_compact"
