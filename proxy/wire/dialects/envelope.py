"""What an error answer says, out of whatever it is wrapped in.

Rules. Only members that carry a server's own words are read (`_SAYS`), never one in which it repeats the request. A
text that is JSON is opened, as often as it is wrapped; so is JSON within prose, and an event of a stream. Nothing
raises, whatever the bytes, and the work is bounded: of a large body only the beginning is looked at, of a long text
the beginning and the end, where errors stand.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from proxy.context import rawjson

MOST_BYTES: Final = 131_072
"""Bytes of a body that are read; errors have a few hundred, and some repeat the request after them."""

_MOST_TEXT: Final = 12_000  # characters of all texts together
_HEAD: Final = 5_000  # characters of one text
_TAIL: Final = 3_000
_MOST_NODES: Final = 400
_MOST_MEMBERS: Final = 64
_LONGEST_CODE: Final = 64
_LARGEST_CODE: Final = 1_000_000
_DEPTH: Final = 32

_SAYS: Final = frozenset(
    {
        "error",
        "errors",
        "message",
        "msg",
        "detail",
        "details",
        "error_message",
        "errormessage",
        "error_msg",
        "error_description",
        "innererror",
        "metadata",
        "raw",
        "cause",
    }
)
_NAMES_IT: Final = frozenset(
    {"code", "type", "status", "error_type", "error_code", "internal_code", "provider_error_code"}
)

_EDGES: Final = " \t\r\n\ufeff\x00"
_HTML: Final = re.compile(r"<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_EVENT: Final = re.compile(r"(?:data|event|id|retry)?:|error: ?\{")
_EVENT_BORDER: Final = re.compile(r"\n\n|\r\n\r\n|\r\r")
_EVENT_DATA: Final = re.compile(r"^(?:data|error): ?(.*)$", re.MULTILINE)
_OPENING: Final = re.compile(r'\{\s{0,20}"|\[\s{0,20}\{')
_MEMBER: Final = re.compile(
    r'"(error|message|msg|detail|error_message|error_msg|raw)"\s{0,20}:\s{0,20}"([^"\\]*+(?:\\.[^"\\]*+)*+)',
    re.DOTALL | re.IGNORECASE,
)
_CODE: Final = re.compile(
    r'"(?:code|type|status|error_type)"\s{0,20}:\s{0,20}"?([\w.-]{1,64})', re.IGNORECASE
)
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server says: texts made plain, codes in lower case, whole numbers by the name of their member."""

    texts: tuple[str, ...]
    codes: frozenset[str]
    numbers: Mapping[str, int]


def read(body: bytes) -> Refusal:
    """What the body of an error answer says."""
    reader = _Reader()
    reader.take(body[:MOST_BYTES].decode("utf-8", "replace"), 0)
    return reader.refusal()


def read_value(value: object) -> Refusal:
    """What a decoded body or frame says."""
    reader = _Reader()
    reader.walk(value, 0)
    return reader.refusal()


class _Reader:
    """Collects what is said, within what is left of the bounds."""

    __slots__ = ("_codes", "_nodes", "_numbers", "_room", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._codes: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._nodes = _MOST_NODES
        self._room = _MOST_TEXT

    def refusal(self) -> Refusal:
        return Refusal(tuple(self._texts), frozenset(self._codes), MappingProxyType(self._numbers))

    def take(self, text: str, depth: int) -> None:
        """Reads a text, which may be any of the wrappings."""
        text = text.strip(_EDGES)
        if not text or depth > _DEPTH or self._room <= 0:
            return
        if text[0] in '{["':
            self._take_json(text, depth)
        elif not _HTML.match(text):
            events = list(_events(text)) if _EVENT.match(text) else []
            for data in events:
                self.take(data, depth + 1)
            if not events:
                self._take_prose(text, depth)

    def walk(self, value: object, depth: int) -> None:
        """Reads a decoded value."""
        self._nodes -= 1
        if self._nodes < 0 or depth > _DEPTH:
            return
        if isinstance(value, str):
            self.take(value, depth + 1)
        elif isinstance(value, list):
            for each in islice(value, _MOST_MEMBERS):
                self.walk(each, depth + 1)
        elif isinstance(value, dict):
            self._walk_object(value, depth)

    def _walk_object(self, value: Mapping[str, object], depth: int) -> None:
        for key, member in islice(value.items(), _MOST_MEMBERS):
            name = key.lower()
            if name in _SAYS:
                self.walk(member, depth + 1)
            if name in _NAMES_IT:
                self._take_code(member)
            self._take_number(name, member)
        self._walk_answer(value, depth)

    def _walk_answer(self, value: Mapping[str, object], depth: int) -> None:
        """The places in an answer, or a frame of one, where a server speaks and not the model."""
        choices = value.get("choices")
        for choice in islice(choices, 4) if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self.walk(choice.get("error"), depth + 1)
                self._take_code(choice.get("finish_reason"))
        groq = value.get("x_groq")
        if isinstance(groq, dict):
            self.walk(groq.get("error"), depth + 1)
        usage = value.get("usage")
        if isinstance(usage, dict):
            for name in ("prompt_tokens", "completion_tokens"):
                self._take_number(name, usage.get(name))

    def _take_code(self, member: object) -> None:
        if isinstance(member, bool) or len(self._codes) >= _MOST_MEMBERS:
            return
        if isinstance(member, str):
            self._codes.add(member[:_LONGEST_CODE].lower())
        elif isinstance(member, int) and abs(member) < _LARGEST_CODE:
            self._codes.add(str(member))

    def _take_number(self, name: str, member: object) -> None:
        if isinstance(member, int) and not isinstance(member, bool) and len(self._numbers) < _MOST_MEMBERS:
            self._numbers.setdefault(name, member)

    def _take_json(self, text: str, depth: int) -> None:
        try:
            value = rawjson.value(text.encode("utf-8", "replace"))
        except rawjson.NotJSON:
            self._take_broken(text, depth)
        else:
            self.walk(value, depth + 1)

    def _take_broken(self, text: str, depth: int) -> None:
        """JSON that was cut off, or prose that begins like it."""
        members = [found.group(2) for found in islice(_MEMBER.finditer(text), _MOST_MEMBERS)]
        if text[0] == '"' or not members:
            self._take_prose(text, depth)
            return
        for member in members:
            self.take(_unescaped(member), depth + 1)
        for found in islice(_CODE.finditer(text), _MOST_MEMBERS):
            self._take_code(found.group(1))

    def _take_prose(self, text: str, depth: int) -> None:
        """A sentence. JSON in the middle of it is opened and taken out: it may repeat the request."""
        rest: list[str] = []
        inner: list[object] = []
        position = 0
        for opening in islice(_OPENING.finditer(text), 4):
            if opening.start() < position:
                continue
            try:
                value, stop = _DECODER.raw_decode(text, opening.start())
            except (ValueError, RecursionError):
                continue
            rest.append(text[position : opening.start()])
            inner.append(value)
            position = stop
        self._say(" ".join([*rest, text[position:]]))
        for value in inner:
            self.walk(value, depth + 1)

    def _say(self, text: str) -> None:
        shown = text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} ... {text[-_TAIL:]}"
        plained = plain(shown)[: max(0, self._room)]
        if plained and plained not in self._texts:
            self._texts.append(plained)
            self._room -= len(plained)


def _events(text: str) -> Iterator[str]:
    for event in islice(_EVENT_BORDER.split(text), 16):
        lines = [found.group(1).strip("\r") for found in _EVENT_DATA.finditer(event.replace("\r\n", "\n"))]
        if lines:
            yield "\n".join(lines)


def _unescaped(inside: str) -> str:
    """The text of a JSON string, given what stands between its quotation marks, perhaps cut off."""
    try:
        return str(_DECODER.decode(f'"{inside}"'))
    except ValueError:
        return inside.replace('\\"', '"').replace("\\\\", "\\")


# --- plain text ---------------------------------------------------------------------------------------------

_ESCAPE: Final = re.compile(r"\\{1,8}(?:u00([0-7][0-9a-fA-F])|[nrt])")
_SIGNS: Final = str.maketrans(
    {
        **dict.fromkeys('`"\\“”„«»', None),
        **dict.fromkeys("‘’ʼ´", "'"),
        **dict.fromkeys("‐‑–—−", "-"),
    }
)
_THOUSANDS: Final = re.compile(
    r"(?<![\d.,_'\u00a0\u202f])\d{1,3}(?:([,_'\u00a0\u202f])\d{3}(?:\1\d{3}){0,3}|(?:\.\d{3}){2,4})"
    r"(?![,._'\u00a0\u202f]?\d)",
    re.ASCII,
)
_NO_DIGIT: Final = re.compile(r"[^0-9]")


def plain(text: str) -> str:
    """The text as the patterns expect it: lower case, single spaces, one kind of apostrophe and dash.

    Other quotation marks and left-over escapes are gone, and 131,072 is 131072. One full stop is a decimal point.
    """
    text = _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)) if found.group(1) else " ", text)
    text = text.translate(_SIGNS)
    text = _THOUSANDS.sub(lambda found: _NO_DIGIT.sub("", found.group()), text)
    return " ".join(text.split()).lower()
