"""The SQLite file itself: made private, recognised, and set aside when it is none of ours.

Rules. The file has mode 0600 before it has a first byte; SQLite gives `-wal` and `-shm` the mode of the file they are
of. Nothing is written to a file before it is known to be ours. One that is damaged, foreign or of another schema is
renamed, never deleted. Several processes may open one path at once: what is looked at and renamed is so under a lock on
its folder, so that none renames what another has just begun.
"""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
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

PATIENCE: Final = 1.0
"""Seconds to wait for another process's lock; a statement of ours holds it for milliseconds."""

_OPENING: Final = 10.0
"""The same while the file is opened, when many processes may start at once."""

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
)

_BESIDE: Final = ("-wal", "-shm")

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def open_file(
    path: Path, tell: Tell, *, patience: float = PATIENCE, whole: bool = False
) -> sqlite3.Connection:
    """A connection to our tables in this file, for the calling thread alone; one that is no use is set aside first.

    `whole` checks indices against their tables too, which takes longer; `patience` is seconds to wait for another's
    lock later on. Raises `StoreUnavailable`, or `sqlite3.Error` where the file is locked or its disk is full.
    """
    _check_folder(path)
    with _alone(path.parent):
        connection, problem = _ours(path, whole=whole)
        if connection is None:
            aside = _set_aside(path)
            tell("store_set_aside", file=str(path), kept_as=str(aside), problem=problem)
            connection, problem = _ours(path, whole=False)
    if connection is None:
        raise StoreUnavailable(f"{path} is {problem} though it was just begun; is its disk sound?")
    connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
    return connection


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
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, where the platform and the file system have such locks; kept by none that has ended."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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


def _ours(path: Path, *, whole: bool) -> tuple[sqlite3.Connection | None, str]:
    """The connection, or None and what is wrong with the file."""
    _make_private(path)
    connection = sqlite3.connect(path, timeout=_OPENING, isolation_level=None)
    try:
        problem = _problem(connection, whole=whole)
        if not problem:
            for setting in _SETTINGS:
                connection.execute(setting)
            return connection, ""
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
    return "" if version == (SCHEMA,) else "of another version"


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute("INSERT INTO about VALUES ('schema', ?)", (SCHEMA,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute("COMMIT")


def _set_aside(path: Path) -> Path:
    """Rename the file to the first free name behind its own. What belongs to it goes first: a journal that stayed would
    be read into the file that comes next."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    for beside in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{beside}", f"{aside}{beside}")
    os.replace(path, aside)
    return aside
