"""What managing a request costs before it is forwarded: first seen, growing, and compacted.

Run: python -m benchmarks.planning [--messages 2000 10000] [--bytes 8000000]

An agent's history of so many messages and bytes goes through a whole exchange, with the real tokenizer and a summary
that is there at once. Milliseconds, the best of three, by stage:

  read     the body split into messages, and those not seen before decoded
  count    tokens of what has not been counted before; much of it is done in a thread, and holds the loop no more
  plan     everything else: the chain, the ladder, the view, and the body that is sent

and the longest time that the event loop was held, and the same stages as multiples of one bare pass over the body: to
decode it as JSON and encode it again. `cold` is a process that has never seen the conversation, which is far over its
window, `next` the following request, to which the checkpoint applies, `cut` a following one that is compacted anew.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.config import LogOptions
from proxy.context.edits import Edits
from proxy.context.policy import Mode, ModelPolicy
from proxy.context.reader import Reader
from proxy.edge import logs
from proxy.edge.tokenizer import Tokenizer
from proxy.exchange import (
    Accepted,
    Ask,
    Command,
    LookUp,
    Measure,
    Measured,
    Memory,
    Outcome,
    Relay,
    Relayed,
    Save,
    Send,
    Summarised,
    Terms,
    manage,
)
from proxy.wire import chat

MODEL = "gpt-4o"
WINDOW = 128_000
ROUNDS = 3
SUMMARY = "The agent reads files one after the other and has found nothing odd so far. " * 20


def history(messages: int, size: int) -> list[dict[str, Any]]:
    """An agent's run: a task, then calls and results in turn, of about `size` bytes together."""
    line = (
        "{number:7} def handler(request): return respond(request, status=200)  # checked, nothing odd here\n"
    )
    long = max(1, size * 2 // messages // len(line))
    made: list[dict[str, Any]] = [{"role": "user", "content": "Read every file and say what is odd."}]
    for number in range((messages - 1) // 2):
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/module{number}.py"})}
        made.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            }
        )
        text = "".join(line.format(number=number * long + at) for at in range(long))
        made.append({"role": "tool", "tool_call_id": f"c{number}", "content": text})
    return made


@dataclass
class Edge:
    """Performs an exchange's commands with what a process would remember."""

    tokenizer: Tokenizer
    reader: Reader = field(default_factory=Reader)
    stored: dict[str, Edits] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    counting: float = 0.0

    async def perform(self, command: Command) -> Outcome:
        match command:
            case LookUp(chain=chain):
                found = [key for key in chain if key in self.stored]
                known = {key: text for key, text in self.summaries.items() if key in set(chain)}
                return Memory(self.stored[found[-1]] if found else None, found[-1] if found else None, known)
            case Measure(model=model, messages=messages, extras=extras):
                began = time.perf_counter()
                sizes, rest = await self.tokenizer.sizes(messages, extras, model)
                self.counting += time.perf_counter() - began
                return Measured(sizes, rest)
            case Ask(order=order):
                self.summaries[order.key] = SUMMARY
                return Summarised(order.key, SUMMARY, None)
            case Save(key=key, edits=edits):
                self.stored[key] = edits
                return edits
            case Send():
                return Accepted(200)
            case Relay():
                return Relayed(None, True)
            case _:
                return None


@dataclass(frozen=True)
class Times:
    """Seconds."""

    read: float
    count: float
    plan: float
    held: float

    @property
    def total(self) -> float:
        return self.read + self.count + self.plan


async def exchanged(edge: Edge, body: bytes) -> tuple[Times, str]:
    """One request through a whole exchange, and what was done to it."""
    watch = asyncio.create_task(longest_stall())
    await asyncio.sleep(0)
    edge.counting = 0.0
    began = time.perf_counter()
    request = chat.read(body, edge.reader)
    read = time.perf_counter() - began
    policy = ModelPolicy(window=WINDOW)
    terms = Terms(
        policy, Mode.MANAGE, "upstream", "tenant", lambda text: edge.tokenizer.count(text, "o200k_base")
    )
    course, outcome, actions = manage(request, terms), None, ""
    while True:
        try:
            command = course.send(outcome)
        except StopIteration as end:
            actions = str(end.value.actions)
            break
        outcome = await edge.perform(command)
    total = time.perf_counter() - began
    await asyncio.sleep(0)
    watch.cancel()
    [held] = await asyncio.gather(watch)
    return Times(read, edge.counting, total - read - edge.counting, held), actions


async def longest_stall() -> float:
    """The longest time between two turns of a task that asks for one every millisecond."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last - 0.001), now
    except asyncio.CancelledError:
        return max(longest, time.perf_counter() - last - 0.001)


def bare(body: bytes) -> float:
    """Seconds to decode a body as JSON and encode it again."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        msgspec.json.encode(msgspec.json.decode(body))
        times.append(time.perf_counter() - began)
    return min(times)


def body_of(messages: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"model": MODEL, "messages": messages})


async def measured(messages: int, size: int) -> Iterator[str]:
    """The rows for one history."""
    whole = history(messages + 120, size * (messages + 120) // messages)
    bodies = {
        "cold": body_of(whole[:messages]),
        "next": body_of(whole[: messages + 2]),
        "cut": body_of(whole),
    }
    best: dict[str, tuple[Times, str]] = {}
    for _ in range(ROUNDS):
        tokenizer = Tokenizer(logs.build(LogOptions()))
        await tokenizer.warm()
        edge = Edge(tokenizer)
        for name, body in bodies.items():
            run = await exchanged(edge, body)
            if name not in best or run[0].total < best[name][0].total:
                best[name] = run
        tokenizer.close()
    ratio = bare(bodies["cold"])
    return (row(name, messages, len(bodies[name]), *best[name], ratio) for name in bodies)


def row(name: str, messages: int, size: int, times: Times, actions: str, ratio: float) -> str:
    stages = (times.read, times.count, times.plan, times.total, times.held)
    shown = "  ".join(f"{1000 * each:8.1f}" for each in stages)
    return f"{messages:8}  {size / 1e6:5.1f}  {name:<5}  {shown}  {times.total / ratio:7.1f}  {actions}"


async def run(sizes: list[int], size: int) -> None:
    print("messages     MB  which      read     count      plan     total      held  x bare  what was done")
    for messages in sizes:
        for line in await measured(messages, size):
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, nargs="+", default=[2000])
    parser.add_argument("--bytes", type=int, default=8_000_000)
    options = parser.parse_args()
    asyncio.run(run(options.messages, options.bytes))


if __name__ == "__main__":
    main()
