"""The counts along a conversation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context import trail
from proxy.context.trail import MOST_MARKS, Trail


def walked(steps: list[float], rate: float = 1.0) -> Trail:
    marks: Trail = ((steps[0], steps[0] * rate),)
    for step in steps[1:]:
        marks = trail.extended(marks, marks[-1][0] + step, rate)
    return marks


def test_a_long_trail_keeps_its_first_mark_and_is_finer_towards_its_end() -> None:
    marks = walked([2_000.0] + [500.0] * 200)
    assert len(marks) == MOST_MARKS
    assert [marks[0], marks[-1]] == [(2_000, 2_000), (102_000, 102_000)]
    gaps = [after[0] - before[0] for before, after in pairwise(marks[1:])]
    assert gaps[-1] <= 1_000
    assert gaps[0] > gaps[-1]


def test_what_is_appended_is_taken_at_its_own_rate() -> None:
    marks = trail.extended(walked([1_000.0, 1_000.0]), 3_000, 2.0)
    assert trail.along(marks, 2_500, 9.0) == 3_000
    assert trail.along(marks, 4_000, 0.5) == 4_500, "behind the end"


def test_a_conversation_that_goes_back_goes_on_from_there() -> None:
    marks = walked([1_000.0, 1_000.0, 1_000.0], rate=2.0)
    assert trail.extended(marks, 1_500, 1.0) == ((1_000, 2_000), (1_500, 3_000))


def test_a_cut_keeps_the_beginning_and_the_newest_end() -> None:
    marks = ((0.0, 500.0), (1_000.0, 1_500.0), (2_000.0, 2_000.0), (3_000.0, 4_000.0))
    curve = trail.when_cut(marks, whole=3_500, front=1_000, rate=1.0)
    assert curve.tokens(0) == 500
    assert curve.tokens(1_000) == 1_500
    assert curve.tokens(1_500) == 2_000, "the newest 500, which were not counted yet"
    assert curve.tokens(2_500) == 4_000
    assert curve.tokens(3_500) == 4_500
    assert curve.raw(4_000) == 2_500
    assert curve.raw(100) == 0


@given(
    st.lists(st.floats(1, 1e5), min_size=1, max_size=40),
    st.floats(0.25, 4),
    st.floats(0, 1e5),
    st.floats(1, 1e6),
)
def test_tokens_and_raw_tokens_of_a_curve_are_each_others_inverse(
    steps: list[float], rate: float, front: float, tokens: float
) -> None:
    marks = ((0.0, 0.0), *walked(steps, rate))
    curve = trail.when_cut(marks, whole=marks[-1][0] + 100, front=front, rate=rate)
    assert curve.tokens(curve.raw(tokens)) == pytest.approx(tokens, abs=2 * max(1.0, rate), rel=0.01)
