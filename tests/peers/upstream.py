"""The peers that tests talk to instead of a model server, by one name each.

Rules. Nothing is defined here. `ScriptedUpstream` plays bytes, `StrictUpstream` judges as real servers do.
"""

from proxy.demo.counting import measure
from proxy.demo.replies import (
    DONE,
    Event,
    Message,
    call_message,
    chunk,
    chunks,
    completion,
    sse,
    text_message,
    usage,
    usage_chunk,
)
from proxy.demo.rules import Accepted, Refusal, Temper
from tests.peers.answers import (
    JSON_HEADERS,
    SSE_HEADERS,
    Answer,
    Cut,
    Framing,
    Headers,
    Piece,
    bytes_answer,
    empty_answer,
    json_answer,
    raw_answer,
    slices,
    sse_answer,
)
from tests.peers.scripted import Reply, Request, ScriptedUpstream
from tests.peers.strict import Call, StrictUpstream, UsagePlacement, chat_answer, marked
from tests.peers.tokens import o200k

__all__ = [
    "DONE",
    "JSON_HEADERS",
    "SSE_HEADERS",
    "Accepted",
    "Answer",
    "Call",
    "Cut",
    "Event",
    "Framing",
    "Headers",
    "Message",
    "Piece",
    "Refusal",
    "Reply",
    "Request",
    "ScriptedUpstream",
    "StrictUpstream",
    "Temper",
    "UsagePlacement",
    "bytes_answer",
    "call_message",
    "chat_answer",
    "chunk",
    "chunks",
    "completion",
    "empty_answer",
    "json_answer",
    "marked",
    "measure",
    "o200k",
    "raw_answer",
    "slices",
    "sse",
    "sse_answer",
    "text_message",
    "usage",
    "usage_chunk",
]
