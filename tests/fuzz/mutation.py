"""Inputs made of other inputs: changed, cut, spliced, repeated, nested.

Rules. The same inputs and the same chance give the same changes. What is put in is of the languages that the targets
read, so that a change is mostly still nearly right.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

Change = Callable[[bytes, bytes, Random], bytes]

_VALUES: Final = (
    b'"" null true false 0 -0 1 -1 0.5 1e400 1E-400 -1e999 18446744073709551616 1.0 100000000 "1" "null" [] {} [[]]'
    b' [null] [""] [{}] {"":0} NaN -Infinity "\\ud83d" "\\ude00\\ud83d" "\\u0000" "\\u001b[2J" "\\u2028"'
    b' "\xf0\x9f\x94\x91" "user" "assistant" "system" "developer" "tool" "function" "text" "image_url" "thinking"'
    b' "refusal" "TOOL_RESULTS" "data:image/png;base64,AAAA" "c1" "length" "stop" "{}" "{\\"a\\":1}" "[1]"'
).split(b" ")
"""JSON values, right and nearly right."""

_KEYS: Final = (
    b"role content name tool_calls tool_call_id function_call id type function custom arguments input text image_url"
    b" url detail file reasoning_content thinking refusal audio cache_control messages model stream stream_options"
    b" usage include_usage max_tokens max_completion_tokens tools tool_choice response_format prompt_cache_key choices"
    b" delta finish_reason prompt_tokens completion_tokens prompt_tokens_details cached_tokens error code message"
    b" metadata raw error_type x_groq n_ctx n_prompt_tokens data max_model_len context_length"
).split(b" ")

_LINES: Final = (
    b"data: ,data:,\n,\r,\r\n,\n\n,\r\r,\r\n\r\n,\n\r,:,: ping,event: error\n,id: 1\n,retry: 1\n,error: ,[DONE],"
    b"data: [DONE]\n\n,\xef\xbb\xbf,\x00,\xff,\xc3,\xed\xa0\xbd,\\,"
    b'",\\",\\u,{,},[,], ,\t,\x0b,\x0c,\xc2\xa0,\xe2\x80\xa8'
).split(b",")

_SENTENCES: Final = (
    b"maximum context length is 8192 tokens|However, you requested 9000 tokens|in the messages|in the completion"
    b"|prompt is too long: 9000 tokens > 8192 maximum|exceeds the available context size|context_length_exceeded"
    b"|input length|Please reduce the length|rate limit|tokens per min|8,192|8.192|131072|1e5|<html>|litellm."
    b"|Error code: 400 - "
).split(b"|")

_WORDS: Final = (*_VALUES, *(b'"%b":' % key for key in _KEYS), *_LINES, *_SENTENCES)

_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?|true|false|null', re.DOTALL)
_OPEN: Final = (b"[", b'{"a":', b'{"error":', b'{"content":[', b'"', b"(")


def dice(seed: int | str | bytes) -> Random:
    """Chance that is the same each time."""
    return Random(seed)  # noqa: S311 - a game, not a secret


def changed(data: bytes, other: bytes, chance: Random, most: int) -> bytes:
    """The input after one to eight changes, parts of the other among them; at most so many bytes of it.

    Most changes are of JSON values and leave JSON, or events with JSON, whole; the others are of bytes.
    """
    among = _VALUE_CHANGES if chance.random() < 0.6 else _BYTE_CHANGES
    for _ in range(1 << chance.randrange(4)):
        data = chance.choice(among)(data, other, chance)[:most]
    return data


# --- of bytes ---------------------------------------------------------------------------------------------------


def _places(data: bytes, chance: Random, longest: int = 64) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + chance.randrange(longest))


def _other_bit(data: bytes, other: bytes, chance: Random) -> bytes:
    if not data:
        return other[:1]
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _without_some(data: bytes, other: bytes, chance: Random) -> bytes:
    start, stop = _places(data, chance)
    return data[:start] + data[stop:]


def _cut_short(data: bytes, other: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _with_word(data: bytes, other: bytes, chance: Random) -> bytes:
    start, stop = _places(data, chance, longest=4)
    return data[:start] + chance.choice(_WORDS) + data[stop:]


def _other_value(data: bytes, other: bytes, chance: Random) -> bytes:
    """A JSON value exchanged for one of the list, or of the other input."""
    found = list(_VALUE.finditer(data))
    if not found:
        return _with_word(data, other, chance)
    place = chance.choice(found)
    values: list[bytes] = _VALUE.findall(other) if chance.random() < 0.5 else []
    return data[: place.start()] + chance.choice(values or _VALUES) + data[place.end() :]


def _repeated(data: bytes, other: bytes, chance: Random) -> bytes:
    start, stop = _places(data, chance, longest=chance.choice((2, 16, 256)))
    times = chance.choice((2, 3, 10, 100, 3000))
    return data[:start] + data[start:stop] * times + data[stop:]


def _moved(data: bytes, other: bytes, chance: Random) -> bytes:
    start, stop = _places(data, chance)
    rest = data[:start] + data[stop:]
    at = chance.randrange(len(rest) + 1)
    return rest[:at] + data[start:stop] + rest[at:]


def _spliced(data: bytes, other: bytes, chance: Random) -> bytes:
    start, stop = _places(other, chance, longest=max(2, len(other)))
    at = chance.randrange(len(data) + 1)
    return data[:at] + other[start:stop] + data[at:]


def _nested(data: bytes, other: bytes, chance: Random) -> bytes:
    found = list(_VALUE.finditer(data))
    start, stop = chance.choice(found).span() if found else (0, len(data))
    depth = chance.choice((1, 2, 30, 1000, 12_000))
    opened = chance.choice(_OPEN)
    closed = {b"[": b"]", b'"': b'"'}.get(opened[-1:], b"]}" if b"[" in opened else b"}")
    return data[:start] + opened * depth + data[start:stop] + closed * depth + data[stop:]


_BYTE_CHANGES: Final[Sequence[Change]] = (
    _other_bit,
    _without_some,
    _cut_short,
    _with_word,
    _with_word,
    _other_value,
    _other_value,
    _other_value,
    _repeated,
    _moved,
    _spliced,
    _nested,
)
"""What happens more often stands here more often."""


# --- of values --------------------------------------------------------------------------------------------------

Place = tuple[Any, Any]
"""An object or array, and the key or index of one of its values."""


def _value_changed(data: bytes, other: bytes, chance: Random) -> bytes:
    """One value of a JSON document, or of the JSON in one line, is exchanged, left out, doubled, moved or wrapped."""
    start, stop = _document(data, chance)
    value, donor = [_decoded(data[start:stop])], [_decoded(other[slice(*_document(other, chance))])]
    if value[0] is None:
        return _with_word(data, other, chance)
    places, gifts = list(_values(value)), list(_values(donor))
    within, key = chance.choice(places)
    match chance.randrange(6):
        case 0 if within is not value:
            del within[key]
        case 1:
            gift_from, gift = chance.choice(gifts)
            within[key] = gift_from[gift]
        case 2:
            _add(within, within[key], chance)
        case 3:
            elsewhere, at = chance.choice(places)
            within[key], elsewhere[at] = elsewhere[at], within[key]
        case 4:
            within[key] = (
                [within[key]] if chance.random() < 0.5 else {chance.choice(_KEYS).decode(): within[key]}
            )
        case _:
            within[key] = _decoded(chance.choice(_VALUES))
    return data[:start] + _encoded(value[0], data[start:stop], chance) + data[stop:]


def _document(data: bytes, chance: Random) -> tuple[int, int]:
    """Where JSON stands: everything, or what is behind the first colon of a line."""
    found = list(_IN_LINE.finditer(data))
    return chance.choice(found).span(1) if found else (0, len(data))


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _values(root: list[Any]) -> Iterator[Place]:
    """The places of all values, not too deep and not too many."""
    waiting: list[Any] = [root]
    for within in waiting:
        if len(waiting) > 500:
            return
        for key in list(within) if isinstance(within, dict) else range(len(within)):
            yield within, key
            if isinstance(within[key], dict | list):
                waiting.append(within[key])


def _add(within: Any, value: Any, chance: Random) -> None:
    if isinstance(within, list):
        within.insert(chance.randrange(len(within) + 1), value)
    else:
        within[chance.choice(_KEYS).decode()] = value


def _encoded(value: Any, before: bytes, chance: Random) -> bytes:
    try:
        return json.dumps(
            value, separators=chance.choice(((",", ":"), (", ", ": "), (" , ", " :\t")))
        ).encode()
    except (ValueError, RecursionError):  # a value that was put into itself
        return before


_IN_LINE: Final = re.compile(rb"^(?:data|error): ?(\{.*\})\r?$", re.MULTILINE)
_VALUE_CHANGES: Final[Sequence[Change]] = (_value_changed, _value_changed, _value_changed, _other_value)
