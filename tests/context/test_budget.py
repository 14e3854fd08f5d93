"""Windows, reserves and the numbers made from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.budget import Budget, work_out


def budget(window: int | None, asked: int | None = None, **options: Any) -> Budget | None:
    defaults: dict[str, Any] = {"reserve_output": 4096, "margin": 0.03, "compact_at": 0.85, "compact_to": 0.5}
    return work_out(window, asked, **(defaults | options))


@pytest.mark.parametrize("window", [None, 0, -5])
def test_an_unknown_window_gives_no_budget(window: int | None) -> None:
    assert budget(window) is None


def test_the_requests_own_limit_is_the_reserve() -> None:
    assert budget(100_000, 1000, margin=0.02) == Budget(100_000, 1000, 2000, 97_000, 82_450, 48_500)


def test_b31_a_reserve_larger_than_the_window_is_scaled_down() -> None:
    made = budget(8192, reserve_output=16_384)
    assert made is not None
    assert made.tokens > 3000


@given(st.integers(1, 10**7), st.one_of(st.none(), st.integers(0, 10**8)))
def test_the_numbers_are_in_order_whatever_the_window(window: int, asked: int | None) -> None:
    made = budget(window, asked)
    assert made is not None
    assert 0 <= made.target <= made.trigger <= made.tokens <= window
    assert made.reserve + made.margin + made.tokens <= window or made.tokens == 1
