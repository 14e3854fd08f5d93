"""Who speaks, and in which order: system messages stay what they are, roles alternate, the request stays in sight.

Rules. Strict servers judge every request within `Scene.send`; asserted here is what they do not see: whose bytes the
head has, where the block stands and what it says, and which fields the kept messages still carry.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from proxy.context import rawjson
from proxy.context.edits import SummaryRole
from proxy.context.policy import DropPolicy, ElidePolicy, ModelPolicy, Orphans
from proxy.demo.rules import Temper
from tests.scenarios.messages import (
    DEVELOPER,
    PICTURE,
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
    steps,
    talk,
    text_of,
    text_part,
    turn,
    turns,
    user,
)
from tests.scenarios.scene import (
    LADDERS,
    MEMORY,
    POLICY,
    TEMPERS,
    WINDOW,
    Scene,
    Sent,
    askings,
    once,
    refusals,
)

HEADS: Mapping[str, list[Message]] = {
    "none": [],
    "system": [SYSTEM],
    "developer": [DEVELOPER],
    "two systems": [SYSTEM, {"role": "system", "content": "And be brief."}],
    "system and developer": [SYSTEM, DEVELOPER],
    "two developers": [DEVELOPER, {"role": "developer", "content": "And be brief."}],
}
BODIES: Mapping[str, list[Message]] = {
    "agent": agent(24)[1:],
    "talk": talk(16)[1:],
    "mixed": mixed(9)[1:],
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("ladder", LADDERS[:2])
def test_b10_b13_the_only_system_messages_are_the_clients_at_its_place(
    head: str, body: str, ladder: tuple[str, ...]
) -> None:
    scene = Scene(replace(POLICY, strategies=ladder))
    changed = 0
    for history in list(askings([*HEADS[head], *BODIES[body]]))[::5]:
        sent = scene.send(history)
        heads = [m for m in sent.messages if m["role"] in ("system", "developer")]
        assert heads == HEADS[head] == sent.messages[: len(heads)]
        changed += not sent.is_untouched
    assert changed >= 2


@pytest.mark.parametrize("ladder", LADDERS)
def test_b10_reminders_in_mid_history_never_become_more(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM]
    scene = Scene(replace(POLICY, strategies=ladder))
    for number in range(14):
        history = [*history, turn(number)[0]]
        sent = scene.send(history)
        assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}
        assert all(m in history for m in sent.of_role("system"))
        reminder = {"role": "system", "content": f"Reminder {number}."}
        history = [*history, turn(number)[1], reminder]


def raw_request(head: Sequence[bytes], messages: Sequence[Message]) -> bytes:
    """A body whose head has exactly these bytes."""
    history = [json.dumps(message).encode() for message in messages]
    return b'{"model":"m","messages":[' + b", ".join([*head, *history]) + b"]}"


ODD_HEADS = {
    "spaces and escapes": [b'{ "content" : "Be \\u00e9xact\\/\\u0041 \xc3\xa9" ,"role":"system"\n}'],
    "parts with a cache marker": [
        b'{"role":"system","content":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}}, '
        b'{"text":"B","type":"text"}]}'
    ],
    "developer with a number": [
        b'{"role":"developer","content":"x","weight":1.0e-7,"big":12345678901234567890}'
    ],
    "two": [b'{"role":"system","content":"one"}', b'{"role":"developer","name":"n","content":"two"}'],
    "half a surrogate pair": [b'{"role":"system","content":"cut \\ud83d"}'],
}


@pytest.mark.parametrize("head", ODD_HEADS.values(), ids=ODD_HEADS)
@pytest.mark.parametrize("fails", [False, True])
def test_b13_the_head_keeps_its_very_bytes_at_one_cut_and_at_the_next(head: list[bytes], fails: bool) -> None:
    scene = Scene(replace(POLICY, window=4000), fails=fails)
    cuts = set()
    for number in (40, 60, 61, 200, 201):
        sent = scene.run(raw_request(head, talk(number)[1:]))
        forwarded = rawjson.elements(rawjson.members(sent.raw)["messages"])
        assert forwarded[: len(head)] == head
        cuts.add(sent.verdict.checkpoint_id)
    assert len(cuts) == 3


def user_pairs(messages: Sequence[Message]) -> int:
    """User messages that follow another with nothing between but calls and results, as templates see them."""
    visible = [m for m in messages if m["role"] != "tool" and not m.get("tool_calls")]
    return sum(a["role"] == b["role"] == "user" for a, b in pairwise(visible))


@pytest.mark.parametrize("strategies", [("summarize",), ("drop",), ("summarize", "drop", "shorten")])
@pytest.mark.parametrize("shape", ["answered", "interrupted"])
def test_b11_no_second_user_message_comes_to_stand_beside_another(
    strategies: tuple[str, ...], shape: str
) -> None:
    """`interrupted`: the user speaks straight after a result, so that a cut can end on one and begin with the other."""
    parts = []
    for number in range(12):
        question, answer = turn(number, 120)
        parts += [question, *step(number, 200), *([answer] if shape == "answered" else [])]
    history = [SYSTEM, *parts, QUESTION]
    for share in range(10, 94, 4):
        sent = once(history, replace(POLICY, window=1400, strategies=strategies, compact_to=share / 100))
        assert not sent.is_untouched
        assert refusals(sent, 1400, [Temper.OPENAI]) == {}
        assert user_pairs(sent.messages) <= user_pairs(history)
        if shape == "answered":
            assert refusals(sent, 1400, TEMPERS) == {}


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5])
def test_b11_a_sliding_window_alternates_as_its_conversation_did(kept: int) -> None:
    scene = Scene(replace(POLICY, window=None, drop=DropPolicy(max_turns=kept)))
    for history in askings(mixed(9, 60)):
        sent = scene.send(history)
        assert refusals(sent, 1 << 40, TEMPERS) == {}


ROLE_OF_BLOCK = {SummaryRole.USER: "user", SummaryRole.SYSTEM: "system"}


@pytest.mark.parametrize("role", ROLE_OF_BLOCK)
@pytest.mark.parametrize("head", ["none", "system", "two developers"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("fails", [False, True])
def test_b10_a_block_in_a_message_of_its_own_stands_behind_the_head_and_nowhere_else(
    role: SummaryRole, head: str, body: str, fails: bool
) -> None:
    policy = replace(POLICY, summary_role=role, strategies=("summarize", "drop"))
    [*_, history] = askings([*HEADS[head], *BODIES[body]])
    sent = Scene(policy, fails=fails).sent(history)
    assert refusals(sent, WINDOW, [Temper.OPENAI]) == {}
    shown = list(sent.messages)
    block = shown.pop(len(HEADS[head]))
    assert block.keys() == {"role", "content"}
    assert block["role"] == ROLE_OF_BLOCK[role]
    assert ("left out here" if fails else MEMORY) in block["content"]
    assert shown[: len(HEADS[head])] == HEADS[head]
    assert all(m in history for m in shown), "the rest is the client's own"


@pytest.mark.parametrize("ladder", [LADDERS[0], LADDERS[2], ("summarize",)])
def test_b14_one_request_and_150_rounds_later_it_is_still_there_word_for_word(
    ladder: tuple[str, ...],
) -> None:
    scene = Scene(replace(POLICY, strategies=ladder))
    for number in (1, 12, 20, 50, 51, 100, 150):
        sent = scene.send(agent(number))
        assert refusals(sent, WINDOW, TEMPERS) == {}
        [request] = sent.of_role("user")
        assert request["content"].startswith(text_of(TASK))


def test_b14_the_summary_is_written_of_every_message_even_where_none_is_a_users() -> None:
    scene = Scene(replace(POLICY, strategies=("summarize", "drop")))
    shown: list[str] = []
    for history in askings(agent(60)):
        shown += scene.send(history).transcripts()
    assert len(shown) >= 3
    assert sum(text_of(TASK) in each for each in shown) == 1, "later ranges hold no user message"
    for each in shown:
        assert re.search(r"\[assistant calls read\] \{\"path\": \"c\d+x0\.py\"\}", each)
        assert re.search(r"\[tool result\] output c\d+x0: and so", each)


@pytest.mark.parametrize("ladder", LADDERS[:3])
def test_b14_without_any_user_message_the_block_is_one(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM, *steps(40)]
    sent = once(history, replace(POLICY, strategies=ladder))
    users = sent.of_role("user")
    assert users == sent.messages[1 : 1 + len(users)]
    assert len(users) == (len(sent.messages) < len(history))
    assert sent.messages[-2:] == history[-2:]


# --- what we say in the conversation ------------------------------------------------------------------------

ADDRESSES = re.compile(
    r"\b(you|your|please|must|should|shall|do not|don't|never|always|ignore|remember|continue|retrieve|fetch|"
    r"ask|try|note that|make sure|refer|see)\b",
    re.IGNORECASE,
)
"""Words that tell a reader to do something."""


def damaged() -> list[Message]:
    """A history with everything that a repair mends, and everything that is left out for its size."""
    pictured = user([text_part(filler("seen", 900)), PICTURE, PICTURE])
    return [
        SYSTEM,
        result("nobody", filler("orphan", 100)),
        TASK,
        calls(call("a", "look_up"), call("b", "look_up")),
        result("a", filler("first", 1200)),
        said(filler("spoken", 4000)),
        pictured,
        calls(call("c", "write_file", path="x", content=filler("argument", 3000))),
        result("c", filler("second", 600)),
        said("So."),
        QUESTION,
    ]


def own_lines(sent: Sent) -> Iterator[str]:
    """Every line of what was forwarded that neither the client nor a summary wrote."""
    theirs = "\n".join([*_texts(sent.request["messages"]), MEMORY])
    for line in "\n".join(_texts(sent.messages)).split("\n"):
        if line not in theirs and not line.startswith(MEMORY):
            yield line


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield text_of(message)
        yield from (json.loads(each).get("content", "") for each in arguments_of(message))


SPEAKING: Sequence[ModelPolicy] = (
    replace(POLICY, strategies=("elide",), elide=ElidePolicy(keep=0)),
    replace(POLICY, strategies=("summarize",)),
    replace(POLICY, strategies=("drop",), pin=("first",), keep_user_tokens=400),
    replace(POLICY, strategies=("shorten",)),
    replace(POLICY, vision=False, window=4 * WINDOW),
    replace(POLICY, strategies=("drop",), summary_role=SummaryRole.USER, orphans=Orphans.DROP),
)
CARRIED = re.compile(r"^\[Carried over [^\n]*:\]\n(.*?)\n\[End of what is carried over\.\]$", re.S | re.M)
"""What was taken by rule, between the lines that say so."""

EXPECTED = (
    r"\[Output of look_up left out here: \d+ characters, \d+ lines\.\]",
    r"\[Summary of \d+ earlier messages of this conversation, as background:\]",
    r"\[End of the summary\.\]",
    r"\[Carried over from messages that are left out, as background\. Taken from them without a model:\]",
    r"\[End of what is carried over\.\]",
    r"\[\d+ earlier messages of this conversation are left out here\.\]",
    r"\[An earlier result of look_up, called with \{\}, verbatim:\]",
    r"\[\.\.\. \d+ characters left out here \.\.\.\]",
    r"\[Image left out here\.\]",
    r"\[The result of this call is missing here\. Whether the call was carried out is not known\.\]",
    r"\[Result of a tool, without an open call before it:\]",
)
"""What can be said, with nothing else on its line."""


def test_b16_all_that_is_said_in_the_conversation_is_a_statement_about_what_is_gone() -> None:
    said_by_us: set[str] = set()
    carried: set[str] = set()
    for policy in SPEAKING:
        sent = once(damaged(), policy, fits=False)
        assert text_of(sent.messages[-1]).endswith(text_of(QUESTION)), "the client has the last word"
        said_by_us |= set(own_lines(sent))
        for block in CARRIED.findall("\n".join(_texts(sent.messages))):
            carried |= set(block.split("\n"))
    assert [line for line in said_by_us if ADDRESSES.search(line)] == []
    bare = [line for line in said_by_us if not (line.startswith("[") and line.endswith("]"))]
    assert [line for line in bare if line not in carried] == []
    assert [each for each in EXPECTED if not any(re.fullmatch(each, line) for line in said_by_us)] == []


# --- fields that nobody reads -------------------------------------------------------------------------------

VENDOR: Mapping[str, Any] = {
    "reasoning_content": "first this, then that",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "c2VhbGVk", "id": "r1", "index": 0}],
    "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    "refusal": None,
    "name": "worker",
    "cache_control": {"type": "ephemeral"},
    "provider_specific_fields": {"x": [1.0, None, {"y": "z"}]},
}


def sealed(number: int, size: int) -> list[Message]:
    """A round whose messages and calls carry what other providers put there."""
    made = {
        **call(f"v{number}", n=number),
        "index": 0,
        "extra_content": {"google": {"thought_signature": "sig"}},
    }
    return [
        calls(made, **VENDOR),
        result(
            f"v{number}", filler(f"sealed {number}", size), name="read", cache_control={"type": "ephemeral"}
        ),
    ]


def without(message: Message, *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


@pytest.mark.parametrize("ladder", [*LADDERS, ("elide",), ("drop",), ("shorten",)])
def test_b17_messages_that_are_kept_keep_every_field(ladder: tuple[str, ...]) -> None:
    history = [SYSTEM, user(text_of(TASK), name="ada", mood="calm")]
    history += [message for number in range(10) for message in sealed(number, 900)]
    sent = once(history, replace(POLICY, window=2600, strategies=ladder, elide=ElidePolicy(keep=1)))
    assert not sent.is_untouched
    assert without(sent.messages[1], "content") == without(history[1], "content")
    for message in sent.messages[2:]:
        [source] = [m for m in history if _ids(m) == _ids(message)]
        assert without(message, "content") == without(source, "content")
    assert sent.messages[-2:] == history[-2:]


def _ids(message: Message) -> list[str]:
    """Which call this is, or which call it answers."""
    return [message.get("tool_call_id", ""), *(each["id"] for each in message.get("tool_calls") or ())]


def test_b17_a_shortened_answer_keeps_its_reasoning_and_all_else_whole() -> None:
    arguments = {"path": "a", "content": filler("content", 9000)}
    made = {**call("v", "write_file", **arguments), "extra_content": {"google": {"thought_signature": "sig"}}}
    opener = calls(made, **{**VENDOR, "content": filler("spoken", 9000)})
    sent = once(
        [SYSTEM, TASK, opener, result("v", "written"), said("So."), QUESTION],
        replace(POLICY, strategies=("shorten",)),
    )
    [shown] = [m for m in sent.messages if m.get("tool_calls")]
    assert without(shown, "content", "tool_calls") == without(opener, "content", "tool_calls")
    [made_of] = shown["tool_calls"]
    assert without(made_of, "function") == without(made, "function")
    assert made_of["function"]["name"] == "write_file"
    assert json.loads(made_of["function"]["arguments"])["path"] == "a"


@pytest.mark.parametrize("field", ["audio", "annotations", "function_call"])
def test_b17_an_answer_with_an_odd_member_is_kept_as_it_is(field: str) -> None:
    odd = said("It was said.", **{field: {"id": "audio_1"} if field == "audio" else None})
    history = [SYSTEM, *turns(12), TASK, odd, QUESTION]
    sent = once(history, replace(POLICY, strategies=("drop",)))
    assert not sent.is_untouched
    assert odd in sent.messages
