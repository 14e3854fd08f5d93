"""Learned values on their way to the store: known at once, written a little later, many at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from proxy.context.calibration import CalibrationPolicy
from proxy.context.edits import Cut, Edits
from proxy.edge.lessons import Lessons
from proxy.edge.memories import Memories
from proxy.exchange import Learn
from tests.stores.bench import Fickle

NEVER = 3600.0
SOON = 0.001
POLICY = CalibrationPolicy(min_tokens=10)

Opening = Callable[[Fickle, float], Lessons]


@pytest.fixture
async def opening() -> AsyncIterator[Opening]:
    made: list[Lessons] = []

    def open_(store: Fickle, interval: float) -> Lessons:
        made.append(Lessons(store, interval=interval, most=5))
        return made[-1]

    yield open_
    for each in made:
        await each.close()


async def test_what_is_put_is_known_at_once_and_written_later(opening: Opening) -> None:
    store = Fickle()
    lessons = opening(store, SOON)
    lessons.put("a", b"1")
    assert lessons.seen("a", b"old") == b"1"
    assert await lessons.known("a") == b"1"
    assert store.asked == []
    await store.until_asked("write", 1)
    assert await store.kept.read(["a"]) == [b"1"]


async def test_all_that_was_put_in_an_interval_is_one_write(opening: Opening) -> None:
    store = Fickle()
    lessons = opening(store, NEVER)
    for number in range(4):
        lessons.put(f"{number}", b"1")
        lessons.put(f"{number}", b"2")
    await lessons.close()
    assert store.asked == ["write"]
    assert await store.kept.read(["0", "3"]) == [b"2", b"2"]


async def test_what_did_not_change_is_not_written(opening: Opening) -> None:
    store = Fickle()
    lessons = opening(store, SOON)
    lessons.seen("a", b"1")
    lessons.put("a", b"1")
    await lessons.close()
    assert store.asked == []


async def test_what_could_not_be_written_is_written_with_the_next(opening: Opening) -> None:
    store = Fickle()
    lessons = opening(store, SOON)
    store.down = True
    lessons.put("a", b"1")
    await store.until_asked("write", 2)
    lessons.put("b", b"2")
    store.down = False
    await lessons.close()
    assert await store.kept.read(["a", "b"]) == [b"1", b"2"]


async def test_what_is_learned_while_it_is_written_is_written_too(opening: Opening) -> None:
    class Slow(Fickle):
        async def write(self, values: Mapping[str, bytes]) -> None:
            if values == {"a": b"1"}:
                lessons.put("a", b"2")
            await super().write(values)

    store = Slow()
    lessons = opening(store, SOON)
    lessons.put("a", b"1")
    await store.until_asked("write", 2)
    assert await store.kept.read(["a"]) == [b"2"]


async def test_the_store_is_asked_only_for_what_was_never_heard_of(opening: Opening) -> None:
    store = Fickle()
    await store.kept.write({"a": b"1"})
    lessons = opening(store, NEVER)
    assert [await lessons.known("a"), await lessons.known("a")] == [b"1", b"1"]
    assert store.asked == ["read"]


async def test_what_is_held_is_bounded_and_the_newest_stays(opening: Opening) -> None:
    store = Fickle()
    lessons = opening(store, NEVER)
    for number in range(20):
        lessons.put(f"{number}", b"1")
    await lessons.close()
    assert await store.kept.read(["14", "15", "19"]) == [None, b"1", b"1"]


async def test_nothing_runs_when_nothing_is_to_be_written() -> None:
    store = Fickle()
    lessons = Lessons(store, interval=SOON)
    lessons.put("a", b"1")
    await lessons.close()
    lessons.seen("b", b"2")
    await lessons.close()
    assert len(asyncio.all_tasks()) == 1
    assert store.asked == ["write"]


# --------------------------------------------------------------------------------------------- what a request costs


async def test_a_request_reads_once_claims_once_and_writes_nothing_else_before_its_answer() -> None:
    store = Fickle()
    memories = Memories(store, "u", interval=NEVER)
    steps: list[Awaitable[object]] = [
        memories.recall("m", [f"{number:x}" for number in range(300)]),
        memories.save("0", Edits(Cut(1, notice="gone"))),
        memories.learn(Learn("m", raw_tokens=100, reported_tokens=150), POLICY),
        memories.learn(Learn("m", refuses_usage=True), POLICY),
    ]
    for step in steps:
        await step
    assert store.asked == ["read", "claim"]
    found = await memories.recall("m", ["0"])
    assert found.calibration.line(POLICY).slope == pytest.approx(1.5)
    assert found.refuses_usage
    await memories.close()
    assert store.asked == ["read", "claim", "read", "write"]


async def test_what_one_process_learned_the_next_one_knows() -> None:
    store = Fickle()
    for reported in (150, 150):
        memories = Memories(store, "u", interval=NEVER)
        await memories.recall("m", [])
        await memories.learn(Learn("m", raw_tokens=100, reported_tokens=reported), POLICY)
        await memories.close()
    found = await Memories(store, "u").recall("m", [])
    assert found.calibration.samples == 2


async def test_an_outage_forgets_nothing_that_was_learned() -> None:
    store = Fickle()
    memories = Memories(store, "u", interval=NEVER)
    await memories.learn(Learn("m", raw_tokens=100, reported_tokens=150), POLICY)
    store.down = True
    assert (await memories.recall("m", ["a"])).calibration.samples == 1
    await memories.learn(Learn("m", raw_tokens=100, reported_tokens=150), POLICY)
    store.down = False
    assert (await memories.recall("m", ["a"])).calibration.samples == 2
    await memories.close()


async def test_side_calls_are_refrained_from_while_nobody_could_share_them() -> None:
    shared = True
    memories = Memories(Fickle(), "u", shared=lambda: shared)
    assert (await memories.recall("m", [])).may_ask
    shared = False
    assert not (await memories.recall("m", [])).may_ask
