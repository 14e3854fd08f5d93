"""Every option: its name, kind, unit, what it does, and why one would change it.

Rules. An option has one row here and nowhere else; its default is that of the field of the same name in the section's
dataclass. The file, the command line, `describe` and the checks of config.example.yaml all go by this table, so a row
is all that a new option needs. Sentences are for the person who edits the file: they stand there word for word.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from proxy.config import kinds
from proxy.config.kinds import Kind
from proxy.config.values import (
    Checkpoints,
    Config,
    LogFormat,
    LogLevel,
    LogOptions,
    ModelRule,
    SideCalls,
    Tenant,
    Upstream,
)
from proxy.context.calibration import CalibrationPolicy
from proxy.context.edits import SummaryRole
from proxy.context.policy import (
    CacheKey,
    DropPolicy,
    ElidePolicy,
    ImagePolicy,
    Mode,
    ModelPolicy,
    OnOverflow,
    Orphans,
    SummaryPolicy,
    UsageMode,
)
from proxy.context.strategies import NAMES

REQUIRED: Final = dataclasses.MISSING
"""The default of an option that has none."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key with a value. `unit` of bare numbers; `is_list`: a list of values of this kind, without repetition."""

    name: str
    kind: Kind
    effect: str
    reason: str
    unit: str = ""
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A key with keys of its own, which become the dataclass `holds`.

    selector   set for a list of such mappings: the option that says what an element is for
    ascending  options whose values must grow in this order
    """

    name: str
    holds: type
    effect: str
    members: "tuple[Option | Section, ...]"
    selector: Option | None = None
    ascending: tuple[str, ...] = ()

    @property
    def entries(self) -> "tuple[Option | Section, ...]":
        """All keys of one mapping, the selector first."""
        return self.members if self.selector is None else (self.selector, *self.members)

    def default(self, option: Option) -> Any:
        """What the option is when it is left out, or REQUIRED."""
        holds = ModelRule if option is self.selector else self.holds
        return next(field.default for field in dataclasses.fields(holds) if field.name == option.name)


UPSTREAM: Final = Section(
    "upstream",
    Upstream,
    "The server with the model behind.",
    (
        Option(
            "base_url",
            kinds.URL,
            "Address of its API, up to and including /v1.",
            "Set it to your own server or provider.",
        ),
        Option(
            "api_key",
            kinds.SECRET,
            "Credential for requests that come without one; a client's own always wins. Empty means none.",
            "Set it when clients shall not hold the key themselves.",
        ),
        Option(
            "connect_timeout",
            kinds.DURATION,
            "How long a connection to it may take to open.",
            "Raise it for a slow network.",
        ),
        Option(
            "idle_timeout",
            kinds.DURATION,
            "How long it may stay silent, before the first byte of its answer or between two.",
            "Raise it for a model that reads long prompts slowly.",
        ),
        Option(
            "slots",
            kinds.whole(at_least=1),
            "How many requests it works on at the same time. Left out means 1 for a server on this machine. With 1 no"
            " summary is written in the background, which would keep the client waiting and cost its prompt cache.",
            "Set it when your local server has more, or a remote one has only 1.",
            unit="requests",
        ),
    ),
)

TENANT: Final = Section(
    "tenant",
    Tenant,
    "Who shares what is remembered with whom: requests with the same credential.",
    (
        Option(
            "header",
            kinds.HEADER,
            "The request header that tells tenants apart. Empty means the credential itself.",
            "Set it where credentials rotate, to a header that your gateway sets and clients cannot.",
        ),
        Option(
            "secret",
            kinds.SECRET,
            "Key of the digest that stands for a tenant in a store. Empty means a digest without a key.",
            "Set it, alike on all replicas, where others can read the store.",
        ),
    ),
)

LOG: Final = Section(
    "log",
    LogOptions,
    "One event for each request: counts only, neither text nor keys.",
    (
        Option(
            "level",
            kinds.choice(LogLevel),
            "The least severe event that is written: debug, info, warning or error.",
            "Take warning to leave out the event of each request.",
        ),
        Option(
            "format",
            kinds.choice(LogFormat),
            "console for people, json for machines, auto for console on a terminal and json elsewhere.",
            "Take json where a collector reads a terminal.",
        ),
    ),
)

SIDE_CALLS: Final = Section(
    "side_calls",
    SideCalls,
    "The proxy's own requests for a summary. What is left out is as in the main call.",
    (
        Option(
            "deadline",
            kinds.DURATION,
            "How long a request waits for its summary, all attempts together; then it goes on without.",
            "Raise it for a slow model, lower it for impatient clients.",
        ),
        Option(
            "attempts",
            kinds.whole(at_least=1),
            "How often a summary is tried within the deadline.",
            "Lower it where calls are dear.",
            unit="tries",
        ),
        Option(
            "base_url",
            kinds.URL,
            "Another server that writes the summaries; it is never sent a client's credential.",
            "Set it to spare the main server.",
        ),
        Option(
            "api_key",
            kinds.SECRET,
            "Credential of side calls. Empty means the main call's own, or none when there is a base_url here.",
            "Set it when summaries are paid from another account.",
        ),
        Option(
            "model",
            kinds.NAME,
            "The model that writes the summaries.",
            "Set it to a cheaper or faster one.",
        ),
        Option(
            "reasoning_effort",
            kinds.NAME,
            "Sent with side calls as it is; left out, nothing is sent.",
            "Set it low for a model that thinks too long over a summary.",
        ),
    ),
)

CHECKPOINTS: Final = Section(
    "checkpoints",
    Checkpoints,
    "Bounds of what is remembered. A checkpoint is a few KB; one that is gone is worked out again.",
    (
        Option(
            "max_entries",
            kinds.whole(at_least=1),
            "The most checkpoints that a memory or sqlite store keeps; the longest unused go first. With redis it"
            " bounds the copy that each process keeps for when the server is down.",
            "Raise it for many conversations at once.",
            unit="checkpoints",
        ),
        Option(
            "max_bytes",
            kinds.SIZE,
            "The most bytes of checkpoints, in the same places. What a redis server holds is bounded by its maxmemory.",
            "Raise it for summaries that are long.",
        ),
        Option(
            "max_age",
            kinds.DURATION,
            "How long a checkpoint is kept after its last use, in every store.",
            "Lower it when nothing may be remembered for long.",
        ),
    ),
)

IMAGES: Final = Section(
    "images",
    ImagePolicy,
    "Old pictures become a statement of what stood there.",
    (
        Option(
            "keep",
            kinds.whole(),
            "So many of the newest pictures are forwarded at most, whatever their size.",
            "Lower it for a server that takes few pictures; raise it for one that takes hundreds.",
            unit="pictures",
        ),
    ),
)

ELIDE: Final = Section(
    "elide",
    ElidePolicy,
    "Old tool results become a marker, oldest first.",
    (
        Option(
            "keep",
            kinds.whole(),
            "So many of the newest results always stay whole.",
            "Raise it for agents that compare several results.",
            unit="tool results",
        ),
        Option(
            "marker",
            kinds.template("tool", "characters", "lines", longest=500),
            "The text in place of a result; fields are {tool}, {characters} and {lines}.",
            "Change it to the language of your prompts. A statement works better than an order.",
        ),
    ),
)

SUMMARY: Final = Section(
    "summary",
    SummaryPolicy,
    "Old turns become a summary, which a side call writes.",
    (
        Option(
            "keep_recent",
            kinds.share(),
            "The newest part of the history that stays word for word.",
            "Raise it when the model forgets what was just said.",
            unit="share of the window",
        ),
        Option(
            "keep_turns",
            kinds.whole(),
            "So many of the newest turns stay word for word, where they fit.",
            "Raise it for chats with short turns.",
            unit="turns",
        ),
        Option(
            "max_tokens",
            kinds.whole(at_least=16),
            "The longest summary; never more than an eighth of the window.",
            "Raise it for long tasks with many facts.",
            unit="tokens",
        ),
        Option(
            "item_characters",
            kinds.whole(at_least=100),
            "The most that a summary is told of one message; the middle of a longer one is left out.",
            "Lower it when side calls are too slow.",
            unit="characters",
        ),
        Option(
            "prepare_at",
            kinds.between(0, 1),
            "From this share of the budget on the next summary is written ahead, in the background. 0 = never.",
            "Take 0 where side calls are dear, or where the server has one slot and would lose its own cache.",
            unit="share of the budget",
        ),
        Option(
            "prompt",
            kinds.TEXT,
            "Instructions to the model that writes the summary. Empty means the built-in ones.",
            "Set it when your field needs other things remembered.",
        ),
    ),
)

DROP: Final = Section(
    "drop",
    DropPolicy,
    "The oldest turns go.",
    (
        Option(
            "max_turns",
            kinds.whole(),
            "A sliding window of the newest user turns, whatever their size; 0 keeps the newest round alone. Left"
            " out, turns go only when the size demands it.",
            "Set it for chats that need no long memory.",
            unit="turns",
        ),
        Option(
            "notice",
            kinds.template("messages", longest=200, may_be_empty=True),
            'The text in place of what went; its field is {messages}. "" leaves no trace.',
            "Change it to the language of your prompts.",
        ),
    ),
)

CALIBRATION: Final = Section(
    "calibration",
    CalibrationPolicy,
    "Estimates are corrected by what the upstream reports as usage, for each model on its own.",
    (
        Option(
            "lowest",
            kinds.between(0, 1, above=True),
            "The smallest factor that is believed.",
            "Set both bounds to 1 to switch the correction off.",
            unit="reported / estimated tokens",
        ),
        Option(
            "highest",
            kinds.between(1, 1000),
            "The largest factor that is believed.",
            "Lower it when an upstream reports nonsense.",
            unit="reported / estimated tokens",
        ),
        Option(
            "min_tokens",
            kinds.whole(),
            "The smallest prompt that teaches anything.",
            "Lower it for windows of a few thousand tokens.",
            unit="tokens",
        ),
    ),
)

MODELS: Final = Section(
    "models",
    ModelPolicy,
    "What holds for which model. The first rule that matches counts; the defaults hold where none does.",
    (
        Option(
            "window",
            kinds.window(),
            "The most tokens that the model takes, prompt and answer together. Left out or 0 means unknown: nothing is"
            " compacted until a refusal of the upstream's tells it. One that a refusal proves too large is lowered.",
            "Set it whenever you know it; no list of models overrules it.",
            unit="tokens",
        ),
        Option(
            "reserve_output",
            kinds.whole(),
            "Kept free for the answer when a request names no limit of its own; at most an eighth of the window. What a"
            " request names itself is kept free up to a quarter.",
            "Raise it for models that answer or think at length.",
            unit="tokens",
        ),
        Option(
            "margin",
            kinds.between(0, 0.5, below=True),
            "Kept free because an estimate is one.",
            "Raise it when the upstream still refuses prompts as too long.",
            unit="share of the window",
        ),
        Option(
            "compact_at",
            kinds.share(),
            "History is compacted when a prompt is larger than this.",
            "Lower it to compact earlier, for models that get worse with long prompts.",
            unit="share of the budget, which is window - reserve - margin",
        ),
        Option(
            "compact_to",
            kinds.share(),
            "A compaction goes down to this, so that the next one is far off.",
            "Raise it to keep more; the upstream's prompt cache then breaks more often.",
            unit="share of the budget",
        ),
        Option(
            "strategies",
            kinds.one_of(NAMES, "strategy"),
            "The steps that make a prompt smaller, in this order, each only as far as needed.",
            "Put summarize first to keep tool results whole for longer.",
            is_list=True,
        ),
        Option(
            "mode",
            kinds.choice(Mode),
            "manage, observe (measure only) or off (bytes in, bytes out).",
            "Take observe for a first look.",
        ),
        Option(
            "usage",
            kinds.choice(UsageMode),
            "inject asks streams for their usage where the client did not, and takes it out of the answer again;"
            " passive leaves them alone.",
            "Take passive for an upstream that dislikes stream_options.",
        ),
        Option(
            "clamp_max_tokens",
            kinds.SWITCH,
            "Lowers a request's max_tokens to what the window leaves for the answer.",
            "Set it to false when the upstream does so itself.",
        ),
        Option(
            "on_overflow",
            kinds.choice(OnOverflow),
            "What happens to a prompt that no step makes fit: forward lets the upstream judge, refuse answers 400.",
            "Take refuse when a hopeless call costs money.",
        ),
        Option(
            "prompt_cache_key",
            kinds.choice(CacheKey),
            "auto gives a request without a prompt_cache_key one that is the same for its whole conversation.",
            "Take auto for an upstream that routes by it, such as OpenAI's.",
        ),
        Option(
            "pin",
            kinds.PATTERN,
            "Regular expressions. A message whose text matches one is carried word for word through every cut,"
            " together up to a fifth of the window, and is neither elided nor shortened.",
            "Name what marks rules that must not be lost, such as the title of AGENTS.md.",
            is_list=True,
        ),
        Option(
            "protect_tools",
            kinds.NAME,
            "Tools whose results are neither elided nor shortened, with or without their namespace. A cut may still"
            " take them with their turn; what pin matches outlives it.",
            "Name tools whose output must be exact to be of use.",
            is_list=True,
        ),
        Option(
            "keep_user_tokens",
            kinds.whole(),
            "The newest of the user's messages that a cut removes are carried word for word, up to so much and to a"
            " sixteenth of the window. The first one is carried up to a tenth besides.",
            "Raise it when wishes must outlive many cuts; 0 leaves them to the summary.",
            unit="tokens",
        ),
        Option(
            "summary_role",
            kinds.choice(SummaryRole),
            "Where the text stands that replaces old turns. auto: within a user message that is there anyway, which"
            " every chat template accepts. user or system: in a message of its own.",
            "Take another for a model that you know to follow it better.",
        ),
        Option(
            "repair",
            kinds.SWITCH,
            "Mends an order of tool calls and results that upstreams refuse: a call without its result, a result"
            " without its call, a message between the two.",
            "Set it to false to see the upstream's own refusal.",
        ),
        Option(
            "orphans",
            kinds.choice(Orphans),
            "What a repair makes of a tool result without its call: text of a user message, or nothing (drop).",
            "Take drop for clients that cut their history themselves.",
        ),
        Option(
            "vision",
            kinds.SWITCH,
            "Whether the model sees pictures. If not, a statement stands in the place of each.",
            "Set it to false for a model that refuses requests with pictures.",
        ),
        IMAGES,
        ELIDE,
        SUMMARY,
        DROP,
        CALIBRATION,
    ),
    selector=Option(
        "match",
        kinds.NAME,
        'Shell pattern over the request\'s model, in upper and lower case as it stands. Only "*" matches a request'
        " without one.",
        "Add a rule for each family of models; the general one comes last.",
    ),
    ascending=("compact_to", "compact_at"),
)

ROOT: Final = Section(
    "",
    Config,
    "",
    (
        Option(
            "listen",
            kinds.ADDRESS,
            'HOST:PORT where the proxy listens; IPv6 needs quotes: "[::1]:8787".',
            "Widen it to let other machines in: all who reach it can use upstream.api_key.",
        ),
        UPSTREAM,
        Option(
            "store",
            kinds.STORE,
            "Where checkpoints are kept: memory (until the process ends), sqlite:///transom.db (a file, kept across"
            " restarts and shared by the processes of one machine; a path from the root has four slashes, as in"
            " sqlite:////var/lib/transom.db), redis://user:password@host:6379/0 (Redis or Valkey, shared by all"
            " replicas) or rediss:// (the same over TLS).",
            "Take sqlite to survive restarts, redis for replicas.",
        ),
        Option(
            "max_body",
            kinds.SIZE,
            "The largest request body; a larger one is answered with 413.",
            "Lower it where memory is short.",
        ),
        TENANT,
        LOG,
        SIDE_CALLS,
        CHECKPOINTS,
        MODELS,
    ),
)

FLAGS: Final = MappingProxyType(
    {"listen": "listen", "upstream": "upstream.base_url", "store": "store", "window": "models[].window"}
)
"""Command-line flags, and the option that each sets; a flag for models sets it in every rule."""


def walk(section: Section = ROOT, prefix: str = "") -> Iterator[tuple[str, Section, Option]]:
    """Every option with its dotted name (`models[].elide.keep`) and its section, in the order of the table."""
    for entry in section.entries:
        match entry:
            case Option():
                yield f"{prefix}{entry.name}", section, entry
            case Section():
                brackets = "[]" if entry.selector else ""
                yield from walk(entry, f"{prefix}{entry.name}{brackets}.")
