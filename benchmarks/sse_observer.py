"""What it costs to watch a stream: chunks per second of `Observer` and `UsageFilter` beside a bare loop.

Run it as `python -m benchmarks.sse_observer` from the top of the checkout; it takes about a minute. The
three are measured in turn within each round, in processor time, and compared within the round, so that a
busy machine slows all of them; the ratios printed are medians over the rounds. The last lines show that one
long event costs time in proportion to its length.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median

from proxy.wire.sse import Observer, UsageFilter

EVENTS = 100_000
ROUNDS = 5
LONG_EVENT_BYTES = 4 * 1024 * 1024
READ_BYTES = 16 * 1024

Feed = Callable[[bytes], bytes]


class Bare:
    """A relay that looks at nothing."""

    def feed(self, chunk: bytes) -> bytes:
        return chunk


def events(line_end: bytes = b"\n", null: bytes = b"null", more: bytes = b"") -> Iterator[bytes]:
    """A stream as OpenAI's servers send it, one event after the other."""
    head = b'data: {"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk",'
    head += b'"created":1741569952,"model":"gpt-4.1-2025-04-14","system_fingerprint":"fp_4d1a9b2c3e",'
    for number in range(EVENTS):
        delta = b'"choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,' % number
        yield head + delta + b'"finish_reason":' + null + b"}]" + more + b"}" + line_end + line_end
    usage = b'"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":100000,"total_tokens":100019}}'
    yield head + usage + line_end + line_end
    yield b"data: [DONE]" + line_end + line_end


def streams() -> dict[str, list[bytes]]:
    joined = b"".join(events())
    plain = list(events())
    running = b',"usage":{"prompt_tokens":19,"completion_tokens":7,"total_tokens":26}'
    return {
        "one event a chunk": plain,
        '  with "usage":null': list(events(more=b',"usage":null')),
        "  with spaces and CRLF": list(events(b"\r\n", b" null")),
        "  with lone CR": list(events(b"\r")),
        "  with a running usage": list(events(more=running)),
        "eight events a chunk": [b"".join(plain[at : at + 8]) for at in range(0, len(plain), 8)],
        "reads of 16 KiB": [joined[at : at + READ_BYTES] for at in range(0, len(joined), READ_BYTES)],
        "two chunks an event": [half for event in plain for half in (event[:120], event[120:])],
    }


def seconds(feed: Feed, chunks: list[bytes]) -> float:
    started = time.process_time()
    for chunk in chunks:
        feed(chunk)
    return time.process_time() - started


def compare(name: str, chunks: list[bytes]) -> None:
    rounds = [
        [seconds(watch.feed, chunks) for watch in (Bare(), Observer(), UsageFilter())] for _ in range(ROUNDS)
    ]
    cells = [f"{name:<24}{len(chunks):>8}"]
    for column in range(3):
        rate = len(chunks) / median(times[column] for times in rounds)
        ratio = median(times[column] / times[0] for times in rounds)
        cost = median((times[column] - times[0]) / EVENTS for times in rounds)
        cells.append(f"{rate:>12,.0f}/s{ratio:>7.1f}x{cost * 1e9:>7.0f}ns")
    print(*cells)


def compare_lengths() -> None:
    """One event of twice the length, in reads of the same size: about twice the time, not four times."""

    def reads(length: int) -> list[bytes]:
        event = b'data: {"choices":[],"usage":{"prompt_tokens":1},"x":"' + b"y" * length + b'"}\n\n'
        return [event[at : at + READ_BYTES] for at in range(0, len(event), READ_BYTES)]

    short, long = reads(LONG_EVENT_BYTES), reads(2 * LONG_EVENT_BYTES)
    for watcher in (Observer, UsageFilter):
        pairs = [(seconds(watcher().feed, short), seconds(watcher().feed, long)) for _ in range(ROUNDS)]
        ratio = median(twice / once for once, twice in pairs)
        once = median(once for once, _ in pairs)
        print(f"{watcher.__name__:<24}{once * 1e3:>8.1f} ms for 4 MiB;{ratio:>6.1f}x for 8 MiB")


def main() -> None:
    columns = "".join(f"{title:>30}" for title in ("bare loop", "Observer", "UsageFilter"))
    print(f"{'stream':<24}{'chunks':>8}{columns}")
    print(f"{'':<32}{'chunks/s   ratio   added/event':>91}")
    for name, chunks in streams().items():
        compare(name, chunks)
    compare_lengths()


if __name__ == "__main__":
    main()
