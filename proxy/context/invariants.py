"""What every view must keep of the conversation that it was made from, numbered, in one function.

Rules. Each number stands for one promise; the tests call `broken` after every strategy and after the whole ladder.
Nothing here is called while serving: the promises are kept by construction, and this is how we know.

1. The system head is the client's, byte for byte.
2. No tool pair is broken: a result keeps its call, a call keeps its results, in their order and side by side.
3. The newest message stays last, and its text survives in one piece.
4. Apart from the message that leads after a cut, every message is the client's own; of a tool result the content
   alone may be replaced.
5. History begins with a user message if it did before, or if anything was cut off.
6. A real user message remains if there was one, the newest of them verbatim.
7. No system message is added.
8. No two user messages stand side by side that did not before.
9. Order is kept and nothing appears twice.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from proxy.context import rawjson
from proxy.context.conversation import Conversation, Kind, Message


def broken(original: Conversation, view: Conversation) -> list[str]:
    """The promises that the view breaks, each as a sentence that begins with its number; empty when it keeps all."""
    return list(_broken(original, view))


def _broken(original: Conversation, view: Conversation) -> Iterator[str]:
    if [m.raw for m in view.head] != [m.raw for m in original.head]:
        yield "1: the system head has changed"
    yield from _pairs(original, view)
    if original.history:
        yield from _ends(original, view)
    yield from _users(original, view)
    if len(_of_kind(view, Kind.SYSTEM)) > len(_of_kind(original, Kind.SYSTEM)):
        yield "7: a system message was added"
    if _user_pairs(view) > _user_pairs(original):
        yield "8: two user messages stand side by side"
    yield from _sources(original, view)


def _pairs(original: Conversation, view: Conversation) -> Iterator[str]:
    """Compares the shape of every round of the view with the rounds of the original, by calls and answers."""
    shapes = {_shape(original.history[r.start : r.stop]) for r in original.rounds}
    for part in view.rounds:
        messages = view.history[part.start : part.stop]
        if any(m.calls or m.is_result for m in messages) and _shape(messages) not in shapes:
            yield f"2: the round at {part.start} is no round of the client's"


def _shape(messages: Sequence[Message]) -> tuple[object, ...]:
    return tuple((m.role, m.answers, m.name, m.calls) for m in messages)


def _ends(original: Conversation, view: Conversation) -> Iterator[str]:
    if not view.history:
        yield "3: nothing is left of the history"
        return
    newest, last = original.history[-1], view.history[-1]
    if last.role != newest.role or newest.text not in last.text:
        yield "3: the newest message is not last, or its text is not in one piece"
    begins = original.history[0].kind is Kind.USER
    cut = len(view.history) < len(original.history)
    if (begins or cut) and view.history[0].kind is not Kind.USER:
        yield "5: history does not begin with a user message"


def _users(original: Conversation, view: Conversation) -> Iterator[str]:
    users = _of_kind(original, Kind.USER)
    if users and not any(users[-1].text in m.text for m in _of_kind(view, Kind.USER)):
        yield "6: the newest user message is gone"


def _of_kind(conversation: Conversation, kind: Kind) -> list[Message]:
    return [m for m in conversation.messages if m.kind is kind]


def _user_pairs(conversation: Conversation) -> int:
    kinds = [m.kind for m in conversation.history]
    return sum(a is b is Kind.USER for a, b in pairwise(kinds))


def _sources(original: Conversation, view: Conversation) -> Iterator[str]:
    """Every message of the view is found in the original, going back from the newest.

    The lead may be a new message only where the cut removed no user message that could have taken the block in.
    """
    upto = len(original.history)
    for index in range(len(view.history) - 1, -1, -1):
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
    same = _without_content(message) == _without_content(source)
    return same and (message.is_result or (lead and source.is_user and source.text in message.text))


def _without_content(message: Message) -> object:
    value = rawjson.value(message.raw)
    return {k: v for k, v in value.items() if k != "content"} if isinstance(value, dict) else value
