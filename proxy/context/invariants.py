"""What every view must keep of the conversation that it was made from, numbered, in one function.

Rules. Each number stands for one promise; the tests call `broken` after every strategy and after the whole ladder.
Nothing here is called while serving: the promises are kept by construction, and this is how we know.

1. The system head is the client's, byte for byte.
2. No tool pair is broken: a result keeps its call, a call keeps its results, in their order and side by side.
3. The newest message stays last, and its text survives: in one piece, or as head and tail around a marker.
4. Apart from the message that leads after a cut, every message is the client's own, with every field but its content
   as it was. Of a tool result the content may be replaced; any other text is whole or shortened, any picture whole or
   replaced. Arguments of a call that were an object stay one.
5. History begins with a user message if it did before, or if anything was cut off.
6. A real user message remains if there was one: the newest of them.
7. No system message is added, unless the configuration wants the block in one.
8. No two user messages stand side by side that did not before, unless the configuration wants the block in its own.
9. Order is kept and nothing appears twice.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

from proxy.context import rawjson
from proxy.context.conversation import Conversation, Kind, Message
from proxy.context.edits import SummaryRole

_GAP = re.compile(r"\n?\[\.\.\. (\d+) characters left out here \.\.\.\]\n?")
_MEDIA = re.compile(r"\n?\[(?:Image|Audio|Video|File|Attachment) left out here[^\]]*\]")


def broken(original: Conversation, view: Conversation, role: SummaryRole = SummaryRole.AUTO) -> list[str]:
    """The promises that the view breaks, each as a sentence that begins with its number; empty when it keeps all."""
    return list(_broken(original, view, role))


def _broken(original: Conversation, view: Conversation, role: SummaryRole) -> Iterator[str]:
    if [m.raw for m in view.head] != [m.raw for m in original.head]:
        yield "1: the system head has changed"
    yield from _pairs(original, view)
    block = _own_block(view, role, original)
    if original.history:
        yield from _ends(original, view, block)
    yield from _users(original, view)
    if len(_of_kind(view, Kind.SYSTEM)) > len(_of_kind(original, Kind.SYSTEM)) + (role is SummaryRole.SYSTEM):
        yield "7: a system message was added"
    if _user_pairs(view) > _user_pairs(original) + (role is SummaryRole.USER):
        yield "8: two user messages stand side by side"
    yield from _sources(original, view, block)


def _own_block(view: Conversation, role: SummaryRole, original: Conversation) -> int:
    """How many messages at the start of the view's history are the block alone: none or one."""
    if (
        role is SummaryRole.AUTO
        or not view.history
        or view.history[0].raw in {m.raw for m in original.history}
    ):
        return 0
    first = view.history[0]
    return int(first.role == role and _without_content(first) == {"role": first.role})


def _pairs(original: Conversation, view: Conversation) -> Iterator[str]:
    """Compares the shape of every round of the view with the rounds of the original, by calls and answers."""
    shapes = {_shape(original.history[r.start : r.stop]) for r in original.rounds}
    for part in view.rounds:
        messages = view.history[part.start : part.stop]
        if any(m.calls or m.is_result for m in messages) and _shape(messages) not in shapes:
            yield f"2: the round at {part.start} is no round of the client's"


def _shape(messages: Sequence[Message]) -> tuple[object, ...]:
    return tuple((m.role, m.answers, m.name, [(c.id, c.name) for c in m.calls]).__repr__() for m in messages)


def _ends(original: Conversation, view: Conversation, block: int) -> Iterator[str]:
    if not view.history:
        yield "3: nothing is left of the history"
        return
    newest, last = original.history[-1], view.history[-1]
    if last.role != newest.role or not _survives(newest.text, last.text):
        yield "3: the newest message is not last, or its text is gone"
    begins = original.history[0].kind is Kind.USER
    cut = len(view.history) - block < len(original.history)
    if (begins or cut) and view.history[0].kind is not Kind.USER and not block:
        yield "5: history does not begin with a user message"


def _users(original: Conversation, view: Conversation) -> Iterator[str]:
    users = _of_kind(original, Kind.USER)
    if users and not any(_survives(users[-1].text, m.text) for m in _of_kind(view, Kind.USER)):
        yield "6: the newest user message is gone"


def _survives(text: str, shown: str) -> bool:
    """Whether a text stands in another, whole or as head and tail of which nothing else was lost."""
    if text in shown or text in _MEDIA.sub("", shown):
        return True
    pieces = _GAP.split(_MEDIA.sub("", shown))
    gone = sum(map(int, pieces[1::2]))
    is_enough = sum(map(len, pieces[::2])) + gone >= len(text)
    return bool(gone) and is_enough and any(_is_around(pair, text) for pair in pairwise(pieces[::2]))


def _is_around(pieces: tuple[str, str], text: str) -> bool:
    """Whether what stands around a gap is of the text. A summary in the block beside it may have gaps of its own."""
    # A gap over the border of two parts leaves the line feed that joins them.
    first, second = pieces[0][-8:], pieces[1].removeprefix("\n")[:8]
    start = text.find(first)
    return start >= 0 and text.find(second, start + len(first)) >= 0


def _of_kind(conversation: Conversation, kind: Kind) -> list[Message]:
    return [m for m in conversation.messages if m.kind is kind]


def _user_pairs(conversation: Conversation) -> int:
    kinds = [m.kind for m in conversation.history]
    return sum(a is b is Kind.USER for a, b in pairwise(kinds))


def _sources(original: Conversation, view: Conversation, block: int) -> Iterator[str]:
    """Every message of the view is found in the original, going back from the newest.

    The lead may be a new message only where the cut removed no user message that could have taken the block in.
    """
    upto = len(original.history)
    for index in range(len(view.history) - 1, block - 1, -1):
        message = view.history[index]
        lead = index == 0 and message.is_user
        earlier = original.history[:upto]
        found = (i for i in range(upto - 1, -1, -1) if _derived(message, earlier[i], lead=lead))
        source = next(found, None)
        if source is None and not (lead and not any(m.is_user for m in earlier)):
            yield f"4, 9: the message at {index} is none of the client's in their order"
            return
        upto = source or 0


def _derived(message: Message, source: Message, *, lead: bool) -> bool:
    if message.raw == source.raw:
        return True
    if _without_content(message) != _without_content(source) or not _same_calls(message, source):
        return False
    return message.is_result or (lead and not source.text) or _survives(source.text, message.text)


def _same_calls(message: Message, source: Message) -> bool:
    """Whether the calls are the same but for texts within their arguments."""
    pairs = list(zip(message.calls, source.calls, strict=False))
    same = len(message.calls) == len(source.calls) and all((a.id, a.name) == (b.id, b.name) for a, b in pairs)
    return same and all(a.is_custom or _is_object(a.arguments) or a == b for a, b in pairs)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(rawjson.value(arguments.encode("utf-8", "surrogatepass")), dict)
    except rawjson.NotJSON:
        return False


def _without_content(message: Message) -> object:
    value = rawjson.value(message.raw)
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, object], value)
    replaced = {"content", "tool_calls", "function_call"} if message.calls else {"content"}
    return {k: v for k, v in fields.items() if k not in replaced}
