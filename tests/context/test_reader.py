"""What is read again is recognised by its bytes, and means the same as if it had never been seen."""

import gc
import json
from collections.abc import Sequence
from itertools import pairwise
from types import FunctionType, ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context import rawjson, reader
from proxy.context.conversation import Message
from proxy.context.reader import Reader
from proxy.wire import chat
from proxy.wire.chat import ChatRequest, NotManaged

HEADS = st.sampled_from(
    [b'{"messages":[', b'{"model":"m","messages" : [ ', b'{"tools":[{"messages":[1]}],"messages":[']
)
TAILS = st.sampled_from([b"]}", b' ],"stream":true}', b'],"n":[1]}', b'],"messages":[]}', b",]}", b"]", b""])
SEPARATORS = st.sampled_from([b",", b", ", b" ,\n\t", b",,", b" "])
MESSAGES = st.sampled_from(
    [
        b'{"role":"system","content":"s"}',
        b'{"role":"user","content":"hi"}',
        b'{"role":"user","content":"hi, you"}',
        b'{"role": "assistant", "content": "{\\"role\\"]"}',
        b'{"role":"user","content":"caf\xc3\xa9"}',
        b'{"role":"user","content":"\xff"}',
        b'{"role":"user","content":"\\ud83d"}',
        b"1",
        b"12",
        b"[]",
        b'"}"',
    ]
)


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """Bodies of which one often begins as another does."""
    talk, made = draw(st.lists(MESSAGES, min_size=1, max_size=6)), list[bytes]()
    for _ in range(draw(st.integers(1, 4))):
        kept = talk[: draw(st.integers(0, len(talk)))] + draw(st.lists(MESSAGES, max_size=2))
        made.append(draw(HEADS) + draw(SEPARATORS).join(kept) + draw(TAILS))
    return made


def read(body: bytes, by: Reader) -> ChatRequest | str:
    try:
        return chat.read(body, by)
    except NotManaged as odd:
        return odd.reason


@given(bodies(), st.sampled_from([0, 40, reader.SHORT]))
def test_a_body_means_the_same_whatever_was_read_before(many: Sequence[bytes], short: int) -> None:
    by = Reader(short=short)
    for body in (*many, *many):
        assert read(body, by) == read(body, Reader())


CHANGES = st.dictionaries(st.sampled_from(["messages", "stream", "n", "stream_options"]), st.just(b"[7]"))


@given(bodies(), CHANGES)
def test_what_is_changed_in_a_recognised_body_is_what_is_changed_in_any(
    many: Sequence[bytes], changed: dict[str, bytes]
) -> None:
    by = Reader(short=0)
    for body in (*many, *many):
        found = read(body, by)
        if isinstance(found, ChatRequest):
            assert chat.with_members(found, changed) == rawjson.replace(body, changed)


@given(bodies())
def test_what_was_forgotten_is_read_anew(many: Sequence[bytes]) -> None:
    by = Reader(most_bytes=4500, short=0)  # two messages
    for body in (*many, *many):
        assert read(body, by) == read(body, Reader())


@given(bodies())
def test_a_short_body_is_neither_recognised_nor_known_as_a_beginning(many: Sequence[bytes]) -> None:
    by = Reader()
    for body in (*many, *many):
        assert len(body) < by.short
        assert read(body, by) == read(body, Reader(short=0))
        assert not by.recognise(body).entries


def test_a_conversation_that_was_short_is_recognised_once_it_is_long() -> None:
    by, talk, known = Reader(), growing(100), []
    for body in talk:
        known.append(len(by.recognise(body).entries))
        chat.read(body, by)
    short = sum(len(body) <= by.short for body in talk)
    assert known == [*[0] * (short + 1), *range(short + 1, len(talk))]


def growing(turns: int, head: bytes = b'{"messages":[') -> list[bytes]:
    messages = [b'{"role":"user","content":"turn %d"}' % turn for turn in range(turns)]
    return [head + b",".join(messages[: turn + 1]) + b'],"model":"m"}' for turn in range(turns)]


def test_of_a_conversation_that_has_grown_only_what_is_new_is_not_recognised() -> None:
    by, talk = Reader(short=0), growing(20)
    for before, body in pairwise(talk):
        chat.read(before, by)
        known = by.recognise(body)
        assert body[: known.stop] == before.removesuffix(b'],"model":"m"}') + b","
        assert len(known.entries) == len(json.loads(before)["messages"])


def test_a_conversation_that_leaves_an_earlier_one_is_recognised_up_to_there() -> None:
    by = Reader(short=0)
    chat.read(b'{"messages":[{"a":1},{"b":2},{"c":3}]}', by)
    chat.read(b'{"messages":[{"a":1},{"x":2}]}', by)
    for body, many in (
        (b'{"messages":[{"a":1},{"b":2},{"d":4}]}', 2),
        (b'{"messages":[{"a":1},{"x":2},{"c":3}]}', 2),
    ):
        assert len(by.recognise(body).entries) == many


@pytest.mark.parametrize("other", [b'{"n":1,"messages":[', b'{"messages": ['])
def test_behind_another_head_nothing_is_recognised(other: bytes) -> None:
    by = Reader(short=0)
    for body in growing(3):
        chat.read(body, by)
    assert not by.recognise(growing(3, other)[-1]).entries


def test_a_list_of_the_same_name_that_stands_deeper_is_not_taken_for_the_messages() -> None:
    body, by = b'{"user":{"messages":[{"a":1},{"b":2}]},"messages":[{"a":1}]}', Reader(short=0)
    for _ in range(2):
        assert len(chat.read(body, by).conversation.messages) == 1
        assert not by.recognise(body).entries


@pytest.mark.parametrize(("begins", "most"), [("", reader.MOST_FOLLOWERS), ("x" * 200, reader.MOST_ALIKE)])
def test_of_many_conversations_with_one_beginning_the_newest_are_recognised(begins: str, most: int) -> None:
    by = Reader(short=0)
    many = [
        json.dumps({"messages": [{"s": 0}, {"u": f"{begins}{number}"}]}).encode()
        for number in range(most + 10)
    ]
    for body in many:
        chat.read(body, by)
    assert [len(by.recognise(body).entries) for body in many] == [*[1] * 10, *[2] * most]


def test_only_what_is_new_counts_against_the_values_that_are_decoded_at_once() -> None:
    def messages(name: str, values: int) -> list[bytes]:
        each = reader.MOST_VALUES_OF_ONE - 10
        odd = b"0," * each
        return [
            b'{"role":"user","content":"%b%d","odd":[%b0]}' % (name.encode(), number, odd)
            for number in range(values // each)
        ]

    by, most = Reader(), reader.MOST_NEW_VALUES
    first, second = messages("a", most * 2 // 3), messages("b", most * 2 // 3)
    assert len(by.read(first).history) == len(first)
    assert len(by.read(first + second).history) == len(first + second)
    with pytest.raises(rawjson.TooManyValues):
        by.read(first + second + messages("c", most * 4 // 3))
    with pytest.raises(rawjson.TooManyValues):
        Reader().read(first + second)


def kept(by: Reader) -> int:
    """Bytes of all messages that can be reached from this reader."""
    seen, waiting, found = set[int](), list[object]([by]), 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        found += len(each.raw) if isinstance(each, Message) else 0
        waiting += gc.get_referents(each)
    return found


def test_what_was_let_go_is_kept_by_nothing_that_came_before_it() -> None:
    by, bound = Reader(most_bytes=200_000, short=0), 100_000
    for fork in range(40):
        talk = [b'{"system":"s"}', *(b'{"%d":"%b"}' % (fork, b"x" * (2000 + turn)) for turn in range(20))]
        for turn in range(len(talk)):
            chat.read(b'{"messages":[' + b",".join(talk[: turn + 1]) + b"]}", by)
    assert kept(by) <= bound
