"""Which window the upstream tells of a model: asked when it is first needed, remembered, and asked anew now and then.

Rules. One round of questions at a time for each tenant's model, whoever needs it; nobody waits longer than the
configured time, and a round that takes longer goes on without them, up to its own end. What was found is given out at
once while it is asked for anew. After a round that found nothing, or nothing certain, the next one is ever further off:
a server that loads a model on the first request tells its window right after, and one that tells nothing is left alone.
An endpoint that is not there is not asked again for an hour; one that never answers takes nothing from the others'
answers. What one client's path or credential meets says nothing of another's. Bounded in number: clients may invent
names of models, and paths.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.config import Discovery as Options
from proxy.context.budget import Window
from proxy.edge import headers
from proxy.edge.questions import NOT_FOUND, Answer
from proxy.edge.sidecalls import Origin
from proxy.wire import dialects
from proxy.wire.dialects import MODELS, PROBES, Ask, Base, Found, Probe, Rank

ROUND: Final = 10.0
"""Seconds that one round of questions takes at most."""

QUESTION: Final = 4.0
"""Seconds that each of the questions takes at most that are asked at once: what others answered counts nevertheless."""

PAUSES: Final = (10.0, 60.0, 600.0, 3600.0)
"""Seconds until the next round after one, two and more that found nothing certain."""

ABSENT: Final = 3600.0
"""Seconds for which an endpoint that is not there is not asked."""

FRESH: Final = 5.0
"""Seconds for which an answer serves the other models, for the same credential; less than the first pause."""

_MOST_KNOWN: Final = 2000
_MOST_ANSWERS: Final = 16
_MOST_ABSENT: Final = 500
_MOST_ROUNDS: Final = 8
_MOST_CHARACTERS: Final = 200
"""A longer name is no model's."""


class Asks(Protocol):
    """Asks the upstream."""

    async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
        """The answer to one question about a model."""
        ...


@dataclass(slots=True)
class _Known:
    """What is known of one tenant's model; times are seconds of the clock."""

    found: Found | None = None
    due: float = 0.0
    uncertain: int = 0  # rounds in a row without anything certain
    task: asyncio.Task[None] | None = None
    began: float = 0.0

    def take(self, found: Found | None) -> None:
        """Go by what a round found, unless that is less certain than what is known: a model may just be unloaded."""
        is_certain = found is not None and found.rank >= Rank.SERVED
        self.uncertain = 0 if is_certain else self.uncertain + 1
        if found is not None and (is_certain or self.found is None or found.rank >= self.found.rank):
            self.found = found


class Discovery:
    """Made on the loop that it serves; `close` ends what still runs. `clock` tells seconds and never goes back."""

    def __init__(
        self, asks: Asks, options: Options, clock: Callable[[], float], *, patience: float = QUESTION
    ) -> None:
        """`patience` is in seconds, for each of the questions that are asked at once."""
        self._asks = asks
        self._patience = patience
        self._options = options
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._answers: OrderedDict[tuple[bytes, _Place], tuple[float, Answer]] = OrderedDict()
        self._absent: OrderedDict[_Place, float] = OrderedDict()
        self._rounds: set[asyncio.Task[None]] = set()

    async def window(self, who: str, model: str, origin: Origin) -> Window | None:
        """The model's window as the upstream tells it to `who`, the tenant's model."""
        if not self._options.enabled or not model or len(model) > _MOST_CHARACTERS:
            return None
        known = self._entry(who)
        now = self._clock()
        if known.task is None and now >= known.due and len(self._rounds) < _MOST_ROUNDS:
            known.began = now
            known.task = asyncio.create_task(self._round(known, model, origin))
            self._rounds.add(known.task)
        if known.task is not None and known.found is None:
            left = known.began + self._options.wait - now
            if left > 0:
                await asyncio.wait([known.task], timeout=left)
        return _window(known.found)

    def known(self, who: str) -> Window | None:
        """What is known of this window already, without asking."""
        entry = self._known.get(who)
        return _window(entry.found if entry else None)

    @property
    def rounds(self) -> frozenset[asyncio.Task[None]]:
        """The rounds that are under way."""
        return frozenset(self._rounds)

    @property
    def size(self) -> int:
        """Tenants' models of which something is known."""
        return len(self._known)

    async def close(self) -> None:
        """End what still runs."""
        rounds = set(self._rounds)
        for task in rounds:
            task.cancel()
        if rounds:
            await asyncio.wait(rounds)

    def _entry(self, who: str) -> _Known:
        known = self._known.setdefault(who, _Known())
        self._known.move_to_end(who)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _round(self, known: _Known, model: str, origin: Origin) -> None:
        try:
            async with asyncio.timeout(ROUND):
                found = await self._find(model, origin)
        except (TimeoutError, _OutOfReach) as failed:
            known.uncertain += not isinstance(failed, _OutOfReach)
            known.due = self._clock() + _pause(known.uncertain)
        else:
            known.take(found)
            is_certain = known.uncertain == 0
            known.due = self._clock() + (self._options.refresh if is_certain else _pause(known.uncertain))
        finally:
            if known.task is not None:
                self._rounds.discard(known.task)
            known.task = None

    async def _find(self, model: str, origin: Origin) -> Found | None:
        """The list of models, which nearly every server has, and all else only where that tells no window.

        Raises _OutOfReach where not even the first question is answered.
        """
        first, *others = sorted(PROBES, key=lambda probe: probe.ask != MODELS)
        answer = await self._ask(first, model, origin)
        if answer.is_out_of_reach:
            raise _OutOfReach
        listed = first.windows(answer.value, model)
        if listed is not None and listed.rank > Rank.TRAINED:
            return listed
        async with asyncio.TaskGroup() as group:
            tasks = {probe: group.create_task(self._in_time(probe, model, origin)) for probe in others}
        answers = {probe.name: task.result() for probe, task in tasks.items()}
        return dialects.best({first.name: answer.value, **answers}, model)

    async def _in_time(self, probe: Probe, model: str, origin: Origin) -> object:
        try:
            async with asyncio.timeout(self._patience):
                return (await self._ask(probe, model, origin)).value
        except TimeoutError:
            return None

    async def _ask(self, probe: Probe, model: str, origin: Origin) -> Answer:
        """The answer to one question, from a moment ago if that is about all models."""
        now = self._clock()
        if probe.ask.is_about_one_model:
            return await self._asks.ask(probe.ask, model, origin)
        place = _place(probe, origin)
        key = (headers.credential(origin.fields), place)
        if key in self._answers and now - self._answers[key][0] < FRESH:
            return self._answers[key][1]
        if now < self._absent.get(place, 0.0):
            return Answer(NOT_FOUND)
        answer = await self._asks.ask(probe.ask, model, origin)
        if answer.is_absent and probe.ask != MODELS:  # of models the list may be hidden from one key alone
            self._leave_alone(place, now)
        elif not answer.is_out_of_reach:
            self._keep(key, answer, now)
        return answer

    def _leave_alone(self, place: "_Place", now: float) -> None:
        self._absent[place] = now + ABSENT
        self._absent.move_to_end(place)
        if len(self._absent) > _MOST_ABSENT:
            self._absent.popitem(last=False)

    def _keep(self, key: "tuple[bytes, _Place]", answer: Answer, now: float) -> None:
        self._answers[key] = (now, answer)
        self._answers.move_to_end(key)
        oldest = next(iter(self._answers))
        while len(self._answers) > _MOST_ANSWERS or now - self._answers[oldest][0] >= FRESH:
            del self._answers[oldest]
            oldest = next(iter(self._answers))


_Place = tuple[str, str, str]
"""Where a question is asked: its name, and the path and query of the client's where it goes below these."""


def _place(probe: Probe, origin: Origin) -> _Place:
    match probe.ask.base:
        case Base.API:
            return probe.name, origin.path, origin.query
        case Base.ROOT:
            return probe.name, "", ""


class _OutOfReach(Exception):
    """The upstream answers nothing, or that it cannot answer now."""


def _pause(uncertain: int) -> float:
    return PAUSES[min(max(uncertain, 1), len(PAUSES)) - 1]


def _window(found: Found | None) -> Window | None:
    if found is None:
        return None
    bound = " (at most)" if found.rank is Rank.TRAINED else ""
    return Window(found.tokens, f"{found.source}{bound}")
