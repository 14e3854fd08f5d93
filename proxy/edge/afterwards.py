"""What need not be done at once is done a moment later, for several requests in one go.

Rules. Nobody waits for any of it, and it is done in the order in which it was put here. Whoever is asked about it
settles first, so that no answer of ours lacks what has happened before it. One that fails is the loop's to report: it
keeps none of the others, and is no fault of whoever settles. No more than `MOST` wait, however many come.

Why: code that has just run is still in the processor's cache. What is told of a request - the log, the metrics, the
page - costs half as much behind that of another one as between two things that are quite different.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final

SOON: Final = 0.01
"""Seconds that what is put here may wait."""

MOST: Final = 500
"""Things that may wait. Whoever brings one more does the oldest: many in one turn would else outrun what does them."""

_AT_ONCE: Final = 64
"""Things that are done before others have a turn, of some 30 microseconds each."""


class _ToTheLoop:
    """What fails within is reported by the loop, like what it runs itself, and goes no further."""

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(fault, Exception):
            return False
        told = {"message": "Exception in what was put off", "exception": fault}
        asyncio.get_running_loop().call_exception_handler(told)
        return True


_TO_THE_LOOP: Final = _ToTheLoop()


class Afterwards:
    """Things to do, in their order. Used on one loop; `settle` needs none while nothing fails."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def put(self, deed: Callable[[], None]) -> None:
        """Have this done soon."""
        if not self._due:
            asyncio.get_running_loop().call_later(SOON, self._some)
        self._due.append(deed)
        if len(self._due) > MOST:
            self._next()

    def settle(self) -> None:
        """Do all of it now."""
        while self._due:
            self._next()

    def _some(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._due))):
            self._next()
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)

    def _next(self) -> None:
        deed = self._due.popleft()
        with _TO_THE_LOOP:
            deed()
