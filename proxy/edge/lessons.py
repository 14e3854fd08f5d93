"""Learned values on their way to the store: known here at once, written a little later, many at a time.

Rules. No request waits for a write of what was learned. What is not written yet wins over what the store says, so the
next request sees it. A write that fails is tried again with the next; nothing is written twice that did not change.
Bounded in number, oldest first out. One task writes, only while there is something to write, and `close` ends it.
"""

import asyncio
import contextlib
from collections import OrderedDict
from typing import Final

from proxy.errors import StoreUnavailable
from proxy.stores import Store

INTERVAL: Final = 1.0
"""Seconds that a lesson waits at most before it is written."""

MOST: Final = 2000
"""Values that are held; a model has two at most, a conversation one."""


class Lessons:
    """Values by key. They are written to `store` every `interval` seconds while there are new ones."""

    def __init__(self, store: Store, *, interval: float = INTERVAL, most: int = MOST) -> None:
        self._store = store
        self._interval = interval
        self._most = most
        self._known: OrderedDict[str, bytes | None] = OrderedDict()
        self._unwritten: OrderedDict[str, bytes] = OrderedDict()
        self._writer: asyncio.Task[None] | None = None

    def seen(self, key: str, stored: bytes | None) -> bytes | None:
        """What is known under a key, now that the store has said what it holds."""
        value = self._unwritten.get(key, stored)
        self._keep(key, value)
        return value

    def found(self, key: str, stored: bytes | None) -> bytes | None:
        """The same of one key among very many: that there is nothing under it is not worth keeping."""
        value = self._unwritten.get(key, stored)
        if value is not None or key in self._known:
            self._keep(key, value)
        return value

    def latest(self, key: str) -> bytes | None:
        """What was last heard or learned, whatever the store holds."""
        return self._known.get(key)

    async def known(self, key: str) -> bytes | None:
        """The same without asking the store, unless nothing was ever heard of the key. Raises `StoreUnavailable`."""
        if key not in self._known:
            [stored] = await self._store.read([key])
            self.seen(key, stored)
        return self._known[key]

    def put(self, key: str, value: bytes) -> None:
        """Know this from now on, and have it written."""
        if self._known.get(key) == value:
            return
        self._keep(key, value)
        self._unwritten[key] = value
        if len(self._unwritten) > self._most:
            self._unwritten.popitem(last=False)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon())

    async def close(self) -> None:
        """Write what is left, once, and end."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        await self._write()

    async def _write_soon(self) -> None:
        while self._unwritten:
            await asyncio.sleep(self._interval)
            await self._write()

    async def _write(self) -> None:
        values = dict(self._unwritten)
        if not values:
            return
        with contextlib.suppress(StoreUnavailable):
            await self._store.write(values)
            for key, value in values.items():
                if self._unwritten.get(key) is value:  # else something newer waits
                    del self._unwritten[key]

    def _keep(self, key: str, value: bytes | None) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
