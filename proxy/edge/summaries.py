"""The one owner of side calls: shares them, lets them outlive who asked, and stores what they bring.

Rules. For one prefix of one conversation there is never more than one side call; whoever needs it shares it, and a
waiter that leaves does not end it. A call runs to its own deadline, so that a client's retry finds its summary. Only a
summary that was judged good is stored, and failure text goes nowhere. After a failure that tenant's model is left
alone for a while that doubles, up to a bound, or as long as the upstream asked for, and ends with the first
success. None is made beyond what an hour may cost. What is prepared ahead waits until no
main call is under way, and is promoted when a request needs it. A client that slides its own window never finds a
summary again: where histories begin in the midst of an earlier one, no call is begun until one matches. No side call
outlives the process.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from proxy.config.values import SideCallLimits
from proxy.context import summary
from proxy.context.policy import SummaryMode
from proxy.edge.sidecalls import Answered, Origin
from proxy.edge.spending import HOUR, Spending
from proxy.exchange import Ask, Order, Prepare, SideCallFailed, Summarised
from proxy.wire.usage import Usage, together

FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0
"""Seconds without side calls after one failure, and after many."""

PATIENCE: Final = 60.0
"""Seconds that a prepared side call waits for a moment without main calls; then it is given up, for now."""

MOST_SLIDES: Final = 2
"""Requests in a row that began in the midst of an earlier history, after which that tenant's model gets no summary."""

MOST_UNFIT: Final = 2
"""Orders behind the prompt in a row that came to nothing, after which that tenant's model gets transcripts alone."""

_UNFIT: Final = summary.REASONS | {
    "status_400",
    "status_404",
    "status_413",
    "status_422",
    "status_500",
    "status_501",
}
"""Outcomes after which another way to ask is worth a call: the answer was none, or the form was not taken."""

_RECENT: Final = 4
"""Requests of one tenant's model that are remembered for that, each by the digests that it is looked up with: a window
slides by a few. With `_MOST_TENANTS` some 30 MB at the very most."""

_MOST_DONE: Final = 256
_MOST_TENANTS: Final = 1024
_MOST_PREPARING: Final = 32

Outcome = Summarised | SideCallFailed

Note = Callable[[str, Usage | None, float], None]
"""Takes a side call's outcome (a fixed word), its usage and the seconds that it took."""


class Calls(Protocol):
    """Makes a side call."""

    async def ask(self, body: bytes, origin: Origin, mode: SummaryMode) -> Answered | SideCallFailed:
        """The answer to this body, which asks in this mode, within the deadline."""
        ...


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds: `first_pause` without side calls after one failure; `patience` that a request waits for a summary at
    most, whatever it waits for, None = no limit.
    """

    first_pause: float = FIRST_PAUSE
    patience: float | None = None


AS_EVER: Final = Waits()


@dataclass(slots=True)
class _Job:
    order: Order
    task: asyncio.Task[Outcome]
    wanted: asyncio.Event
    """Set when a request waits for it, so that it no longer waits for a quiet moment."""


@dataclass(slots=True)
class _Standing:
    """What side calls for one tenant's model have been worth.

    failures  in a row            until   when none is made (seconds of the loop's clock)
    unfit     orders behind the prompt in a row that took a transcript after all
    slides    requests since the last match whose history began in the midst of a recent one
    recent    pairs of neighbours in recent histories, all but the first of each
    """

    failures: int = 0
    unfit: int = 0
    until: float = 0.0
    slides: int = 0
    recent: deque[frozenset[tuple[bytes, ...]]] = field(default_factory=lambda: deque(maxlen=_RECENT))


@dataclass(slots=True)
class _Quiet:
    """Whether main calls are under way; `with` counts one more."""

    running: int = 0
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> None:
        self.running += 1
        self.event.clear()

    def __exit__(self, *_: object) -> None:
        self.running -= 1
        if not self.running:
            self.event.set()


class Summaries:
    """Made on the loop that it serves; `close` ends what still runs.

    `keep` stores a summary under a chain's key, `note` is told of every call that was made.
    """

    def __init__(
        self,
        calls: Calls,
        keep: Callable[[str, str], Awaitable[None]],
        log: FilteringBoundLogger,
        *,
        note: Note = lambda outcome, usage, seconds: None,
        spending: Spending | None = None,
        prepares: bool = True,
        waits: Waits = AS_EVER,
    ) -> None:
        """Without `spending` there is no limit."""
        self._calls = calls
        self._keep = keep
        self._log = log
        self._note = note
        self._spending = spending or Spending(SideCallLimits(), asyncio.get_running_loop().time)
        self._prepares = prepares
        self._first_pause = waits.first_pause
        self._patience = waits.patience
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._done: OrderedDict[str, Summarised] = OrderedDict()
        self._standings: OrderedDict[str, _Standing] = OrderedDict()
        self._quiet = _Quiet()
        self._quiet.event.set()
        self._closed = False
        self._one_at_a_time = asyncio.Semaphore(1)

    async def get(self, ask: Ask, who: str, origin: Origin, waited: float = 0.0) -> Outcome:
        """The summary, from a call under way if there is one. `who` names tenant and model, `waited` tells the seconds
        that the request has waited for summaries already.
        """
        done = next((self._done[key] for key in reversed(self._done) if key in ask.welcome), None)
        if done is not None:
            return replace(done, usage=None)
        job = next((job for key, job in self._jobs.items() if key in ask.welcome), None)
        shared = job is not None
        if job is None:
            if not self._may_begin(who):
                return SideCallFailed("held_back")
            job = self._start(self._fitting(ask.order, who), who, origin)
        job.wanted.set()
        began = asyncio.get_running_loop().time()
        outcome = await self._awaited(job, waited)
        if not shared:
            return outcome
        if isinstance(outcome, Summarised) and outcome.key not in ask.welcome:
            # Asked in the other way it came to be of a longer prefix, which another conversation has and this has not.
            if job in self._jobs.values():
                return SideCallFailed("timeout")
            return await self.get(ask, who, origin, waited + asyncio.get_running_loop().time() - began)
        return replace(outcome, usage=None)

    async def _awaited(self, job: _Job, waited: float) -> Outcome:
        """What came of it. It goes on when its waiter leaves or has waited long enough; its fault is its own."""
        patience = None if self._patience is None else max(0.0, self._patience - waited)
        ended, _ = await asyncio.wait([job.task], timeout=patience)
        if ended and (job.task.cancelled() or job.task.exception() is None):
            return job.task.result()
        # What cannot be stored, or not in time, is good all the same.
        done = (self._done[key] for key in job.order.keys if key in self._done)
        return next(done, SideCallFailed("fault" if ended else "timeout"))

    def prepare(self, prepare: Prepare, who: str, origin: Origin) -> None:
        """Have the summary written in the background, unless one of this conversation is on its way."""
        known = not prepare.welcome.isdisjoint(self._jobs) or not prepare.welcome.isdisjoint(self._done)
        if not self._prepares or known or not self._may_begin(who) or len(self._jobs) >= _MOST_PREPARING:
            return
        self._start(self._fitting(prepare.order, who), who, origin, ahead=True)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop what is remembered here of summaries under these keys, and end those that nobody waits for."""
        for key in keys:
            self._done.pop(key, None)
            if (job := self._jobs.get(key)) and not job.wanted.is_set():
                job.task.cancel()

    def note_history(self, who: str, digests: Sequence[bytes], *, matched: bool) -> None:
        """Take in a request's history; `matched`: a checkpoint or a summary of an earlier one was found for it.

        Two messages in a row are looked for: many conversations begin with "hello", few go on alike.
        """
        if len(digests) < 2:
            return
        pairs = list(pairwise(digests))
        standing = self._standing(who)
        slid = any(pairs[0] in earlier for earlier in standing.recent)
        standing.slides = 0 if matched else standing.slides + slid
        standing.recent.append(frozenset(pairs[1:]))

    def _may_begin(self, who: str) -> bool:
        if self._closed:
            return False
        standing = self._standings.get(who)
        if standing is None:
            return True
        return asyncio.get_running_loop().time() >= standing.until and standing.slides < MOST_SLIDES

    def main_call(self) -> AbstractContextManager[None]:
        """Around a main call: what is prepared ahead waits for it."""
        return self._quiet

    async def close(self) -> None:
        """End every side call; none is begun from now on."""
        self._closed = True
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, order: Order, who: str, origin: Origin, *, ahead: bool = False) -> _Job:
        wanted = asyncio.Event()
        course = self._ahead(order, who, origin, wanted) if ahead else self._make(order, who, origin)
        job = _Job(order, asyncio.create_task(course), wanted)
        self._jobs[order.key] = job
        job.task.add_done_callback(lambda task: self._ended(order.key, task))
        return job

    def _ended(self, key: str, task: asyncio.Task[Outcome]) -> None:
        del self._jobs[key]
        if not task.cancelled() and (fault := task.exception()):
            self._log.error("side_call_fault", exception=type(fault).__name__)

    async def _ahead(self, order: Order, who: str, origin: Origin, wanted: asyncio.Event) -> Outcome:
        """In a quiet moment, one after the other; at once when a request has come to wait for it."""
        if not await self._is_time(wanted):
            return SideCallFailed("never_quiet")
        if wanted.is_set():
            return await self._make(order, who, origin)
        async with self._one_at_a_time:
            return await self._make(order, who, origin)

    async def _is_time(self, wanted: asyncio.Event) -> bool:
        waits = [asyncio.create_task(event.wait()) for event in (wanted, self._quiet.event)]
        try:
            done, _ = await asyncio.wait(waits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    def _fitting(self, order: Order, who: str) -> Order:
        """The order, or the other way to ask where this one has proved useless."""
        return order.instead if order.instead and self._standing(who).unfit >= MOST_UNFIT else order

    async def _make(self, order: Order, who: str, origin: Origin) -> Outcome:
        outcome = await self._called(order, who, origin)
        if order.instead:
            is_unfit = isinstance(outcome, SideCallFailed) and outcome.reason in _UNFIT
            self._standing(who).unfit = self._standing(who).unfit + 1 if is_unfit else 0
            if is_unfit:
                other = await self._make(order.instead, who, origin)
                return replace(other, usage=together(outcome.usage, other.usage))
        match outcome:
            case SideCallFailed(reason="over_limit"):
                pass
            case SideCallFailed(reason=reason, after=after):
                self._note_trouble(who, is_quality=reason in summary.REASONS, least=after or 0.0)
            case Summarised(key=key, text=text):
                self._standing(who).failures = 0
                self._done[key] = outcome
                while len(self._done) > _MOST_DONE:
                    self._done.popitem(last=False)
                await self._keep(key, text)
        return outcome

    async def _called(self, order: Order, who: str, origin: Origin) -> Outcome:
        """What came of one call, which is paid for and told."""
        clock = asyncio.get_running_loop().time
        began = clock()
        tenant = who.partition(":")[0]
        if not self._spending.begin(tenant):
            over = SideCallFailed("over_limit")
            self._tell(over, who, order.mode, 0.0)
            return over
        answer = await self._calls.ask(order.body, origin, order.mode)
        outcome = _judged(answer, order)
        told = outcome.usage
        tokens = None if told is None else (told.prompt_tokens or 0) + (told.completion_tokens or 0)
        self._spending.end(tenant, tokens, len(order.body))
        self._tell(outcome, who, order.mode, clock() - began)
        return outcome

    def _tell(self, outcome: Outcome, who: str, mode: SummaryMode, seconds: float) -> None:
        """One event for each side call, with its usage also when it failed."""
        said = "used" if isinstance(outcome, Summarised) else outcome.reason
        self._note(said, outcome.usage, seconds)
        self._log.info(
            "side_call",
            model=who.partition(":")[2],
            outcome=said,
            mode=mode,
            prompt_tokens=outcome.usage.prompt_tokens if outcome.usage else None,
            cached_tokens=outcome.usage.cached if outcome.usage else None,
            completion_tokens=outcome.usage.completion_tokens if outcome.usage else None,
            seconds=round(seconds, 4),
        )

    def _note_trouble(self, who: str, *, is_quality: bool, least: float) -> None:
        """A poor answer tells nothing of the next one: the pause after it does not grow. The upstream's own wish for a
        pause of at `least` so many seconds is kept, up to an hour.
        """
        standing = self._standing(who)
        pause = max(min(self._first_pause * 2**standing.failures, LONGEST_PAUSE), min(least, HOUR))
        standing.failures = min(standing.failures + (not is_quality), 16)
        standing.until = asyncio.get_running_loop().time() + pause

    def _standing(self, who: str) -> _Standing:
        standing = self._standings.setdefault(who, _Standing())
        self._standings.move_to_end(who)
        while len(self._standings) > _MOST_TENANTS:
            self._standings.popitem(last=False)
        return standing


def _judged(answer: Answered | SideCallFailed, order: Order) -> Outcome:
    if isinstance(answer, SideCallFailed):
        return answer
    text = summary.accept(answer.text, order.given)
    if isinstance(text, summary.Rejected):
        return SideCallFailed(text.reason, answer.usage)
    return Summarised(order.key, text, answer.usage)
