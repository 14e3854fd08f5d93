"""Where checkpoints and learned values are kept: one small protocol, and a table of the places.

Rules. A new store is one file and one row; nobody outside names a kind. What a place cannot do is said when it is
opened, or is `StoreUnavailable` later.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from proxy.stores.memory import open_memory
from proxy.stores.needs import check
from proxy.stores.protocol import Bounds, Opened, Store, Tell
from proxy.stores.sqlite import open_sqlite

__all__ = ["OPENERS", "Bounds", "Opened", "Store", "Tell", "check", "open_store"]


async def _open_redis(url: str, bounds: Bounds, tell: Tell) -> Opened:
    """Its client is an extra, and takes a fifth of a second to import: whoever does not use it does without."""
    check(url)
    from proxy.stores.redis import open_redis  # noqa: PLC0415

    return await open_redis(url, bounds, tell)


OPENERS: Final[Mapping[str, Callable[[str, Bounds, Tell], Awaitable[Opened]]]] = MappingProxyType(
    {"memory": open_memory, "sqlite": open_sqlite, "redis": _open_redis, "rediss": _open_redis}
)
"""How to open a store, by the scheme of its URL."""


@asynccontextmanager
async def open_store(url: str, bounds: Bounds, tell: Tell) -> AsyncIterator[Opened]:
    """The store at a URL, open while this lasts; `tell` hears of outages. Raises `ConfigError` where there is none."""
    opened = await OPENERS[url.partition(":")[0]](url, bounds, tell)
    try:
        yield opened
    finally:
        await opened.store.close()
