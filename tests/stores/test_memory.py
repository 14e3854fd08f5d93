"""The memory store's bounds: they hold at every moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stores.memory import MemoryStore
from tests.stores.bench import Clock, everything_of

KEYS = [f"{number}" for number in range(10)]


def made(clock: Clock | None = None, *, entries: int = 3, room: int = 10**6, age: float = 100) -> MemoryStore:
    return MemoryStore(clock or Clock(), max_entries=entries, max_bytes=room, max_age=age)


def held(store: MemoryStore) -> dict[str, bytes]:
    """What the store holds, without using it."""
    return {key: value for key, (_, value) in store._entries.items()}


async def test_the_longest_unused_goes_first_when_there_are_too_many() -> None:
    store = made(entries=3)
    await store.write({"1": b"", "2": b"", "3": b""})
    await store.read(["1"])
    await store.claim("2", b"x")
    await store.write({"4": b""})
    assert set(held(store)) == {"1", "2", "4"}


async def test_the_longest_unused_go_first_when_they_are_too_large() -> None:
    store = made(room=100)
    await store.write({"1": b"x" * 40, "2": b"x" * 40})
    await store.write({"3": b"x" * 50})
    assert set(held(store)) == {"2", "3"}
    await store.write({"2": b"x" * 9, "4": b"x" * 30})
    assert set(held(store)) == {"3", "2", "4"}


async def test_what_is_too_old_is_gone_at_the_next_use_of_anything() -> None:
    clock = Clock()
    store = made(clock, age=100)
    await store.write({"1": b"1", "2": b"2"})
    clock.advance(60)
    await store.read(["2"])
    clock.advance(60)
    await store.read(["other"])
    assert held(store) == {"2": b"2"}


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "claim", "read", "forget"]), st.sampled_from(KEYS), st.binary()),
        max_size=40,
    )
)
async def test_the_bounds_hold_after_every_step(steps: list[tuple[str, str, bytes]]) -> None:
    store = made(entries=4, room=60)
    for step, key, value in steps:
        match step:
            case "write":
                await store.write({key: value})
            case "claim":
                assert (await store.claim(key, value)) in (value, held(store).get(key))
            case "read":
                await store.read([key])
            case _:
                await store.forget([key])
        kept = held(store)
        size = sum(len(key) + len(value) for key, value in kept.items())
        assert len(kept) <= 4
        assert size <= 60
        assert store._bytes == size


@pytest.mark.parametrize("room", [0, 1])
async def test_a_store_without_room_still_answers(room: int) -> None:
    store = made(room=room)
    assert await store.claim("1", b"value") == b"value"
    assert await everything_of(store, KEYS) == {}
