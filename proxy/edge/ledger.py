"""The conversations of late, as operators see them: counts and ids, never content.

Rules. A conversation is recognised by its chain: a request belongs to the one whose newest prefix its own history
contains. The list is of this process alone, bounded, least recently seen first out; it decides nothing, so losing it
costs nothing. Compactions and their age are counted from this process's first sight of them. An id is the chain's name
of the history at its first sight and stays the same.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from proxy.exchange import Verdict

MOST: Final = 1000
"""Conversations that are listed."""

_MOST_KEYS: Final = 256
"""Of one conversation; they end by themselves with their age."""

_LOOK_BACK: Final = 64
"""Messages that a client may append between two requests and still be recognised."""


@dataclass(slots=True)
class Conversation:
    """One conversation; tokens are calibrated estimates, times are seconds of the clock.

    `pins` counts the messages that configured patterns match, `pins_in_view` those of them that were forwarded. `frame`
    and `answered_tokens` are those of the last prompt that was answered.
    """

    id: str
    model: str
    messages: int = 0
    requests: int = 0
    compactions: int = 0
    window: int | None = None
    window_source: str = ""
    original_tokens: int | None = None
    forwarded_tokens: int | None = None
    last_action: str = "none"
    pins: int = 0
    pins_in_view: int = 0
    checkpoint: str | None = None
    frame: str = ""
    answered_tokens: int = 0
    cut_at: float | None = None
    seen_at: float = 0.0
    keys: list[str] = field(default_factory=list)
    """Keys of its checkpoints and summaries; those of other processes too, once it has been served here."""


class Repeats(StrEnum):
    """How a prompt stands to the last one of its conversation that was answered.

    FIRST     none is known here
    EXTENDED  it begins with the whole of that one, so that the upstream may go on from its cache
    CHANGED   it does not: its head, tools or settings are others, or history was edited anew
    """

    FIRST = "first"
    EXTENDED = "extended"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Beginning:
    """`tokens` are those of the last prompt where this one extends it, else 0; an estimate."""

    repeats: Repeats
    tokens: int = 0


class Ledger:
    """`clock` tells seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_tip: OrderedDict[str, Conversation] = OrderedDict()
        self._of_holders: dict[str, Ledger] = {}

    def of(self, holder: str) -> "Ledger":
        """The list of one holder of a token, which nobody else sees; this one itself where there are no tokens."""
        return self._of_holders.setdefault(holder, Ledger(self._clock)) if holder else self

    def note(self, chain: Sequence[str], verdict: Verdict, kept: Sequence[str] = ()) -> Beginning | None:
        """Take in one managed request, and say how its prompt begins; None where that is not known.

        `kept` names the prefixes of which something was stored before, or will be.
        """
        if not chain:
            return Beginning(Repeats.FIRST)
        entry = self._found(chain) or Conversation(chain[-1], verdict.model)
        beginning = _beginning(entry, verdict)
        self._by_tip[chain[-1]] = entry
        while len(self._by_tip) > MOST:
            self._by_tip.popitem(last=False)
        now = self._clock()
        entry.messages, entry.requests, entry.seen_at = len(chain), entry.requests + 1, now
        entry.window, entry.window_source = verdict.window, verdict.window_source
        entry.last_action = verdict.actions
        entry.original_tokens, entry.forwarded_tokens = verdict.original, verdict.forwarded
        entry.pins, entry.pins_in_view = verdict.pins, verdict.pins_kept
        if verdict.checkpoint_id and verdict.checkpoint_id != entry.checkpoint:
            entry.compactions += 1
            entry.cut_at = now
        entry.checkpoint = verdict.checkpoint_id
        if named := [each for each in (*kept, verdict.checkpoint_id, verdict.summary_id) if each]:
            entry.keys = list(dict.fromkeys([*entry.keys, *named]))[-_MOST_KEYS:]
        if verdict.frame and verdict.status is not None and verdict.status < 400:
            entry.frame, entry.answered_tokens = verdict.frame, verdict.forwarded or 0
        return beginning

    def name_of(self, chain: Sequence[str]) -> str:
        """The id of the conversation that was noted with this chain; empty for none."""
        entry = self._by_tip.get(chain[-1]) if chain else None
        return entry.id if entry else ""

    def listed(self) -> list[dict[str, object]]:
        """The conversations, the one seen last first."""
        now = self._clock()
        return [
            {
                "id": entry.id,
                "model": entry.model[:100],
                "messages": entry.messages,
                "requests": entry.requests,
                "window": entry.window,
                "window_source": entry.window_source or "unknown",
                "original_tokens": entry.original_tokens,
                "forwarded_tokens": entry.forwarded_tokens,
                "last_action": entry.last_action,
                "checkpoint": entry.checkpoint,
                "checkpoint_age_seconds": None if entry.cut_at is None else round(now - entry.cut_at, 1),
                "compactions": entry.compactions,
                "pins": entry.pins,
                "pins_in_view": entry.pins_in_view,
                "seen_seconds_ago": round(now - entry.seen_at, 1),
            }
            for entry in reversed(self._by_tip.values())
        ]

    def keys_of(self, id_: str) -> list[str] | None:
        """The keys of a conversation's checkpoints and summaries, or None when there is no such conversation.

        Two rows may have one id: a chat that went on, and one that began alike and was sent anew.
        """
        rows = [entry.keys for entry in self._by_tip.values() if entry.id == id_]
        return list(dict.fromkeys(itertools.chain.from_iterable(rows))) if rows else None

    def strike(self, id_: str) -> None:
        """List a conversation no longer."""
        for tip in [tip for tip, entry in self._by_tip.items() if entry.id == id_]:
            del self._by_tip[tip]

    def _found(self, chain: Sequence[str]) -> Conversation | None:
        tip = next((key for key in reversed(chain[-_LOOK_BACK:]) if key in self._by_tip), None)
        return None if tip is None else self._by_tip.pop(tip)


def _beginning(entry: Conversation, verdict: Verdict) -> Beginning | None:
    if not verdict.frame:
        return None
    if not entry.frame:
        return Beginning(Repeats.FIRST)
    if entry.frame != verdict.frame:
        return Beginning(Repeats.CHANGED)
    return Beginning(Repeats.EXTENDED, min(entry.answered_tokens, verdict.forwarded or 0))
