"""Damaged histories, given the structure that upstreams accept: each call with its results directly behind it.

Rules. Only what the documented pairing rules refuse is touched: the calls of an assistant message are answered by the
messages directly behind it, each call once, and a result answers a call of the assistant message just before its
block. Calls and results are matched by position, never by ids over the whole history, which repeat. Where orphans
become text, those that stand directly behind the results of a round go into the last of these, behind its own content:
strict chat templates refuse a user message between results and the answer to them. Orphans anywhere else, and from the
first that holds a picture on, become user messages. A valid history comes back as the same object, and a message that
is kept keeps its very bytes. What stands before an assistant message is repaired the same whatever follows it, so that
a growing history keeps its beginning. What is added is a statement, never an order.
"""

from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from proxy.context import rawjson
from proxy.context.conversation import Call, Conversation, Kind, Message, Part, part_of, read_message
from proxy.context.policy import Orphans

MISSING: Final = "[The result of this call is missing here. Whether the call was carried out is not known.]"
"""What stands for the result of a call that has none."""

ORPHAN: Final = "[Result of {tool}, without an open call before it:]"
ORPHAN_END: Final = "[End of the result.]"
"""The lines around a result that became text; true as well where its call was answered before, or stands far off."""

LONGEST_NAME: Final = 64
"""Characters of a tool's name in the line before an orphan."""

_TOOL: Final = "tool"
_FUNCTION: Final = "function"
_RESULTS: Final = frozenset({_TOOL, _FUNCTION})
"""Roles that answer a call for the upstream; the TOOL_RESULTS of plain chat are user messages to it."""

_Key = str | tuple[str, str]
"""What brings a result to its call."""

_NOBODY: Final[frozenset[_Key]] = frozenset({"", (_FUNCTION, "")})
"""What is said by a result that does not say whose it is."""


def repair(conversation: Conversation, orphans: Orphans) -> tuple[Conversation, int]:
    """The conversation with a structure that upstreams accept, and how many messages were touched for that.

    Counted are messages added, changed, moved and left out. The very same object and 0 where nothing is to be repaired.
    The newest message stays last, unless it is a result: what stood between it and its call moves behind it. An orphan
    that is the newest message becomes text even where orphans are dropped.
    """
    if _is_sound(conversation.history):
        return conversation, 0
    try:
        repaired = [_repaired(block, orphans) for block in _blocks(conversation.history)]
    except rawjson.NotJSON:  # nested so deeply that it could only just be read
        return conversation, 0
    touched = sum(each.touched for each in repaired)
    if not touched:
        return conversation, 0
    history = chain.from_iterable(each.messages for each in repaired)
    return Conversation(conversation.head, tuple(history)), touched


def _is_sound(history: Sequence[Message]) -> bool:
    """Whether a glance shows that nothing is to be repaired; every message of every request passes here.

    Calls of the newest message are in flight, or a prefill.
    """
    waiting: frozenset[_Key] = _NONE
    for message in history:
        if (role := message.role) == _TOOL or role == _FUNCTION:
            said = message.answers if role == _TOOL else _said(message)
            if said not in waiting:
                return False
            waiting = waiting - {said} if len(waiting) > 1 else _NONE
        elif waiting:
            return False
        elif (calls := message.calls) and message.kind is Kind.ASSISTANT:
            waiting = frozenset([call.id or _asked(call) for call in calls])
            if len(waiting) < len(calls):
                return False
    return not waiting or history[-1].is_assistant


_NONE: Final[frozenset[_Key]] = frozenset()


def _asked(call: Call) -> _Key:
    """What a result of the call has to say: its id; in the legacy form, which has none, that it is this function's."""
    return call.id or (_FUNCTION, call.name)


def _said(result: Message) -> _Key:
    """Whose the result says it is."""
    return result.answers if result.role == _TOOL else (_FUNCTION, result.name)


# --- blocks -------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """An assistant message and all up to the next. The first block of a history has no opener."""

    opener: Message | None
    body: tuple[Message, ...]
    is_last: bool

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.opener.calls if self.opener else ()

    @property
    def opening(self) -> tuple[Message, ...]:
        return (self.opener,) if self.opener else ()

    def is_newest(self, place: int) -> bool:
        """Whether this message of the body is the newest of the history."""
        return self.is_last and place == len(self.body) - 1


class _Repaired(NamedTuple):
    messages: Sequence[Message]
    touched: int


def _blocks(history: tuple[Message, ...]) -> Iterator[_Block]:
    openers = [index for index, message in enumerate(history) if message.kind is Kind.ASSISTANT]
    edges = [*openers, len(history)]
    yield _Block(None, history[: edges[0]], is_last=not openers)
    for start, stop in pairwise(edges):
        yield _Block(history[start], history[start + 1 : stop], is_last=stop == len(history))


def _repaired(block: _Block, orphans: Orphans) -> _Repaired:
    messages = (*block.opening, *block.body)
    is_sound = _is_sound(messages) if block.body else block.is_last
    if is_sound or _is_beyond_judging(block):
        return _Repaired(messages, 0)
    pairs, unanswered = _paired(block.calls, block.body)
    results = list(_results(block, pairs, unanswered))
    beside = _surplus(block, pairs) if results else ()
    surplus = {place: text for place, text in beside if _is_kept(block, place, orphans)}
    behind = _behind(block, pairs, orphans, apart=surplus)
    touched = len(results) - len(pairs) + behind.touched
    if surplus:
        touched += len(surplus) + (results[-1] in block.body)  # a placeholder is counted already
        results[-1] = _with_surplus(results[-1], surplus.values())
    return _Repaired((*block.opening, *results, *behind.messages), touched)


def _surplus(block: _Block, pairs: Mapping[int, int]) -> Iterator[tuple[int, str]]:
    """Orphans that stand directly behind the results or among them: place in the body, and text.

    As a user message they would stand between the results and the answer to them, which strict chat templates refuse.
    A picture does not fit into a result, and what stands behind it would come before it.
    """
    for place, message in enumerate(block.body):
        if place in pairs:
            continue
        content = _orphan_content(message) if _is_orphan(message) else None
        if not isinstance(content, str):
            return
        yield place, content


def _with_surplus(result: Message, orphans: Iterable[str]) -> Message:
    """A result with orphans as text behind its own content, which stays."""
    content = _joined([each for each in (_result_content(result), *orphans) if each])
    raw = content if isinstance(content, bytes) else rawjson.encode(content)
    return read_message(rawjson.replace(result.raw, {"content": raw}))


def _is_beyond_judging(block: _Block) -> bool:
    """Whether a call lacks its id: only servers that do not pair by ids take that, and what they want is not known."""
    without_id = sum(not call.id for call in block.calls)
    if not without_id or block.opener is None:
        return False
    fields = rawjson.members(block.opener.raw)
    is_legacy = fields.get("function_call", b"").startswith(b"{")  # which has a name in the place of an id
    return without_id > is_legacy


# --- calls and their results --------------------------------------------------------------------------------


def _paired(calls: Sequence[Call], body: Sequence[Message]) -> tuple[dict[int, int], list[int]]:
    """Place of a result in the body -> number of the call that it answers, ascending; and the calls without a result.

    A tool message answers by id, a function message by name. One that lacks it takes a call that is left over, one of
    its name first: strict servers refuse such a message, and the others find its call by position.
    """
    said = {place: _said(message) for place, message in enumerate(body) if message.role in _RESULTS}
    if not said or not calls:
        return {}, list(range(len(calls)))
    pairs = _matched(said, {number: _asked(call) for number, call in enumerate(calls)})
    if not _NOBODY.isdisjoint(said.values()):
        vague = [place for place, key in said.items() if key in _NOBODY]
        names = {place: body[place].name for place in vague if place not in pairs}
        pairs |= _matched(names, {n: calls[n].name for n in _left(calls, pairs)})
        places = {place: "" for place in vague if place not in pairs}
        pairs |= _matched(places, dict.fromkeys(_left(calls, pairs), ""))
    return dict(sorted(pairs.items())), _left(calls, pairs)


def _left(calls: Sequence[Call], pairs: Mapping[int, int]) -> list[int]:
    """The calls that nothing answers yet, by number."""
    return sorted(set(range(len(calls))).difference(pairs.values()))


def _matched(said: Mapping[int, _Key], asked: Mapping[int, _Key]) -> dict[int, int]:
    """Place -> number, where both have the same key; each number once, in order."""
    numbers: dict[_Key, deque[int]] = defaultdict(deque)
    for number, key in asked.items():
        numbers[key].append(number)
    return {place: numbers[key].popleft() for place, key in said.items() if numbers[key]}


def _results(block: _Block, pairs: Mapping[int, int], unanswered: Iterable[int]) -> Iterator[Message]:
    """The client's results in their order, and placeholders where the order of the calls has them.

    Templates that show no ids leave it to the order whose result is whose. Behind the newest message nothing is added.
    """
    missing = deque(unanswered)
    for place, number in pairs.items():
        while missing and (missing[0] < number or block.is_newest(place)):
            yield from _placeholder(block.calls[missing.popleft()])
        yield block.body[place]
    for number in missing:
        yield from _placeholder(block.calls[number])


def _placeholder(call: Call) -> Iterator[Message]:
    """The result that a call lacks; none for a legacy call without a name, which no message can answer."""
    if call.id:
        raw = rawjson.encode({"role": _TOOL, "tool_call_id": call.id, "content": MISSING})
        yield Message(raw, Kind.RESULT, _TOOL, MISSING, answers=call.id)
    elif call.name:
        raw = rawjson.encode({"role": _FUNCTION, "name": call.name, "content": MISSING})
        yield Message(raw, Kind.RESULT, _FUNCTION, MISSING, name=call.name)


# --- what answers nothing -----------------------------------------------------------------------------------


def _behind(block: _Block, pairs: Mapping[int, int], orphans: Orphans, *, apart: Container[int]) -> _Repaired:
    """What answers nothing, in its order, behind the last result: reminders as they are, orphans as text.

    Left out is what stands `apart`, by place.
    """
    last = max(pairs, default=-1)
    rest = [place for place in range(len(block.body)) if place not in pairs and place not in apart]
    kept = [place for place in rest if _is_kept(block, place, orphans)]
    messages: list[Message] = []
    touched = len(rest) - len(kept)
    for run in _runs(block.body, kept):
        first = block.body[run[0]]
        if len(run) > 1 or _is_orphan(first):
            messages.append(_spoken([block.body[place] for place in run]))
            touched += len(run)
        else:
            messages.append(first)
            touched += run[0] < last
    return _Repaired(messages, touched)


def _is_kept(block: _Block, place: int, orphans: Orphans) -> bool:
    return orphans is Orphans.TEXT or block.is_newest(place) or not _is_orphan(block.body[place])


def _is_orphan(message: Message) -> bool:
    """Whether a message that answers nothing was meant to."""
    return message.role in _RESULTS


def _runs(body: Sequence[Message], places: Iterable[int]) -> Iterator[list[int]]:
    """What becomes one message: orphans side by side, and the user messages next to them.

    Otherwise two user messages would come to stand side by side, which strict chat templates refuse.
    """
    run: list[int] = []
    host: Message | None = None
    for place in places:
        message = body[place]
        if run and not _joins(message, body[run[-1]], host):
            yield run
            run, host = [], None
        run.append(place)
        host = host if _is_orphan(message) else message
    if run:
        yield run


def _joins(message: Message, before: Message, host: Message | None) -> bool:
    """Whether the message comes into one with `before`, where the user message `host` may be in already.

    Two user messages come together only if no other field, such as a name, tells them apart.
    """
    if _is_orphan(message):
        return _is_orphan(before) or _own_content(before) is not None
    if not _is_orphan(before) or _own_content(message) is None:
        return False
    return host is None or (_is_plain(host) and _is_plain(message))


def _is_plain(message: Message) -> bool:
    return rawjson.members(message.raw).keys() == {"role", "content"}


_Content = str | list[bytes]
"""A content: a text, or raw parts."""


def _spoken(messages: Sequence[Message]) -> Message:
    """A run as one user message, with the other fields of the client's own where there is one."""
    hosts = [message for message in messages if not _is_orphan(message)]
    contents = [_orphan_content(m) if _is_orphan(m) else _own_content(m) for m in messages]
    content = _joined([content for content in contents if content])
    raw = content if isinstance(content, bytes) else rawjson.encode(content)
    if hosts:
        return read_message(rawjson.replace(hosts[0].raw, {"content": raw}))
    raw = b'{"role":"user","content":' + raw + b"}"
    return read_message(raw) if isinstance(content, bytes) else Message(raw, Kind.USER, "user", content)


def _joined(contents: Sequence[_Content]) -> str | bytes:
    """The contents as one: a text where all are, else raw parts."""
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts)
    parts = ([_text_part(content)] if isinstance(content, str) else content for content in contents)
    return rawjson.array(list(chain.from_iterable(parts)))


def _own_content(message: Message) -> _Content | None:
    """The content of a user message that text can be added to; None for any other message."""
    if not message.is_user:
        return None
    content = _raw_content(message)
    if content.startswith(b'"'):
        return message.text
    return (rawjson.elements(content) or None) if content.startswith(b"[") else None


def _result_content(result: Message) -> _Content:
    """The content of a result that text can be added to; one that is neither a text nor parts as its JSON."""
    content = _raw_content(result)
    if content.startswith(b"["):
        return rawjson.elements(content)
    return result.text if content.startswith((b'"', b"null")) else content.decode()


def _orphan_content(orphan: Message) -> _Content:
    """An orphan between two lines that say what it is; pictures and the like stay parts."""
    name = orphan.name and "".join(filter(str.isprintable, orphan.name))[:LONGEST_NAME]
    title = ORPHAN.format(tool=name or "a tool")
    content = _raw_content(orphan) if orphan.media else b"null"
    media = list(filter(_is_media, rawjson.elements(content))) if content.startswith(b"[") else []
    if media:
        return [_text_part(_lines(title, orphan.text)), *media, _text_part(ORPHAN_END)]
    is_odd = not content.startswith((b"[", b'"', b"null"))
    return _lines(title, content.decode() if is_odd else orphan.text, ORPHAN_END)


def _is_media(part: bytes) -> bool:
    """Whether a part is more than a text part that lacks its text, which servers refuse."""
    value = rawjson.value(part)
    return part_of(value) is Part.MEDIA and isinstance(value, dict) and value.get("type") != "text"


def _raw_content(message: Message) -> bytes:
    return rawjson.members(message.raw).get("content", b"null")


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _text_part(text: str) -> bytes:
    return b'{"type":"text","text":' + rawjson.encode(text) + b"}"
