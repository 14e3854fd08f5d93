"""The view: a conversation as it is forwarded, made of the client's messages and the edits that apply to them.

Rules. The same edits on the same messages give the same bytes on every machine and after every restart. A message that
no edit touches keeps its very bytes, and of one that is touched every field but its content stays; of an assistant's
call, the texts within its arguments may be shortened, and they stay an object. Where a cut was made, one block of text
stands for what is gone, in a user message that is there anyway: no second user or system message comes to stand beside
another, which strict chat templates refuse.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from msgspec import structs

from proxy.context import pictures, rawjson
from proxy.context.clip import LEAST, clip, gap_of, marker
from proxy.context.conversation import Call, Conversation, Media, Message, Part, part_of, read_message
from proxy.context.edits import Blanked, Cut, Edits, Passage, Rewrite, Shortened, SummaryRole
from proxy.context.steps import Pace, Steps

_READ = read_message(b'{"role":"assistant","content":"I have read that."}')

CHANGED, CHANGED_BYTE, FOUND = 30.0, 0.01, 1.0
"""Microseconds in which a message is changed, and for each of its bytes, and in which it is found again."""


def applying(conversation: Conversation, edits: Edits) -> Steps[Conversation]:
    """The view; the same object when there is nothing to do."""
    if not edits:
        return conversation
    changes, pace = changes_of(edits), Pace()
    kept = list(conversation.history[edits.start :])
    for index in (index for index in changes if index >= edits.start):
        message, change = conversation.history[index], changes[index]
        is_known = change.rewrite is not None and message.rewritten(change.rewrite.text) is not None
        kept[index - edits.start] = change.applied_to(message)
        if pace.is_over(FOUND if is_known else CHANGED + len(message.raw) * CHANGED_BYTE):
            yield
    for each in edits.shown_again():
        place = each.index - edits.start
        text = recalled_text(conversation, each.passages)
        kept[place] = _joined(kept[place], text, first=False)
    if edits.cut:
        kept = _behind_block(conversation, edits.cut, changes, kept)
    return Conversation(conversation.head, tuple(kept))


def ending_with(conversation: Conversation, length: int, request: str) -> tuple[Message, ...]:
    """The first messages of a view, so many of its history, with a request behind them.

    It is a user message of its own, or the end of the newest one, since strict chat templates refuse two in a row; they
    refuse one behind a tool result, too, so there a word of the assistant's comes between.
    """
    *before, newest = (*conversation.head, *conversation.history[:length])
    if newest.role == "user":
        return (*before, _joined(newest, request, first=False))
    between = (_READ,) if newest.is_result else ()
    return (*before, newest, *between, _message(SummaryRole.USER, request))


def keeps(conversation: Conversation, edits: Edits, index: int) -> bool:
    """Whether a message is still there: in its place, as the lead, or carried in the block."""
    cut = edits.cut
    there = cut is None or index >= cut.stop or index in cut.carried
    return there or index == lead_index(conversation, edits.start)


# --- what is done to one message ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """The edits of one message."""

    blanked: Blanked | None = None
    rewrite: Rewrite | None = None
    shortened: Shortened | None = None

    def applied_to(self, message: Message) -> Message:
        """The message under these edits."""
        if self.rewrite:
            return with_text(message, self.rewrite.text)
        if self.shortened:  # first: what stands for a picture is no text of the client's
            message = shorter(message, self.shortened.limit)
        return without_media(message, self.blanked.media) if self.blanked else message


NO_CHANGE = Change()


def changes_of(edits: Edits) -> dict[int, Change]:
    """The edits by the index of the message that they are of."""
    changes: dict[int, Change] = {}
    for blanked in edits.blanked:
        changes[blanked.index] = Change(blanked)
    for rewrite in edits.rewrites:
        changes[rewrite.index] = Change(changes.get(rewrite.index, NO_CHANGE).blanked, rewrite)
    for shortened in edits.shortened:
        known = changes.get(shortened.index, NO_CHANGE)
        changes[shortened.index] = Change(known.blanked, known.rewrite, shortened)
    return changes


def with_text(message: Message, text: str) -> Message:
    """The message with this text as its content."""
    made = message.rewritten(text)
    if made is None:
        around, content = message.around_content, rawjson.encode(text)
        if around is None:
            made = read_message(rawjson.replace(message.raw, {"content": content}))
        else:
            made = structs.replace(message, raw=content.join(around), text=text, media=())
        message.remember_rewritten(made)
    return made


def without_media(message: Message, places: Sequence[int]) -> Message:
    """The message with a statement in the place of each of these media."""
    content = rawjson.members(message.raw).get("content", b"null")
    if not content.startswith(b"["):
        return message
    parts = rawjson.elements(content)
    media = [number for number, part in enumerate(parts) if part_of(rawjson.value(part)) is Part.MEDIA]
    for place in places:
        if place < len(media):
            parts[media[place]] = _text_part(placeholder(message.media[place]))
    return read_message(rawjson.replace(message.raw, {"content": rawjson.array(parts)}))


_NAMES = (
    (pictures.IMAGE_KINDS, "Image"),
    (pictures.AUDIO_KINDS, "Audio"),
    (pictures.VIDEO_KINDS, "Video"),
    (pictures.FILE_KINDS, "File"),
)


def placeholder(media: Media) -> str:
    """What stands where a picture or recording stood."""
    name = next((name for kinds, name in _NAMES if media.kind in kinds), "Attachment")
    size = pictures.dimensions(media.source) if media.kind in pictures.IMAGE_KINDS else None
    return f"[{name} left out here: {size[0]}x{size[1]} pixels.]" if size else f"[{name} left out here.]"


def shorter(message: Message, limit: int) -> Message:
    """The message with head and tail of every text that is longer than `limit` characters."""
    fields = rawjson.members(message.raw)
    changed: dict[str, bytes] = {}
    if "content" in fields and (content := _shorter_content(fields["content"], limit)):
        changed["content"] = content
    if message.calls:
        changed |= {
            name: calls
            for name in ("tool_calls", "function_call")
            if name in fields and (calls := _shorter_calls(fields[name], limit))
        }
    return read_message(rawjson.replace(message.raw, changed)) if changed else message


def _shorter_content(raw: bytes, limit: int) -> bytes | None:
    """A content, a text or a list of parts, within the limit; None where nothing is too long."""
    value = rawjson.value(raw)
    if isinstance(value, str):
        return rawjson.encode(clip(value, limit)) if len(value) > limit else None
    if not isinstance(value, list):
        return None
    texts = [_text_of_part(part) for part in value]
    gap = gap_of("\n".join(text for text in texts if text), limit)
    if gap is None:
        return None
    return rawjson.array(list(_parts_around(rawjson.elements(raw), texts, gap)))


def _text_of_part(part: object) -> str:
    if part_of(part) is not Part.TEXT:
        return ""
    text = part if isinstance(part, str) else cast(dict[str, object], part).get("text")
    return text if isinstance(text, str) else ""


def _parts_around(parts: Sequence[bytes], texts: Sequence[str], gap: tuple[int, int]) -> Iterator[bytes]:
    """The parts whose texts, joined by line feeds, have a gap. A text that lies within it goes with its part."""
    start, is_marked = 0, False
    for part, text in zip(parts, texts, strict=True):
        if not text:
            yield part
            continue
        head, tail = text[: max(0, gap[0] - start)], text[max(0, gap[1] - start) :]
        start += len(text) + 1
        if len(head) + len(tail) >= len(text):
            yield part
            continue
        between = "" if is_marked else marker(gap)
        is_marked = True
        if kept := head + between + tail:
            yield _with_part_text(part, kept)


def _with_part_text(part: bytes, text: str) -> bytes:
    raw = rawjson.encode(text)
    return raw if part.startswith(b'"') else rawjson.replace(part, {"text": raw})


def _shorter_calls(raw: bytes, limit: int) -> bytes | None:
    """Calls whose arguments stay JSON objects, with the texts in them within the limit; None: nothing is too long."""
    value = rawjson.value(raw)
    if isinstance(value, dict):
        return _shorter_function(raw, limit)
    if not isinstance(value, list):
        return None
    calls = rawjson.elements(raw)
    shortened = [_shorter_call(call, limit) for call in calls]
    return rawjson.array(shortened) if shortened != calls else None


def _shorter_call(raw: bytes, limit: int) -> bytes:
    if not isinstance(rawjson.value(raw), dict):
        return raw
    changed = {
        name: shortened
        for name, function in rawjson.members(raw).items()
        if name in ("function", "custom") and (shortened := _shorter_function(function, limit))
    }
    return rawjson.replace(raw, changed) if changed else raw


def _shorter_function(raw: bytes, limit: int) -> bytes | None:
    fields = rawjson.value(raw)
    if not isinstance(fields, dict):
        return None
    if isinstance(text := fields.get("input"), str) and len(text) > limit:
        return rawjson.replace(raw, {"input": rawjson.encode(clip(text, limit))})
    arguments = fields.get("arguments")
    if not isinstance(arguments, str) or len(arguments) <= limit:
        return None
    try:
        value = rawjson.value(arguments.encode("utf-8", "surrogatepass"))
        clipped = rawjson.encode(_clipped(value, limit)).decode() if isinstance(value, dict) else arguments
    except (rawjson.NotJSON, RecursionError):
        return None
    return rawjson.replace(raw, {"arguments": rawjson.encode(clipped)}) if clipped != arguments else None


def _clipped(value: object, limit: int) -> object:
    """A JSON value with its long texts clipped."""
    match value:
        case str():
            return clip(value, limit)
        case dict():
            return {key: _clipped(each, limit) for key, each in value.items()}
        case list():
            return [_clipped(each, limit) for each in value]
        case _:
            return value


def clippable(message: Message) -> tuple[int, ...]:
    """The lengths of a message's texts that can be shortened, in characters: its content, and those in its calls."""
    inner = (length for call in message.calls for length in _clippable_arguments(call))
    return (len(message.text), *inner)


def _clippable_arguments(call: Call) -> Iterator[int]:
    if call.is_custom or len(call.arguments) <= LEAST:
        yield len(call.arguments)
        return
    try:
        waiting = [rawjson.value(call.arguments.encode("utf-8", "surrogatepass"))]
    except rawjson.NotJSON:
        return
    while waiting:
        match waiting.pop():
            case str(text):
                yield len(text)
            case dict(members):
                waiting += members.values()
            case list(items):
                waiting += items


_FRAMES = re.compile(
    r"\[(?=(?:Background from earlier|End of (?:the background|the summary|that message|what is carried)"
    r"|Carried over from|Summary of \d+ earlier|An earlier |The first user message))"
)


def _defanged(text: str) -> str:
    """A text in which nothing passes for a frame of ours."""
    return _FRAMES.sub("(", text)


# --- passages that are shown again --------------------------------------------------------------------------

RECALLED = "[Background from earlier in this conversation, left out above, that shares words with this:]"
END_OF_RECALLED = "[End of the background.]"


def source_text(message: Message) -> str:
    """What is searched of a message, and what passages are pieces of: its text, and the arguments of its calls."""
    return (
        "\n".join([message.text, *(call.arguments for call in message.calls)])
        if message.calls
        else message.text
    )


def recalled_text(conversation: Conversation, passages: Sequence[Passage]) -> str:
    """The frame with these passages; each message is named once."""
    return "\n".join([RECALLED, *(passage_text(conversation, each) for each in passages), END_OF_RECALLED])


def passage_text(conversation: Conversation, passage: Passage) -> str:
    """One passage with what it is a piece of."""
    message = conversation.history[passage.index]
    call = conversation.call_answered_by(passage.index) if message.is_result else None
    whose = (
        f"result of {call.name}"
        if call and call.name
        else "tool result"
        if message.is_result
        else message.role
    )
    text = source_text(message)[passage.start : passage.stop].strip()
    return f"({whose}, message {passage.index + 1}) {_defanged(text)}"


# --- the block of a cut -------------------------------------------------------------------------------------


def lead_index(conversation: Conversation, stop: int) -> int | None:
    """The user message that leads behind a cut: the first kept one, else the newest one that the cut removed.

    It takes the block in, so the request that an agent works on stays verbatim through a run of a hundred tool calls.
    None when there is no user message: then the block is a user message of its own.
    """
    history = conversation.history
    if stop < len(history) and history[stop].is_user:
        return stop
    removed = bisect_left(conversation.turn_starts, stop)
    return conversation.turn_starts[removed - 1] if removed else None


GONE = "[Earlier messages of this conversation are left out here.]"
"""Stands where a user message must stand and there is nothing to say."""

_MOST_ARGUMENTS = 1000
"""Characters of a call's arguments in the title of its result."""


def block(conversation: Conversation, cut: Cut) -> str:
    """The text that stands in the place of `history[:stop]`."""
    return "\n".join(_block_lines(conversation, cut))


def _block_lines(conversation: Conversation, cut: Cut) -> Iterator[str]:
    task = next(iter(conversation.turn_starts), None)
    if task in cut.carried:
        yield from _carried_lines(conversation, task, "The first user message of this conversation")
    if cut.summary:
        yield f"[Summary of {cut.summarised} earlier messages of this conversation, as background:]"
        yield _defanged(cut.summary)
        yield "[End of the summary.]"
    if cut.notice:
        yield cut.notice
    if cut.facts:
        yield cut.facts
    for index in cut.carried:
        if index != task:
            yield from _carried_lines(conversation, index, carried_title(conversation, index))


def _carried_lines(conversation: Conversation, index: int, title: str) -> Iterator[str]:
    yield f"[{title}, verbatim:]"
    yield _defanged(conversation.history[index].text)
    yield "[End of that message.]"


def carried_title(conversation: Conversation, index: int) -> str:
    """What a carried message was; of a result also the call that it answers."""
    message = conversation.history[index]
    if not message.is_result:
        return f"An earlier {message.role or 'unknown'} message"
    call = conversation.call_answered_by(index)
    if call is None:
        return "An earlier tool result"
    arguments = clip(call.arguments, _MOST_ARGUMENTS) or "nothing"
    return f"An earlier result of {call.name or 'a tool'}, called with {arguments}"


def _behind_block(
    conversation: Conversation, cut: Cut, changes: Mapping[int, Change], kept: Sequence[Message]
) -> list[Message]:
    """The kept history behind what stands for the rest."""
    lead = lead_index(conversation, cut.stop)
    came_back = lead is not None and lead < cut.stop
    if lead is not None and came_back:
        message = conversation.history[lead]
        kept = [changes[lead].applied_to(message) if lead in changes else message, *kept]
    text = block(conversation, cut)
    if lead is None:
        return [_message(cut.role, text or GONE), *kept]
    if not text:
        return list(kept)
    if cut.role is not SummaryRole.AUTO:
        return [_message(cut.role, text), *kept]
    return [_joined(kept[0], text, first=not came_back), *kept[1:]]


def _joined(message: Message, text: str, *, first: bool) -> Message:
    """The lead with the block: before its own text when it comes after the cut, else behind it."""
    content = rawjson.members(message.raw).get("content", b"null")
    if content.startswith(b"["):
        parts = rawjson.elements(content)
        content = rawjson.array([_text_part(text), *parts] if first else [*parts, _text_part(text)])
    else:
        own = message.text
        content = rawjson.encode(f"{text}\n\n{own}" if first else f"{own}\n\n{text}")
    return read_message(rawjson.replace(message.raw, {"content": content}))


def _message(role: SummaryRole, text: str) -> Message:
    name = "system" if role is SummaryRole.SYSTEM else "user"
    return read_message(rawjson.encode({"role": name, "content": text}))


def _text_part(text: str) -> bytes:
    return b'{"type":"text","text":' + rawjson.encode(text) + b"}"
