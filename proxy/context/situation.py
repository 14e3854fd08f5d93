"""What a strategy sees: the conversation, the size of everything in it, and the limits.

Rules. All numbers here are raw tokens, our own uncalibrated measure; the caller has divided the budget by the learned
factor. Sizes are sums of what was measured once per message, so that trying an edit costs no tokenising; only short
texts of our own making are counted here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from proxy.context import checkpoint
from proxy.context.checkpoint import Cut, Edits
from proxy.context.conversation import Conversation
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import Size

NEW_MESSAGE = 4
"""Tokens of an empty user message: three for the message and one for its role."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Raw tokens of a prompt: over `trigger` history is compacted down to `target`; over `budget` it does not fit."""

    window: int
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


@dataclass(frozen=True)
class Situation:
    """One request, measured. `sizes` are those of the history; `fixed` is all that no edit changes.

    `summaries` maps the `stop` of a needed summary to its text, or to None when it could not be had. `to_come` are
    tokens that will have been appended by the time the plan is used; no edit touches them.
    """

    conversation: Conversation
    sizes: tuple[Size, ...]
    fixed: int
    policy: ModelPolicy
    limits: Limits | None
    count: Callable[[str], int]
    summaries: Mapping[int, str | None] = field(default_factory=dict)
    to_come: int = 0

    def tokens(self, edits: Edits) -> int:
        """Raw tokens of the view under these edits."""
        lead = self.lead_tokens(edits.cut) if edits.cut else 0
        return self.fixed + lead + self.kept_tokens(edits)[edits.start] + self.to_come

    def kept_tokens(self, edits: Edits) -> list[int]:
        """`kept[i]`: tokens of `history[i:]` under the rewrites; one longer than the history."""
        kept = [0] * (len(self.sizes) + 1)
        rewritten = {r.index: self.count(r.text) for r in edits.rewrites}
        for index in range(len(self.sizes) - 1, -1, -1):
            size = self.sizes[index]
            tokens = size.tokens - size.content + rewritten[index] if index in rewritten else size.tokens
            kept[index] = kept[index + 1] + tokens
        return kept

    def lead_tokens(self, cut: Cut) -> int:
        """What a cut adds: its block, and the removed user message that takes the block in, if it is one."""
        lead = checkpoint.lead_index(self.conversation, cut)
        own = self.sizes[lead].tokens if lead is not None and lead < cut.stop else 0
        return own + self.block_tokens(cut) + (NEW_MESSAGE if lead is None else 0)

    def block_tokens(self, cut: Cut) -> int:
        """Tokens of a cut's block; the carried task is taken from its measure."""
        without_task = Cut(cut.stop, cut.summary, cut.summarised, cut.notice)
        task = self.sizes[self.conversation.turn_starts[0]].content + 24 if cut.carries_task else 0
        return task + self.count(checkpoint.block(self.conversation, without_task))

    @cached_property
    def protected_from(self) -> int:
        """No edit may touch `history[protected_from:]`: the newest round, and the newest message with it."""
        return self.conversation.newest_round.start
