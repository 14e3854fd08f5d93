"""What a forwarded prompt is made of: shares that add up to it, whatever was done to the history."""

from dataclasses import astuple, replace

import pytest

from proxy.context.policy import Mode, ModelPolicy
from tests.desk import Desk
from tests.test_exchange import agent, body, chat

POLICY = ModelPolicy(window=3000, reserve_output=100)
LADDERS = [("elide",), ("summarize",), ("elide", "summarize", "shorten"), ("shorten",), ("drop",)]


@pytest.mark.parametrize("strategies", LADDERS, ids="-".join)
def test_the_parts_of_a_prompt_add_up_to_it_whatever_was_done(strategies: tuple[str, ...]) -> None:
    for history in (chat(2), agent(30), chat(30)):
        verdict = Desk(replace(POLICY, strategies=strategies)).run(body(*history, tools=[]))
        made_of = verdict.parts
        if verdict.forwarded is None:
            assert made_of is None, "so small that it was not counted"
            continue
        assert made_of is not None
        assert min(astuple(made_of)) >= 0
        assert sum(astuple(made_of)) == verdict.forwarded
        assert bool(made_of.elided) == any(name in verdict.actions for name in ("elide", "shorten"))
        assert bool(made_of.summary) == any(name in verdict.actions for name in ("summarize", "drop"))


def test_what_is_only_observed_has_parts_as_well() -> None:
    verdict = Desk(POLICY, mode=Mode.OBSERVE).run(body(*chat(40)))
    assert verdict.parts is not None
    assert sum(astuple(verdict.parts)) == verdict.forwarded
    assert (verdict.parts.summary, verdict.parts.elided) == (0, 0)
