"""The soak run in its shortest form, and that it can fail."""

import asyncio
import random
from dataclasses import replace

import pytest

from benchmarks.soak import Crowd, Ending, Figures, Result, Upstream, judged, main, planned
from tests.peers.answers import Answer
from tests.peers.scripted import Request

QUIET = Figures(connections=3, tasks=1, descriptors=9, memory=100.0)
VISIT = replace(planned(random.Random(1), 1), status=200, expects=b"whole")  # noqa: S311 - a game, not a secret


def crowd(upstream: Upstream, url: str = "") -> Crowd:
    return Crowd(url, upstream, random.Random(1))  # noqa: S311


def result(
    end: Figures = QUIET, *, left_open: int = 0, edited: int = 1, errors: tuple[str, ...] = ()
) -> Result:
    visitors = crowd(Upstream())
    visitors.edited = edited
    return Result(QUIET, QUIET, end, left_open, visitors, list(errors))


@pytest.mark.slow
def test_b106_a_crowd_that_comes_and_goes_leaves_nothing_behind_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["--seconds", "3", "--streams", "20"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert "Everything is back at the start, and nothing was lost." in said


class Damaging(Upstream):
    """Changes the last byte of whatever it sends."""

    def answer(self, request: Request) -> Answer:
        whole = super().answer(request)
        *before, last = whole.pieces
        return replace(whole, pieces=(*before, last[:-1] + b"?" if isinstance(last, bytes) else last))


async def test_a_crowd_tells_of_damaged_answers() -> None:
    upstream = Damaging()
    await upstream.start()
    visitors = crowd(upstream, f"http://127.0.0.1:{upstream.port}")
    async with asyncio.timeout(30):
        await visitors.run(4, 0.5)
    await upstream.stop()
    assert any(fault.startswith("DAMAGED: ") for fault in visitors.faults)
    assert not visitors.outcomes["whole"]


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Ending(200, b"whole", is_complete=True, is_sent=True), "whole"),
        (Ending(200, b"whole", is_complete=True, is_sent=False), "whole"),
        (Ending(200, b"whol", is_complete=True, is_sent=True), "DAMAGED"),
        (Ending(200, b"whol", is_complete=True, is_sent=False), "DAMAGED"),
        (Ending(200, b"whole", is_complete=False, is_sent=True), "LOST"),
        (Ending(502, b"{}", is_complete=True, is_sent=True), "LOST"),
        (Ending(None, b"", is_complete=False, is_sent=True), "LOST"),
        (Ending(500, b"{}", is_complete=True, is_sent=False), "MADE UP"),
        (Ending(502, b"{}", is_complete=True, is_sent=False), "broken by the upstream"),
        (Ending(200, b"whol", is_complete=False, is_sent=False), "broken by the upstream"),
        (Ending(None, b"", is_complete=False, is_sent=False), "broken by the upstream"),
    ],
)
def test_an_answer_that_was_waited_for_is_judged_by_what_the_upstream_sent(
    ending: Ending, outcome: str
) -> None:
    assert judged(VISIT, ending) == outcome


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (result(replace(QUIET, connections=4)), "connections: 3 at the start, 4 at the end"),
        (result(replace(QUIET, tasks=2)), "tasks: 1 at the start, 2 at the end"),
        (result(replace(QUIET, descriptors=10)), "descriptors: 9 at the start, 10 at the end"),
        (result(replace(QUIET, memory=140.0)), "memory: 40 MiB more than at the start"),
        (result(left_open=2), "2 connections to the upstream were left open"),
        (result(edited=0), "no request was edited, so that this run says nothing of those"),
        (result(errors=("{}",)), "logged: {}"),
    ],
)
def test_what_is_left_behind_is_complained_of(made: Result, complaint: str) -> None:
    assert made.complaints() == [complaint]


def test_nothing_is_complained_of_where_all_is_as_before() -> None:
    assert result().complaints() == []
