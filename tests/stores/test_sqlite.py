"""The SQLite file: private, whole after a crash, shared by processes, set aside when it is no use, never too large."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError, StoreUnavailable
from proxy.stores import Bounds, open_store
from proxy.stores.sqlite import SqliteStore
from tests.stores.bench import AGE, WIDE, Heard, everything_of
from tests.stores.sqlite_files import OPENED, Files, child, deleted, foreign, garbage, locked, mode, told

# --------------------------------------------------------------------------------------------------------- privacy


async def test_all_files_are_for_their_owner_alone_from_the_first_byte(files: Files) -> None:
    before = os.umask(0)
    try:
        store = await files.open()
        await store.write({"a": b"1"})
    finally:
        os.umask(before)
    found = {path.name: mode(path) for path in files.path.parent.iterdir()}
    assert found == {"transom.db": 0o600, "transom.db-wal": 0o600, "transom.db-shm": 0o600}


async def test_a_file_that_others_could_read_is_taken_from_them(files: Files) -> None:
    await (await files.open()).write({"a": b"1"})
    await files.close()
    files.path.chmod(0o644)
    store = await files.open()
    assert await store.read(["a"]) == [b"1"]
    assert mode(files.path) == 0o600


async def test_what_is_forgotten_is_not_in_the_file_any_more(files: Files) -> None:
    store = await files.open()
    await store.write({"a": b"swordfish" * 1000, "b": b"other"})
    await store.forget(["a"])
    await files.close()
    assert b"swordfish" not in files.path.read_bytes()


# -------------------------------------------------------------------------------------------------------- settings


async def test_the_file_says_whose_it_is_and_how_it_is_kept(files: Files) -> None:
    await files.open()
    assert files.rows("PRAGMA journal_mode") == [("wal",)]
    assert files.rows("PRAGMA application_id") == [(0x5452534D,)]
    assert files.rows("SELECT name, value FROM about") == [("schema", 1)]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("absent/transom.db", "does not exist; create it first. Three slashes begin a relative path"),
        ("", "is a folder; name a file in it"),
        ("file/transom.db", "does not exist"),
    ],
)
async def test_a_place_where_no_file_can_be_is_said_at_the_start(tmp_path: Path, at: str, says: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=says):
        async with open_store(f"sqlite:///{tmp_path / at}", WIDE, Heard()):
            pass
    assert os.listdir(tmp_path) == ["file"]


async def test_a_relative_path_begins_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///here.db", WIDE, Heard()) as opened:
        await opened.store.write({"a": b"1"})
        assert opened.shared()
    async with open_store(f"sqlite:///{tmp_path}/here.db", WIDE, Heard()) as opened:
        assert await opened.store.read(["a"]) == [b"1"]


# ------------------------------------------------------------------------------------------------- files of no use


def of_tomorrow(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE about SET value = 2")
    connection.commit()
    connection.close()


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


async def test_an_empty_file_becomes_ours(files: Files) -> None:
    files.path.touch()
    store = await files.open()
    assert await store.claim("a", b"1") == b"1"
    assert files.heard.events == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (garbage, "damaged"),
        (foreign, "foreign"),
        (of_tomorrow, "of another version"),
        (truncated, "damaged"),
        (overwritten, "damaged"),
    ],
)
async def test_a_file_of_no_use_is_set_aside_with_one_warning_and_a_new_one_begun(
    files: Files, spoil: Callable[[Path], None], problem: str
) -> None:
    if spoil not in (garbage, foreign):
        await (await files.open()).write({f"{number}": b"x" * 3000 for number in range(20)})
        await files.close()
    spoil(files.path)
    content = files.path.read_bytes()
    store = await files.open()
    assert await store.read(["1"]) == [None]
    assert await store.claim("a", b"1") == b"1"
    assert files.heard.names == ["store_set_aside"]
    aside = files.path.with_name("transom.db.aside-1")
    assert files.heard.events[0][1] == {"file": str(files.path), "kept_as": str(aside), "problem": problem}
    assert aside.read_bytes() == content


async def test_each_file_that_is_set_aside_has_a_name_of_its_own(files: Files) -> None:
    for number in (1, 2, 3):
        garbage(files.path)
        await files.open()
        await files.close()
        assert len(files.aside) == number


async def test_a_file_that_is_damaged_while_it_is_in_use_is_set_aside_and_the_call_is_answered(
    files: Files,
) -> None:
    store = await files.open()
    await store.write({f"{number}": b"x" * 3000 for number in range(50)})
    files.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    overwritten(files.path)
    keys = [f"{number}" for number in range(50)]
    assert await store.claim("a", b"1") == b"1"
    assert await everything_of(store, [*keys, "a"]) == {"a": b"1"}
    assert files.heard.names == ["store_set_aside"]


async def test_of_processes_that_find_a_damaged_file_together_one_sets_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "transom.db"
    garbage(path)
    told = await together(CLAIMING, path, count=4)
    assert len({each["winners"]["0"] for each in told}) == 1
    assert sorted(each["events"] for each in told) == [[], [], [], ["store_set_aside"]]
    assert sorted(os.listdir(tmp_path)) == ["transom.db", "transom.db.aside-1"]


# ------------------------------------------------------------------------------------------------ crashes, processes

WRITING = f"""{OPENED}
async def course(store, heard):
    for number in range(10**9):
        await store.write({{f"{{number % 500}}": b"%d" % number * 200}})
        await store.claim(f"claim:{{number}}", b"%d" % number)
        say(number)

asyncio.run(run(course))
"""

CLAIMING = f"""{OPENED}
async def course(store, heard):
    winners = {{}}
    for number in range(200):
        winner = await store.claim(f"{{number}}", sys.argv[2].encode())
        winners[number] = winner.decode()
    say({{"winners": winners, "events": heard.names}})

say("ready")
sys.stdin.readline()
asyncio.run(run(course))
"""

FILLING = f"""{OPENED}
async def course(store, heard):
    await store.claim("before", b"1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    for number in range(100):
        try:
            await store.claim(f"{{number}}", b"x" * 5000)
        except StoreUnavailable as error:
            say(error.message)
            break
    say((await store.read(["before"]))[0].decode())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say((await store.claim("after", b"2")).decode())

asyncio.run(run(course))
"""


async def together(code: str, path: Path, *, count: int) -> list[dict[str, Any]]:
    """What so many processes say that begin in the same moment."""
    children = [child(code, str(path), f"process {number}") for number in range(count)]
    assert [await told(each) for each in children] == ["ready"] * count
    answers = await asyncio.gather(*(asyncio.to_thread(each.communicate, "go\n") for each in children))
    return [json.loads(answer) for answer, _ in answers]


async def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_file_with_all_it_had_committed(
    files: Files,
) -> None:
    for _ in range(3):
        with child(WRITING, str(files.path)) as writer:
            assert writer.stdout is not None
            for _ in range(150):
                last = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            last = max([last, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        assert files.rows("PRAGMA integrity_check") == [("ok",)]
        store = await files.open(Bounds(10**6, 2**30, 1e12))
        claims = [f"claim:{number}" for number in range(last + 1)]
        assert await store.read(claims) == [b"%d" % number for number in range(last + 1)]
        assert files.heard.events == []
        await files.close()


async def test_of_four_processes_that_claim_the_same_keys_one_wins_each(tmp_path: Path) -> None:
    told = await together(CLAIMING, tmp_path / "transom.db", count=4)
    winners = [each["winners"] for each in told]
    assert winners == [winners[0]] * 4
    assert len(winners[0]) == 200
    assert set(winners[0].values()) <= {f"process {number}" for number in range(4)}
    assert [each["events"] for each in told] == [[]] * 4


async def test_a_full_disk_makes_the_store_unavailable_and_reading_goes_on(tmp_path: Path) -> None:
    with child(FILLING, str(tmp_path / "transom.db")) as filling:
        assert filling.stdout is not None
        problem, before, after = (json.loads(line) for line in filling.stdout)
    assert "cannot be used: SQLITE_" in problem
    assert (before, after) == ("1", "2")


# ----------------------------------------------------------------------------------------------------- locks of others


@contextmanager
def folder_locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


async def test_a_file_that_another_writes_to_can_be_read_and_takes_things_in_when_it_is_free(
    files: Files,
) -> None:
    store = await files.open(patience=0.01)
    await store.write({"a": b"1"})
    with locked(files.path, "BEGIN IMMEDIATE"):
        for call in (store.claim("b", b"2"), store.write({"b": b"2"}), store.forget(["a"])):
            with pytest.raises(StoreUnavailable, match="SQLITE_BUSY"):
                await call
        assert await store.read(["a"]) == [b"1"]
    assert await store.claim("b", b"2") == b"2"


async def test_whoever_waits_for_a_lock_in_vain_is_the_last_to_wait_and_no_reading_waits_to_note_a_use(
    files: Files,
) -> None:
    store = await files.open(patience=0.5)
    await store.write({"a": b"1"})
    files.clock.advance(AGE / 2)  # noting the use of it is due, and so is trimming
    with locked(files.path, "BEGIN EXCLUSIVE"):
        async with asyncio.timeout(10):
            for _ in range(100):
                assert await store.read(["a"]) == [b"1"]
            claims = (store.claim(f"{number}", b"2") for number in range(100))
            outcomes = await asyncio.gather(*claims, return_exceptions=True)
            assert {type(each) for each in outcomes} == {StoreUnavailable}
            for _ in range(100):
                assert await store.read(["a"]) == [b"1"]
    assert await store.claim("b", b"2") == b"2"


async def test_a_lock_is_waited_for_and_after_a_failure_again_once_there_was_one_to_be_had(
    tmp_path: Path,
) -> None:
    folder, begun = tmp_path / "folder", threading.Event()

    def clock() -> float:
        begun.set()
        return 0.0

    folder.mkdir()
    store = SqliteStore(folder / "transom.db", WIDE, Heard(), clock=clock, patience=60)
    await store.open()
    for number in range(3):
        begun.clear()
        with locked(folder / "transom.db", "BEGIN IMMEDIATE"):
            claim = asyncio.create_task(store.claim(f"{number}", b"1"))
            await asyncio.to_thread(begun.wait)
        assert await claim == b"1"
        shutil.rmtree(folder)
        with pytest.raises(StoreUnavailable, match="does not exist"):
            await store.claim("a", b"1")
        folder.mkdir()
        assert await store.claim("a", b"1") == b"1"
    await store.close()


async def test_a_file_that_cannot_even_be_read_for_anothers_lock_keeps_the_first_call_alone(
    files: Files,
) -> None:
    store = await files.open(patience=0.5)
    deleted(files.path)
    with locked(files.path, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
        async with asyncio.timeout(10):
            for _ in range(100):
                with pytest.raises(StoreUnavailable, match="SQLITE_BUSY"):
                    await store.read(["a"])
    assert await store.claim("a", b"1") == b"1"


async def test_a_folder_that_another_keeps_locked_is_said_at_the_start(files: Files) -> None:
    with folder_locked(files.path):
        async with asyncio.timeout(30):
            with pytest.raises(
                ConfigError, match=r"is kept locked \(flock\) by another process; end that one"
            ):
                await files.open(patience=0.001)
    store = await files.open()
    assert await store.claim("a", b"1") == b"1"


async def test_a_folder_that_another_keeps_locked_when_a_file_must_be_begun_anew_is_an_outage(
    files: Files,
) -> None:
    store = await files.open(patience=0.01)
    await store.write({"a": b"1"})
    deleted(files.path)
    with folder_locked(files.path):
        async with asyncio.timeout(30):
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match=r"is kept locked \(flock\)"):
                    await store.read(["a"])
    assert await store.read(["a"]) == [None]
    assert files.heard.names == ["store_gone"]


# ---------------------------------------------------------------------------------------------------------- bounds


async def test_entries_and_bytes_are_kept_within_their_bounds_and_the_longest_unused_go(files: Files) -> None:
    bounds = Bounds(max_entries=160, max_bytes=40_000, max_age=AGE)
    store = await files.open(bounds)
    for number in range(600):
        files.clock.advance(0.01)
        await store.claim(f"{number:04}", b"x" * 100)
        [(entries, size)] = files.rows("SELECT count(*), sum(size) FROM entries")
        assert int(str(entries)) <= 160 * 17 / 16 + 1
        assert int(str(size)) <= 40_000 * 17 / 16 + 104
    assert await store.read(["0000", "0300", "0599"]) == [None, None, b"x" * 100]
    await store.write({"large": b"x" * 39_000})
    for number in range(30):
        files.clock.advance(0.01)
        await store.claim(f"after:{number}", b"x" * 100)
    [(size,)] = files.rows("SELECT sum(size) FROM entries")
    assert int(str(size)) <= 40_000 * 17 / 16 + 104
    assert await store.read(["0599", "after:29"]) == [None, b"x" * 100]


async def test_an_entry_in_use_outlives_newer_ones_that_nobody_uses(files: Files) -> None:
    store = await files.open(Bounds(max_entries=100, max_bytes=10**6, max_age=1e9))
    await store.claim("used", b"1")
    for number in range(500):
        files.clock.advance(120)
        await store.claim(f"{number}", b"2")
        assert await store.read(["used"]) == [b"1"]


async def test_what_is_too_old_leaves_the_file_without_being_asked_for(files: Files) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    files.clock.advance(AGE * 1.1)
    await store.read(["another"])
    assert files.rows("SELECT count(*) FROM entries") == [(0,)]


async def test_a_file_opened_with_lower_bounds_becomes_smaller(files: Files) -> None:
    store = await files.open()
    await store.write({f"{number}": b"x" * 10_000 for number in range(100)})
    await files.close()
    before = files.path.stat().st_size
    store = await files.open(Bounds(max_entries=5, max_bytes=10**6, max_age=AGE))
    await files.close()
    assert before > 10**6
    assert files.path.stat().st_size < 10**5


async def test_a_clock_that_is_set_back_loses_nothing(files: Files) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    files.clock.advance(-10 * AGE)
    assert await store.read(["a"]) == [b"1"]
    await store.claim("b", b"2")
    assert await store.read(["a", "b"]) == [b"1", b"2"]
