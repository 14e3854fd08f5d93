"""Traces by OpenTelemetry: a span for each request, and one for each step on its way, where a collector is configured.

Rules. A span says counts, fixed words and names that are bounded: no content, no key, no path, and of an error nothing
but that there was one. Without a collector this file, whose libraries are an extra, is not even read: whoever would
tell of a step has None in the place of a `Tracing`, and asks for no more than that. A span is the current one of its
task until it ends, also for the tasks that are begun in between, and what goes to the upstream meanwhile carries its
context in the place of the client's. A thread of the library's sends what has ended, out of a bounded queue; what
cannot be sent is dropped, and no request waits for it or hears of it.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import nullcontext, suppress
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeAlias

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy import __version__
from proxy.context.policy import SummaryMode
from proxy.edge.headers import RawHeaders
from proxy.edge.sidecalls import Answered, Origin
from proxy.edge.summaries import Calls
from proxy.edge.upstream import Reply
from proxy.errors import ConfigError
from proxy.exchange import (
    Accepted,
    Ask,
    Command,
    Count,
    Counted,
    Discovered,
    Exchange,
    LookUp,
    Measure,
    Measured,
    Memory,
    Outcome,
    Pause,
    Refused,
    Relay,
    Relayed,
    Send,
    SideCallFailed,
    Summarised,
    Verdict,
)
from proxy.wire.usage import Usage

Said: TypeAlias = Mapping[str, str | bool | int | float | None]
"""Attributes of a span; None is one that is left out."""

_STATUS: Final = "http.response.status_code"
_METHOD: Final = "http.request.method"
_MODEL: Final = "gen_ai.request.model"
_PROMPT: Final = "gen_ai.usage.input_tokens"
_COMPLETION: Final = "gen_ai.usage.output_tokens"

REQUEST: Final = "request"
UPSTREAM: Final = "upstream"
SIDE_CALL: Final = "side call"
RELAY: Final = "relay"
PLAN: Final = "plan"

_STEPS: Final[Mapping[type[Command], str]] = MappingProxyType(
    {LookUp: "look up", Ask: "summary", Send: UPSTREAM}
)
"""Commands of an exchange whose span is not called as they are."""

_PLANNED_BEHIND: Final = (Measure, Count, Ask)
"""Commands whose outcome is planned with, as long as no answer is relayed."""

_NOTHING: Final[Said] = MappingProxyType({})

_CONTEXT: Final = (b"traceparent", b"tracestate")
"""The fields of W3C Trace Context."""

_AWAY: Final = "/v1/traces"
"""Where a collector takes spans, behind its base URL."""


class Span:
    """A span, the current one of its task from when it is made until `end`, or until its `with` ends."""

    __slots__ = ("_before", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._before = context.attach(trace.set_span_in_context(span))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # That a generator is done is no error, though it is said by an exception.
        self.end(failed=kind is not None and kind is not StopIteration)

    @property
    def trace_id(self) -> str:
        """The name of the whole trace, by which others find it."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def say(self, said: Said) -> None:
        """Add attributes."""
        self._span.set_attributes({name: value for name, value in said.items() if value is not None})

    def say_asked(self, method: str, model: str, status: int | None) -> None:
        """Add what was asked for and answered, by the names that all services share."""
        self.say({_METHOD: method, _MODEL: model or None, _STATUS: status})

    def end(self, *, failed: bool = False) -> None:
        """End it; the task's span is the one that was before."""
        context.detach(self._before)
        if failed:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class Tracing:
    """Makes spans, and has them sent. `open_tracing` makes one; `close` ends its thread."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("transom", __version__)
        self._propagator = TraceContextTextMapPropagator()

    # --- spans ------------------------------------------------------------------------------------------------

    def request(self, fields: RawHeaders) -> Span:
        """The span of a request with these fields; what they say of a trace is gone on from."""
        found = self._propagator.extract(_carried(fields), context.Context())
        kind = trace.SpanKind.SERVER
        return Span(self._tracer.start_span(REQUEST, found, kind, record_exception=False))

    def span(self, name: str, *, calls: bool = False) -> Span:
        """A span below the current one; `calls`: it is a call to another server."""
        kind = trace.SpanKind.CLIENT if calls else trace.SpanKind.INTERNAL
        return Span(self._tracer.start_span(name, kind=kind, record_exception=False))

    def followed(self, course: Exchange) -> Exchange:
        """The same exchange, with a span for each of its commands and for each time that it plans, pauses included."""
        plans = True
        try:
            command = yield from _behind_pauses(course, next(course))
            while True:
                with self.span(_name(command), calls=isinstance(command, Send)) as span:
                    outcome = yield command
                    span.say(_told_of(command, outcome))
                plans = plans and not isinstance(command, Relay)
                with self.span(PLAN) if plans and isinstance(command, _PLANNED_BEHIND) else nullcontext():
                    command = yield from _behind_pauses(course, course.send(outcome))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        finally:
            course.close()

    async def called(self, call: Awaitable[Reply]) -> Reply:
        """The same call to the upstream, for what is no exchange."""
        with self.span(UPSTREAM, calls=True) as span:
            reply = await call
            span.say({_STATUS: reply.status})
            return reply

    async def relayed(self, relaying: Awaitable[bool]) -> bool:
        """The same relaying of an answer, for what is no exchange."""
        with self.span(RELAY) as span:
            complete = await relaying
            span.say({"transom.complete": complete})
            return complete

    def side_calls(self, calls: Calls) -> Calls:
        """The same side calls, each in a span of its own below that of whoever began it."""
        return _TracedCalls(calls, self)

    # --- what goes out ----------------------------------------------------------------------------------------

    def marked(self, fields: RawHeaders) -> RawHeaders:
        """The fields of a call, with the context of the current span; the same where there is none."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if not carrier:
            return fields
        kept = [field for field in fields if field[0].lower() not in _CONTEXT]
        return kept + [(name.encode(), value.encode()) for name, value in carrier.items()]

    async def close(self, seconds: float) -> None:
        """Have sent what has ended, for so many seconds at most; what is then left is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # nobody waited so long
                loop.call_soon_threadsafe(done.set)

        # A thread of the loop's own would be waited for, however long a collector keeps it.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            # Nobody else listens from now on to what its thread says, which would go to standard error.
            logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
            self._exporter.shutdown()


def open_tracing(endpoint: str, service_name: str) -> Tracing:
    """What makes spans, and sends them to the collector with this base URL. Raises `ConfigError`.

    Bounds of queue and batches, the timeout, fields for the collector, compression and the share of requests that are
    sampled are the library's own, and so are the variables of the environment that change them.
    """
    resource = Resource.create({"service.name": service_name, "service.version": __version__})
    try:
        # Nothing of ours waits for the interpreter's end: `close` is called before.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint.removesuffix(_AWAY) + _AWAY)
        return Tracing(provider, exporter)
    except ValueError as cause:
        raise ConfigError(
            "telemetry: traces cannot be sent as the variables OTEL_... of the environment say; unset them one by one"
        ) from cause


# ----------------------------------------------------------------------------------------------------------- details


class _TracedCalls:
    def __init__(self, calls: Calls, tracing: Tracing) -> None:
        self._calls = calls
        self._tracing = tracing

    async def ask(self, body: bytes, origin: Origin, mode: SummaryMode) -> Answered | SideCallFailed:
        with self._tracing.span(SIDE_CALL, calls=True) as span:
            answer = await self._calls.ask(body, origin, mode)
            outcome = "answered" if isinstance(answer, Answered) else answer.reason
            said = {"transom.bytes": len(body), "transom.mode": mode.value, "transom.outcome": outcome}
            span.say({**said, **_used(answer.usage)})
            return answer


def _carried(fields: RawHeaders) -> Mapping[str, str]:
    """What the fields say of a trace; nothing where they name several."""
    parents, states = ([value for name, value in fields if name.lower() == each] for each in _CONTEXT)
    if len(parents) != 1:
        return {}
    carried = {"traceparent": parents[0].decode("latin-1")}
    return carried | {"tracestate": b",".join(states).decode("latin-1")} if states else carried


def _behind_pauses(course: Exchange, command: Command) -> Generator[Command, Outcome, Command]:
    """The next command that is no pause; these are passed on."""
    while isinstance(command, Pause):
        command = course.send((yield command))
    return command


def _name(command: Command) -> str:
    return _STEPS.get(type(command)) or type(command).__name__.lower()


def _told_of(command: Command, outcome: object) -> Said:
    """What a command's span says: counts and fixed words."""
    told = _OUTCOMES.get(type(outcome))
    said = told(outcome) if told else _NOTHING
    return {**said, "transom.bytes": len(command.body)} if isinstance(command, Send) else said


_OUTCOMES: Final[Mapping[type, Callable[[Any], Said]]] = MappingProxyType(
    {
        Memory: lambda memory: {"transom.checkpoint": memory.edits is not None},
        Discovered: lambda told: {"transom.window": told.window and told.window.tokens},
        Measured: lambda told: {
            "transom.messages": len(told.sizes),
            "transom.tokens": sum(size.tokens for size in told.sizes) + told.extras,
        },
        Counted: lambda told: {"transom.tokens": told.tokens},
        Summarised: lambda told: {"transom.outcome": "used", **_used(told.usage)},
        SideCallFailed: lambda told: {"transom.outcome": told.reason, **_used(told.usage)},
        Accepted: lambda told: {_STATUS: told.status, "transom.refused": False},
        Refused: lambda told: {_STATUS: told.status, "transom.refused": True},
        Relayed: lambda told: {"transom.complete": told.complete, **_used(told.usage)},
    }
)


def _used(usage: Usage | None) -> Said:
    return {_PROMPT: usage.prompt_tokens, _COMPLETION: usage.completion_tokens} if usage else _NOTHING
