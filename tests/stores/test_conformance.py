"""What every store promises, held against each of them, alone and behind its shield."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from proxy.stores import Bounds, Store
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import RedisStore
from proxy.stores.shielded import Shielded
from proxy.stores.sqlite import SqliteStore
from tests.stores.bench import AGE, WIDE, Clock, Heard, everything_of, let_time_pass_in_redis
from tests.stores.redis_server import RedisServer

KINDS = ("memory", "sqlite", "redis", "shielded sqlite", "shielded redis")
LASTING = tuple(kind for kind in KINDS if kind != "memory")


@dataclass
class Bench:
    """Opens stores of one kind, all in the same place, and lets time pass for them."""

    kind: str
    folder: Path
    url: str
    clock: Clock = field(default_factory=Clock)
    opened: list[Store] = field(default_factory=list)

    async def open(self, bounds: Bounds = WIDE) -> Store:
        """One more store of this kind."""
        store = await OPENING[self.kind.removeprefix("shielded ")](self, bounds)
        if self.kind.startswith("shielded"):
            memory = MemoryStore(self.clock, max_entries=100, max_age=AGE)
            store = Shielded(store, memory, Heard(), mirrors="redis" in self.kind, most=100)
        self.opened.append(store)
        return store

    async def wait(self, seconds: float) -> None:
        """So many seconds later."""
        self.clock.advance(seconds)
        if "redis" in self.kind:
            await let_time_pass_in_redis(self.url, seconds)

    async def close(self) -> None:
        while self.opened:
            await self.opened.pop().close()


async def memory(bench: Bench, bounds: Bounds) -> Store:
    return MemoryStore(
        bench.clock, max_entries=bounds.max_entries, max_bytes=bounds.max_bytes, max_age=bounds.max_age
    )


async def sqlite(bench: Bench, bounds: Bounds) -> Store:
    store = SqliteStore(bench.folder / "transom.db", bounds, Heard(), clock=bench.clock)
    await store.open()
    return store


async def redis(bench: Bench, bounds: Bounds) -> Store:
    return RedisStore(bench.url, max_age=bounds.max_age, clock=bench.clock)


OPENING: dict[str, Callable[[Bench, Bounds], Awaitable[Store]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
}


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    url = ""
    if "redis" in request.param:
        server: RedisServer = request.getfixturevalue("lasting_redis")
        url = server.url
        async with Redis.from_url(url) as client:
            await client.flushall()
    made = Bench(request.param, tmp_path, url)
    yield made
    await made.close()


@pytest.fixture
async def store(bench: Bench) -> Store:
    return await bench.open()


lasting = pytest.mark.parametrize("bench", LASTING, indirect=True)


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
