"""SQLite files for the tests of that store: opened, looked into by another program, spoilt, and shared by processes.

Rules. Whatever opens a file here closes it, so that no lock outlives its test.
"""

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxy.stores import Bounds
from proxy.stores.sqlite import SqliteStore
from tests.conftest import ROOT
from tests.stores.bench import WIDE, Clock, Heard


class Files:
    """Opens stores in one folder, and closes them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "transom.db"
        self.heard = Heard()
        self.clock = Clock()
        self._opened: list[SqliteStore] = []

    async def open(self, bounds: Bounds = WIDE, patience: float = 1.0) -> SqliteStore:
        store = SqliteStore(self.path, bounds, self.heard, clock=self.clock, patience=patience)
        await store.open()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What another program reads in the file."""
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    @property
    def aside(self) -> list[Path]:
        """What was set aside, without what belongs to it."""
        return sorted(path for path in self.path.parent.glob("*.aside-*") if path.name[-1].isdigit())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def garbage(path: Path) -> None:
    path.write_bytes(b"This is no database. " * 500)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE places (url TEXT); INSERT INTO places VALUES ('mine')")
    connection.close()


def deleted(path: Path) -> None:
    for each in path.parent.glob("transom.db*"):
        each.unlink()


@contextmanager
def locked(path: Path, *statements: str) -> Iterator[None]:
    """Another's connection to the file that keeps the locks which these statements take."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            other.execute(statement)
        yield
    finally:
        other.close()


# A process of its own that opens a store at the path in its first argument; what follows says what it does.
OPENED = """
import asyncio, json, resource, sys
from pathlib import Path
from proxy.errors import StoreUnavailable
from proxy.stores import Bounds
from proxy.stores.sqlite import SqliteStore
from tests.stores.bench import WIDE, Heard

async def run(course):
    heard = Heard()
    store = SqliteStore(Path(sys.argv[1]), WIDE, heard)
    await store.open()
    await course(store, heard)
    await store.close()

def say(what):
    print(json.dumps(what), flush=True)
"""


def child(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def told(process: subprocess.Popen[str]) -> Any:
    """The next thing that a process says."""
    assert process.stdout is not None
    return json.loads(await asyncio.to_thread(process.stdout.readline))
