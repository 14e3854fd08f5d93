"""The load run by wrk in its shortest form, and that it can fail."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import load
from benchmarks.load import CASES, Case, Counts, answer, asked, run
from tests.needs import lacks
from tests.peers.answers import Answer, Cut
from tests.peers.scripted import Request, ScriptedUpstream

ECHO = CASES[0]


@pytest.fixture(scope="module", autouse=True)
def wrk() -> None:
    if shutil.which("wrk") is None:
        lacks("wrk is not installed", "Debian: apt-get install wrk")


@pytest.mark.slow
async def test_no_answer_is_lost_or_damaged_in_any_mode(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [replace(case, size=min(case.size, 20_000)) for case in CASES]
    assert await run(cases, [4], 1) == []
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(cases)


def damaged(request: Request) -> Answer:
    whole = answer(request)
    return replace(whole, pieces=(whole.body[:-1] + b"?",))


def shortened(request: Request) -> Answer:
    whole = answer(request)
    return replace(whole, pieces=(whole.body[:-1],))


def of_another(request: Request) -> Answer:
    return replace(answer(request), pieces=(request.body.replace(b" m1.", b" m2."),))


def cut(request: Request) -> Answer:
    return answer(request).cut_at(20, Cut.CLOSE)


@pytest.mark.parametrize("spoilt", [damaged, shortened, of_another])
async def test_a_damaged_answer_is_counted(spoilt: Callable[[Request], Answer]) -> None:
    async with ScriptedUpstream(otherwise=spoilt, keep=0) as upstream:
        counts = await asked(upstream.url, ECHO, 1, 1)
    assert counts.damaged == counts.answered > 0
    (complaint,) = counts.complaints(ECHO)
    assert complaint.startswith(
        f"small, off: {counts.damaged} answers were damaged, one of them: status 200, "
    )


async def test_an_answer_that_is_cut_off_is_counted() -> None:
    async with ScriptedUpstream(otherwise=cut, keep=0) as upstream:
        counts = await asked(upstream.url, ECHO, 2, 1)
    assert counts.answered == 0
    assert counts.errors > 0
    assert counts.complaints(ECHO)[0] == "small, off: nothing was answered"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lost": 1}, "1 answers were lost, and wrk saw 0 errors of connections"),
        ({"errors": 2}, "0 answers were lost, and wrk saw 2 errors of connections"),
        ({"edited": 8}, "1 requests were not edited, though they did not fit"),
    ],
)
def test_what_went_wrong_is_complained_of(change: dict[str, Any], complaint: str) -> None:
    edited = Case("edited", "edited", 1, "manage")
    counts = Counts(asked=10, answered=9, damaged=0, edited=9, lost=0, errors=0, seconds=1.0, fault="")
    assert counts.complaints(edited) == []
    assert replace(counts, **change).complaints(edited) == [f"edited: {complaint}"]


def test_without_wrk_it_says_that_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert load.main([]) == 0
    assert capsys.readouterr().out.strip() == load.NO_WRK
