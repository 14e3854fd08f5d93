"""What every store promises, held against each of them, alone and behind its shield."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from proxy.errors import StoreUnavailable
from proxy.stores import Bounds, Store
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import PREFIX, RedisStore
from proxy.stores.shielded import Shielded
from proxy.stores.sqlite import SqliteStore
from tests.stores.bench import AGE, WIDE, Clock, Heard, everything_of, let_time_pass_in_redis
from tests.stores.redis_server import RedisServer

KINDS = ("memory", "sqlite", "redis", "shielded sqlite", "shielded redis")
LASTING = tuple(kind for kind in KINDS if kind != "memory")
SHIELDED = tuple(kind for kind in KINDS if kind.startswith("shielded"))
BOUNDED = tuple(kind for kind in KINDS if "redis" not in kind)  # how much a server holds is its own affair


@dataclass
class Bench:
    """Opens stores of one kind in one place, lets time pass for them, and does to the place what others may do."""

    kind: str
    folder: Path
    server: RedisServer | None
    clock: Clock = field(default_factory=Clock)
    heard: Heard = field(default_factory=Heard)
    patience: float = 1.0
    opened: list[Store] = field(default_factory=list)

    async def open(self, bounds: Bounds = WIDE) -> Store:
        """One more store of this kind."""
        store = await OPENING[self.kind.removeprefix("shielded ")](self, bounds)
        if self.kind.startswith("shielded"):
            memory = MemoryStore(self.clock, max_entries=100, max_age=AGE)
            mirrors = "redis" in self.kind
            store = Shielded(store, memory, self.heard, mirrors=mirrors, most=100, retry=0.02)
        self.opened.append(store)
        return store

    async def wait(self, seconds: float) -> None:
        """So many seconds later."""
        self.clock.advance(seconds)
        if self.server is not None:
            await let_time_pass_in_redis(self.server.url, seconds)

    async def empty(self) -> None:
        """Delete all that is in the place, as an operator may."""
        if self.server is not None:
            async with Redis.from_url(self.server.url) as client:
                await client.flushall()
            return
        for path in self.folder.iterdir():
            path.unlink()

    async def spoil(self, key: str) -> None:
        """Put something that is no bytes under a key of ours, as another program may."""
        if self.server is not None:
            async with Redis.from_url(self.server.url) as client:
                await client.delete(f"{PREFIX}{key}")
                await client.lpush(f"{PREFIX}{key}", "no", "bytes")
            return
        with sqlite3.connect(self.folder / FILE) as other:
            other.execute("UPDATE entries SET value = 'no bytes' WHERE key = ?", (key,))
        other.close()

    @asynccontextmanager
    async def held_up(self) -> AsyncIterator[None]:
        """The place takes nothing in for so long: the server stands still, or another process keeps the file locked."""
        if self.server is not None:
            self.server.pause()
            try:
                yield
            finally:
                self.server.resume()
            return
        other = sqlite3.connect(self.folder / FILE, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            other.close()

    async def close(self) -> None:
        while self.opened:
            await self.opened.pop().close()


FILE = "transom.db"


async def memory(bench: Bench, bounds: Bounds) -> Store:
    return MemoryStore(
        bench.clock, max_entries=bounds.max_entries, max_bytes=bounds.max_bytes, max_age=bounds.max_age
    )


async def sqlite(bench: Bench, bounds: Bounds) -> Store:
    path = bench.folder / FILE
    store = SqliteStore(path, bounds, bench.heard, clock=bench.clock, patience=bench.patience)
    await store.open()
    return store


async def redis(bench: Bench, bounds: Bounds) -> Store:
    assert bench.server is not None
    return RedisStore(bench.server.url, max_age=bounds.max_age, clock=bench.clock)


OPENING: dict[str, Callable[[Bench, Bounds], Awaitable[Store]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
}


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    server = request.getfixturevalue("lasting_redis") if "redis" in request.param else None
    made = Bench(request.param, tmp_path, server)
    await made.empty()
    yield made
    await made.close()


@pytest.fixture
async def store(bench: Bench) -> Store:
    return await bench.open()


lasting = pytest.mark.parametrize("bench", LASTING, indirect=True)
shielded = pytest.mark.parametrize("bench", SHIELDED, indirect=True)
bounded = pytest.mark.parametrize("bench", BOUNDED, indirect=True)


# ------------------------------------------------------------------------------------------------- reading, writing


async def test_what_was_written_is_read_in_the_order_of_the_keys(store: Store) -> None:
    await store.write({"a": b"1", "b": b"2", "c": b"3"})
    assert await store.read(["c", "absent", "a", "c"]) == [b"3", None, b"1", b"3"]


async def test_nothing_is_asked_and_nothing_is_given(store: Store) -> None:
    await store.write({})
    await store.forget([])
    assert await store.read([]) == []


@pytest.mark.parametrize(
    "value", [b"", b"\0", bytes(range(256)), b"\r\n$5\r\n", "Grüße \U0001f600".encode(), b"\xff" * 400_000]
)
async def test_a_value_comes_back_as_the_very_bytes(store: Store, value: bytes) -> None:
    await store.write({"a": value})
    assert await store.claim("b", value) == value
    assert await store.read(["a", "b"]) == [value, value]
    assert await store.claim("a", b"other") == value


async def test_keys_are_told_apart_to_the_last_sign(store: Store) -> None:
    keys = ["a", "a:", "a:b", "a-b", "ab", "calibration:0f", "0f", "0", "00", "x" * 200]
    await store.write({key: key.encode() for key in keys})
    assert await everything_of(store, keys) == {key: key.encode() for key in keys}


async def test_a_write_takes_the_place_of_what_was_there(store: Store) -> None:
    await store.claim("a", b"1")
    await store.write({"a": b"2", "b": b"3"})
    await store.write({"a": b"4"})
    assert await store.read(["a", "b"]) == [b"4", b"3"]


async def test_thousands_of_keys_are_read_and_forgotten_at_once(store: Store) -> None:
    keys = [f"{number:032x}" for number in range(3000)]
    await store.write({keys[7]: b"seven", keys[2999]: b"last"})
    values = await store.read(keys)
    assert {index: value for index, value in enumerate(values) if value} == {7: b"seven", 2999: b"last"}
    await store.forget(keys)
    assert set(await store.read(keys)) == {None}


# --------------------------------------------------------------------------------------------------------- claiming


async def test_the_first_claim_wins_and_every_later_one_hears_of_it(store: Store) -> None:
    assert await store.claim("a", b"first") == b"first"
    assert await store.claim("a", b"second") == b"first"
    assert await store.read(["a"]) == [b"first"]


async def test_of_many_claims_at_once_one_wins(store: Store) -> None:
    claims = [store.claim("a", f"{number}".encode()) for number in range(20)]
    winners = set(await asyncio.gather(*claims))
    assert len(winners) == 1
    assert await store.read(["a"]) == list(winners)


async def test_what_is_forgotten_can_be_claimed_again(store: Store) -> None:
    await store.write({"a": b"1", "b": b"2"})
    await store.forget(["a", "absent"])
    assert await store.read(["a", "b"]) == [None, b"2"]
    assert await store.claim("a", b"3") == b"3"


# -------------------------------------------------------------------------------------------------------------- age


async def test_what_nobody_uses_ends_with_its_age_and_can_be_claimed_anew(bench: Bench, store: Store) -> None:
    await store.write({"a": b"1"})
    await store.claim("b", b"2")
    await bench.wait(AGE * 0.9)
    assert await store.read(["b"]) == [b"2"]
    await bench.wait(AGE * 0.2)
    assert await store.read(["a"]) == [None]
    assert await store.claim("a", b"3") == b"3"


async def test_reading_keeps_an_entry_young(bench: Bench, store: Store) -> None:
    await store.claim("a", b"1")
    for _ in range(5):
        await bench.wait(AGE * 0.6)
        assert await store.read(["a"]) == [b"1"]
    await bench.wait(AGE * 1.1)
    assert await store.read(["a"]) == [None]


async def test_writing_makes_an_entry_young(bench: Bench, store: Store) -> None:
    await store.write({"a": b"1"})
    await bench.wait(AGE * 0.6)
    await store.write({"a": b"2"})
    await bench.wait(AGE * 0.6)
    assert await store.read(["a"]) == [b"2"]


@bounded
async def test_a_value_larger_than_all_the_room_is_not_kept_and_pushes_nothing_out(bench: Bench) -> None:
    store = await bench.open(Bounds(max_entries=100, max_bytes=1000, max_age=AGE))
    await store.write({"a": b"1", "b": b"2"})
    assert await store.claim("c", b"x" * 1000) == b"x" * 1000
    await store.write({"b": b"x" * 1000})
    assert await everything_of(store, ["a", "b", "c"]) == {"a": b"1"}


# ---------------------------------------------------------------------------------------------------- places shared


@lasting
async def test_two_stores_in_one_place_are_one(bench: Bench) -> None:
    one, other = await bench.open(), await bench.open()
    assert await one.claim("a", b"1") == b"1"
    assert await other.claim("a", b"2") == b"1"
    await other.write({"b": b"3"})
    assert await one.read(["a", "b"]) == [b"1", b"3"]
    await one.forget(["a"])
    assert await other.read(["a", "b"]) == [None, b"3"]


@lasting
async def test_of_claims_through_several_stores_at_once_one_wins(bench: Bench) -> None:
    stores = [await bench.open() for _ in range(4)]
    for key in ("a", "b", "c", "d", "e"):
        claims = [store.claim(key, f"{number}".encode()) for number, store in enumerate(stores)]
        assert len(set(await asyncio.gather(*claims))) == 1


@lasting
async def test_what_another_reads_stays_young_for_all(bench: Bench) -> None:
    one, other = await bench.open(), await bench.open()
    await one.claim("a", b"1")
    await bench.wait(AGE * 0.6)
    for _ in range(2):
        assert await other.read(["a"]) == [b"1"]
    await bench.wait(AGE * 0.6)
    assert await one.read(["a"]) == [b"1"]


@lasting
async def test_a_store_that_is_opened_again_has_what_it_had(bench: Bench) -> None:
    store = await bench.open()
    await store.write({"a": b"1"})
    await store.claim("b", b"2")
    await bench.close()
    again = await bench.open()
    assert await again.read(["a", "b"]) == [b"1", b"2"]
    assert await again.claim("b", b"3") == b"2"


# ----------------------------------------------------------------------------------- what others do to the place


@lasting
async def test_a_place_that_is_emptied_while_it_is_in_use_stays_one_place_for_all(bench: Bench) -> None:
    one, other = await bench.open(), await bench.open()
    for _ in range(3):
        await one.write({"a": b"1"})
        assert await other.read(["a"]) == [b"1"]
        await bench.empty()
        assert await other.read(["a"]) == [None]
        assert await one.claim("a", b"2") == b"2"
        assert await other.claim("a", b"3") == b"2"
        await other.forget(["a"])
        assert await one.read(["a"]) == [None]
    assert "store_down" not in bench.heard.names


@lasting
async def test_what_is_no_bytes_counts_as_absent_and_every_way_of_putting_takes_its_place(
    bench: Bench,
) -> None:
    store = await bench.open()
    await store.write({"a": b"1", "b": b"2"})
    await bench.spoil("a")
    assert await store.read(["a", "b"]) == [None, b"2"]
    assert await store.claim("a", b"3") == b"3"
    assert await store.claim("a", b"4") == b"3"
    await bench.spoil("a")
    await store.write({"a": b"5"})
    assert await store.read(["b", "a"]) == [b"2", b"5"]
    await bench.spoil("a")
    await store.forget(["a"])
    assert await store.claim("a", b"6") == b"6"
    assert bench.heard.events == []


@lasting
async def test_a_place_that_is_held_up_is_told_by_its_name_and_serves_again_afterwards(bench: Bench) -> None:
    bench.patience = 0.1
    store = await bench.open()
    await store.write({"a": b"1"})
    async with bench.held_up():
        if isinstance(store, Shielded):
            assert await store.claim("b", b"2") == b"2"
            reason = bench.heard.events[0][1]["reason"]
        else:
            with pytest.raises(StoreUnavailable) as caught:
                await store.claim("b", b"2")
            reason = caught.value.message
        assert reason.endswith(("does not serve: TimeoutError", "cannot be used: SQLITE_BUSY"))
    if isinstance(store, Shielded):
        await bench.heard.until("store_back")
    assert await store.claim("b", b"2") == b"2"
    assert await store.read(["a", "b"]) == [b"1", b"2"]


@shielded
async def test_a_place_that_is_held_up_costs_the_calls_that_find_out_their_time_and_the_next_ones_none(
    bench: Bench,
) -> None:
    bench.patience = 0.5
    store = await bench.open()
    await store.write({"a": b"1"})
    await bench.wait(AGE / 2)  # to note the use of it is due
    async with bench.held_up():
        async with asyncio.timeout(10):
            for _ in range(100):
                assert await store.read(["a"]) == [b"1"]
            found = await asyncio.gather(*(store.claim(f"{number}", b"2") for number in range(40)))
            assert found == [b"2"] * 40
            for number in range(200):
                assert await store.read(["a", f"{number % 40}"]) == [b"1", b"2"]
                assert await store.claim(f"{number % 40}", b"3") == b"2"
        assert bench.heard.names == ["store_down"]
    await bench.heard.until("store_back")
    assert await store.read(["a", "0", "39"]) == [b"1", b"2", b"2"]


@shielded
async def test_what_two_claimed_differently_while_the_place_was_held_up_is_one_value_afterwards(
    bench: Bench,
) -> None:
    bench.patience = 0.1
    one, other = await bench.open(), await bench.open()
    await one.write({"z": b""})
    await other.write({"z": b""})
    async with bench.held_up():
        own = list(await asyncio.gather(one.claim("a", b"one"), other.claim("a", b"other")))
        assert own == [b"one", b"other"]
    await bench.heard.until("store_back", times=2)
    [winner] = await one.read(["a"])
    assert winner in own
    assert await other.read(["a"]) == [winner]


# -------------------------------------------------------------------------------------------------------- in general

KEYS = st.sampled_from(["a", "b", "c", "a:b"])
OPERATIONS = st.one_of(
    st.tuples(st.just("read"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("write"), st.dictionaries(KEYS, st.binary(max_size=20), max_size=3)),
    st.tuples(st.just("claim"), st.tuples(KEYS, st.binary(max_size=20))),
    st.tuples(st.just("forget"), st.lists(KEYS, max_size=2)),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=st.lists(OPERATIONS, max_size=12))
async def test_a_store_is_a_dictionary_while_time_stands_still(
    store: Store, course: list[tuple[str, object]]
) -> None:
    await store.forget(["a", "b", "c", "a:b"])
    model: dict[str, bytes] = {}
    for operation in course:
        match operation:
            case ("read", list(keys)):
                assert await store.read(keys) == [model.get(key) for key in keys]
            case ("write", dict(values)):
                await store.write(values)
                model |= values
            case ("claim", (str(key), bytes(value))):
                assert await store.claim(key, value) == model.setdefault(key, value)
            case ("forget", list(keys)):
                await store.forget(keys)
                model = {key: value for key, value in model.items() if key not in keys}
    assert await everything_of(store, ["a", "b", "c", "a:b"]) == model
