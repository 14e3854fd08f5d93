"""Where history is divided when its oldest part goes.

Rules. A cut is safe, keeps the newest round, and removes at least one message more than the cut before it. It keeps as
much as the target allows: fewer, deeper cuts are the point, but nothing is thrown away for its own sake. What the
configuration wants to keep at least (a share of the window, a number of turns) is kept over the target too, up to half
the way to the trigger; beyond that it does not fit, and keeping it would only bring the next cut nearer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from proxy.context import pins, view
from proxy.context.edits import Edits, SummaryRole
from proxy.context.situation import NEW_MESSAGE, Situation

FRAME_TOKENS = 24
"""The fixed words around a block and its parts, rounded up."""


def choose(situation: Situation, edits: Edits, block_tokens: int) -> int | None:
    """The `stop` of the next cut, for a block of about so many tokens; None when nothing more can go."""
    limits = situation.limits
    candidates = possible(situation, edits)
    if not candidates or limits is None:
        return None
    each = situation.message_tokens(edits)
    kept = _from_each_on(each)

    def fits(cut: int, tokens: int) -> bool:
        # What is kept alone is known at once; what the block carries is worked out only where that may fit.
        least = situation.fixed + block_tokens + kept[cut]
        return least <= tokens and _before(situation, cut, block_tokens, each) + kept[cut] <= tokens

    chosen = next((cut for cut in candidates if fits(cut, limits.target)), candidates[-1])
    for wanted in (_by_share(situation, candidates, kept), _by_turns(situation, candidates)):
        if wanted is not None and wanted < chosen and fits(wanted, limits.halfway):
            chosen = wanted
    return chosen


def size_after(situation: Situation, edits: Edits, stop: int, block_tokens: int) -> int:
    """Tokens of the view after a cut with a block of about so many tokens."""
    each = situation.message_tokens(edits)
    return _before(situation, stop, block_tokens, each) + sum(each[stop:])


def possible(situation: Situation, edits: Edits) -> list[int]:
    """Every cut that may come next, ascending."""
    cuts = situation.conversation.safe_cuts
    next_ones = cuts[bisect_right(cuts, edits.start) : bisect_right(cuts, situation.protected_from)]
    return [cut for cut in next_ones if cut > 1 or removes_something(situation, cut)]


def removes_something(situation: Situation, stop: int) -> bool:
    """Whether a cut takes away more than the one message that comes back as the lead."""
    return stop > 1 or (stop == 1 and view.lead_index(situation.conversation, stop) != 0)


def _from_each_on(each: Sequence[int]) -> list[int]:
    """`kept[i]`: tokens of `history[i:]`; one longer than the history."""
    return list(accumulate(reversed(each), initial=0))[::-1]


def _before(situation: Situation, stop: int, block_tokens: int, each: Sequence[int]) -> int:
    """Tokens of all that stands before the kept history after a cut."""
    lead = view.lead_index(situation.conversation, stop)
    own = each[lead] if lead is not None and lead < stop else 0
    alone = lead is None or situation.policy.summary_role is not SummaryRole.AUTO
    carried = sum(map(situation.carried_tokens, pins.carried(situation, stop)))
    return (
        situation.fixed
        + FRAME_TOKENS
        + block_tokens
        + own
        + carried
        + (NEW_MESSAGE if alone else 0)
        + situation.to_come
    )


def _by_share(situation: Situation, candidates: Sequence[int], kept: Sequence[int]) -> int | None:
    """The deepest cut that keeps the configured share of the window."""
    assert situation.limits is not None
    tokens = situation.policy.summary.keep_recent * situation.limits.window - situation.to_come
    return max((cut for cut in candidates if kept[cut] >= tokens), default=None)


def _by_turns(situation: Situation, candidates: Sequence[int]) -> int | None:
    """The deepest cut that keeps the configured number of turns."""
    starts, turns = situation.conversation.turn_starts, situation.policy.summary.keep_turns
    if not 0 < turns <= len(starts):
        return None
    return max((cut for cut in candidates if cut <= starts[-turns]), default=None)
