"""Whether requests are better sent here than elsewhere: what an orchestrator asks before it does so.

Rules. The store counts until it has answered once: a process that is told a wrong store is never ready, so that a
rollout stops at it. From then on it does not, because the process works on without it, and a store is shared: all
replicas would leave at the same moment. The upstream counts only where it is configured to, for its troubles are the
client's to hear of. However often one asks, the upstream is asked once every few seconds at most.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from proxy.edge.questions import UNREACHABLE, Answer
from proxy.edge.sidecalls import Origin
from proxy.wire.dialects import MODELS, Ask

WAIT: Final = 2.0
"""Seconds that the upstream has for an answer."""

FRESH: Final = 5.0
"""Seconds for which its answer holds."""

_NOBODY: Final = Origin((), "", "")

OK: Final = "ok"
OUT_OF_REACH: Final = "out_of_reach"


class Asks(Protocol):
    """Asks the upstream."""

    async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
        """The answer to one question."""
        ...


class Readiness:
    """`store` says whether the store answers now. `upstream` is asked where its answer counts, else it is None."""

    def __init__(self, store: Callable[[], bool], upstream: Asks | None, clock: Callable[[], float]) -> None:
        self._store = store
        self._upstream = upstream
        self._clock = clock
        self._store_has_answered = False
        self._asked_at: float | None = None
        self._answers = False
        self._asking = asyncio.Lock()

    def ask(self, upstream: Asks | None) -> None:
        """From now on let the answer of this upstream count, or of none."""
        if upstream is not self._upstream:
            self._upstream, self._asked_at = upstream, None

    async def told(self) -> dict[str, str]:
        """`status`, which is `ready` or `not_ready`, and what it was made of."""
        store_answers = self._store()
        self._store_has_answered = self._store_has_answered or store_answers
        told, is_ready = {"store": OK if store_answers else OUT_OF_REACH}, self._store_has_answered
        if self._upstream is not None:
            answers = await self._upstream_answers(self._upstream)
            told["upstream"] = OK if answers else OUT_OF_REACH
            is_ready = is_ready and answers
        return {"status": "ready" if is_ready else "not_ready", **told}

    async def _upstream_answers(self, upstream: Asks) -> bool:
        async with self._asking:
            if self._asked_at is None or self._clock() >= self._asked_at + FRESH:
                self._answers = await _answers(upstream)
                self._asked_at = self._clock()
            return self._answers


async def _answers(upstream: Asks) -> bool:
    """Whether it answers at all, and does not say that it cannot: one that refuses for want of a key does answer."""
    try:
        async with asyncio.timeout(WAIT):
            answer = await upstream.ask(MODELS, "", _NOBODY)
    except TimeoutError:
        return False
    return answer.status != UNREACHABLE and (answer.status < 500 or answer.is_absent)
