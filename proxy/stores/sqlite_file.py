"""The SQLite file itself: made private, recognised, and set aside when it is none of ours.

Rules. The file has mode 0600 before it has a first byte; SQLite gives `-wal` and `-shm` the mode of the file they are
of. Nothing is written to a file before it is known to be ours. One that is damaged, foreign or of another schema is
renamed, never deleted. Several processes may open one path at once: what is looked at and renamed is so under a lock on
its folder, so that none renames what another has just begun; nobody waits for that lock without end. What is at the
path counts: a file that is deleted, moved away or replaced is told by its inode, and its journal never meets the next.
"""

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.errors import StoreUnavailable
from proxy.stores.protocol import Tell

if sys.platform != "win32":
    import fcntl

SCHEMA: Final = 1
"""Counts up when the tables change; a file of any other number is set aside."""

APPLICATION: Final = 0x5452534D
"""SQLite's application_id (https://www.sqlite.org/pragma.html#pragma_application_id): the letters TRSM."""

_POLL: Final = 0.02
"""Seconds between two looks at the lock on the folder, which has no end of its own to waiting."""

_TABLES: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL)",
    "CREATE INDEX entries_by_use ON entries (used, size)",  # all that trimming looks at
)

# NORMAL: a commit survives the end of the process at any point, though the last ones may not survive a power cut; the
# file is whole after either. Deleted content is overwritten, since it was somebody's.
_SETTINGS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA secure_delete = ON",
    "PRAGMA journal_size_limit = 8388608",
    "SELECT value FROM about",  # a first reading begins the journal
)

_BESIDE: Final = ("-wal", "-shm")

_PARTS: Final = (*_BESIDE, "")
"""In the order of renaming: a journal that stayed behind its file would be read into the one that comes next."""

# SQLITE_ERROR is one of them since our statements are always the same: what they do not find is not there any more.
_DAMAGE: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}
)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A connection to our tables, and which files it was opened on: device and inode, None where there is none."""

    connection: sqlite3.Connection
    mark: tuple[int, int] | None
    beside: tuple[tuple[int, int] | None, ...]


def open_file(
    path: Path, tell: Tell, *, patience: float, whole: bool = False, former: OpenFile | None = None
) -> OpenFile:
    """Our tables in the file at this path, for the calling thread alone; a file that is no use is set aside first.

    `patience` is seconds to wait for the locks of others; `whole` checks indices against their tables too, which takes
    longer. `former` is what was open and is gone from the path; it has to stay open until this returns, since a free
    inode may be given to another file. Raises `StoreUnavailable`, or `sqlite3.Error` where the file is locked or its
    disk is full.
    """
    _check_folder(path)
    deadline = time.monotonic() + patience
    with _alone(path.parent, deadline):
        left = _left_behind(path, former)
        if left:
            _set_aside(path, left, tell, "a journal whose file is gone")
        opened, problem = _ours(path, whole=whole, deadline=deadline)
        if opened is None:
            _set_aside(path, _PARTS, tell, problem)
            opened, problem = _ours(path, whole=False, deadline=deadline)
    if opened is None:
        raise StoreUnavailable(f"{path} is {problem} though it was just begun; is its disk sound?")
    return opened


def is_gone(path: Path, opened: OpenFile) -> bool:
    """Whether the file was deleted, moved away or replaced since it was opened. Raises `OSError`."""
    return _mark(path) != opened.mark


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file's content is at fault, so that trying again is of no use."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _DAMAGE  # the rest of an extended code says where


def _check_folder(path: Path) -> None:
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder; name a file in it, for example {path}/transom.db")
    if not path.parent.is_dir():
        raise StoreUnavailable(
            f"the folder {path.parent} of the SQLite file does not exist; create it first."
            " Three slashes begin a relative path (sqlite:///transom.db), four an absolute one"
            " (sqlite:////var/lib/transom/transom.db)"
        )


@contextlib.contextmanager
def _alone(folder: Path, deadline: float) -> Iterator[None]:
    """One process at a time, where the platform and the file system have such locks; kept by none that has ended."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"{folder}, the folder of the SQLite file, is kept locked (flock) by another process;"
                        " end that one, or name a file in another folder"
                    ) from None
                time.sleep(_POLL)  # noqa: TID251 - in the store's own thread
            except OSError:
                break  # a file system without such locks
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _mark(path: Path | str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _left_behind(path: Path, former: OpenFile | None) -> list[str]:
    """What lies beside the path and belongs to a file that does not lie there any more."""
    present = [_mark(f"{path}{part}") for part in _BESIDE]
    mark = _mark(path)
    if mark is None:
        return [part for part, each in zip(_BESIDE, present, strict=True) if each is not None]
    if former is None or former.mark == mark:
        return []
    pairs = zip(_BESIDE, present, former.beside, strict=True)
    return [part for part, each, before in pairs if each is not None and each == before]


def _make_private(path: Path) -> None:
    """Begin the file where there is none, and take all rights on it from others."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
        for beside in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(f"{path}{beside}", 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be opened by this user, for writing: {error.strerror}"
        ) from error


def _ours(path: Path, *, whole: bool, deadline: float) -> tuple[OpenFile | None, str]:
    """The open file, or None and what is wrong with it."""
    _make_private(path)
    # Before SQLite looks for the file: one that takes its place in between is opened twice, and never missed.
    mark = _mark(path)
    patience = max(0.0, deadline - time.monotonic())
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        problem = _problem(connection, whole=whole)
        if not problem:
            for setting in _SETTINGS:
                connection.execute(setting)
            beside = tuple(_mark(f"{path}{part}") for part in _BESIDE)
            return OpenFile(connection, mark, beside), ""
    except sqlite3.Error as error:
        connection.close()
        if not is_damage(error):
            raise
        return None, "damaged"
    connection.close()
    return None, problem


def _problem(connection: sqlite3.Connection, *, whole: bool) -> str:
    """What is wrong with the file, in a word; empty for one of ours, which an empty one becomes."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables and not application:
        _begin(connection)
        return ""
    if application != APPLICATION:
        return "foreign"
    check = "integrity_check" if whole else "quick_check"
    if connection.execute(f"PRAGMA {check}(1)").fetchone()[0] != "ok":
        return "damaged"
    version = connection.execute("SELECT value FROM about WHERE name = 'schema'").fetchone()
    if version != (SCHEMA,):
        return "of another version"
    connection.execute("SELECT key, value, size, used FROM entries LIMIT 0")  # raises where there are none
    return ""


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute("INSERT INTO about VALUES ('schema', ?)", (SCHEMA,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute("COMMIT")


def _set_aside(path: Path, parts: Sequence[str], tell: Tell, problem: str) -> None:
    """Rename these parts of the file to the first name behind its own under which there is nothing yet."""
    number = 1
    while any(os.path.lexists(f"{path}.aside-{number}{part}") for part in _PARTS):
        number += 1
    aside = f"{path}.aside-{number}"
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{part}", f"{aside}{part}")
    tell("store_set_aside", file=str(path), kept_as=aside, problem=problem)
