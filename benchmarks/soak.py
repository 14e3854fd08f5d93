"""Many streams at once through one proxy, with all that goes wrong, and what is left of them afterwards.

Run: python -m benchmarks.soak [--seconds 60] [--streams 200]

A proxy process with default limits and a window of 8k tokens stands before an upstream that is started anew every few
seconds. So many clients at a time stream, ask for documents and upload; some leave at a random byte, some read slowly,
some send half a request; the upstream resets some connections, refuses some requests and never ends others. Long
conversations are compacted, with side calls.

Printed are the proxy's connections, asyncio tasks, file descriptors and resident memory after a warm-up, at their
highest, and when all clients are gone. They must be back at the start. An answer that the upstream gave to its end must
have reached a client that stayed to its end, and an answer that ended properly must be what the upstream sent, byte for
byte. Otherwise, when the proxy logged an error, or when it had nothing to edit, the exit status is 1.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from proxy.config import Flags, LogFormat, LogLevel, LogOptions, load
from proxy.demo.replies import completion, text_message, usage
from proxy.edge import logs
from proxy.edge.memories import Memories
from proxy.edge.metrics import Metrics
from proxy.edge.server import Parts
from proxy.edge.service import running
from proxy.edge.tokenizer import Tokenizer
from proxy.stores.memory import MemoryStore
from tests.peers.answers import SSE_HEADERS, Answer, Cut, Framing, Piece, json_answer, raw_answer
from tests.peers.client import Disconnected, RawClient, request_bytes
from tests.peers.scripted import Request, ScriptedUpstream

ROOT = Path(__file__).resolve().parents[1]
WINDOW = "8k"
SIDE_CALL_SECONDS = 2.0
CONVERSATIONS = 40
"""Different ones, so that what the proxy keeps of them is kept after the warm-up."""

PATIENCE = 120.0
"""Seconds after which a client is stuck: far more than 200 at a time wait for one another on a busy machine."""

SETTLING = 15.0
"""Seconds that idle connections and side calls get to end."""

GROWTH = 32.0
"""Mebibytes by which memory may be larger at the end than after the warm-up."""

ID = "x-soak"

DONE = b"data: [DONE]\n\n"
STATUSES = (429, 500, 503)


# ---------------------------------------------------------------------------------------------------------- the proxy


async def serve(upstream: str) -> None:
    """The proxy, in a process of its own: tells its URL, and the number of its tasks for each line of its input."""
    config = load(None, Flags(upstream=upstream, listen="127.0.0.1:0", window=WINDOW), {})
    config = replace(config, side_calls=replace(config.side_calls, deadline=SIDE_CALL_SECONDS))
    log = logs.build(LogOptions(LogLevel.ERROR, LogFormat.JSON))
    kept = config.checkpoints
    clock = asyncio.get_running_loop().time
    store = MemoryStore(clock, max_entries=kept.max_entries, max_bytes=kept.max_bytes, max_age=kept.max_age)
    tokenizer, memories = Tokenizer(log), Memories(store, upstream)
    await tokenizer.warm()
    asked = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    parts = Parts(tokenizer, memories.of, log, Metrics(), lambda: True)
    async with running(config, parts, grace=1.0) as url:
        print(url, flush=True)
        while await asked.readline():
            print(len(asyncio.all_tasks()), flush=True)
    tokenizer.close()
    await memories.close()


@dataclass(frozen=True, slots=True)
class Figures:
    """What the proxy holds: sockets, tasks, descriptors, and mebibytes of memory."""

    connections: int
    tasks: int
    descriptors: int
    memory: float

    def highest(self, other: "Figures") -> "Figures":
        return Figures(
            max(self.connections, other.connections),
            max(self.tasks, other.tasks),
            max(self.descriptors, other.descriptors),
            max(self.memory, other.memory),
        )


@dataclass(frozen=True, slots=True)
class Proxy:
    """The running process; `errors` counts what it logged."""

    process: asyncio.subprocess.Process
    url: str
    errors: list[str]

    async def figures(self) -> Figures:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        tasks = int(await self.process.stdout.readline())
        folder = Path(f"/proc/{self.process.pid}")
        links = list(_links(folder / "fd"))
        status = (folder / "status").read_text(encoding="ascii")
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        sockets = sum(link.startswith("socket:") for link in links)
        return Figures(sockets, tasks, len(links), int(resident.split()[1]) / 1024)


def _links(folder: Path) -> Iterator[str]:
    for each in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed since
            yield os.readlink(folder / each)


@contextlib.asynccontextmanager
async def proxied(upstream: str) -> AsyncIterator[Proxy]:
    words = ("-m", "benchmarks.soak", "--serve", upstream)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    proxy = Proxy(process, url, [])
    listening = asyncio.create_task(_listen(process, proxy.errors))
    try:
        yield proxy
    finally:
        process.stdin.close()
        await process.wait()
        await listening


async def _listen(process: asyncio.subprocess.Process, errors: list[str]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        errors.append(line.decode("utf-8", "replace").rstrip())


# ------------------------------------------------------------------------------------------------------ the upstream


@dataclass(slots=True)
class Upstream:
    """An upstream that can be started anew on its port. What a client wants of it stands in the request itself."""

    port: int = 0
    answered: dict[str, Request] = field(default_factory=dict)
    running: ScriptedUpstream | None = None

    async def start(self) -> None:
        self.running = await ScriptedUpstream(otherwise=self.answer, keep=0, port=self.port).__aenter__()
        self.port = self.running.port

    async def stop(self) -> None:
        if self.running is not None:
            await self.running.close()
            self.running = None

    def answer(self, request: Request) -> Answer:
        asked = request.header(ID)
        if asked is None:  # a side call
            said = completion(text_message("The user spoke of foxes, the assistant of the same foxes."))
            return json_answer(said | {"usage": usage(1000, 20)})
        self.answered[asked] = request
        name, _, kind = asked.partition(" ")
        dice = random.Random(name)  # noqa: S311 - a game, not a secret
        match kind:
            case "document":
                return json_answer(document(name))
            case "upload":
                return json_answer({"name": name, "digest": hashlib.sha256(request.body).hexdigest()})
            case "error":
                return json_answer(refusal(name), status=refused_with(name))
            case "never":
                return Answer(200, SSE_HEADERS, (*events(name, 3), asyncio.Event()), Framing.CHUNKED)
            case "reset":
                return dice.choice((raw_answer(Cut.RESET), self._stream(name, dice, Cut.RESET)))
            case _:
                return self._stream(name, dice, spent(request.body) + DONE)

    def _stream(self, name: str, dice: random.Random, end: bytes | Cut) -> Answer:
        """Its events in a few bursts with pauses between them, and how it is to end."""
        loop = asyncio.get_running_loop()
        pieces: list[Piece] = []
        for number, event in enumerate(events(name, length(name))):
            pieces.append(event)
            if number % 50 == 49:
                pause = asyncio.Event()
                loop.call_later(dice.random() / 5, pause.set)
                pieces.append(pause)
        return Answer(200, SSE_HEADERS, (*pieces, end), Framing.CHUNKED)


def length(name: str) -> int:
    """Events of a stream: mostly some hundred, in one of ten so many that sockets fill."""
    number = int(hashlib.sha256(name.encode()).hexdigest()[:6], 16)
    return 8000 if number % 10 == 0 else 100 + number % 200


def events(name: str, count: int) -> tuple[bytes, ...]:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"%b %d %b"}}]}\n\n'
    return tuple(said % (name.encode(), number, b"fox " * (number % 40)) for number in range(count))


def spent(body: bytes) -> bytes:
    """A report of usage for whoever asks for it: the proxy does, none of its clients does, so none may get it."""
    if not (json.loads(body).get("stream_options") or {}).get("include_usage"):
        return b""
    report = {"choices": [], "usage": usage(len(body) // 5, 500)}
    return b"data: %b\n\n" % json.dumps(report).encode()


def refused_with(name: str) -> int:
    return STATUSES[int(name[1:]) % len(STATUSES)]


def refusal(name: str) -> dict[str, object]:
    return {"error": {"message": f"{name} is refused"}}


def document(name: str) -> dict[str, object]:
    return completion(text_message(f"{name} {'fox ' * 500}"))


# ------------------------------------------------------------------------------------------------------- the clients


@dataclass(slots=True)
class Crowd:
    """Clients, one after the other in each place; `outcomes` counts what became of them."""

    proxy: str
    upstream: Upstream
    dice: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    edited: int = 0
    number: int = 0

    async def run(self, places: int, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(places):
                group.create_task(self._place(end))

    async def _place(self, end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            self.number += 1
            visit = planned(self.dice, self.number)
            try:
                async with asyncio.timeout(PATIENCE):
                    outcome = await self._visit(visit)
            except TimeoutError:
                outcome = "STUCK"
            self.outcomes[outcome] += 1
            self.faults += [self._fault(outcome, visit)] if outcome in FAULTS else []
            self.upstream.answered.pop(visit.asked, None)

    def _fault(self, outcome: str, visit: "Visit") -> str:
        """What went wrong, and how far the upstream had come with it."""
        match self.upstream.answered.get(visit.asked):
            case None:
                how_far = "the upstream never got it"
            case request if request.answered.is_set():
                how_far = "the upstream had sent all of it"
            case request if request.client_gone.is_set():
                how_far = "the proxy had left the upstream"
            case _:
                how_far = "the upstream had not sent all of it"
        return f"{outcome}: {visit.asked}: {how_far}"

    async def _visit(self, visit: "Visit") -> str:
        try:
            async with RawClient(self.proxy, PATIENCE) as client:
                await client.send(visit.raw[: visit.sends])
                if visit.sends < len(visit.raw):
                    await leave(client, self.dice)
                    return "left in the request"
                return await self._read(client, visit)
        except (ConnectionError, Disconnected):
            return self._judged(visit, None, b"", complete=False)

    async def _read(self, client: RawClient, visit: "Visit") -> str:
        if visit.reads == 0:
            await leave(client, self.dice)
            return "left before the answer"
        head = await client.read_head()
        self.edited += any(word in (head.header("x-context-actions") or "") for word in EDITS)
        body = bytearray()
        while len(body) < visit.reads and (chunk := await client.read_chunk()) is not None:
            body += chunk
            if visit.is_slow and self.dice.random() < 0.3:
                await asyncio.sleep(0.02)
        if len(body) >= visit.reads:
            await leave(client, self.dice)
            return "left in the answer"
        return self._judged(visit, head.status, bytes(body), complete=bool(client.ended))

    def _judged(self, visit: "Visit", status: int | None, body: bytes, *, complete: bool) -> str:
        request = self.upstream.answered.get(visit.asked)
        is_sent = request is not None and request.answered.is_set()
        return judged(visit, Ending(status, body, complete, is_sent))


async def leave(client: RawClient, dice: random.Random) -> None:
    await (client.reset() if dice.random() < 0.5 else client.disconnect())


@dataclass(frozen=True, slots=True)
class Visit:
    """What one client does: sends so many bytes of its request, reads so many of the answer, slowly or not."""

    asked: str
    raw: bytes
    sends: int
    reads: int
    is_slow: bool
    status: int
    expects: bytes


STAYS = 10**12
EDITS = ("summarize=", "elide=", "drop=", "shorten=")
OURS = (502, 504)
"""What the proxy answers where the upstream broke off."""

FAULTS = ("DAMAGED", "LOST", "MADE UP", "STUCK")

KINDS = ("stream",) * 11 + ("document",) * 3 + ("upload",) * 2 + ("error", "reset", "reset", "never")


@dataclass(frozen=True, slots=True)
class Ending:
    """What a client got that waited to the end; `status` is None where that was no head.

    `is_sent` says whether all of the upstream's answer had gone into the kernel's hands.
    """

    status: int | None
    body: bytes
    is_complete: bool
    is_sent: bool


def judged(visit: Visit, ending: Ending) -> str:
    """What became of it, in a word or two."""
    if ending.is_complete and ending.status == visit.status:
        return "whole" if ending.body == visit.expects else "DAMAGED"
    if ending.is_sent:
        return "LOST"
    if ending.is_complete and ending.status not in OURS:
        return "MADE UP"
    return "broken by the upstream"


def planned(dice: random.Random, number: int) -> Visit:
    kind, name = dice.choice(KINDS), f"n{number}"
    body, expects = _asked(kind, name, dice)
    path = "/v1/files" if kind == "upload" else "/v1/chat/completions"
    fields = [("Content-Type", "application/json"), (ID, f"{name} {kind}"), ("Authorization", "Bearer soak")]
    raw = request_bytes("POST", path, host="proxy", body=body, headers=fields)
    leaves = kind == "never" or dice.random() < 0.3
    reads = dice.choice((0, 1, dice.randrange(30_000))) if leaves else STAYS
    sends = dice.randrange(len(raw)) if dice.random() < 0.05 else len(raw)
    if kind == "never":
        reads = min(reads, 100)  # less than it sends
    status = refused_with(name) if kind == "error" else 200
    return Visit(f"{name} {kind}", raw, sends, reads, dice.random() < 0.15, status, expects)


def _asked(kind: str, name: str, dice: random.Random) -> tuple[bytes, bytes]:
    """A request's body, and the body of the answer where it comes whole."""
    if kind == "upload":
        body = dice.randbytes(200_000)
        answer = {"name": name, "digest": hashlib.sha256(body).hexdigest()}
        return body, json_answer(answer).body
    turns = dice.choice((1, 1, 3, 120))
    talk = dice.randrange(CONVERSATIONS)
    text = f"conversation {talk} speaks of the quick brown fox that reads the next line of the file. " * 6
    messages = [
        {"role": ("user", "assistant")[turn % 2], "content": f"{turn} {text}"} for turn in range(turns | 1)
    ]
    asked = {"model": "m", "messages": messages, "stream": kind not in ("document", "error")}
    match kind:
        case "document":
            expects = json_answer(document(name)).body
        case "error":
            expects = json_answer(refusal(name)).body
        case _:
            expects = b"".join((*events(name, length(name)), DONE))
    return json.dumps(asked).encode(), expects


# ----------------------------------------------------------------------------------------------------------- the whole


@dataclass(frozen=True, slots=True)
class Result:
    """What is printed, and what decides."""

    start: Figures
    highest: Figures
    end: Figures
    left_open: int
    crowd: Crowd
    errors: list[str]

    def complaints(self) -> list[str]:
        start, end = self.start, self.end
        grown = [
            f"{name}: {before} at the start, {after} at the end"
            for name, before, after in (
                ("connections", start.connections, end.connections),
                ("tasks", start.tasks, end.tasks),
                ("descriptors", start.descriptors, end.descriptors),
            )
            if after > before
        ]
        if end.memory > start.memory + GROWTH:
            grown.append(f"memory: {end.memory - start.memory:.0f} MiB more than at the start")
        if not self.crowd.edited:
            grown.append("no request was edited, so that this run says nothing of those")
        if self.left_open:
            grown.append(f"{self.left_open} connections to the upstream were left open")
        return [*grown, *self.crowd.faults[:20], *(f"logged: {line}" for line in self.errors[:20])]


async def run(streams: int, seconds: float) -> Result:
    upstream = Upstream()
    await upstream.start()
    try:
        async with proxied(f"http://127.0.0.1:{upstream.port}/v1") as proxy:
            crowd = Crowd(proxy.url, upstream, random.Random(1))  # noqa: S311
            await crowd.run(streams, max(1.0, seconds / 5))
            start = await settled(proxy, upstream, None)
            crowd = Crowd(proxy.url, upstream, random.Random(2), number=crowd.number)  # noqa: S311
            highest = await _watched(crowd, proxy, upstream, (streams, seconds))
            end = await settled(proxy, upstream, start)
            left_open = upstream.running.open_connections if upstream.running else 0
            return Result(start, highest, end, left_open, crowd, proxy.errors)
    finally:
        await upstream.stop()


async def _watched(crowd: Crowd, proxy: Proxy, upstream: Upstream, load: tuple[int, float]) -> Figures:
    """The highest figures while the crowd is there and the upstream comes and goes."""
    streams, seconds = load
    task = asyncio.create_task(crowd.run(streams, seconds))
    highest = await proxy.figures()
    loop = asyncio.get_running_loop()
    pause = min(5.0, seconds / 3)
    due = loop.time() + pause
    while not task.done():
        await asyncio.wait([task], timeout=0.25)
        highest = highest.highest(await proxy.figures())
        if loop.time() >= due and not task.done():
            await upstream.stop()
            await asyncio.sleep(0.2)
            await upstream.start()
            due = loop.time() + pause
    await task
    return highest


async def settled(proxy: Proxy, upstream: Upstream, start: Figures | None) -> Figures:
    """The figures once idle connections and side calls have ended, or after the time that they get for it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLING
    while True:
        await asyncio.sleep(0.25)
        now = await proxy.figures()
        is_quiet = upstream.running is not None and not upstream.running.open_connections
        is_back = start is None or (now.tasks <= start.tasks and now.descriptors <= start.descriptors)
        if (is_quiet and is_back) or loop.time() > end:
            return now


def show(result: Result, streams: int, seconds: float) -> int:
    columns = ("connections", "tasks", "descriptors", "memory MiB")
    print(f"{'':10}" + "".join(f"{column:>14}" for column in columns))
    for name, each in (("start", result.start), ("highest", result.highest), ("end", result.end)):
        cells = (each.connections, each.tasks, each.descriptors, f"{each.memory:.0f}")
        print(f"{name:10}" + "".join(f"{cell:>14}" for cell in cells))
    total = result.crowd.outcomes.total()
    print(f"\n{total} requests in {seconds:.0f} s, {streams} at a time:")
    for outcome, count in result.crowd.outcomes.most_common():
        print(f"  {outcome:24}{count:8}")
    print(f"Of those that were answered {result.crowd.edited} had been edited.")
    complaints = result.complaints()
    print(
        "\n".join(["", *complaints])
        if complaints
        else "\nEverything is back at the start, and nothing was lost."
    )
    return 1 if complaints else 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.serve:
            runner.run(serve(options.serve))
            return 0
        return show(runner.run(run(options.streams, options.seconds)), options.streams, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
