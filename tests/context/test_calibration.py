"""The learned factor: what it believes, what it does not, and that it cannot run away."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.calibration import UNCALIBRATED, Calibration, CalibrationPolicy, learn

POLICY = CalibrationPolicy()


def after(samples: Sequence[tuple[float, float]]) -> Calibration:
    known = UNCALIBRATED
    for raw, reported in samples:
        known = learn(known, raw, reported, POLICY)
    return known


def test_before_the_first_answer_the_factor_is_one() -> None:
    assert UNCALIBRATED.factor(POLICY) == 1.0


def test_b55_a_constant_ratio_is_learned_and_stays() -> None:
    assert after([(10_000, 15_000)] * 50).factor(POLICY) == pytest.approx(1.5)


@given(st.lists(st.tuples(st.floats(2_000, 100_000), st.floats(0.9, 1.1)), min_size=5, max_size=40))
def test_b55_noise_of_a_tenth_stays_within_a_tenth(samples: list[tuple[float, float]]) -> None:
    known = after([(raw, raw * 1.5 * noise) for raw, noise in samples])
    assert known.factor(POLICY) == pytest.approx(1.5, rel=0.1001)


def test_b55_a_small_first_prompt_teaches_nothing() -> None:

    assert learn(UNCALIBRATED, 20, 600, POLICY) is UNCALIBRATED


@pytest.mark.parametrize("reported", [None, 0, -1, math.nan, math.inf, True])
@pytest.mark.parametrize("raw", [5000, None, 0, -3])
def test_b53_what_is_no_positive_number_teaches_nothing(raw: float | None, reported: float | None) -> None:
    assert learn(UNCALIBRATED, raw, reported, POLICY) is UNCALIBRATED


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e12)), max_size=30))
def test_the_factor_never_leaves_its_bounds(samples: list[tuple[float, float]]) -> None:
    assert POLICY.lowest <= after(samples).factor(POLICY) <= POLICY.highest


def test_b51_a_server_that_silently_cuts_the_prompt_teaches_nothing() -> None:
    assert after([(5508, 2050)]).factor(POLICY) == 1.0
    assert after([(n * 1000, 2050) for n in range(4, 40)]).factor(POLICY) == 1.0
    good = [(10_000, 11_000)] * 10
    cut = after(good + [(n * 1000, 4096) for n in range(10, 40)])
    assert cut.factor(POLICY) == pytest.approx(1.1)


@pytest.mark.parametrize("reported", [1, 50, 99_000_000])
def test_b54_one_absurd_answer_changes_nothing(reported: int) -> None:
    assert after([(5508, reported)]).factor(POLICY) == 1.0
    assert after([(10_000, 11_000)] * 3 + [(10_000, reported)]).factor(POLICY) == pytest.approx(1.1)


def test_what_lies_beyond_the_bounds_is_never_believed() -> None:
    assert after([(5000, 50)] * 20).factor(POLICY) == 1.0


@pytest.mark.parametrize("ratio", [0.3, 0.5, 2.5, 3.5])
def test_b49_an_unusual_ratio_that_lasts_is_believed_within_three_answers(ratio: float) -> None:
    assert after([(10_000, 10_000 * ratio)] * 3).factor(POLICY) == pytest.approx(ratio)


def test_a_large_prompt_counts_for_more_than_a_small_one() -> None:
    assert after([(100_000, 120_000), (2_000, 4_000)]).factor(POLICY) < 1.25


def test_a_lasting_change_is_followed_within_twenty_answers() -> None:
    known = after([(10_000, 10_000)] * 30 + [(10_000, 25_000)] * 20)
    assert known.factor(POLICY) == pytest.approx(2.5, rel=0.1)
