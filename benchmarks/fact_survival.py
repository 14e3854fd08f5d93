"""Whether a value that the agent needs again is still in the forwarded prompt, and what it costs to have it there.

Run: python -m benchmarks.fact_survival [FOLDER] [--half b] [--windows 8192 16384 32768] [--only NAME ...]
    [--recall 600] [--jobs 2]
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl`, `reuse_probes.jsonl` and `qa_probes.jsonl`.

A reuse probe is a value (a path, an identifier, a date) that a conversation had seen and that a later reply used again.
Each conversation longer than 1.5 windows that has probes is replayed turn by turn, the client resending everything, and
the request that this reply answered is looked at: is the value in what the upstream was sent? Probes at which the
client's own request still fits the window, and those whose value stands in the system head, which no method touches,
say nothing and are left out. A path is there also where one line names its directory and, behind it, its file.

A question probe is asked as a user's message at the end of a long chat; all its answer's words must be in the prompt.
These chats are short, so they are measured at a window of their own (--questions).

  kept %     probes whose value was there; "even" is the mean over the conversations, each counted alike
  carried    tokens of what the proxy wrote of removed messages, mean over the over-window turns, and the largest share
             of the window that it took at any time; what is shown verbatim of the user's is not in it
  recalled   tokens of old passages in the prompt, mean
  extends, re-read, fill, side calls: as in benchmarks.prefix_reuse, over the same turns

The summaries are an even sample of the lines that the side call shows, so what is measured is what the proxy carries by
itself. Tune on one half and report the other.
"""

import argparse
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.prefix_reuse import (
    LONGER,
    Bench,
    KeepLast,
    Managed,
    Meter,
    Method,
    Prompt,
    Sent,
    Spec,
    Tally,
    process_bench,
)
from benchmarks.recorded import Half, messages_of, outgrows
from proxy.context import carried, rawjson, view
from proxy.context.conversation import Conversation, Message
from proxy.context.policy import ModelPolicy, RecallPolicy
from proxy.demo.rules import Refusal
from tests.replay import Recording, recordings

WINDOWS = (8192, 16384, 32768)
QUESTIONS_WINDOW = 1536
"""Tokens; the chats with questions have two to four thousand."""

# --- probes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Values that all have to be in the prompt of the request that the message at `used` answers.

    `question`: asked behind the whole conversation; empty where the request is the client's own.
    """

    used: int
    values: tuple[str, ...]
    question: str = ""


@dataclass(frozen=True)
class Probed:
    """A conversation with its probes, at one window."""

    recording: Recording
    probes: tuple[Probe, ...]
    window: int


def reuse_probes(folder: Path) -> dict[str, list[Probe]]:
    """The probes by conversation."""
    found: dict[str, list[Probe]] = defaultdict(list)
    for row in _rows(folder / "reuse_probes.jsonl"):
        found[row["conv_id"]].append(Probe(row["used_msg"], (row["value"],)))
    return found


def question_probes(folder: Path) -> dict[str, list[Probe]]:
    """The same of the questions."""
    found: dict[str, list[Probe]] = defaultdict(list)
    for row in _rows(folder / "qa_probes.jsonl"):
        found[row["conv_id"]].append(Probe(row["n_msgs"], tuple(row["answer_keys"]), row["question"]))
    return found


def _rows(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def is_there(value: str, text: str) -> bool:
    """Whether a value stands in a text; of a path also its directory and, later in the same line, its file."""
    if value.casefold() in text:
        return True
    directory, slash, name = value.casefold().rpartition("/")
    if not slash:
        return False
    line = rf"^[ \t]*{re.escape(directory)}/[^\n]*(?<![\w.-]){re.escape(name)}(?![\w-])"
    return re.search(line, text, re.MULTILINE) is not None


def text_of(messages: Iterable[Message]) -> str:
    """All that a model reads of these messages, in one case."""
    parts = (part for m in messages for part in (m.text, m.reasoning, *_calls(m)))
    return "\n".join(part for part in parts if part).casefold()


def _calls(message: Message) -> Iterator[str]:
    for call in message.calls:
        yield call.name
        yield call.arguments


# --- replaying --------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """The sums of one method at one window over some conversations."""

    probes: int = 0
    kept: int = 0
    questions: int = 0
    answered: int = 0
    turns: int = 0
    carried: int = 0
    recalled: int = 0
    largest: float = 0.0
    shares: list[float] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def add(self, other: "Kept") -> None:
        self.tally.add(other.tally)
        self.largest = max(self.largest, other.largest)
        for each in fields(self):
            if each.name not in ("tally", "largest"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def share(self) -> float:
        """Share of the probes whose value was there."""
        return self.kept / self.probes if self.probes else 0.0

    @property
    def even(self) -> float:
        """The same with each conversation counted alike."""
        return sum(self.shares) / len(self.shares) if self.shares else 0.0


class Replay:
    """One conversation's way through one method, with an eye on what is in each prompt."""

    def __init__(self, task: Probed, spec: Spec, bench: Bench) -> None:
        self._task = task
        self._bench = bench
        self._method: Method = spec.make(bench, spec.policy, task.window)
        self._meter = Meter(bench.scales)
        self._found = Kept()

    def run(self) -> Kept:
        """All requests, and the probes at theirs."""
        recording = self._task.recording
        self._found.tally.conversations = 1
        for body, reply in zip(recording.requests(), recording.replies, strict=True):
            self._turn(body, reply)
        for probe in self._task.probes:
            if probe.question:
                self._ask(probe)
        if self._found.probes:
            self._found.shares.append(self._found.share)
        return self._found

    def _turn(self, body: bytes, reply: int) -> None:
        client = self._task.recording.raws[:reply]
        sent = self._method.forward(body)
        seen, tools = self._bench.read(sent.body)
        is_over = self._bench.scales.prompt(client, tools) > self._task.window
        self._found.tally.requests += 1
        self._found.tally.over_window += is_over
        self._found.tally.side_calls += len(sent.side_calls)
        self._found.tally.side_tokens += sum(sent.side_calls)
        if isinstance(sent.verdict, Refusal):
            self._found.tally.refused += 1
        else:
            prompt = Prompt(tuple(messages_of(sent.body)), len(seen.head), tools)
            served = self._meter.served(prompt, client)
            if is_over:
                self._found.tally.add(served)
        if is_over:
            self._costs(seen)
            self._probe(seen, reply, sent)

    def _probe(self, seen: Conversation, reply: int, sent: Sent) -> None:
        mine = [each for each in self._task.probes if each.used == reply and not each.question]
        if not mine:
            return
        head = text_of(seen.head)
        text = "" if isinstance(sent.verdict, Refusal) else text_of(seen.messages)
        for probe in mine:
            if not all(value.casefold() in head for value in probe.values):
                self._found.probes += 1
                self._found.kept += all(is_there(value, text) for value in probe.values)

    def _ask(self, probe: Probe) -> None:
        recording = self._task.recording
        asked = rawjson.encode({"role": "user", "content": probe.question})
        raws = (*recording.raws[: probe.used], asked)
        one = replace(recording, raws=raws, replies=(len(raws),))
        sent = self._method.forward(next(one.requests()))
        text = text_of(self._bench.read(sent.body)[0].messages)
        self._found.questions += 1
        self._found.answered += not isinstance(sent.verdict, Refusal) and all(
            is_there(value, text) for value in probe.values
        )

    def _costs(self, seen: Conversation) -> None:
        text = "\n".join(message.text for message in seen.history)
        carry, recalled = (sum(map(self._bench.scales.count, framed(text, each))) for each in FRAMES)
        self._found.turns += 1
        self._found.carried += carry
        self._found.recalled += recalled
        self._found.largest = max(self._found.largest, carry / self._task.window)


FRAMES: Sequence[tuple[str, str]] = (
    (carried.FIRST_LINE, carried.LAST_LINE),
    (view.RECALLED, view.END_OF_RECALLED),
)


def framed(text: str, frame: tuple[str, str]) -> list[str]:
    """The texts between the two ends of a frame, with them."""
    first, last = map(re.escape, frame)
    return re.findall(rf"{first}.*?{last}", text, re.DOTALL)


Cells = dict[tuple[int, str], Kept]


def cells_of(task: Probed, specs: Sequence[Spec], bench: Bench | None = None) -> Cells:
    """One conversation by every method."""
    bench = bench or process_bench()
    if not outgrows(task.recording, LONGER * task.window, bench.scales):
        return {}
    return {(task.window, spec.name): Replay(task, spec, bench).run() for spec in specs}


def tasks_of(folder: Path, half: Half, windows: Sequence[int], questions: int) -> list[Probed]:
    """What there is to replay, longest first."""
    reused, asked = reuse_probes(folder), question_probes(folder)
    taken = [each for each in recordings(folder) if half.holds(each.id)]
    tasks = [
        *(
            Probed(each, tuple(reused[each.id]), window)
            for each in taken
            if each.id in reused
            for window in windows
        ),
        *(Probed(each, tuple(asked[each.id]), questions) for each in taken if each.id in asked),
    ]
    return sorted(tasks, key=lambda task: sum(map(len, task.recording.raws)), reverse=True)


def measured(tasks: Sequence[Probed], specs: Sequence[Spec], jobs: int) -> Cells:
    """The sums, in so many processes."""
    process_bench()
    totals: dict[tuple[int, str], Kept] = defaultdict(Kept)
    work = partial(cells_of, specs=specs)
    if jobs == 1:
        found: Iterable[Cells] = map(work, tasks)
        return _summed(totals, found)
    with ProcessPoolExecutor(jobs) as pool:
        return _summed(totals, pool.map(work, tasks))


def _summed(totals: Cells, results: Iterable[Cells]) -> Cells:
    for cells in results:
        for key, kept in cells.items():
            totals[key].add(kept)
    return totals


# --- the command ------------------------------------------------------------------------------------------

_DEFAULT = ModelPolicy()
_BARE = replace(_DEFAULT, carry=replace(_DEFAULT.carry, share=0.0))
RECALL = RecallPolicy(tokens=600)
_ELIDE = ("images", "elide", "drop", "shorten")
_SUMMARISE = ("images", "summarize", "drop", "shorten")

SPECS: Mapping[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec("keep-last", KeepLast, _BARE),
        Spec("elide", Managed, replace(_BARE, strategies=_ELIDE)),
        Spec("elide, carry", Managed, replace(_DEFAULT, strategies=_ELIDE)),
        Spec("summarise", Managed, replace(_BARE, strategies=_SUMMARISE)),
        Spec("summarise, carry", Managed, replace(_DEFAULT, strategies=_SUMMARISE)),
        Spec("ladder", Managed, _BARE),
        Spec("ladder, carry", Managed, _DEFAULT),
        Spec("ladder, recall", Managed, replace(_BARE, recall=RECALL)),
        Spec("everything", Managed, replace(_DEFAULT, recall=RECALL)),
    )
}

HEADER = (
    "window  method               talks  probes  kept %  even %  carried  most %  recalled  extends %  re-read   fill"
    "  refused  side calls"
)


def _recalling(spec: Spec, tokens: int) -> Spec:
    """The same method with so many tokens of recalled passages, if it recalls at all."""
    policy = spec.policy
    return (
        replace(spec, policy=replace(policy, recall=RecallPolicy(tokens))) if policy.recall.tokens else spec
    )


def line(window: int, name: str, kept: Kept) -> str:
    """One row of the table."""
    tally, turns = kept.tally, max(1, kept.turns)
    fill = tally.forwarded / (window * tally.served) if tally.served else 0.0
    probes, share = (
        (kept.questions, kept.answered / kept.questions) if kept.questions else (kept.probes, kept.share)
    )
    return (
        f"{window:6}  {name:<19}  {tally.conversations:5}  {probes:6}  {100 * share:6.1f}  {100 * kept.even:6.1f}  "
        f"{kept.carried / turns:7.0f}  {100 * kept.largest:6.1f}  {kept.recalled / turns:8.0f}  "
        f"{100 * tally.extends:9.1f}  {tally.reread:7.3f}  {fill:5.3f}  {tally.refused:7}  {tally.side_calls:10}"
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("TRANSOM_SHARED_DATA", "../shared/data"))
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--half", type=Half, choices=list(Half), default=Half.ALL)
    parser.add_argument("--windows", type=int, nargs="*", default=WINDOWS, help="tokens")
    parser.add_argument("--questions", type=int, default=QUESTIONS_WINDOW, help="tokens of the chats' window")
    parser.add_argument("--only", nargs="+", choices=sorted(SPECS), help="these methods")
    parser.add_argument("--recall", type=int, default=RECALL.tokens, help="tokens, where any are recalled")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments().parse_args(argv)
    specs = [_recalling(SPECS[name], options.recall) for name in options.only or SPECS]
    tasks = tasks_of(options.folder, options.half, options.windows, options.questions)
    cells = measured(tasks, specs, options.jobs)
    print(HEADER)
    for window in (options.questions, *options.windows):
        for spec in specs:
            if (window, spec.name) in cells:
                print(line(window, spec.name, cells[window, spec.name]))


if __name__ == "__main__":
    main()
