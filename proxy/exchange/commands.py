"""What an exchange asks of the edge, and what it is told in return.

Rules. A command says what is to be done and never how. Each has one kind of outcome, named in its docstring; where an
outcome can fail, the failure is a value of its own. Nothing here holds a credential.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from proxy.context.budget import Window
from proxy.context.calibration import UNCALIBRATED, Anchor, Calibration
from proxy.context.conversation import Message
from proxy.context.edits import Edits
from proxy.context.policy import SummaryMode
from proxy.context.steps import Steps
from proxy.context.summary import Given
from proxy.context.tokens import Size
from proxy.exchange.verdict import Verdict
from proxy.wire.usage import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """Let others have a turn: deciding takes its time. No outcome."""


PAUSE = Pause()


def with_pauses(work: Steps[T]) -> "Generator[Pause, Outcome, T]":
    """What comes of the work, with a pause behind each of its steps."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done
        yield PAUSE


MOST_DIGESTS: Final = 64
"""Messages of a history that are looked up by their digests."""


class LookUp(msgspec.Struct, frozen=True):
    """Find the newest checkpoint on this chain, and what was learned of the model. Outcome: `Memory`."""

    model: str
    chain: tuple[str, ...]
    """Keys of ever longer prefixes of the history, shortest first."""

    digests: tuple[bytes, ...] = ()
    """One for each of the first messages of the history, by which one that slides is told."""

    opening: str = ""
    """The key of the history's first round, under which the counts of its conversation are kept."""

    who: str = ""
    """Names tenant, upstream and model: what refusals proved of the window is kept under it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the stores know. `checkpoint_id` is the key under which `edits` were found.

    `summaries` maps keys of the chain to summaries of the prefixes that they name, written and not yet in force;
    `kept` are all keys of the chain under which anything is stored, shortest prefix first.
    `anchors` are the counts of conversations that begin like this one, the newest first. `window` is the largest that
    answers of late left possible.
    `may_ask` is False where side calls have proved useless or cannot be shared.
    """

    edits: Edits | None = None
    checkpoint_id: str | None = None
    summaries: Mapping[str, str] = field(default_factory=dict)
    may_ask: bool = True
    calibration: Calibration = UNCALIBRATED
    anchors: tuple[Anchor, ...] = ()
    window: Window | None = None
    refuses_usage: bool = False
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Discover:
    """Say what the upstream tells of this model's window, asking it if need be. Outcome: `Discovered`."""

    model: str


@dataclass(frozen=True, slots=True)
class Discovered:
    """The window as the upstream tells it; None where it tells none, or not in time."""

    window: Window | None


@dataclass(frozen=True, slots=True)
class Measure:
    """Count messages, and raw JSON beside them, by the model's encoding. Outcome: `Measured`."""

    model: str
    messages: tuple[Message, ...]
    extras: tuple[bytes, ...] = ()


class Measured(msgspec.Struct, frozen=True):
    """Sizes of the messages in their order, and the tokens of all extras together."""

    sizes: tuple[Size, ...]
    extras: int


@dataclass(frozen=True, slots=True)
class Count:
    """Have the upstream count this body's prompt, where it does such a thing. Outcome: `Counted`."""

    model: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Counted:
    """The upstream's own count; None where it was not to be had."""

    tokens: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """A side call for the summary of the prefix that `key` names; its answer is held against what was given.

    `instead` is another way to ask, for a model or an upstream that cannot be asked like this.
    """

    key: str
    body: bytes
    given: Given
    mode: SummaryMode = SummaryMode.TRANSCRIPT
    instead: "Order | None" = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What its summary may be stored under: asked in the other way, it may be of another prefix."""
        return (self.key, self.instead.key) if self.instead else (self.key,)


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the side call made, or share one under way. Outcome: `Summarised` or `SideCallFailed`.

    A summary of any prefix that `welcome` names will do: it is of this very conversation and goes on from what is in
    force.
    """

    order: Order
    welcome: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the side call made in the background and its summary stored, for the day that it is needed. No outcome."""

    order: Order
    welcome: frozenset[str]


@dataclass(frozen=True, slots=True)
class Summarised:
    """A summary, judged and stored, of the prefix that `key` names. `usage` is that of a call of one's own."""

    key: str
    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class SideCallFailed:
    """No text was to be had; `reason` is a short fixed word, `after` the seconds that the upstream asks to be left
    alone for, where it said so.
    """

    reason: str
    usage: Usage | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Store edits under a key unless something is there. Outcome: the `Edits` that are there then.

    `replaces`: what is there is what these edits were planned from, and gives way to them.
    """

    key: str
    edits: Edits
    replaces: bool = False


class Send(msgspec.Struct, frozen=True):
    """Make the main call. Outcome: `Accepted` or `Refused`. `verdict` is what is known of it so far."""

    body: bytes
    verdict: Verdict
    unencoded: bool
    """Ask for an answer without content-encoding, since an event has to be taken out of it."""

    peeks: bool = False
    """Wait for the beginning of a stream: some servers refuse in its first event, behind status 200."""


class Accepted(msgspec.Struct, frozen=True):
    """The answer's head has come and its body is waiting."""

    status: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, read but not yet relayed: an error answer (status 400 or above), whose body may be cut at the edge's
    limit, or a stream whose first event is an error; `body` is its data then.
    """

    status: int
    body: bytes


class Relay(msgspec.Struct, frozen=True):
    """Relay the answer that is waiting. Outcome: `Relayed`."""

    headers: tuple[tuple[str, str], ...]
    strip_usage: bool


class Relayed(msgspec.Struct, frozen=True):
    """The answer went out. `complete` is False when it broke off."""

    usage: Usage | None
    complete: bool


NO_WINDOW = Window(0, "")
"""Takes back what was proved."""


@dataclass(frozen=True, slots=True)
class Learn:
    """Remember what an answer taught: a pair of token counts, or that the model's upstream refuses `include_usage`.

    `anchors` take the place of those that were found under `opening`; `window` is the largest that this answer left
    possible for `who`. `miscounts`: what the upstream counts before the sending is not what it then reports.
    """

    model: str
    raw_tokens: int | None = None
    reported_tokens: int | None = None
    refuses_usage: bool = False
    opening: str = ""
    anchors: tuple[Anchor, ...] = ()
    who: str = ""
    window: Window | None = None
    miscounts: bool = False


Question = LookUp | Discover | Measure | Count
"""What only finds out."""

Deed = Ask | Prepare | Save | Send | Relay | Learn
Command = Pause | Question | Deed
Outcome = (
    Memory
    | Discovered
    | Measured
    | Counted
    | Summarised
    | SideCallFailed
    | Edits
    | Accepted
    | Refused
    | Relayed
    | None
)


def expect(kind: type[T], outcome: Outcome) -> T:
    """The outcome, which the edge must have sent for the command."""
    if not isinstance(outcome, kind):
        raise TypeError(f"the edge sent {type(outcome).__name__} where {kind.__name__} belongs")
    return outcome
