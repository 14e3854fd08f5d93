"""What an upstream counted along one conversation, and what that tells of the same conversation once it is cut.

Rules. A trail is measured along the conversation as the client sends it, which grows at its end only; what was cut from
the prompt moves nothing in it. A prompt that is cut is taken to keep its beginning and its newest end, and each part
costs what it was counted at: head and tools are prose and schemas, the end may be digits. Trails are short, and the
closer to their end the finer, since that is what is kept.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

Trail = tuple[tuple[float, float], ...]
"""Raw tokens of a whole conversation and the upstream's count of it, both ascending."""

MOST_MARKS = 6
"""A trail of so many marks is as good as one of all (less than 0.05 % of difference), and some hundred bytes."""


def extended(trail: Trail, raw: float, rate: float) -> Trail:
    """The trail up to a conversation of so many raw tokens, at so many of the upstream's for each new one."""
    kept = [mark for mark in trail if mark[0] < raw]
    if len(kept) < len(trail):
        return (*kept, (raw, round(along(trail, raw, rate), 1)))
    last, tokens = trail[-1]
    return _thinned((*kept, (raw, round(tokens + rate * (raw - last), 1))))


def along(marks: Trail, raw: float, rate: float) -> float:
    """The count at so many raw tokens; behind the last mark at `rate`."""
    place = bisect_left(marks, (raw, 0.0))
    if place == len(marks):
        return marks[-1][1] + rate * (raw - marks[-1][0])
    (start, low), (stop, high) = marks[max(0, place - 1)], marks[place]
    return high if stop <= start else low + (high - low) * (raw - start) / (stop - start)


def _thinned(trail: Trail) -> Trail:
    """Without the mark whose neighbours are closest, for how far they are from the end; the first one stays."""
    if len(trail) <= MOST_MARKS:
        return trail
    end = trail[-1][0]

    def gap(place: int) -> float:
        before, after = trail[place - 1][0], trail[place + 1][0]
        return (after - before) / (end - before)

    least = min(range(1, len(trail) - 1), key=gap)
    return (*trail[:least], *trail[least + 1 :])


@dataclass(frozen=True, slots=True)
class Curve:
    """Upstream tokens of a prompt of so many raw tokens, from mark to mark; behind the last at `rate`."""

    marks: Trail
    rate: float

    def tokens(self, raw: float) -> float:
        """The upstream's count that is expected."""
        return max(0.0, along(self.marks, raw, self.rate))

    def raw(self, tokens: float) -> int:
        """Raw tokens of a prompt that the upstream is expected to count so."""
        place = bisect_right(self.marks, tokens, key=lambda mark: mark[1])
        if place == 0:
            return 0
        start, low = self.marks[place - 1]
        if place == len(self.marks):
            return int(start + (tokens - low) / self.rate)
        stop, high = self.marks[place]
        return int(start + (stop - start) * (tokens - low) / (high - low))


def when_cut(marks: Trail, whole: float, front: float, rate: float) -> Curve:
    """What is expected of a conversation of `whole` raw tokens once it is cut to fewer.

    marks   the trail behind a mark for an empty prompt
    front   raw tokens at its beginning that stay
    rate    the upstream's tokens for each raw one that was not counted yet
    """
    end, front = along(marks, whole, rate), min(front, whole)
    first = along(marks, front, rate)
    beginning = [mark for mark in marks if mark[0] < front]
    newest = [(front + whole - raw, first + end - tokens) for raw, tokens in marks if front < raw < whole]
    last = [(whole, end)] if whole > front else []
    return Curve((*beginning, (front, first), *reversed(newest), *last), rate)
