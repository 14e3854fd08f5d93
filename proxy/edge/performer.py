"""Performs what an exchange asks for, one command after the other, for one request.

Rules. Nothing is decided here: the exchange says what, this file does it and sends back what came of it. At most one
reply is open at a time, and `close` ends it whatever happened. A refusal is read, within a bound, before anything of
it is relayed; then it is relayed verbatim, unless another call was made instead. Foreign errors are not caught here.
"""

import re
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from proxy.context.budget import Window
from proxy.context.calibration import CalibrationPolicy
from proxy.context.conversation import Message
from proxy.context.edits import Edits
from proxy.context.tokens import Size
from proxy.edge import headers
from proxy.edge.counts import Counts
from proxy.edge.downstream import Downstream, relay
from proxy.edge.headers import Base
from proxy.edge.ledger import Ledger
from proxy.edge.sidecalls import Origin
from proxy.edge.summaries import Summaries
from proxy.edge.upstream import Reply, Upstream
from proxy.errors import TransomError
from proxy.exchange import (
    Accepted,
    Ask,
    Command,
    Count,
    Counted,
    Discover,
    Discovered,
    Exchange,
    Learn,
    LookUp,
    Measure,
    Measured,
    Memory,
    Outcome,
    Prepare,
    Question,
    Refused,
    Relay,
    Relayed,
    Save,
    Send,
    Verdict,
)
from proxy.wire import chat
from proxy.wire.sse import Observer, UsageFilter
from proxy.wire.usage import Usage

REFUSAL_BYTES: Final = 1024 * 1024
"""So much of a refusal's body is read before it is relayed; real ones have a few hundred bytes."""

FIRST_EVENT_BYTES: Final = 64 * 1024
"""So much of a stream is waited for to see whether its first event is an error."""

DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""So much of an answer that is no stream is kept, to read its usage; a longer one goes by unread."""


class Remembers(Protocol):
    """What is remembered between requests."""

    async def recall(self, model: str, chain: Sequence[str], opening: str, who: str) -> Memory:
        """The newest checkpoint on this chain, and what was learned of model, conversation and window."""
        ...

    async def learn(self, lesson: Learn, policy: CalibrationPolicy) -> None:
        """Take in what an answer taught."""
        ...

    async def save(self, key: str, edits: Edits, *, replaces: bool) -> Edits:
        """Store edits unless there are some, or in their place; those that are there afterwards."""
        ...

    async def keep(self, key: str, text: str) -> None:
        """Store a summary of the prefix that this key names, for when it is needed."""
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Forget the checkpoints and summaries under these keys."""
        ...


class Measures(Protocol):
    """Counts tokens."""

    def count(self, text: str, encoding: str) -> int:
        """Tokens of a short text."""
        ...

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        """Sizes of messages, and the tokens of all raw JSON beside them."""
        ...


class Discovers(Protocol):
    """Knows which windows the upstream tells."""

    async def window(self, who: str, model: str, origin: Origin) -> Window | None:
        """The model's window as it is told to `who`, the tenant's model."""
        ...

    def known(self, who: str) -> Window | None:
        """The same without asking."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all requests share. `key` is the configured credential or empty; `clock` tells seconds."""

    upstream: Upstream
    base: Base
    key: str
    summaries: Summaries
    tokenizer: Measures
    memories: Remembers
    discovery: Discovers
    counts: Counts
    ledger: Ledger
    clock: Callable[[], float]


class Performer:
    """Performs the commands of one exchange.

    `spent` tells the seconds by kind of command, `chain` the names of the history's prefixes once they are known,
    `kept` those under which something was stored, `prepared` the prefix whose summary is being written ahead, if any.
    """

    def __init__(
        self,
        around: Surroundings,
        origin: Origin,
        client: Downstream,
        calibration: CalibrationPolicy,
        who: str,
    ) -> None:
        """`who` names tenant and model, for the side calls that are made in their name."""
        self._around = around
        self._origin = origin
        self._client = client
        self._calibration = calibration
        self._who = who
        self._reply: Reply | None = None
        self._already = b""
        self.chain: tuple[str, ...] = ()
        self.kept: tuple[str, ...] = ()
        self.prepared = ""
        self.spent: dict[str, float] = {}

    async def run(self, course: Exchange) -> Verdict:
        """Drive the exchange to its end. Raises what a command raises, and what the exchange itself raises."""
        try:
            command = next(course)
            while True:
                command = course.send(await self._timed(command))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        finally:
            course.close()

    def close(self) -> None:
        """End the reply that is open, if any."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    async def _timed(self, command: Command) -> Outcome:
        began = self._around.clock()
        try:
            return await self._perform(command)
        finally:
            kind = type(command).__name__.lower()
            self.spent[kind] = self.spent.get(kind, 0.0) + self._around.clock() - began

    def _perform(self, command: Command) -> Awaitable[Outcome]:
        match command:
            case LookUp() | Discover() | Measure() | Count():
                return self._find_out(command)
            case Ask():
                return self._around.summaries.get(command, self._who, self._origin)
            case Prepare():
                return self._prepare(command)
            case Save():
                return self._around.memories.save(command.key, command.edits, replaces=command.replaces)
            case Send():
                return self._send(command)
            case Relay():
                return self._relay(command)
            case Learn():
                return self._around.memories.learn(command, self._calibration)
            case _:
                assert_never(command)

    def _find_out(self, question: Question) -> Awaitable[Outcome]:
        match question:
            case LookUp():
                return self._recall(question)
            case Discover():
                return self._discover(question)
            case Measure():
                return self._measure(question)
            case Count():
                return self._count(question)
            case _:
                assert_never(question)

    async def _recall(self, command: LookUp) -> Memory:
        self.chain = command.chain
        memory = await self._around.memories.recall(
            command.model, command.chain, command.opening, command.who
        )
        self.kept = memory.kept
        matched = bool(memory.edits or memory.summaries)
        self._around.summaries.note_history(self._who, command.digests, matched=matched)
        return memory

    async def _discover(self, command: Discover) -> Discovered:
        return Discovered(await self._around.discovery.window(self._who, command.model, self._origin))

    async def _count(self, command: Count) -> Counted:
        counts = self._around.counts
        return Counted(await counts.count(self._who, command.model, command.body, self._origin))

    async def _prepare(self, command: Prepare) -> None:
        self.prepared = command.order.key
        self._around.summaries.prepare(command, self._who, self._origin)

    async def _measure(self, command: Measure) -> Measured:
        sizes, extras = await self._around.tokenizer.sizes(command.messages, command.extras, command.model)
        return Measured(sizes, extras)

    async def _send(self, command: Send) -> Accepted | Refused:
        self.close()
        around, origin = self._around, self._origin
        fields = headers.for_upstream(
            origin.fields, length=len(command.body), unencoded=command.unencoded, key=around.key
        )
        url = headers.join(around.base, origin.path, origin.query)
        self._reply = reply = await around.upstream.call("POST", url, fields, command.body)
        self._already = b""
        if reply.status < 400:
            return await self._begun(reply) if command.peeks else Accepted(reply.status)
        self._already = await _beginning(reply)
        return Refused(reply.status, _decoded(reply, self._already))

    async def _begun(self, reply: Reply) -> Accepted | Refused:
        """A stream whose first event is an error is a refusal. What has been read is relayed before the rest."""
        kind = headers.find(reply.headers, b"content-type") or b""
        if b"event-stream" not in kind.lower() or headers.is_encoded(reply.headers):
            return Accepted(reply.status)
        observer, failed = Observer(), None
        while failed is None and not observer.frames and (chunk := await reply.chunk()):
            self._already += chunk
            failed = _failure_at_once(observer, chunk)
            if len(self._already) > FIRST_EVENT_BYTES or self._already.startswith(b":"):
                break
        return Accepted(reply.status) if failed is None else Refused(reply.status, failed)

    async def _relay(self, command: Relay) -> Relayed:
        reply = self._reply
        if reply is None:
            raise RuntimeError("An exchange relays only after it has sent.")
        rewrites = command.strip_usage and _may_shrink(reply)
        tap = UsageTap(strips=rewrites) if _is_readable(reply) else None
        complete = await relay(
            reply, self._client, added=command.headers, already=self._already, tap=tap, rewrites=rewrites
        )
        return Relayed(tap.usage if tap else None, complete)


class UsageTap:
    """Reads the usage of an answer that goes by, as a stream or as one document, whichever it turns out to be.

    Servers answer streams with documents, documents with streams, and label either as the other (B89), so the first
    byte that says something decides. `strips` takes usage-only events out.
    """

    def __init__(self, *, strips: bool) -> None:
        self._events = UsageFilter() if strips else Observer()
        self._is_document: bool | None = None
        self._document: list[bytes] = []
        self._room = DOCUMENT_BYTES
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes; those that go on."""
        if self._is_document is None:
            start = chunk.removeprefix(_BOM).lstrip()
            if not start:
                return chunk  # blank lines, which some send to keep a connection busy
            self._is_document = start.startswith(_DOCUMENT_STARTS)
        if not self._is_document:
            return self._events.feed(chunk)
        self._room -= len(chunk)
        if self._room >= 0:
            self._document.append(chunk)
        return chunk

    def end(self) -> bytes:
        """Nothing more comes; the bytes that still go on."""
        if not self._is_document:
            rest = self._events.end()
            self.usage = self._events.usage
            return rest
        if self._room >= 0:
            self.usage = chat.usage_of(b"".join(self._document))
        return b""


def _failure_at_once(observer: Observer, chunk: bytes) -> bytes | None:
    """The data of an error event before which nothing was said."""
    for event in _EVENT.findall(chunk):
        had_started = observer.started
        observer.feed(event)
        if observer.error is not None or observer.started:
            return None if had_started else observer.error
    return None


_EVENT: Final = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
"""Up to the next blank line, or to the end of the chunk."""


def _decoded(reply: Reply, body: bytes) -> bytes:
    """A refusal as it can be judged; what is relayed are the upstream's own bytes."""
    encoding = (headers.find(reply.headers, b"content-encoding") or b"").strip().lower()
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        return body
    try:
        return zlib.decompressobj(_ANY_ZLIB).decompress(body, REFUSAL_BYTES)
    except zlib.error:
        return body


_ANY_ZLIB: Final = 47
"""zlib's word for a gzip or zlib header, whichever there is."""

_BOM: Final = b"\xef\xbb\xbf"
_DOCUMENT_STARTS: Final = (b"{", b"[", b"<", b'"')
"""JSON or HTML. No line of an event stream that means anything begins so."""


async def _beginning(reply: Reply) -> bytes:
    """A refusal's body, or as much of it as is read; relaying goes on behind it, also where it broke off."""
    pieces: list[bytes] = []
    size = 0
    try:
        while size < REFUSAL_BYTES and (piece := await reply.chunk()):
            pieces.append(piece)
            size += len(piece)
    except TransomError:
        pass  # the reply raises it again when it is relayed
    return b"".join(pieces)


def _is_readable(reply: Reply) -> bool:
    """Whether usage may be looked for: the answer is no error, and its bytes are not compressed."""
    return reply.status < 400 and not headers.is_encoded(reply.headers)


def _may_shrink(reply: Reply) -> bool:
    """Whether an event may be taken out: the answer is readable and its length not promised, or a stream's."""
    if not _is_readable(reply):
        return False
    if headers.find(reply.headers, b"content-length") is None:
        return True
    return b"event-stream" in (headers.find(reply.headers, b"content-type") or b"").lower()
