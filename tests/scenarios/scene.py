"""A stateless client, the exchange that serves, and strict servers of three tempers behind it, without sockets.

Rules. Whatever is sent through a scene is held against the promises of a view, against the client's own body beside
the messages, and against all three servers: each must take what was forwarded if it would have taken the shape of the
client's request. Both sides count four characters a token, by arithmetics of their own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from proxy.context import invariants
from proxy.context.conversation import Conversation
from proxy.context.policy import ElidePolicy, Mode, ModelPolicy, SummaryPolicy
from proxy.context.reader import Reader
from proxy.context.repair import repair
from proxy.demo.rules import Memory, Refusal, Temper, judge
from proxy.exchange import Order, Save, SideCallFailed, Verdict
from proxy.wire import chat
from tests.desk import Desk, about, count
from tests.scenarios.messages import Message

TEMPERS: Final = (Temper.OPENAI, Temper.TEMPLATE, Temper.MISTRAL)
BOUNDLESS: Final = 1 << 50
"""A window in tokens that everything fits: then a server judges the shape alone."""

ROOM_FOR_SIDE_CALL: Final = 1000
"""Tokens of a window that holds the order for a summary and something to write it of."""

WINDOW: Final = 2000
POLICY: Final = ModelPolicy(
    window=WINDOW,
    reserve_output=200,
    compact_at=0.95,
    compact_to=0.4,
    keep_user_tokens=0,
    elide=ElidePolicy(keep=2),
    summary=SummaryPolicy(keep_recent=0.2, keep_turns=1, max_tokens=128, prepare_at=0),
)
"""Spelt out where a default may be tuned, so that these scenarios stay what they are. Tokens."""

LADDERS: Final = (
    ("images", "elide", "summarize", "drop", "shorten"),
    ("summarize", "elide", "drop", "shorten"),
    ("drop", "shorten"),
    ("shorten", "drop", "summarize", "elide", "images"),
)
"""Orders of the steps that all can make a prompt fit."""

MAY_CHANGE: Final = frozenset({"max_tokens", "max_completion_tokens", "stream_options"})
"""What may be changed beside the messages; each has tests of its own."""


@dataclass(frozen=True)
class Sent:
    """One request: the client's bytes, those forwarded, the decoded side calls, and how many edits were stored.

    What is decoded here is decoded once and shared.
    """

    original: bytes
    raw: bytes
    verdict: Verdict
    side_calls: tuple[Any, ...]
    saved: int

    @cached_property
    def request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads(self.original)
        return request

    @cached_property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.raw)
        return body

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def is_untouched(self) -> bool:
        return self.raw == self.original

    @property
    def tokens(self) -> int:
        """The estimate of what was forwarded; that of its bytes where it was so small that nobody counted."""
        return count(self.raw.decode()) if self.verdict.forwarded is None else self.verdict.forwarded

    def of_role(self, role: str) -> list[dict[str, Any]]:
        """The forwarded messages of this role."""
        return [message for message in self.messages if message.get("role") == role]

    def transcripts(self) -> list[str]:
        """What the side calls were shown."""
        return [call["messages"][1]["content"] for call in self.side_calls]

    def done(self) -> dict[str, int]:
        """What was done, by the name of the strategy or of the changed member."""
        pairs = [action.partition("=") for action in self.verdict.actions.split(",")]
        return {name: int(number) for name, _, number in pairs if number.isdigit()}


@dataclass
class Writer(Desk):
    """A desk whose summaries are numbered; with `fails` there are none."""

    fails: bool = False

    def answer_to(self, order: Order) -> str | SideCallFailed:
        if self.fails:
            return SideCallFailed("status_500")
        return f"{MEMORY} {self.side_calls}, written of what was said before: {about(order)}."


MEMORY: Final = "This is memory number"


@dataclass
class Scene:
    """One client and everything behind it, for as many requests as the client's conversation has."""

    policy: ModelPolicy = POLICY
    fails: bool = False
    mode: Mode = Mode.MANAGE
    desk: Writer = field(init=False)
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.desk = Writer(self.policy, mode=self.mode, fails=self.fails)

    def send(self, messages: Sequence[Message], *, fits: bool = True, **fields: Any) -> Sent:
        """One request, judged. Where what must stay exceeds the window, `fits` is False: then its shape is judged."""
        sent = self.sent(messages, **fields)
        window = (self.policy.window or BOUNDLESS) if fits else BOUNDLESS
        faults = list(_faults(sent, self.policy, window, self.memory))
        assert not faults, "\n".join([sent.verdict.actions, *faults])
        return sent

    def sent(self, messages: Sequence[Message], **fields: Any) -> Sent:
        """One request, unjudged."""
        return self.run(encoded({"model": "m", "messages": list(messages), **fields}))

    def run(self, original: bytes) -> Sent:
        """One request of these bytes, unjudged."""
        self.desk.done.clear()
        verdict = self.desk.run(original)
        [raw] = self.desk.sent
        saved = sum(isinstance(command, Save) for command in self.desk.done)
        return Sent(original, raw, verdict, (*self.desk.asked, *self.desk.prepared), saved)


def once(
    messages: Sequence[Message], policy: ModelPolicy = POLICY, *, fits: bool = True, **fields: Any
) -> Sent:
    """The only request of a client, judged."""
    return Scene(policy).send(messages, fits=fits, **fields)


def _faults(sent: Sent, policy: ModelPolicy, window: int, memory: Memory) -> Iterator[str]:
    """All that is wrong with what was forwarded."""
    asked, given = (
        {name: value for name, value in body.items() if name != "messages"}
        for body in (sent.request, sent.body)
    )
    changed = {name for name in asked | given if asked.get(name) != given.get(name)} - MAY_CHANGE
    yield from (f"{name} was changed" for name in changed)
    yield from broken(sent, policy)
    yield from unpaired(sent.messages) if policy.repair else ()
    if sent.verdict.original is not None and sent.tokens > sent.verdict.original:
        yield f"{sent.tokens} tokens were made of {sent.verdict.original}"
    for side_call in sent.side_calls:
        room = window if window >= ROOM_FOR_SIDE_CALL else BOUNDLESS
        complaints = (refusal(side_call, room, temper, memory) for temper in TEMPERS)
        yield from (f"side call: {complaint}" for complaint in complaints if complaint)
    said = refusals(sent, window, takers(sent.request, memory), memory)
    yield from (f"{temper}: {complaint}" for temper, complaint in said.items())


def askings(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The requests of a client that comes to have these messages: behind each question, and behind all results."""
    for stop, (message, following) in enumerate(pairwise([*messages, {"role": "end"}]), 1):
        asks = message["role"] == "user" or (message["role"] == "tool" and following["role"] != "tool")
        if asks or stop == len(messages):
            yield messages[:stop]


def encoded(request: Mapping[str, Any]) -> bytes:
    """The bytes that a client sends."""
    return json.dumps(request).encode()


def conversation(body: bytes) -> Conversation:
    """The conversation of a body, read afresh."""
    return chat.read(body, Reader()).conversation


def broken(sent: Sent, policy: ModelPolicy) -> list[str]:
    """The promises that what was forwarded breaks, held against the client's conversation in sound order."""
    original = conversation(sent.original)
    if policy.repair:
        original, _ = repair(original, policy.orphans)
    messages, head = conversation(sent.raw).messages, len(original.head)
    # The block may be a system message directly behind the head, of which it is no part.
    view = Conversation(messages[:head], messages[head:])
    return invariants.broken(original, view, policy.summary_role)


def unpaired(messages: Sequence[Message]) -> list[str]:
    """Every call without its result directly behind it, and every result without its call, by an own reading."""
    found: list[str] = []
    waiting: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool" and message["tool_call_id"] in waiting:
            waiting.remove(message["tool_call_id"])
        elif message["role"] == "tool":
            found.append(f"result of {message['tool_call_id']} without its call")
        else:
            found += [f"call {each} without its result" for each in waiting]
            waiting = [each["id"] for each in message.get("tool_calls") or ()]
    return found


def refusals(
    sent: Sent, window: int, tempers: Sequence[Temper] = TEMPERS, memory: Memory | None = None
) -> dict[Temper, object]:
    """What servers with this window (tokens) say against what was forwarded.

    An option that was spliced in is left out: who refuses that is asked again without.
    """
    spliced = {"stream_options"} - sent.request.keys()
    body = {name: value for name, value in sent.body.items() if name not in spliced}
    memory = memory or Memory()
    said = {temper: refusal(body, window, temper, memory) for temper in tempers}
    return {temper: complaint for temper, complaint in said.items() if complaint is not None}


def refusal(body: Mapping[str, Any], window: int, temper: Temper, memory: Memory | None = None) -> object:
    """What a server says against a body, None when it takes it."""
    verdict = judge(body, window=window, count=count, temper=temper, memory=memory)
    return verdict.body if isinstance(verdict, Refusal) else None


def takers(request: Mapping[str, Any], memory: Memory | None = None) -> list[Temper]:
    """The servers that take a request, whatever its length."""
    memory = memory or Memory()
    return [temper for temper in TEMPERS if refusal(request, BOUNDLESS, temper, memory) is None]
