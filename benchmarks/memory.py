"""Resident memory of a proxy that many large conversations go through, one after the other.

Run: python -m benchmarks.memory [--conversations 10000] [--bytes 1000000] [--requests 2]

A proxy process with default limits and a window of 128k tokens serves conversations that are all different, each of
about so many bytes and of so many requests; an upstream beside it answers at once. What is printed is the proxy's
resident memory (VmRSS of Linux's /proc/PID/status) before the first, at intervals, and at its highest: what is kept of
a conversation is bounded in number and bytes, so the curve must flatten.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from proxy.demo.replies import completion, text_message, usage
from tests.peers.upstream import ScriptedUpstream, json_answer

MESSAGES = 20
WINDOW = 128_000
INTERVALS = 20


def conversation(number: int, size: int) -> list[dict[str, str]]:
    """Messages that no other conversation has, of about `size` bytes together."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": "".join(_text(number, i, size // MESSAGES))}
        for i in range(MESSAGES - 1)
    ]


def _text(number: int, index: int, size: int) -> Iterator[str]:
    word = hashlib.sha256(f"{number} {index}".encode()).hexdigest()
    for line in range(size // 80):
        yield f"{line:6} the quick brown fox of {word[:16]} reads the next line of the file again\n"


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[tuple[int, str]]:
    """A proxy process that is started with these words: its pid and URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", *words, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    while (told := json.loads(await process.stderr.readline()))["event"] != "listening":
        pass
    url = told["url"]
    drain = asyncio.create_task(process.stderr.read())
    try:
        yield process.pid, url
    finally:
        process.terminate()
        await process.wait()
        await drain


def resident(pid: int) -> int:
    """Bytes of resident memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


async def run(conversations: int, size: int, requests: int) -> None:
    whole = completion(text_message("A short answer."), usage=usage(50_000, 5))
    async with (
        ScriptedUpstream(otherwise=json_answer(whole), keep=1) as upstream,
        served("--upstream", upstream.base_url, "--listen", "127.0.0.1:0", "--window", str(WINDOW)) as (
            pid,
            url,
        ),
        aiohttp.ClientSession() as client,
    ):
        start = highest = resident(pid)
        print(
            f"{'conversations':>13}  {'resident MiB':>12}  {'seconds':>7}\n{0:13}  {start / 2**20:12.0f}  {0:7.0f}"
        )
        began = time.perf_counter()
        for number in range(1, conversations + 1):
            messages = conversation(number, size)
            for count in range(MESSAGES - 2 * requests + 1, MESSAGES, 2):
                body = json.dumps({"model": "m", "messages": messages[:count]}).encode()
                async with client.post(f"{url}/v1/chat/completions", data=body) as answer:
                    assert answer.status == 200
                    await answer.read()
            highest = max(highest, resident(pid))
            if number % max(1, conversations // INTERVALS) == 0:
                seconds = time.perf_counter() - began
                print(f"{number:13}  {resident(pid) / 2**20:12.0f}  {seconds:7.0f}", flush=True)
        over = (highest - start) / 2**20
        print(f"\nhighest {highest / 2**20:.0f} MiB, {over:.0f} MiB over the start ({os.uname().machine})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=2)
    options = parser.parse_args()
    asyncio.run(run(options.conversations, options.bytes, options.requests))


if __name__ == "__main__":
    main()
