"""Old turns become a summary that a model writes.

Rules. A summary that is there already is used before another is asked for. One is asked for only when the target needs
it and it would bring the view under the trigger; it covers everything from the end of the one before to a safe cut,
and continues that one. One that makes the view no smaller is not used. Without a summary this strategy changes nothing
and the ladder goes on.
"""

from proxy.context import cuts, pins, summary
from proxy.context.edits import Cut, Edits
from proxy.context.situation import NeedSummary, Situation


def plan(situation: Situation, edits: Edits) -> Edits | NeedSummary:
    """The history cut behind a summary; or what summary is needed for that."""
    limits = situation.limits
    if limits is None:
        return edits
    ready = _newest_ready(situation, edits)
    best = edits if ready is None else _cut(situation, edits, ready)
    if ready is not None and situation.bare_tokens(best) <= limits.halfway:
        return best
    size = summary.most_tokens(situation.policy.summary.max_tokens, limits.window) + situation.carry_tokens
    stop = cuts.choose(situation, edits, size)
    if stop is None or stop in situation.summaries or (ready is not None and stop <= ready):
        return best
    # What is carried by rule takes the room that is left, and asks for none.
    if cuts.size_after(situation, edits, stop, size - situation.carry_tokens) > limits.trigger:
        return best  # head and newest round leave no room for a summary: the next request would need another
    return _need(situation, edits, ready, stop)


def _newest_ready(situation: Situation, edits: Edits) -> int | None:
    """The deepest summary that is there and may be used."""
    usable = (stop for stop in cuts.possible(situation, edits) if situation.summaries.get(stop))
    return max(usable, default=None)


def _cut(situation: Situation, edits: Edits, stop: int) -> Edits:
    text, role = situation.summaries[stop] or "", situation.policy.summary_role
    return edits.with_cut(Cut(stop, text, stop, carried=pins.carried(situation, stop), role=role))


def _need(situation: Situation, edits: Edits, ready: int | None, stop: int) -> NeedSummary:
    """A summary that continues the newest there is."""
    if ready is not None:
        return NeedSummary(ready, stop, situation.summaries[ready] or "")
    if edits.cut is None:
        return NeedSummary(0, stop, "")
    return NeedSummary(edits.cut.summarised, stop, edits.cut.summary)
