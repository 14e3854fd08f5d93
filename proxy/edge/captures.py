"""The text of requests of late, where the configuration has it kept: as it came, and as it was forwarded.

Rules. In memory alone and bounded, in number and in bytes; the oldest go first, and all with the process. A holder of a
token sees its own and nobody else's. Nothing is kept unless `capture` says so.
"""

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from proxy.wire import comparison
from proxy.wire.comparison import Pair

MOST: Final = 50
MOST_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Capture:
    """One request, of one holder."""

    holder: str
    original: bytes
    forwarded: bytes

    @property
    def size(self) -> int:
        """Bytes; a body that went on as it came is one and the same."""
        return len(self.original) + (len(self.forwarded) if self.forwarded is not self.original else 0)


class Captures:
    """`most_bytes` is 0 where nothing is to be kept."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Capture] = OrderedDict()

    def bound(self, most_bytes: int) -> None:
        """Keep so much from now on, also of what is there."""
        self._most_bytes = most_bytes
        self._shrink()

    def keep(self, holder: str, original: bytes, forwarded: bytes) -> str:
        """Keep a request; the name that it is asked for by, empty where it is too large or nothing is kept."""
        if not self._most_bytes:
            return ""
        capture = Capture(holder, original, forwarded)
        if capture.size > self._most_bytes:
            return ""
        name = secrets.token_hex(8)
        self._kept[name] = capture
        self._bytes += capture.size
        self._shrink()
        return name

    async def opened(self, holder: str, name: str) -> tuple[Pair, ...] | None:
        """Both sides of a request; None where none of this name is kept for this holder."""
        capture = self._kept.get(name)
        if capture is None or capture.holder != holder:
            return None
        # Thousands of messages take a while to compare.
        return await asyncio.to_thread(comparison.compare, capture.original, capture.forwarded)

    def _shrink(self) -> None:
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].size
