"""Entries in one SQLite file: embedded, kept across restarts, shared by the processes of one machine.

Rules. One thread of its own does all that touches the file, one statement after the other, so the event loop never
waits for a disk. Each method is one transaction and is in the file when it returns. Ages are told by the wall clock,
which restarts and other processes share. The bounds are kept by trimming now and then: a process writes at most a
sixteenth of what they allow before it does. A file that turns out damaged is set aside and a new one begun; one that is
no longer at its path is left for what is there. A call waits once at most for another's lock; after one that waited in
vain none waits until a transaction has begun again, and reading never waits to note a use.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from proxy.errors import ConfigError, StoreUnavailable
from proxy.stores import sqlite_file
from proxy.stores.protocol import Bounds, Opened, Tell
from proxy.stores.shielded import shield
from proxy.stores.sqlite_file import OpenFile

T = TypeVar("T")

PATIENCE: Final = 1.0
"""Seconds that a call waits for another process's lock; a transaction of ours holds it for milliseconds."""

_AT_START: Final = 10
"""So many times as long while the file is first opened, when many processes may start at once and look it through."""

_SHARE: Final = 16
"""Trimmed after a sixteenth of the entries or bytes that the bounds allow, and of the age."""

_INTERVAL: Final = 600.0
"""Seconds within which a second use of an entry is not noted; by so much the order of the longest unused may be off."""


class SqliteStore:
    """Made by `open`. `clock` tells seconds since the epoch, `patience` is seconds to wait for another's lock."""

    def __init__(
        self,
        path: Path,
        bounds: Bounds,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:
        self._table = _Table(path, bounds, tell, clock, patience)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def open(self) -> None:
        """Open or begin the file. Raises `ConfigError` when there can be none at this path."""
        try:
            await self._run(self._table.open)
        except StoreUnavailable as error:
            self._thread.shutdown()
            raise ConfigError(f"store: {error.message}") from error

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys."""
        asked = tuple(keys)
        return await self._run(lambda: self._table.read(asked))

    async def write(self, values: Mapping[str, bytes]) -> None:
        """These values under their keys from now on."""
        given = dict(values)
        await self._run(lambda: self._table.write(given))

    async def claim(self, key: str, value: bytes) -> bytes:
        """The value that is under the key afterwards: the one that was there, else this one."""
        return await self._run(lambda: self._table.claim(key, value))

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete what is under these keys; its bytes are overwritten."""
        asked = tuple(keys)
        await self._run(lambda: self._table.forget(asked))

    async def close(self) -> None:
        """Close the file, which takes its journal in, and end the thread."""
        await self._run(self._table.close)
        self._thread.shutdown()

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)


class _Table:
    """The same, one call after the other in one thread. Raises `StoreUnavailable` for whatever SQLite raises."""

    def __init__(
        self, path: Path, bounds: Bounds, tell: Tell, clock: Callable[[], float], patience: float
    ) -> None:
        self._path = path
        self._bounds = bounds
        self._tell = tell
        self._clock = clock
        self._patience = patience
        self._waits = patience * _AT_START  # seconds that the next call waits
        self._interval = min(bounds.max_age / 10, _INTERVAL)
        self._file: OpenFile | None = None
        self._untrimmed_entries = 0
        self._untrimmed_bytes = 0
        self._trimmed_at = 0.0

    def open(self) -> None:
        self._guarded(lambda database: None)
        self._waits = self._patience
        with contextlib.suppress(StoreUnavailable):  # a full disk or a lock: it is tried again
            self._guarded(self._shrink)

    def close(self) -> None:
        if self._file is not None:
            _close(self._file)
            self._file = None

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._guarded(lambda database: self._read(database, keys))

    def write(self, values: Mapping[str, bytes]) -> None:
        self._guarded(lambda database: self._write(database, values))

    def claim(self, key: str, value: bytes) -> bytes:
        return self._guarded(lambda database: self._claim(database, key, value))

    def forget(self, keys: Sequence[str]) -> None:
        self._guarded(lambda database: self._forget(database, keys))

    # --- the file, and what can happen to it ----------------------------------------------------------------------

    def _guarded(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Do a job; once more with a new file when this one turns out damaged, or goes while it is in use."""
        try:
            try:
                return job(self._database(whole=False))
            except sqlite3.DatabaseError as error:
                is_damage = sqlite_file.is_damage(error)
                if not is_damage and not self._is_gone():
                    raise
                if is_damage:
                    self.close()
                return job(self._database(whole=is_damage))
        except StoreUnavailable:
            self._waits = 0.0
            raise
        except (sqlite3.Error, OSError) as error:
            self._waits = 0.0
            raise StoreUnavailable(f"{self._path} cannot be used: {_told(error)}") from error

    def _database(self, *, whole: bool) -> sqlite3.Connection:
        """The connection to the file that is at the path now."""
        former = self._file
        if former is None or self._is_gone():
            self._file = sqlite_file.open_file(
                self._path, self._tell, patience=self._waits, whole=whole, former=former
            )
            if former is not None:
                _close(former)
                self._tell("store_gone", file=str(self._path), effect="begun anew with what is there now")
        assert self._file is not None
        _wait_at_most(self._file.connection, self._waits)
        return self._file.connection

    def _is_gone(self) -> bool:
        return self._file is not None and sqlite_file.is_gone(self._path, self._file)

    @contextlib.contextmanager
    def _transaction(self, database: sqlite3.Connection) -> Iterator[None]:
        """With the right to write from its beginning, so that nobody writes between its reading and its writing."""
        database.execute("BEGIN IMMEDIATE")
        self._waits = self._patience
        try:
            yield
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")

    # --- one transaction each -------------------------------------------------------------------------------------

    def _read(self, database: sqlite3.Connection, keys: Sequence[str]) -> list[bytes | None]:
        now = self._clock()
        oldest, due = now - self._bounds.max_age, now - self._interval
        rows = database.execute(_SELECT, (oldest, _list(keys))).fetchall()
        found: dict[str, bytes] = {key: value for key, value, _ in rows}
        old = [key for key, _, used in rows if used < due]
        if old or self._is_trimming_due():
            # On a full or locked disk nothing can be noted; what was read is good all the same.
            with contextlib.suppress(sqlite3.OperationalError):
                _wait_at_most(database, 0)
                with self._transaction(database):
                    database.execute(_USE, (now, _list(old)))
                    self._trim_when_due(database)
        return [found.get(key) for key in keys]

    def _write(self, database: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
        now = self._clock()
        kept = {key: value for key, value in values.items() if self._is_kept(key, value)}
        with self._transaction(database):
            database.execute(_DELETE, (_list([key for key in values if key not in kept]),))
            database.executemany(
                "INSERT INTO entries (key, value, size, used) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
                " SET value = excluded.value, size = excluded.size, used = excluded.used",
                [(key, value, _size(key, value), now) for key, value in kept.items()],
            )
            self._account(database, kept)

    def _claim(self, database: sqlite3.Connection, key: str, value: bytes) -> bytes:
        now = self._clock()
        with self._transaction(database):
            row = database.execute(_SELECT, (now - self._bounds.max_age, _list([key]))).fetchone()
            if row is not None:
                if row[2] < now - self._interval:
                    database.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
                winner: bytes = row[1]
                return winner
            if self._is_kept(key, value):
                database.execute(
                    "INSERT OR REPLACE INTO entries (key, value, size, used) VALUES (?, ?, ?, ?)",
                    (key, value, _size(key, value), now),
                )
                self._account(database, {key: value})
            return value

    def _forget(self, database: sqlite3.Connection, keys: Sequence[str]) -> None:
        with self._transaction(database):
            database.execute(_DELETE, (_list(keys),))

    # --- bounds ---------------------------------------------------------------------------------------------------

    def _is_kept(self, key: str, value: bytes) -> bool:
        return _size(key, value) <= self._bounds.max_bytes

    def _account(self, database: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
        """Note what is written in this transaction, and trim in it when it is time."""
        self._untrimmed_entries += len(values)
        self._untrimmed_bytes += sum(_size(key, value) for key, value in values.items())
        self._trim_when_due(database)

    def _is_trimming_due(self) -> bool:
        bounds = self._bounds
        return (
            self._untrimmed_entries * _SHARE > bounds.max_entries
            or self._untrimmed_bytes * _SHARE > bounds.max_bytes
            or abs(self._clock() - self._trimmed_at) * _SHARE > bounds.max_age
        )

    def _trim_when_due(self, database: sqlite3.Connection) -> None:
        if self._is_trimming_due():
            self._trim(database)

    def _trim(self, database: sqlite3.Connection) -> None:
        """Delete what is too old, and the longest unused of what is too much."""
        now, bounds = self._clock(), self._bounds
        self._untrimmed_entries = self._untrimmed_bytes = 0  # first: what fails is not tried again at once
        self._trimmed_at = now
        database.execute("DELETE FROM entries WHERE used < ?", (now - bounds.max_age,))
        database.execute(_DELETE_EXCESS, (bounds.max_entries, bounds.max_bytes))

    def _shrink(self, database: sqlite3.Connection) -> None:
        """Trim, and give what the file no longer needs back to the disk: the bounds may be lower than last time."""
        with self._transaction(database):
            self._trim(database)
        database.executescript("PRAGMA incremental_vacuum")  # `execute` would end after the first page


# Anything but bytes was put there by another program.
_SELECT: Final = (
    "SELECT key, value, used FROM entries"
    " WHERE used >= ? AND key IN (SELECT value FROM json_each(?)) AND typeof(value) = 'blob'"
)

_USE: Final = "UPDATE entries SET used = ? WHERE key IN (SELECT value FROM json_each(?))"

_DELETE: Final = "DELETE FROM entries WHERE key IN (SELECT value FROM json_each(?))"

_DELETE_EXCESS: Final = """
DELETE FROM entries WHERE rowid IN (
  SELECT number FROM (
    SELECT rowid AS number, row_number() OVER newest AS place, sum(size) OVER newest AS bytes
    FROM entries WINDOW newest AS (ORDER BY used DESC, rowid DESC ROWS UNBOUNDED PRECEDING)
  ) WHERE place > ? OR bytes > ?
)"""


def _list(keys: Sequence[str]) -> str:
    return msgspec.json.encode(keys).decode()


def _wait_at_most(database: sqlite3.Connection, seconds: float) -> None:
    database.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _close(file: OpenFile) -> None:
    with contextlib.suppress(sqlite3.Error):
        file.connection.close()


def _told(error: sqlite3.Error | OSError) -> str:
    """What is wrong, in a word of the system's or of SQLite's."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)


async def open_sqlite(url: str, bounds: Bounds, tell: Tell) -> Opened:
    """The store in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names."""
    store = SqliteStore(_path(url), bounds, tell)
    await store.open()
    # What the file holds can be read even when nothing can be written to it, so no copy of that is needed.
    return await shield(store, bounds, tell, mirrors=False)


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).absolute()
