"""Views: what a conversation is forwarded as, the same on every machine."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from proxy.context import invariants
from proxy.context.conversation import Conversation, read_message
from proxy.context.edits import NOTHING, Blanked, Cut, Edits, Shortened, SummaryRole
from proxy.context.view import keeps, with_text
from tests.context.histories import apply, conversations, read


@given(conversations())
def test_no_edits_give_the_conversation_itself(talk: Conversation) -> None:
    assert apply(talk, NOTHING) is talk


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "task", "vendor": 1},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": [{"type": "text", "text": "second"}]},
    {"role": "assistant", "content": "a2", "reasoning_content": "kept"},
    {"role": "user", "content": "third"},
]


def texts(view: Conversation) -> list[str]:
    return [m.text for m in view.messages]


def test_b11_a_cut_before_a_user_message_merges_the_block_into_it() -> None:
    view = apply(read(TALK), Edits(Cut(2, "SUM", 2)))
    assert texts(view) == [
        "s",
        "[Summary of 2 earlier messages of this conversation, as background:]\nSUM\n[End of the summary.]\nsecond",
        "a2",
        "third",
    ]
    assert [m.role for m in view.history] == ["user", "assistant", "user"]


def test_b10_a_cut_before_an_assistant_message_puts_the_block_behind_the_newest_user_message() -> None:
    view = apply(read(TALK), Edits(Cut(3, "SUM", 3, carried=(0,))))
    assert texts(view)[1] == (
        "second\n"
        "[The first user message of this conversation, verbatim:]\ntask\n[End of that message.]\n"
        "[Summary of 3 earlier messages of this conversation, as background:]\nSUM\n[End of the summary.]"
    )
    assert [m.role for m in view.history] == ["user", "assistant", "user"]


def test_b17_messages_that_stay_keep_every_field_and_byte() -> None:
    talk = read(TALK)
    view = apply(talk, Edits(Cut(3, "SUM", 3)))
    assert view.history[1].raw == talk.history[3].raw


def test_a_rewritten_message_keeps_its_other_fields() -> None:
    raw = b'{"role":"tool", "tool_call_id":"a","content":"long", "x":1.0}'
    assert with_text(read_message(raw), "[gone]").raw == raw.replace(b"long", b"[gone]")


def test_without_any_user_message_the_block_is_a_user_message_of_its_own() -> None:
    talk = read([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
    view = apply(talk, Edits(Cut(1, notice="[1 left out]")))
    assert [(m.role, m.text) for m in view.messages] == [("user", "[1 left out]"), ("assistant", "b")]


def test_b75_the_same_edits_give_the_same_bytes_in_another_process() -> None:
    program = (
        "from tests.context.test_view import *;"
        "from proxy.context import checkpoint; talk = read(TALK); print(checkpoint.chain(talk.history, b'seed')[-1]);"
        "print([m.raw for m in apply(talk, Edits(Cut(3, 'SUM', 3))).messages])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert all(outputs)


def one(message: dict[str, Any], edits: Edits) -> dict[str, Any]:
    """The message under these edits, decoded."""
    shown: dict[str, Any] = json.loads(apply(read([message]), edits).history[0].raw)
    return shown


@pytest.mark.parametrize("role", list(SummaryRole))
def test_the_block_stands_where_the_configuration_wants_it(role: SummaryRole) -> None:
    view = apply(read(TALK), Edits(Cut(3, "SUM", 3, role=role)))
    roles = {
        SummaryRole.AUTO: ["system", "user", "assistant", "user"],
        SummaryRole.USER: ["system", "user", "user", "assistant", "user"],
        SummaryRole.SYSTEM: ["system", "system", "user", "assistant", "user"],
    }
    assert [m.role for m in view.messages] == roles[role]
    assert [m.text for m in view.messages if "SUM" in m.text] == [view.history[0].text]
    assert any(m.text.startswith("second") for m in view.history if m.is_user), "the request stays"


def test_a_carried_result_stands_in_the_block_with_the_call_that_it_answers() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path":"AGENTS.md"}'}}
    talk = read(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "Rule 1\nRule 2"},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "next"},
        ]
    )
    edits = Edits(Cut(4, notice="[left out]", carried=(2,)))
    assert texts(apply(talk, edits)) == [
        "[left out]\n"
        '[An earlier result of read, called with {"path":"AGENTS.md"}, verbatim:]\nRule 1\nRule 2\n'
        "[End of that message.]\n\nnext"
    ]
    assert [index for index in range(5) if keeps(talk, edits, index)] == [2, 4]


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def test_b71_a_picture_is_replaced_within_its_list_and_the_other_parts_keep_their_bytes() -> None:
    parts = [{"type": "text", "text": "see", "cache_control": {}}, PICTURE, {"type": "x", "y": 1}, PICTURE]
    shown = one({"role": "user", "content": parts, "name": "ada"}, Edits(blanked=(Blanked(0, (0,)),)))
    stands = {"type": "text", "text": "[Image left out here.]"}
    assert shown == {"role": "user", "content": [parts[0], stands, parts[2], PICTURE], "name": "ada"}


LONG = "line of text\n" * 100


def test_b08_arguments_that_are_shortened_stay_an_object() -> None:
    arguments = json.dumps({"path": "a.py", "content": LONG, "lines": [LONG, 1]})
    call = {"id": "a", "type": "function", "function": {"name": "write", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": LONG}
    shown = one(message, Edits(shortened=(Shortened(0, 300),)))
    inner = json.loads(shown["tool_calls"][0]["function"].pop("arguments"))
    assert inner["path"] == "a.py"
    assert inner["lines"][1] == 1
    assert len(inner["content"]) <= 300
    assert "characters left out here" in inner["content"]
    call["function"].pop("arguments")  # type: ignore[attr-defined]
    assert shown == message


@pytest.mark.parametrize("arguments", ["not json" * 200, json.dumps([LONG]), '{"a":' * 200 + "1" + "}" * 199])
def test_b08_arguments_that_are_no_object_are_left_alone(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "write", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert one(message, Edits(shortened=(Shortened(0, 300),))) == message


def test_of_several_texts_those_in_the_middle_go_and_pictures_stay_where_they_are() -> None:
    parts = [{"type": "text", "text": LONG, "x": 1.0}, {"type": "text", "text": "short"}, PICTURE, LONG]
    shown = one({"role": "user", "content": parts}, Edits(shortened=(Shortened(0, 300),)))["content"]
    first, picture, last = shown
    assert picture == PICTURE
    assert first.keys() == {"type", "text", "x"}
    assert LONG.startswith(first["text"][:100])
    assert LONG.endswith(last)
    assert "characters left out here" in first["text"]
    assert len(first["text"]) + len(last) <= 300


def test_a_gap_over_the_border_of_two_texts_keeps_the_promises_of_a_view() -> None:
    parts = [{"type": "text", "text": text} for text in ("ab" * 3000, "Second. " + "cd" * 3000)]
    talk = read([{"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "c", "content": parts}])
    view = apply(talk, Edits(shortened=(Shortened(1, 1000),)))
    assert len(view.history[1].text) <= 1001
    assert invariants.broken(talk, view) == []


def test_the_edits_of_a_message_that_comes_back_as_the_lead_stay_in_force() -> None:
    edits = Edits(shortened=(Shortened(2, 300),), blanked=(Blanked(2, (0,)),))
    talk = read(
        [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": LONG}, PICTURE]},
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "content": "c"},
        ]
    )
    view = apply(talk, edits.with_cut(Cut(3, notice="[gone]")))
    (lead, *_) = view.history
    assert lead.media == ()
    assert len(lead.text) < 400
    assert lead.text.endswith("[Image left out here.]\n[gone]")
