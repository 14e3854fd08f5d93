"""What a cut must not lose: the task, what is pinned, what the user said of late; and how they give way.

Rules. What is carried stands word for word in the block of the cut, once, and every server still takes the whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.edits import SummaryRole
from proxy.context.policy import DropPolicy, ElidePolicy
from proxy.demo.rules import Temper
from tests.scenarios.messages import (
    PICTURE,
    QUESTION,
    SYSTEM,
    Message,
    agent,
    call,
    calls,
    filler,
    result,
    said,
    steps,
    talk,
    text_of,
    text_part,
    turns,
    user,
)
from tests.scenarios.scene import (
    MEMORY,
    POLICY,
    TEMPERS,
    WINDOW,
    Scene,
    Sent,
    askings,
    broken,
    once,
    refusals,
)

TASK_OF_TALK = user("The task: port the parser.")
RULES = "# AGENTS.md\nRule one: no new dependency.\nRule two: keep the API.\n"
CUTTERS = (("summarize", "drop"), ("drop",), ("elide", "summarize", "drop", "shorten"))


def shown_text(sent: Sent) -> str:
    return "\n".join(text_of(message) for message in sent.messages)


def pinned_at(place: str) -> list[Message]:
    """The rules, as clients bring them into a conversation."""
    read = calls(call("rules", "read_file", path="AGENTS.md"))
    return {
        "user": [user(RULES), said("Understood.")],
        "parts": [user([text_part(RULES), PICTURE]), said("Understood.")],
        "result": [user("Read the rules."), read, result("rules", RULES), said("Understood.")],
        "result of parts": [user("Read."), read, result("rules", [text_part(RULES)]), said("Understood.")],
        "assistant": [user("Repeat the rules."), said(RULES)],
    }[place]


PLACES = ("user", "parts", "result", "result of parts", "assistant")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ladder", CUTTERS)
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_pattern_matches_outlives_every_cut_word_for_word(
    place: str, ladder: tuple[str, ...], fails: bool
) -> None:
    policy = replace(POLICY, strategies=ladder, pin=("no new dependency",))
    scene = Scene(policy, fails=fails)
    history = [SYSTEM, TASK_OF_TALK, said("Well."), *pinned_at(place), *turns(40), QUESTION]
    cuts = set()
    for talked in list(askings(history))[::5]:
        sent = scene.send(talked)
        assert refusals(sent, WINDOW, TEMPERS) == {} or place == "result of parts"
        cuts.add(sent.verdict.checkpoint_id)
        if sent.verdict.pins:
            assert shown_text(sent).count(RULES.rstrip()) == 1
            assert sent.verdict.pins_kept == 1
    assert len(cuts) >= 3


def test_a_pinned_result_is_carried_with_its_call() -> None:
    history = [SYSTEM, TASK_OF_TALK, said("Well."), *pinned_at("result"), *turns(40), QUESTION]
    sent = once(history, replace(POLICY, strategies=("drop",), pin=("AGENTS",)))
    assert 'An earlier result of read_file, called with {"path": "AGENTS.md"}, verbatim:]' in shown_text(sent)


@pytest.mark.parametrize("ladder", [("elide",), ("elide", "shorten"), ("shorten",)])
def test_what_is_pinned_is_elided_and_shortened_by_no_step(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM, TASK_OF_TALK, calls(call("r")), result("r", RULES + filler("more", 1000)), *steps(30)]
    policy = replace(POLICY, strategies=ladder, pin=("AGENTS",), elide=ElidePolicy(keep=0))
    sent = once(history, policy, fits=False)
    assert not sent.is_untouched
    assert sent.messages[3] == history[3]


def test_the_newest_pins_are_carried_up_to_their_share_and_the_verdict_counts_the_rest() -> None:
    history = [SYSTEM, TASK_OF_TALK, said("Well.")]
    for number in range(20):
        history += [user(f"Keep {number}: " + filler(f"pin {number}", 390)), said("Yes.")]
    sent = once([*history, *turns(8), QUESTION], replace(POLICY, strategies=("drop",), pin=("^Keep ",)))
    carried = [number for number in range(20) if f"Keep {number}:" in shown_text(sent)]
    assert carried == [17, 18, 19]
    assert (sent.verdict.pins, sent.verdict.pins_kept) == (20, 3)


@pytest.mark.parametrize("ladder", CUTTERS)
def test_the_task_stands_first_in_the_block_and_once(ladder: tuple[str, ...]) -> None:
    scene = Scene(replace(POLICY, strategies=ladder))
    history = [SYSTEM, TASK_OF_TALK, said("Well."), *turns(60), QUESTION]
    for talked in list(askings(history))[::7]:
        sent = scene.send(talked)
        assert shown_text(sent).count(text_of(TASK_OF_TALK)) == 1
        assert text_of(TASK_OF_TALK) in text_of(sent.messages[1])
    sent = scene.send(history)
    assert "[The first user message of this conversation, verbatim:]" in text_of(sent.messages[1])


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("max_turns", [1, 2, 4])
def test_a_task_that_a_pattern_matches_outlives_a_sliding_window(window: int | None, max_turns: int) -> None:
    policy = replace(POLICY, window=window, drop=DropPolicy(max_turns=max_turns), pin=("AGENTS",))
    scene = Scene(policy)
    for talked in askings([SYSTEM, *pinned_at("user"), *turns(8, 200), QUESTION]):
        sent = scene.sent(talked)
        assert broken(sent, policy) == []
        assert shown_text(sent).count(RULES.rstrip()) == 1
        assert sent.verdict.pins_kept == sent.verdict.pins == 1


def test_a_task_that_is_too_long_for_its_share_is_left_to_the_summary() -> None:
    history = [SYSTEM, user(filler("task", 900)), said("Well."), *turns(20), QUESTION]
    sent = once(history, replace(POLICY, strategies=("summarize",)))
    assert "task: and so" not in shown_text(sent)
    assert any("task: and so" in transcript for transcript in sent.transcripts())


@pytest.mark.parametrize("kept", [0, 30, 60, 100_000])
@pytest.mark.parametrize("ladder", CUTTERS[:2])
def test_the_newest_words_of_the_user_are_carried_up_to_so_many_tokens(
    kept: int, ladder: tuple[str, ...]
) -> None:
    history = [SYSTEM, TASK_OF_TALK, said("Well.")]
    for number in range(40):
        history += [user(f"Wish {number:02}."), said(filler(f"answer {number}", 300))]
    sent = once([*history, QUESTION], replace(POLICY, strategies=ladder, keep_user_tokens=kept))
    block = text_of(sent.messages[1])
    carried = [number for number in range(40) if f"verbatim:]\nWish {number:02}." in block]
    assert carried == list(range(carried[0], carried[-1] + 1) if carried else [])
    assert len(carried) == {0: 0, 30: 1, 60: 3}.get(kept, len(carried))
    assert len(carried) * 12 <= WINDOW // 16
    assert bool(carried) == bool(kept)
    later = [
        number
        for number in range(40)
        if any(m["content"] == f"Wish {number:02}." for m in sent.of_role("user"))
    ]
    assert not carried or not later or carried[-1] < later[0]


@pytest.mark.parametrize("window", [300, 400, 500, 700, 1000])
@pytest.mark.parametrize("fails", [False, True])
def test_pins_give_way_where_block_and_newest_round_leave_no_room(window: int, fails: bool) -> None:
    newest = user(filler("newest", int(window * 4 * 0.7)))
    history = [SYSTEM, TASK_OF_TALK, said("Well."), *pinned_at("user"), *turns(20), newest]
    policy = replace(POLICY, window=window, reserve_output=30, pin=("AGENTS",), keep_user_tokens=500)
    sent = Scene(policy, fails=fails).send(history)
    assert refusals(sent, window, TEMPERS) == {}
    assert text_of(newest)[:50] in text_of(sent.messages[-1])


@pytest.mark.parametrize("role", [SummaryRole.USER, SummaryRole.SYSTEM])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ladder", CUTTERS)
def test_pins_and_task_stand_in_a_block_of_its_own_as_well(
    role: SummaryRole, place: str, ladder: tuple[str, ...]
) -> None:
    policy = replace(POLICY, strategies=ladder, summary_role=role, pin=("no new dependency",))
    history = [SYSTEM, TASK_OF_TALK, said("Well."), *pinned_at(place), *turns(40), QUESTION]
    scene = Scene(policy)
    for talked in list(askings(history))[20::7]:
        sent = scene.sent(talked)
        assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}
        block = sent.messages[1]
        assert block["role"] == role.value
        assert text_of(TASK_OF_TALK) in block["content"]
        assert block["content"].count(RULES.rstrip()) == 1


@pytest.mark.parametrize("pin", ["", ".", "(?s).*", "question", "^$", "\\bgo\\b"])
def test_a_pattern_that_matches_all_leaves_a_prompt_that_fits(pin: str) -> None:
    policy = replace(POLICY, pin=(pin,), keep_user_tokens=1000)
    for history in (talk(30), agent(60), [SYSTEM, *turns(2), *agent(12)[1:]]):
        sent = once(history, policy)
        assert not sent.is_untouched
        assert sent.messages[0] == SYSTEM
        assert sent.verdict.pins_kept <= sent.verdict.pins


def test_an_older_summary_stays_in_the_block_beside_what_is_pinned_later() -> None:
    scene = Scene(replace(POLICY, strategies=("summarize", "drop"), pin=("AGENTS",)))
    history: Sequence[Message] = [SYSTEM, TASK_OF_TALK, said("Well."), *turns(12), QUESTION]
    first = scene.send(history)
    assert MEMORY in shown_text(first)
    scene.desk.fails = True
    history = [*history, said("So."), *pinned_at("user"), *turns(14), QUESTION]
    second = scene.send(history)
    assert f"{MEMORY} 1" in shown_text(second)
    assert "left out here" in shown_text(second)
    assert RULES.rstrip() in shown_text(second)


def test_what_is_carried_of_a_message_with_a_picture_is_its_text() -> None:
    history: list[Any] = [SYSTEM, *pinned_at("parts"), *turns(30), QUESTION]
    sent = once(history, replace(POLICY, strategies=("drop",), pin=("AGENTS",)))
    assert RULES.rstrip() in shown_text(sent)
    assert b"image_url" not in sent.raw
