"""Recorded agent runs and chats, replayed turn by turn at three windows against a strict upstream."""

from pathlib import Path

import pytest

from tests.replay import ReplayDesk, Sizes, policy_for, recordings, replay


@pytest.fixture(scope="module")
def sizes() -> Sizes:
    return Sizes()


@pytest.mark.parametrize("window", [8192, 16384, 32768])
def test_every_recorded_conversation_stays_whole_and_within_the_window(
    shared_data: Path, sizes: Sizes, window: int
) -> None:
    """Refused is only what cannot fit: head, tools, the newest round and the request it works on exceed the window."""
    long = [recording for recording in recordings(shared_data) if sum(map(len, recording.raws)) > 2 * window]
    outcomes = [
        replay(recording, ReplayDesk(policy_for(window), window=window, sizes=sizes)) for recording in long
    ]
    assert [line for each in outcomes for line in each.damaged] == []
    assert [line for each in outcomes for line in each.refused_without_need] == []
    over = sum(each.over_window for each in outcomes)
    assert over > 1000, "the recordings outgrow the window"
    assert sum(each.side_calls for each in outcomes) < 0.15 * over
    assert sum(len(each.refused) for each in outcomes) < 0.01 * over


def test_every_short_recorded_conversation_is_forwarded_byte_for_byte(
    shared_data: Path, sizes: Sizes
) -> None:
    window = 1 << 20
    desk = ReplayDesk(policy_for(window), window=window, sizes=sizes)
    for recording in recordings(shared_data):
        for body in recording.requests():
            if len(body) < 30_000:
                desk.run(body)
                assert desk.body == body
    assert desk.side_calls == 0
