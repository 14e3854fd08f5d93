"""A conversation over the client's own bytes: messages, rounds, turns, safe cuts.

Rules. A message is its raw bytes; everything else here is a reading of them and never written back. Reading is total:
any JSON value in any field gives a message, at worst one of kind OTHER with no text. Results belong to the nearest
preceding call by position, never to a set of ids, because ids repeat across turns. A cut is safe only just before an
assistant message or a real user message, and never inside a round.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, cast

import msgspec

from proxy.context import rawjson
from proxy.context.steps import Pace, Steps

TOOL_RESULTS = "TOOL_RESULTS"
"""Agents that speak a JSON protocol in plain chat send tool output as a user message with this beginning."""


class Kind(StrEnum):
    """What a message is to us; its role as the client wrote it stays in `Message.role`."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    RESULT = "result"
    OTHER = "other"


_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "system": Kind.SYSTEM,
        "developer": Kind.SYSTEM,
        "user": Kind.USER,
        "assistant": Kind.ASSISTANT,
        "tool": Kind.RESULT,
        "function": Kind.RESULT,
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant message; absent fields are empty. `is_custom`: its input is free text, no JSON."""

    id: str
    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """A content part that is no text: `kind` is the part's type, `source` its URL, data URI or id.

    `after` is the number of characters of the message's text that stand before it.
    """

    kind: str
    source: str
    detail: str
    after: int = 0


_MOST_LINKS: Final = 8
"""Places in chains that a message remembers; one that many conversations hold has more."""


class Message(msgspec.Struct, frozen=True, dict=True):
    """One element of `messages`: the raw bytes, and a reading of them."""

    raw: bytes
    kind: Kind
    role: str
    text: str
    name: str = ""
    calls: tuple[Call, ...] = ()
    answers: str = ""
    reasoning: str = ""
    refusal: str = ""
    media: tuple[Media, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """16 bytes over what reaches the model; reasoning is left out, since some clients drop it on resend."""
        return _hashed(self._identity)

    @property
    def _identity(self) -> bytes:
        said = _framed(self.role, self.text)
        if not (self.calls or self.media or self.refusal or self.name or self.answers):
            return said + _NO_MORE
        calls = [field for call in self.calls for field in _identity(call)]
        media = [
            field for part in self.media for field in (part.kind, part.source, part.detail, str(part.after))
        ]
        counts = (str(len(calls)), str(len(media)))
        return said + _framed(self.refusal, self.name, self.answers, *counts, *calls, *media)

    def make_digest(self) -> None:
        """Have it made now, rather than when it is asked for."""
        vars(self)["digest"] = _hashed(self._identity)

    def making_digest(self) -> Steps[None]:
        """The same in steps, unless it was made before."""
        if "digest" not in vars(self):
            vars(self)["digest"] = yield from _hashing(self._identity)

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes over the raw bytes, for whoever remembers something of this very message."""
        return hashlib.blake2b(self.raw, digest_size=16).digest()

    def remember_fingerprint(self, digest: bytes) -> None:
        """Take it as made elsewhere."""
        vars(self)["fingerprint"] = digest

    def link(self, before: bytes) -> tuple[bytes, str]:
        """The link behind this one in a chain of digests, and its name in hexadecimal digits.

        Found once: a message that is sent again mostly stands behind the same ones.
        """
        try:
            known: tuple[bytes, str] = self.__dict__["links"][before]
        except KeyError:
            known = self._linked(before)
        return known

    def _linked(self, before: bytes) -> tuple[bytes, str]:
        link = hashlib.blake2b(before + self.digest, digest_size=16).digest()
        links: dict[bytes, tuple[bytes, str]] = self.__dict__.setdefault("links", {})
        if len(links) >= _MOST_LINKS:
            links.clear()
        links[before] = made = (link, link.hex())
        return made

    @cached_property
    def around_content(self) -> tuple[bytes, bytes] | None:
        """The raw bytes before and behind the content's value, found once; None where there is no such, or several."""
        found = [span for span in rawjson.spans(self.raw) if span.key == "content"]
        return (self.raw[: found[0].start], self.raw[found[0].stop :]) if len(found) == 1 else None

    def rewritten(self, text: str) -> "Message | None":
        """The message that was made of this one by putting this text in the place of its content; the last one is kept,
        since a message that is sent again mostly gets the same text."""
        last: Message | None = vars(self).get("last_rewritten")
        return last if last is not None and last.text == text else None

    def remember_rewritten(self, made: "Message") -> None:
        """Keep it for the next time."""
        vars(self)["last_rewritten"] = made

    @property
    def is_user(self) -> bool:
        return self.kind is Kind.USER

    @property
    def is_assistant(self) -> bool:
        return self.kind is Kind.ASSISTANT

    @property
    def is_result(self) -> bool:
        return self.kind is Kind.RESULT


_ROUND: Final = 4.0
"""Microseconds in which one is found."""


def without_fingerprint(messages: Sequence[Message]) -> list[Message]:
    """Those whose fingerprint was not made yet; of a long message it takes its time."""
    return [message for message in messages if "fingerprint" not in message.__dict__]


class Round(NamedTuple):
    """The smallest run of messages that stays or goes together: `history[start:stop]`."""

    start: int
    stop: int


class Conversation(msgspec.Struct, frozen=True, dict=True):
    """The system head and the history. All indices below count from the start of the *history*."""

    head: tuple[Message, ...]
    history: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything, in the request's order."""
        return (*self.head, *self.history)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(_rounds(self.history))

    def finding_rounds(self) -> Steps[None]:
        """Has them found now, in steps, rather than when they are asked for."""
        if "rounds" in vars(self):
            return
        rounds, pace = list[Round](), Pace()
        for each in _rounds(self.history):
            rounds.append(each)
            if pace.is_over(_ROUND):
                yield
        vars(self)["rounds"] = tuple(rounds)

    @cached_property
    def safe_cuts(self) -> tuple[int, ...]:
        """Where history may be divided, ascending; 0 stands for "nothing is cut"."""
        return tuple(
            r.start for r in self.rounds if self.history[r.start].kind in (Kind.USER, Kind.ASSISTANT)
        )

    @cached_property
    def turn_starts(self) -> tuple[int, ...]:
        """The real user messages, each of which opens a turn."""
        user = Kind.USER
        return tuple([index for index, message in enumerate(self.history) if message.kind is user])

    @property
    def first_stop(self) -> int:
        """Where the first round ends, without finding all others; 0 when there is no history."""
        return _end_of_round(self.history, 0) if self.history else 0

    @cached_property
    def newest_round(self) -> Round:
        """The last round; empty at 0 when there is no history."""
        return self.rounds[-1] if self.rounds else Round(0, 0)

    @cached_property
    def unanswered_from(self) -> int:
        """Start of what the model has not answered: the newest round, with a round of calls before it that waits too.

        A word of the user's may come behind the results, from the client or because it was moved there.
        """
        last = next((r for r in reversed(self.rounds) if self.history[r.start].is_assistant), None)
        if last is None or not self.history[last.start].calls:
            return self.newest_round.start
        return min(last.start, self.newest_round.start)

    def call_answered_by(self, index: int) -> Call | None:
        """The call that the result at `index` answers: in its own round, by id, else by name, else the only one."""
        result = self.history[index]
        start = self._round_of(index).start
        calls = self.history[start].calls if start < index else ()
        by_id = [call for call in calls if call.id and call.id == result.answers]
        by_name = [call for call in calls if call.name and call.name == result.name]
        sole = calls if len(calls) == 1 else ()
        return next(iter([*by_id, *by_name, *sole]), None)

    def _round_of(self, index: int) -> Round:
        return self.rounds[bisect_right(self.rounds, index, key=lambda r: r.start) - 1]


def read(raws: Sequence[bytes]) -> Conversation:
    """The conversation of a request's raw messages, read afresh. Raises `rawjson.NotJSON`."""
    return conversation_of([read_message(raw) for raw in raws])


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """The conversation of messages in their order: the leading system messages are the head."""
    stop = 0
    while stop < len(messages) and messages[stop].kind is Kind.SYSTEM:
        stop += 1
    return Conversation(tuple(messages[:stop]), tuple(messages[stop:]))


def digest_of(*fields: str) -> bytes:
    """16 bytes over texts; the length before each keeps ("ab", "c") and ("a", "bc") apart."""
    return _hashed(_framed(*fields))


def _hashed(framed: bytes) -> bytes:
    return hashlib.blake2b(framed, digest_size=16).digest()


def _hashing(framed: bytes) -> Steps[bytes]:
    """The same in steps."""
    state, whole = hashlib.blake2b(digest_size=16), memoryview(framed)
    for start in range(0, len(whole), HASHED_AT_ONCE):
        if start:
            yield
        state.update(whole[start : start + HASHED_AT_ONCE])
    return state.digest()


def _framed(*fields: str) -> bytes:
    pieces: list[bytes] = []
    for field in fields:
        text = field.encode("utf-8", "surrogatepass")
        pieces += (len(text).to_bytes(8, "big"), text)
    return b"".join(pieces)


_NO_MORE: Final = _framed("", "", "", "0", "0")
"""The rest of what is hashed of a message that says a text and nothing else."""

HASHED_AT_ONCE: Final = 2**20
"""Bytes of a message that are hashed in one step."""


def read_message(raw: bytes) -> Message:
    """The reading of one raw message; total over JSON values.

    Raises `rawjson.NotJSON` for what is no JSON, or nested too deeply to be looked into.
    """
    value = rawjson.value(raw)
    if not isinstance(value, dict):
        return Message(raw, Kind.OTHER, "", "")
    fields: dict[str, object] = value
    role, content = fields.get("role"), fields.get("content")
    if len(fields) == 2 and isinstance(role, str) and isinstance(content, str):  # as most are
        return Message(raw, _kind(role, content), role, content)
    try:
        return _reading(raw, fields)
    except RecursionError as cause:
        raise rawjson.NotJSON("nested too deeply") from cause


def _reading(raw: bytes, fields: dict[str, object]) -> Message:
    content = _content(fields)
    text = content.text
    role = _text(fields.get("role"))
    return Message(
        raw=raw,
        kind=_kind(role, text),
        role=role,
        text=text,
        name=_text(fields.get("name")),
        calls=tuple(_calls(fields)),
        answers=_text(fields.get("tool_call_id")),
        reasoning=_text(fields.get("reasoning_content"))
        or _text(fields.get("reasoning"))
        or content.thoughts,
        refusal=_text(fields.get("refusal")),
        media=content.media,
    )


def _kind(role: str, text: str) -> Kind:
    if role == "user" and text.startswith(TOOL_RESULTS):
        return Kind.RESULT
    return _KINDS.get(role, Kind.OTHER)


@dataclass(frozen=True, slots=True)
class _Content:
    text: str
    media: tuple[Media, ...] = ()
    thoughts: str = ""


_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text"})
"""Types of parts that hold what the model thought (Anthropic, Mistral, Responses): reasoning, wherever it stands."""


class Part(StrEnum):
    """What an element of a content list is read as; what is empty or no object and no text is NOTHING."""

    TEXT = "text"
    THOUGHT = "thought"
    MEDIA = "media"
    NOTHING = "nothing"


def part_of(value: object) -> Part:
    """Models see a part's text whatever the part's type is called; `text` may be missing, null or empty."""
    if isinstance(value, str):
        return Part.TEXT
    fields = _fields(value)
    kind = fields.get("type")
    if isinstance(kind, str) and kind in _THOUGHTS:
        return Part.THOUGHT
    if "text" in fields:
        return Part.TEXT
    return Part.MEDIA if fields else Part.NOTHING


def _content(message: dict[str, object]) -> _Content:
    """Text parts joined by line feeds, and the other parts; an answer that was spoken is a part of its message."""
    content = message.get("content")
    if isinstance(content, list):
        read = _parts(content)
    else:
        odd = content is not None and not isinstance(content, str)
        read = _Content(_text(content), (Media("unknown", _likeness(content), ""),) if odd else ())
    if not isinstance(spoken := message.get("audio"), dict):
        return read
    voice = Media("audio", _text(spoken.get("id")) or _likeness(spoken), "", len(read.text))
    return _Content(read.text, (*read.media, voice), read.thoughts)


def _parts(content: Sequence[object]) -> _Content:
    texts: list[str] = []
    media: list[Media] = []
    thoughts: list[str] = []
    length = -1  # of the texts so far with a line feed between two; nothing stands before the first
    for part in content:
        match part_of(part):
            case Part.TEXT:
                text = part if isinstance(part, str) else _text(_fields(part).get("text"))
                texts += [text] if text else []
                length += len(text) + 1 if text else 0
            case Part.THOUGHT:
                thoughts.append(_thought(_fields(part)))
            case Part.MEDIA:
                media.append(_media(_fields(part), after=max(0, length)))
            case Part.NOTHING:
                pass
    return _Content("\n".join(texts), tuple(media), "\n".join(thoughts))


def _thought(part: dict[str, object]) -> str:
    """The text of a thinking part, which may be a text or a list of text parts; what is sealed has none."""
    inner = part.get("thinking", part.get("text"))
    return _parts(inner).text if isinstance(inner, list) else _text(inner)


def _media(part: dict[str, object], *, after: int) -> Media:
    kind = _text(part.get("type"))
    body = part.get(kind)
    fields = _fields(body)
    source = _text(body) or next(
        (
            _text(fields[key])
            for key in ("url", "data", "file_data", "file_id", "id")
            if _text(fields.get(key))
        ),
        "",
    )
    return Media(kind, source or _likeness(part), _text(fields.get("detail")), after)


def _likeness(value: object) -> str:
    """What stands for a value that is not understood: the same for the same value, whatever the order of its keys."""
    kept = {k: v for k, v in value.items() if k != "cache_control"} if isinstance(value, dict) else value
    return "digest:" + digest_of(json.dumps(kept, sort_keys=True)).hex()


def _calls(fields: dict[str, object]) -> Iterator[Call]:
    calls = fields.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield _call(call, call.get("function", call.get("custom")), is_custom="function" not in call)
    if isinstance(legacy := fields.get("function_call"), dict):
        yield _call({}, legacy, is_custom=False)


def _call(call: dict[str, object], function: object, *, is_custom: bool) -> Call:
    fields = _fields(function)
    arguments = fields.get("arguments", fields.get("input"))
    return Call(_text(call.get("id")), _text(fields.get("name")), _arguments(arguments), is_custom)


def _arguments(arguments: object) -> str:
    """Arguments are a JSON text by the specification; some clients send the object itself."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return rawjson.encode(arguments).decode("utf-8", "replace")


def _identity(call: Call) -> tuple[str, str, str, str]:
    """A call for the digest: clients parse arguments and write them anew, with other spaces and keys in other order."""
    arguments = call.arguments if call.is_custom else rawjson.canonical(call.arguments)
    return call.id, call.name, arguments, "custom" if call.is_custom else ""


def _fields(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _rounds(history: Sequence[Message]) -> Iterator[Round]:
    start = 0
    while start < len(history):
        stop = _end_of_round(history, start) if history[start].is_assistant else start + 1
        yield Round(start, stop)
        start = stop


def _end_of_round(history: Sequence[Message], start: int) -> int:
    """One past the last result that answers the assistant message at `start`.

    A reminder between a call and its result stays inside the round. A result that answers no call of this message
    ends the search: it is an orphan and a round of its own.
    """
    opener = history[start]
    if opener.kind is not Kind.ASSISTANT:
        return start + 1
    stop = start + 1
    if stop == len(history) or history[stop].is_assistant:
        return stop
    ids, names = {call.id for call in opener.calls}, {call.name for call in opener.calls}
    for index in range(stop, len(history)):
        message = history[index]
        if message.is_assistant or (message.is_user and not opener.calls):
            break
        if message.is_result:
            if not _answers(message, ids, names):
                break
            stop = index + 1
        elif not opener.calls:
            break
    return stop


def _answers(result: Message, ids: Set[str], names: Set[str]) -> bool:
    """Whether a result answers one of the calls that have these ids and names.

    A plain-chat agent's TOOL_RESULTS answers the assistant message before it, calls or none.
    """
    if result.role == "user":
        return True
    if result.answers:
        return result.answers in ids
    return result.name in names or (not result.name and bool(names))
