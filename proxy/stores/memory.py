"""Entries in the process's own memory: the default store, and the copy that stands in front of a distant one.

Rules. Bounded in entries, bytes and age at every moment, least recently used first out; a value that is larger than
all the room there is is not kept, and nothing makes way for it. No method ever waits, so each is one step for every
task of the event loop.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.stores.protocol import Bounds, Opened, Tell

ROOM: Final = 64 * 2**20
"""Bytes of keys and values where nothing else is said."""


class MemoryStore:
    """Keys and values, each with the time (seconds of `clock`) at which it was last used."""

    def __init__(
        self, clock: Callable[[], float], *, max_entries: int, max_age: float, max_bytes: int = ROOM
    ) -> None:
        """`clock` tells seconds and never goes back; `max_age` is in seconds since an entry was last used."""
        self._clock = clock
        self._bounds = Bounds(max_entries, max_bytes, max_age)
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # longest unused first
        self._bytes = 0

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys; reading keeps an entry young."""
        self._trim()
        if self._entries.keys().isdisjoint(keys):
            return [None] * len(keys)
        return [self._used(key) if key in self._entries else None for key in keys]

    async def write(self, values: Mapping[str, bytes]) -> None:
        """These values under their keys from now on."""
        for key, value in values.items():
            self._put(key, value)

    async def claim(self, key: str, value: bytes) -> bytes:
        """The value that is under the key afterwards: the one that was there, else this one."""
        self._trim()
        present = self._used(key)
        if present is not None:
            return present
        self._put(key, value)
        return value

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete what is under these keys."""
        for key in keys:
            self._drop(key)

    async def close(self) -> None:
        """Nothing to close; the other stores have connections."""

    def _used(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries[key] = (self._clock(), entry[1])
        self._entries.move_to_end(key)
        return entry[1]

    def _put(self, key: str, value: bytes) -> None:
        self._drop(key)
        if _size(key, value) <= self._bounds.max_bytes:
            self._entries[key] = (self._clock(), value)
            self._bytes += _size(key, value)
        self._trim()

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry[1])

    def _trim(self) -> None:
        bounds, oldest = self._bounds, self._clock() - self._bounds.max_age
        while self._entries:
            key, (used, _) = next(iter(self._entries.items()))
            is_full = len(self._entries) > bounds.max_entries or self._bytes > bounds.max_bytes
            if not is_full and used >= oldest:
                return
            self._drop(key)


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)


async def open_memory(url: str, bounds: Bounds, tell: Tell) -> Opened:
    """An empty store. Nobody else can use it, so what is claimed always reaches all who do."""
    store = MemoryStore(
        time.monotonic,
        max_entries=bounds.max_entries,
        max_bytes=bounds.max_bytes,
        max_age=bounds.max_age,
    )
    return Opened(store, lambda: True)
