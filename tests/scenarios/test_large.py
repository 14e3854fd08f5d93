"""Histories of up to fifty megabytes: many messages, or few of them that are huge.

Rules. No clock is asked: what takes longer than a few seconds here is a defect that the run shows by itself. The
servers judge by message, and what was made to fit is small, so that judging costs nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from proxy.context.policy import DropPolicy, ElidePolicy
from tests.scenarios.messages import (
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    call,
    calls,
    filler,
    result,
    step,
    talk,
    text_of,
    turn,
    user,
)
from tests.scenarios.scene import POLICY, TEMPERS, Scene, encoded, refusals

WINDOW = 128_000
LARGE = replace(POLICY, window=WINDOW, reserve_output=4096, elide=ElidePolicy(keep=3))
MEGABYTES = 50_000_000


def wide() -> list[Message]:
    """Hundreds of calls in one message."""
    return [SYSTEM, TASK, *step(0, 5000, width=600)]


HISTORIES: dict[str, Callable[[], Sequence[Message]]] = {
    "20,000 messages of a chat": lambda: talk(10_000, 2500),
    "20,000 messages of an agent": lambda: agent(10_000, 500),
    "five huge results": lambda: [SYSTEM, TASK, *(m for n in range(5) for m in step(n, MEGABYTES // 10))],
    "huge turns and a huge question": lambda: [
        SYSTEM,
        *turn(0, MEGABYTES // 3),
        user(filler("question", MEGABYTES // 3)),
    ],
    "one huge call": lambda: [
        SYSTEM,
        TASK,
        calls(call("w", "write_file", path="a", content=filler("content", MEGABYTES // 10))),
        result("w", "written"),
    ],
    "six hundred calls at once": wide,
}


@pytest.mark.parametrize("make", HISTORIES.values(), ids=HISTORIES)
def test_b127_a_history_of_many_or_of_huge_messages_is_answered(
    make: Callable[[], Sequence[Message]],
) -> None:
    history = make()
    sent = Scene(LARGE).run(encoded({"model": "m", "messages": list(history)}))
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert sent.tokens <= (sent.verdict.trigger or 0)
    assert text_of(sent.messages[-1])[-100:] == text_of(history[-1])[-100:]


@pytest.mark.parametrize(
    "changed",
    [
        {"drop": DropPolicy(max_turns=10)},
        {"keep_user_tokens": 4096},
        {"pin": ("question [0-9]+7:",)},
        {"protect_tools": ("read",)},
        {"vision": False},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_b127_no_option_makes_a_long_history_slow(changed: dict[str, object]) -> None:
    scene = Scene(replace(LARGE, **changed))  # type: ignore[arg-type]
    sent = scene.run(encoded({"model": "m", "messages": talk(1600, 900)}))
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert text_of(sent.messages[-1]).endswith(text_of(QUESTION))
