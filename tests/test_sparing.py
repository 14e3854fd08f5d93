"""The client's own request for a summary leaves no trace: what comes after it is as if it had never been made."""

from typing import Any

import pytest

from proxy.context.policy import ModelPolicy, SummaryPolicy
from proxy.exchange import Accepted, Ask, Command, Outcome, Refused, Relay, Relayed, Save
from proxy.wire.usage import Usage
from tests.desk import Desk
from tests.test_exchange import body as request

ALL = ("elide", "shorten", "summarize", "drop")
REQUEST = {"role": "user", "content": "Provide a detailed summary of our conversation above."}
TOO_LONG = {
    "says a window": b"This model's maximum context length is 2000 tokens. However, you requested 7100 tokens.",
    "says no number": b"The prompt is too long: context_length_exceeded.",
}


class Counting(Desk):
    """A desk whose upstream counts a quarter more than we do."""

    def perform(self, command: Command) -> Outcome:
        if isinstance(command, Relay):
            return Relayed(Usage(self.count(self.sent[-1].decode()) * 5 // 4, 3), True)
        return super().perform(command)


def policy(*strategies: str) -> ModelPolicy:
    return ModelPolicy(
        window=8000, reserve_output=100, strategies=strategies or ALL, summary=SummaryPolicy(prepare_at=0)
    )


def talk(turns: int) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{role} {turn}: " + "and more of it " * 90}
        for turn in range(turns)
        for role in ("user", "assistant")
    ]


def commands(desk: Desk, kind: type[Command]) -> int:
    return sum(isinstance(command, kind) for command in desk.done)


@pytest.mark.parametrize("after", [7, 15, 21, 29])
@pytest.mark.parametrize("strategies", [ALL, ("drop",), ("summarize", "drop")], ids="-".join)
def test_b126_the_turns_after_it_are_sent_as_if_it_had_never_been_made(
    strategies: tuple[str, ...], after: int
) -> None:
    asking, other = Counting(policy(*strategies)), Counting(policy(*strategies))
    whole = talk(24)
    for stop in range(1, len(whole), 2):
        for desk in (asking, other):
            desk.run(request(*whole[:stop]))
            assert desk.sent[-1] == asking.sent[-1]
        if stop == after:
            before = commands(asking, Ask), commands(asking, Save)
            asking.run(request(*whole[: stop + 1], REQUEST))
            assert (commands(asking, Ask), commands(asking, Save)) == before
    assert asking.anchors == other.anchors, "the counts of this conversation go on from its last turn"
    assert asking.calibration == other.calibration


def test_b126_it_is_served_where_an_earlier_cut_had_shortened_what_stays() -> None:
    desk = Counting(policy())
    whole = talk(15)
    verdicts = [desk.run(request(*whole[:stop])) for stop in range(1, len(whole), 2)]
    assert any("summarize=" in verdict.actions and "shorten=" in verdict.actions for verdict in verdicts)
    asked = desk.run(request(*whole, REQUEST))
    assert asked.actions.startswith("shorten="), "of the client's own messages"
    assert (asked.forwarded or 0) <= 8000


def test_b126_where_it_does_not_fit_whatever_is_left_out_nothing_is_saved_either() -> None:
    desk, other = Desk(policy()), Desk(policy())
    whole = talk(4)
    long = {"role": "user", "content": REQUEST["content"] + " Mind this: " + "and this " * 4000}
    desk.run(request(*whole, long))
    assert commands(desk, Save) == 0
    for each in (desk, other):
        each.run(request(*whole, whole[0]))
    assert desk.sent[-1] == other.sent[-1]


@pytest.mark.parametrize("said", TOO_LONG)
def test_b126_after_a_refusal_it_begins_again_at_what_earlier_cuts_left(said: str) -> None:
    desk = Desk(policy("summarize", "drop"))
    whole = talk(12)
    for stop in range(1, len(whole), 2):
        desk.run(request(*whole[:stop]))
    assert b"a summary" in desk.sent[-1]
    sent, saved = len(desk.sent), dict(desk.checkpoints)
    refusal = Refused(400, b'{"error":{"message":"' + TOO_LONG[said] + b'"}}')
    desk.answers = [*[Accepted(200)] * sent, refusal, Accepted(200)]
    verdict = desk.run(request(*whole, REQUEST))
    assert (verdict.status, verdict.recovered) == (200, 1)
    first, second = desk.sent[sent:]
    assert len(second) < len(first)
    assert b"a summary" in second, "what was cut off before the refusal is still told"
    assert desk.checkpoints == saved
