"""The largest texts that are left keep head and tail.

Rules. The last resort, for what no cut can take: a tool result larger than the window, a pasted book. Ever more texts
are taken, and only as far as needed: tool results; old texts and calls too; at last the newest messages too, but only
when the prompt would not be worth sending otherwise, and then it gets its whole reserve. All that are taken are brought
down to one length, so the largest lose most and small ones nothing. What is pinned, of a protected tool or elided
already is left alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from proxy.context import clip, pins, view
from proxy.context.edits import Edits, Shortened
from proxy.context.situation import Limits, Situation
from proxy.context.steps import Pace, Steps

_TRIES = 8
"""Lengths that are tried for one kind: the first by the average tokens a character, each further one shorter."""

Kind = tuple[Callable[[Situation, int], bool], Callable[[Limits], int]]

Texts = Mapping[int, tuple[int, ...]]
"""The index of a message -> the lengths of its texts that can be shortened."""

_READ, _READ_BYTE, _TRIED = 2.0, 0.005, 4.0
"""Microseconds in which these lengths are found, and for each byte of the message, and in which it is told what a
length comes to."""


def planning(situation: Situation, edits: Edits) -> Steps[Edits]:
    """Texts shortened until the view fits; a plan whose messages have not been measured yet is a proposal."""
    if situation.limits is None:
        return edits
    best = edits
    goal = min(situation.limits.trigger, situation.limits.budget)
    everything = yield from _all_texts(situation, edits)
    for belongs, endures in _KINDS:
        if situation.tokens(best) <= endures(situation.limits):
            break
        # Anew, not from what the narrower kind gave: what it took from small texts may not be needed now.
        texts = {index: lengths for index, lengths in everything.items() if belongs(situation, index)}
        best = yield from _brought_down(situation, edits, texts, goal)
        if (yield from situation.making(best)):
            break
    return best


def _all_texts(situation: Situation, edits: Edits) -> Steps[Texts]:
    pace, texts = Pace(), dict[int, tuple[int, ...]]()
    for index in _left(situation, edits):
        message = situation.conversation.history[index]
        texts[index] = view.clippable(message)
        if pace.is_over(_READ + len(message.raw) * _READ_BYTE):
            yield
    return texts


def _is_result(situation: Situation, index: int) -> bool:
    return situation.conversation.history[index].is_result and not _is_newest(situation, index)


def _is_result_or_old(situation: Situation, index: int) -> bool:
    is_old = index < situation.protected_from and not _is_newest(situation, index)
    return is_old or _is_result(situation, index)


def _is_newest(situation: Situation, index: int) -> bool:
    """The newest message, and the request that is being worked on."""
    last = len(situation.conversation.history) - 1
    return index in (last, next(reversed(situation.conversation.turn_starts), None))


def _is_left(situation: Situation, index: int) -> bool:
    return True


_KINDS: Sequence[Kind] = (
    (_is_result, lambda limits: limits.trigger),
    (_is_result_or_old, lambda limits: limits.trigger),
    (_is_left, lambda limits: limits.ceiling),
)


def _left(situation: Situation, edits: Edits) -> Iterator[int]:
    """The messages of the view whose texts may be shortened."""
    elided = {rewrite.index for rewrite in edits.rewrites}
    lead = view.lead_index(situation.conversation, edits.start) if edits.cut else None
    there = [lead] if lead is not None and lead < edits.start else []
    for index in [*there, *range(edits.start, len(situation.conversation.history))]:
        if index not in elided and not pins.keeps_whole(situation, index):
            yield index


def _brought_down(situation: Situation, edits: Edits, texts: Texts, goal: int) -> Steps[Edits]:
    """These texts at one length that brings the view to the goal; at the least length where none does."""
    # Levels are worked out from whole texts, also where some are shortened already.
    bare, pace = replace(edits, shortened=()), Pace()
    best, saving = edits, situation.tokens(bare) - situation.tokens(edits)
    for _ in range(_TRIES):
        excess = situation.tokens(best) - goal
        if excess <= 0:
            break
        if pace.is_over(_TRIED * len(texts)):
            yield
        saving += excess + goal // 64  # each try saves what the one before missed, and a little more
        level = yield from _level(situation, bare, texts, saving)
        best = _shortened(edits, texts, level)
        if pace.is_over(_TRIED * len(texts)):
            yield
        if (yield from situation.making(best)):
            break
    return best


def _level(situation: Situation, edits: Edits, texts: Texts, excess: int) -> Steps[int]:
    """The length in characters at which these texts would have lost so many tokens, at their average rate."""
    rated, pace = list(_rated(situation, edits, texts)), Pace()
    low, high = clip.LEAST, max((length for length, _ in rated), default=clip.LEAST)
    while low < high:
        middle = (low + high + 1) // 2
        saved = sum((length - middle) * rate for length, rate in rated if length > middle)
        low, high = (middle, high) if saved >= excess else (low, middle - 1)
        if pace.is_over(len(rated) / 10):
            yield
    return low


def _rated(situation: Situation, edits: Edits, texts: Texts) -> Iterator[tuple[int, float]]:
    """The length of each text that is not short already, and its message's tokens a character."""
    each = situation.message_tokens(edits)
    for index, lengths in texts.items():
        rate = each[index] / max(1, sum(lengths))
        yield from ((length, rate) for length in lengths if length > clip.LEAST)


def _shortened(edits: Edits, texts: Texts, limit: int) -> Edits:
    limits = {each.index: each.limit for each in edits.shortened}
    for index, lengths in texts.items():
        if max(lengths) > limit:
            limits[index] = min(limit, limits.get(index, limit))
    shortened = tuple(Shortened(index, limits[index]) for index in sorted(limits))
    return replace(edits, shortened=shortened) if shortened != edits.shortened else edits
