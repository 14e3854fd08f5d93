"""What an exchange orders of the model that summarises: in which parts, in which form, and what comes of a failure."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from proxy.context.policy import ModelPolicy, SummaryPolicy
from proxy.exchange import SideCallFailed, Terms
from tests.desk import Desk
from tests.test_exchange import body as request

POLICY = ModelPolicy(
    window=5000, reserve_output=100, strategies=("summarize", "drop"), summary=SummaryPolicy(prepare_at=0)
)


@dataclass
class Small(Desk):
    """A desk whose summaries are written by a model with a window of its own."""

    summary_window: int | None = None

    @property
    def terms(self) -> Terms:
        return replace(super().terms, summary_model="small", summary_window=self.summary_window)


# --- a history that no side call holds ------------------------------------------------------------------------


def long_talk(turns: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role} {number}: " + "and more of it " * 20}
        for number in range(turns)
        for role in ("user", "assistant")
    ]


def shown_in(order: Any) -> str:
    text: str = order["messages"][1]["content"]
    return text


@pytest.mark.parametrize(("window", "calls"), [(3000, 4), (6000, 2), (40_000, 1)])
def test_a_history_beyond_the_summarisers_window_is_summarised_in_parts_without_losing_its_middle(
    window: int, calls: int
) -> None:
    desk = Small(POLICY, summary_window=window)
    verdict = desk.run(request(*long_talk(60), {"role": "user", "content": "And now?"}))
    assert [call.outcome for call in verdict.side_calls] == ["used"] * calls
    shown = [shown_in(order) for order in desk.asked]
    covered = int(verdict.actions.split("summarize=")[1].split(",")[0])
    for message in long_talk(60)[:covered]:
        label = message["content"].split(":")[0] + ":"
        assert sum(label in text for text in shown) == 1, label
    for place, text in enumerate(shown):
        assert ("Memory written before" in text) is (place > 0), "each continues the one before"
        assert len(text) / 4 < window


def test_a_part_that_fails_leaves_what_was_summarised_before_it() -> None:
    desk = Small(POLICY, summary_window=3000, summaries=["a first part", SideCallFailed("timeout")])
    verdict = desk.run(request(*long_talk(60), {"role": "user", "content": "And now?"}))
    assert [call.outcome for call in verdict.side_calls] == ["used", "timeout"]
    assert "a first part" in desk.sent[-1].decode()
