"""How far the expected token count is from what upstreams really count, with many conversations on one upstream.

Run: python -m benchmarks.count_error [FOLDER] [--half b] [--streams 8] [--windows 16384 32768]
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl` and `counts.jsonl`: the true counts of prefixes of the same
conversations by seven tokenizers with their chat templates.

For each of the seven, conversations are served interleaved, so many at once, each prefix with a known count being a
request; its usage teaches what comes next. Once a prompt is expected to exceed the budget, it is cut: the messages
behind the first known prefix go, down to the target, and the true count of what is left is worked out from the counts
of the prefixes. A second run has an upstream that adds 3,000 hidden tokens to every prompt. Per cent of the true count:

  first   the first request of a conversation (prompts over 1,000 tokens)
  later   every further one (prompts over 8,000 tokens)
  cut     the first one after a cut (prompts over 2,000 tokens)
  over    forwarded prompts that truly exceed the window; of them those that were expected to be within the budget (the
          proxy would shorten the others further, here there is nothing left to cut); of all that were forwarded

Three ways are shown: the estimate as it is, one factor for all (the last answer's), and ours.
"""

import argparse
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.recorded import Half
from proxy.context import budget
from proxy.context.budget import Budget
from proxy.context.calibration import (
    UNCALIBRATED,
    Anchor,
    CalibrationPolicy,
    Prompt,
    Report,
    expect,
    follow,
    learn,
)
from proxy.context.conversation import read_message
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import REPLY_PRIMING, extras_size, message_size
from proxy.edge.tokenizer import count_with, load_encoding
from tests.replay import Recording, recordings

BACKENDS = ("qwen3", "llama3", "mistral", "deepseek", "gemma3", "gptoss", "chatml")
HARMONY = "gptoss"
"""The one whose template declares tools as OpenAI's own models read them."""

HIDDEN = (0, 3000)
LEAST = {"first": 1000, "later": 8000, "cut": 2000}
WINDOWS = (16_384, 32_768)


@dataclass(frozen=True)
class Point:
    """One prefix of a conversation: our raw estimate of it, and the true counts by backend."""

    raw: Mapping[str, int]
    true: Mapping[str, int]


def points(folder: Path, half: Half) -> Iterator[tuple[str, list[Point]]]:
    """The conversations of a half with their prefixes, in an order that their ids alone decide."""
    counted: dict[str, list[dict[str, object]]] = {}
    with (folder / "counts.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            counted.setdefault(row["id"], []).append(row)
    encoder = load_encoding("o200k_base", os.environ.get("TIKTOKEN_CACHE_DIR", ""))
    count = partial(count_with, encoder)
    taken = [each for each in recordings(folder) if each.id in counted and half.holds(each.id)]
    for recording in sorted(taken, key=lambda each: hashlib.sha256(each.id.encode()).digest()):
        yield recording.id, list(_points(recording, counted[recording.id], count))


def _points(recording: Recording, rows: list[dict[str, object]], count) -> Iterator[Point]:  # type: ignore[no-untyped-def]
    sizes = [message_size(read_message(raw), count, "other").tokens for raw in recording.raws]
    extras = (recording.tools,) if recording.tools else ()
    tools = {name: extras_size(extras, count, "gpt-4o" if name == HARMONY else "other") for name in BACKENDS}
    for row in sorted(rows, key=lambda each: int(str(each["at"]))):
        at, true, estimate = int(str(row["at"])), row["true"], row["est"]
        assert isinstance(true, dict)
        assert isinstance(estimate, dict)
        has_tools = bool(estimate.get("tools"))
        whole = sum(sizes[:at]) + REPLY_PRIMING
        yield Point({name: whole + (tools[name] if has_tools else 0) for name in BACKENDS}, true)


# --- the ways ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """So many raw tokens, sent of this prompt."""

    raw: int
    prompt: Prompt


class Way(Protocol):
    """A way to expect counts."""

    def tokens(self, talk: str, sent: Sent) -> float:
        """The count that is expected of a prompt."""
        ...

    def learn(self, talk: str, sent: Sent, true: int) -> None:
        """Take in what the upstream counted."""
        ...

    def caution(self, talk: str) -> float:
        """Share of the window that is kept free on account of what is not known."""
        ...


class AsItIs:
    """No correction."""

    def tokens(self, talk: str, sent: Sent) -> float:
        return sent.raw

    def learn(self, talk: str, sent: Sent, true: int) -> None: ...

    def caution(self, talk: str) -> float:
        return 0.0


class OneFactor:
    """The last answer's factor, for all."""

    def __init__(self) -> None:
        self._factor = 1.0

    def tokens(self, talk: str, sent: Sent) -> float:
        return sent.raw * self._factor

    def learn(self, talk: str, sent: Sent, true: int) -> None:
        self._factor = min(max(true / sent.raw, 0.25), 4.0)

    def caution(self, talk: str) -> float:
        return 0.0


class Ours:
    """What the proxy does."""

    def __init__(self) -> None:
        self._policy = CalibrationPolicy()
        self._known = UNCALIBRATED
        self._anchors: dict[str, Anchor] = {}

    def tokens(self, talk: str, sent: Sent) -> float:
        expected = expect(self._known, self._anchors.get(talk), self._policy, sent.prompt)
        return expected.tokens(sent.raw)

    def learn(self, talk: str, sent: Sent, true: int) -> None:
        anchor = self._anchors.get(talk, Anchor("tip", "mark"))
        report = Report(sent.raw, true, sent.prompt)
        self._anchors[talk] = follow(self._known, anchor, report, self._policy)
        self._known = learn(self._known, sent.raw, true, self._policy)

    def caution(self, talk: str) -> float:
        anchor = self._anchors.get(talk)
        return budget.caution(
            knows_model=self._known.samples > 0, knows_conversation=anchor is not None and anchor.raw > 0
        )


WAYS: Mapping[str, type[Way]] = {"as it is": AsItIs, "one factor": OneFactor, "ours": Ours}


# --- the run ----------------------------------------------------------------------------------------------


@dataclass
class Talk:
    """A conversation under way; what stands between its first point and `cut` was cut off."""

    id: str
    points: Sequence[Point]
    next: int = 0
    cut: int = 0

    def sent(self, backend: str, cut: int) -> Sent:
        """The next prompt with so much cut off."""
        first, gone, whole = (self.points[at].raw[backend] for at in (0, cut, self.next))
        return Sent(whole - gone + first, Prompt(whole, first))

    def true(self, backend: str) -> int:
        """What the upstream counts of it."""
        first, gone, whole = (self.points[at].true[backend] for at in (0, self.cut, self.next))
        return whole - gone + first


@dataclass
class Errors:
    """Relative errors by kind of request, and how many prompts were over the window, and how many unawares."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in LEAST})
    forwarded: int = 0
    over: int = 0
    unawares: int = 0

    def note(self, kind: str, expected: float, true: int, limits: Budget) -> None:
        self.forwarded += 1
        self.over += true > limits.window
        self.unawares += expected <= limits.tokens and true > limits.window
        if true > LEAST[kind]:
            self.by_kind[kind].append(abs(expected - true) / true)


def served(
    talks: Iterable[tuple[str, Sequence[Point]]],
    way: Way,
    backend: str,
    *,
    hidden: int,
    window: int,
    streams: int,
) -> Errors:
    """All conversations on one upstream, so many at once, turn by turn."""
    waiting, active, errors = deque(Talk(*talk) for talk in talks), list[Talk](), Errors()
    while waiting or active:
        while waiting and len(active) < streams:
            active.append(waiting.popleft())
        for talk in list(active):
            if talk.next >= len(talk.points):
                active.remove(talk)
                continue
            _request(talk, way, backend, errors, hidden=hidden, window=window)
    return errors


def _request(talk: Talk, way: Way, backend: str, errors: Errors, *, hidden: int, window: int) -> None:
    policy = ModelPolicy()
    limits = budget.work_out(
        window,
        None,
        reserve_output=policy.reserve_output,
        margin=policy.margin,
        caution=way.caution(talk.id),
        compact_at=policy.compact_at,
        compact_to=policy.compact_to,
    )
    assert limits is not None
    kind = "later" if talk.next else "first"
    expected = way.tokens(talk.id, talk.sent(backend, talk.cut))
    if expected > limits.trigger and _cut(talk, way, backend, limits.target):
        kind = "cut"
    sent, true = talk.sent(backend, talk.cut), talk.true(backend) + hidden
    errors.note(kind, way.tokens(talk.id, sent), true, limits)
    way.learn(talk.id, sent, true)
    talk.next += 1


def _cut(talk: Talk, way: Way, backend: str, target: int) -> bool:
    """Cut the messages between the first prefix and a later one off; False where that is of no use."""
    now = talk.points[talk.cut].raw[backend]
    cuts = [at for at in range(talk.next) if talk.points[at].raw[backend] > now]
    if not cuts:
        return False
    fits = (at for at in cuts if way.tokens(talk.id, talk.sent(backend, at)) <= target)
    talk.cut = next(fits, cuts[-1])
    return True


def report(folder: Path, half: Half, windows: Sequence[int], streams: int) -> Iterator[str]:
    """One row for each way, backend, hidden prompt and window."""
    talks = list(points(folder, half))
    yield "window  hidden  way         backend      first: mean   p95   later: mean   p95     cut: mean   p95    over"
    for window in windows:
        for hidden in HIDDEN:
            for name, way in WAYS.items():
                for backend in BACKENDS:
                    errors = served(talks, way(), backend, hidden=hidden, window=window, streams=streams)
                    cells = "  ".join(_cell(errors.by_kind[kind]) for kind in LEAST)
                    over = f"{errors.over:3} {errors.unawares:3} of {errors.forwarded}"
                    yield f"{window:6}  {hidden:6}  {name:<10}  {backend:<9}  {cells}  {over}"


def _cell(errors: Sequence[float]) -> str:
    if not errors:
        return "     -       -  "
    ordered = sorted(errors)
    mean, high = sum(ordered) / len(ordered), ordered[int(0.95 * (len(ordered) - 1))]
    return f"{100 * mean:8.2f} {100 * high:7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("TRANSOM_SHARED_DATA", "../shared/data"))
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--half", type=Half, choices=list(Half), default=Half.ALL)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--streams", type=int, default=8)
    options = parser.parse_args()
    for row in report(options.folder, options.half, options.windows, options.streams):
        print(row)


if __name__ == "__main__":
    main()
