"""What is fuzzed: each reader of foreign bytes, with what must hold whatever the bytes are.

Rules. A target takes any bytes and raises for nothing but a broken promise. What it returns tells how the bytes were
taken, coarsely: inputs that are taken in a new way are kept to be changed further. A target decides everything by its
input, so that an input that broke a promise breaks it again.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from random import Random
from typing import Any, Final

from proxy.context import rawjson, tokens
from proxy.context.conversation import Conversation
from proxy.context.policy import Orphans
from proxy.context.rawjson import NotJSON
from proxy.context.reader import Reader
from proxy.context.repair import repair
from proxy.edge.encodings import Bound, Decoder, Undecodable
from proxy.wire import chat
from proxy.wire.chat import ChatRequest, NotManaged
from proxy.wire.dialects import PROBES, Overflow, classify, classify_event, says_nothing
from proxy.wire.dialects.discovery import LEAST_WINDOW, MOST_WINDOW
from proxy.wire.sse import Observer, UsageFilter
from tests.desk import count
from tests.fuzz.mutation import dice
from tests.scenarios.scene import MAY_CHANGE, POLICY, Scene, broken

Target = Callable[[bytes], Hashable]


def same(one: object, other: object) -> bool:
    """Whether two decoded values are the same document, a NaN being itself and 1 not 1.0 or true."""
    return json.dumps(one) == json.dumps(other)


# --- the body of a request ----------------------------------------------------------------------------------------


def request(data: bytes) -> Hashable:
    """A body is a chat request that can be put together again, or is none; the same however often it is read."""
    reader = Reader(short=0)
    try:
        read = chat.read(data, reader)
    except NotManaged as odd:
        return odd.reason
    if _LONG_NUMBER.search(data):
        return "a number that nobody reads"
    value: dict[str, Any] = json.loads(data)
    raws = [message.raw for message in read.conversation.messages]
    assert same([json.loads(raw) for raw in raws], value["messages"])
    assert chat.read(data, reader) == read  # now that it is recognised
    again = chat.read(data, Reader()).conversation
    assert [m.digest for m in again.messages] == [m.digest for m in read.conversation.messages]
    _put_together(read, value)
    _whole(read.conversation)
    for orphans in Orphans:
        _repaired(read.conversation, orphans)
    kinds = tuple(dict.fromkeys((m.kind, bool(m.calls), bool(m.media)) for m in read.conversation.messages))
    return kinds, read.stream, read.wants_usage, read.output_limit_name, bool(read.model)


def _put_together(read: ChatRequest, value: dict[str, Any]) -> None:
    messages = {"messages": chat.messages_member(read.conversation)}
    assert same(json.loads(chat.with_members(read, messages)), value)
    options = json.loads(chat.usage_member(read))
    spliced = json.loads(chat.with_members(read, {"stream_options": chat.usage_member(read)}))
    assert options["include_usage"] is True
    assert same({**value, "stream_options": None}, {**value, **spliced, "stream_options": None})


def _whole(conversation: Conversation) -> None:
    """Rounds follow one another without a gap, cuts are between them, and everything has a size."""
    edges = [(each.start, each.stop) for each in conversation.rounds]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges)][: len(edges)]
    assert all(start < stop for start, stop in edges)
    assert (edges[-1][1] if edges else 0) == len(conversation.history)
    assert set(conversation.safe_cuts) <= {start for start, _ in edges}
    for index, message in enumerate(conversation.history):
        conversation.call_answered_by(index)
        assert tokens.message_size(message, count, "").tokens >= 0


def _repaired(conversation: Conversation, orphans: Orphans) -> None:
    mended, _ = repair(conversation, orphans)
    assert mended.head == conversation.head
    assert all(rawjson.value(message.raw) is not None for message in mended.history if message.role)
    again, number = repair(mended, orphans)
    assert (again, number) == (mended, 0), "what was mended needs no mending"


# --- a whole exchange ---------------------------------------------------------------------------------------------


def course(data: bytes) -> Hashable:
    """Whatever is forwarded is JSON that keeps the promises of a view, and nothing beside the messages is lost."""
    scene = Scene()
    try:
        sent = scene.run(data)
    except NotManaged as odd:
        return odd.reason
    if _LONG_NUMBER.search(data):
        return "a number that nobody reads"
    given, asked = sent.body, sent.request
    changed = {
        name for name in asked | given if name != "messages" and not same(asked.get(name), given.get(name))
    }
    assert changed <= MAY_CHANGE, changed
    faults = broken(sent, POLICY)
    assert not faults, faults
    assert scene.run(data).raw == sent.raw, "what was stored gives the same view again"
    kinds = tuple(
        dict.fromkeys(str(message.get("role")) for message in sent.messages if isinstance(message, dict))
    )
    return tuple(sorted(sent.done())), sent.is_untouched, len(sent.side_calls), kinds[:4]


# --- a stream -----------------------------------------------------------------------------------------------------


def stream(data: bytes) -> Hashable:
    """What is relayed and what is read of a stream does not depend on how it was cut."""
    chance = dice(blake2b(data, digest_size=8).digest())
    taken: list[tuple[object, ...]] = []
    for bound in (1 << 20, 64):
        relayed, facts = whole = _observed(Observer(bound), [data])
        kept, _ = left = _observed(UsageFilter(bound), [data])
        assert relayed == data
        assert left == (kept, facts)
        assert len(kept) <= len(data)
        for chunks in _chunkings(data, chance):
            assert _observed(Observer(bound), chunks) == whole
            assert _observed(UsageFilter(bound), chunks) == left
        usage, done, finished, error, frames, _ = facts
        taken.append((usage is None, done, finished, error is None, frames == 0, kept == data))
    return tuple(taken)


def _observed(watch: Observer, chunks: list[bytes]) -> tuple[bytes, tuple[object, ...]]:
    relayed = bytearray()
    for chunk in chunks:
        relayed += watch.feed(chunk)
    relayed += watch.end()
    facts = watch.usage, watch.done, watch.finished, watch.error, watch.frames, watch.started
    return bytes(relayed), facts


def _chunkings(data: bytes, chance: Random) -> Iterator[list[bytes]]:
    """Byte by byte where that is quick, and three times at random."""
    if len(data) <= 2000:
        yield [data[at : at + 1] for at in range(len(data))]
    for _ in range(3):
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 8)))
        yield [data[start:stop] for start, stop in pairwise([0, *cuts, len(data)])]


# --- an error -----------------------------------------------------------------------------------------------------


def refusal(data: bytes) -> Hashable:
    """Any answer is judged, and whatever number is read of it is one that can be meant."""
    judged = [classify(status, data) for status in (200, 400, 401, 413, 500)]
    judged.append(classify_event(data))
    assert judged[2] is None, "a refusal for want of a credential is none of length"
    assert judged[0] == judged[5]
    for said in judged:
        _believable(said)
    says_nothing(400, data)
    _windows(data)
    names = tuple(said.dialect if said else "" for said in judged)
    return names, tuple(bool(said and said.window) for said in judged)


def _believable(said: Overflow | None) -> None:
    if said is not None:
        assert said.window is None or LEAST_WINDOW <= said.window <= MOST_WINDOW
        assert all(each is None or each >= 0 for each in (said.prompt, said.completion))


def _windows(data: bytes) -> None:
    try:
        value = rawjson.value(data)
    except NotJSON:
        return
    for probe in PROBES:
        found = probe.windows(value, "m")
        assert found is None or LEAST_WINDOW <= found.tokens <= MOST_WINDOW


# --- a document ---------------------------------------------------------------------------------------------------


def document(data: bytes) -> Hashable:
    """Whatever is split of a document is what the standard library reads there, and every other byte stays."""
    try:
        value: Any = rawjson.value(data)
    except NotJSON:
        return _is_no_document(data)
    chat.usage_of(data)
    chat.read_answer(data)
    text = data.decode("utf-8", "surrogateescape")
    assert rawjson.canonical(rawjson.canonical(text)) == rawjson.canonical(text)
    if isinstance(value, dict):
        return "object", *_members(data)
    if isinstance(value, list):
        elements = rawjson.elements(data)
        assert same([rawjson.value(raw) for raw in elements], value)
        assert same(rawjson.value(rawjson.array(elements)), value)
        return "array", min(3, len(elements))
    return type(value).__name__


def _is_no_document(data: bytes) -> Hashable:
    may_be_split = not _is_text(data) or _LONG_NUMBER.search(data) is not None
    for read in (rawjson.members, rawjson.elements, rawjson.spans):
        try:
            read(data)
        except NotJSON:
            continue
        assert may_be_split, f"{read.__name__} takes what is no document"
    return "no document"


_LONG_NUMBER: Final = re.compile(rb"[0-9]{4300}")
"""More digits than the language reads. Of what is split neither these nor the encoding are looked at."""


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _members(data: bytes) -> tuple[object, ...]:
    value: dict[str, Any] = json.loads(data)
    spans = rawjson.spans(data)
    assert list(dict.fromkeys(span.key for span in spans)) == list(value)
    last = {span.key: data[span.start : span.stop] for span in spans}
    assert rawjson.members(data) == last
    assert same({key: json.loads(raw) for key, raw in last.items()}, value)
    for key in [*list(last)[:3], "a key of nobody's"]:
        replaced = rawjson.replace(data, {key: b'["new"]'})
        expected = {**value, key: ["new"]}
        assert same(json.loads(replaced), expected if key in value else {key: ["new"], **value})
        less = json.loads(rawjson.remove(data, key))
        assert same(less, {name: each for name, each in value.items() if name != key})
    return len(spans) > len(value), min(3, len(value))


# --- an encoded body ----------------------------------------------------------------------------------------------

CODINGS: Final = ((b"gzip",), (b"deflate",), (b"br",), (b"zstd",), (b"zstd", b"gzip"))
MOST: Final = 1 << 20


def encoded(data: bytes) -> Hashable:
    """What a body decodes to does not depend on how it came, and is never more than was allowed."""
    chance = dice(blake2b(data, digest_size=8).digest())
    taken: list[object] = []
    for codings in CODINGS:
        whole = _undone([data], codings)
        assert isinstance(whole, str) or len(whole) <= MOST
        for chunks in _chunkings(data, chance):
            assert _agree(_undone(chunks, codings), whole, codings)
        taken.append(whole if isinstance(whole, str) else len(whole).bit_length())
    return tuple(taken)


def _agree(one: bytes | str, other: bytes | str, codings: tuple[bytes, ...]) -> bool:
    """Whether two ways of feeding a body came to the same.

    Which of two faults is found first may depend on the way, and how much is given out of a zstd frame without its end.
    """
    are_faults = isinstance(one, str) and isinstance(other, str)
    return one == other or are_faults or b"zstd" in codings


def _undone(chunks: list[bytes], codings: tuple[bytes, ...]) -> bytes | str:
    """What the chunks decode to, or what is wrong with them."""
    decoder = Decoder(codings, Bound(MOST, free=16 * MOST, ratio=1))
    try:
        made = b"".join([piece for chunk in chunks for piece in decoder.pieces(chunk)])
    except Undecodable as fault:
        return fault.reason
    return made if decoder.may_end else "without its end"


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """A target with its folder of inputs; `tries` are those of an ordinary test run, about a second."""

    name: str
    target: Target
    corpus: str
    tries: int


FUZZED: Final = (
    Fuzzed("request", request, "requests", 1000),
    Fuzzed("course", course, "requests", 250),
    Fuzzed("stream", stream, "streams", 250),
    Fuzzed("refusal", refusal, "refusals", 600),
    Fuzzed("document", document, "documents", 1000),
    Fuzzed("encoded", encoded, "encoded", 200),
)
