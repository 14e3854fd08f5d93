"""The options that the core obeys, frozen and already checked.

Rules. Values here are final: the configuration has resolved environment, units and patterns before it builds them.
Every option has its default in the class that holds it and nowhere else. Shares are fractions of 1; sizes are tokens
unless the name says otherwise.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.context.calibration import CalibrationPolicy
from proxy.context.edits import SummaryRole


class Mode(StrEnum):
    """How far a request is managed: rewritten, only measured, or not looked at."""

    MANAGE = "manage"
    OBSERVE = "observe"
    OFF = "off"


class UsageMode(StrEnum):
    """Whether `include_usage` is spliced into streams that lack it."""

    INJECT = "inject"
    PASSIVE = "passive"


class Count(StrEnum):
    """Who counts a prompt before it is sent: we alone, the upstream always, or the upstream near the trigger."""

    LOCAL = "local"
    UPSTREAM = "upstream"
    AUTO = "auto"


class CacheKey(StrEnum):
    """Whether a main call without `prompt_cache_key` is given one, for upstreams that route by it."""

    OFF = "off"
    AUTO = "auto"


class SummaryMode(StrEnum):
    """How a summary is asked for: of a transcript, or behind the last forwarded prompt, which a cache may hold."""

    TRANSCRIPT = "transcript"
    SUFFIX = "suffix"


class OnOverflow(StrEnum):
    """What happens to a request that no step of the ladder makes fit."""

    FORWARD = "forward"
    REFUSE = "refuse"


class Orphans(StrEnum):
    """What becomes of a tool result whose call is not in the conversation, where requests are repaired.

    TEXT  it becomes text of a user message, or of the result right before it, which says what it is; that limits what
          orders in it can do, not more
    DROP  it is left out; the newest message becomes text all the same
    """

    TEXT = "text"
    DROP = "drop"


DEFAULT_MARKER = "[Output of {tool} left out here: {characters} characters, {lines} lines.]"
DEFAULT_NOTICE = "[{messages} earlier messages of this conversation are left out here.]"


@dataclass(frozen=True, slots=True)
class ElidePolicy:
    """Old tool results become a marker. `keep`: so many of the newest results stay whole."""

    keep: int = 3
    marker: str = DEFAULT_MARKER


@dataclass(frozen=True, slots=True)
class SummaryPolicy:
    """Old turns become a summary that the upstream writes.

    mode           what the model is asked with
    keep_recent    share of the window that stays verbatim at least
    keep_turns     newest turns that stay verbatim at least, where they fit the target
    max_tokens     the most tokens that a summary may have; also sent as the side call's own limit
    item_characters  the most characters of one message in the transcript
    prepare_at   share of the budget from which on the next summary is written ahead, in the background; 0 = never
    """

    mode: SummaryMode = SummaryMode.TRANSCRIPT
    keep_recent: float = 0.2
    keep_turns: int = 1
    max_tokens: int = 1024
    item_characters: int = 4000
    prepare_at: float = 0.8
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class DropPolicy:
    """Oldest turns go. `max_turns`: sliding window of user turns, None = only when size demands, 0 = newest round."""

    max_turns: int | None = None
    notice: str = DEFAULT_NOTICE


@dataclass(frozen=True, slots=True)
class CarryPolicy:
    """What is carried of removed messages by rule, beside a summary or without one.

    share     the most that it takes of the window; 0 = nothing is carried
    tokens    the most that it takes whatever the window
    paths     names of arguments that tools take files by
    commands  names of arguments that tools take commands by
    """

    share: float = 0.1
    tokens: int = 4096
    paths: tuple[str, ...] = (
        "path",
        "file_path",
        "filename",
        "file",
        "filepath",
        "file_name",
        "target_file",
        "notebook_path",
        "paths",
        "files",
    )
    commands: tuple[str, ...] = ("command", "cmd", "script", "code")


@dataclass(frozen=True, slots=True)
class RecallPolicy:
    """Old passages that the newest message touches on are shown behind it: up to so many tokens, 0 = none."""

    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """`keep`: so many of the newest pictures are forwarded at most."""

    keep: int = 20


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """All that is decided per model.

    window          tokens, prompt and answer together; None = unknown, nothing is compacted on account of size
    reserve_output  tokens kept free for an answer whose request names no limit of its own
    margin          share of the window kept free against errors of the estimate
    compact_at      share of the budget over which history is compacted
    compact_to      share of the budget that a compaction aims at
    summary_role    where the block that stands for removed history goes
    keep_user_tokens  recent user messages that are carried verbatim through a cut, up to so many tokens
    pin             regular expressions; messages whose text matches one are carried verbatim through a cut
    protect_tools   names of tools whose results are neither elided nor shortened
    vision          whether the model sees pictures; if not, a statement stands for each
    repair          whether a broken order of calls and results, which upstreams refuse, is mended
    """

    window: int | None = None
    reserve_output: int = 4096
    margin: float = 0.03
    compact_at: float = 1.0
    compact_to: float = 0.36
    strategies: tuple[str, ...] = ("images", "elide", "summarize", "drop", "shorten")
    mode: Mode = Mode.MANAGE
    usage: UsageMode = UsageMode.INJECT
    count: Count = Count.LOCAL
    clamp_max_tokens: bool = True
    on_overflow: OnOverflow = OnOverflow.FORWARD
    prompt_cache_key: CacheKey = CacheKey.OFF
    summary_role: SummaryRole = SummaryRole.AUTO
    keep_user_tokens: int = 0
    pin: tuple[str, ...] = ()
    protect_tools: tuple[str, ...] = ()
    vision: bool = True
    repair: bool = True
    orphans: Orphans = Orphans.TEXT
    images: ImagePolicy = field(default_factory=ImagePolicy)
    elide: ElidePolicy = field(default_factory=ElidePolicy)
    summary: SummaryPolicy = field(default_factory=SummaryPolicy)
    drop: DropPolicy = field(default_factory=DropPolicy)
    carry: CarryPolicy = field(default_factory=CarryPolicy)
    recall: RecallPolicy = field(default_factory=RecallPolicy)
    calibration: CalibrationPolicy = field(default_factory=CalibrationPolicy)
