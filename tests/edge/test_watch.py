"""What a page is told: rows that change in place, bounds on all of them, and news as they come."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import structs

from proxy.context.policy import Mode
from proxy.edge.watch import (
    MOST_CONVERSATIONS,
    MOST_MODELS,
    MOST_POINTS,
    MOST_REQUESTS,
    MOST_WATCHERS,
    Seen,
    Watch,
)
from proxy.errors import TooManyWatchers
from proxy.exchange import Verdict
from proxy.exchange.verdict import Parts

VERDICT = Verdict(
    "m", Mode.MANAGE, window=1000, window_source="configured", trigger=800, original=900, forwarded=400, raw=380,
    factor=1.05, parts=Parts(50, 30, 100, 20, 200),
)  # fmt: skip


def seen(**fields: Any) -> Seen:
    verdict = fields.pop("verdict", VERDICT)
    known = Seen(
        name="r1", method="POST", path="/v1/chat/completions", model="m", mode="manage",
        status=200, upstream_status=200, complete=True, reason="",
        actions=verdict.actions if verdict else "", seconds=0.5, added=0.002,
        conversation="c1", verdict=verdict,
    )  # fmt: skip
    return structs.replace(known, **fields)


class Bench:
    """A watch whose clock and store say what they are set to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = True
        self.watch = Watch(lambda: self.now, lambda: self.store)

    async def all(self, holder: str = "") -> Any:
        """What somebody is told who begins to follow now."""
        async with Following(self.watch, holder) as following:
            return await following.next("all")


class Following:
    """Reads events as a page does."""

    def __init__(self, watch: Watch, holder: str = "") -> None:
        self._events: AsyncGenerator[bytes] = watch.follow(holder)

    async def __aenter__(self) -> "Following":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._events.aclose()

    async def next(self, name: str = "change") -> Any:
        async with asyncio.timeout(10):
            event = await anext(self._events)
        said, data = event.decode().removesuffix("\n\n").split("\n")
        assert said == f"event: {name}"
        return json.loads(data.removeprefix("data: "))


async def test_a_conversation_is_one_row_with_its_parts_and_its_course() -> None:
    bench = Bench()
    bench.watch.note("", seen())
    bench.now = 3.0
    cut = structs.replace(VERDICT, original=1200, forwarded=300, checkpoint_id="k1", actions="elide=2")
    bench.watch.note("", seen(verdict=cut))
    bench.now = 5.0
    (row,) = (await bench.all())["conversations"]
    assert row["parts"] == {"system": 50, "tools": 30, "summary": 100, "elided": 20, "history": 200}
    assert (row["window"], row["trigger"], row["forwarded"], row["age"]) == (1000, 800, 300, 2.0)
    assert (row["requests"], row["cuts"]) == (2, 1)
    assert row["course"] == [[900, 400, ""], [1200, 300, "elide=2"]]


async def test_a_checkpoint_that_goes_on_is_no_new_cut() -> None:
    bench = Bench()
    for _ in range(3):
        bench.watch.note("", seen(verdict=structs.replace(VERDICT, checkpoint_id="k1")))
    (row,) = (await bench.all())["conversations"]
    assert row["cuts"] == 1


async def test_a_request_is_told_with_its_action_and_what_it_took() -> None:
    bench = Bench()
    bench.watch.note("", seen(actions="elide=2", capture="x1"))
    bench.watch.note(
        "", seen(verdict=None, mode="", path="/v1/models", model="", added=None, conversation="")
    )
    first, second = (await bench.all())["requests"]
    assert (first["actions"], first["added_ms"], first["took_ms"]) == ("elide=2", 2.0, 500.0)
    assert (first["original"], first["forwarded"], first["capture"]) == (900, 400, "x1")
    assert (second["path"], second["original"], second["added_ms"]) == ("/v1/models", None, None)


async def test_a_model_is_told_with_its_window_and_keeps_its_factor_where_a_request_was_not_counted() -> None:
    bench = Bench()
    bench.watch.note("", seen())
    bench.watch.note("", seen(verdict=structs.replace(VERDICT, raw=None, factor=None, window=2000)))
    (row,) = (await bench.all())["models"]
    assert (row["window"], row["source"], row["factor"]) == (2000, "configured", 1.05)


async def test_all_that_is_kept_is_bounded() -> None:
    bench = Bench()
    for number in range(MOST_REQUESTS + MOST_POINTS):
        name = f"m{number}" + "x" * 300
        bench.watch.note(
            "", seen(conversation=f"c{number}", verdict=structs.replace(VERDICT, model=name), path=name)
        )
        bench.watch.note("", seen(conversation="same"))
    told = await bench.all()
    assert len(told["conversations"]) == MOST_CONVERSATIONS
    assert len(told["requests"]) == MOST_REQUESTS
    assert len(told["models"]) == MOST_MODELS
    assert len(told["conversations"][-1]["course"]) == MOST_POINTS
    assert max(len(row["model"]) for row in told["models"]) == 100


async def test_who_follows_is_told_what_changed_and_nothing_else() -> None:
    bench = Bench()
    bench.watch.note("", seen(conversation="c1"))
    async with Following(bench.watch) as following:
        assert len((await following.next("all"))["conversations"]) == 1
        bench.watch.note("", seen(conversation="c2"))
        bench.watch.note("", seen(conversation="c3"))
        told = await following.next()
        assert [row["id"] for row in told["conversations"]] == ["c2", "c3"]
        assert len(told["requests"]) == 2
        bench.watch.strike("", "c2")
        assert await following.next() == {"gone": ["c2"]}


async def test_each_holder_is_told_of_its_own_alone() -> None:
    bench = Bench()
    bench.watch.note("ada", seen(conversation="c1"))
    assert "conversations" not in await bench.all("bob")
    assert (await bench.all("ada"))["conversations"][0]["id"] == "c1"


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        (200, "", "ok"),
        (404, "", "ok"),
        (503, "", "failing"),
        (None, "upstream_unreachable", "out_of_reach"),
        (None, "upstream_timeout", "out_of_reach"),
        (None, "client_gone", "unknown"),
    ],
)
async def test_the_upstreams_health_is_what_its_last_answer_was(
    status: int | None, reason: str, state: str
) -> None:
    bench = Bench()
    bench.watch.note("", seen(upstream_status=status, reason=reason, verdict=None))
    assert (await bench.all())["health"]["upstream"] == state


async def test_a_store_that_goes_out_of_reach_is_told_without_a_request() -> None:
    bench = Bench()
    async with Following(bench.watch) as following:
        assert (await following.next("all"))["health"]["store"] == "ok"
        bench.store = False
        assert (await following.next())["health"]["store"] == "out_of_reach"


async def test_watchers_are_counted_and_bounded() -> None:
    bench = Bench()
    following = [bench.watch.follow("") for _ in range(MOST_WATCHERS)]
    for each in following:
        await anext(each)
    with pytest.raises(TooManyWatchers):
        bench.watch.follow("")
    for each in following:
        await each.aclose()
    assert bench.watch.watchers == 0


async def test_following_ends_when_the_watch_is_closed_for_good() -> None:
    bench = Bench()
    events = bench.watch.follow("")
    await anext(events)
    bench.watch.close()
    async with asyncio.timeout(10):
        assert [event async for event in events] == []
        assert len([event async for event in bench.watch.follow("")]) == 1
