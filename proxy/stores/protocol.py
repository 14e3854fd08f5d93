"""What every store is: bytes under short keys, bounded, shared by all who open the same place.

Rules. A store knows nothing of what it holds and logs none of it: neither keys nor values. Values come back as the very
bytes that were handed in. Whatever keeps a store from answering at run time is `StoreUnavailable`; whatever is wrong
with the place it was pointed at is `ConfigError`, before anything is served.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Store(Protocol):
    """Keys are short ASCII texts of `[a-z0-9:-]`, values up to a few hundred KB.

    An entry ends `max_age` seconds after its last use; the store may note a use no more often than every tenth of that.
    Every method may raise `StoreUnavailable`.
    """

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, in one round trip; reading keeps an entry young."""
        ...

    async def write(self, values: Mapping[str, bytes]) -> None:
        """These values under their keys from now on, in one round trip."""
        ...

    async def claim(self, key: str, value: bytes) -> bytes:
        """Put if absent, in one round trip: the value that is there afterwards, whoever put it."""
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete what is under these keys."""
        ...

    async def close(self) -> None:
        """End connections and threads; the store is not used afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most entries, the most bytes of keys and values together, and seconds since an entry's last use."""

    max_entries: int
    max_bytes: int
    max_age: float


class Tell(Protocol):
    """Takes an event for the log: its name, and facts that are counts and fixed words."""

    def __call__(self, event: str, **facts: object) -> object:
        """Write the event."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store. `shared` says whether what is claimed now reaches all who use the same store."""

    store: Store
    shared: Callable[[], bool]
