"""Outages: what a process does while its store is out of reach, and what it owes when the store is back."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from proxy.errors import StoreUnavailable
from proxy.stores.memory import MemoryStore
from proxy.stores.shielded import PROBE, Shielded
from tests.stores.bench import AGE, Clock, Fickle, Heard

NEVER = 3600.0


class Case:
    """A shielded store, the store behind, and what was told."""

    def __init__(
        self, *, mirrors: bool = True, retry: float = 0.001, most: int = 100, behind: Fickle | None = None
    ) -> None:
        self.behind = behind or Fickle()
        self.heard = Heard()
        memory = MemoryStore(Clock(), max_entries=100, max_age=AGE)
        self.store = Shielded(self.behind, memory, self.heard, mirrors=mirrors, most=most, retry=retry)

    async def goes_down(self) -> None:
        """The store is out of reach from now on, and has been found so."""
        self.behind.down = True
        await self.store.read(["any"])
        await self.heard.until("store_down")

    async def comes_back(self, times: int = 1) -> None:
        self.behind.down = self.behind.full = self.behind.deaf = False
        await self.heard.until("store_back", times)


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    made = Case()
    yield made
    await made.store.close()


@pytest.fixture
async def lasting() -> AsyncIterator[Case]:
    """An outage that begins in the test does not end in it."""
    made = Case(retry=NEVER)
    yield made
    await made.store.close()


# ---------------------------------------------------------------------------------------------------- in an outage


async def test_a_process_works_on_from_what_it_has_read_and_claimed(lasting: Case) -> None:
    store = lasting.store
    await lasting.behind.kept.write({"read": b"1", "unread": b"2"})
    await store.read(["read"])
    await store.claim("claimed", b"3")
    await store.write({"written": b"4"})
    await lasting.goes_down()
    assert not store.available
    assert await store.read(["read", "unread", "claimed", "written"]) == [b"1", None, b"3", b"4"]
    assert await store.claim("read", b"other") == b"1"


async def test_an_outage_is_told_once_and_asks_the_store_no_more(lasting: Case) -> None:
    await lasting.goes_down()
    asked = len(lasting.behind.asked)
    for _ in range(5):
        await lasting.store.read(["a"])
        await lasting.store.claim("a", b"1")
        with pytest.raises(StoreUnavailable):
            await lasting.store.write({"a": b"1"})
    assert len(lasting.behind.asked) == asked
    assert lasting.heard.names == ["store_down"]


async def test_calls_that_fail_together_begin_one_outage(lasting: Case) -> None:
    lasting.behind.down = True
    await asyncio.gather(*(lasting.store.read(["a"]) for _ in range(10)))
    assert lasting.heard.names == ["store_down"]


async def test_the_store_itself_is_asked_and_believed_while_it_answers(case: Case) -> None:
    await case.store.write({"a": b"1"})
    await case.behind.kept.write({"a": b"2"})
    assert await case.store.read(["a"]) == [b"2"]
    assert await case.store.claim("a", b"3") == b"2"


async def test_what_the_store_has_lost_is_not_brought_back_by_an_outage(lasting: Case) -> None:
    await lasting.store.write({"a": b"1", "b": b"2"})
    await lasting.behind.kept.forget(["a"])
    await lasting.store.read(["a", "b"])
    await lasting.goes_down()
    assert await lasting.store.read(["a", "b"]) == [None, b"2"]


async def test_a_write_that_fails_is_the_callers_to_repeat(case: Case) -> None:
    case.behind.full = True
    with pytest.raises(StoreUnavailable):
        await case.store.write({"a": b"1"})
    await case.comes_back()
    assert await case.store.read(["a"]) == [None]
    await case.store.write({"a": b"1"})
    assert await case.store.read(["a"]) == [b"1"]


# ------------------------------------------------------------------------------------------------------ unconfirmed


async def test_a_claim_in_an_outage_holds_for_this_process_and_is_claimed_when_the_store_is_back() -> None:
    case = Case()
    await case.goes_down()
    assert await case.store.claim("a", b"mine") == b"mine"
    assert await case.store.claim("a", b"mine again") == b"mine"
    assert await case.store.read(["a"]) == [b"mine"]
    assert await case.behind.kept.read(["a"]) == [None]
    await case.comes_back()
    assert await case.behind.kept.read(["a"]) == [b"mine"]
    assert case.heard.events[-1][1]["claims"] == 1
    await case.store.close()


async def test_when_another_has_claimed_it_meanwhile_the_others_value_is_what_all_go_on_with(
    case: Case,
) -> None:
    await case.goes_down()
    assert await case.store.claim("a", b"mine") == b"mine"
    await case.behind.kept.write({"a": b"theirs"})
    await case.comes_back()
    assert await case.store.read(["a"]) == [b"theirs"]
    case.behind.down = True
    assert await case.store.read(["a"]) == [b"theirs"]
    assert await case.behind.kept.read(["a"]) == [b"theirs"]


async def test_the_store_is_not_believed_to_be_back_before_every_claim_is_confirmed(case: Case) -> None:
    await case.goes_down()
    await asyncio.gather(*(case.store.claim(f"{number}", b"mine") for number in range(30)))
    await case.behind.kept.write({"29": b"theirs"})
    await case.comes_back()
    assert await case.behind.kept.read(["0", "28", "29"]) == [b"mine", b"mine", b"theirs"]
    assert await case.store.read(["29"]) == [b"theirs"]


async def test_a_claim_whose_answer_was_lost_is_unconfirmed_though_the_store_may_have_it(case: Case) -> None:
    await case.behind.kept.write({"b": b"theirs"})
    case.behind.deaf = True
    assert await case.store.claim("a", b"mine") == b"mine"
    assert await case.store.claim("b", b"mine") == b"mine"
    await case.comes_back()
    assert await case.store.read(["a", "b"]) == [b"mine", b"theirs"]


async def test_what_is_forgotten_in_an_outage_is_not_claimed_later(case: Case) -> None:
    await case.goes_down()
    await case.store.claim("a", b"mine")
    with pytest.raises(StoreUnavailable):
        await case.store.forget(["a"])
    await case.comes_back()
    assert await case.behind.kept.read(["a"]) == [None]
    assert await case.store.read(["a"]) == [None]


async def test_what_is_forgotten_while_it_is_being_confirmed_is_forgotten_there_too() -> None:
    cases: list[Case] = []

    class Slow(Fickle):
        async def claim(self, key: str, value: bytes) -> bytes:
            if not self.down:
                with pytest.raises(StoreUnavailable):
                    await cases[0].store.forget([key])
            return await super().claim(key, value)

    case = Case(behind=Slow())
    cases.append(case)
    await case.goes_down()
    await case.store.claim("a", b"mine")
    await case.comes_back()
    assert await case.behind.kept.read(["a"]) == [None]
    assert await case.store.read(["a"]) == [None]
    await case.store.close()


async def test_unconfirmed_claims_are_bounded_and_the_newest_stay() -> None:
    case = Case(most=3)
    await case.goes_down()
    for number in range(10):
        await case.store.claim(f"{number}", b"mine")
    await case.comes_back()
    assert case.heard.events[-1][1]["claims"] == 3
    assert await case.behind.kept.read(["6", "7", "8", "9"]) == [None, b"mine", b"mine", b"mine"]
    await case.store.close()


# ------------------------------------------------------------------------------------------------- back, and again


async def test_a_store_that_can_be_read_but_takes_nothing_in_is_not_back(case: Case) -> None:
    case.behind.full = True
    assert await case.store.claim("a", b"mine") == b"mine"
    await case.behind.until_asked("write", 3)
    assert not case.store.available
    await case.comes_back()
    assert await case.behind.kept.read(["a", PROBE]) == [b"mine", b""]


async def test_each_outage_is_told_when_it_begins_and_when_it_ends(case: Case) -> None:
    for times in (1, 2, 3):
        case.behind.down = True
        await case.store.read(["a"])
        await case.comes_back(times)
    assert case.heard.names == ["store_down", "store_back"] * 3
    assert case.store.available


async def test_a_call_from_before_an_outage_that_fails_after_it_begins_no_other() -> None:
    gate, asked = asyncio.Event(), asyncio.Event()

    class Slow(Fickle):
        async def forget(self, keys: Sequence[str]) -> None:
            asked.set()
            await gate.wait()
            raise StoreUnavailable("an answer that never came")

    case = Case(behind=Slow())
    late = asyncio.create_task(case.store.forget(["a"]))
    await asked.wait()
    await case.goes_down()
    await case.comes_back()
    gate.set()
    with pytest.raises(StoreUnavailable):
        await late
    assert case.store.available
    assert case.heard.names == ["store_down", "store_back"]
    await case.store.close()


async def test_closing_in_an_outage_ends_the_tries_and_closes_the_store(lasting: Case) -> None:
    await lasting.goes_down()
    await lasting.store.close()
    assert lasting.behind.closed
    assert len(asyncio.all_tasks()) == 1


# --------------------------------------------------------------------------------- a store that can always be read


async def test_a_full_disk_keeps_nobody_from_reading_and_claims_wait_in_memory() -> None:
    case = Case(mirrors=False)
    await case.behind.kept.write({"a": b"1"})
    case.behind.full = True
    assert await case.store.claim("b", b"2") == b"2"
    assert not case.store.available
    assert await case.store.read(["a", "b", "c"]) == [b"1", b"2", None]
    await case.comes_back()
    assert await case.behind.kept.read(["a", "b"]) == [b"1", b"2"]
    await case.store.close()


async def test_once_reading_has_failed_nobody_is_kept_waiting_by_it_until_the_store_is_back() -> None:
    case = Case(mirrors=False, retry=NEVER)
    await case.behind.kept.write({"a": b"1"})
    case.behind.full = True
    assert await case.store.claim("b", b"2") == b"2"
    assert await case.store.read(["a", "b"]) == [b"1", b"2"]
    case.behind.down = True
    assert await case.store.read(["a", "b"]) == [None, b"2"]
    asked = len(case.behind.asked)
    for _ in range(5):
        assert await case.store.read(["a", "b"]) == [None, b"2"]
    assert len(case.behind.asked) == asked
    await case.store.close()


async def test_each_outage_finds_out_anew_whether_the_store_can_be_read() -> None:
    case = Case(mirrors=False)
    await case.behind.kept.write({"a": b"1"})
    await case.goes_down()
    await case.comes_back()
    assert await case.store.read(["a"]) == [b"1"]
    case.behind.full = True
    assert await case.store.claim("b", b"2") == b"2"
    assert await case.store.read(["a", "b"]) == [b"1", b"2"]
    await case.store.close()


async def test_no_copy_is_kept_of_what_can_always_be_read() -> None:
    case = Case(mirrors=False, retry=NEVER)
    await case.store.write({"a": b"1"})
    await case.store.claim("b", b"2")
    await case.store.read(["a", "b"])
    await case.goes_down()
    assert await case.store.read(["a", "b"]) == [None, None]
    await case.store.close()
