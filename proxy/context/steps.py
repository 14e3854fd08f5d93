"""Work that is done in steps, so that whoever does it for one can have others have their turn in between.

Rules. A step is over where the generator yields, and it yields nothing. Nothing is decided here about who has a turn,
and the work comes to the same however long it takes between two steps.
"""

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

AT_ONCE: Final = 256 * 1024
"""Bytes of JSON that are read in a step, or what costs as much: some two to five milliseconds."""


def at_once(work: Steps[T]) -> T:
    """What comes of the work, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done
