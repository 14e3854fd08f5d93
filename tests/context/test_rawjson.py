"""Documents are split and changed without touching a byte that was not meant."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context import rawjson
from proxy.context.rawjson import NotJSON, TooManyValues

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=6)
STYLES = st.sampled_from([{}, {"indent": 2}, {"separators": (" , ", " : ")}, {"ensure_ascii": False}])


@given(OBJECTS, STYLES)
def test_members_are_the_values_in_their_order(value: dict[str, object], style: dict[str, object]) -> None:
    document = dumps(value, style)
    members = rawjson.members(document)
    assert list(members) == list(value)
    assert [json.loads(raw) for raw in members.values()] == list(value.values())


@given(OBJECTS, STYLES)
def test_spans_cut_out_exactly_the_members(value: dict[str, object], style: dict[str, object]) -> None:
    document = dumps(value, style)
    assert {s.key: document[s.start : s.stop] for s in rawjson.spans(document)} == rawjson.members(document)


@given(st.lists(VALUES, max_size=6), STYLES)
def test_elements_are_the_values_of_an_array(values: list[object], style: dict[str, object]) -> None:
    assert [json.loads(raw) for raw in rawjson.elements(dumps(values, style))] == values


@given(OBJECTS, STYLES, st.text(max_size=6), VALUES)
def test_replacing_a_member_leaves_every_other_byte(
    value: dict[str, object], style: dict[str, object], key: str, new: object
) -> None:
    document = dumps(value, style)
    changed = rawjson.replace(document, {key: rawjson.encode(new)})
    assert json.loads(changed) == {**value, key: json.loads(rawjson.encode(new))}
    for span in rawjson.spans(document):
        if span.key != key:
            assert document[span.start : span.stop] in changed
    if key in value:
        span = next(s for s in rawjson.spans(document) if s.key == key)
        assert changed.startswith(document[: span.start])
        assert changed.endswith(document[span.stop :])


def test_numbers_escapes_and_spaces_keep_their_bytes() -> None:
    document = b' { "a" : 1e-7, "b":1.0,"c":12345678901234567890 , "d" : "\\u00e9\\/" }\n'
    assert rawjson.replace(document, {"b": b"2"}) == document.replace(b"1.0", b"2")


@pytest.mark.parametrize("document", [b'{"a":1,"a":12}', b'{"a":12,"a":1}', b'{"a":"x","a":"xx"}'])
def test_every_occurrence_of_a_repeated_key_is_found(document: bytes) -> None:
    assert [s.key for s in rawjson.spans(document)] == ["a", "a"]
    assert json.loads(rawjson.replace(document, {"a": b"0"})) == {"a": 0}
    assert rawjson.replace(document, {"a": b"0"}) == b'{"a":0,"a":0}'


MEMBERS = st.lists(st.tuples(st.text(max_size=2), VALUES), max_size=5)
SPACES = st.sampled_from([("", ",", ":"), ("", ", ", ": "), (" ", " , ", " : "), ("\n", ",\n\t", ":")])


def written(members: Sequence[tuple[str, object]], ascii_only: bool, spaces: tuple[str, str, str]) -> bytes:
    """An object with these members, repeated keys included; the spaces are those within the braces and between."""
    within, comma, colon = spaces
    made = [json.dumps(key, ensure_ascii=ascii_only) + colon + json.dumps(value) for key, value in members]
    return f"{{{within}{comma.join(made)}{within}}}".encode()


@given(members=MEMBERS, spaces=SPACES, ascii_only=st.booleans())
def test_distinct_members_are_those_of_the_spans_and_none_where_a_key_is_repeated(
    members: list[tuple[str, object]], ascii_only: bool, spaces: tuple[str, str, str]
) -> None:
    document = written(members, ascii_only, spaces)
    found = rawjson.spans(document)
    assert [span.key for span in found] == [key for key, _ in members]
    assert [json.loads(document[s.start : s.stop]) for s in found] == [value for _, value in members]
    fields = rawjson.distinct(document, 5)
    if len({key for key, _ in members}) < len(members):
        assert fields is None
        return
    assert fields == {span.key: document[span.start : span.stop] for span in found}
    assert list(fields) == [key for key, _ in members], "in their order"
    for span in found:
        assert rawjson.start_of(span.key, document, fields) == span.start


@given(members=MEMBERS.filter(bool), spaces=SPACES, ascii_only=st.booleans())
def test_an_object_of_too_many_members_is_not_split(
    members: list[tuple[str, object]], ascii_only: bool, spaces: tuple[str, str, str]
) -> None:
    document = written(members, ascii_only, spaces)
    assert len(rawjson.spans(document, len(members))) == len(members)
    for split in (rawjson.spans, rawjson.distinct):
        with pytest.raises(TooManyValues):
            split(document, len(members) - 1)


def test_a_member_that_is_missing_is_put_first() -> None:
    assert rawjson.replace(b'{ "a":1}', {"b": b"2"}) == b'{"b":2, "a":1}'
    assert rawjson.replace(b"{ }", {"b": b"2"}) == b'{"b":2 }'


def test_a_lone_surrogate_is_read_and_kept() -> None:
    document = b'{"a": [1, "cut \\ud83d"], "b": {"c": "]}"}}'
    assert rawjson.members(document) == {"a": b'[1, "cut \\ud83d"]', "b": b'{"c": "]}"}'}
    assert rawjson.elements(b'["\\ud83d", [2], {"x": "\\\\"}, -1.5]') == [
        b'"\\ud83d"',
        b"[2]",
        b'{"x": "\\\\"}',
        b"-1.5",
    ]
    assert rawjson.value(b'"\\ud83d"') == "\ud83d"
    assert rawjson.encode("\ud83d") == b'"\\ud83d"'


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[",
        b"[]x",
        b'{"a":1,}',
        b'{"a" 1}',
        b'{"a":NaN',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}x',
        b"\x00",
    ],
)
def test_what_is_no_object_raises_one_kind_of_error(document: bytes) -> None:
    with pytest.raises(NotJSON):
        rawjson.spans(document)
    with pytest.raises(NotJSON):
        rawjson.members(document)


def test_nesting_too_deep_to_read_raises_the_same_error() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(NotJSON):
        rawjson.value(deep)
    with pytest.raises(NotJSON):
        rawjson.members(b'{"a":' + deep + b"}")


def commas(value: object) -> int:
    """Those between values: one fewer than an object or array has."""
    within = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return max(0, len(within) - 1) + sum(map(commas, within))


@given(VALUES, STYLES, st.integers(1, 20))
def test_many_values_are_told_without_what_stands_in_texts(
    value: object, style: dict[str, object], most: int
) -> None:
    assert rawjson.has_more_values(dumps(value, style), most) == (commas(value) >= most)


def test_commas_quotes_and_escapes_within_texts_are_no_values() -> None:
    texts = [",,,,", '",",",', "\\", '\\",', "\\\\,", '"', "\n,\t,"]
    assert not rawjson.has_more_values(rawjson.encode(texts), len(texts))
    assert rawjson.has_more_values(rawjson.encode(texts), len(texts) - 1)
    assert rawjson.has_more_values(b'{"' * 100 + b"," * 20, 20), "strings without end"


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    for read in (rawjson.value, rawjson.members, rawjson.elements, rawjson.spans):
        try:
            read(document)
        except NotJSON:
            continue


def dumps(value: object, style: dict[str, object]) -> bytes:
    return json.dumps(value, **style).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]
