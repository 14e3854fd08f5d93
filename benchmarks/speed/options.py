"""How much is measured: the options of the command line, as values.

Rules. The defaults are what the published figures are of; smaller ones are for trying.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Options:
    """`folder` holds conversations.jsonl; `sizes` are megabytes, `interval` and `pacing` seconds.

    `core` is the one that the subjects run on, each in its turn; None where the system chooses.
    """

    folder: Path | None = None
    core: int | None = None
    rounds: int = 5
    without: tuple[str, ...] = ()
    connections: int = 32
    seconds: int = 3
    warming: int = 1
    sizes: tuple[float, ...] = (0.1, 0.4, 0.8, 1.6, 3.2)
    streams: int = 200
    interval: float = 0.05
    pacing: float = 4.0
    chunks: int = 100_000
    idle: int = 500
    remembered: int = 600

    def in_turn(self, subjects: Sequence[Subject], number: int) -> list[Subject]:
        """The subjects in an order in which another one is the first in each round."""
        first = number % len(subjects) if subjects else 0
        return [*subjects[first:], *subjects[:first]]
