"""Raw parts of JSON documents: split without decoding, change one part and keep every other byte.

Rules. No function here re-serialises what it was given: a value that is not replaced keeps its very bytes, numbers,
escapes and spaces included. What is not valid JSON raises `NotJSON` and nothing else, however deep or odd it is; only
the encoding of a part is not looked at before the part itself is decoded.
The fast path is msgspec's validating scanner; it refuses lone surrogates (`"\\ud83d"`, which JavaScript clients send
when they cut a text inside an emoji), so a slower scanner of our own stands behind it and reads what `json` reads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import msgspec

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_OPENING = (ord("{"), ord("["))
_CLOSING = (ord("}"), ord("]"))


_COPIED = 64 * 1024
"""Bytes of a document up to which a copy to compare with takes less time than looking for the places of its members."""

_QUOTES_A_VALUE = 4  # a key and a text


class NotJSON(ValueError):
    """The bytes are no JSON document of the kind that was asked for."""


class TooManyValues(NotJSON):
    """The document would take too long to be looked into."""


class Span(NamedTuple):
    """Where the value of one member of an object stands: `document[start:stop]`."""

    key: str
    start: int
    stop: int


def value(document: bytes) -> object:
    """The decoded value; a lone surrogate stays one in the `str`. Raises `NotJSON`."""
    try:
        return _VALUE.decode(document)
    except (msgspec.DecodeError, RecursionError):
        return _tolerant(document)


def is_text(document: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    if document.isascii():
        return True
    try:
        document.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def has_more_values(document: bytes, most: int) -> bool:
    """Whether there are more values than so many, by the commas between them; quick for any document.

    Of bytes that are no JSON this says nothing.
    """
    if document.count(b",") < most:  # those within texts counted: so it is for nearly all
        return False
    bare = document.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in document else document
    if bare.count(b'"') > _QUOTES_A_VALUE * most:
        return True
    return sum(outside.count(b",") for outside in bare.split(b'"')[::2]) >= most


def members(document: bytes) -> dict[str, bytes]:
    """Key -> raw value of an object, in the client's order; of a repeated key the last counts. Raises `NotJSON`."""
    try:
        return {key: bytes(raw) for key, raw in _MEMBERS.decode(document).items()}
    except (msgspec.DecodeError, RecursionError):
        return {span.key: document[span.start : span.stop] for span in spans(document)}


def elements(document: bytes) -> list[bytes]:
    """The raw values of an array. Raises `NotJSON`."""
    try:
        return list(map(bytes, _ELEMENTS.decode(document)))
    except (msgspec.DecodeError, RecursionError):
        if not isinstance(_tolerant(document), list):
            raise NotJSON("not a JSON array") from None
        return list(_scan_elements(document))


def spans(document: bytes, most: int | None = None) -> list[Span]:
    """The members of an object with the places of their values, repeated keys included.

    Raises `NotJSON`, and `TooManyValues` for more than `most` members.
    """
    return _spans(document, _split(document), most)


def _spans(document: bytes, known: Mapping[str, bytes], most: int | None = None) -> list[Span]:
    if _is_compact(document, known) and (most is None or len(known) <= most):
        return _compact_spans(known)
    found = list(islice(_scan_members(document, known), None if most is None else most + 1))
    if most is not None and len(found) > most:
        raise TooManyValues("too many members")
    return found


def distinct(document: bytes, most: int) -> dict[str, bytes] | None:
    """Key -> raw value of an object, in the client's order; None of an object that repeats a key.

    Raises `NotJSON`, and `TooManyValues` for more than `most` members.
    """
    known = _split(document)
    if len(known) <= most and (_is_compact(document, known) or _is_spaced(document, known)):
        return known
    found = _spans(document, known, most)
    fields = {span.key: document[span.start : span.stop] for span in found}
    return fields if len(fields) == len(found) else None


def start_of(key: str, document: bytes, fields: Mapping[str, bytes]) -> int:
    """Where the value of this member begins, in an object that has just these."""
    return next(span.start for span in _spans(document, fields) if span.key == key)


class Places(msgspec.Struct, frozen=True, dict=True, eq=False):
    """Where the values of an object's members stand, found when it is asked for: most objects are left as they are.

    `names` are those of the members. `document[start:stop]` is left out of the search: elements of an array, with their
    commas.
    """

    document: bytes
    names: tuple[str, ...]
    start: int = 0
    stop: int = 0

    @cached_property
    def found(self) -> tuple[Span, ...]:
        """The members in their order."""
        start, left_out = self.start, self.stop - self.start
        if not left_out:
            return tuple(spans(self.document))
        rest = self.document[:start] + self.document[self.stop :]
        moved = [
            Span(key, first + left_out * (first >= start), stop + left_out * (stop >= start))
            for key, first, stop in spans(rest)
        ]
        return tuple(moved)

    def exchanged(self, values: Mapping[str, bytes]) -> bytes:
        """The object with the values of these members exchanged, as by `replace`."""
        is_found = not values.keys().isdisjoint(self.names)  # else nothing is looked for
        return _exchanged(self.document, self.found if is_found else (), values, is_empty=not self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.found == other.found

    def __hash__(self) -> int:
        return hash(self.found)


def replace(document: bytes, values: Mapping[str, bytes]) -> bytes:
    """The object with the values of these members exchanged; a member that it lacks is put first.

    Every other byte stays. Of a repeated key each occurrence is exchanged, so that no reader sees the old value.
    """
    found = spans(document)
    return _exchanged(document, found, values, is_empty=not found)


def _exchanged(
    document: bytes, found: Sequence[Span], values: Mapping[str, bytes], *, is_empty: bool
) -> bytes:
    """The same where the places of the members that it has of these are known."""
    pieces: list[bytes | memoryview] = []
    position = document.index(b"{") + 1
    whole = memoryview(document)  # of a long document each piece is copied once
    pieces.append(whole[:position])
    missing = [key for key in values if all(span.key != key for span in found)]
    added = b",".join(encode(key) + b":" + values[key] for key in missing)
    pieces.append(added if is_empty or not added else added + b",")
    for span in found:
        if span.key in values:
            pieces += (whole[position : span.start], values[span.key])
            position = span.stop
    pieces.append(whole[position:])
    return b"".join(pieces)


def remove(document: bytes, key: str) -> bytes:
    """The object without this member; the object itself when it has none such."""
    kept = [f for f in _scan_fields(document, spans(document)) if f.key != key]
    return b"{" + b",".join(document[field.start : field.stop] for field in kept) + b"}"


def encode(value: object) -> bytes:
    """A compact JSON document for a decoded value. Lone surrogates, which UTF-8 cannot carry, become escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def canonical(text: str) -> str:
    """The same text for every way of writing one JSON object or array; any other text as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.dumps(value(text.encode("utf-8")), sort_keys=True, separators=(",", ":"))
    except (NotJSON, UnicodeEncodeError, RecursionError):
        return text


def array(values: Sequence[bytes]) -> bytes:
    """A JSON array of raw values."""
    return b"[" + b",".join(values) + b"]"


def object_of(members: Mapping[str, bytes]) -> bytes:
    """A JSON object of raw values."""
    return b"{" + b",".join(encode(key) + b":" + raw for key, raw in members.items()) + b"}"


def _tolerant(document: bytes) -> object:
    try:
        return json.loads(document.decode("utf-8"))
    except (ValueError, RecursionError) as cause:
        raise NotJSON(f"not a JSON document: {type(cause).__name__}") from cause


def _split(document: bytes) -> dict[str, bytes]:
    """Key -> raw value of an object, the last of a repeated key; nothing of one that the fast scanner refuses."""
    try:
        known = _MEMBERS.decode(document)
    except (msgspec.DecodeError, RecursionError):
        if not isinstance(_tolerant(document), dict):
            raise NotJSON("not a JSON object") from None
        return {}
    return dict(zip(known, map(bytes, known.values()), strict=True))


def _is_compact(document: bytes, known: Mapping[str, bytes]) -> bool:
    """Whether an object is written without a space between its members, as most clients do, and with plain keys.

    It has just the bytes that its members need: a space, an escape in a key or a repeated key would be more.
    """
    # Beside each key and value two quotes, a colon, and a comma or the opening bracket; behind all the closing one.
    return sum(map(len, (*known, *known.values()))) + 4 * len(known) + 1 == len(document)


def _is_spaced(document: bytes, known: Mapping[str, bytes]) -> bool:
    """Whether an object is written as Python's `json` does, which many clients use, and with plain keys, each once."""
    if len(document) > _COPIED:
        return False
    members = [b'"%b": %b' % (key.encode(), raw) for key, raw in known.items()]
    return document == b"{%b}" % b", ".join(members)


def _compact_spans(known: Mapping[str, bytes]) -> list[Span]:
    found, stop = list[Span](), 0
    for key, raw in known.items():
        start = stop + len(key) + 4
        stop = start + len(raw)
        found.append(Span(key, start, stop))
    return found


def _scan_members(document: bytes, known: Mapping[str, bytes]) -> Iterator[Span]:
    """Walks a valid object. `known` gives the length of most values, so that long ones are not scanned again."""
    position = _skip(document, document.index(b"{") + 1)
    while document[position] != _CLOSING[0]:
        name = _STRING.match(document, position)
        assert name is not None
        written = name.group()
        key = str(json.loads(written)) if b"\\" in written else written[1:-1].decode()
        start = _skip(document, _skip(document, name.end()) + 1)
        stop = _stop_of(document, start, known.get(key))
        yield Span(key, start, stop)
        position = _skip(document, stop)
        if document[position] == ord(","):
            position = _skip(document, position + 1)


def _stop_of(document: bytes, start: int, known: bytes | None) -> int:
    if known is not None:
        stop = start + len(known)
        # With a repeated key the value may be another's prefix (1 and 12): then no delimiter follows.
        if document.startswith(known, start) and document[_skip(document, stop)] in b",}":
            return stop
    return _end_of_value(document, start)


def _scan_fields(document: bytes, found: Sequence[Span]) -> Iterator[Span]:
    """Like the spans, but from the key's opening quote to the value's end."""
    position = document.index(b"{") + 1
    for span in found:
        yield Span(span.key, document.index(b'"', position), span.stop)
        position = span.stop


def _scan_elements(document: bytes) -> Iterator[bytes]:
    position = _skip(document, document.index(b"[") + 1)
    while document[position] != _CLOSING[1]:
        stop = _end_of_value(document, position)
        yield document[position:stop]
        position = _skip(document, stop)
        if document[position] == ord(","):
            position = _skip(document, position + 1)


def _end_of_value(document: bytes, start: int) -> int:
    if document[start] in _OPENING:
        return _end_of_container(document, start)
    scalar = (_STRING if document[start] == ord('"') else _SCALAR).match(document, start)
    assert scalar is not None
    return scalar.end()


def _end_of_container(document: bytes, start: int) -> int:
    depth = 0
    for token in _STRUCTURE.finditer(document, start):
        first = document[token.start()]
        depth += (first in _OPENING) - (first in _CLOSING)
        if not depth:
            return token.end()
    raise NotJSON("unclosed bracket")


def _skip(document: bytes, position: int) -> int:
    space = _SPACE.match(document, position)
    return space.end() if space else position
