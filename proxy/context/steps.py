"""Work that is done in steps, so that whoever does it for one can have others have their turn in between.

Rules. A step is over where the generator yields, and it yields nothing. Nothing is decided here about who has a turn,
and the work comes to the same however long it takes between two steps.
"""

from collections.abc import Callable, Generator
from typing import Final, ParamSpec, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

P = ParamSpec("P")

AT_ONCE: Final = 256 * 1024
"""Bytes of JSON that are read in a step, or what costs as much: some two to five milliseconds."""

STEP: Final = 2000
"""Microseconds of processor time after which work ends a step that is told by a `Pace`, about."""


class Pace:
    """Says when a step is over, by what has been done in it."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = float(STEP)

    def is_over(self, microseconds: float) -> bool:
        """Whether a step is over with work of about so many microseconds; then the next one begins."""
        self._left -= microseconds
        if self._left > 0:
            return False
        self._left = float(STEP)
        return True


def at_once(work: Steps[T]) -> T:
    """What comes of the work, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done


def in_one(work: Callable[P, T]) -> Callable[P, Steps[T]]:
    """The same work as one that is done in steps, of which it has one."""

    def steps(*given: P.args, **named: P.kwargs) -> Steps[T]:
        yield from ()
        return work(*given, **named)

    return steps
