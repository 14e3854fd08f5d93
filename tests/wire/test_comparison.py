"""An original beside what was forwarded: which message became which, and what of it differs."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from proxy.context.policy import ModelPolicy
from proxy.context.rawjson import NotJSON
from proxy.wire.comparison import LONGEST, Edit, Pair, Shown, compare
from tests.context.histories import conversations
from tests.desk import Desk
from tests.peers.chats import PICTURE, SAID, SYSTEM, USER, asks, result
from tests.test_exchange import agent, chat


def body(*messages: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages)}).encode()


def edits(pairs: tuple[Pair, ...]) -> list[str]:
    return [str(pair.edit) for pair in pairs]


def marked(side: Shown | None) -> str:
    assert side is not None
    return "".join(stretch.text for stretch in side.text if stretch.kind == "changed")


def test_what_went_on_as_it_came_is_the_same_all_through() -> None:
    pairs = compare(body(SYSTEM, USER, SAID), body(SYSTEM, USER, SAID))
    assert edits(pairs) == ["same"] * 3
    assert not any(marked(pair.forwarded) for pair in pairs)


def test_an_elided_result_stands_beside_its_marker() -> None:
    whole = [SYSTEM, USER, asks("c1"), result("c1"), asks("c2"), result("c2")]
    after = [*whole[:3], {**result("c1"), "content": "[left out]"}, *whole[4:]]
    pairs = compare(body(*whole), body(*after))
    assert edits(pairs) == ["same", "same", "same", "changed", "same", "same"]
    assert (marked(pairs[3].original), marked(pairs[3].forwarded)) == ("print(1)", "[left out]")


def test_behind_a_cut_the_message_that_leads_stands_beside_what_it_was_and_the_block_is_marked() -> None:
    old = [USER, SAID, {"role": "user", "content": "And in b.py?"}, SAID]
    newest = {"role": "user", "content": "And now?"}
    block = "[Summary of 4 earlier messages of this conversation, as background:]\nOf a.py.\n[End of the summary.]"
    after = [SYSTEM, {"role": "user", "content": f"{block}\n\nAnd now?"}]
    pairs = compare(body(SYSTEM, *old, newest), body(*after))
    assert edits(pairs) == ["same", "removed", "removed", "removed", "removed", "changed"]
    assert marked(pairs[-1].forwarded) == f"{block}\n\n"
    assert marked(pairs[-1].original) == ""


def test_a_block_in_a_message_of_its_own_is_put_in() -> None:
    block = {
        "role": "system",
        "content": "[Summary of 2 earlier messages of this conversation, as background:] x",
    }
    pairs = compare(body(SYSTEM, USER, SAID, USER), body(SYSTEM, block, USER))
    assert sorted(edits(pairs)) == ["added", "removed", "removed", "same", "same"]


def test_a_shortened_text_is_marked_in_its_middle() -> None:
    long = "a" * 50 + "b" * 500 + "c" * 50
    short = "a" * 50 + "[500 left out]" + "c" * 50
    (pair,) = compare(body({"role": "user", "content": long}), body({"role": "user", "content": short}))
    assert (pair.edit, marked(pair.original), marked(pair.forwarded)) == (
        Edit.CHANGED,
        "b" * 500,
        "[500 left out]",
    )


def test_long_texts_are_shown_by_head_and_tail_and_calls_and_pictures_are_named() -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "x" * 3 * LONGEST}, PICTURE]}
    call, _ = asks("c1"), result("c1")
    first, second, *_ = compare(body(said, call, result("c1")), body(said, call, result("c1")))
    assert first.original is not None
    assert [stretch.kind for stretch in first.original.text] == ["same", "gap", "same"]
    assert first.original.text[1].text == f"{2 * LONGEST:,} characters"
    assert first.original.media == 1
    assert second.original is not None
    assert second.original.calls == ("read({})",)


def test_what_no_encoding_carries_is_shown_all_the_same() -> None:
    (pair,) = compare(*[b'{"messages":[{"role":"user","content":"\\ud83d"}]}'] * 2)
    assert pair.original is not None
    assert pair.original.text[0].text == "?"


@pytest.mark.parametrize("odd", [b"", b"[]", b"{}", b'{"messages":3}'])
def test_what_is_no_chat_is_none(odd: bytes) -> None:
    with pytest.raises(NotJSON):
        compare(odd, odd)


@pytest.mark.parametrize("history", [agent(30), chat(40)], ids=("agent", "chat"))
def test_after_a_real_cut_all_that_is_kept_stands_beside_itself(history: list[dict[str, Any]]) -> None:
    desk = Desk(ModelPolicy(window=3000, reserve_output=100, strategies=("summarize", "drop")))
    desk.run(body(SYSTEM, *history))
    pairs = compare(body(SYSTEM, *history), desk.sent[-1])
    assert edits(pairs)[0] == "same"
    assert edits(pairs)[-1] in ("same", "changed")
    assert "removed" in edits(pairs)
    assert "added" not in edits(pairs)


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_whatever_was_done_each_message_is_shown_once_and_in_its_order(history: Any) -> None:
    before = body(*(json.loads(message.raw) for message in history.messages))
    desk = Desk(ModelPolicy(window=600, reserve_output=50))
    desk.run(before)
    pairs = compare(before, desk.sent[-1])
    for side, whole in (("original", before), ("forwarded", desk.sent[-1])):
        shown = [getattr(pair, side).index for pair in pairs if getattr(pair, side) is not None]
        assert shown == list(range(len(json.loads(whole)["messages"])))
