"""What is remembered between requests, over a real store and over one that is out of reach."""

from collections.abc import Mapping, Sequence

import pytest

from proxy.context.calibration import Anchor, CalibrationPolicy
from proxy.context.edits import Cut, Edits
from proxy.edge.memories import Memories
from proxy.errors import StoreUnavailable
from proxy.exchange import Learn, Memory
from proxy.stores.memory import MemoryStore

CHAIN = ("aa", "bb", "cc")
ONE = Edits(Cut(0, notice="one"))
TWO = Edits(Cut(1, notice="two"))
TOO_DEEP = Edits(Cut(500, notice="far behind the end"))
BOUNDS = CalibrationPolicy(min_tokens=10)


def store() -> MemoryStore:
    return MemoryStore(lambda: 0.0, max_entries=100, max_age=1e9)


async def test_the_newest_checkpoint_on_the_chain_is_recalled() -> None:
    memories = Memories(store(), "u")
    assert await memories.recall("m", CHAIN) == Memory()
    await memories.save("aa", ONE)
    await memories.save("bb", TWO)
    await memories.save("elsewhere", ONE)
    found = await memories.recall("m", CHAIN)
    assert (found.edits, found.checkpoint_id) == (TWO, "bb")
    assert (await memories.recall("m", ("aa",))).edits == ONE
    assert (await memories.recall("m", ())).edits is None


async def test_of_two_that_save_under_one_key_the_first_wins_and_both_hear_so() -> None:
    memories = Memories(store(), "u")
    assert await memories.save("aa", ONE) == ONE
    assert await memories.save("aa", TWO) == ONE


async def test_a_checkpoint_that_cannot_be_read_gives_way_to_an_older_one() -> None:
    kept = store()
    memories = Memories(kept, "u")
    await memories.save("aa", ONE)
    await kept.write({"cc": b"from another version", "summary:cc": b"\xff\xfe"})
    await memories.save("bb", TOO_DEEP)
    found = await memories.recall("m", CHAIN)
    assert (found.edits, found.checkpoint_id, found.summaries) == (ONE, "aa", {})


async def test_a_summary_that_was_kept_waits_under_its_prefix() -> None:
    memories = Memories(store(), "u")
    await memories.keep("bb", "They talked. \ud83d")
    await memories.keep("elsewhere", "x")
    assert (await memories.recall("m", CHAIN)).summaries == {"bb": "They talked. ?"}


@pytest.mark.parametrize("model", ["m", "", "org/model:tag", "modèle \ud83d"])
async def test_what_was_learned_belongs_to_one_model_of_one_upstream(model: str) -> None:
    kept = store()
    memories = Memories(kept, "u")
    await memories.learn(Learn(model, raw_tokens=100, reported_tokens=150), BOUNDS)
    await memories.learn(Learn(model, refuses_usage=True), BOUNDS)
    found = await memories.recall(model, CHAIN)
    assert found.calibration.line(BOUNDS).slope == pytest.approx(1.5)
    assert found.refuses_usage
    for other in (await memories.recall("another", CHAIN), await Memories(kept, "v").recall(model, CHAIN)):
        assert other == Memory()
    await memories.close()


async def test_counts_of_a_conversation_are_read_whatever_version_wrote_them() -> None:
    kept = store()
    memories = Memories(kept, "u")
    anchor = Anchor("cc", "mark", 2_000.0, 2_300.0, trail=((1_000.0, 1_200.0), (2_000.0, 2_300.5)))
    await memories.learn(Learn("m", opening="aa", anchors=(anchor,)), BOUNDS)
    assert (await memories.recall("m", CHAIN, "aa")).anchors == (anchor,)
    await kept.write({"anchors:bb": b'[{"tip":"cc","mark":"mark","raw":2000.0,"reported":2300.0,"later":1}]'})
    assert (await memories.recall("m", CHAIN, "bb")).anchors == (Anchor("cc", "mark", 2_000.0, 2_300.0),)
    await memories.close()


async def test_a_lesson_that_teaches_nothing_is_not_stored() -> None:
    memories = Memories(store(), "u")
    await memories.learn(Learn("m", raw_tokens=5, reported_tokens=5), BOUNDS)
    assert await memories.recall("m", ()) == Memory()


class OutOfReach:
    """A store that never answers."""

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        raise StoreUnavailable("The store is out of reach.")

    async def write(self, values: Mapping[str, bytes]) -> None:
        raise StoreUnavailable("The store is out of reach.")

    async def claim(self, key: str, value: bytes) -> bytes:
        raise StoreUnavailable("The store is out of reach.")

    async def forget(self, keys: Sequence[str]) -> None:
        raise StoreUnavailable("The store is out of reach.")

    async def close(self) -> None:
        """Nothing to close."""


async def test_a_store_out_of_reach_fails_nobody() -> None:
    memories = Memories(OutOfReach(), "u")
    assert await memories.recall("m", CHAIN) == Memory()
    assert await memories.save("aa", ONE) == ONE
    await memories.keep("aa", "text")
    await memories.learn(Learn("m", raw_tokens=100, reported_tokens=150, refuses_usage=True), BOUNDS)
    await memories.close()
