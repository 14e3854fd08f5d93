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


@pytest.mark.parametrize(("window", "calls"), [(3600, 4), (6000, 2), (40_000, 1)])
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


@pytest.mark.parametrize("turns", [20, 60, 200])
@pytest.mark.parametrize("window", [2000, 8000, 200_000])
def test_b23_the_limit_of_a_side_call_is_a_fixed_one_and_never_the_free_space(
    turns: int, window: int
) -> None:
    desk = Desk(replace(POLICY, window=window, summary=SummaryPolicy(max_tokens=700, prepare_at=0)))
    desk.run(request(*long_talk(turns * window // 2000), max_tokens=100))
    limits = {order["max_tokens"] for order in desk.asked}
    assert limits <= {min(700, window // 8)}


def test_the_instructions_of_a_file_give_way_to_those_of_the_model() -> None:
    @dataclass
    class Told(Desk):
        @property
        def terms(self) -> Terms:
            return replace(
                super().terms, summary_prompt="FROM THE FILE, {words} words. {update}", streams=True
            )

    desk = Told(POLICY)
    desk.run(request(*long_talk(60)))
    assert desk.asked[0]["messages"][0]["content"] == "FROM THE FILE, 375 words. "
    assert desk.asked[0]["stream_options"] == {"include_usage": True}
    own = Told(replace(POLICY, summary=SummaryPolicy(prompt="OF THE MODEL")))
    own.run(request(*long_talk(60)))
    assert own.asked[0]["messages"][0]["content"] == "OF THE MODEL"
