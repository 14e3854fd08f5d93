"""Rounds, turns and safe cuts over every shape of history that clients send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from proxy.context import conversation, rawjson
from proxy.context.conversation import Conversation, Kind, Message
from tests.context.histories import conversations, read


def user(text: str = "u") -> dict[str, Any]:
    return {"role": "user", "content": text}


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": f"f_{i}", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id_: str, text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def rounds(*messages: dict[str, Any]) -> list[tuple[int, int]]:
    return [(r.start, r.stop) for r in read(list(messages)).rounds]


def test_parallel_calls_and_their_results_in_any_order_are_one_round() -> None:
    assert rounds(user(), calls("a", "b"), result("b"), result("a"), user()) == [(0, 1), (1, 4), (4, 5)]


def test_a_reminder_between_a_call_and_its_result_stays_in_the_round() -> None:
    system = {"role": "system", "content": "remember"}
    assert rounds(calls("a", "b"), result("a"), system, user("note"), result("b"), user()) == [(0, 5), (5, 6)]


def test_a_reminder_behind_the_last_result_is_no_part_of_the_round() -> None:
    assert rounds(calls("a"), result("a"), {"role": "system", "content": "s"}) == [(0, 2), (2, 3)]


def test_b07_an_id_used_again_belongs_to_the_nearest_call_before_it() -> None:
    talk = read([calls("call_0"), result("call_0"), user(), calls("call_0"), result("call_0")])
    assert [(r.start, r.stop) for r in talk.rounds] == [(0, 2), (2, 3), (3, 5)]
    assert talk.call_answered_by(4) == talk.history[3].calls[0]


def test_an_orphan_result_is_a_round_of_its_own_and_no_place_to_cut() -> None:
    talk = read([user(), result("nobody"), calls("a"), result("other"), user()])
    assert [(r.start, r.stop) for r in talk.rounds] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert talk.safe_cuts == (0, 2, 4)


def test_b09_the_deprecated_function_role_answers_the_function_call_before_it() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    talk = read([call, {"role": "function", "name": "f", "content": "1"}, user()])
    assert [(r.start, r.stop) for r in talk.rounds] == [(0, 2), (2, 3)]
    assert talk.history[1].is_result
    assert talk.call_answered_by(1) == talk.history[0].calls[0]


def test_tool_results_in_plain_chat_belong_to_the_assistant_message_before_them() -> None:
    talk = read([user(), {"role": "assistant", "content": '{"run": 1}'}, user("TOOL_RESULTS ok"), user()])
    assert [(r.start, r.stop) for r in talk.rounds] == [(0, 1), (1, 3), (3, 4)]
    assert talk.turn_starts == (0, 3)


def test_leading_system_and_developer_messages_are_the_head_and_later_ones_are_history() -> None:
    head = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    talk = read([*head, user(), {"role": "system", "content": "c"}])
    assert [m.text for m in talk.head] == ["a", "b"]
    assert [m.kind for m in talk.history] == [Kind.USER, Kind.SYSTEM]


def test_text_is_read_from_strings_and_parts_and_other_parts_are_media() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "text", "text": "here"},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
    ]
    message = read([{"role": "user", "content": parts}]).history[0]
    assert message.text == "look\nhere"
    assert [(m.kind, m.source, m.detail) for m in message.media] == [
        ("image_url", "data:image/png;base64,AAAA", "low"),
        ("input_audio", "BBBB", ""),
    ]


@given(conversations())
def test_rounds_cover_the_history_without_gap_or_overlap(talk: Conversation) -> None:
    edges = [0, *(r.stop for r in talk.rounds)]
    assert [r.start for r in talk.rounds] == edges[:-1]
    assert edges[-1] == len(talk.history)


@given(conversations())
def test_no_safe_cut_parts_a_result_from_its_call(talk: Conversation) -> None:
    for cut in talk.safe_cuts:
        assert talk.history[cut].kind in (Kind.USER, Kind.ASSISTANT)
        assert not any(r.start < cut < r.stop for r in talk.rounds)


@pytest.mark.parametrize("depth", [100, 500, 900, 950, 980, 990, 1000, 100_000])
def test_b123_nesting_of_any_depth_is_read_or_refused_and_raises_nothing_else(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for raw in (
        b'{"role":"user","content":[{"type":"x","x":' + nested + b"}]}",
        b'{"role":"user","content":{"x":' + nested + b"}}",
        b'{"role":"assistant","tool_calls":[{"function":{"arguments":' + nested + b"}}]}",
    ):
        try:
            assert conversation.read_message(raw).raw == raw
        except rawjson.NotJSON:
            assert depth > 500


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "reasoning_content",
        "refusal",
        "audio",
    ]
)
ODD_MESSAGES = ANY_JSON | st.dictionaries(FIELDS, ANY_JSON | st.sampled_from(["user", "tool", "assistant"]))


@given(st.lists(ODD_MESSAGES, max_size=6))
def test_b41_any_json_value_in_any_field_gives_a_conversation(messages: list[object]) -> None:
    raws = [rawjson.encode(message) for message in messages]
    talk = conversation.read(raws)
    assert [m.raw for m in talk.messages] == raws
    assert sum(r.stop - r.start for r in talk.rounds) == len(talk.history)


@given(st.sampled_from(["user", "tool", "odd"]) | ANY_JSON, st.text(max_size=12) | ANY_JSON, st.booleans())
def test_a_message_of_a_role_and_a_content_says_the_same_as_one_with_empty_fields_beside_them(
    role: object, content: object, swapped: bool
) -> None:
    plain = {"content": content, "role": role} if swapped else {"role": role, "content": content}
    empty: dict[str, object] = {"name": "", "refusal": None, "tool_calls": [], "reasoning": ""}
    one, other = (conversation.read_message(rawjson.encode(fields)) for fields in (plain, {**plain, **empty}))
    assert structs.replace(one, raw=other.raw) == other
    assert one.digest == other.digest


FEW = st.text(max_size=3)


@given(FEW, FEW, FEW, FEW, FEW)
def test_a_digest_is_that_of_all_that_a_message_says_whether_much_or_little(
    role: str, text: str, refusal: str, name: str, answers: str
) -> None:
    message = Message(b"", Kind.USER, role, text, name=name, answers=answers, refusal=refusal)
    assert message.digest == conversation.digest_of(role, text, refusal, name, answers, "0", "0")


@given(conversations())
def test_where_the_first_round_ends_is_known_without_finding_all(talk: Conversation) -> None:
    assert talk.first_stop == (talk.rounds[0].stop if talk.rounds else 0)
