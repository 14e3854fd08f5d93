"""A collector of traces: takes spans by OTLP over HTTP, and reads them by the format's own messages.

Rules. It is a scripted upstream, so it may answer with anything, late or never. What it got is read only when it is
asked for. Where the packages of OpenTelemetry are absent, whoever asks for one is skipped.
"""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.needs import lacks
from tests.peers.answers import bytes_answer
from tests.peers.scripted import Reply, Request, ScriptedUpstream

try:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError:
    IS_THERE = False
else:
    IS_THERE = True

TAKEN: Final = bytes_answer(b"", headers=(("Content-Type", "application/x-protobuf"),))


@dataclass(frozen=True, slots=True)
class Collected:
    """A span as it came. Ids are hexadecimal, `parent` is empty for one that has none; times are nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    attributes: dict[str, Any]
    failed: bool
    began: int
    ended: int
    state: str


class Collector(ScriptedUpstream):
    """Answers from its script, then with what says that all was taken."""

    def __init__(self, script: Iterable[Reply] = (), *, otherwise: Reply = TAKEN) -> None:
        if not IS_THERE:
            lacks("opentelemetry-sdk is not installed", "make test installs it")
        super().__init__(script, otherwise=otherwise)

    @property
    def raw(self) -> bytes:
        """All bytes of all spans."""
        return b"".join(_body(request) for request in self.requests)

    @property
    def services(self) -> set[str]:
        """The names under which spans came."""
        return {
            attribute.value.string_value
            for request in self.requests
            for each in _message(request).resource_spans
            for attribute in each.resource.attributes
            if attribute.key == "service.name"
        }

    @property
    def spans(self) -> tuple[Collected, ...]:
        """All spans, in the order in which they began."""
        found = [
            _collected(span)
            for request in self.requests
            for each in _message(request).resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]
        return tuple(sorted(found, key=lambda span: span.began))

    def named(self, name: str) -> tuple[Collected, ...]:
        """The spans of this name."""
        return tuple(span for span in self.spans if span.name == name)

    def one(self, name: str) -> Collected:
        """The only span of this name."""
        (span,) = self.named(name)
        return span


def _body(request: Request) -> bytes:
    return gzip.decompress(request.body) if request.header("content-encoding") == "gzip" else request.body


def _message(request: Request) -> "trace_service_pb2.ExportTraceServiceRequest":
    message = trace_service_pb2.ExportTraceServiceRequest()
    message.ParseFromString(_body(request))
    return message


def _collected(span: "trace_pb2.Span") -> Collected:
    return Collected(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in span.attributes},
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.trace_state,
    )
