"""The learned correction: how many tokens an upstream really counts for a prompt of our estimate.

Rules. Of a model it is learned what a token of ours is worth (`slope`) and what the upstream adds to every prompt
(`offset`); of a conversation its last count, from which the next is predicted by what came since. Both are always fed
with the raw estimate of the very body that was sent, never with a corrected one, so that they cannot compound. Slopes
never leave their bounds, and what is no positive number teaches nothing. An answer that is far off what is known is
believed only when others in a row agree with it: a server that silently cut the prompt reports less and less of a
growing one, and teaches nothing.

How it was found: recorded conversations with the true counts of seven tokenizers and templates, eight of them at once
on one upstream (`benchmarks/count_error.py`). One factor for all is worse than none there. A prompt that grew is off by
little when only its growth is estimated; one that was cut is not what it was, so there each part of it is taken at what
it was counted at before (`trail`). To learn what digits cost beside other text would take the mean after a cut from 1.6
to 1.5 %, and the 95th percentile of the others from 1.5 to 1.2 %; it is left out for what it adds to every request.
"""

from dataclasses import dataclass, replace
from math import exp, isfinite
from typing import TypeGuard

import msgspec
from msgspec import structs

from proxy.context import trail
from proxy.context.trail import Curve, Trail

MEMORY = 0.98
"""What remains of a model's sums when an answer is added: about the last fifty answers decide."""

RIDGE = 2e-9
"""Squared inverse tokens by which answers of equal size are kept from deciding about the offset."""

OFFSETS = (0.0, 20_000.0)
"""Tokens that an upstream may add to every prompt; hidden prompts of 300 to 5,000 are known, and none takes any off."""

HORIZON = 0.15
"""The newest share of a conversation's prompt whose slope is taken for what comes next."""

TRUST = 1500.0
"""Tokens of growth that count as much as all that was known of a conversation's slope before."""

PRIOR = 1000.0
"""Tokens of a conversation that count as much as all that is known of its model, for what a token of it is worth."""

SHRUNK = 0.97
"""A prompt of less than this share of the one before, with what was appended to it, was cut."""


@dataclass(frozen=True, slots=True)
class CalibrationPolicy:
    """Bounds of the learned slopes, and the smallest prompt (tokens) that teaches anything."""

    lowest: float = 0.25
    highest: float = 4.0
    min_tokens: int = 1000

    @property
    def is_off(self) -> bool:
        """Whether there is one slope only, so that nothing is left to learn."""
        return self.lowest == self.highest

    def bounded(self, slope: float) -> float:
        """The slope within the bounds."""
        return min(max(slope, self.lowest), self.highest)


@dataclass(frozen=True, slots=True)
class Line:
    """Upstream tokens of a prompt of so many raw tokens: `offset + slope * raw`."""

    slope: float = 1.0
    offset: float = 0.0

    def tokens(self, raw: float) -> float:
        """The upstream's count that is expected."""
        return max(0.0, self.offset + self.slope * raw)

    def raw(self, tokens: float) -> int:
        """Raw tokens of a prompt that the upstream is expected to count so."""
        return max(0, int((tokens - self.offset) / self.slope))


PLAUSIBLE = (0.6, 3.2)
"""Ratios that a first answer is believed with at once: natural text lies within 0.75 and 1.85, digits reach 3.0."""

SETTLED = 3
"""Answers of a model before which its line is not what others are judged by: one tells no offset from a slope."""

STEADY = 1.5
"""An answer further off what was expected than this is odd; so are two odd answers further apart than `AGREE`."""

AGREE = 1.15
STILL = 0.01
"""A report that changes by less while the prompt changes by more is that of a server at the end of its window."""

ENOUGH = 3
"""So many odd answers in a row that agree are the new truth."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of a model: sums over recent answers, of `1`, `x`, `x * x`, `y` and `x * y`.

    x is one over the raw tokens and y the reported tokens over the raw ones, so that y = slope + offset * x and each
    answer counts by its relative error. `odd` answers in a row were far off and agreed with each other; `odd_reported`
    and `odd_estimated` are the last.
    """

    samples: int = 0
    weight: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0
    odd: int = 0
    odd_reported: float = 0.0
    odd_estimated: float = 0.0

    def line(self, policy: CalibrationPolicy) -> Line:
        """What is expected of a conversation that nothing is known of; the estimate itself before the first answer."""
        if not self._tells(policy):
            return Line(policy.bounded(1.0))
        offset = self.offset(policy)
        return Line(policy.bounded((self.y - offset * self.x) / self.weight), offset)

    def offset(self, policy: CalibrationPolicy) -> float:
        """Tokens that the upstream counts in every prompt beside those of its text; none before the first answer."""
        if not self._tells(policy):
            return 0.0
        spread = self.weight * (self.xx + RIDGE) - self.x * self.x
        offset = (self.weight * self.xy - self.x * self.y) / spread if spread > 0 else 0.0
        return min(max(offset, OFFSETS[0]), OFFSETS[1])

    def _tells(self, policy: CalibrationPolicy) -> bool:
        return self.samples > 0 and self.weight > 0 and not policy.is_off


UNCALIBRATED = Calibration()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as its client made it, in raw tokens.

    whole   all of it, before anything is cut
    front   of it what stands at the beginning and stays when history is cut
    """

    whole: float
    front: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What an upstream counted of a prompt: `raw` tokens were sent of it, all of it where `prompt` is None."""

    raw: float
    tokens: float
    prompt: Prompt | None = None

    @property
    def whole(self) -> float:
        """Raw tokens of the request as its client made it."""
        return self.prompt.whole if self.prompt else self.raw


class Anchor(msgspec.Struct, frozen=True):
    """What the upstream counted of a conversation's last prompt; `raw`, our estimate, is 0 while no count is believed.

    tip      the chain's name of the history that it was made of
    mark     digest of what else the count depends on: tools, reasoning
    growth, grown   reported and raw tokens of what was appended of late, the oldest fading
    peak, peak_raw  the largest report since the prompt was last cut, believed or not, and the raw tokens it was made of
    last, last_raw  the same of the last report
    trail    the counts along the whole conversation, as its client sends it
    Behind the peak `still` answers said what only a server says that cuts prompts. `odd` answers in a row were far off
    what was expected and agreed; `odd_reported` and `odd_raw` are the last.
    """

    tip: str
    mark: str
    raw: float = 0.0
    reported: float = 0.0
    growth: float = 0.0
    grown: float = 0.0
    odd: int = 0
    odd_reported: float = 0.0
    odd_raw: float = 0.0
    peak: float = 0.0
    peak_raw: float = 0.0
    last: float = 0.0
    last_raw: float = 0.0
    still: int = 0
    trail: Trail = ()

    @property
    def seems_cut(self) -> bool:
        """Whether the upstream seems to cut the prompts of this conversation silently."""
        return self.still >= CONFIRMED

    @property
    def cut_to(self) -> int | None:
        """The tokens to which it then cuts them; None where no report was ever near what was sent."""
        is_plausible = self.peak >= PLAUSIBLE[0] * self.peak_raw
        return int(self.peak) if self.seems_cut and is_plausible else None


@dataclass(frozen=True, slots=True)
class Expected:
    """What to expect of a prompt that grew, and of one that was cut."""

    grown: Line
    cut: Line | Curve
    uncut: float | None = None
    """Raw tokens that the prompt has if no more is cut; None where no count of this conversation is known."""

    def is_cut(self, raw: float) -> bool:
        """Whether a prompt of so many raw tokens is none that goes on from the last count."""
        return self.uncut is None or raw < self.uncut * SHRUNK

    def tokens(self, raw: float) -> float:
        """The upstream's count that is expected of a prompt of so many raw tokens."""
        return (self.cut if self.is_cut(raw) else self.grown).tokens(raw)


def expect(
    known: Calibration, anchor: Anchor | None, policy: CalibrationPolicy, prompt: Prompt | None = None
) -> Expected:
    """What to expect of this prompt; without one, of the last one once more."""
    line = known.line(policy)
    if anchor is None or not anchor.raw or policy.is_off:
        return Expected(line, line)
    slope = _slope(anchor, line, policy)
    grown = Line(slope, anchor.reported - slope * anchor.raw)
    if not anchor.trail:
        return Expected(grown, Line(slope, line.offset), anchor.raw)
    (raw, tokens), (end, _) = anchor.trail[0], anchor.trail[-1]
    prompt = prompt or Prompt(end)
    offset = min(line.offset, tokens - policy.lowest * raw)
    curve = trail.when_cut(((0.0, offset), *anchor.trail), prompt.whole, prompt.front, slope)
    return Expected(grown, curve, anchor.raw + max(0.0, prompt.whole - end))


def _slope(anchor: Anchor, line: Line, policy: CalibrationPolicy) -> float:
    """What a raw token that comes next in this conversation is expected to cost."""
    own = policy.bounded((anchor.reported - line.offset + PRIOR * line.slope) / (anchor.raw + PRIOR))
    return policy.bounded((anchor.growth + TRUST * own) / (anchor.grown + TRUST))


def learn(
    known: Calibration, raw_tokens: float | None, reported_tokens: float | None, policy: CalibrationPolicy
) -> Calibration:
    """What is known of a model after one more answer; the same object when it teaches nothing.

    `raw_tokens` is our uncalibrated estimate of the body that was sent, `reported_tokens` its `usage.prompt_tokens`.
    What lies beyond the bounds is never believed, however often it comes.
    """
    if not (_is_count(raw_tokens) and _is_count(reported_tokens)):
        return known
    if max(raw_tokens, reported_tokens) < policy.min_tokens:
        return known
    line = known.line(policy)
    if _is_odd(Expected(line, line), known.samples >= SETTLED, raw_tokens, reported_tokens):
        before = (known.odd, known.odd_reported, known.odd_estimated)
        odd = known.odd + 1 if _agrees(*before, reported_tokens, raw_tokens) else 1
        within = policy.lowest <= reported_tokens / raw_tokens <= policy.highest
        if odd < ENOUGH or not within:
            return replace(known, odd=odd, odd_reported=reported_tokens, odd_estimated=raw_tokens)
        known = UNCALIBRATED
    x, y = 1 / raw_tokens, reported_tokens / raw_tokens
    return Calibration(
        known.samples + 1,
        known.weight * MEMORY + 1,
        known.x * MEMORY + x,
        known.xx * MEMORY + x * x,
        known.y * MEMORY + y,
        known.xy * MEMORY + x * y,
    )


def follow(known: Calibration, anchor: Anchor, report: Report, policy: CalibrationPolicy) -> Anchor:
    """The anchor of a conversation after one more answer; the same object for what is no count."""
    raw, tokens = report.raw, report.tokens
    if not (_is_count(raw) and _is_count(tokens)) or max(raw, tokens) < policy.min_tokens:
        return anchor
    is_still = stands_still(anchor, raw, tokens)
    still = anchor.still + _tells_a_cut(anchor, raw, tokens)
    if not is_still or _tells_none(anchor, raw, tokens):
        still = 0
    anchor = structs.replace(anchor, still=still, last=tokens, last_raw=raw)
    if is_still:
        return anchor
    anchor = _raised(anchor, raw, tokens)
    is_known = bool(anchor.raw) or known.samples >= SETTLED
    if _is_odd(expect(known, anchor, policy, report.prompt), is_known, raw, tokens):
        before = (anchor.odd, anchor.odd_reported, anchor.odd_raw)
        odd = anchor.odd + 1 if _agrees(*before, tokens, raw) else 1
        within = policy.lowest <= tokens / raw <= policy.highest
        if odd < ENOUGH or not within:
            return structs.replace(anchor, odd=odd, odd_reported=tokens, odd_raw=raw)
        anchor = structs.replace(anchor, raw=0.0, reported=0.0, growth=0.0, grown=0.0, trail=())
    return _moved(known, anchor, report, policy)


def counted(known: Calibration, anchor: Anchor, report: Report, policy: CalibrationPolicy) -> Anchor:
    """The anchor of a conversation whose next prompt the upstream has counted exactly before it was sent.

    What lies beyond the bounds is not believed, nor is less than any text was ever counted, by a server that leaves out
    the tools, say; then it is the same object.
    """
    lowest = max(policy.lowest, PLAUSIBLE[0])
    if report.raw <= 0 or not lowest <= report.tokens / report.raw <= policy.highest:
        return anchor
    return _moved(known, anchor, report, policy)


def refused(known: Calibration, anchor: Anchor, report: Report, policy: CalibrationPolicy) -> Anchor:
    """The anchor of a conversation whose prompt was refused as being of so many tokens.

    All that was expected of it is given up for that; what its parts were counted at too, where it does not come to as
    much.
    """
    walked = _moved(known, anchor, report, policy).trail
    begun = Anchor(anchor.tip, anchor.mark, report.raw, report.tokens, trail=walked)
    cut = expect(known, begun, policy, report.prompt).cut
    return begun if report.tokens <= AGREE * cut.tokens(report.raw) else structs.replace(begun, trail=())


def _moved(known: Calibration, anchor: Anchor, report: Report, policy: CalibrationPolicy) -> Anchor:
    """The anchor at its new place, with what growth has told."""
    raw, tokens, growth, grown = report.raw, report.tokens, anchor.growth, anchor.grown
    appended, told = raw - anchor.raw, tokens - anchor.reported
    tells = bool(anchor.raw) and appended >= _LEAST_GROWTH and _SLOPES[0] < told / appended < _SLOPES[1]
    if tells:
        kept = exp(-appended / (HORIZON * anchor.raw + _SHORTEST_HORIZON))
        growth, grown = growth * kept + told, grown * kept + appended
    moved = structs.replace(
        anchor,
        raw=raw,
        reported=tokens,
        growth=growth,
        grown=grown,
        odd=0,
        odd_reported=0.0,
        odd_raw=0.0,
    )
    is_cut = expect(known, anchor, policy, report.prompt).is_cut(raw)
    rate = told / appended if tells and not is_cut else _slope(moved, known.line(policy), policy)
    return structs.replace(moved, trail=_walked(anchor, report, rate))


def _walked(anchor: Anchor, report: Report, rate: float) -> Trail:
    """The trail up to the whole conversation, at so many tokens for each raw one that was not counted."""
    if anchor.raw and anchor.trail:
        return trail.extended(anchor.trail, report.whole, rate)
    return ((report.whole, round(report.tokens + rate * (report.whole - report.raw), 1)),)


def _raised(anchor: Anchor, raw: float, reported: float) -> Anchor:
    """The anchor with its peak, after an answer that did not stand still."""
    was_cut = raw < anchor.peak_raw * SHRUNK
    return (
        structs.replace(anchor, peak=reported, peak_raw=raw) if was_cut or reported > anchor.peak else anchor
    )


_LEAST_GROWTH = 50
"""Raw tokens; the slope of less is noise."""

STANDSTILL = 0.1
"""Reported tokens for each raw one that was appended; the least slope that is known of real text is 0.75."""

_SLOPES = (0.2, 5.0)
"""Growth beyond these is that of something else: a tool that was switched on, a cut prompt."""

_SHORTEST_HORIZON = 500
"""Raw tokens."""


CONFIRMED = 3
"""Answers that tell of a cut, after which the upstream is taken to cut prompts."""

HALF = 0.5
"""Share of the largest report below which a later one says something else: tokens read from a cache left out, say."""

NEAR = 0.75
"""Share of the largest report that a report has to reach to tell of a cut."""

BEYOND = 1.15
"""The prompt against that of the largest report, from which on the next reports can tell of a cut: counts of one prompt
differ by that much where several providers stand behind one name, or where counts are estimates themselves."""

FOLLOWS = 0.5
"""Reported tokens for each raw one appended since the last answer, from which on a report follows what is sent."""

ANEW = 2.0
BLOCK = 256
"""Tokens for each raw one appended since the last answer, and beside that, up to which a report may be of what was
appended alone: some hosts leave out what they read from a cache, and caches are read in blocks."""


def stands_still(anchor: Anchor, raw_tokens: float, reported_tokens: float) -> bool:
    """Whether a report is hardly above the largest so far though clearly more was sent than for that.

    So report servers that silently cut prompts. They drop whole messages or the middle, so that reports go up and down
    below the window, but not below half of it. So report others too, now and then: see `_tells_a_cut`.
    """
    appended, told = raw_tokens - anchor.peak_raw, reported_tokens - anchor.peak
    is_more = anchor.peak > 0 and appended >= 2 * _LEAST_GROWTH
    return is_more and reported_tokens >= HALF * anchor.peak and told < STANDSTILL * appended


def _tells_a_cut(anchor: Anchor, raw: float, reported: float) -> bool:
    """Whether a report that stands still has no other reason than a cut."""
    appended, told = raw - anchor.last_raw, reported - anchor.last
    is_far = raw >= BEYOND * anchor.peak_raw and reported >= NEAR * anchor.peak
    return is_far and told < FOLLOWS * appended and reported > ANEW * appended + BLOCK


def _tells_none(anchor: Anchor, raw: float, reported: float) -> bool:
    """Whether a report grew by more than was appended. What was cut off does not come back, so the counts differ."""
    appended, told = max(0.0, raw - anchor.last_raw), reported - anchor.last
    return told > PLAUSIBLE[1] * appended + _LEAST_GROWTH


def _agrees(odd: int, was_reported: float, was_raw: float, reported: float, raw: float) -> bool:
    """Whether an odd answer is like the odd one before: of the same ratio, and reporting more where more was sent."""
    if min(odd, was_reported, was_raw) <= 0:  # none, or one that another version stored without what it was
        return False
    grown, told = raw / was_raw, reported / was_reported
    is_still = abs(told - 1) < STILL <= abs(grown - 1)
    return not is_still and max(grown, told) <= min(grown, told) * AGREE


def _is_odd(expected: Expected, is_known: bool, raw: float, reported: float) -> bool:
    if not is_known:
        return not PLAUSIBLE[0] <= reported / raw <= PLAUSIBLE[1]
    tokens = expected.tokens(raw)
    return not tokens / STEADY <= reported <= tokens * STEADY


def _is_count(number: float | None) -> TypeGuard[float]:
    return number is not None and not isinstance(number, bool) and isfinite(number) and number > 0
