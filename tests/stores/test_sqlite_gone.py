"""The SQLite file deleted, moved away or replaced while processes use it: all go on with the one at its path."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.errors import StoreUnavailable
from proxy.stores.sqlite import SqliteStore
from tests.stores.bench import WIDE, Heard, everything_of
from tests.stores.sqlite_files import OPENED, Files, child, deleted, foreign, garbage, locked, mode, told


def deleted_alone(path: Path) -> None:
    path.unlink()


def moved_away(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def moved_away_with_all(path: Path) -> None:
    for part in ("-wal", "-shm", ""):
        os.rename(f"{path}{part}", f"{path.parent}/moved.db{part}")


def folder_made_anew(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.mkdir()


def replaced_by_garbage(path: Path) -> None:
    garbage(path.with_name("other.db"))
    path.with_name("other.db").replace(path)


def replaced_by_an_empty_file(path: Path) -> None:
    path.with_name("other.db").touch()
    path.with_name("other.db").replace(path)


TAKING_AWAY = (
    deleted,
    deleted_alone,
    moved_away,
    moved_away_with_all,
    folder_made_anew,
    replaced_by_garbage,
    replaced_by_an_empty_file,
)


@pytest.mark.parametrize("take_away", TAKING_AWAY)
async def test_a_file_that_is_taken_away_while_it_is_in_use_is_told_once_and_a_new_one_begun_at_its_path(
    files: Files, take_away: Callable[[Path], None]
) -> None:
    store = await files.open()
    for times in (1, 2):
        await store.write({f"{number}": b"x" * 3000 for number in range(50)})
        take_away(files.path)
        assert await everything_of(store, ["0", "49", "a"]) == {}
        assert await store.claim("a", b"1") == b"1"
        await store.write({"b": b"2"})
        await store.forget(["b"])
        assert files.heard.names.count("store_gone") == times
        assert files.rows("SELECT key, value FROM entries") == [("a", b"1")]
        assert files.rows("PRAGMA integrity_check") == [("ok",)]
        assert {mode(path) for path in files.path.parent.glob("transom.db*") if path not in files.aside} == {
            0o600
        }


async def test_a_file_that_comes_in_the_place_of_another_is_taken_as_it_is_without_the_others_journal(
    files: Files,
) -> None:
    await (await files.open()).write({f"{number}": b"backup" for number in range(50)})
    await files.close()
    backup = files.path.with_name("backup.db")
    files.path.rename(backup)
    store = await files.open()
    await store.write({f"{number}": b"x" * 3000 for number in range(50)})
    backup.replace(files.path)
    assert await store.read(["0", "49"]) == [b"backup", b"backup"]
    assert await store.claim("0", b"other") == b"backup"
    assert files.rows("PRAGMA integrity_check") == [("ok",)]
    assert files.heard.names == ["store_set_aside", "store_gone"]
    assert "transom.db.aside-1-wal" in os.listdir(files.path.parent)


async def test_a_journal_that_is_set_aside_gets_no_name_that_another_file_could_take_for_its_own(
    files: Files,
) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    replaced_by_garbage(files.path)
    assert await store.read(["a"]) == [None]
    aside = sorted(name for name in os.listdir(files.path.parent) if ".aside-" in name)
    assert aside == ["transom.db.aside-1-shm", "transom.db.aside-1-wal", "transom.db.aside-2"]


async def test_what_is_not_yet_in_a_file_that_is_moved_away_is_kept_in_the_journal_that_is_set_aside(
    files: Files,
) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    moved_away(files.path)
    assert await store.read(["a"]) == [None]
    moved = files.path.with_name("moved.db")
    os.rename(f"{files.path}.aside-1-wal", f"{moved}-wal")
    connection = sqlite3.connect(moved)
    assert connection.execute("SELECT key, value FROM entries").fetchall() == [("a", b"1")]
    connection.close()


async def test_a_file_that_is_only_away_between_two_calls_is_not_missed(files: Files) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    moved_away(files.path)
    files.path.with_name("moved.db").rename(files.path)
    assert await store.read(["a"]) == [b"1"]
    assert files.heard.events == []


async def test_a_call_that_fails_since_its_file_went_in_the_middle_of_it_is_answered_from_the_next(
    tmp_path: Path,
) -> None:
    path = tmp_path / "transom.db"
    to_come: list[Callable[[Path], None]] = []

    def clock() -> float:  # asked after the call has made sure of its file, before it begins its transaction
        while to_come:
            to_come.pop()(path)
        return 0.0

    store = SqliteStore(path, WIDE, Heard(), clock=clock, patience=0.01)
    await store.open()
    with locked(path, "BEGIN IMMEDIATE"):
        to_come.append(deleted)
        assert await store.claim("a", b"1") == b"1"
        assert await store.claim("a", b"2") == b"1"
    await store.close()


async def test_without_its_folder_the_store_is_unavailable_until_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    files = Files(tmp_path / "folder")
    store = await files.open()
    shutil.rmtree(files.path.parent)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"the folder .* does not exist; create it first"):
            await store.read(["a"])
    assert files.heard.events == []
    files.path.parent.mkdir()
    assert await store.claim("a", b"1") == b"1"
    assert files.heard.names == ["store_gone"]
    await files.close()


def emptied_of_its_tables(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE entries")
    connection.close()


def written_over_by_another(path: Path) -> None:
    other = path.with_name("other.db")
    foreign(other)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    shutil.copyfile(other, path)


@pytest.mark.parametrize(
    ("change", "problem"), [(emptied_of_its_tables, "damaged"), (written_over_by_another, "foreign")]
)
async def test_a_file_that_stays_and_is_ours_no_more_is_set_aside_like_a_damaged_one(
    files: Files, change: Callable[[Path], None], problem: str
) -> None:
    store = await files.open()
    await store.write({"a": b"1"})
    change(files.path)
    assert await store.claim("a", b"2") == b"2"
    assert await store.read(["a"]) == [b"2"]
    assert [facts["problem"] for _, facts in files.heard.events] == [problem]


# ------------------------------------------------------------------------------------------------ several processes

CLAIMING_AGAIN = f"""{OPENED}
async def course(store, heard):
    say("ready")
    for _ in sys.stdin:
        heard.events.clear()
        winners = [await store.claim(f"{{number}}", sys.argv[2].encode()) for number in range(100)]
        say({{"winners": [winner.decode() for winner in winners], "events": heard.names}})

asyncio.run(run(course))
"""


@pytest.mark.parametrize(("take_away", "journals"), [(deleted, 0), (moved_away, 1)])
async def test_processes_whose_file_is_taken_away_all_go_on_with_the_same_new_one(
    files: Files, take_away: Callable[[Path], None], journals: int
) -> None:
    children = [child(CLAIMING_AGAIN, str(files.path), f"process {number}") for number in range(3)]
    assert [await told(each) for each in children] == ["ready"] * 3
    for times in range(4):
        for each in children:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        answers = [await told(each) for each in children]
        winners = answers[0]["winners"]
        assert [each["winners"] for each in answers] == [winners] * 3
        events = [event for each in answers for event in each["events"]]
        expected = ["store_gone"] * 3 + ["store_set_aside"] * journals if times else []
        assert sorted(events) == expected
        # Those that left the old file late have taken nothing of the new one with them.
        stored = {str(key): value for key, value in files.rows("SELECT key, value FROM entries")}
        assert [stored[f"{number}"] for number in range(100)] == [each.encode() for each in winners]
        assert files.rows("PRAGMA integrity_check") == [("ok",)]
        assert "transom.db-wal" in os.listdir(files.path.parent)
        take_away(files.path)
    for each in children:
        each.communicate()
