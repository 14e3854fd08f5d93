"""Answers that put a client to the test: refusals, silence, and a stream that does not go on.

Rules. Each call makes a new one, since an answer that waits holds an event of its own.
"""

import asyncio
from dataclasses import replace

from tests.peers.upstream import Answer, chunks, json_answer, sse_answer, text_message

WORDS = ["", "One", " two"]
"""What comes of `halting`."""


def refusal(status: int, code: str = "because", **fields: str) -> Answer:
    """An error with this status and code; `fields` are headers, with _ for -."""
    said = {"error": {"message": "No.", "type": "server_error", "param": None, "code": code}}
    headers = [(name.replace("_", "-"), value) for name, value in fields.items()]
    answer = json_answer(said, status=status)
    return replace(answer, headers=(*answer.headers, *headers))


def silence() -> Answer:
    """An answer that never comes."""
    return replace(json_answer({}), before=asyncio.Event())


def halting() -> Answer:
    """A stream that says its first words and never ends."""
    stream = sse_answer(chunks(text_message("One two three four.")))
    first = b"".join(piece for piece in stream.pieces[: len(WORDS)] if isinstance(piece, bytes))
    return stream.pausing(len(first), asyncio.Event())
