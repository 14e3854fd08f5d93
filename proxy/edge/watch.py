"""What the page shows: conversations, requests and models of late, and the health of what the proxy stands on.

Rules. Counts and fixed words alone, but for names of models and paths; text of a conversation never comes here. Memory
only, bounded, for each holder of a token apart; losing it costs nothing, and nothing is decided by it. Whoever follows
is told what changed since, however slowly they read, and asks for nothing in return. Following ends with the process.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from proxy import __version__
from proxy.errors import TooManyWatchers
from proxy.exchange import Verdict

K = TypeVar("K")
V = TypeVar("V")

MOST_CONVERSATIONS: Final = 40
MOST_REQUESTS: Final = 100
MOST_MODELS: Final = 40
MOST_POINTS: Final = 60
"""Requests of one conversation whose sizes are kept."""

MOST_WATCHERS: Final = 16

_CHARACTERS: Final = 100
"""Names of models and paths are the clients' text; no more of one is kept."""

_GATHERING: Final = 0.2
"""Seconds that news are gathered before they are told."""

_LOOK: Final = 2.0
"""Seconds until health is looked at again where nothing else happens."""

_SIGN_OF_LIFE: Final = 7
"""Looks without news after which a watcher is sent a comment."""

_UNREACHABLE: Final = frozenset({"upstream_unreachable", "upstream_timeout"})


class Seen(msgspec.Struct, frozen=True):
    """One request that is over. Seconds; `added` are those until the main call was made, None where none was.

    `name` is that in the log. `capture` is empty where its text was not kept, `conversation` where it belongs to none.
    """

    name: str
    method: str
    path: str
    model: str
    mode: str
    status: int | None
    upstream_status: int | None
    complete: bool
    reason: str
    actions: str
    seconds: float
    added: float | None
    conversation: str = ""
    capture: str = ""
    verdict: Verdict | None = None


@dataclass(slots=True)
class _Request:
    """A request that is shown: `number` when it came in, `at` the same in seconds."""

    number: int
    at: float
    seen: Seen

    def told(self) -> dict[str, object]:
        return {"id": self.number, **_request(self.seen)}


@dataclass(slots=True)
class _Conversation:
    """A conversation with its course: for each request the tokens of the original and of what was forwarded, and what a
    cut there did, empty where none was made."""

    id: str
    verdict: Verdict
    number: int = 0
    at: float = 0.0
    requests: int = 0
    cuts: int = 0
    checkpoint: str = ""
    course: deque[tuple[int, int, str]] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))

    def told(self) -> dict[str, object]:
        return {
            "id": self.id,
            **_measured(self.verdict),
            "requests": self.requests,
            "cuts": self.cuts,
            "course": list(self.course),
        }


@dataclass(slots=True)
class _Model:
    """A model; `factor` is None until a request was counted."""

    verdict: Verdict
    number: int = 0
    at: float = 0.0
    factor: float | None = None

    def told(self) -> dict[str, object]:
        verdict = self.verdict
        name = _shown(verdict.model)
        source = verdict.window_source or "unknown"
        factor = None if self.factor is None else round(self.factor, 3)
        return {"id": name, "model": name, "window": verdict.window, "source": source, "factor": factor}


class Records:
    """What one holder sees."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._requests: deque[_Request] = deque(maxlen=MOST_REQUESTS)
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._gone: OrderedDict[str, int] = OrderedDict()

    def note(self, seen: Seen, number: int, now: float) -> None:
        """Take in a request."""
        self._requests.append(_Request(number, now, seen))
        if seen.verdict is None:
            return
        if seen.conversation:
            self._note_conversation(seen.conversation, seen.verdict, number, now)
        self._note_model(seen.verdict, number, now)

    def strike(self, id_: str, number: int) -> None:
        """Show a conversation no longer."""
        if self._conversations.pop(id_, None) is not None:
            self._gone[id_] = number
            _bound(self._gone, MOST_CONVERSATIONS)

    def since(self, number: int, now: float) -> dict[str, object]:
        """What changed after this number; empty when nothing did."""
        found: dict[str, object] = {
            "conversations": list(_changed(self._conversations.values(), number, now)),
            "requests": list(_changed(self._requests, number, now)),
            "models": list(_changed(self._models.values(), number, now)),
            "gone": [id_ for id_, at in self._gone.items() if at > number],
        }
        return {name: rows for name, rows in found.items() if rows}

    def _note_conversation(self, id_: str, verdict: Verdict, number: int, now: float) -> None:
        row = self._conversations.get(id_)
        if row is None:
            row = self._conversations[id_] = _Conversation(id_, verdict)
            _bound(self._conversations, MOST_CONVERSATIONS)
            self._gone.pop(id_, None)
        else:
            self._conversations.move_to_end(id_)
        is_cut = bool(verdict.checkpoint_id) and verdict.checkpoint_id != row.checkpoint
        row.checkpoint = verdict.checkpoint_id or ""
        row.verdict, row.number, row.at = verdict, number, now
        row.requests += 1
        row.cuts += is_cut
        if verdict.original is not None and verdict.forwarded is not None:
            row.course.append((verdict.original, verdict.forwarded, verdict.actions if is_cut else ""))

    def _note_model(self, verdict: Verdict, number: int, now: float) -> None:
        name = verdict.model[:_CHARACTERS]
        row = self._models.get(name)
        if row is None:
            row = self._models[name] = _Model(verdict)
            _bound(self._models, MOST_MODELS)
        else:
            self._models.move_to_end(name)
        row.verdict, row.number, row.at = verdict, number, now
        if verdict.raw is not None:  # else it went on before anybody looked what had been learned
            row.factor = verdict.factor


class Watch:
    """The records of all holders, and those who follow them. `clock` tells seconds, `store_answers` what it says.

    `captures` says whether the text of requests is kept elsewhere, so that they can be opened.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        store_answers: Callable[[], bool],
        *,
        captures: bool = False,
        worker: tuple[int, int] = (1, 1),
    ) -> None:
        """`worker` is which one this process is, of how many: what is shown is what it has served itself."""
        self._clock = clock
        self._store_answers = store_answers
        self.captures = captures
        self._worker = worker
        self._number = 0  # of the newest change
        self._records: dict[str, Records] = {}
        self._watchers: set[asyncio.Event] = set()
        self._closed = False
        self._upstream: tuple[str, int | None] = ("unknown", None)

    def note(self, holder: str, seen: Seen) -> None:
        """Take in a request of this holder's."""
        if seen.upstream_status is not None:
            self._upstream = ("ok" if seen.upstream_status < 500 else "failing", seen.upstream_status)
        elif seen.reason in _UNREACHABLE:
            self._upstream = ("out_of_reach", None)
        self._of(holder).note(seen, self._next(), self._clock())
        self._wake()

    def strike(self, holder: str, conversation: str) -> None:
        """Show a conversation no longer."""
        self._of(holder).strike(conversation, self._next())
        self._wake()

    def follow(self, holder: str) -> AsyncGenerator[bytes]:
        """Server-sent events: what there is, then what changes. Raises TooManyWatchers."""
        if len(self._watchers) >= MOST_WATCHERS:
            raise TooManyWatchers(f"{MOST_WATCHERS} pages are open on this proxy; close one of them.")
        return self._followed(self._of(holder))

    def close(self) -> None:
        """End all following; none begins from now on."""
        self._closed = True
        self._wake()

    @property
    def watchers(self) -> int:
        """How many follow."""
        return len(self._watchers)

    async def _followed(self, records: Records) -> AsyncGenerator[bytes]:
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            told, health = self._number, self._health()
            yield _event("all", {**self._about(), "health": health, **records.since(0, self._clock())})
            async for is_sign_due in self._looks(news):
                change = records.since(told, self._clock())
                told, before, health = self._number, health, self._health()
                if health != before:
                    change["health"] = health
                if change:
                    yield _event("change", change)
                elif is_sign_due:
                    yield b": \n\n"
        finally:
            self._watchers.discard(news)

    async def _looks(self, news: asyncio.Event) -> AsyncGenerator[bool]:
        """Each time that it is worth a look, until the end; True where a sign of life is due."""
        quiet = 0
        while not self._closed:
            try:
                await asyncio.wait_for(news.wait(), _LOOK)
            except TimeoutError:
                quiet += 1
            else:
                quiet = 0
                await asyncio.sleep(_GATHERING)
                news.clear()
            yield quiet % _SIGN_OF_LIFE == _SIGN_OF_LIFE - 1

    def of_workers(self) -> dict[str, int]:
        """Which process tells this, where there are several."""
        number, count = self._worker
        return {"worker": number, "workers": count} if count > 1 else {}

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _about(self) -> dict[str, object]:
        return {"version": __version__, "capture": self.captures, **self.of_workers()}

    def _health(self) -> dict[str, object]:
        state, status = self._upstream
        store = "ok" if self._store_answers() else "out_of_reach"
        return {"store": store, "upstream": state, "upstream_status": status}

    def _of(self, holder: str) -> Records:
        records = self._records.get(holder)
        if records is None:
            records = self._records[holder] = Records()
        return records

    def _wake(self) -> None:
        for news in self._watchers:
            news.set()


# --- how it is told -------------------------------------------------------------------------------------------


def _event(name: str, data: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def _changed(
    rows: Iterable[_Conversation | _Request | _Model], number: int, now: float
) -> Iterator[dict[str, object]]:
    """The rows that changed after this number, each with the seconds since then."""
    for row in rows:
        if row.number > number:
            yield {**row.told(), "age": round(max(0.0, now - row.at), 1)}


def _bound(rows: OrderedDict[K, V], most: int) -> None:
    while len(rows) > most:
        rows.popitem(last=False)


def _request(seen: Seen) -> dict[str, object]:
    """What is told of a request; milliseconds and tokens."""
    verdict = seen.verdict
    return {
        "name": seen.name,
        "method": seen.method,
        "path": _shown(seen.path),
        "model": _shown(seen.model),
        "mode": seen.mode,
        "status": seen.status,
        "complete": seen.complete,
        "reason": seen.reason,
        "actions": seen.actions,
        "original": verdict.original if verdict else None,
        "forwarded": verdict.forwarded if verdict else None,
        "reported": verdict.reported if verdict else None,
        "added_ms": None if seen.added is None else round(seen.added * 1000, 1),
        "took_ms": round(seen.seconds * 1000, 1),
        "conversation": seen.conversation,
        "capture": seen.capture,
    }


def _measured(verdict: Verdict) -> dict[str, object]:
    return {
        "model": _shown(verdict.model),
        "window": verdict.window,
        "source": verdict.window_source or "unknown",
        "trigger": verdict.trigger,
        "original": verdict.original,
        "forwarded": verdict.forwarded,
        "reported": verdict.reported,
        "actions": verdict.actions,
        "reason": verdict.reason,
        "parts": verdict.parts,
    }


def _shown(text: str) -> str:
    return text[:_CHARACTERS].encode("utf-8", "replace").decode()
