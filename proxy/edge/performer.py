"""Performs what an exchange asks for, one command after the other, for one request.

Rules. Nothing is decided here: the exchange says what, this file does it and sends back what came of it. At most one
reply is open at a time, and `close` ends it whatever happened. A refusal is read, within a bound, before anything of
it is relayed; then it is relayed verbatim, unless another call was made instead. Foreign errors are not caught here.
Our own work may take so long and no longer: what is awaited of it is cut off then, and planning at its next pause.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from proxy.context.budget import Window
from proxy.context.calibration import CalibrationPolicy
from proxy.context.conversation import Message
from proxy.context.edits import Edits
from proxy.context.tokens import Size
from proxy.edge import encodings, headers, usagetap
from proxy.edge.afterwards import Afterwards
from proxy.edge.captures import Captures
from proxy.edge.connections import Ends
from proxy.edge.counts import Counts
from proxy.edge.downstream import Downstream, relay
from proxy.edge.encodings import Decoder, Received, Undecodable, answer_bound
from proxy.edge.headers import Base
from proxy.edge.ledger import Ledger
from proxy.edge.metrics import Added, Metrics
from proxy.edge.readiness import Readiness
from proxy.edge.sidecalls import Origin
from proxy.edge.summaries import Summaries
from proxy.edge.upstream import Reply, Upstream
from proxy.edge.watch import Watch
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
    Pause,
    Prepare,
    Refused,
    Relay,
    Relayed,
    Save,
    Send,
    Verdict,
)
from proxy.wire.sse import Observer

if TYPE_CHECKING:  # it is read only where requests are traced
    from proxy.edge.tracing import Tracing

T = TypeVar("T")

REFUSAL_BYTES: Final = 1024 * 1024
"""So much of a refusal's body is read before it is relayed; real ones have a few hundred bytes."""

REFUSAL_SECONDS: Final = 5.0
"""So long its end is waited for; one that comes drop by drop is relayed from then on."""

FIRST_EVENT_BYTES: Final = 64 * 1024
"""So much of a stream is waited for to see whether its first event is an error."""


PLAN: Final = "plan"
"""What is done between two commands, as a bypass tells it."""


class Overdue(Exception):
    """Our own work took longer than it may."""


async def in_time(work: Coroutine[Any, Any, T], until: float) -> T:
    """What comes of it by then, by the loop's clock; what need not wait for anything is never late. Raises Overdue."""
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        done: T = end.value
        return done  # nearly always, and then no timer was set
    bound = asyncio.timeout_at(until)
    try:
        async with bound:
            return await _Begun(work, waits_for)
    except TimeoutError as late:
        if not bound.expired():
            raise
        raise Overdue from late


class _Begun(Generator[Any, Any, T]):
    """What is awaited has taken its first step already, and waits for this."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for
        self._is_first = True

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, outcome: Any) -> Any:
        """Go on; at first hand out what was waited for."""
        if self._is_first:
            self._is_first = False
            return self._waits_for
        return self._work.send(outcome)

    def throw(self, *thrown: Any) -> Any:
        """Go on by an exception, a cancellation for one."""
        return self._work.throw(*thrown)


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
    """What all requests share. `key` is the configured credential or empty, `ends` those of all calls.

    `clock` tells the loop's seconds, by which it wakes; some loops' stand still between their turns, so `stopwatch`
    tells those that something took. `deadline`: seconds that our own work on one request may take, all waiting for
    others left out. `afterwards` has done what can wait. `tracing`: None where nothing is traced.
    """

    upstream: Upstream
    base: Base
    key: str
    ends: Ends
    summaries: Summaries
    tokenizer: Measures
    memories: Remembers
    discovery: Discovers
    counts: Counts
    ledger: Ledger
    metrics: Metrics
    readiness: Readiness
    watch: Watch
    captures: Captures
    clock: Callable[[], float]
    stopwatch: Callable[[], float]
    deadline: float
    afterwards: Afterwards
    tracing: "Tracing | None" = None


class Performer:
    """Performs the commands of one exchange.

    `spent` tells the seconds by kind of command, `chain` the names of the history's prefixes once they are known,
    `kept` those under which something was stored, `prepared` those one of which is being summarised ahead,
    `unread` why the usage of an answer could not be read, a fixed word or empty, `doing` what is under way: one
    of the reasons in the table of deeds, or PLAN. `verdict` is the newest that there is, whatever became of the
    request, `added` what the proxy took of its time, once the main call was made, and `sent` that call's body.
    """

    # What each begins with: only what becomes otherwise is written down.
    chain: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    unread = ""
    doing = PLAN
    verdict: Verdict | None = None
    sent = b""
    _reply: Reply | None = None
    _already = b""
    _relays = False
    _before: float | None = None

    def __init__(
        self,
        around: Surroundings,
        origin: Origin,
        body: Received,
        client: Downstream,
        calibration: CalibrationPolicy,
        who: str,
    ) -> None:
        """`body` is the client's, `who` names tenant and model, for the side calls that are made in their name."""
        self._around = around
        self._origin = origin
        self._body = body
        self._client = client
        self._calibration = calibration
        self._who = who
        self.spent: dict[str, float] = {}
        self._began = self._until = self._answered_at = 0.0

    @property
    def added(self) -> Added | None:
        """What the proxy took of the time; None where no main call was made."""
        if self._before is None:
            return None
        return Added(self._before, self._around.stopwatch() - self._answered_at)

    async def run(self, course: Exchange, began: float) -> Verdict:
        """Drive the exchange to its end. Raises what a command raises, `Overdue` too, and what the exchange raises.

        `began` is when our work on the request did, by the stopwatch.
        """
        self._began = began
        around = self._around
        self._until = around.clock() + around.deadline - (around.stopwatch() - began)
        try:
            command = next(course)
            while True:
                if type(command) is Pause:
                    outcome: Outcome = None
                    await self._pause()
                else:
                    deed, begins = DEEDS[type(command)], around.stopwatch()
                    self.doing = deed.reason
                    try:
                        done = deed.perform(self, command)
                        outcome = await (in_time(done, self._until) if deed.is_ours else done)
                    finally:
                        self._note(deed, begins, around.stopwatch())
                self.doing = PLAN
                command = course.send(outcome)
        except StopIteration as end:
            verdict: Verdict = end.value
            self.verdict = verdict
            return verdict
        finally:
            course.close()

    def close(self) -> None:
        """End the reply that is open, if any."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    async def fall_back(self, added: Iterable[tuple[str, str]]) -> bool:
        """Relay the refusal that is waiting, if one is; what of an answer was being relayed cannot be said again."""
        if self._reply is None or self._relays:
            return False
        await relay(self._reply, self._client, added=added, already=self._already)
        return True

    async def _pause(self) -> None:
        """Let others have a turn. There may be many, so no timer is set for one."""
        if self._around.clock() > self._until:
            raise Overdue
        await asyncio.sleep(0)

    def _note(self, deed: "_Deed", began: float, ended: float) -> None:
        """Take in what the time went to. What others took of it is not ours to answer for."""
        took = ended - began
        self.spent[deed.kind] = self.spent.get(deed.kind, 0.0) + took
        if not deed.is_ours:
            self._until += took
        if deed.answers:
            self._answered_at = ended

    def _get(self, command: Ask) -> Coroutine[Any, Any, Outcome]:
        waited = self.spent.get("ask", 0.0)
        return self._around.summaries.get(command, self._who, self._origin, waited)

    def _save(self, command: Save) -> Coroutine[Any, Any, Outcome]:
        return self._around.memories.save(command.key, command.edits, replaces=command.replaces)

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

    async def _learn(self, command: Learn) -> None:
        if command.miscounts:
            self._around.counts.distrust(self._who)
        await self._around.memories.learn(command, self._calibration)

    async def _prepare(self, command: Prepare) -> None:
        self.prepared = command.order.keys
        self._around.summaries.prepare(command, self._who, self._origin)

    async def _measure(self, command: Measure) -> Measured:
        sizes, extras = await self._around.tokenizer.sizes(command.messages, command.extras, command.model)
        return Measured(sizes, extras)

    async def _send(self, command: Send) -> Accepted | Refused:
        if self._reply is not None:
            self.close()
        around, origin = self._around, self._origin
        self._before = around.stopwatch() - self._began - self.spent.get("send", 0.0)
        self.verdict, self.sent = command.verdict, command.body
        # What need not change goes on as it was encoded; what changes is not encoded again.
        is_as_it_came = command.body is self._body.plain or command.body == self._body.plain
        body = self._body.raw if is_as_it_came else command.body
        fields = headers.for_upstream(
            origin.fields,
            length=len(body),
            decoded=self._body.is_encoded and not is_as_it_came,
            unencoded=command.unencoded,
            key=around.key,
        )
        url = headers.join(around.base, origin.path, origin.query)
        self._reply = reply = await around.upstream.call("POST", url, fields, body)
        self._already = b""
        if reply.status < 400:
            return await self._begun(reply) if command.peeks else Accepted(reply.status)
        self._already = await _beginning(reply)
        read = await encodings.beginning(self._already, headers.codings(reply.headers), REFUSAL_BYTES)
        return Refused(reply.status, read)

    async def _begun(self, reply: Reply) -> Accepted | Refused:
        """A stream whose first event is an error is a refusal. What has been read is relayed before the rest."""
        kind = headers.find(reply.headers, b"content-type") or b""
        failed = None
        if b"event-stream" in kind.lower():
            with suppress(Undecodable):  # then nobody can tell
                failed = await self._first_failure(reply, Decoder(headers.codings(reply.headers), _PEEK))
        return Accepted(reply.status) if failed is None else Refused(reply.status, failed)

    async def _first_failure(self, reply: Reply, decoder: Decoder) -> bytes | None:
        observer, failed, read = Observer(), None, b""
        while failed is None and not observer.frames and (chunk := await reply.chunk()):
            self._already += chunk
            plain = b"".join(decoder.pieces(chunk))
            read += plain
            failed = _failure_at_once(observer, plain)
            if max(len(read), len(self._already)) > FIRST_EVENT_BYTES or read.startswith(b":"):
                break
        return failed

    async def _relay(self, command: Relay) -> Relayed:
        reply = self._reply
        if reply is None:
            raise RuntimeError("An exchange relays only after it has sent.")
        self._relays = True
        codings = headers.codings(reply.headers)
        rewrites = command.strip_usage and not codings and _may_shrink(reply)
        tap = usagetap.tap(codings, strips=rewrites) if reply.status < 400 else None
        complete = await relay(
            reply, self._client, added=command.headers, already=self._already, tap=tap, rewrites=rewrites
        )
        if tap is None:
            return Relayed(None, complete)
        self.unread = "cut_behind" if headers.was_cut_behind(reply.headers) else tap.unread
        # What was counted of another prompt than ours would teach what is wrong.
        return Relayed(None if self.unread else tap.usage, complete)


class _Deed(NamedTuple):
    """How a kind of command is performed.

    kind     its name in what is told of the time that was spent
    reason   in what the exchange has failed where it fails, as a bypass tells it
    is_ours  it waits for nobody but ourselves; side calls, questions and calls have bounds of their own
    answers  it is of the answer that the client waits for
    """

    kind: str
    reason: str
    perform: Callable[[Performer, Any], Coroutine[Any, Any, Outcome]]
    is_ours: bool = False
    answers: bool = False


DEEDS: Final[Mapping[type[Command], _Deed]] = MappingProxyType(
    {
        LookUp: _Deed("lookup", "store", Performer._recall, is_ours=True),
        Discover: _Deed("discover", "discover", Performer._discover),
        Measure: _Deed("measure", "measure", Performer._measure, is_ours=True),
        Count: _Deed("count", "measure", Performer._count),
        Ask: _Deed("ask", "side_call", Performer._get),
        Prepare: _Deed("prepare", "side_call", Performer._prepare),
        Save: _Deed("save", "store", Performer._save, is_ours=True),
        Learn: _Deed("learn", "store", Performer._learn, is_ours=True),
        Send: _Deed("send", "internal_error", Performer._send, answers=True),
        Relay: _Deed("relay", "internal_error", Performer._relay, answers=True),
    }
)
"""All kinds of command but a pause, which nothing is told of."""

_PEEK: Final = answer_bound(FIRST_EVENT_BYTES)


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


async def _beginning(reply: Reply) -> bytes:
    """A refusal's body, or as much of it as is read; relaying goes on behind it, also where it broke off."""
    pieces: list[bytes] = []
    size = 0
    # What broke off the reply raises again when it is relayed.
    with suppress(TransomError, TimeoutError):
        async with asyncio.timeout(REFUSAL_SECONDS):
            while size < REFUSAL_BYTES and (piece := await reply.chunk()):
                pieces.append(piece)
                size += len(piece)
    return b"".join(pieces)


def _may_shrink(reply: Reply) -> bool:
    """Whether an event may be taken out of a plain answer: no error, and its length not promised or a stream's."""
    if reply.status >= 400:
        return False
    if headers.find(reply.headers, b"content-length") is None:
        return True
    return b"event-stream" in (headers.find(reply.headers, b"content-type") or b"").lower()
