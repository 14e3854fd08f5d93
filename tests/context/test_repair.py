"""Damaged histories are given the order that upstreams accept, and all others are left as they are.

Rules. The judge of what upstreams accept is the demonstration's strict server, which shares no code with the repair.
Examples hold one rule each; the properties search for histories that no example thought of. A conversation that needs
no repair comes back as the same object, so the tests compare by identity.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.context import conversation, rawjson
from proxy.context.conversation import Conversation, Kind, Message, read_message
from proxy.context.policy import Orphans
from proxy.context.repair import MISSING, repair
from proxy.demo import refusals
from proxy.demo.rules import Accepted, Refusal, Temper, judge
from tests.context.histories import conversations, count, read
from tests.peers.chats import PICTURE, SAID, SYSTEM, asks

Raw = dict[str, Any]

USER: Raw = {"role": "user", "content": "u"}
NEXT: Raw = {"role": "user", "content": "v"}
REMINDER: Raw = {"role": "system", "content": "a reminder"}
LEGACY: Raw = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
PLAIN_PROTOCOL: Raw = {"role": "user", "content": "TOOL_RESULTS ok"}
PICTURED: Raw = {"role": "user", "content": [PICTURE]}
MARKED: Raw = {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}


def result(call_id: str, text: str = "r") -> Raw:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def legacy_result(name: str = "f", text: str = "r") -> Raw:
    return {"role": "function", "name": name, "content": text}


def missing(call_id: str) -> Raw:
    return result(call_id, MISSING)


def vague(name: str) -> Raw:
    return {"role": "tool", "name": name, "content": "r"}


def loose(text: str = "r", tool: str = "a tool") -> str:
    return f"[Result of {tool}, without an open call before it:]\n{text}\n[End of the result.]"


def said(text: str) -> Raw:
    return {"role": "user", "content": text}


def part(text: str) -> Raw:
    return {"type": "text", "text": text}


def repaired(*messages: object, orphans: Orphans = Orphans.TEXT) -> tuple[list[object], int]:
    """The decoded messages after the repair, and the count."""
    talk = conversation.read([rawjson.encode(message) for message in messages])
    mended, touched = repair(talk, orphans)
    assert (mended is talk) == (touched == 0)
    return [rawjson.value(message.raw) for message in mended.messages], touched


def verdict(talk: Conversation) -> Accepted | Refusal:
    body = {"model": "m", "messages": [rawjson.value(message.raw) for message in talk.messages]}
    return judge(body, window=1_000_000, count=count, temper=Temper.OPENAI)


# --- nothing to repair --------------------------------------------------------------------------------------

SOUND: Mapping[str, Sequence[object]] = {
    "no message at all": [],
    "a system head alone": [SYSTEM],
    "a plain chat": [SYSTEM, USER, SAID, NEXT],
    "user messages side by side": [USER, NEXT, SAID, SAID],
    "results in another order than the calls (B04)": [USER, asks("a", "b"), result("b"), result("a"), SAID],
    "an id used again in a later turn (B07)": [USER, asks("a"), result("a"), asks("a"), result("a"), NEXT],
    "the legacy form (B09)": [USER, LEGACY, legacy_result(), SAID],
    "the legacy form beside a call": [LEGACY | asks("a"), result("a"), legacy_result()],
    "reminders behind the results": [asks("a"), result("a"), REMINDER, USER],
    "a call in flight": [USER, asks("a", "b")],
    "a legacy call in flight": [USER, LEGACY],
    "a call in flight whose ids repeat": [USER, asks("a", "a")],
    "results of a protocol in plain chat": [USER, SAID, PLAIN_PROTOCOL, SAID, PLAIN_PROTOCOL],
    "results of a protocol in plain chat behind a round": [asks("a"), result("a"), PLAIN_PROTOCOL],
    "calls that are null, none or odd (B41)": [
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": [{"function": None}]},
        {"role": "assistant", "content": None, "tool_calls": [1, None]},
        {"role": "assistant", "content": None, "tool_calls": "x", "function_call": []},
        {"role": "assistant", "content": None, "function_call": {}},
        {"role": "user", "content": "u", "tool_calls": asks("a")["tool_calls"]},
        {"role": "assistant"},
        17,
        None,
        NEXT,
    ],
}


@pytest.mark.parametrize("orphans", Orphans)
@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND.keys())
def test_what_needs_no_repair_comes_back_as_the_same_object(
    messages: Sequence[object], orphans: Orphans
) -> None:
    talk = conversation.read([rawjson.encode(message) for message in messages])
    mended, touched = repair(talk, orphans)
    assert mended is talk
    assert touched == 0


def unnamed(*names: str) -> Raw:
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": calls}


BY_POSITION: Mapping[str, Sequence[object]] = {
    "neither side has an id, and the names tell": [unnamed("f", "g"), vague("g"), vague("f"), NEXT],
    "neither side has an id, and there is one call": [unnamed("f"), {"role": "tool", "content": "r"}, NEXT],
    "ids are empty on both sides": [asks("", ""), result(""), result(""), NEXT],
    "the result alone has an id": [unnamed("f"), result("x"), NEXT],
    "the call alone has an id": [asks("a"), {"role": "tool", "content": "r"}, NEXT],
    "the call alone has an id, and the name is written otherwise": [asks("a"), vague("functions.read"), NEXT],
    "one of two results has no id": [asks("a", "b"), {"role": "tool", "content": "r"}, result("a"), NEXT],
    "a call without an id was not answered": [unnamed("f"), NEXT],
}


@pytest.mark.parametrize("messages", BY_POSITION.values(), ids=BY_POSITION.keys())
def test_calls_that_only_servers_without_pairing_by_id_would_take_are_left_alone(
    messages: Sequence[object],
) -> None:
    assert repaired(*messages) == (list(messages), 0)


# --- a call without its result ------------------------------------------------------------------------------


def test_b02_a_call_whose_result_is_gone_gets_a_placeholder_in_the_order_of_the_calls() -> None:
    wanted = [USER, asks("a", "b", "c"), result("a"), missing("b"), result("c"), SAID]
    assert repaired(USER, asks("a", "b", "c"), result("a"), result("c"), SAID) == (wanted, 1)


def test_a_call_with_no_result_at_all_gets_its_placeholder_before_what_follows() -> None:
    assert repaired(asks("a", "b"), NEXT) == ([asks("a", "b"), missing("a"), missing("b"), NEXT], 2)
    wanted = [asks("a"), missing("a"), asks("b"), result("b")]
    assert repaired(asks("a"), asks("b"), result("b")) == (wanted, 1)


def test_b02_a_partly_answered_last_round_is_completed_before_its_newest_message() -> None:
    wanted = [USER, asks("a", "b", "c"), missing("a"), missing("c"), result("b")]
    assert repaired(USER, asks("a", "b", "c"), result("b")) == (wanted, 2)


def test_b09_a_legacy_call_without_its_result_gets_a_function_message_of_its_name() -> None:
    assert repaired(USER, LEGACY, NEXT) == ([USER, LEGACY, legacy_result("f", MISSING), NEXT], 1)


def test_b07_an_id_that_is_answered_in_another_turn_still_needs_its_own_result() -> None:
    wanted = [asks("a"), result("a"), asks("a"), missing("a"), NEXT]
    assert repaired(asks("a"), result("a"), asks("a"), NEXT) == (wanted, 1)


def test_the_placeholder_of_a_result_without_id_goes_to_the_call_that_it_does_not_name() -> None:
    calls = asks("a", "b")
    calls["tool_calls"][1]["function"]["name"] = "write"
    assert repaired(calls, vague("write"), NEXT) == ([calls, missing("a"), vague("write"), NEXT], 1)


def test_results_stay_in_the_client_s_order_where_one_has_no_id() -> None:
    vague = {"role": "tool", "content": "r"}
    wanted = [asks("a", "b", "c"), vague, result("a"), missing("c"), NEXT]
    assert repaired(asks("a", "b", "c"), vague, result("a"), NEXT) == (wanted, 1)


def test_an_id_that_repeats_within_a_message_is_answered_as_often() -> None:
    assert repaired(asks("a", "a"), result("a"), result("a"), NEXT)[1] == 0
    wanted = [asks("a", "a"), result("a"), missing("a"), NEXT]
    assert repaired(asks("a", "a"), result("a"), NEXT) == (wanted, 1)


def test_tool_results_in_plain_chat_answer_no_call_that_has_an_id() -> None:
    assert repaired(asks("a"), PLAIN_PROTOCOL) == ([asks("a"), missing("a"), PLAIN_PROTOCOL], 1)


# --- a result without its call ------------------------------------------------------------------------------


def test_b05_orphans_at_the_head_become_one_user_message_that_says_what_they_are_or_are_dropped() -> None:
    history = [SYSTEM, result("a", "one"), result("b", "two"), SAID, NEXT]
    assert repaired(*history) == ([SYSTEM, said(f"{loose('one')}\n\n{loose('two')}"), SAID, NEXT], 2)
    assert repaired(*history, orphans=Orphans.DROP) == ([SYSTEM, SAID, NEXT], 2)


def test_an_orphan_joins_the_user_message_before_it() -> None:
    assert repaired(USER, result("a"), SAID) == ([said(f"u\n\n{loose()}"), SAID], 2)
    assert repaired(said(""), result("a"), SAID) == ([said(loose()), SAID], 2)


def test_an_orphan_joins_the_user_message_behind_it() -> None:
    assert repaired(SAID, result("a"), NEXT) == ([SAID, said(f"{loose()}\n\nv")], 2)
    assert repaired(SAID, 17, result("a"), NEXT) == ([SAID, 17, said(f"{loose()}\n\nv")], 2)


def test_an_orphan_between_two_user_messages_brings_them_together() -> None:
    assert repaired(USER, result("a"), NEXT, SAID) == ([said(f"u\n\n{loose()}\n\nv"), SAID], 3)


def test_user_messages_that_the_client_sent_side_by_side_stay_apart() -> None:
    assert repaired(USER, NEXT, result("a"), SAID) == ([USER, said(f"v\n\n{loose()}"), SAID], 2)
    assert repaired(result("a"), USER, NEXT) == ([said(f"{loose()}\n\nu"), NEXT], 2)


def test_two_user_messages_are_not_brought_together_under_the_name_of_one() -> None:
    anne, ben = USER | {"name": "Anne"}, NEXT | {"name": "Ben"}
    assert repaired(anne, result("a"), ben) == ([anne | {"content": f"u\n\n{loose()}"}, ben], 2)
    assert repaired(USER, result("a"), ben) == ([said(f"u\n\n{loose()}"), ben], 2)
    assert repaired(anne, result("a"), NEXT) == ([anne | {"content": f"u\n\n{loose()}"}, NEXT], 2)
    assert repaired(SAID, result("a"), ben) == ([SAID, ben | {"content": f"{loose()}\n\nv"}], 2)


@pytest.mark.parametrize("neighbour", [REMINDER, PLAIN_PROTOCOL, {"role": "critic", "content": "x"}, 17])
def test_an_orphan_does_not_join_a_message_that_is_no_user_s(neighbour: object) -> None:
    wanted = [USER, SAID, neighbour, said(loose()), neighbour]
    assert repaired(USER, SAID, neighbour, result("a"), neighbour) == (wanted, 1)


@pytest.mark.parametrize("content", [None, [], 123, {"a": 1}, False])
def test_b41_an_orphan_does_not_join_a_user_message_without_a_text_or_parts(content: object) -> None:
    odd = {"role": "user", "content": content}
    wanted = [odd, said(loose()), odd, {"role": "user"}]
    assert repaired(odd, result("a"), odd, {"role": "user"}) == (wanted, 1)


def test_parts_stay_parts_where_an_orphan_joins_them() -> None:
    wanted = [{"role": "user", "content": [MARKED, PICTURE, part(loose()), part("v")]}]
    assert repaired({"role": "user", "content": [MARKED, PICTURE]}, result("a"), NEXT) == (wanted, 3)


def test_an_orphan_s_text_parts_become_one_text_and_its_pictures_stay() -> None:
    parts = [part("a"), {"type": "text"}, part("b"), None, {}]
    assert repaired({"role": "tool", "content": parts}, SAID)[0] == [said(loose("a\nb")), SAID]
    title, end = "[Result of a tool, without an open call before it:]\na\nb", "[End of the result.]"
    assert repaired({"role": "tool", "content": [PICTURE, *parts]}, SAID)[0] == [
        {"role": "user", "content": [part(title), PICTURE, part(end)]},
        SAID,
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("", ""), ([], ""), ({"ok": [1]}, '{"ok":[1]}'), (12, "12"), (True, "true")],
)
def test_b41_an_orphan_of_any_content_keeps_it_as_text(content: object, text: str) -> None:
    lines = loose(text) if text else loose().replace("r]", "]").replace("\nr\n", "\n")
    assert repaired({"role": "tool", "content": content}, SAID) == ([said(lines), SAID], 1)


def test_an_orphan_with_a_voice_keeps_its_text() -> None:
    spoken = {"role": "tool", "content": 'say "r"', "audio": {"id": "x"}}
    assert repaired(spoken, SAID)[0] == [said(loose('say "r"')), SAID]


def test_an_orphan_tells_the_name_of_its_tool_within_one_line() -> None:
    assert repaired(legacy_result("get_weather"), SAID)[0] == [said(loose(tool="get_weather")), SAID]
    named = legacy_result("x\n]" + "y" * 100)
    assert repaired(named, SAID)[0] == [said(loose(tool="x]" + "y" * 62)), SAID]


def test_an_orphan_with_half_a_surrogate_pair_becomes_text() -> None:
    talk = conversation.read([b'{"role":"tool","content":"\\ud83d"}', rawjson.encode(SAID)])
    mended, touched = repair(talk, Orphans.TEXT)
    assert (mended.history[0].text, touched) == (loose("\ud83d"), 1)


def test_b41_calls_of_a_message_that_is_no_assistant_s_are_none() -> None:
    odd = USER | {"tool_calls": asks("a")["tool_calls"]}
    assert repaired(odd, result("a"), SAID) == ([odd | {"content": f"u\n\n{loose()}"}, SAID], 2)


def test_orphans_behind_results_join_the_last_as_strict_templates_refuse_a_user_message_there() -> None:
    history = [asks("a", "b"), result("b"), result("a"), result("x", "one"), result("y", "two"), SAID]
    joined = result("a", f"r\n\n{loose('one')}\n\n{loose('two')}")
    assert repaired(*history) == ([asks("a", "b"), result("b"), joined, SAID], 3)
    assert repaired(*history, orphans=Orphans.DROP) == ([asks("a", "b"), result("b"), result("a"), SAID], 2)


def test_a_result_of_parts_keeps_them_and_the_orphans_behind_it_become_parts() -> None:
    own = result("a") | {"content": [MARKED, PICTURE]}
    joined = own | {"content": [MARKED, PICTURE, part(loose("one")), part(loose("two"))]}
    assert repaired(asks("a"), own, result("x", "one"), result("x", "two")) == ([asks("a"), joined], 3)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("", ""), ([], ""), ({"ok": [1]}, '{"ok":[1]}\n\n'), (12, "12\n\n"), (True, "true\n\n")],
)
def test_b41_a_result_of_any_content_keeps_it_before_an_orphan(content: object, text: str) -> None:
    own = result("a") | {"content": content}
    assert repaired(asks("a"), own, result("x")) == ([asks("a"), own | {"content": text + loose()}], 2)


def test_an_orphan_with_a_picture_and_all_behind_it_become_a_user_message_behind_the_results() -> None:
    pictured = {"role": "tool", "content": [PICTURE]}
    mended, touched = repaired(asks("a"), result("a"), result("x", "one"), pictured, result("y", "two"), SAID)
    assert mended[:2] == [asks("a"), result("a", f"r\n\n{loose('one')}")]
    title, end = "[Result of a tool, without an open call before it:]", "[End of the result.]"
    content = [part(title), PICTURE, part(end), part(loose("two"))]
    assert (mended[2:], touched) == ([{"role": "user", "content": content}, SAID], 4)


def test_an_orphan_behind_anything_else_that_answers_nothing_joins_no_result() -> None:
    round_ = [asks("a"), result("a")]
    assert repaired(*round_, REMINDER, result("x")) == ([*round_, REMINDER, said(loose())], 1)
    assert repaired(asks("a"), NEXT, result("x"), result("a")) == ([*round_, said(f"v\n\n{loose()}")], 2)


def test_a_second_result_of_a_call_is_an_orphan() -> None:
    history = [asks("a"), result("a"), result("a", "two"), SAID]
    assert repaired(*history) == ([asks("a"), result("a", f"r\n\n{loose('two')}"), SAID], 2)
    assert repaired(*history, orphans=Orphans.DROP) == ([asks("a"), result("a"), SAID], 1)


def test_b07_a_result_that_comes_a_turn_late_is_an_orphan_and_the_turn_before_stays() -> None:
    wanted = [asks("a"), missing("a"), NEXT, asks("b"), result("b", f"r\n\n{loose('late')}")]
    assert repaired(asks("a"), NEXT, asks("b"), result("a", "late"), result("b")) == (wanted, 3)


def test_a_tool_message_answers_no_legacy_call_and_a_function_message_no_other() -> None:
    joined = result("a", f"{MISSING}\n\n{loose(tool='read')}")
    assert repaired(asks("a"), legacy_result("read"), SAID) == ([asks("a"), joined, SAID], 2)
    joined = legacy_result("f", f"{MISSING}\n\n{loose()}\n\n{loose(tool='g')}")
    assert repaired(LEGACY, result("a"), legacy_result("g"), SAID) == ([LEGACY, joined, SAID], 3)


@pytest.mark.parametrize("orphans", Orphans)
def test_the_newest_message_becomes_text_even_where_orphans_are_dropped(orphans: Orphans) -> None:
    assert repaired(result("a", "newest"), orphans=orphans) == ([said(loose("newest"))], 1)
    assert repaired(SAID, result("a", "newest"), orphans=orphans) == ([SAID, said(loose("newest"))], 1)


def test_of_orphans_at_the_end_all_but_the_newest_message_are_dropped() -> None:
    mended, touched = repaired(asks("a"), result("x"), result("y", "newest"), orphans=Orphans.DROP)
    content = f"{missing('a')['content']}\n\n{loose('newest')}"
    assert (mended, touched) == ([asks("a"), {**missing("a"), "content": content}], 3)


# --- a message between a call and its results ---------------------------------------------------------------


@pytest.mark.parametrize("between", [REMINDER, USER, PLAIN_PROTOCOL, {"role": "critic"}, 17])
def test_b04_what_stands_between_a_call_and_its_results_moves_behind_the_last_of_them(
    between: object,
) -> None:
    wanted = [asks("a", "b"), result("a"), result("b"), between, NEXT, SAID]
    assert repaired(asks("a", "b"), between, result("a"), NEXT, result("b"), SAID) == (wanted, 2)


def test_b04_a_message_that_stands_between_in_the_last_round_comes_last() -> None:
    assert repaired(asks("a"), REMINDER, result("a")) == ([asks("a"), result("a"), REMINDER], 1)


def test_b04_b09_a_reminder_before_a_function_message_moves_behind_it() -> None:
    assert repaired(LEGACY, REMINDER, legacy_result(), SAID)[0] == [LEGACY, legacy_result(), REMINDER, SAID]


def test_what_stands_behind_the_last_result_stays_where_it_is() -> None:
    wanted = [asks("a", "b"), result("a"), missing("b"), REMINDER, NEXT]
    assert repaired(asks("a", "b"), result("a"), REMINDER, NEXT) == (wanted, 1)


def test_an_orphan_between_two_results_of_a_round_parts_them_no_longer() -> None:
    history = [asks("a", "b"), result("a"), result("x", "odd"), REMINDER, result("b"), SAID]
    joined = result("b", f"r\n\n{loose('odd')}")
    assert repaired(*history) == ([asks("a", "b"), result("a"), joined, REMINDER, SAID], 3)
    dropped = [asks("a", "b"), result("a"), result("b"), REMINDER, SAID]
    assert repaired(*history, orphans=Orphans.DROP) == (dropped, 2)


# --- what holds for every history ---------------------------------------------------------------------------

ORPHANS = st.sampled_from(Orphans)
IDS = st.sampled_from(["a", "b", "c"])
SPOKEN = st.sampled_from([USER, NEXT, USER | {"name": "Anne"}, PLAIN_PROTOCOL, PICTURED, SAID, REMINDER])
SOUP: st.SearchStrategy[list[Raw]] = st.lists(
    st.one_of(
        SPOKEN,
        st.lists(IDS, min_size=1, max_size=3, unique=True).map(lambda ids: asks(*ids)),
        st.tuples(IDS, st.integers(0, 99)).map(lambda drawn: result(drawn[0], f"r{drawn[1]}")),
        IDS.map(lambda call_id: result(call_id) | {"content": [part("part")]}),
        st.sampled_from([LEGACY, legacy_result(), legacy_result("g"), LEGACY | asks("a")]),
    ),
    max_size=12,
)
"""Messages that a strict server finds sound one by one, in an order that it mostly refuses."""

ODD_CALLS = [asks("a", "a"), asks("", "b"), unnamed("f"), {"role": "assistant", "function_call": {}}]
ODD_RESULTS = [
    {"role": "tool", "content": {"a": [1]}},
    vague("read") | {"content": [PICTURE]},
    {"role": "function"},
]
ODD_OTHERS = [{"role": "user", "content": 12}, {"role": "critic", "content": "x"}, 17, None]
ODDITIES = st.sampled_from([*ODD_CALLS, *ODD_RESULTS, *ODD_OTHERS])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["content", "name", "tool_calls", "tool_call_id", "function_call", "audio"]
ODD_MESSAGES = st.builds(
    lambda role, fields: {"role": role, **fields},
    st.sampled_from(["system", "user", "assistant", "tool", "function", "critic"]),
    st.dictionaries(st.sampled_from(FIELDS), ANY_JSON | IDS, max_size=4),
)


@st.composite
def talks(draw: st.DrawFn) -> Conversation:
    """Conversations of every kind: ordered and damaged, sound and odd in their single messages."""
    odd = st.lists(
        SPOKEN | SOUP.map(lambda soup: soup[0] if soup else USER) | ODDITIES | ODD_MESSAGES, max_size=8
    )
    soup = st.one_of(SOUP, odd).map(lambda raws: conversation.read([rawjson.encode(raw) for raw in raws]))
    return draw(st.one_of(soup, conversations()))


def raws(messages: Sequence[Message]) -> list[bytes]:
    return [message.raw for message in messages]


def of_kind(talk: Conversation, kind: Kind) -> list[Message]:
    return [message for message in talk.messages if message.kind is kind]


def placeholder_like(message: Message) -> Message:
    """What stands for a missing result where this message stands."""
    is_legacy = message.role == "function"
    raw = legacy_result(message.name, MISSING) if is_legacy else missing(message.answers)
    return read_message(rawjson.encode(raw))


def orphan_texts(messages: Sequence[Message]) -> list[str]:
    """What results become each on its own, in their order; those with pictures go into no other result."""
    results = [Conversation((), (message,)) for message in messages if message.role in ("tool", "function")]
    alone = [repair(talk, Orphans.TEXT)[0].history[0] for talk in results]
    return [message.text for message in alone if not message.media]


def has_taken_in(own: Message, message: Message, orphans: Sequence[str]) -> bool:
    """Whether a message is this result with some of these texts behind its content, in order, and no other change."""
    was, now = (rawjson.members(each.raw) for each in (own, message))
    raw, after = was.pop("content", b"null"), rawjson.value(now.pop("content", b"null"))
    value = rawjson.value(raw) if raw[:1] in b'["n' else raw.decode()
    content: Any = value or ""
    for text in orphans:
        added: Any = [part(text)] if isinstance(content, list) else "\n\n" * bool(content) + text
        if isinstance(after, str | list) and after[: len(content) + len(added)] == content + added:
            content += added
    return own.is_result and was == now and content == after


def is_in_flight(talk: Conversation) -> bool:
    return bool(talk.history and talk.history[-1].is_assistant and talk.history[-1].calls)


@given(SOUP, ORPHANS)
def test_b02_b04_b05_a_strict_server_accepts_what_was_repaired(soup: list[Raw], orphans: Orphans) -> None:
    talk = read([USER, *soup])
    assume(not is_in_flight(talk))
    mended, _ = repair(talk, orphans)
    assert isinstance(verdict(mended), Accepted)


@given(conversations(), ORPHANS)
def test_b02_b04_b05_a_strict_server_accepts_the_damaged_histories_of_clients_in_whole(
    talk: Conversation, orphans: Orphans
) -> None:
    alone = [m for m in talk.messages if not any(refusals.openai_message(0, rawjson.value(m.raw)))]
    talk = conversation.conversation_of(alone)
    assume(talk.messages and not is_in_flight(talk))
    assert isinstance(verdict(repair(talk, orphans)[0]), Accepted)


@given(st.one_of(SOUP.map(read), conversations(damaged=False)), ORPHANS)
def test_what_a_strict_server_accepts_is_the_same_object_afterwards_and_nothing_else_is(
    talk: Conversation, orphans: Orphans
) -> None:
    if talk.messages and not is_in_flight(talk):
        is_accepted = isinstance(verdict(talk), Accepted)
        mended, touched = repair(talk, orphans)
        assert (mended is talk) == (touched == 0) == is_accepted


@given(talks(), ORPHANS)
def test_b35_a_second_repair_finds_nothing(talk: Conversation, orphans: Orphans) -> None:
    mended, _ = repair(talk, orphans)
    for talk in (mended, conversation.read(raws(mended.messages))):
        again, touched = repair(talk, orphans)
        assert again is talk
        assert touched == 0


@given(talks(), ORPHANS)
def test_b10_every_message_is_the_client_s_own_or_a_placeholder_or_holds_an_orphan(
    talk: Conversation, orphans: Orphans
) -> None:
    mended, touched = repair(talk, orphans)
    own = Counter(raws(talk.history))
    kept = [m for m in mended.history if own[m.raw]]
    assert Counter(raws(kept)) <= own
    gone = own - Counter(raws(kept))
    others = [message for message in talk.history if gone[message.raw]]
    texts = orphan_texts(others)
    for message in mended.history:
        if own[message.raw]:
            continue
        if message.is_user:
            assert "without an open call before it:]" in message.text
        elif (placeholder := placeholder_like(message)) != message:
            assert any(has_taken_in(each, message, texts) for each in [*others, placeholder])
    assert touched >= max(len(mended.history) - len(kept), gone.total())
    assert mended.head == talk.head
    assert of_kind(mended, Kind.SYSTEM) == of_kind(talk, Kind.SYSTEM)


@given(talks())
def test_no_text_and_no_call_is_lost_where_orphans_become_text(talk: Conversation) -> None:
    mended, _ = repair(talk, Orphans.TEXT)
    whole = "\n".join(message.text for message in mended.history)
    assert all(message.text in whole for message in talk.history)
    assert of_kind(mended, Kind.ASSISTANT) == of_kind(talk, Kind.ASSISTANT)


@given(talks(), ORPHANS)
def test_the_newest_message_stays_last_unless_something_parts_it_from_its_call(
    talk: Conversation, orphans: Orphans
) -> None:
    assume(talk.history)
    mended, _ = repair(talk, orphans)
    newest = talk.history[-1]
    if newest.raw == mended.history[-1].raw or newest.text in mended.history[-1].text:
        return
    assert newest.role in ("tool", "function")
    texts = orphan_texts(talk.history)
    is_taken_up = any(has_taken_in(newest, message, texts) for message in mended.history)
    assert newest.raw in raws(mended.history) or is_taken_up


@given(talks(), ORPHANS)
def test_b74_what_stands_before_an_assistant_message_is_repaired_the_same_whatever_follows(
    talk: Conversation, orphans: Orphans
) -> None:
    whole = raws(repair(talk, orphans)[0].history)
    for index, message in enumerate(talk.history):
        if message.is_assistant:
            early, _ = repair(Conversation(talk.head, talk.history[: index + 1]), orphans)
            assert raws(early.history) == whole[: len(early.history)]


@given(talks(), ORPHANS)
def test_every_new_message_reads_as_it_says(talk: Conversation, orphans: Orphans) -> None:
    mended, _ = repair(talk, orphans)
    assert [read_message(message.raw) for message in mended.messages] == list(mended.messages)


@given(SOUP)
def test_b11_no_orphan_stands_beside_a_user_message_or_behind_results_that_could_take_it_in(
    soup: list[Raw],
) -> None:
    mended, _ = repair(read([message for message in soup if message != PICTURED]), Orphans.TEXT)
    for before, after in pairwise(mended.history):
        if after.is_user and (before.is_user or before.role in ("tool", "function")):
            assert not after.text.startswith("[Result of ")
            is_named = b'"name"' in before.raw + after.raw
            assert is_named or not (before.is_user and before.text.endswith("[End of the result.]"))


@pytest.mark.parametrize("orphans", Orphans)
def test_b123_nesting_of_any_depth_beside_damage_raises_nothing(orphans: Orphans) -> None:
    for depth in range(300, 1000):
        nested = b"[" * depth + b"]" * depth
        deep = b'{"role":"tool","content":[{"type":"x","x":' + nested + b"}]}"
        try:
            talk = conversation.read([deep, rawjson.encode(NEXT), rawjson.encode(SAID)])
        except rawjson.NotJSON:
            continue
        mended, touched = repair(talk, orphans)
        assert (mended is talk) == (touched == 0)
