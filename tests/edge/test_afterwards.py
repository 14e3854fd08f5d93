"""What is put off is done soon, in its order, and before anybody is told what depends on it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop

from proxy.edge.afterwards import MOST, Afterwards
from tests.edge.proxied import proxied
from tests.edge.test_metrics import CHAT, GOOD, chat
from tests.peers.client import RawClient
from tests.peers.upstream import ScriptedUpstream

LOOPS = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


async def done(afterwards: Afterwards) -> None:
    """Wait until all that is due now has been done."""
    over = asyncio.Event()
    afterwards.put(over.set)
    async with asyncio.timeout(5):
        await over.wait()


@LOOPS
def test_what_is_put_off_is_done_soon_and_in_its_order(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def course() -> list[int]:
        afterwards, order = Afterwards(), list[int]()
        for each in range(200):  # more than are done before others have a turn
            afterwards.put(partial(order.append, each))
        assert not order
        await done(afterwards)
        return order

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(course()) == list(range(200))


async def test_others_have_a_turn_between_many() -> None:
    afterwards, counted, seen, loop = Afterwards(), list[int](), set[int](), asyncio.get_running_loop()

    def look_on() -> None:
        seen.add(len(counted))
        if len(counted) < 1000:
            loop.call_soon(look_on)

    for each in range(1000):
        afterwards.put(partial(counted.append, each))
    look_on()
    await done(afterwards)
    assert len(seen) > 5


async def test_what_is_settled_is_done_at_once_and_once() -> None:
    afterwards, order = Afterwards(), list[str]()
    afterwards.put(lambda: order.append("first"))
    afterwards.put(lambda: afterwards.put(lambda: order.append("third")))
    afterwards.put(lambda: order.append("second"))
    afterwards.settle()
    assert order == ["first", "second", "third"]
    await done(afterwards)
    assert order == ["first", "second", "third"]


@pytest.mark.parametrize("settles", [False, True])
async def test_one_that_fails_is_reported_and_keeps_none_of_the_others(settles: bool) -> None:
    def fail() -> None:
        raise RuntimeError("of ours")

    faults, order, afterwards = list[Any](), list[int](), Afterwards()
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: faults.append(context["exception"])
    )
    for each in range(3):
        afterwards.put(fail)
        afterwards.put(partial(order.append, each))
    if settles:  # and is told nothing of a fault that is not its own
        afterwards.settle()
        assert order == [0, 1, 2]
    await done(afterwards)
    assert order == [0, 1, 2]
    assert len(faults) == 3


async def test_no_more_than_so_many_wait_however_many_come_in_one_turn() -> None:
    afterwards, order = Afterwards(), list[int]()
    for each in range(3 * MOST):
        afterwards.put(partial(order.append, each))
        assert each - len(order) < MOST
    await done(afterwards)
    assert order == list(range(3 * MOST))


@pytest.mark.parametrize(
    ("path", "shows"),
    [("/-/metrics", b'transom_requests_total{mode="manage"'), ("/-/state", b'"requests":1')],
)
async def test_whoever_asks_is_told_of_the_request_that_has_just_ended(path: str, shows: bytes) -> None:
    async with (
        ScriptedUpstream([GOOD]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(CHAT, chat("x"))
        answer = await client.get(path)
    assert shows in answer.body


async def test_what_has_not_been_told_when_the_proxy_ends_is_told_then() -> None:
    async with (
        ScriptedUpstream([GOOD]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.post(CHAT, chat("x"))
    assert '"event":"request"' in proxy.written.getvalue()
