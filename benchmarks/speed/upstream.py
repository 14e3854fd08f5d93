"""The upstream of the long conversations and the streams: `python -m benchmarks.speed.upstream PORT`.

Rules. It reads a request to its end before it answers. How it answers is said by the request's field `x-answer`, which
every relay passes on: nothing for a whole completion, `paced CHUNKS SECONDS` for a stream with so many seconds between
two chunks, `flood CHUNKS` for one as fast as it is taken, `idle` for one of a single chunk that never ends. Each chunk
of a stream says when it was sent, by the machine's monotonic clock in nanoseconds.
"""

import asyncio
import json
import re
import sys
import time
from typing import Final, cast

import uvloop

TEXT: Final = (
    "The agent has read the modules one after the other. The handlers check what they are given, the client opens one "
    "connection a request, and the tests cover both. Two things are open: the retry in src/client.py waits too long, "
    "and the limit of 8190 bytes for a line is nowhere configured. The user wants both changed, with a test each, and "
    "no other file touched. Next comes src/retry.py, whose tests fail with a timeout of 30 seconds."
)
"""Long and plain enough to be taken for a summary too."""

BYTES_OF_TEN_TOKENS: Final = 37
"""What this upstream counts goes by the bytes; natural text and code have about so many."""

EVENT: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":"%d "},"finish_reason":null}]}\n\n'
)
USAGE: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
DONE: Final = b"data: [DONE]\n\n"
HEAD_OF_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)

_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_ANSWER: Final = re.compile(rb"(?i)\r\nx-answer: *([^\r]+)")
_CHUNKED: Final = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
_ASKS_FOR_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')


def completion(prompt_tokens: int) -> bytes:
    """A whole answer."""
    message = {"role": "assistant", "content": TEXT}
    used = {"prompt_tokens": prompt_tokens, "completion_tokens": 90, "total_tokens": prompt_tokens + 90}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    fields = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
    return json.dumps(fields | {"choices": [choice], "usage": used}, separators=(",", ":")).encode()


def tokens_of(size: int) -> int:
    """What this upstream counts of a body of so many bytes."""
    return max(1, size * 10 // BYTES_OF_TEN_TOKENS)


def framed(piece: bytes) -> bytes:
    """A chunk as HTTP has it."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class Connection(asyncio.Protocol):
    """One connection, on which one request follows the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._forget()

    def _forget(self) -> None:
        self._head, self._pieces, self._missing = b"", list[bytes](), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = head
            assert not _CHUNKED.search(head), "this upstream takes bodies whose length is told"
            length = _LENGTH.search(head)
            self._missing = int(length[1]) if length else 0
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            self._answer(self._head, self._pieces)

    def _answer(self, head: bytes, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        asked = _ANSWER.search(head)
        words = asked[1].split() if asked else []
        usage = b""
        if words and _ASKS_FOR_USAGE.search(b"".join(pieces)):
            prompt = tokens_of(size)
            usage = USAGE % (prompt, 100, prompt + 100)
        self._forget()
        match words:
            case [b"paced", chunks, seconds]:
                self._write(HEAD_OF_STREAM)
                now = asyncio.get_running_loop().time()
                self._pace(int(chunks), now, float(seconds), usage)
            case [b"flood", chunks]:
                event = framed(EVENT % time.monotonic_ns())
                self._write(HEAD_OF_STREAM + event * int(chunks) + self._end(usage))
            case [b"idle"]:
                self._write(HEAD_OF_STREAM + framed(EVENT % time.monotonic_ns()))
            case _:
                body = completion(tokens_of(size))
                fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
                self._write(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (fields, body))

    def _pace(self, left: int, due: float, seconds: float, usage: bytes) -> None:
        if self._transport is None:
            return
        self._write(framed(EVENT % time.monotonic_ns()))
        if left > 1:
            due += seconds
            asyncio.get_running_loop().call_at(due, self._pace, left - 1, due, seconds, usage)
        else:
            self._write(self._end(usage))

    def _end(self, usage: bytes) -> bytes:
        return (framed(usage) if usage else b"") + framed(DONE) + b"0\r\n\r\n"

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int) -> None:
    """Listen on a port of the loopback interface until the process ends."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
