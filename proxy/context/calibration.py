"""The learned correction: how many tokens a model really takes for one token of our estimate.

Rules. The factor is reported tokens over estimated tokens, both summed over recent answers, so that a large prompt
counts for more than a small one and no single answer decides. It is always fed with the raw estimate of the very body
that was sent, never with a corrected one, so that it cannot compound. It never leaves its bounds, and what is no
positive number teaches nothing.
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """Weighted sums of what was reported and what was estimated, in tokens; the factor is their quotient."""

    reported: float = 0.0
    estimated: float = 0.0
    samples: int = 0

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
    A sample beyond the bounds is taken at the bound, so that one absurd number cannot drag the sums away.
    """
    if not (_is_count(raw_tokens) and _is_count(reported_tokens)):
        return known
    if max(raw_tokens, reported_tokens) < policy.min_tokens:
        return known
    reported = min(max(reported_tokens, raw_tokens * policy.lowest), raw_tokens * policy.highest)
    return Calibration(
        known.reported * MEMORY + reported, known.estimated * MEMORY + raw_tokens, known.samples + 1
    )


def _is_count(number: float | None) -> TypeGuard[float]:
    return number is not None and not isinstance(number, bool) and isfinite(number) and number > 0
