"""What a cut must not lose: the task, what the configuration pins, and what the user said of late.

Rules. What is pinned stands verbatim in the block of the cut that removed it, so it survives in every chat template; a
tool's result stands there with the call that it answers. Each kind has a share of its own and never more. Where the
block alone leaves no room, these give way in this order, and what is older within one kind goes first: what the user
said of late, the summary, what is pinned, the task. The system head, the newest user message and the newest round are
no pins: they always stay.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from proxy.context import view
from proxy.context.conversation import Conversation
from proxy.context.edits import Cut
from proxy.context.policy import ModelPolicy
from proxy.context.situation import Situation

TASK_SHARE = 0.1
"""The first user message is carried through a cut up to this share of the window."""

PIN_SHARE = 0.2
"""All that patterns pin is carried up to this share of the window together, the newest first."""

USER_SHARE = 1 / 16
"""What the user said of late is carried up to this share of the window, whatever `keep_user_tokens` allows."""


def pinned(conversation: Conversation, policy: ModelPolicy) -> tuple[int, ...]:
    """The messages of the history that the configured patterns match, ascending."""
    if not policy.pin:
        return ()
    patterns = [re.compile(pattern) for pattern in policy.pin]
    return tuple(
        index
        for index, message in enumerate(conversation.history)
        if message.text and any(pattern.search(message.text) for pattern in patterns)
    )


def keeps_whole(situation: Situation, index: int) -> bool:
    """Whether a message is pinned, or is the result of a tool whose results are never touched."""
    return index in situation.pins or _is_protected(situation, index)


def _is_protected(situation: Situation, index: int) -> bool:
    names = situation.policy.protect_tools
    result = situation.conversation.history[index]
    if not names or not result.is_result:
        return False
    call = situation.conversation.call_answered_by(index)
    called = _spelled(call.name if call else result.name)
    return any(called == _spelled(name) or called.endswith("." + _spelled(name)) for name in names)


def _spelled(name: str) -> str:
    """A tool's name; clients put a namespace before it with one of several signs."""
    return name.replace("::", ".").replace(":", ".").replace("/", ".")


def carried(situation: Situation, stop: int) -> tuple[int, ...]:
    """The messages of `history[:stop]` that stand verbatim in the block of a cut there, ascending."""
    conversation = situation.conversation
    lead = view.lead_index(conversation, stop)
    by_pattern = situation.pinned[: bisect_left(situation.pinned, stop)]
    if situation.limits is None:
        # A share of what nobody knows: only what the configuration names.
        return tuple(index for index in by_pattern if index != lead)
    window = situation.limits.window
    users = conversation.turn_starts[: bisect_left(conversation.turn_starts, stop)]
    task = [index for index in users[:1] if index != lead and index not in situation.pins]
    said = min(situation.policy.keep_user_tokens, int(window * USER_SHARE))
    kept = {
        *_newest_within(situation, task, int(window * TASK_SHARE), apart=frozenset()),
        *_newest_within(situation, by_pattern, int(window * PIN_SHARE), apart=frozenset({lead})),
        *_newest_within(situation, users, said, apart=situation.pins.union(task, {lead})),
    }
    return tuple(sorted(kept))


def _newest_within(
    situation: Situation, indices: Sequence[int], tokens: int, *, apart: Set[int | None]
) -> Iterator[int]:
    """The newest of these messages but for those apart, as many as have so many tokens together."""
    for index in reversed(indices if tokens else ()):
        if index in apart:
            continue
        cost = situation.carried_tokens(index)
        if cost > tokens:
            return
        tokens -= cost
        if situation.conversation.history[index].text:
            yield index


def lighter(situation: Situation, cut: Cut, notice: str) -> Iterator[Cut]:
    """The same cut with ever less in its block, in the order in which pins give way."""
    task = [index for index in situation.conversation.turn_starts[:1] if index in cut.carried]
    by_pattern = [index for index in cut.carried if index in situation.pins and index not in task]
    said = [index for index in cut.carried if index not in task and index not in by_pattern]
    for index in said:
        cut = _without(cut, index)
        yield cut
    cut = replace(cut, summary="", summarised=0, notice=notice)
    yield cut
    for index in [*by_pattern, *task]:
        cut = _without(cut, index)
        yield cut


def _without(cut: Cut, index: int) -> Cut:
    return replace(cut, carried=tuple(each for each in cut.carried if each != index))
