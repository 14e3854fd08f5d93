"""What need not be done at once is done a moment later, for several requests in one go.

Rules. Nobody waits for any of it, and it is done in the order in which it was put here. Whoever is asked about it
settles first, so that no answer of ours lacks what has happened before it. One that fails is the loop's to report, and
keeps none of the others.

Why: code that has just run is still in the processor's cache. What is told of a request - the log, the metrics, the
page - costs half as much behind that of another one as between two things that are quite different.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SOON: Final = 0.01
"""Seconds that what is put here may wait."""

_AT_ONCE: Final = 64
"""Things that are done before others have a turn, of some 30 microseconds each."""


class Afterwards:
    """Things to do, in their order. Used on one loop; `settle` needs none."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def put(self, deed: Callable[[], None]) -> None:
        """Have this done soon."""
        if not self._due:
            asyncio.get_running_loop().call_later(SOON, self._some)
        self._due.append(deed)

    def settle(self) -> None:
        """Do all of it now."""
        try:
            while self._due:
                self._due.popleft()()
        finally:
            self._go_on()

    def _some(self) -> None:
        try:
            for _ in range(min(_AT_ONCE, len(self._due))):
                self._due.popleft()()
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)
