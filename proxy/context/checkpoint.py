"""What the proxy remembers of a conversation: edits, never originals, under a chain of digests over the history.

Rules. The client resends everything, so a checkpoint holds only what to do to it; applying the same edits to the same
messages gives the same bytes on every machine and after every restart. A digest covers what reaches the model and
nothing that clients vary between two requests (key order, cache markers, a string or one text part). The system head
is outside the chain: agents put clocks there. All indices count from the start of the history.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from proxy.context import rawjson
from proxy.context.conversation import Conversation, Message, digest_of, read_message


@dataclass(frozen=True, slots=True)
class Cut:
    """`history[:stop]` is replaced by one block of text.

    summary      what a model wrote of `history[:summarised]`; empty when there is none
    notice       what stands for the messages that no summary covers; may be empty
    carries_task the text of the first user message stands verbatim in the block
    """

    stop: int
    summary: str = ""
    summarised: int = 0
    notice: str = ""
    carries_task: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The content of one message is replaced by this text; `action` is the strategy that did it."""

    index: int
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class Edits:
    """Everything that is done to one history; rewrites ascend and lie behind the cut."""

    cut: Cut | None = None
    rewrites: tuple[Rewrite, ...] = ()

    def __bool__(self) -> bool:
        return self.cut is not None or bool(self.rewrites)

    @property
    def speaks_about(self) -> int:
        """Length of the history's prefix that these edits depend on."""
        cut = self.cut.stop + 1 if self.cut else 0
        return max(cut, self.rewrites[-1].index + 1 if self.rewrites else 0)

    @property
    def start(self) -> int:
        """First history message that is still there."""
        return self.cut.stop if self.cut else 0

    def with_cut(self, cut: Cut) -> "Edits":
        """These edits behind a new cut."""
        return Edits(cut, tuple(r for r in self.rewrites if r.index >= cut.stop))

    def actions(self) -> str:
        """What was done, as a header says it: `elide=4,summarize=31`; empty when nothing was."""
        counts = {r.action: 0 for r in self.rewrites}
        for rewrite in self.rewrites:
            counts[rewrite.action] += 1
        if self.cut:
            counts["summarize"] = self.cut.summarised
            counts["drop"] = self.cut.stop - self.cut.summarised
        return ",".join(f"{action}={number}" for action, number in counts.items() if number)


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


# --- the chain --------------------------------------------------------------------------------------------


def seed(tenant: str, upstream: str, model: str) -> bytes:
    """Where a chain begins: no two tenants, upstreams or models ever share one."""
    return digest_of(tenant, upstream, model)


def chain(history: Sequence[Message], start: bytes) -> tuple[str, ...]:
    """`chain[i]` names the prefix `history[:i + 1]`, as 32 hexadecimal digits."""
    link = start
    names = []
    for message in history:
        link = hashlib.blake2b(link + message.digest, digest_size=16).digest()
        names.append(link.hex())
    return tuple(names)


# --- applying ---------------------------------------------------------------------------------------------


def apply(conversation: Conversation, edits: Edits) -> Conversation:
    """The view: the conversation as it is forwarded; the same object when there is nothing to do.

    Messages that no edit touches keep their very bytes.
    """
    if not edits:
        return conversation
    rewritten = {r.index: r.text for r in edits.rewrites}
    lead = lead_index(conversation, edits.cut) if edits.cut else None
    history = []
    if edits.cut and lead is None:
        history.append(_new_lead(block(conversation, edits.cut)))
    elif edits.cut and lead is not None and lead < edits.cut.stop:
        history.append(_led(conversation, edits.cut, lead))
    for index in range(edits.start, len(conversation.history)):
        message = conversation.history[index]
        if edits.cut and index == lead:
            message = _led(conversation, edits.cut, index)
        history.append(with_text(message, rewritten[index]) if index in rewritten else message)
    return Conversation(conversation.head, tuple(history))


def lead_index(conversation: Conversation, cut: Cut) -> int | None:
    """The user message that takes the block in: the first kept one, else the newest one that the cut removed.

    So no second user message comes to stand beside it, which templates with strict alternation refuse, and the
    request that an agent works on stays verbatim through a run of a hundred tool calls. None when there is no user
    message: then the block is a user message of its own.
    """
    history = conversation.history
    if cut.stop < len(history) and history[cut.stop].is_user:
        return cut.stop
    removed = bisect_left(conversation.turn_starts, cut.stop)
    return conversation.turn_starts[removed - 1] if removed else None


def block(conversation: Conversation, cut: Cut) -> str:
    """The text that stands in the place of `history[:stop]`."""
    return "\n".join(_block_lines(conversation, cut))


def _block_lines(conversation: Conversation, cut: Cut) -> Iterator[str]:
    if cut.carries_task:
        yield "[The first user message of this conversation, verbatim:]"
        yield conversation.history[conversation.turn_starts[0]].text
        yield "[End of the first user message.]"
    if cut.summary:
        yield f"[Summary of {cut.summarised} earlier messages of this conversation:]"
        yield cut.summary
        yield "[End of the summary.]"
    if cut.notice:
        yield cut.notice


def _led(conversation: Conversation, cut: Cut, index: int) -> Message:
    """The lead message with the block: before its own text when it comes after the cut, else behind it."""
    message = conversation.history[index]
    text = block(conversation, cut)
    if not text:
        return message
    return _joined(message, text, first=index >= cut.stop)


def _joined(message: Message, text: str, *, first: bool) -> Message:
    fields = rawjson.members(message.raw)
    content = fields.get("content", b"null")
    if content.startswith(b"["):
        part = b'{"type":"text","text":' + rawjson.encode(text) + b"}"
        parts = rawjson.elements(content)
        content = rawjson.array([part, *parts] if first else [*parts, part])
    else:
        own = message.text
        content = rawjson.encode(f"{text}\n\n{own}" if first else f"{own}\n\n{text}")
    return read_message(rawjson.replace(message.raw, {"content": content}))


def _new_lead(text: str) -> Message:
    return read_message(b'{"role":"user","content":' + rawjson.encode(text) + b"}")


def with_text(message: Message, text: str) -> Message:
    """The message with this text as its content; every other field keeps its bytes."""
    return read_message(rawjson.replace(message.raw, {"content": rawjson.encode(text)}))
