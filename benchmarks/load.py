"""Thousands of requests over kept connections by `wrk`, each answer compared byte by byte with what it must be.

Run: python -m benchmarks.load [--seconds 5] [--connections 32 200]

A proxy process stands before an upstream that echoes a request's body, streams events, or answers what was asked for
about a conversation that is larger than the window. `load.lua` builds each request and knows its answer; a row tells
how many requests there were, how many of them were answered and came edited, and how many answers were damaged or never
came. Where one was, or where wrk saw an error of a connection, the exit status is 1. Without wrk nothing is measured,
and a sentence says so.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.memory import served
from proxy.demo.replies import completion, text_message, usage
from tests.peers.answers import SSE_HEADERS, Answer, Framing, bytes_answer, json_answer, slices
from tests.peers.client import RawClient
from tests.peers.scripted import Request, ScriptedUpstream

SCRIPT = Path(__file__).with_suffix(".lua")
CHAT = "/v1/chat/completions"
NO_WRK = "wrk is not installed, so nothing is measured (Debian: apt-get install wrk)."

CONFIGURATION = """
listen: 127.0.0.1:0
log: {{format: json}}
upstream: {{base_url: {upstream}}}
models:
  - {{match: tight, window: 8k}}
  - {{match: "*", window: 128k}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked again and again. `kind` is load.lua's: echo, stream or edited; `size` is that of a message."""

    name: str
    kind: str
    size: int
    mode: str
    model: str = "roomy"


CASES = (
    Case("small, off", "echo", 200, "off"),
    Case("small, managed", "echo", 200, "manage"),
    Case("large, off", "echo", 200_000, "off"),
    Case("large, managed", "echo", 200_000, "manage"),
    Case("streamed, managed", "stream", 200, "manage"),
    Case("edited", "edited", 3_000, "manage", "tight"),
)


WARMING = json.dumps({"model": "m", "messages": [{"role": "user", "content": "fox " * 5000}]}).encode()
"""Asked before anything is measured: a vocabulary is loaded in the background when a proxy starts."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What wrk and its script counted of one case. `fault` describes one of the damaged answers."""

    asked: int
    answered: int
    damaged: int
    edited: int
    lost: int
    errors: int
    seconds: float
    fault: str

    def complaints(self, case: Case) -> list[str]:
        said = []
        if not self.answered:
            said.append("nothing was answered")
        if self.damaged:
            said.append(f"{self.damaged} answers were damaged, one of them: {self.fault}")
        if self.lost or self.errors:
            said.append(f"{self.lost} answers were lost, and wrk saw {self.errors} errors of connections")
        if case.kind == "edited" and self.edited < self.answered:
            said.append(f"{self.answered - self.edited} requests were not edited, though they did not fit")
        return [f"{case.name}: {each}" for each in said]


def answer(request: Request) -> Answer:
    """What load.lua expects, and a summary for the proxy's own calls."""
    asked = request.header("x-load")
    if asked is None:
        said = completion(text_message("The user counted, and the assistant counted with them."))
        return json_answer(said | {"usage": usage(1000, 20)})
    kind, _, marker = asked.partition(" ")
    if marker.encode() not in request.body:
        return json_answer({"error": {"message": "The newest message did not arrive."}}, status=500)
    match kind:
        case "echo":
            return bytes_answer(request.body)
        case "stream":
            return _stream(marker, wants_usage=b"include_usage" in request.body)
        case _:
            whole = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"}}]}'
            return bytes_answer(whole % marker.encode())


def _stream(marker: str, *, wants_usage: bool) -> Answer:
    event = 'data: {"choices":[{"index":0,"delta":{"content":"%s %d"}}]}\n\n'
    body = "".join(event % (marker, number) for number in range(100)).encode()
    if wants_usage:
        body += b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage(100, 100)}).encode()
    return Answer(200, SSE_HEADERS, slices(body + b"data: [DONE]\n\n", 1000), Framing.CHUNKED)


async def asked(url: str, case: Case, connections: int, seconds: float) -> Counts:
    """Have wrk ask for so long over so many connections; for longer where a busy machine answers nothing meanwhile."""
    counts = await _asked(url, case, connections, seconds)
    if counts.answered or counts.errors:
        return counts
    return await _asked(url, case, connections, 10 * seconds)


async def _asked(url: str, case: Case, connections: int, seconds: float) -> Counts:
    many, long = str(connections), f"{max(1, round(seconds))}s"
    process = await asyncio.create_subprocess_exec(
        *("wrk", "-t", many, "-c", many, "-d", long, "--timeout", "30s", "-s", str(SCRIPT), f"{url}{CHAT}"),
        *("--", case.kind, str(case.size), case.mode, case.model),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return Counts(**json.loads(said.splitlines()[-1]))


async def run(cases: Sequence[Case], connections: Sequence[int], seconds: float) -> list[str]:
    """Print a row for each case and number of connections; what is to be complained of."""
    complaints: list[str] = []
    print(
        f"{'':20}{'connections':>12}{'asked':>9}{'answered':>9}{'a second':>9}{'edited':>9}{'damaged':>9}{'lost':>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "load.yaml"
        async with ScriptedUpstream(otherwise=answer, keep=0) as upstream:
            config.write_text(CONFIGURATION.format(upstream=upstream.base_url), encoding="utf-8")
            async with served("--config", str(config)) as (_, url):
                async with RawClient(url) as client:
                    await client.post(CHAT, WARMING)
                for case in cases:
                    for many in connections:
                        counts = await asked(url, case, many, seconds)
                        print(_row(case, many, counts), flush=True)
                        complaints += counts.complaints(case)
    return complaints


def _row(case: Case, connections: int, counts: Counts) -> str:
    rate = counts.answered / counts.seconds
    return (
        f"{case.name:20}{connections:12}{counts.asked:9}{counts.answered:9}{rate:9.0f}"
        f"{counts.edited:9}{counts.damaged:9}{counts.lost + counts.errors:6}"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--connections", type=int, nargs="+", default=[32, 200])
    options = parser.parse_args(words)
    if shutil.which("wrk") is None:
        print(NO_WRK)
        return 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        complaints = runner.run(run(CASES, options.connections, options.seconds))
    print("\n".join(["", *complaints]) if complaints else "\nEvery answer came, and to the last byte.")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
