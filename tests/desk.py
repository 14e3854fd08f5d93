"""A scripted edge: performs an exchange's commands with values, and remembers which came."""

import json
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from proxy import exchange
from proxy.context import calibration, summary, tokens
from proxy.context.budget import Window
from proxy.context.calibration import UNCALIBRATED, Anchor, Calibration, CalibrationPolicy
from proxy.context.edits import Edits, decode, encode
from proxy.context.policy import Mode, ModelPolicy
from proxy.context.reader import Reader
from proxy.exchange import (
    Accepted,
    Ask,
    Command,
    Compaction,
    Count,
    Counted,
    Discover,
    Discovered,
    Learn,
    LookUp,
    Measure,
    Measured,
    Measurement,
    Memory,
    Order,
    Outcome,
    Pause,
    Prepare,
    Question,
    Refused,
    Relay,
    Relayed,
    Save,
    Send,
    SideCallFailed,
    Summarised,
    Terms,
    Verdict,
)
from proxy.exchange.commands import NO_WINDOW
from proxy.wire import chat
from proxy.wire.usage import Usage

T = TypeVar("T")


def about(order: Order) -> str:
    """A word of what a summary is asked of, which no summary is without."""
    return next(iter(re.findall(r"[^\W_]{4,}|[^\W_]{2}", order.given.shown)), "")


GOES_ON = "(and so on, in as many words as it takes)"


def count(text: str) -> int:
    """Four characters a token."""
    return -(-len(text) // 4)


@dataclass
class Desk:
    """`summaries` and `answers` are used up in order; afterwards the last one is given again.

    A summary that is a `SideCallFailed` fails the side call; `reported` maps the tokens that were really sent to those
    that the upstream reports.
    """

    policy: ModelPolicy
    summaries: Sequence[str | SideCallFailed] = ("a summary",)
    answers: Sequence[Accepted | Refused] = (Accepted(200),)
    usage: Usage | None = None
    complete: bool = True
    mode: Mode = Mode.MANAGE
    on_save: Edits | None = None
    reader: Reader = field(default_factory=Reader)
    done: list[Command] = field(default_factory=list)
    checkpoints: dict[str, Edits] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    side_calls: int = 0
    waited_for: int = 0
    last_order_characters: int = 0
    may_ask: bool = True
    calibration: Calibration = UNCALIBRATED
    anchors: dict[str, tuple[Anchor, ...]] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    discovered: Window | None = None
    counted: int | None = None
    refuses_usage: bool = False

    def run(self, body: bytes) -> Verdict:
        """One whole exchange."""
        return self._driven(exchange.manage(chat.read(body, self.reader), self.terms))

    @property
    def terms(self) -> Terms:
        """The same for all requests."""
        return Terms(self.policy, self.mode, "http://upstream", "tenant", self.count)

    def measure(self, body: bytes) -> Measurement:
        """What this body measures."""
        terms = replace(self.terms, told=self.discovered)
        return self._driven(exchange.measure(chat.read(body, self.reader), terms))

    def compact(self, body: bytes) -> Compaction:
        """What this body becomes when it is compacted."""
        terms = replace(self.terms, told=self.discovered)
        return self._driven(exchange.compact(chat.read(body, self.reader), terms))

    def _driven(self, course: Generator[Any, Outcome, T]) -> T:
        """What a course comes to, each of its commands performed."""
        outcome: Outcome = None
        while True:
            try:
                command = course.send(outcome)
            except StopIteration as end:
                found: T = end.value
                return found
            self.done.append(command)
            outcome = self.perform(command)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return count(text)

    def perform(self, command: Command) -> Outcome:
        """The outcome of one command."""
        match command:
            case LookUp() | Discover() | Measure() | Count() | Pause():
                return self.find_out(command)
            case Ask(order=order):
                self.waited_for += 1
                return self.summarise(order)
            case Prepare(order=order):
                self.summarise(order)
                return None
            case Save():
                return self.save(command)
            case Send():
                return self.answers[min(len(self.sent), len(self.answers)) - 1]
            case Relay():
                return Relayed(self.usage, self.complete)
            case Learn():
                self.learn(command)
                return None

    def find_out(self, question: Question | Pause) -> Outcome:
        """What is known, measured or told."""
        match question:
            case LookUp():
                return self.memory(question)
            case Discover():
                return Discovered(self.discovered)
            case Measure(messages=messages, extras=extras):
                sizes = tuple(tokens.message_size(message, count, "") for message in messages)
                return Measured(sizes, tokens.extras_size(extras, count, ""))
            case Count():
                return Counted(self.counted)
            case Pause():
                return None

    def save(self, command: Save) -> Edits:
        """The edits that are there then."""
        if command.replaces:
            self.checkpoints[command.key] = command.edits
            return command.edits
        return self.checkpoints.setdefault(command.key, self.on_save or command.edits)

    def memory(self, command: LookUp) -> Memory:
        found = [key for key in command.chain if key in self.checkpoints]
        memory = Memory(
            summaries={key: text for key, text in self.stored.items() if key in command.chain},
            may_ask=self.may_ask,
            calibration=self.calibration,
            anchors=self.anchors.get(command.opening, ()),
            window=self.windows.get(command.who),
            refuses_usage=self.refuses_usage,
        )
        return (
            replace(memory, edits=self.checkpoints[found[-1]], checkpoint_id=found[-1]) if found else memory
        )

    def summarise(self, order: Order) -> Outcome:
        """What the real edge does: makes the call, judges the answer, and stores a summary that passes."""
        self.side_calls += 1
        self.last_order_characters = order.given.characters
        given = self.answer_to(order)
        if isinstance(given, SideCallFailed):
            return given
        judged = summary.accept(given, order.given)
        if isinstance(judged, summary.Rejected):
            return SideCallFailed(judged.reason)
        self.stored[order.key] = judged
        return Summarised(order.key, judged, None)

    def answer_to(self, order: Order) -> str | SideCallFailed:
        """The summary model's answer; a text goes on for as long as a summary has at least, in sections if it must."""
        given = self.summaries[min(self.side_calls, len(self.summaries)) - 1]
        says = isinstance(given, str) and given and given[0] != "<"
        title = "Task: " if order.given.in_sections else ""
        return f"{title}{given} {GOES_ON} {about(order)}" if says else given

    def learn(self, command: Learn) -> None:
        self.refuses_usage |= command.refuses_usage
        if command.window is not None:
            self.windows[command.who] = command.window
            if command.window == NO_WINDOW:
                del self.windows[command.who]
        if command.anchors:
            self.anchors[command.opening] = command.anchors
        known = self.calibration
        self.calibration = calibration.learn(
            known, command.raw_tokens, command.reported_tokens, CalibrationPolicy()
        )

    @property
    def sent(self) -> list[bytes]:
        """The bodies of the main calls."""
        return [command.body for command in self.done if isinstance(command, Send)]

    @property
    def asked(self) -> list[Any]:
        """The bodies of the side calls that a request waited for, decoded."""
        return [json.loads(command.order.body) for command in self.done if isinstance(command, Ask)]

    @property
    def prepared(self) -> list[Any]:
        """The bodies of the side calls that were made ahead, decoded."""
        return [json.loads(command.order.body) for command in self.done if isinstance(command, Prepare)]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last answer."""
        return dict([command for command in self.done if isinstance(command, Relay)][-1].headers)


def stored(edits: Edits) -> Edits:
    """Edits after a round trip through a store."""
    found = decode(encode(edits))
    assert found is not None
    return found
