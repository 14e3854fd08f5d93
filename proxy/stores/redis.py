"""Entries in Redis or Valkey: shared by any number of replicas, and by whatever else the server is used for.

Rules. Each method is one round trip. Keys are prefixed, and each entry carries its own end, so the server forgets by
itself; how much it holds at most is its own affair (`maxmemory`). A claim is `SET NX` and `GET` in one go, which every
version understands. The end of an entry is put off when it is read, but not more often than every tenth of its age. No
credential, key or value is in any message: errors are told by the names of their kinds. Whatever is no string was put
under our key by another program and counts as absent; a claim of it is a `SET` in a second round trip, the last wins.
"""

import asyncio
import contextlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError

from proxy.errors import StoreUnavailable
from proxy.stores.protocol import Bounds, Opened, Tell
from proxy.stores.shielded import shield

PREFIX: Final = "transom:"

CONNECT_TIMEOUT: Final = 1.0
"""Seconds for a connection to open, its handshake included."""

CALL_TIMEOUT: Final = 0.5
"""Seconds for an answer, and for a free connection."""

CONNECTIONS: Final = 64
"""The most that a process opens; one serves some thousand calls a second."""

_KNOWN: Final = 50_000
"""Keys of which it is remembered when their end was last put off."""

_OWED: Final = 200
"""Ends that are put off by one call, beside those of the keys that it asks for."""

_UNKNOWN: Final = float("-inf")

_NO_STRING: Final = "WRONGTYPE "
"""How the server's answer begins to a command for strings on a key that holds a list, a hash or the like."""


class RedisStore:
    """`max_age` and `clock` are seconds; the clock tells only how long ago an end was put off."""

    def __init__(self, url: str, *, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`url` is `redis://[[user]:password@]host[:port][/database]`, or the same with `rediss` for TLS."""
        parts = urlsplit(url)
        self._place = f"{parts.hostname}:{parts.port or 6379}"
        self._end = max(1, round(max_age * 1000))
        self._interval = max_age / 10
        self._clock = clock
        self._put_off: OrderedDict[str, float] = OrderedDict()
        self._owed: dict[str, None] = {}
        # A connection that the server or something between has closed is replaced at once; nothing else is tried twice.
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=CALL_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=CALL_TIMEOUT,
            retry=Retry(NoBackoff(), 1, supported_errors=(NotConnected,)),
            protocol=2,  # with 3 the client also subscribes to notices that only some hosted servers send
            driver_info=None,  # two round trips less when a connection opens
        )
        self._client = Redis(connection_pool=self._pool)

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys."""
        if not keys:
            return []
        now = self._clock()
        due = [key for key in keys if self._put_off.get(key, now) < now - self._interval]
        pipe = self._pipeline()
        pipe.mget([PREFIX + key for key in keys])
        values: list[bytes | None] = (await self._execute(pipe, due))[0]
        for key, value in zip(keys, values, strict=True):
            if value is not None and key not in self._put_off:
                self._owe(key)
        return values

    async def write(self, values: Mapping[str, bytes]) -> None:
        """These values under their keys from now on."""
        pipe = self._pipeline()
        for key, value in values.items():
            pipe.set(PREFIX + key, value, px=self._end)
        await self._execute(pipe)
        for key in values:
            self._note(key, self._clock())

    async def claim(self, key: str, value: bytes) -> bytes:
        """The value that is under the key afterwards: the one that was there, else this one."""
        pipe = self._pipeline()
        pipe.set(PREFIX + key, value, nx=True, px=self._end)
        pipe.get(PREFIX + key)
        is_ours, winner, *_ = await self._execute(pipe)
        if isinstance(winner, RedisError):  # what is there is no string
            await self.write({key: value})
            return value
        if is_ours:
            self._note(key, self._clock())
        else:
            self._owe(key)
        return (
            value if winner is None else bytes(winner)
        )  # None: it ended, or was made to, in this very moment

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete what is under these keys."""
        if keys:
            pipe = self._pipeline()
            pipe.delete(*(PREFIX + key for key in keys))
            await self._execute(pipe)

    async def close(self) -> None:
        """Close all connections, whether the server still answers or not."""
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()
            await self._pool.aclose()

    def _pipeline(self) -> Pipeline:
        return self._client.pipeline(transaction=False)

    async def _execute(self, pipe: Pipeline, due: Sequence[str] = ()) -> list[Any]:
        """The answers to all commands, the error among them where an entry is no string: one key is no outage. What is
        due and what is owed is put off in the same go."""
        put_off = list(dict.fromkeys([*due, *itertools.islice(self._owed, _OWED)]))
        for key in put_off:
            pipe.pexpire(PREFIX + key, self._end)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT + CALL_TIMEOUT):
                answers = await pipe.execute(raise_on_error=False)  # raised ones would quote their commands
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error
        for answer in answers:
            if isinstance(answer, RedisError) and not str(answer).startswith(_NO_STRING):
                raise self._unavailable(answer) from answer
        for key in put_off:
            self._owed.pop(key, None)
            self._note(key, self._clock())
        return answers

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        first = error
        while first.__context__ is not None and not isinstance(first.__context__, asyncio.CancelledError):
            first = first.__context__
        return StoreUnavailable(f"Redis at {self._place} does not serve: {type(first).__name__}")

    def _note(self, key: str, when: float) -> None:
        self._put_off[key] = when
        self._put_off.move_to_end(key)
        if len(self._put_off) > _KNOWN:
            self._owed.pop(self._put_off.popitem(last=False)[0], None)

    def _owe(self, key: str) -> None:
        """The entry is another process's, and may be old: its end is put off by the next call, whatever that is."""
        self._note(key, _UNKNOWN)
        self._owed[key] = None


async def open_redis(url: str, bounds: Bounds, tell: Tell) -> Opened:
    """The store on this server, with a memory in front. A server that is down is told and tried again, no error."""
    return await shield(RedisStore(url, max_age=bounds.max_age), bounds, tell, mirrors=True)
