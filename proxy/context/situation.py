"""What a strategy sees: the conversation, the size of everything in it, and the limits.

Rules. All numbers here are raw tokens, our own uncalibrated measure; the caller has divided the budget by the learned
factor. Sizes are sums of what was measured once per message, so that trying an edit costs no tokenising; only short
texts of our own making are counted here. The size of a message that was shortened is asked of the edge.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from proxy.context import view
from proxy.context.conversation import Conversation, Message
from proxy.context.edits import Cut, Edits, SummaryRole
from proxy.context.policy import ModelPolicy
from proxy.context.steps import Pace, Steps
from proxy.context.tokens import Size

FRAME = 12
"""Tokens of the fixed words around a message that is carried in a block, rounded up."""

CARRY_OF_ROOM = 8
"""What is taken from removed messages by rule has the eighth part of what head and tools leave, at most."""

LEAST_CARRIED = 60
LEAST_RECALLED = 40
"""Tokens; what has less room is not worth its frame."""

RECALL_OF_WINDOW = 8
"""Passages that are shown again behind one message take the eighth part of the window, at most."""

MADE, MADE_BYTE, FOUND = 60.0, 0.01, 3.0
"""Microseconds in which a message is shortened, and for each of its bytes, and in which it is found again."""

_Changed = tuple[int, int | None, tuple[int, ...]]

NEW_MESSAGE = 4
"""Tokens of an empty user message: three for the message and one for its role."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Raw tokens of a prompt.

    Over `trigger` history is compacted down to `target`; over `budget` it does not fit beside the answer's reserve;
    over `ceiling` it is not worth sending.
    """

    window: int
    ceiling: int
    budget: int
    trigger: int
    target: int

    @property
    def halfway(self) -> int:
        """Between target and trigger. A step that missed the target but reached this is good enough."""
        return (self.target + self.trigger) // 2


@dataclass(frozen=True, slots=True)
class NeedSummary:
    """A strategy cannot go on without a summary of `history[start:stop]` that continues `previous`."""

    start: int
    stop: int
    previous: str


@dataclass(frozen=True, slots=True)
class NeedSizes:
    """Nobody can go on without the sizes of these messages, which edits have made."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Situation:
    """One request, measured. `sizes` are those of the history; `fixed` is all that no edit changes.

    summaries   the `stop` of a needed summary -> its text, or None when it could not be had
    pinned      the messages that configured patterns match, ascending
    made        the raw bytes of messages that edits have made -> their sizes
    changed     messages that edits have made, so that none is made twice: by index, length and media left out
    to_come     tokens that will have been appended by the time the plan is used; no edit touches them
    """

    conversation: Conversation
    sizes: tuple[Size, ...]
    fixed: int
    policy: ModelPolicy
    limits: Limits | None
    count: Callable[[str], int]
    summaries: Mapping[int, str | None] = field(default_factory=dict)
    pinned: tuple[int, ...] = ()
    made: Mapping[bytes, Size] = field(default_factory=dict)
    to_come: int = 0
    changed: dict[_Changed, Message] = field(default_factory=dict, compare=False)

    def tokens(self, edits: Edits) -> int:
        """Raw tokens of the view under these edits."""
        each = self.message_tokens(edits)
        lead = self.lead_tokens(edits.cut, each) if edits.cut else 0
        return self.fixed + lead + sum(each[edits.start :]) + self.pending_tokens(edits) + self.to_come

    def message_tokens(self, edits: Edits) -> list[int]:
        """Tokens of each message of the history under the edits of messages; those cut off included."""
        tokens = [size.tokens for size in self.sizes]
        for blanked in edits.blanked:
            media = self.conversation.history[blanked.index].media
            stands = [self.count(view.placeholder(media[place])) + 1 for place in blanked.media]
            gone = [self.sizes[blanked.index].media[place] for place in blanked.media]
            tokens[blanked.index] += sum(stands) - sum(gone)
        for index, change in self._shortened(edits):
            tokens[index] = self.made[self._changed(index, change).raw].tokens
        for recalled in edits.recalled:
            tokens[recalled.index] += recalled.tokens
        for rewrite in edits.rewrites:
            tokens[rewrite.index] = self.rewritten_tokens(rewrite.index, rewrite.text)
        return tokens

    def rewritten_tokens(self, index: int, text: str) -> int:
        """Tokens of a message whose whole content is replaced by this text."""
        size = self.sizes[index]
        return size.tokens - size.content - sum(size.media) + self.count(text)

    def making(self, edits: Edits) -> Steps[tuple[Message, ...]]:
        """Has all messages made that these edits shorten; those whose sizes are not known yet."""
        pace, unsized = Pace(), list[Message]()
        for index, change in self._shortened(edits):
            made = len(self.changed)
            message = self._changed(index, change)
            if message.raw not in self.made:
                unsized.append(message)
            is_new = len(self.changed) > made
            if pace.is_over(
                MADE + MADE_BYTE * len(self.conversation.history[index].raw) if is_new else FOUND
            ):
                yield
        return tuple(unsized)

    def _shortened(self, edits: Edits) -> Iterator[tuple[int, view.Change]]:
        """The messages of the view that are shortened, and not replaced altogether, and all their edits."""
        if not edits.shortened:
            return
        changes = view.changes_of(edits)
        lead = view.lead_index(self.conversation, edits.start)
        for index in (each.index for each in edits.shortened):
            is_there = index >= edits.start or index == lead
            if is_there and changes[index].rewrite is None:
                yield index, changes[index]

    def _changed(self, index: int, change: view.Change) -> Message:
        """A message under its edits, made once: it may be of many megabytes, and is asked for again and again."""
        limit, blanked = change.shortened, change.blanked
        key = (index, limit.limit if limit else None, blanked.media if blanked else ())
        message = self.changed.get(key)
        if message is None:
            message = self.changed[key] = change.applied_to(self.conversation.history[index])
        return message

    def lead_tokens(self, cut: Cut, each: list[int]) -> int:
        """What a cut adds: its block, and the removed user message that leads, if one does."""
        lead = view.lead_index(self.conversation, cut.stop)
        own = each[lead] if lead is not None and lead < cut.stop else 0
        stands_alone = lead is None or cut.role is not SummaryRole.AUTO
        return own + self.block_tokens(cut) + (NEW_MESSAGE if stands_alone else 0)

    def block_tokens(self, cut: Cut) -> int:
        """Tokens of a cut's block; what is carried verbatim is taken from its measure."""
        text = view.block(self.conversation, replace(cut, carried=()))
        must_say = view.lead_index(self.conversation, cut.stop) is None and not cut.carried
        own = self.count(text or view.GONE * must_say)
        return sum(map(self.carried_tokens, cut.carried)) + own

    def bare_tokens(self, edits: Edits) -> int:
        """The same without what is kept free."""
        return self.tokens(edits) - self.pending_tokens(edits)

    def pending_tokens(self, edits: Edits) -> int:
        """What is kept free in the view for that which is written when all else is decided."""
        carry = self.carry_tokens if edits.cut and edits.cut.facts is None else 0
        return carry + (self.recall_tokens if self.may_recall(edits) else 0)

    @property
    def recall_tokens(self) -> int:
        """The most that the passages behind one message take."""
        if self.limits is None:
            return 0
        most = min(self.policy.recall.tokens, self.limits.window // RECALL_OF_WINDOW)
        return most if most >= LEAST_RECALLED else 0

    def may_recall(self, edits: Edits) -> bool:
        """Whether something is left out, and the newest message has not been given its passages already."""
        newest = len(self.sizes) - 1
        is_recalled = any(each.index == newest for each in edits.recalled)
        return (edits.cut is not None or bool(edits.rewrites)) and not is_recalled

    @property
    def carry_tokens(self) -> int:
        """The most that is taken from removed messages by rule; it is written when all else is decided.

        Where head and tools take most of the window, it is less than the configured share: the talk needs its room.
        """
        if self.limits is None:
            return 0
        carry, room = self.policy.carry, max(0, self.limits.budget - self.fixed)
        most = min(carry.tokens, int(carry.share * self.limits.window), room // CARRY_OF_ROOM)
        return most if most >= LEAST_CARRIED else 0

    def carried_tokens(self, index: int) -> int:
        """What it costs to carry one message verbatim in a block."""
        return self.sizes[index].content + FRAME + self.count(view.carried_title(self.conversation, index))

    @cached_property
    def pins(self) -> frozenset[int]:
        """The same as `pinned`, to look up."""
        return frozenset(self.pinned)

    @cached_property
    def protected_from(self) -> int:
        """No edit may touch `history[protected_from:]`: the newest round, and results that no answer took in yet."""
        return self.conversation.unanswered_from
