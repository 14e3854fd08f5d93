"""How the figures of a part are shown: medians over the rounds, in Markdown, and the targets with what was found.

Rules. A ratio is taken within a round and only then over the rounds, so that a busy moment slows both sides of it. What
was not measured is a dash. A target tells what was found beside what was wanted, and judges nothing that is missing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

ABSENT: Final = "-"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so much of the values are not above: the nearest one that occurs."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is there; None without anything."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def over_rounds(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    relation: Callable[[float, float], float | None],
) -> float | None:
    """The median over the rounds of how one figure relates to another of the same round; None without either."""
    if not ours or not theirs:
        return None
    pairs = zip(ours, theirs, strict=True)
    return middle(relation(a, b) for a, b in pairs if a is not None and b is not None)


def ratio(ours: float, theirs: float) -> float | None:
    """One figure as a multiple of the other; None of nothing, and of what noise made negative."""
    return ours / theirs if theirs > 0 else None


def shown(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A figure for a table."""
    return ABSENT if value is None else f"{value:,.{digits}f}{unit}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; the first so many columns are set to the left, the others to the right."""
    widths = [max(3, *map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    rule = ["-" * width if at < left else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    lines = []
    for cells in (columns, rule, *rows):
        padded = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)


def targets(wanted: Iterable["Target"]) -> str:
    """A list in Markdown of what should be and what is."""
    return "\n".join(f"- {target}" for target in wanted)


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be: at least or at most so much."""

    says: str
    found: float | None
    least: float | None = None
    most: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        if self.found is None:
            return f"not measured: {self.says}"
        met = (self.least is None or self.found >= self.least) and (
            self.most is None or self.found <= self.most
        )
        return f"{'met' if met else 'missed'}: {self.says}; it is {self.found:,.{self.digits}f}"
