"""The learned correction: how many tokens a model really takes for one token of our estimate.

Rules. The factor is reported tokens over estimated tokens, both summed over recent answers, so that a large prompt
counts for more than a small one and no single answer decides. It is always fed with the raw estimate of the very body
that was sent, never with a corrected one, so that it cannot compound. It never leaves its bounds, and what is no
positive number teaches nothing. An answer that is far off what is known is believed only when others in a row agree
with it: a server that silently cut the prompt reports less and less of a growing one, and teaches nothing.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeGuard

MEMORY = 0.9
"""What remains of the old sums when an answer is added: about the last ten answers decide."""


@dataclass(frozen=True, slots=True)
class CalibrationPolicy:
    """Bounds of the learned factor, and the smallest prompt (tokens) that teaches anything."""

    lowest: float = 0.25
    highest: float = 4.0
    min_tokens: int = 1000


PLAUSIBLE = (0.6, 3.2)
"""Ratios that a first answer is believed with at once: natural text lies within 0.75 and 1.85, digits reach 3.0."""

STEADY = 1.5
"""An answer further off the known factor than this is odd; so are two odd answers further apart than `AGREE`."""

AGREE = 1.15
STILL = 0.01
"""A report that changes by less while the prompt changes by more is that of a server at the end of its window."""

ENOUGH = 3
"""So many odd answers in a row that agree are the new truth."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Weighted sums of what was reported and what was estimated, in tokens; the factor is their quotient.

    `odd` answers in a row were far off it and agreed with each other; `odd_reported` and `odd_estimated` are the last.
    """

    reported: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    odd: int = 0
    odd_reported: float = 0.0
    odd_estimated: float = 0.0

    def factor(self, policy: CalibrationPolicy) -> float:
        """Upstream tokens per estimated token, within the bounds; 1 before the first answer."""
        if not self.samples or self.estimated <= 0:
            return 1.0
        return min(max(self.reported / self.estimated, policy.lowest), policy.highest)


UNCALIBRATED = Calibration()


def learn(
    known: Calibration, raw_tokens: float | None, reported_tokens: float | None, policy: CalibrationPolicy
) -> Calibration:
    """What is known after one more answer; the same object when it teaches nothing.

    `raw_tokens` is our uncalibrated estimate of the body that was sent, `reported_tokens` its `usage.prompt_tokens`.
    What lies beyond the bounds is never believed, however often it comes.
    """
    if not (_is_count(raw_tokens) and _is_count(reported_tokens)):
        return known
    if max(raw_tokens, reported_tokens) < policy.min_tokens:
        return known
    ratio = reported_tokens / raw_tokens
    if _is_odd(known, ratio):
        odd = known.odd + 1 if _agrees(known, reported_tokens, raw_tokens) else 1
        if odd < ENOUGH or not policy.lowest <= ratio <= policy.highest:
            return replace(known, odd=odd, odd_reported=reported_tokens, odd_estimated=raw_tokens)
        known = UNCALIBRATED
    return Calibration(
        known.reported * MEMORY + reported_tokens, known.estimated * MEMORY + raw_tokens, known.samples + 1
    )


def _agrees(known: Calibration, reported: float, estimated: float) -> bool:
    """Whether an odd answer is like the one before: of the same ratio, and reporting more where more was sent."""
    if not known.odd:
        return False
    grown, told = estimated / known.odd_estimated, reported / known.odd_reported
    stands_still = abs(told - 1) < STILL <= abs(grown - 1)
    return not stands_still and max(grown, told) <= min(grown, told) * AGREE


def _is_odd(known: Calibration, ratio: float) -> bool:
    if not known.samples:
        return not PLAUSIBLE[0] <= ratio <= PLAUSIBLE[1]
    factor = known.reported / known.estimated
    return not factor / STEADY <= ratio <= factor * STEADY


def _is_count(number: float | None) -> TypeGuard[float]:
    return number is not None and not isinstance(number, bool) and isfinite(number) and number > 0
