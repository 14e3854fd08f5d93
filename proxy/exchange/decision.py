"""What was decided on a conversation, told by fixed words, indices and counts: for a measurement and for the log.

Rules. Nothing is decided here. Indices count from the start of `messages`, after the repair of their order if there is
one. An edit is new unless the checkpoint that was found holds the very same.
"""

from collections.abc import Iterator
from itertools import pairwise

from proxy.context.edits import NOTHING, Edits
from proxy.context.policy import Mode
from proxy.context.situation import Situation
from proxy.exchange.case import Case
from proxy.exchange.verdict import Decision, Place


def decision(case: Case, situation: Situation, edits: Edits) -> Decision:
    """Why these edits were chosen, and where they are."""
    target = case.budget.target if case.budget else None
    return Decision(reason(case, situation, edits), target, (*cut_off(case, edits), *edited(case, edits)))


def reason(case: Case, situation: Situation, edits: Edits) -> str:
    """Why history is edited or not: one of the fixed words that `Decision` lists."""
    if edits and edits == case.memory.edits:
        return "checkpoint"
    if case.limits is None:
        return "limit" if edits else "window_unknown"
    is_managed = case.terms.mode is Mode.MANAGE
    before = case.memory.edits if is_managed else None
    if situation.tokens(before or NOTHING) > case.limits.trigger:
        over = "summary_asked_for" if case.sound.asks_for_summary else "over_threshold"
        return over if is_managed else "observed_only"
    return "limit" if edits else "under_threshold"


def cut_off(case: Case, edits: Edits) -> Iterator[Place]:
    """The messages that a cut takes away: those in its summary, and those that are gone."""
    if edits.cut is None:
        return
    old, offset = case.memory.edits or NOTHING, len(case.sound.conversation.head)
    stops = (0, edits.cut.summarised, edits.cut.stop)
    for action, (start, stop) in zip(("summarize", "drop"), pairwise(stops), strict=True):
        if stop > start:
            yield Place(action, offset + start, offset + stop - 1, edits.cut != old.cut)


def edited(case: Case, edits: Edits) -> Iterator[Place]:
    """The messages that are edited one by one, in their order."""
    old, offset = case.memory.edits or NOTHING, len(case.sound.conversation.head)
    known = {*old.rewrites, *old.shortened, *old.blanked}
    named = [
        *((edit.index, edit.action, edit not in known) for edit in edits.rewrites),
        *((edit.index, "shorten", edit not in known) for edit in edits.shortened),
        *((edit.index, "images", edit not in known) for edit in edits.blanked),
    ]
    for index, action, is_new in sorted(named):
        yield Place(action, offset + index, offset + index, is_new)
