"""Recorded conversations, turn by turn, through the exchange to a strict upstream that counts for itself.

Rules. The client is stateless and resends everything, as real ones do; the exchange is the one that serves. The
upstream judges every body and reports its own count, which is what is learned from. The summaries are an even sample
of the lines they were asked about, with a number that differs at every call, so that a mix-up would show.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proxy.context import invariants, rawjson
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import Size, extras_size, message_size
from proxy.demo.counting import Count
from proxy.demo.rules import Accepted as Judged
from proxy.demo.rules import Memory, Refusal, Temper, judge
from proxy.edge.tokenizer import count_with, load_encoding
from proxy.exchange import (
    Accepted,
    Command,
    Measure,
    Measured,
    Order,
    Outcome,
    Refused,
    Relay,
    Relayed,
    Send,
    SideCallFailed,
)
from proxy.wire.usage import Usage
from tests.desk import Desk

SUMMARY_LINES = 12
SUMMARY_LINE_CHARACTERS = 100


@dataclass(frozen=True)
class Recording:
    """One recorded conversation. `raws`: its messages as a client would send them; `replies`: where answers stand."""

    id: str
    raws: tuple[bytes, ...]
    tools: bytes | None
    replies: tuple[int, ...]

    def requests(self) -> Iterator[bytes]:
        """The body before each recorded reply."""
        tools = b"" if self.tools is None else b',"tools":' + self.tools
        for reply in self.replies:
            yield b'{"model":"replayed","messages":[' + b",".join(self.raws[:reply]) + b"]" + tools + b"}"


@dataclass
class Outcomes:
    """What happened to the requests of one conversation."""

    requests: int = 0
    over_window: int = 0
    side_calls: int = 0
    damaged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    refused_without_need: list[str] = field(default_factory=list)
    over_budget: list[str] = field(default_factory=list)


def recordings(folder: Path) -> Iterator[Recording]:
    """All recorded conversations."""
    with (folder / "conversations.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            messages: Sequence[Mapping[str, Any]] = row["messages"]
            replies = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
            tools = rawjson.encode(row["tools"]) if row.get("tools") else None
            yield Recording(row["id"], tuple(rawjson.encode(m) for m in messages), tools, tuple(replies))


class Sizes:
    """Counting by o200k_base with a memory for messages and for texts; one serves all replays of a run."""

    def __init__(self, count: Count | None = None) -> None:
        self._count = count or partial(count_with, load_encoding("o200k_base"))
        self._texts: dict[bytes, int] = {}
        self._messages: dict[bytes, Size] = {}
        self._extras: dict[tuple[bytes, ...], int] = {}

    def count(self, text: str) -> int:
        """Tokens of a text."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        if key not in self._texts:
            self._texts[key] = self._count(text)
        return self._texts[key]

    def measured(self, command: Measure) -> Measured:
        """The outcome of the command."""
        for message in command.messages:
            if message.raw not in self._messages:
                self._messages[message.raw] = message_size(message, self.count, "")
        if command.extras not in self._extras:
            self._extras[command.extras] = extras_size(command.extras, self.count, "")
        sizes = tuple(self._messages[message.raw] for message in command.messages)
        return Measured(sizes, self._extras[command.extras])


@dataclass
class ReplayDesk(Desk):
    """The scripted edge with a strict upstream behind it."""

    sizes: Sizes = field(default_factory=Sizes)
    window: int = 8192
    temper: Temper = Temper.OPENAI
    upstream_count: Count | None = None
    upstream_memory: Memory = field(default_factory=Memory)
    verdict: Judged | Refusal | None = None
    body: bytes = b""

    def count(self, text: str) -> int:
        return self.sizes.count(text)

    def perform(self, command: Command) -> Outcome:
        match command:
            case Measure():
                return self.sizes.measured(command)
            case Send(body=body):
                return self.judged(body)
            case Relay():
                prompt = self.verdict.prompt_tokens if isinstance(self.verdict, Judged) else None
                return Relayed(Usage(prompt, 1) if prompt else None, complete=True)
            case _:
                return super().perform(command)

    def answer_to(self, order: Order) -> str | SideCallFailed:
        return sampled(json.loads(order.body)["messages"][-1]["content"], self.side_calls)

    def judged(self, body: bytes) -> Outcome:
        self.body = body
        self.verdict = self.upstream(json.loads(body), self.window)
        if isinstance(self.verdict, Refusal):
            return Refused(self.verdict.status, json.dumps(self.verdict.body).encode())
        return Accepted(200)

    def upstream(self, body: Mapping[str, Any], window: int) -> Judged | Refusal:
        """What the upstream says to a body."""
        count = self.upstream_count or self.sizes.count
        return judge(body, window=window, count=count, temper=self.temper, memory=self.upstream_memory)


def sampled(text: str, number: int) -> str:
    """An even sample of a text's lines, but for its fences: what any summariser could at least have kept."""
    lines = [line[:SUMMARY_LINE_CHARACTERS] for line in text.splitlines() if line.strip("= ")]
    step = max(1, len(lines) // SUMMARY_LINES)
    return "\n".join([f"Summary number {number}.", *lines[::step][:SUMMARY_LINES]])


def replay(recording: Recording, desk: ReplayDesk) -> Outcomes:
    """All requests of a conversation, in order, with everything that went wrong."""
    outcomes = Outcomes()
    for body in recording.requests():
        before = desk.side_calls
        verdict = desk.run(body)
        desk.done.clear()
        outcomes.requests += 1
        outcomes.side_calls += desk.side_calls - before
        outcomes.over_window += (verdict.original or 0) > desk.window
        place = f"{recording.id} request {outcomes.requests}"
        if desk.body != body:
            original, view = (
                desk.reader.read(rawjson.elements(_messages(each))) for each in (body, desk.body)
            )
            outcomes.damaged += [f"{place}: {promise}" for promise in invariants.broken(original, view)]
        if isinstance(desk.verdict, Refusal):
            line = f"{place}: least {_least(body, desk)} of {desk.window} tokens: {json.dumps(desk.verdict.body)[:200]}"
            needed = _least(body, desk) > desk.window
            (outcomes.refused if needed else outcomes.refused_without_need).append(line)
    return outcomes


def _messages(body: bytes) -> bytes:
    return rawjson.members(body)["messages"]


def _least(body: bytes, desk: ReplayDesk) -> int:
    """Tokens of what must stay by the upstream's count: head, tools, the newest round and the newest user message."""
    talk = desk.reader.read(rawjson.elements(_messages(body)))
    newest = talk.history[talk.newest_round.start :]
    users = [m for m in talk.history[: talk.newest_round.start] if m.is_user][-1:]
    kept = [*talk.head, *([] if newest[0].is_user else users), *newest]
    fields = {**json.loads(body), "messages": [json.loads(m.raw) for m in kept]}
    judged = judge(
        fields, window=1 << 40, count=desk.upstream_count or desk.sizes.count, temper=Temper.OPENAI
    )
    return judged.prompt_tokens if isinstance(judged, Judged) else 0


def policy_for(window: int) -> ModelPolicy:
    """The defaults at this window."""
    return ModelPolicy(window=window)
