"""What an upstream is expected to count of a conversation that is cut: each part what it was counted at."""

from dataclasses import replace

import pytest

from proxy.context.policy import ModelPolicy
from proxy.wire.usage import Usage
from tests.desk import Desk
from tests.test_exchange import body, chat

OPEN = ModelPolicy(reserve_output=100, window=100_000)
SAID = chat(81)


def raw(stop: int) -> int:
    """Our estimate of so many messages."""
    return Desk(OPEN).measure(body(*SAID[:stop])).estimated_tokens


def test_a_prompt_that_keeps_the_end_which_costs_twice_as_much_is_expected_to_cost_so() -> None:
    desk = Desk(OPEN)
    for stop in range(21, len(SAID), 4):
        twice = max(0, raw(stop) - raw(41))
        desk.usage = Usage(raw(stop) + twice, 5)
        desk.run(body(*SAID[:stop]))
    desk.policy = replace(OPEN, window=raw(81))
    verdict = desk.run(body(*SAID))
    assert verdict.checkpoint_id
    assert verdict.raw is not None
    assert verdict.raw < raw(81) - raw(41), "only what costs twice as much is left"
    assert verdict.forwarded == pytest.approx(2 * verdict.raw, rel=0.02)
