"""One request on its way through, and what is told of it when it is over: one event, the metrics, and the page.

Rules. What is told are counts, fixed words, and names that are bounded: no content, no key, no query; the text of a
request goes to the captures, which keep it or not. Requests to our own endpoints are in the log alone, and those that
machines ask again and again at debug. Nothing is decided here. What is told is told a moment after the end, several
requests at once; no answer waits for it.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from structlog.typing import FilteringBoundLogger

from proxy.config.values import DEFAULT
from proxy.context.policy import Mode
from proxy.edge import admin
from proxy.edge.downstream import Downstream
from proxy.edge.events import RequestEvent, rounded
from proxy.edge.gate import Admitted, Gate
from proxy.edge.ledger import Beginning
from proxy.edge.metrics import Added, Finished
from proxy.edge.performer import Performer, Surroundings
from proxy.edge.routes import Site
from proxy.edge.sidecalls import Origin
from proxy.edge.upstream import Upload
from proxy.edge.watch import Seen
from proxy.edge.windows import MODEL_CHARACTERS, Windows
from proxy.exchange import Decision, Verdict

if TYPE_CHECKING:  # it is read only where requests are traced
    from proxy.edge.tracing import Span

_PATH_CHARACTERS: Final = 300
"""A path is the client's text; the log takes no more of it."""

_MOST_PLACES: Final = 100
"""Edits of one request that an event tells one by one: the newest."""


_NOBODY: Final = Admitted(())
"""Who has not been let in yet."""


class Visit(msgspec.Struct):
    """One request.

    reason     why it ended otherwise than by an answer of the upstream's, a fixed word, or empty
    bypass     why it was passed on unmanaged, a fixed word, or empty
    actions    what the answer's header says of a bypass, where it says something
    site       the upstream that it goes to; `named` is its name where the path had it
    performer  conducts it, where it is managed
    outcome    what came of one that is managed, once it is known; `tenant` is whose it is
    seconds    from its head to the end of its answer, once it is over
    added      the time that was our own of one that is managed and over
    beginning  how its prompt begins, where it was answered
    plain      the body as it could be read, of a request that is managed
    conversation  its id in the ledger, or empty
    span       its own, where requests are traced
    """

    request: web.BaseRequest
    gate: Gate
    client: Downstream
    origin: Origin
    began: float
    site: Site
    named: str | None = None
    admitted: Admitted = _NOBODY
    mode: Mode | None = None
    body: bytes | None = None
    upload: Upload | None = None
    received_bytes: int = 0
    model: str = ""
    reason: str = ""
    bypass: str = ""
    actions: str = ""
    upstream_status: int | None = None
    performer: Performer | None = None
    outcome: Verdict | None = None
    tenant: str = ""
    seconds: float = 0.0
    added: Added | None = None
    beginning: Beginning | None = None
    plain: bytes = b""
    conversation: str = ""
    span: "Span | None" = None
    spent: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def verdict(self) -> Verdict | None:
        """What is known of a managed request; of one that failed as far as it got."""
        return self.performer.verdict if self.performer is not None and not self.bypass else None


class Teller:
    """Tells the log, the metrics, the trace and whoever watches of each request."""

    def __init__(
        self, log: FilteringBoundLogger, around: Surroundings, windows: Mapping[str, Windows]
    ) -> None:
        """`windows` are those that the requests to each upstream went by."""
        self._log = log
        self._metrics = around.metrics
        self._watch = around.watch
        self._captures = around.captures
        self._stopwatch = around.stopwatch
        self._tracing = around.tracing
        self._ledger = around.ledger
        self._windows = windows
        self._afterwards = around.afterwards

    def begun(self, visit: Visit) -> None:
        """A request has come in; `ended` will hear of its end."""
        if not admin.is_own(visit.origin.path):
            self._metrics.begun()
            if self._tracing is not None:
                visit.span = self._tracing.request(visit.origin.fields)

    def ended(self, visit: Visit) -> None:
        """It is over, and will be told."""
        visit.seconds = self._stopwatch() - visit.began
        visit.added = visit.performer.added if visit.performer is not None else None
        self._afterwards.put(partial(self._tell, visit))
        if visit.span is not None:
            self._afterwards.settle()
            _end(visit.span, visit)

    def _tell(self, visit: Visit) -> None:
        """One event, and the metrics; of a managed request also the decision, where the log wants to know that."""
        if visit.outcome is not None and visit.performer is not None:
            self._note(visit, visit.outcome, visit.performer)
        path = visit.origin.path
        level = logging.DEBUG if admin.is_polled(path) else logging.INFO
        if self._log.is_enabled_for(level):
            self._log.log(level, "request", fields=_event_of(visit))
        verdict = visit.verdict
        if verdict is not None and verdict.decision is not None:
            told = _told_of_decision(verdict, verdict.decision)
            self._log.debug("plan", request_id=visit.client.request_id, **told)
        if not admin.is_own(path):
            self._metrics.note(_finished(visit))
            self._watch.note(visit.admitted.holder, self._seen(visit))

    def _note(self, visit: Visit, outcome: Verdict, performer: Performer) -> None:
        """The window that it went by, and the conversation that it belongs to."""
        self._windows[visit.site.name].note(visit.tenant, outcome)
        ledger = self._ledger.of(visit.admitted.holder)
        visit.beginning = ledger.note(performer.chain, outcome, (*performer.kept, *performer.prepared))
        visit.conversation = ledger.name_of(performer.chain)

    def _seen(self, visit: Visit) -> Seen:
        client, verdict, performer = visit.client, visit.verdict, visit.performer
        sent = performer.sent if performer is not None else b""
        if sent and visit.bypass:
            sent = visit.plain  # the client's own request went out
        return Seen(
            name=client.request_id,
            method=visit.method,
            path=visit.origin.path,
            model=visit.model,
            mode=str(visit.mode or ""),
            status=client.sent_status,
            upstream_status=visit.upstream_status,
            complete=client.complete,
            reason=visit.reason or visit.bypass or (verdict.reason if verdict else ""),
            actions=visit.actions or (verdict.actions if verdict else ""),
            seconds=visit.seconds,
            added=visit.added.before if visit.added else None,
            conversation=visit.conversation,
            capture=self._captures.keep(visit.admitted.holder, visit.plain, sent) if sent else "",
            verdict=verdict,
        )


def _finished(visit: Visit) -> Finished:
    client = visit.client
    return Finished(
        mode=visit.mode,
        status=client.sent_status,
        complete=client.complete,
        reason=visit.reason,
        bypass=visit.bypass,
        seconds=visit.seconds,
        verdict=visit.verdict,
        added=visit.added,
        beginning=visit.beginning,
    )


def _event_of(visit: Visit) -> RequestEvent:
    """The event of a request, also of one that did not get to its end."""
    client, performer, site = visit.client, visit.performer, visit.site.name
    event = RequestEvent(
        request_id=client.request_id,
        method=visit.method,
        path=visit.origin.path[:_PATH_CHARACTERS],
        status=client.sent_status,
        complete=client.complete,
        bytes_in=visit.received_bytes + (visit.upload.size if visit.upload else 0),
        bytes_out=client.sent_bytes,
        seconds=rounded(visit.seconds),
        trace_id=visit.span.trace_id if visit.span else "",
        actions=visit.actions,
        reason=visit.reason or visit.bypass,
        upstream_request_id=client.upstream_id,
        upstream_status=visit.upstream_status if visit.upstream_status != client.sent_status else None,
        upstream=site if site != DEFAULT else "",
        mode=visit.mode.value if visit.mode else "",
        model=visit.model[:MODEL_CHARACTERS],
        beginning=visit.beginning.repeats.value if visit.beginning else "",
        usage_unread=performer.unread if performer else "",
    )
    event.say_times(visit.added, visit.spent)
    if (verdict := visit.verdict) is not None:
        event.say(verdict)
    return event


def _end(span: "Span", visit: Visit) -> None:
    """End a request's span with what the event says of it, but for what the client is free to word."""
    told: dict[str, object] = msgspec.to_builtins(_event_of(visit))
    said = {
        f"transom.{name}": value
        for name, value in told.items()
        if name not in _NOT_TRACED and isinstance(value, str | bool | int | float)
    }
    status = visit.client.sent_status
    span.say(said)
    span.say_asked(visit.method, visit.model[:MODEL_CHARACTERS], status)
    span.end(failed=(status or 0) >= 500 or visit.reason == "upstream_broke")


_NOT_TRACED: Final = frozenset({"path", "method", "status", "model", "seconds", "trace_id"})
"""What a span says under other names, or must not say: a path is the client's text."""


def _told_of_decision(verdict: Verdict, decision: Decision) -> dict[str, object]:
    """What was decided, by words, indices and counts."""
    return {
        "why": decision.why,
        "trigger": verdict.trigger,
        "target": decision.target,
        "original_tokens": verdict.original,
        "tokens": verdict.forwarded,
        "edits": len(decision.edits),
        "places": [
            {"action": each.action, "first": each.first, "last": each.last, "new": each.is_new}
            for each in decision.edits[-_MOST_PLACES:]
        ],
    }
