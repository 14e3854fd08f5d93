"""Old tool results become a marker that says what stood there.

Rules. A marker is a statement about what is gone, never an order to the model, and holds nothing of the text. Oldest
results go first and only as many as the target needs; the newest `keep` and the newest round stay whole, and so does
what is pinned or of a protected tool. A result is left alone when its marker would be no shorter, or when it is a
marker already.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from string import Formatter

from proxy.context import pins
from proxy.context.conversation import TOOL_RESULTS
from proxy.context.edits import Edits, Rewrite
from proxy.context.situation import Situation
from proxy.context.steps import Pace, Steps

LONGEST_NAME = 64
"""Characters of a tool's name in a marker."""

LONGEST_MARKER = 4000
"""Characters; a longer text is not taken for a marker, which also bounds the matching."""


_MARKED = 30.0
"""Microseconds in which a result is looked at and its marker is counted."""


def planning(situation: Situation, edits: Edits) -> Steps[Edits]:
    """More results elided, until the view is within the target or nothing is left to elide."""
    assert situation.limits is not None
    known, pace = pattern(situation.policy.elide.marker), Pace()
    excess = situation.tokens(edits) - situation.limits.target
    each = situation.message_tokens(edits)
    history, done = situation.conversation.history, {rewrite.index: rewrite for rewrite in edits.rewrites}
    for index in _candidates(situation, edits):
        if excess <= 0:
            break
        if index in done:
            continue
        text = marker(situation, index)
        saving = each[index] - situation.rewritten_tokens(index, text)
        if saving > 0 and not is_marker(history[index].text, known):
            done[index] = Rewrite(index, text, "elide")
            excess -= saving
        if pace.is_over(_MARKED):
            yield
    return replace(edits, rewrites=tuple(done[index] for index in sorted(done)))


def marker(situation: Situation, index: int) -> str:
    """The text that stands for the result at `index`."""
    result = situation.conversation.history[index]
    call = situation.conversation.call_answered_by(index)
    text = situation.policy.elide.marker.format(
        tool=_plain(call.name if call else result.name) or "a tool",
        characters=len(result.text),
        lines=result.text.count("\n") + 1,
    )
    # Agents that speak TOOL_RESULTS in plain chat recognise a result by its beginning.
    return f"{TOOL_RESULTS} {text}" if result.role == "user" else text


def is_marker(text: str, known: re.Pattern[str]) -> bool:
    """Whether a result is an elision marker already, for instance of another proxy in front."""
    return len(text) <= LONGEST_MARKER and known.fullmatch(text) is not None


def pattern(template: str) -> re.Pattern[str]:
    """What a marker of this template looks like."""
    pieces = [
        re.escape(literal) + (".*?" if field is not None else "")
        for literal, field, _, _ in Formatter().parse(template)
    ]
    return re.compile(f"(?:{TOOL_RESULTS} )?" + "".join(pieces))


def _candidates(situation: Situation, edits: Edits) -> Iterator[int]:
    history = situation.conversation.history
    results = [index for index, message in enumerate(history) if message.is_result]
    keep = situation.policy.elide.keep
    old = results[: max(0, len(results) - keep)]
    there = (index for index in old if edits.start <= index < situation.protected_from)
    yield from (index for index in there if not pins.keeps_whole(situation, index))


def _plain(name: str) -> str:
    """A tool's name without line breaks and control characters, bounded."""
    plain = name if name.isprintable() else "".join(c for c in name if c.isprintable())
    return plain[:LONGEST_NAME]
