"""Edits: all that is done to one history, as values that hold no text of it.

Rules. Edits say where and how, never what stood there: the client resends that. All indices count from the start of the
history. Of one message the pictures are replaced first, then its content or the length of its texts; what is cut off
needs no edit, except the message that comes back as the lead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec


class SummaryRole(StrEnum):
    """Where the block of a cut stands.

    AUTO    within a user message that is there anyway, which every chat template accepts
    USER    in a user message of its own, before the kept history
    SYSTEM  in a system message of its own, behind the system head
    """

    AUTO = "auto"
    USER = "user"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Cut:
    """`history[:stop]` is replaced by one block of text.

    summary      what a model wrote of `history[:summarised]`; empty when there is none
    notice       what stands for the messages that no summary covers; may be empty
    carried      removed messages whose text stands verbatim in the block, ascending
    facts        what was taken from removed messages by rule; None while that has not been done
    role         where the block stands
    """

    stop: int
    summary: str = ""
    summarised: int = 0
    notice: str = ""
    carried: tuple[int, ...] = ()
    role: SummaryRole = SummaryRole.AUTO
    facts: str | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The content of one message is replaced by this text; `action` is the strategy that did it."""

    index: int
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class Shortened:
    """The text of one message, and each in its calls' arguments, keeps head and tail within `limit` characters."""

    index: int
    limit: int


@dataclass(frozen=True, slots=True)
class Blanked:
    """These media of one message, by their place in `Message.media`, become a text that says so."""

    index: int
    media: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Passage:
    """`text[start:stop]` of the message at `index`, where text is what `view.source_text` makes of it."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """Old passages that stand behind the text of the message at `index`, and what they add to its tokens."""

    index: int
    passages: tuple[Passage, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Edits:
    """Everything that is done to one history. Each tuple ascends and names a message once."""

    cut: Cut | None = None
    rewrites: tuple[Rewrite, ...] = ()
    shortened: tuple[Shortened, ...] = ()
    blanked: tuple[Blanked, ...] = ()
    recalled: tuple[Recalled, ...] = ()

    def __bool__(self) -> bool:
        return self is not NOTHING and self != NOTHING

    @property
    def speaks_about(self) -> int:
        """Length of the history's prefix that these edits depend on."""
        behind_cut = self.cut.stop + 1 if self.cut else 0
        recalled = (each.index + 1 for each in self.recalled)
        return max([behind_cut, *(edit.index + 1 for edit in self._of_messages()), *recalled])

    @property
    def last_edited(self) -> int | None:
        """The last message that an edit of its own is of."""
        return max((edit.index for edit in self._of_messages()), default=None)

    @property
    def start(self) -> int:
        """First history message that is still there."""
        return self.cut.stop if self.cut else 0

    def with_cut(self, cut: Cut) -> "Edits":
        """These edits behind a new cut; those of a cut-off message stay where it may come back as the lead."""
        return replace(
            self,
            cut=cut,
            rewrites=tuple(r for r in self.rewrites if r.index >= cut.stop),
            recalled=tuple(r for r in self.recalled if r.index >= cut.stop),
        )

    def shown_again(self) -> tuple[Recalled, ...]:
        """The passages that are in the view: they go with the message that they stand behind."""
        replaced = {rewrite.index for rewrite in self.rewrites}
        return tuple(r for r in self.recalled if r.index >= self.start and r.index not in replaced)

    def actions(self) -> str:
        """What was done, as a header says it: `elide=4,summarize=31`; empty when nothing was."""
        if not self:
            return ""
        return ",".join(f"{action}={number}" for action, number in self._counts().items() if number)

    def _counts(self) -> dict[str, int]:
        counts = {"images": sum(len(each.media) for each in self.blanked if each.index >= self.start)}
        for rewrite in self.rewrites:
            counts[rewrite.action] = counts.get(rewrite.action, 0) + 1
        if self.cut:
            counts["summarize"] = self.cut.summarised
            counts["drop"] = self.cut.stop - self.cut.summarised
        replaced = {rewrite.index for rewrite in self.rewrites}
        there = (each.index for each in self.shortened if each.index >= self.start)
        counts["shorten"] = sum(index not in replaced for index in there)
        counts["recall"] = sum(len(each.passages) for each in self.shown_again())
        return counts

    def _of_messages(self) -> Iterator[Rewrite | Shortened | Blanked]:
        yield from self.rewrites
        yield from self.shortened
        yield from self.blanked


NOTHING = Edits()

_CODEC = msgspec.json.Decoder(Edits)


def encode(edits: Edits) -> bytes:
    """The stored form of a checkpoint."""
    return msgspec.json.encode(edits)


def decode(stored: bytes) -> Edits | None:
    """A checkpoint from its stored form; None for one that this version cannot read."""
    try:
        return _CODEC.decode(stored)
    except msgspec.DecodeError:
        return None
