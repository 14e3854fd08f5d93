"""Oldest turns go, with a notice of how many messages went.

Rules. Two occasions, one cut: size demands it (after the gentler strategies, or when no summary could be had), or the
configured sliding window of user turns is exceeded. The sliding window moves in batches of half its length, so that
the prompt stays append-only between two moves, and never holds more turns than configured, but for results that the
model has not answered yet. An existing summary and what is pinned stay while there is room for them.
"""

from dataclasses import replace

from proxy.context import cuts, pins
from proxy.context.edits import Cut, Edits
from proxy.context.situation import Situation


def plan(situation: Situation, edits: Edits) -> Edits:
    """The history cut at a safe cut, down to the target; where that does not fit, with a lighter block."""
    summary = edits.cut.summary if edits.cut else ""
    notice = _notice(situation, len(situation.sizes))
    block = situation.count(summary) + situation.count(notice) + situation.carry_tokens
    stop = cuts.choose(situation, edits, block)
    if stop is not None:
        edits = edits.with_cut(_cut(situation, edits, stop, pins.carried(situation, stop)))
    return _with_lighter_block(situation, edits)


def _with_lighter_block(situation: Situation, edits: Edits) -> Edits:
    """Where the newest round leaves no room for the block: without as much of it as does not fit."""
    if edits.cut is None or situation.limits is None:
        return edits
    whole = edits
    for lighter in pins.lighter(situation, edits.cut, _notice(situation, edits.cut.stop)):
        # What is taken by rule is written last, into the room that is left.
        if situation.bare_tokens(edits) <= situation.limits.budget:
            return edits
        edits = edits.with_cut(lighter)
    return whole if _newest_is_to_blame(situation, whole) else edits


def _newest_is_to_blame(situation: Situation, edits: Edits) -> bool:
    """Whether the newest round is what is too large, and will be shortened: the block is worth more than its middle."""
    assert situation.limits is not None
    newest = sum(situation.message_tokens(edits)[situation.protected_from :])
    rest = situation.tokens(edits) - newest
    room = situation.limits.budget - rest
    return "shorten" in situation.policy.strategies and newest > room > situation.limits.budget // 4


def limit(situation: Situation, edits: Edits) -> Edits:
    """The sliding window of `max_turns` user turns, whatever the size."""
    turns = situation.policy.drop.max_turns
    if turns is None:
        return edits
    stop = _slide(situation, turns)
    if stop <= edits.start or not cuts.removes_something(situation, stop):
        return edits
    before = edits.cut.carried if edits.cut else ()
    kept = {*before, *(index for index in pins.carried(situation, stop) if index in situation.pins)}
    cut = _cut(situation, edits, stop, tuple(sorted(kept)))
    slid = edits.with_cut(cut)
    if situation.tokens(slid) >= situation.tokens(edits):  # what goes is shorter than the notice
        slid = edits.with_cut(replace(cut, notice=""))
    return slid


def _slide(situation: Situation, turns: int) -> int:
    """Where the sliding window begins now; 0 while it is not full."""
    conversation = situation.conversation
    starts = conversation.turn_starts
    if turns == 0:
        return situation.protected_from
    over = len(starts) - turns
    if over <= 0:
        return 0
    batch = max(1, turns // 2)
    gone = min(-(-over // batch) * batch, len(starts) - 1)
    # A user message may stand between a call and its result: then the cut falls before their round.
    furthest = min(starts[gone], situation.protected_from)
    return max(cut for cut in (0, *conversation.safe_cuts) if cut <= furthest)


def _cut(situation: Situation, edits: Edits, stop: int, carried: tuple[int, ...]) -> Cut:
    before = edits.cut or Cut(0)
    notice = _notice(situation, stop - before.summarised)
    role = situation.policy.summary_role
    return Cut(stop, before.summary, before.summarised, notice, carried, role)


def _notice(situation: Situation, messages: int) -> str:
    return situation.policy.drop.notice.format(messages=messages)
