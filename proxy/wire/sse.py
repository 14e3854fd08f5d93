"""Server-sent events, read while they are relayed.

Rules. `feed` and `end` of an `Observer` return the very bytes that they were given; a `UsageFilter` leaves
out usage-only events and alters, adds or reorders nothing else. Neither what comes out nor what was read
depends on how the stream was cut into chunks. No byte is looked at again because later bytes arrived: an
unfinished event is kept, and read once, when it is complete. Nothing here raises, whatever the bytes; what
cannot be read is passed on. At most `max_event_bytes` of an event are kept; a longer one is passed on unread
as it comes.
"""

import json
import re
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from proxy.wire.usage import Usage, read_usage

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Default bound of one event, in bytes. Real ones reach a few million where images come in base64."""

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A
_CR: Final = 0x0D
_COLON: Final = 0x3A
_LINE_ENDS: Final = (_LF, _CR)

_LINE_END = re.compile(rb"[\r\n]")
# A line end and the first byte of the blank line after it. If that byte is a CR, an LF that belongs to it may
# follow, perhaps in the next chunk; leaving it out in every case keeps the length of an event independent of
# chunk borders.
_BLANK_LINE = re.compile(rb"\n[\r\n]|\r(?:\r|\n[\r\n])")
_DATA_LINE = re.compile(rb"(?:\A|[\r\n])data(?:[:\r\n]|\Z)")


class _State(Enum):
    """What the next byte belongs to."""

    START = auto()  # the stream's first bytes, which may be a byte order mark
    BORDER = auto()  # the first line of something new
    COMMENT = auto()  # an unfinished comment line that stands before an event
    EVENT = auto()  # an unfinished event
    OVERSIZE = auto()  # an unfinished event that is too long to be read


class _Kind(Enum):
    """What a piece of the stream is."""

    EVENT = auto()  # a whole event
    OVERSIZE = auto()  # the beginning of an event that is not read; longer than the bound
    PASSED = auto()  # nothing to read: a comment or blank line, more of an oversize event, a byte order mark
    TAIL = auto()  # the LF of the CR that ended the piece before


class _Piece(NamedTuple):
    kind: _Kind
    raw: bytes


class _Splitter:
    """Cuts the stream into pieces at the borders of events; the pieces joined are the stream.

    The grammar is that of the HTML standard, "Parsing an event stream": lines end with LF, CRLF or CR, in any
    mixture, an event ends with a blank line, and one byte order mark may open the stream.
    """

    __slots__ = ("_held", "_lf_only", "_limit", "_previous", "_state")

    def __init__(self, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        self._held = bytearray()
        self._state = _State.START
        self._previous = 0
        self._lf_only = False  # the present chunk has no CR in it

    @property
    def at_border(self) -> bool:
        """Whether the next byte begins something new (or is the LF of a CR that ended what came before)."""
        return self._state is _State.BORDER

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def skip(self, chunk: bytes) -> None:
        """Goes past whole events that were looked at elsewhere; only at a border."""
        self._previous = chunk[-1]

    def cut(self, chunk: bytes) -> list[_Piece]:
        """The pieces that this chunk completes."""
        pieces: list[_Piece] = []
        if self._state is _State.START:
            chunk = self._open(chunk, pieces)
        self._lf_only = chunk.find(b"\r") < 0
        position = 0
        while position < len(chunk):
            previous = chunk[position - 1] if position else self._previous
            if self._state is _State.BORDER and chunk[position] in _LINE_ENDS:
                tail = previous == _CR and chunk[position] == _LF
                kind = _Kind.TAIL if tail else _Kind.PASSED
                pieces.append(_Piece(kind, chunk[position : position + 1]))
                position += 1
            else:
                position = self._advance(chunk, position, previous, pieces)
        if chunk:
            self._previous = chunk[-1]
        return pieces

    def end(self) -> list[_Piece]:
        """The piece that no blank line has ended, if any."""
        kind = _Kind.EVENT if self._state is _State.EVENT else _Kind.PASSED
        pieces = [_Piece(kind, bytes(self._held))] if self._held else []
        self._held = bytearray()
        self._state = _State.BORDER
        return pieces

    def _open(self, chunk: bytes, pieces: list[_Piece]) -> bytes:
        """The stream's first bytes without a byte order mark, which becomes a piece of its own."""
        first = bytes(self._held) + chunk
        self._held = bytearray()
        if len(first) < len(_BOM) and _BOM.startswith(first):
            self._held += first
            return b""
        self._state = _State.BORDER
        if first.startswith(_BOM):
            pieces.append(_Piece(_Kind.PASSED, _BOM))
        return first.removeprefix(_BOM)

    def _advance(self, chunk: bytes, position: int, previous: int, pieces: list[_Piece]) -> int:
        """Takes what belongs to the present comment or event; returns the position where that ends."""
        if self._state is _State.BORDER:
            self._state = _State.COMMENT if chunk[position] == _COLON else _State.EVENT
        end = self._find_end(chunk, position, previous)
        if end < 0:
            self._take(chunk[position:], pieces, finished=False)
            return len(chunk)
        self._take(chunk[position:end], pieces, finished=True)
        self._state = _State.BORDER
        return end

    def _find_end(self, chunk: bytes, position: int, previous: int) -> int:
        """Just past the end of the present comment or event; -1 when that is not in this chunk."""
        if self._state is _State.COMMENT:
            found = _LINE_END.search(chunk, position)
        elif previous in _LINE_ENDS and chunk[position] in (_CR, previous):  # but CR and LF are one line end
            return position + 1
        elif self._lf_only:  # A search for bytes is several times as fast as one for a pattern.
            at = chunk.find(b"\n\n", position)
            return at + 2 if at >= 0 else -1
        else:
            found = _BLANK_LINE.search(chunk, position)
        return found.end() if found else -1

    def _take(self, span: bytes, pieces: list[_Piece], *, finished: bool) -> None:
        if self._state is not _State.EVENT:
            pieces.append(_Piece(_Kind.PASSED, span))
            return
        if self._held or not finished:
            self._held += span
        size = len(self._held) or len(span)
        if not finished and size <= self._limit:
            return
        kind = _Kind.EVENT if size <= self._limit else _Kind.OVERSIZE
        pieces.append(_Piece(kind, bytes(self._held) or span))
        self._held = bytearray()
        self._state = _State.OVERSIZE  # So it is if anything more of it comes.


class _Frame(msgspec.Struct):
    """The members of a data frame that are looked at; any of them may be any JSON value."""

    choices: object = None
    usage: object = None
    error: object = None
    error_type: object = None
    x_groq: object = None

    @property
    def choice_list(self) -> list[object]:
        return self.choices if isinstance(self.choices, list) else []

    def find_usage(self) -> Usage | None:
        """From its usual place, from Moonshot's (in the choice), or from Groq's (in its own object)."""
        objects = (*self.choice_list[:1], self.x_groq)
        places = (self.usage, *(_member(value, "usage") for value in objects))
        return next((usage for usage in map(read_usage, places) if usage), None)

    def failed(self) -> bool:
        """Whether this is an error as the OpenAI client sees it: `error` is neither null, false nor empty.

        Groq has it in its own object; Vercel's gateway sends `error_type` instead, in a frame without
        `choices`.
        """
        return bool(self.error or _member(self.x_groq, "error") or (self.error_type and self.choices is None))

    def finishes(self) -> bool:
        """Whether a choice gives a finish_reason; an empty one, which some put into every chunk, is none."""
        return any(_member(choice, "finish_reason") for choice in self.choice_list)

    def starts(self) -> bool:
        """Whether this is more than a frame without choices or with but a role; the unknown is more."""
        return not isinstance(self.choices, list) or any(map(_says_something, self.choices))


class _PlainChoice(msgspec.Struct):
    finish_reason: None = None
    usage: None = None


class _PlainFrame(msgspec.Struct):
    """A frame that fits this type holds nothing of what is looked for, only a piece of the answer."""

    choices: list[_PlainChoice]
    usage: None = None
    error: None = None
    x_groq: None = None


_FRAME = msgspec.json.Decoder(_Frame)
_PLAIN_FRAME = msgspec.json.Decoder(_PlainFrame)


_MANY_BYTES: Final = 2048
"""A chunk of so many bytes may hold several events."""


def _alike(block: bytes) -> int:
    """How many events these are, where none differs from the first but in one text, and that one is plain; else 0.

    So it is with most streams, and what is looked through is then the texts alone.
    """
    text = block.find(_TEXT) + len(_TEXT)
    end = block.find(b'"', text)
    stop = block.find(b"\n\n", end) + 2
    behind, before = block[end:stop], block[:text]
    if text < len(_TEXT) or end < 0 or stop < 2 or not block.endswith(behind):
        return 0
    data = _only_data(block[:stop])
    if data is None or not _is_plain(data):
        return 0
    begun = block.split(behind)[:-1]
    texts = [each[text:] for each in begun if each.startswith(before)]
    is_so = len(texts) == len(begun) and _are_texts(b"\n".join(texts), len(texts))
    return len(texts) if is_so else 0


_TEXT: Final = b'content":"'
"""What stands before the text of a piece, in `reasoning_content` too."""


def _are_texts(lines: bytes, count: int) -> bool:
    """Whether each of so many lines is what may stand between two quotes: no quote ends it, and none is left open."""
    if lines.count(b"\n") != count - 1 or b"\r" in lines:
        return False
    if b"\\" in lines:
        lines = lines.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"' not in lines and b"\\\n" not in lines and not lines.endswith(b"\\")


def _plain(block: bytes) -> int:
    """How many events these are, where each is one line of data and has no member that is looked for but as null; else
    0.

    A few searches through all of them, in place of reading each. What only looks like such a member is not plain, nor
    is a letter in an escape, which could be one of its name.
    """
    events = block.count(b"\n\n")
    if (
        block.count(b"\n") != 2 * events
        or block.count(b"\n\ndata:") != events - 1
        or not block.startswith(b"data:")
    ):
        return 0
    if any(found in block for found in _NEVER_PLAIN):
        return 0
    are_null = all(
        block.count(name) in (block.count(name + b":null"), block.count(name + b": null"))
        for name in _NULL_IF_PLAIN
    )
    return events if are_null else 0


_NEVER_PLAIN: Final = (b"\r", b"error", b"x_groq", b"[DONE]", b"\\u00")
_NULL_IF_PLAIN: Final = (b'usage"', b'finish_reason"')


class Observer:
    """Watches the stream of an answer and remembers what must be known at its end.

    These may be read at any time:
    `usage`: the last believable one of the stream, since some servers put a running one into every chunk
    (B52);
    `done`: whether `data: [DONE]` came;
    `finished`: whether a choice gave a finish_reason;
    `error`: as it came, the data of the first frame that reports an error (mostly JSON with an `error`
    member), or the value of an `error:` field (llama.cpp until late 2025; the bare error object);
    `frames`: the number of events with data;
    `started`: whether more came than comments, frames without choices and frames with but a role. An answer
    that fails before can be asked for again as if nothing had been said.
    """

    __slots__ = ("_limit", "_splitter", "done", "error", "finished", "frames", "started", "usage")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._splitter = _Splitter(max_event_bytes)
        self.usage: Usage | None = None
        self.done = False
        self.finished = False
        self.error: bytes | None = None
        self.frames = 0
        self.started = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished event that are kept now; never more than `max_event_bytes`."""
        return self._splitter.held_bytes

    def feed(self, chunk: bytes) -> bytes:
        """Reads the next bytes of the stream, cut anywhere, and returns those to relay: the same."""
        return self._feed_many(chunk) if len(chunk) >= _MANY_BYTES and self.started else self._feed_few(chunk)

    def _feed_many(self, chunk: bytes) -> bytes:
        """The same where a chunk may hold many events, of which nearly all are pieces of an answer and no more."""
        start = 0 if self._splitter.at_border else chunk.find(b"\n\n") + 2
        stop = chunk.rfind(b"\n\n") + 2
        if not 0 <= start < stop - _MANY_BYTES // 2 or start == 1:
            return self._feed_few(chunk)
        first = self._feed_few(chunk[:start]) if start else b""
        block = chunk[start:stop]
        may_be = self._splitter.at_border and len(block) <= self._limit
        events = (_alike(block) or _plain(block)) if may_be else 0
        if not events:
            return first + self._feed_few(chunk[start:])
        self._pass(block, events)
        return first + block + (self._feed_few(chunk[stop:]) if stop < len(chunk) else b"")

    def _pass(self, block: bytes, events: int) -> None:
        """Goes past so many events that hold nothing of what is looked for."""
        self.frames += events
        self._splitter.skip(block)

    def _feed_few(self, chunk: bytes) -> bytes:
        data = self._lone_data(chunk)
        if data is not None:
            self._read_data(data)
        else:
            for piece in self._splitter.cut(chunk):
                self._read(piece)
        return chunk

    def end(self) -> bytes:
        """Reads the last event if no blank line ended it, and returns the bytes still to relay: none.

        To be called also when the stream broke off; what was cut short is then not readable, and passed over.
        """
        for piece in self._splitter.end():
            self._read(piece)
        return b""

    def _lone_data(self, chunk: bytes) -> bytes | None:
        """The data of a chunk that is one whole event of one line, as nearly all are: nothing to cut then."""
        if not self._splitter.at_border or len(chunk) > self._limit:
            return None
        data = _only_data(chunk)
        if data is not None:
            self._splitter.skip(chunk)
        return data

    def _read(self, piece: _Piece) -> bool:
        """Learns what a piece tells; whether it is a usage-only event."""
        match piece.kind:
            case _Kind.EVENT:
                return self._read_event(piece.raw)
            case _Kind.OVERSIZE:
                self.frames += _has_data(piece.raw, self._limit)
                self.started = True
                return False
            case _Kind.PASSED | _Kind.TAIL:
                return False

    def _read_event(self, raw: bytes) -> bool:
        data = _only_data(raw)
        if data is None:
            data, failure = _fields(raw)
            if failure:
                self.error = self.error or failure
                self.started = True
        return data is not None and self._read_data(data)

    def _read_data(self, data: bytes) -> bool:
        self.frames += 1
        if self.started and _is_plain(data):
            return False
        if data.startswith(b"[DONE]"):  # The comparison of the OpenAI client.
            self.done = self.started = True
            return False
        frame = _decode(data)
        if frame is None:
            self.started = self.started or bool(data.strip())
            return False
        failed = frame.failed()
        if failed:
            self.error = self.error or data
        self.finished = self.finished or frame.finishes()
        self.started = self.started or failed or frame.starts()
        self.usage = frame.find_usage() or self.usage
        return frame.usage is not None and not failed and _says_nothing(frame.choices)


class UsageFilter(Observer):
    """An observer that takes out the usage-only events, for a client that did not ask for them (B83).

    A usage-only event is one whose data is a JSON object with an empty list of `choices`, or one of choices that
    have an empty `delta` and nothing else (LiteLLM's proxy), a `usage` that is not null, and no error. It goes with
    its `event:`, `id:` and other fields and with its blank line; comment lines inside it stay. So does every byte
    outside: usage beside choices, `[DONE]`, and the `"usage":null` that OpenAI puts into each other chunk. Whatever
    else the server says in a usage-only event goes with it (llama.cpp: `timings`).

    Bytes are held back while they are an unfinished event, of which a client could make nothing either.
    Comment lines before an event, whole events and oversize ones (these are no usage-only events) are
    returned at once.
    """

    __slots__ = ("_removed",)

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes)
        self._removed = False

    def _pass(self, block: bytes, events: int) -> None:
        super()._pass(block, events)
        self._removed = False

    def _feed_few(self, chunk: bytes) -> bytes:
        data = self._lone_data(chunk)
        if data is not None:
            self._removed = self._read_data(data)
            return b"" if self._removed else chunk
        return b"".join([self._sift(piece) for piece in self._splitter.cut(chunk)])

    def end(self) -> bytes:
        """Returns what was still held back, unless that is a usage-only event that lacks its blank line."""
        return b"".join([self._sift(piece) for piece in self._splitter.end()])

    def _sift(self, piece: _Piece) -> bytes:
        usage_only = self._read(piece)
        if piece.kind is not _Kind.TAIL:  # A tail goes the way of what it belongs to.
            self._removed = usage_only
        return _comments(piece.raw) if self._removed else piece.raw


def _has_data(raw: bytes, stop: int) -> bool:
    """Whether a line of data begins in the first bytes of an event, which may be millions."""
    # Where none begins, a search for bytes tells that in a hundredth of the time of one for a pattern.
    found = [at for line in (b"\ndata", b"\rdata") if (at := raw.find(line, 0, stop)) >= 0]
    start = 0 if raw.startswith(b"data") else min(found, default=stop)
    return _DATA_LINE.search(raw, start, stop) is not None


def _only_data(event: bytes) -> bytes | None:
    """The data of an event that is a single `data:` line and a blank one; None of any other bytes."""
    if not event.startswith(b"data:"):
        return None
    lines = event.splitlines()  # For bytes that is at LF, CRLF and CR only.
    if len(lines) != 2 or lines[1]:
        return None
    return lines[0][5:].removeprefix(b" ")


def _is_plain(data: bytes) -> bool:
    """Whether a frame holds nothing that is looked for. Validating it is as fast as two searches for keys."""
    try:
        _PLAIN_FRAME.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _fields(raw: bytes) -> tuple[bytes | None, bytes | None]:
    """The data of an event, None without any, and the value of its `error:` field."""
    data: list[bytes] = []
    failure: bytes | None = None
    for line in raw.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"error":
            failure = value.removeprefix(b" ")
    return (b"\n".join(data) if data else None), failure


def _comments(raw: bytes) -> bytes:
    return b"".join([line for line in raw.splitlines(keepends=True) if line.startswith(b":")])


def _decode(data: bytes) -> _Frame | None:
    """The frame; None when it is no JSON object. Takes what `json` takes, such as lone surrogates and NaN."""
    try:
        return _FRAME.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return _Frame(**{name: value.get(name) for name in _Frame.__struct_fields__})


def _member(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _says_nothing(choices: object) -> bool:
    """Whether there is no choice, or none that gives or ends anything."""
    return isinstance(choices, list) and all(
        isinstance(choice, dict)
        and choice.get("delta") == {}
        and all(value is None for key, value in choice.items() if key not in ("index", "delta"))
        for choice in choices
    )


def _says_something(choice: object) -> bool:
    """Whether a choice of a frame gives more than the role: any text, call or reason to stop."""
    if not isinstance(choice, dict) or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(delta) or "delta" not in choice
    return any(value for key, value in delta.items() if key != "role")
