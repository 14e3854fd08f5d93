"""A store that can be out of reach, and the memory that this process works on from while it is.

Rules. While the store answers, it alone is asked and believed. A call that fails begins an outage: from then on calls
are answered from memory at once, and one task tries the store every few seconds, so that no request waits for it. A
store that can be read though it takes nothing in is read in an outage too, until reading fails as well.
What is claimed in an outage is unconfirmed: it serves this process as if it had won, is written over nothing, and does
not outlive the outage. Before the store is believed to be back, each unconfirmed value is claimed from it again, and
the winner takes its place. The same goes for a claim of which no answer came: nobody knows whether the store took it.
An outage is told once when it begins and once when it ends.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from proxy.errors import StoreUnavailable
from proxy.stores.memory import MemoryStore
from proxy.stores.protocol import Bounds, Opened, Store, Tell

RETRY: Final = 3.0
"""Seconds between two tries of a store that is out of reach."""

PROBE: Final = "store:probe"
"""The key that is written to find out whether the store takes things in: many a full or read-only one can be read."""


class Shielded:
    """The store behind, with the memory in front of it. `available` is False in an outage.

    `mirrors` says that every outage is one of reading as well, so that the memory keeps what is read and claimed; else
    it holds only what the store could not take. The memory's clock counts seconds.
    """

    def __init__(
        self,
        behind: Store,
        memory: MemoryStore,
        tell: Tell,
        *,
        mirrors: bool,
        most: int,
        retry: float = RETRY,
    ) -> None:
        """`most` unconfirmed claims are kept, and the store is tried every `retry` seconds in an outage."""
        self._behind = behind
        self._memory = memory
        self._tell = tell
        self._mirrors = mirrors
        self._most = most
        self._retry = retry
        self._is_readable = False  # in an outage
        self._unconfirmed: OrderedDict[str, None] = OrderedDict()
        self._outages = 0
        self._trying: asyncio.Task[None] | None = None
        self.available = True

    async def check(self) -> None:
        """Find out whether the store answers; an outage begins where it does not."""
        with contextlib.suppress(StoreUnavailable):
            await self.write({PROBE: b""})

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys; in an outage those that this process has. Never raises."""
        if self.available or self._is_readable:
            outages = self._outages
            try:
                values = await self._behind.read(keys)
            except StoreUnavailable as error:
                self._begin_outage(error, outages)
                self._is_readable = False
            else:
                return await self._completed(keys, values)
        return await self._memory.read(keys)

    async def write(self, values: Mapping[str, bytes]) -> None:
        """These values under their keys from now on. Raises `StoreUnavailable` in an outage: keep them, try again."""
        self._refuse_in_outage()
        outages = self._outages
        try:
            await self._behind.write(values)
        except StoreUnavailable as error:
            self._begin_outage(error, outages)
            raise
        if self._mirrors:
            await self._memory.write(values)

    async def claim(self, key: str, value: bytes) -> bytes:
        """The value that is under the key afterwards; in an outage as far as this process knows. Never raises."""
        if self.available:
            outages = self._outages
            try:
                winner = await self._behind.claim(key, value)
            except StoreUnavailable as error:
                self._begin_outage(error, outages)
            else:
                if self._mirrors:
                    await self._memory.write({key: winner})
                return winner
        return await self._claim_unconfirmed(key, value)

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete what is under these keys. Raises `StoreUnavailable` when only this process could forget it."""
        for key in keys:
            self._unconfirmed.pop(key, None)
        await self._memory.forget(keys)
        self._refuse_in_outage()
        outages = self._outages
        try:
            await self._behind.forget(keys)
        except StoreUnavailable as error:
            self._begin_outage(error, outages)
            raise

    async def close(self) -> None:
        """End the tries and the store behind; what is unconfirmed is lost."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        await self._behind.close()

    async def _completed(self, keys: Sequence[str], values: list[bytes | None]) -> list[bytes | None]:
        """What the store answered, once the memory has been brought in line with it, or has added what it alone has."""
        if not self.available:
            known = await self._memory.read(keys)
            return [mine if value is None else value for value, mine in zip(values, known, strict=True)]
        if self._mirrors:
            found = dict(zip(keys, values, strict=True))
            await self._memory.forget([key for key, value in found.items() if value is None])
            await self._memory.write({key: value for key, value in found.items() if value is not None})
        return values

    async def _claim_unconfirmed(self, key: str, value: bytes) -> bytes:
        [known] = await self._memory.read([key])
        if known is not None:
            return known
        await self._memory.write({key: value})
        self._unconfirmed[key] = None
        if len(self._unconfirmed) > self._most:
            self._unconfirmed.popitem(last=False)
        return value

    def _refuse_in_outage(self) -> None:
        if not self.available:
            raise StoreUnavailable("the store is out of reach; it is tried again every few seconds")

    def _begin_outage(self, error: StoreUnavailable, outages: int) -> None:
        """Unless there is one, or the call that failed was sent before one that is over by now."""
        if self.available and outages == self._outages:
            self.available = False
            self._is_readable = not self._mirrors
            self._outages += 1
            self._tell("store_down", reason=error.message)
            self._trying = asyncio.get_running_loop().create_task(self._try_again())

    async def _try_again(self) -> None:
        began = time.monotonic()
        claims = 0
        while not self.available:
            await asyncio.sleep(self._retry)
            with contextlib.suppress(StoreUnavailable):
                await self._behind.write({PROBE: b""})
                while self._unconfirmed:
                    claims += await self._confirm(next(iter(self._unconfirmed)))
                self.available = True  # in the same step in which nothing was left unconfirmed
        self._tell("store_back", seconds=round(time.monotonic() - began, 1), claims=claims)

    async def _confirm(self, key: str) -> int:
        """Claim from the store what this process took for granted, as far as it still has it."""
        [value] = await self._memory.read([key])
        if value is not None:
            winner = await self._behind.claim(key, value)
            if key not in self._unconfirmed:  # forgotten in the meantime
                await self._behind.forget([key])
            elif self._mirrors:
                await self._memory.write({key: winner})
            else:
                await self._memory.forget([key])
        self._unconfirmed.pop(key, None)
        return int(value is not None)


async def shield(behind: Store, bounds: Bounds, tell: Tell, *, mirrors: bool) -> Opened:
    """A store with a memory in front that has the same bounds; it is tried once, so that an outage is told at once."""
    memory = MemoryStore(
        time.monotonic,
        max_entries=bounds.max_entries,
        max_bytes=bounds.max_bytes,
        max_age=bounds.max_age,
    )
    shielded = Shielded(behind, memory, tell, mirrors=mirrors, most=bounds.max_entries)
    await shielded.check()
    return Opened(shielded, lambda: shielded.available)
