"""The upstream's own count of a request, where it has an endpoint for that.

Rules. Which endpoint it is, is found once with a tiny request and kept for the tenant's model; where there is none, or
where it fails or is wrong, nothing is asked for a while that grows. No count is waited for longer than `WAIT`. Nothing
is raised: a count that is not to be had is None, and the request goes on with the estimate.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.context import rawjson
from proxy.edge.questions import Answer
from proxy.edge.sidecalls import Origin
from proxy.wire.dialects import COUNTERS, Ask, Counter

WAIT: Final = 3.0
"""Seconds; servers count a million tokens in less."""

PAUSES: Final = (60.0, 600.0, 3600.0)
"""Seconds without a question after one, two and more failures in a row."""

_MOST_KNOWN: Final = 1000
_TRIED_WITH: Final = "How do you do?"
_MOST_OF_THAT: Final = 2000
"""Tokens of the tiny request with all that a server may add to it; whoever counts more counts something else."""


class Asks(Protocol):
    """Asks the upstream."""

    async def ask(self, ask: Ask, model: str, origin: Origin, body: bytes | None = None) -> Answer:
        """The answer to one question about a model."""
        ...


@dataclass(slots=True)
class _Known:
    """The endpoint of one tenant's model, once it is found; `due` is when it may be asked, by the clock."""

    counter: Counter | None = None
    due: float = 0.0
    failures: int = 0
    finding: asyncio.Lock = field(default_factory=asyncio.Lock)


class Counts:
    """`clock` tells seconds and never goes back."""

    def __init__(self, asks: Asks, clock: Callable[[], float]) -> None:
        self._asks = asks
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def count(self, who: str, model: str, body: bytes, origin: Origin) -> int | None:
        """Tokens of this chat body's prompt as the upstream counts them for `who`, the tenant's model."""
        known = self._entry(who)
        if self._clock() < known.due:
            return None
        try:
            async with asyncio.timeout(WAIT):
                counter = await self._counter(known, model, origin)
                if counter is None or (asked := counter.body_for(body)) is None:
                    return None
                answer = await self._asks.ask(counter.ask, model, origin, asked)
        except TimeoutError:
            self._failed(known)
            return None
        tokens = counter.read(answer.value)
        if tokens is None:
            self._failed(known)
            return None
        known.failures = 0
        return tokens

    def distrust(self, who: str) -> None:
        """What was counted for this tenant's model was wrong: nothing is asked for the longest while."""
        known = self._entry(who)
        known.counter, known.failures = None, len(PAUSES)
        known.due = self._clock() + PAUSES[-1]

    def _entry(self, who: str) -> _Known:
        known = self._known.setdefault(who, _Known())
        self._known.move_to_end(who)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def _failed(self, known: _Known) -> None:
        if self._clock() < known.due:
            return  # it was asked at once with another that failed: that is one failure, and no row of them
        known.counter = None
        known.failures += 1
        known.due = self._clock() + PAUSES[min(known.failures, len(PAUSES)) - 1]

    async def _counter(self, known: _Known, model: str, origin: Origin) -> Counter | None:
        """The endpoint that counts; tried one after the other, by one request at a time."""
        async with known.finding:
            if known.counter is None and self._clock() >= known.due:
                known.counter = await self._find(model, origin)
                if known.counter is None:
                    self._failed(known)
            return known.counter

    async def _find(self, model: str, origin: Origin) -> Counter | None:
        messages = [{"role": "user", "content": _TRIED_WITH}]
        tiny = rawjson.encode({"model": model, "messages": messages})
        for counter in COUNTERS:
            body = counter.body_for(tiny)
            answer = await self._asks.ask(counter.ask, model, origin, body)
            if (counter.read(answer.value) or _MOST_OF_THAT) < _MOST_OF_THAT:
                return counter
        return None
