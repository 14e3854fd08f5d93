"""What Prometheus is told: requests, tokens, cuts, side calls and our own time, counted since the process began.

Rules. All that is counted stands under fixed words: never a tenant, a key, a path or any text. Names of models are the
clients' to invent, so one gets a label of its own with its first good answer at the earliest, and only the first few
do; the rest are `other`. Whatever else comes from outside of this process is bounded alike. Requests to our own
endpoints are not counted. Nothing is decided by what is counted here. Where several processes serve, each tells the
numbers of all, its own as they are and those of the others as they were a moment ago; what one has counted that ended
is not lost, so that no counter ever falls.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from proxy import __version__
from proxy.context.policy import Mode
from proxy.edge import processes
from proxy.edge.board import Board
from proxy.edge.ledger import Beginning
from proxy.edge.series import (
    CONTENT_TYPE,
    OTHER,
    Counter,
    Few,
    Gauge,
    Histogram,
    Labels,
    Rows,
    Series,
    sums,
)
from proxy.exchange import Verdict
from proxy.stores import Tell
from proxy.wire.usage import Usage

__all__ = ["CONTENT_TYPE", "MOST_MODELS", "Added", "Finished", "Metrics"]

S = TypeVar("S", bound=Series)

MOST_MODELS: Final = 30
"""Models with a label of their own; each has up to 50 series."""

_BEFORE: Final = ("before",)
_AFTER: Final = ("after",)

_ADDED: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATIONS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_RATIOS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)


class Added(msgspec.Struct, frozen=True):
    """Seconds that were our own: until the main call was made for the last time, and behind its answer.

    In the first the client waits, side calls and questions to the upstream included; in the second it has its answer.
    """

    before: float
    after: float


class Finished(NamedTuple):
    """One request that is over.

    mode       None for what is no chat request, or could not be read as one
    status     the one that the client got; `complete`: so did it the whole answer
    reason     why it ended otherwise than by an answer of the upstream's, a fixed word, or empty
    bypass     why it was not managed, a fixed word, or empty
    verdict    what is known of a managed request; of one that failed as far as it got
    beginning  how its prompt begins, where it was answered
    """

    mode: Mode | None
    status: int | None
    complete: bool
    reason: str
    bypass: str
    seconds: float
    verdict: Verdict | None = None
    added: Added | None = None
    beginning: Beginning | None = None

    @property
    def outcome(self) -> str:
        """One word: what ended it, or the class of its status."""
        if self.reason or self.status is None:
            return self.reason or "unanswered"
        return f"{self.status // 100}xx" if self.complete else "upstream_broke"


LATER: Final = 0.25
"""Seconds after which other processes know what was counted."""


class _Told(msgspec.Struct, array_like=True, frozen=True):
    """What a process tells the others: its id, and for each metric its rows."""

    pid: int
    rows: list[list[tuple[Labels, list[float]]]]


class Metrics:
    """The metrics of one process, or of all that share a board."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._requests = _Requests(self._kept)
        self._prompts = _Prompts(self._kept)
        self._cuts = _Cuts(self._kept)
        self._side_calls = _SideCalls(self._kept)
        self._store = _Store(self._kept, self._changed)
        version: Mapping[Labels, float] = {(__version__,): 1}
        says = "Always 1; its label is the version that runs."
        self._kept(Gauge("build_info", says, lambda: version, "version"))
        self._board: Board | None = None
        self._place = 0
        self._later: Callable[[float, Callable[[], None]], object] = lambda seconds, tell: None
        self._is_due = False

    def _kept(self, series: S) -> S:
        self._series.append(series)
        return series

    def share(self, board: Board, place: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Tell others at this place of the board, and go on from what is there. `later` has a thing done in so many
        seconds."""
        before = _read(board.read(place))
        if before is not None:
            for series, rows in zip(self._series, before.rows, strict=True):
                series.go_on_from(dict(rows))
            for each in (self._requests, self._prompts, self._side_calls):
                each.know_labels()
        self._board, self._place, self._later = board, place, later
        self._tell()

    def _changed(self) -> None:
        if not self._is_due and self._board is not None:
            self._is_due = True
            self._later(LATER, self._tell)

    def _tell(self) -> None:
        self._is_due = False
        if self._board is not None:
            rows = [list(series.rows().items()) for series in self._series]
            self._board.write(self._place, msgspec.json.encode(_Told(os.getpid(), rows)))

    def begun(self) -> None:
        """A request has come in; `note` will hear of its end."""
        self._requests.in_flight += 1
        self._changed()

    def note(self, finished: Finished) -> None:
        """Count a request that is over."""
        self._requests.in_flight -= 1
        self._requests.note(finished)
        self._changed()
        verdict = finished.verdict
        if verdict is None:
            return
        if verdict.removed is not None:
            self._cuts.note(verdict, verdict.removed, finished.added)
        if verdict.side_calls:
            self._side_calls.note_unmade(verdict)
        if verdict.status is not None and verdict.status < 400:
            self._prompts.note(verdict, finished.beginning)

    def note_unmanaged(self, endpoint: str) -> None:
        """Count a request to an endpoint that generates text and is not managed; `endpoint` is one of a few words."""
        self._requests.unmanaged.add((endpoint,))
        self._changed()

    def note_side_call(self, outcome: str, usage: Usage | None, seconds: float) -> None:
        """Count a side call that was made."""
        self._side_calls.note(outcome, usage, seconds)
        self._changed()

    def hearing(self, tell: Tell) -> Tell:
        """The same teller, whose events of the store are counted here as well."""
        return self._store.hearing(tell)

    def watch_store(self, answers: Callable[[], bool]) -> None:
        """Ask this whether the store answers, whenever somebody wants to know."""
        self._store.answers = answers

    def exposed(self) -> bytes:
        """All of it in Prometheus' text format. What is told once is on the board, and never falls."""
        self._tell()
        told = self._all_told()
        own: list[Rows] = [series.rows() for series in self._series]
        others: list[list[Rows]] = [[dict(rows) for rows in each.rows] for each in told]
        lines: list[str] = []
        for series, rows in zip(self._series, sums(self._series, [own, *others]), strict=True):
            lines += series.lines(rows)
        parent = None if self._board is None else os.getppid()
        lines += processes.lines([os.getpid(), *(each.pid for each in told)], parent)
        return "\n".join([*lines, ""]).encode()

    def _all_told(self) -> list[_Told]:
        """What the other processes told."""
        if self._board is None:
            return []
        texts = (self._board.read(place) for place in range(self._board.places) if place != self._place)
        return [told for text in texts if (told := _read(text)) is not None]


def _read(text: bytes) -> _Told | None:
    return msgspec.json.decode(text, type=_Told) if text else None


# ------------------------------------------------------------------------------------------------- what is counted


class _Keep(Protocol):
    """Has a metric exposed, and hands it back."""

    def __call__(self, series: S) -> S: ...


class _Requests:
    """Requests, whatever they ask for."""

    def __init__(self, keep: _Keep) -> None:
        self._outcomes = Few()
        self._bypasses = Few()
        self._actions = Few()
        self.in_flight = 0
        says = "Requests that are being answered."
        keep(Gauge("requests_in_flight", says, lambda: {(): self.in_flight}, joined=sum))
        says = "Requests by what became of them, those to our own endpoints apart."
        self._total = keep(Counter("requests_total", says, "mode", "outcome"))
        says = "Managed requests by each thing that was done to them; one with several counts once for each."
        self._done = keep(Counter("request_actions_total", says, "mode", "action", "outcome"))
        says = "Requests for text that were passed on unmanaged, by why."
        self._bypassed = keep(Counter("bypasses_total", says, "reason"))
        says = "Requests to endpoints that generate text and are not managed."
        self.unmanaged = keep(Counter("unmanaged_requests_total", says, "endpoint"))
        says = "From a request's head to the end of its answer."
        self._seconds = keep(Histogram("request_duration_seconds", says, _DURATIONS, "mode"))
        says = "The proxy's own time in a managed request: before the main call (side calls included), and after it."
        self._added = keep(Histogram("added_latency_seconds", says, _ADDED, "phase"))

    def note(self, finished: Finished) -> None:
        mode = finished.mode.value if finished.mode is not None else "none"
        outcome = self._outcomes.label(finished.outcome)
        self._total.add((mode, outcome))
        self._seconds.add((mode,), finished.seconds)
        if finished.bypass:
            self._bypassed.add((self._bypasses.label(finished.bypass),))
        if finished.added is not None:
            self._added.add(_BEFORE, finished.added.before)
            self._added.add(_AFTER, finished.added.after)
        if finished.verdict is not None:
            for action in finished.verdict.actions.split(","):
                self._done.add((mode, self._actions.label(action.partition("=")[0]), outcome))

    def know_labels(self) -> None:
        """What labels are in use, after taking over from another process."""
        self._outcomes.know(self._total.words(1))
        self._bypasses.know(self._bypassed.words(0))
        self._actions.know(self._done.words(1))


class _Prompts:
    """Prompts that were answered, in tokens; what is not called reported is an estimate."""

    def __init__(self, keep: _Keep) -> None:
        def tokens(name: str, says: str) -> Counter:
            return keep(Counter(f"{name}_tokens_total", says, "model"))

        self._names = Few(MOST_MODELS)
        self._original = tokens("original", "Estimated tokens of the prompts as clients sent them.")
        self._forwarded = tokens("forwarded", "Estimated tokens of the prompts as they were sent on.")
        self._saved = tokens("saved", "Estimated tokens that prompts had less when they were sent on.")
        says = "Estimated tokens with which prompts begin that were the whole prompt before in their conversation."
        self._extended = tokens("extended", says)
        self._prompt = tokens("reported_prompt", "Tokens of the prompts as the upstream reported them.")
        says = "Tokens of the answers as the upstream reported them."
        self._completion = tokens("reported_completion", says)
        says = "Tokens of the prompts that the upstream reported as read from its cache."
        self._cached = tokens("reported_cached", says)
        says = "Answered prompts by whether they begin with the whole one before of their conversation."
        self._beginnings = keep(Counter("prompts_total", says, "beginning"))
        says = "Prompt tokens that the upstream reported for each one expected; 1 is an exact estimate."
        self._ratio = keep(Histogram("estimate_ratio", says, _RATIOS, "model", "basis"))
        self._factors: dict[Labels, float] = {}
        says = "What one of our tokens is worth in tokens of the model's, as the last request had it."
        keep(Gauge("calibration_factor", says, lambda: self._factors, "model"))
        self._windows: dict[str, tuple[str, int]] = {}
        says = "The window that the last request went by, and where it comes from."
        keep(Gauge("window_tokens", says, self._windows_by_source, "model", "source"))

    def note(self, verdict: Verdict, beginning: Beginning | None) -> None:
        name = self._names.label(verdict.model)
        model = (name,)
        original, forwarded = verdict.original or 0, verdict.forwarded or 0
        self._original.add(model, original)
        self._forwarded.add(model, forwarded)
        self._saved.add(model, max(0, original - forwarded))
        if beginning is not None:
            self._beginnings.add((beginning.repeats.value,))
            self._extended.add(model, beginning.tokens)
        if verdict.usage is not None and verdict.complete:
            self._note_reported(verdict, verdict.usage, name)
        if name != OTHER:
            if verdict.factor is not None:
                self._factors[model] = verdict.factor
            if verdict.window is not None:
                self._windows[name] = (verdict.window_source, verdict.window)

    def _note_reported(self, verdict: Verdict, usage: Usage, name: str) -> None:
        model, reported = (name,), verdict.reported or 0
        self._prompt.add(model, reported)
        self._completion.add(model, usage.completion_tokens or 0)
        if usage.cached is not None:
            self._cached.add(model, usage.cached)
        if reported and verdict.forwarded:
            basis = "conversation" if verdict.usage_based else "model"
            self._ratio.add((name, basis), reported / verdict.forwarded)

    def _windows_by_source(self) -> Mapping[Labels, float]:
        return {(name, source): tokens for name, (source, tokens) in self._windows.items()}

    def know_labels(self) -> None:
        """What labels are in use, after taking over from another process."""
        self._names.know(self._original.words(0))


class _Cuts:
    """Compactions: requests for which history was edited anew."""

    def __init__(self, keep: _Keep) -> None:
        says = "Requests for which history was edited anew, by what came of it."
        self._total = keep(Counter("compactions_total", says, "outcome"))
        says = "Estimated tokens that newly planned edits took away, uncorrected."
        self._removed = keep(Counter("compaction_removed_tokens_total", says))
        says = "How long such requests waited for their main call, side calls included."
        self._seconds = keep(Histogram("compaction_duration_seconds", says, _ADDED))

    def note(self, verdict: Verdict, removed: int, added: Added | None) -> None:
        self._total.add((verdict.reason or "fits",))
        self._removed.add(amount=removed)
        if added is not None:
            self._seconds.add((), added.before)


class _SideCalls:
    """Side calls, made or refused."""

    _UNMADE: Final = frozenset({"held_back", "not_asked"})

    def __init__(self, keep: _Keep) -> None:
        self._outcomes = Few()
        says = "Summaries that were wanted of the upstream, by what came of it."
        self._total = keep(Counter("side_calls_total", says, "outcome"))
        says = "How long side calls took, all attempts together."
        self._seconds = keep(Histogram("side_call_duration_seconds", says, _DURATIONS))
        says = "Tokens of side calls as the upstream reported them."
        self._tokens = keep(Counter("side_call_tokens_total", says, "kind"))

    def note(self, outcome: str, usage: Usage | None, seconds: float) -> None:
        self._total.add((self._outcomes.label(outcome),))
        self._seconds.add((), seconds)
        if usage is not None:
            self._tokens.add(("prompt",), usage.prompt_tokens or 0)
            self._tokens.add(("completion",), usage.completion_tokens or 0)

    def know_labels(self) -> None:
        """What labels are in use, after taking over from another process."""
        self._outcomes.know(self._total.words(0))

    def note_unmade(self, verdict: Verdict) -> None:
        """Those that were wanted and not made; all others are counted where they are made."""
        for call in verdict.side_calls:
            if call.outcome in self._UNMADE:
                self._total.add((call.outcome,))


class _Store:
    """Where checkpoints are kept. `answers` says whether it does, now."""

    _TROUBLE: Final = ("store_down", "store_gone", "store_set_aside")

    def __init__(self, keep: _Keep, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.answers: Callable[[], bool] = lambda: True
        says = "Whether the store answers: 1, or 0 in an outage."
        keep(Gauge("store_up", says, lambda: {(): self.answers()}, joined=min))
        says = "Troubles of the store, by the event that the log tells of each."
        self._trouble = keep(Counter("store_errors_total", says, "event"))
        for event in self._TROUBLE:
            self._trouble.add((event,), 0)  # there from the start, so that the first one is seen as a rise

    def hearing(self, tell: Tell) -> Tell:
        def told(event: str, **facts: object) -> object:
            if event in self._TROUBLE:
                self._trouble.add((event,))
                self._changed()
            return tell(event, **facts)

        return told
