"""How much of each forwarded prompt an upstream's prompt cache can keep, beside two ways in common use.

Run: python -m benchmarks.prefix_reuse [FOLDER] [--half b] [--windows 8192 16384] [--compact-to 0.4 0.5] [--jobs 2]
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl`, one object a line with `id` and `messages`.

Each recorded conversation longer than 1.5 windows is replayed turn by turn, the client resending everything, to a
strict upstream that counts with another real tokenizer than ours and whose reported usage teaches the calibration. An
over-window turn is one whose request as the client sent it is longer than the window by the upstream's count; of the
columns, all but requests, refused and the side calls are about the over-window turns that were served.

  refused     requests that the upstream refused; "needless" are those whose head, tools and newest round alone fit
  side calls  all of them, those before the first over-window turn included, per cent of the over-window turns
  extends     turns whose forwarded history (behind the system head) begins with the whole one forwarded before,
              message by message, bytes equal
  re-read     newly read / new. Newly read: tokens of the forwarded messages behind the longest common beginning with
              the prompt forwarded before; where tools or head differ from it, all of them. New: tokens of the
              messages that the client appended since its request before. Both by the upstream's count of a message;
              refused requests are read by nobody, and what was new in them counts with the next one served. 1 is
              ideal; less means that new messages were shortened before they were ever sent
  fill        tokens of the forwarded prompt / window, mean over the turns
  side tokens input and output of the side calls; not part of the re-read factor

Two baselines know the upstream's exact count and have the same budget (reserve and margin off the window):
  keep-last   system head and newest rounds that fit the budget, chosen anew for each request
  summarise   whatever does not fit half the budget is summarised anew for each request that is over the budget
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from benchmarks.recorded import Half, Scales, messages_of, outgrows, upstream_count
from proxy.context import rawjson
from proxy.context.budget import Budget, work_out
from proxy.context.conversation import Conversation, Message, read_message
from proxy.context.policy import ModelPolicy
from proxy.context.reader import Reader
from proxy.context.strategies import NAMES
from proxy.demo.counting import Count
from proxy.demo.rules import Accepted, Memory, Refusal, Temper, judge
from proxy.exchange import Accepted as Served
from proxy.exchange import Order, Outcome, Refused, SideCallFailed
from tests.replay import Recording, ReplayDesk, Sizes, recordings, sampled

OVERHEAD = 600
"""Tokens of the prompt and the message structure of a side call, rounded up."""

WINDOWS = (8192, 16384, 32768, 65536)
LONGER = 1.5
"""Conversations of more than so many windows are taken."""

# --- what is measured -------------------------------------------------------------------------------------


@dataclass
class Tally:
    """The sums over the requests of some conversations, by one method at one window. Tokens are the upstream's."""

    conversations: int = 0
    requests: int = 0
    over_window: int = 0
    refused: int = 0
    needless: int = 0
    side_calls: int = 0
    side_tokens: int = 0
    served: int = 0
    extending: int = 0
    read: int = 0
    new: int = 0
    forwarded: int = 0
    refusals: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def reread(self) -> float:
        """Tokens newly read for each new one."""
        return self.read / self.new if self.new else 0.0

    @property
    def extends(self) -> float:
        """Share of the served over-window turns whose prompt extends the one before."""
        return self.extending / self.served if self.served else 0.0

    @property
    def side_share(self) -> float:
        """Side calls for each over-window turn."""
        return self.side_calls / self.over_window if self.over_window else 0.0


@dataclass(frozen=True)
class Prompt:
    """What was forwarded: raw messages, of which `head` lead the history, and the raw tools."""

    messages: tuple[bytes, ...]
    head: int
    tools: bytes | None

    @property
    def fixed(self) -> tuple[object, ...]:
        return (self.messages[: self.head], self.tools)

    @property
    def history(self) -> tuple[bytes, ...]:
        return self.messages[self.head :]


class Meter:
    """Compares each prompt that is served with the one before."""

    def __init__(self, scales: Scales) -> None:
        self._scales = scales
        self._before: Prompt | None = None
        self._known = 0

    def served(self, prompt: Prompt, client: Sequence[bytes]) -> Tally:
        """What one served request cost; `client` are the messages as the client sent them."""
        before, self._before = self._before, prompt
        new, self._known = client[self._known :], len(client)
        if before is None or before.fixed != prompt.fixed:
            read, extends = self._scales.prompt(prompt.messages, prompt.tools), False
        else:
            same = common(before.history, prompt.history)
            read = self._scales.messages(prompt.history[same:])
            extends = same == len(before.history)
        return Tally(
            served=1,
            extending=int(extends),
            read=read,
            new=self._scales.messages(new),
            forwarded=self._scales.prompt(prompt.messages, prompt.tools),
        )


def common(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """How many messages both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


# --- the upstream and the methods -------------------------------------------------------------------------


class Bench:
    """What all replays of a process share: the counts of everything, by the upstream and by us, and its judgement."""

    def __init__(self, count: Count | None = None) -> None:
        self.scales = Scales(count or upstream_count())
        self.sizes = Sizes()
        self.reader = Reader()
        self._judged = Memory()

    def read(self, body: bytes) -> tuple[Conversation, bytes | None]:
        """The conversation in a body, and its raw tools."""
        members = rawjson.members(body)
        return self.reader.read(rawjson.elements(members["messages"])), members.get("tools")

    def prompt(self, talk: Conversation, tools: bytes | None) -> int:
        """Tokens of a whole request by the upstream's count."""
        return self.scales.prompt([message.raw for message in talk.messages], tools)

    def verdict(self, body: bytes, window: int) -> Accepted | Refusal:
        """What the strict upstream says to a body."""
        fields, count = self.scales.body(body), self.scales.count
        return judge(fields, window=window, count=count, temper=Temper.OPENAI, memory=self._judged)


@dataclass(frozen=True)
class Sent:
    """One request as a method forwarded it, what the upstream said, and the tokens of each side call made for it."""

    body: bytes
    verdict: Accepted | Refusal
    side_calls: tuple[int, ...] = ()


class Method(Protocol):
    """One conversation's way through one method, request by request."""

    def forward(self, body: bytes) -> Sent:
        """What happens to the client's next request."""
        ...


@dataclass
class BenchDesk(ReplayDesk):
    """A scripted edge before the upstream of the bench; notes the tokens of each side call, input and output."""

    bench: Bench = field(kw_only=True)
    side_tokens: list[int] = field(default_factory=list)

    def answer_to(self, order: Order) -> str | SideCallFailed:
        answer = super().answer_to(order)
        read = self.bench.scales.prompt(messages_of(order.body), None)
        self.side_tokens.append(read + (self.bench.scales.count(answer) if isinstance(answer, str) else 0))
        return answer

    def judged(self, body: bytes) -> Outcome:
        self.body = body
        self.verdict = self.bench.verdict(body, self.window)
        if isinstance(self.verdict, Refusal):
            return Refused(self.verdict.status, json.dumps(self.verdict.body).encode())
        return Served(200)


class Managed:
    """The exchange itself, with its own estimate of sizes and the calibration that it learns from reported usage."""

    def __init__(self, bench: Bench, policy: ModelPolicy, window: int) -> None:
        policy = replace(policy, window=window)
        self._desk = BenchDesk(policy, window=window, sizes=bench.sizes, reader=bench.reader, bench=bench)

    def forward(self, body: bytes) -> Sent:
        self._desk.run(body)
        self._desk.done.clear()
        side_tokens = tuple(self._desk.side_tokens)
        self._desk.side_tokens.clear()
        assert self._desk.verdict is not None
        return Sent(self._desk.body, self._desk.verdict, side_tokens)


class KeepLast:
    """The newest rounds that fit the budget, chosen anew each time."""

    def __init__(self, bench: Bench, policy: ModelPolicy, window: int) -> None:
        self._bench = bench
        self._window = window
        self._budget = budget_of(policy, window).tokens

    def forward(self, body: bytes) -> Sent:
        talk, tools = self._bench.read(body)
        if self._bench.prompt(talk, tools) > self._budget:
            kept = newest(self._bench, talk, tools, self._budget)
            body = with_messages(body, [*talk.head, *talk.history[kept:]])
        return Sent(body, self._bench.verdict(body, self._window))


class SummariseAnew:
    """What does not fit half the budget becomes a summary, written anew each time that the budget is exceeded."""

    def __init__(self, bench: Bench, policy: ModelPolicy, window: int) -> None:
        self._bench = bench
        self._window = window
        self._budget = budget_of(policy, window).tokens
        self._asked = 0

    def forward(self, body: bytes) -> Sent:
        talk, tools = self._bench.read(body)
        kept = newest(self._bench, talk, tools, self._budget // 2)
        if self._bench.prompt(talk, tools) <= self._budget or kept == 0:
            return Sent(body, self._bench.verdict(body, self._window))
        self._asked += 1
        old = talk.history[:kept]
        summary = sampled("\n".join(message.text for message in old), self._asked)
        block = read_message(rawjson.encode({"role": "user", "content": summary}))
        body = with_messages(body, [*talk.head, block, *talk.history[kept:]])
        scales = self._bench.scales
        read = min(self._window, OVERHEAD + scales.messages([message.raw for message in old]))
        return Sent(body, self._bench.verdict(body, self._window), (read + scales.count(summary),))


def budget_of(policy: ModelPolicy, window: int) -> Budget:
    """The budget that the exchange has at this window too."""
    budget = work_out(
        window,
        None,
        reserve_output=policy.reserve_output,
        margin=policy.margin,
        compact_at=policy.compact_at,
        compact_to=policy.compact_to,
    )
    assert budget is not None
    return budget


def newest(bench: Bench, talk: Conversation, tools: bytes | None, room: int) -> int:
    """Where the newest rounds begin that fit so many tokens with head and tools; the newest one always stays."""
    tokens = bench.scales.prompt([message.raw for message in talk.head], tools)
    start = len(talk.history)
    for each in reversed(talk.rounds):
        tokens += bench.scales.messages([message.raw for message in talk.history[each.start : each.stop]])
        if tokens > room and start < len(talk.history):
            break
        start = each.start
    return start


def with_messages(body: bytes, messages: Sequence[Message]) -> bytes:
    return rawjson.replace(body, {"messages": rawjson.array([message.raw for message in messages])})


@dataclass(frozen=True)
class Spec:
    """A method with its policy, and the name of its row."""

    name: str
    make: Callable[[Bench, ModelPolicy, int], Method]
    policy: ModelPolicy = field(default_factory=ModelPolicy)


# --- replaying --------------------------------------------------------------------------------------------


def replayed(recording: Recording, spec: Spec, window: int, bench: Bench) -> Tally:
    """All requests of a conversation by one method."""
    total, meter = Tally(conversations=1), Meter(bench.scales)
    method = spec.make(bench, spec.policy, window)
    for number, (body, reply) in enumerate(zip(recording.requests(), recording.replies, strict=True), 1):
        client = recording.raws[:reply]
        sent = method.forward(body)
        over = bench.scales.prompt(client, recording.tools) > window
        turn = Tally(
            requests=1,
            over_window=int(over),
            side_calls=len(sent.side_calls),
            side_tokens=sum(sent.side_calls),
        )
        total.add(turn)
        if isinstance(sent.verdict, Refusal):
            total.add(refused(f"{recording.id} request {number}", body, window, bench))
            continue
        head = len(bench.read(sent.body)[0].head)
        served = meter.served(Prompt(tuple(messages_of(sent.body)), head, recording.tools), client)
        if over:
            total.add(served)
    return total


def refused(place: str, body: bytes, window: int, bench: Bench) -> Tally:
    """A refused request, and whether it had to be."""
    talk, tools = bench.read(body)
    kept = [*talk.head, *talk.history[talk.newest_round.start :]]
    least = bench.scales.prompt([message.raw for message in kept], tools)
    line = f"{place}: head, tools and newest round alone are {least} of {window} tokens"
    return Tally(refused=1, needless=int(least <= window), refusals=[line])


Cells = dict[tuple[int, str], Tally]


@cache
def process_bench() -> Bench:
    """The one bench of this process; made before the workers are forked, they share its vocabularies."""
    return Bench()


def cells_of(task: tuple[Recording, int], specs: Sequence[Spec], bench: Bench | None = None) -> Cells:
    """One conversation at one window by every method; nothing where it does not outgrow the window."""
    recording, window = task
    bench = bench or process_bench()
    if not outgrows(recording, LONGER * window, bench.scales):
        return {}
    return {(window, spec.name): replayed(recording, spec, window, bench) for spec in specs}


def measured(
    taken: Iterable[Recording], specs: Sequence[Spec], windows: Sequence[int], jobs: int
) -> dict[tuple[int, str], Tally]:
    """The sums over these conversations, longest first, in so many processes."""
    process_bench()
    # No token is shorter than a byte, so that most conversations need not be counted.
    sizes = {each: sum(map(len, (*each.raws, each.tools or b""))) for each in taken}
    longest = sorted(sizes, key=lambda each: sizes[each], reverse=True)
    tasks = [(each, window) for each in longest for window in windows if sizes[each] > window]
    totals = {(window, spec.name): Tally() for window in windows for spec in specs}
    work = partial(cells_of, specs=specs)
    if jobs == 1:
        return _summed(totals, map(work, tasks))
    with ProcessPoolExecutor(jobs) as pool:
        return _summed(totals, pool.map(work, tasks))


def _summed(totals: Cells, results: Iterable[Cells]) -> Cells:
    for cells in results:
        for key, tally in cells.items():
            totals[key].add(tally)
    return totals


# --- the command ------------------------------------------------------------------------------------------

HEADER = (
    "window  method                           talks  requests    over  refused (needless)  side calls      %  "
    "extends %  re-read   fill  side tokens"
)


def line(window: int, name: str, tally: Tally) -> str:
    """One row of the table."""
    fill = tally.forwarded / (window * tally.served) if tally.served else 0.0
    return (
        f"{window:6}  {name:<31}  {tally.conversations:5}  {tally.requests:8}  {tally.over_window:6}  "
        f"{tally.refused:7} ({tally.needless:8})  {tally.side_calls:10}  {100 * tally.side_share:5.1f}  "
        f"{100 * tally.extends:9.1f}  {tally.reread:7.3f}  {fill:5.3f}  {tally.side_tokens:11}"
    )


def specs_of(options: argparse.Namespace) -> list[Spec]:
    """The rows that the options ask for."""
    policy = ModelPolicy()
    policy = replace(
        policy,
        compact_at=options.compact_at or policy.compact_at,
        strategies=tuple(options.strategies or policy.strategies),
    )
    targets = options.compact_to or [policy.compact_to]
    ours = [
        Spec(f"transom, compact_to {target:g}", Managed, replace(policy, compact_to=target))
        for target in targets
    ]
    baselines = [Spec("keep-last", KeepLast, policy), Spec("summarise", SummariseAnew, policy)]
    return ours if options.no_baselines else [*ours, *baselines]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("TRANSOM_SHARED_DATA", "../shared/data"))
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--half", type=Half, choices=list(Half), default=Half.ALL)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="tokens")
    parser.add_argument("--compact-to", type=float, nargs="+", help="shares of the budget: one row each")
    parser.add_argument("--compact-at", type=float, help="share of the budget")
    parser.add_argument("--strategies", nargs="+", choices=sorted(NAMES), help="the ladder, in order")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


def report(totals: Cells) -> Iterator[str]:
    """The table, and the refused requests below it."""
    yield HEADER
    for (window, name), tally in totals.items():
        yield line(window, name, tally)
    for (_, name), tally in totals.items():
        for refusal in tally.refusals:
            yield f"refused: {name}: {refusal}"


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments().parse_args(argv)
    taken = [each for each in recordings(options.folder) if options.half.holds(each.id)]
    for row in report(measured(taken, specs_of(options), options.windows, options.jobs)):
        print(row)


if __name__ == "__main__":
    main()
