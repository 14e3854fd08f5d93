"""The terms of one request, and the verdict on it.

Rules. A verdict holds counts and fixed words alone, so it may go into logs, headers and metrics as it is. Tokens are
estimates unless they are called reported.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proxy.context.budget import Window
from proxy.context.policy import Mode, ModelPolicy
from proxy.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Terms:
    """What is fixed for one request. `tenant` is a digest of the credential, `count` counts short texts.

    `told` is what the upstream is known to tell of the window without being asked once more. `explains`: the verdict
    shall hold the decision, which costs time. `streams`: side calls ask for a stream. `shares_cache`: they go where
    the main call goes, whose prompt may be in a cache there.
    """

    policy: ModelPolicy
    mode: Mode
    upstream: str
    tenant: str
    count: Callable[[str], int]
    summary_model: str = ""
    summary_window: int | None = None
    summary_prompt: str = ""
    streams: bool = False
    shares_cache: bool = True
    reasoning_effort: str = ""
    told: Window | None = None
    explains: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """One edit of `messages[first:last + 1]`; `is_new` is False for one that a checkpoint holds."""

    action: str
    first: int
    last: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, by words and indices. `target` is the size in tokens that a compaction goes down to.

    why  window_unknown, under_threshold, over_threshold, checkpoint (only what was decided before applies), limit (a
         limit that holds at any size), summary_asked_for (over the threshold, by a request for a summary of it all),
         observed_only (over the threshold, and the mode is not to manage)
    """

    why: str
    target: int | None
    edits: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class SideCall:
    """One side call as the log tells it: `outcome` is `used` or why it was not."""

    outcome: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a prompt is made of, in tokens that add up to it.

    tools    definitions of tools, and whatever else takes room beside the messages
    summary  the block that stands for what was cut off: the summary, and what is carried word for word
    elided   what is left of messages that were replaced or shortened
    history  all other messages behind the system head
    """

    system: int
    tools: int
    summary: int
    elided: int
    history: int


class Verdict(msgspec.Struct, frozen=True):
    """What happened: counts and fixed words alone, for the log, the headers and the metrics. Tokens throughout.

    original   calibrated estimate of the client's request     forwarded  the same of what was sent
    raw        uncalibrated estimate of what was sent
    `window_source` says where the window comes from. `usage_based`: the estimates go on from what the upstream counted
    of this conversation's last prompt.
    `checkpoint_id` names the edits in force, `summary_id` the prefix that their summary covers. `pins` counts the
    messages that configured patterns match, `pins_kept` those that are still in what was sent. `recovered` counts
    the refusals on account of length that this call goes on from. `seems_cut`: the upstream counted far less than
    was sent, or hardly more than before though clearly more was sent, as servers do that silently cut prompts.
    `factor` is what one of our tokens is worth in tokens of the model's, as far as it has been learned; None where
    nothing was counted. `removed` are the raw tokens that newly planned edits took away, None where nothing new was
    planned. `frame` is a digest of all that the prompt is made of beside the history, empty where nothing was counted:
    two prompts with one frame, of which the history of one begins with that of the other, begin alike.
    `parts` are those of what was forwarded, where it was counted.
    """

    model: str
    mode: Mode
    window: int | None = None
    window_source: str = ""
    trigger: int | None = None
    original: int | None = None
    forwarded: int | None = None
    raw: int | None = None
    usage_based: bool = False
    actions: str = "none"
    reason: str = ""
    checkpoint_id: str | None = None
    summary_id: str | None = None
    pins: int = 0
    pins_kept: int = 0
    recovered: int = 0
    seems_cut: bool = False
    factor: float | None = None
    removed: int | None = None
    frame: str = ""
    decision: Decision | None = None
    parts: Parts | None = None
    side_calls: tuple[SideCall, ...] = ()
    status: int | None = None
    usage: Usage | None = None
    complete: bool = False

    @property
    def reported(self) -> int | None:
        """The upstream's own count of the prompt; of several readings of its usage the one nearest our estimate."""
        if self.usage is None or not self.complete:
            return None
        readings = self.usage.prompt_readings
        if len(readings) == 1:
            return readings[0]
        return min(readings, key=lambda tokens: abs(tokens - (self.forwarded or 0)), default=None)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The `x-context-*` headers; what is not known is absent."""
        values = (
            ("x-context-window", self.window),
            ("x-context-tokens", self.forwarded),
            ("x-context-original-tokens", self.original),
            ("x-context-actions", self.actions),
            ("x-context-checkpoint", self.checkpoint_id or "none"),
        )
        return tuple([(name, str(value)) for name, value in values if value is not None])
