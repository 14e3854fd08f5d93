"""Where history is divided when its oldest part goes.

Rules. A cut is safe, keeps the newest round, and removes at least one message more than the cut before it. It keeps as
much as the target allows: fewer, deeper cuts are the point, but nothing is thrown away for its own sake. What the
configuration wants to keep at least (a share of the window, a number of turns) is kept over the target too, up to half
the way to the trigger; beyond that it does not fit, and keeping it would only bring the next cut nearer.
"""

from collections.abc import Sequence

from proxy.context import checkpoint
from proxy.context.checkpoint import Cut, Edits
from proxy.context.situation import Situation

TASK_SHARE = 0.1
"""The first user message is carried verbatim through a cut up to this share of the window."""


FRAME_TOKENS = 48
"""The fixed words around a block and its parts, rounded up."""


def choose(situation: Situation, edits: Edits, block_tokens: int) -> int | None:
    """The `stop` of the next cut, for a block of about so many tokens; None when nothing more can go."""
    limits = situation.limits
    candidates = possible(situation, edits)
    if not candidates or limits is None:
        return None
    kept = situation.kept_tokens(edits)
    sizes = {cut: _size(situation, cut, block_tokens) + kept[cut] for cut in candidates}
    chosen = next((cut for cut in candidates if sizes[cut] <= limits.target), candidates[-1])
    for wanted in (_by_share(situation, candidates, kept), _by_turns(situation, candidates)):
        if wanted is not None and wanted < chosen and sizes[wanted] <= limits.halfway:
            chosen = wanted
    return chosen


def size_after(situation: Situation, edits: Edits, stop: int, block_tokens: int) -> int:
    """Tokens of the view after a cut with a block of about so many tokens."""
    return _size(situation, stop, block_tokens) + situation.kept_tokens(edits)[stop]


def possible(situation: Situation, edits: Edits) -> list[int]:
    """Every cut that may come next, ascending."""
    return [
        cut
        for cut in situation.conversation.safe_cuts
        if edits.start < cut <= situation.protected_from and removes_something(situation, cut)
    ]


def removes_something(situation: Situation, stop: int) -> bool:
    """Whether a cut takes away more than the one message that comes back as the lead."""
    return stop > 1 or (stop == 1 and checkpoint.lead_index(situation.conversation, Cut(stop)) != 0)


def carries_task(situation: Situation, stop: int) -> bool:
    """Whether the first user message goes verbatim into the block: it is cut off, no lead, and not too large."""
    starts = situation.conversation.turn_starts
    if not starts or starts[0] >= stop or situation.limits is None:
        return False
    lead = checkpoint.lead_index(situation.conversation, Cut(stop))
    return lead != starts[0] and situation.sizes[starts[0]].content <= TASK_SHARE * situation.limits.window


def _size(situation: Situation, stop: int, block_tokens: int) -> int:
    """Tokens of all that stands before the kept history after a cut."""
    lead = checkpoint.lead_index(situation.conversation, Cut(stop))
    own = situation.sizes[lead].tokens if lead is not None and lead < stop else 0
    task = (
        situation.sizes[situation.conversation.turn_starts[0]].tokens if carries_task(situation, stop) else 0
    )
    return situation.fixed + FRAME_TOKENS + block_tokens + own + task + situation.to_come


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
