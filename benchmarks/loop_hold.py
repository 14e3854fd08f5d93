"""How long one request holds the event loop: the longest steps of its task, in processor time of the loop's thread.

Rules. The real server answers in this process, in front of an upstream of this process that says the same to all; every
step of the server's tasks is timed, and nothing else. Processor time is that of the thread alone, so that neither other
processes nor threads count; what the machine does is told beside it. Bodies are made with a fixed seed.
"""

import argparse
import asyncio
import base64
import gc
import io
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proxy.config import Address, Config, Discovery, LogFormat, LogLevel, LogOptions, ModelRule, Upstream
from proxy.context.policy import ModelPolicy
from proxy.edge import logs
from proxy.edge.memories import Memories
from proxy.edge.metrics import Metrics
from proxy.edge.server import Parts
from proxy.edge.service import running
from proxy.edge.tokenizer import Tokenizer, usual_encoders
from proxy.stores import Bounds, open_store
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import ScriptedUpstream, json_answer

LARGE: Final = 10_000_000
CHAT: Final = "/v1/chat/completions"
WORDS: Final = [
    "the",
    "a",
    "of",
    "reads",
    "line",
    "returns",
    "error",
    "value",
    "file",
    "user",
    "build",
    "test",
    "path",
    "index",
    "table",
    "window",
]


SAID: Final = "The user reads each file, and the build returns an error value. The test of the table is next."
"""Of the upstream, whatever it is asked; it passes for a summary."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a task: milliseconds of processor time, and where it ended."""

    took: float
    where: str


@dataclass
class Steps:
    """The longest steps of the server's tasks."""

    found: list[Step] = field(default_factory=list)

    def longest(self, most: int) -> list[Step]:
        return sorted(self.found, key=lambda step: -step.took)[:most]


class Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._timed(lambda: self._work.send(value))

    def throw(self, *thrown: Any) -> Any:
        return self._timed(lambda: self._work.throw(*thrown))

    def close(self) -> None:
        self._work.close()

    def _timed(self, step: Callable[[], Any]) -> Any:
        began = time.thread_time()
        try:
            return step()
        finally:
            took = (time.thread_time() - began) * 1000
            if took > 1.0:
                self._steps.found.append(Step(took, _place(self._work)))


def _place(work: Any) -> str:
    """The innermost of our own functions that waits now; empty at the end."""
    place = ""
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)
        if frame is not None and "/proxy/" in frame.f_code.co_filename:
            place = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}"
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
    return place


# --- bodies -----------------------------------------------------------------------------------------------------


def _text(dice: random.Random, size: int) -> str:
    words = dice.choices(WORDS, k=size // 5)
    words[::17] = [f"{word}{number}" for number, word in enumerate(words[::17])]
    return " ".join(words)[:size]


def agent(messages: int, size: int, seed: int = 1) -> list[dict[str, Any]]:
    """An agent's history of so many messages and about so many bytes."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    made: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent. " * 100}]
    each = size // messages
    for number in range(messages // 3):
        arguments = json.dumps({"path": f"src/{number}.py", "lines": [1, number]})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        made += [
            {"role": "user" if number % 9 == 0 else "assistant", "content": _text(dice, each // 2)},
            {"role": "assistant", "content": _text(dice, 40), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": _text(dice, each * 5 // 2)},
        ]
    return [*made, {"role": "user", "content": "And now?"}]


def _body(messages: object, **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def bodies() -> Iterator[tuple[str, bytes]]:
    """Each kind of request with its name."""
    dice = random.Random(5)  # noqa: S311 - no secret
    for megabytes, count in ((0.1, 900), (0.4, 900), (0.8, 900), (1.6, 2000), (3.2, 4000)):
        yield f"agent of {count:,} messages, {megabytes} MB", _body(agent(count, int(megabytes * 1e6)))
    large = [{"role": "user", "content": _text(dice, 1_000_000)} for _ in range(3)]
    yield "three messages of 1 MB", _body([*large, {"role": "user", "content": "And now?"}])
    small = [{"role": ("user", "assistant")[number % 2], "content": f"{number}"} for number in range(10_001)]
    yield "10,001 small messages", _body(small)
    orphans = [{"role": "tool", "tool_call_id": f"c{number}", "content": "x"} for number in range(4000)]
    yield "4,000 results without calls", _body([{"role": "user", "content": "a"}, *orphans])
    deep = b"[" * 100_000 + b"]" * 100_000
    yield "nested 100,000 deep", b'{"model":"m","messages":[{"role":"user","content":%b}]}' % deep
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    yield (
        "nested 400 deep, 500 times",
        b'{"model":"m","messages":[%b]}' % b",".join([b'{"role":"user","content":%b}' % deep] * 500),
    )
    parts: list[object] = [{"type": "text", "text": "a"}] * 60_000
    yield "180,000 values in one message", _body([{"role": "user", "content": parts}])
    parts = [{"type": "text", "text": "a"}, {"type": "odd", "odd": 1}] * 20_000
    yield "20,000 texts among 20,000 media", _body([{"role": "user", "content": parts}])
    yield "190,000 numbers beside the messages", _body(agent(30, 9000), odd=list(range(190_000)))
    picture = base64.b64encode(dice.randbytes(3_750_000)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    yield "a picture of 5 MB", _body([{"role": "user", "content": [part]}])
    yield "5 MB of base64 as text", _body([{"role": "user", "content": picture}])
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": _text(dice, 2000),
                "parameters": {
                    "type": "object",
                    "properties": {f"p{at}": {"type": "string"} for at in range(30)},
                },
            },
        }
        for number in range(200)
    ]
    yield "200 tools, 0.7 MB", _body(agent(30, 9000), tools=tools)


# --- measuring --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(steps: Steps, window: int, folder: Path, encoders: Any) -> AsyncIterator[str]:
    """The URL of a proxy with this window, whose tasks are timed."""
    answer = json_answer(peers.completion(peers.text_message(SAID), usage=peers.usage(1000, 5)))
    async with ScriptedUpstream(otherwise=answer) as upstream:
        upstream.keep = 1
        config = Config(
            upstream=Upstream(upstream.base_url, slots=4),
            listen=Address("127.0.0.1", 0),
            discovery=Discovery(enabled=False),
            manage_deadline=300.0,
            log=LogOptions(LogLevel.INFO, LogFormat.JSON),
            models=(ModelRule("*", ModelPolicy(window=window)),),
        )
        log = logs.build(config.log, io.StringIO())
        url = f"sqlite:///{folder}/{window}.db"
        async with open_store(url, Bounds(10_000, 2**26, 1e6), log.warning) as opened:
            memories = Memories(opened.store, upstream.base_url, shared=opened.shared)
            tokenizer = Tokenizer(log, encoders=encoders)
            parts = Parts(tokenizer, memories.of, log, Metrics(), opened.shared)
            try:
                async with running(config, parts, grace=1.0) as listening:
                    yield listening
            finally:
                tokenizer.close()
                await memories.close()


def _timing(loop: asyncio.AbstractEventLoop, steps: Steps) -> None:
    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Any:
        is_ours = "RequestHandler." in getattr(work, "__qualname__", "")
        return asyncio.Task(Timed(work, steps) if is_ours else work, loop=loop, **named)

    loop.set_task_factory(make)


async def measure(only: str, most: int, shown: int) -> list[tuple[str, str, float]]:
    """The longest steps of each kind of request; printed as they are found."""
    encoders, steps = usual_encoders(), Steps()
    gc.collect()
    gc.freeze()  # as where the proxy is served
    gc.set_threshold(20_000, 20, 20)
    _timing(asyncio.get_running_loop(), steps)
    found: list[tuple[str, str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for window, what in ((LARGE, "fits"), (20_000, "is compacted")):
            for name, body in bodies():
                if only not in name or len(body) > most:
                    continue
                async with served(steps, window, Path(folder), encoders) as url:
                    for sight in ("first", "second"):
                        steps.found.clear()
                        async with RawClient(url, patience=300.0) as client:
                            response = await client.post(CHAT, body)
                        longest = steps.longest(shown)
                        worst = longest[0].took if longest else 0.0
                        found.append((name, f"{what}, {sight} sight", worst))
                        told = "  ".join(f"{each.took:.0f} {each.where}" for each in longest)
                        actions = (response.header("x-context-actions") or "").split(",")[0]
                        kind = f"{name:40} {what:12} {sight:6} {response.status} {actions[:24]:24}"
                        print(f"{kind} {worst:7.1f} ms   {told}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="requests whose name holds this")
    parser.add_argument("--most", type=int, default=10**9, help="bytes of a body at most")
    parser.add_argument("--steps", type=int, default=4, help="steps shown of each")
    options = parser.parse_args()
    found = asyncio.run(measure(options.only, options.most, options.steps))
    print(f"longest: {max((worst for _, _, worst in found), default=0.0):.1f} ms")


if __name__ == "__main__":
    main()
