"""A call and its results are forwarded together, whatever the size forces out and wherever the cut falls.

Rules. Every request goes through `Scene.send`, which fails on a call without its result, a result without its call and
a message between the two; what is asserted here besides is what became of the group that the scenario is about.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.policy import DropPolicy, ElidePolicy, Orphans, SummaryPolicy
from proxy.demo.rules import Temper
from tests.scenarios.messages import (
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    arguments_of,
    call,
    calls,
    filler,
    mixed,
    result,
    said,
    step,
    text_of,
    turn,
    user,
)
from tests.scenarios.scene import LADDERS, POLICY, TEMPERS, WINDOW, Scene, askings, once, refusals

SINGLE = (("elide",), ("summarize",), ("drop",), ("shorten",))
HUGE = 200_000
"""Characters: 50,000 tokens of a window of 2,000."""


def group(heavy: int | None, size: int = HUGE) -> list[Message]:
    """Three calls at once; one of their results is heavy."""
    made = [call(f"g{n}", "read", path=f"{n}.py") for n in range(3)]
    outputs = [filler(f"group {n}", size if n == heavy else 200) for n in range(3)]
    return [calls(*made), *(result(f"g{n}", output) for n, output in enumerate(outputs))]


def group_of(messages: Sequence[Message]) -> list[Message]:
    """What is there of the results of `group`."""
    return [m for m in messages if str(m.get("tool_call_id", "")).startswith("g")]


@pytest.mark.parametrize("ladder", [*LADDERS, *SINGLE])
@pytest.mark.parametrize("heavy", [0, 1, 2])
def test_b02_an_old_group_of_parallel_results_stays_whole_or_goes_whole(
    ladder: tuple[str, ...], heavy: int
) -> None:
    history = [SYSTEM, TASK, *step(0), *group(heavy), *step(1), said("Done."), QUESTION]
    sent = once(history, replace(POLICY, strategies=ladder, elide=ElidePolicy(keep=0)))
    assert len(group_of(sent.messages)) in (0, 3)


@pytest.mark.parametrize("ladder", LADDERS)
@pytest.mark.parametrize("heavy", [0, 1, 2])
def test_b02_the_newest_group_loses_length_and_never_a_result(ladder: tuple[str, ...], heavy: int) -> None:
    history = [SYSTEM, TASK, *step(0), *group(heavy)]
    sent = once(history, replace(POLICY, strategies=ladder))
    whole, shown = group_of(history), group_of(sent.messages)
    assert [m["tool_call_id"] for m in shown] == ["g0", "g1", "g2"]
    assert [a == b for a, b in zip(whole, shown, strict=True)] == [n != heavy for n in range(3)]
    assert "characters left out here" in text_of(shown[heavy])


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("later", [[], [said("Two of three."), QUESTION], [*step(5), said("Yes."), QUESTION]])
@pytest.mark.parametrize("size", [100, 6000])
def test_b02_a_result_that_the_client_lost_is_stated_to_be_missing(
    lost: int, later: list[Message], size: int
) -> None:
    opener, *answers = group(None)
    history = [SYSTEM, TASK, *step(0, size), opener, *answers[:lost], *answers[lost + 1 :], *later]
    sent = once(history)
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert sent.done()["repair"] == 1
    assert len(group_of(sent.messages)) in (0, 3)


@pytest.mark.parametrize("strategies", [("summarize",), ("drop",)])
@pytest.mark.parametrize("fails", [False, True])
def test_b04_wherever_the_cut_falls_nothing_comes_between_a_call_and_its_results(
    strategies: tuple[str, ...], fails: bool
) -> None:
    lengths = set()
    for share in range(10, 94, 3):
        policy = replace(POLICY, strategies=(*strategies, "drop"), compact_to=share / 100)
        sent = Scene(policy, fails=fails).send(mixed(10, 120, width=3))
        lengths.add(len(sent.messages))
    assert len(lengths) >= 6, "the cut falls in many places"


@pytest.mark.parametrize("reminder", [user("Mind the linter."), {"role": "system", "content": "Mind it."}])
@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("size", [100, 3000])
def test_b04_what_a_client_put_between_a_call_and_its_results_is_moved_behind_them(
    reminder: Message, place: int, size: int
) -> None:
    rounds = group(None)
    history = [
        SYSTEM,
        TASK,
        *step(0, size),
        *rounds[:place],
        reminder,
        *rounds[place:],
        said("So."),
        QUESTION,
    ]
    sent = once(history)
    assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}
    shown: list[Message] = list(sent.messages)
    if reminder in shown:
        assert shown[shown.index(reminder) - 1]["tool_call_id"] == "g2"


ENDING = [SYSTEM, TASK, said("Well."), user("Go on."), *group(None)]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("ladder", [("summarize", "drop"), ("drop",)])
def test_b05_a_group_at_the_end_is_whole_for_every_number_of_turns_to_keep(
    share: float, ladder: tuple[str, ...]
) -> None:
    for turns_kept in range(len(ENDING) + 6):
        summary = SummaryPolicy(keep_turns=turns_kept, keep_recent=share, max_tokens=60, prepare_at=0)
        for window in (250, 320, 400, 500):
            policy = replace(POLICY, window=window, reserve_output=20, summary=summary, strategies=ladder)
            sent = once(ENDING, policy, fits=window > 320)
            assert sent.messages[-4:] == ENDING[-4:]


@pytest.mark.parametrize("kept", range(len(ENDING) + 6))
def test_b05_a_group_at_the_end_is_whole_in_every_sliding_window(kept: int) -> None:
    sent = once(ENDING, replace(POLICY, window=None, drop=DropPolicy(max_turns=kept)))
    assert sent.messages[-4:] == ENDING[-4:]


@pytest.mark.parametrize("orphans", list(Orphans))
@pytest.mark.parametrize("window", [800, 100_000])
def test_b05_a_client_that_cuts_its_own_history_within_a_group_is_served(
    orphans: Orphans, window: int
) -> None:
    history = mixed(4, 200, width=3)[1:]
    for start in range(len(history)):
        sent = once([SYSTEM, *history[start:]], replace(POLICY, window=window, orphans=orphans))
        assert refusals(sent, window, [Temper.OPENAI, Temper.MISTRAL]) == {}
        assert text_of(sent.messages[-1]).endswith(text_of(QUESTION))


SNAPSHOT = [calls(call("s7", "create_snapshot", volume="data")), result("s7", "ok id=7")]


@pytest.mark.parametrize("ladder", LADDERS)
@pytest.mark.parametrize("keep", [0, 3])
def test_b06_the_newest_round_is_forwarded_verbatim_from_a_history_of_three_windows(
    ladder: tuple[str, ...], keep: int
) -> None:
    history = [*agent(60), *SNAPSHOT]
    sent = once(history, replace(POLICY, strategies=ladder, elide=ElidePolicy(keep=keep)))
    assert sent.verdict.original is not None
    assert sent.verdict.original >= 3 * WINDOW
    assert sent.messages[-2:] == SNAPSHOT


def test_b06_a_side_effect_that_goes_into_the_summary_is_shown_with_its_outcome_and_asked_to_be_kept() -> (
    None
):
    history = [SYSTEM, TASK, *SNAPSHOT, *step(0, 9000), *step(1), *step(2)]
    sent = once(history, replace(POLICY, strategies=("summarize",)))
    [side_call] = sent.side_calls
    order, transcript = (message["content"] for message in side_call["messages"])
    assert "side effects above all" in order
    for shown in ("create_snapshot", '"volume": "data"', "ok id=7"):
        assert shown in transcript


def repeated(number: int, name: str, size: int = 2000) -> list[Message]:
    """A round whose id is the same every time."""
    return [calls(call("call_0", name, n=number)), result("call_0", filler(f"{name} {number}", size))]


def test_b07_of_turns_with_one_id_each_elided_one_is_told_by_its_own_call() -> None:
    history = [SYSTEM, TASK]
    for number, name in enumerate(["list_files", "search", "read"]):
        history += [*repeated(number, name, 6000 if number < 2 else 400), said("So."), QUESTION]
    sent = once(history[:-2], replace(POLICY, elide=ElidePolicy(keep=0)))
    lines = text_of(history[7]).count("\n") + 1
    assert [text_of(m) for m in sent.of_role("tool")] == [
        "[Output of list_files left out here: 6000 characters, 188 lines.]",
        f"[Output of search left out here: 6000 characters, {lines} lines.]",
        text_of(history[-3]),
    ]
    assert sent.messages[-2:] == history[-4:-2]


@pytest.mark.parametrize("ladder", [("summarize",), ("drop",)])
def test_b07_of_two_turns_with_one_id_the_older_goes_as_a_whole(ladder: tuple[str, ...]) -> None:
    history = [
        SYSTEM,
        TASK,
        *repeated(0, "list_files", 6000),
        said("So."),
        QUESTION,
        *repeated(1, "read", 400),
    ]
    sent = once(history, replace(POLICY, strategies=ladder))
    assert sent.messages[-2:] == history[-2:]
    assert len(sent.of_role("tool")) == 1


@pytest.mark.parametrize("ladder", LADDERS)
def test_b07_an_agent_whose_every_call_has_the_same_id_is_served_all_along(ladder: tuple[str, ...]) -> None:
    scene = Scene(replace(POLICY, strategies=ladder))
    rounds = [message for n in range(30) for message in repeated(n, ("read", "run")[n % 2], 700)]
    for history in askings([SYSTEM, TASK, *rounds]):
        sent = scene.send(history)
        assert refusals(sent, WINDOW, TEMPERS) == {}


def written(**arguments: Any) -> list[Message]:
    """A file that was written, and the answer to that."""
    return [calls(call("w", "write_file", **arguments)), result("w", "written")]


EMOJI = "\N{FAMILY}\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}e\N{COMBINING ACUTE ACCENT}\n"
LONG_ARGUMENTS = {
    "one long text": {"path": "a.py", "content": filler("content", HUGE)},
    "texts in a list": {
        "path": "a.py",
        "edits": [{"old": filler("old", 9000), "new": filler("new", HUGE // 4)}] * 3,
    },
    "quotes and backslashes": {"path": "a.py", "content": '"\\\n\t\u0001' * 20_000},
    "many code points a character": {"path": "a.py", "content": EMOJI * 10_000},
    "one line": {"path": "a.py", "content": "x" * HUGE},
}


@pytest.mark.parametrize("arguments", LONG_ARGUMENTS.values(), ids=LONG_ARGUMENTS)
@pytest.mark.parametrize(("place", "ladder"), [("newest", LADDERS[0]), ("old", ("shorten",))])
def test_b08_huge_arguments_that_are_shortened_stay_json_objects(
    arguments: dict[str, Any], place: str, ladder: tuple[str, ...]
) -> None:
    later = [said("Done."), QUESTION] if place == "old" else []
    sent = once([SYSTEM, TASK, *written(**arguments), *later], replace(POLICY, strategies=ladder))
    for each in [text for message in sent.messages for text in arguments_of(message)]:
        read = json.loads(each)
        assert read.keys() == arguments.keys()
        assert read["path"] == "a.py"
        assert len(each) < 4 * WINDOW * 4
    assert refusals(sent, WINDOW, TEMPERS) == {}


@pytest.mark.parametrize(
    "arguments", ["{'path': 'a.py'}" * 2000, '{"content": "' + "x" * 20_000, "[1, 2]" * 3]
)
def test_b08_arguments_that_are_no_object_are_forwarded_as_they_are(arguments: str) -> None:
    made = {"id": "w", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    sent = once([SYSTEM, TASK, calls(made), result("w", "no")], fits=False)
    assert [text for message in sent.messages for text in arguments_of(message)] == [arguments]


def legacy(number: int, size: int = 400) -> list[Message]:
    function_call = {"name": "look_up", "arguments": json.dumps({"page": number, "why": "w" * 80})}
    answer = {"role": "function", "name": "look_up", "content": filler(f"page {number}", size)}
    return [{"role": "assistant", "content": None, "function_call": function_call}, answer]


@pytest.mark.parametrize("ladder", [*LADDERS, *SINGLE])
def test_b09_a_deprecated_call_and_its_result_stay_and_go_together(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM, TASK, *(message for n in range(12) for message in legacy(n, 800))]
    sent = once(history, replace(POLICY, strategies=ladder))
    assert not sent.is_untouched
    roles = [m["role"] for m in sent.messages if m["role"] != "user"]
    assert roles == ["system", *["assistant", "function"] * (len(roles) // 2)]
    assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}


def test_b09_a_deprecated_call_and_its_result_are_counted() -> None:
    without, with_one = once([SYSTEM, TASK]), once([SYSTEM, TASK, *legacy(0)])
    arguments = legacy(0)[0]["function_call"]["arguments"]
    assert with_one.tokens - without.tokens >= (len(arguments) + 400) // 4


def test_b09_the_two_forms_of_a_call_live_in_one_history() -> None:
    scene = Scene()
    history = [SYSTEM, TASK]
    for number in range(10):
        scene.send(history)
        question, answer = turn(number, 100)
        history = [*history, *legacy(number), *step(number), answer, question]
