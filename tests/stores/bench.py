"""What tests of stores stand on: a clock that is set, events that can be waited for, a store that fails on demand."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.asyncio import Redis

from proxy.errors import StoreUnavailable
from proxy.stores import Bounds, Store
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import PREFIX

T = TypeVar("T")

AGE = 1000.0
WIDE = Bounds(max_entries=100_000, max_bytes=2**30, max_age=AGE)


@dataclass(slots=True)
class Clock:
    """Seconds that pass when they are told to; they begin at a time of our days, as the wall clock's do."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Heard:
    """Takes events as a log does, and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._changed = asyncio.Event()

    def __call__(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))
        self._changed.set()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    async def until(self, name: str, times: int = 1) -> None:
        """Wait until this event has been told so often."""
        async with asyncio.timeout(30):
            while self.names.count(name) < times:
                self._changed.clear()
                await self._changed.wait()


class Fickle:
    """A real store that is out of reach while `down`, takes nothing in while `full`, and counts what it is asked.

    With `deaf` set it does what it is asked and its answer gets lost.
    """

    def __init__(self) -> None:
        self.kept = MemoryStore(lambda: 0.0, max_entries=WIDE.max_entries, max_age=AGE)
        self.asked: list[str] = []
        self.down = self.full = self.deaf = False
        self.closed = False
        self._called = asyncio.Event()

    async def until_asked(self, name: str, times: int) -> None:
        """Wait until this was asked for so often."""
        async with asyncio.timeout(30):
            while self.asked.count(name) < times:
                self._called.clear()
                await self._called.wait()

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        self._asked("read")
        return self._answered(await self.kept.read(keys))

    async def write(self, values: Mapping[str, bytes]) -> None:
        self._asked("write")
        await self.kept.write(values)
        self._answered(None)

    async def claim(self, key: str, value: bytes) -> bytes:
        self._asked("claim")
        return self._answered(await self.kept.claim(key, value))

    async def forget(self, keys: Sequence[str]) -> None:
        self._asked("forget")
        await self.kept.forget(keys)
        self._answered(None)

    async def close(self) -> None:
        self.closed = True

    def _asked(self, name: str) -> None:
        self.asked.append(name)
        self._called.set()
        if self.down or (self.full and name != "read"):
            raise StoreUnavailable("out of reach")

    def _answered(self, answer: T) -> T:
        if self.deaf:
            raise StoreUnavailable("no answer came")
        return answer


async def let_time_pass_in_redis(url: str, seconds: float) -> None:
    """Bring the end of every entry nearer by so many seconds."""
    async with Redis.from_url(url) as client:
        async for key in client.scan_iter(match=f"{PREFIX}*"):
            left = int(await client.pttl(key)) - int(seconds * 1000)
            if left > 0:
                await client.pexpire(key, left)
            else:
                await client.delete(key)


async def everything_of(store: Store, keys: Sequence[str]) -> dict[str, bytes]:
    """What a store has under these keys."""
    found = zip(keys, await store.read(keys), strict=True)
    return {key: value for key, value in found if value is not None}
