"""The options of one model: how its prompts are kept within its window.

Rules. As in `options`: a row for each, whose sentences stand in the documentation word for word.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.config import kinds
from proxy.config.forms import Each, Option, Section
from proxy.config.kinds import nearest
from proxy.config.values import ANY_MODEL, DEFAULT, ModelRule
from proxy.context.calibration import CalibrationPolicy
from proxy.context.edits import SummaryRole
from proxy.context.policy import (
    CacheKey,
    CarryPolicy,
    Count,
    DropPolicy,
    ElidePolicy,
    ImagePolicy,
    Mode,
    ModelPolicy,
    OnOverflow,
    Orphans,
    RecallPolicy,
    SummaryMode,
    SummaryPolicy,
    UsageMode,
)
from proxy.context.strategies import NAMES

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
            "mode",
            kinds.choice(SummaryMode),
            "What the model is asked with: a transcript of what is to be summarised, or, with suffix, the last"
            " forwarded prompt up to there and one more message, so that the server has nearly all of it in its prompt"
            " cache. Where that brings no summary, and where side_calls name another model or base_url, it is a"
            " transcript.",
            "Take suffix for large models behind a prompt cache; small ones go on with the talk instead.",
        ),
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

CARRY: Final = Section(
    "carry",
    CarryPolicy,
    "What is taken from removed messages by rule, not by a model: files, commands with their outcome, the last plan,"
    " names.",
    (
        Option(
            "share",
            kinds.between(0, 0.5),
            "The most that it takes, and never more than an eighth of what head and tools leave; 0 = nothing is"
            " carried.",
            "Lower it for models that get worse with long prompts.",
            unit="share of the window",
        ),
        Option(
            "tokens",
            kinds.whole(),
            "The most that it takes, whatever the window.",
            "Raise it for long tasks in large windows.",
            unit="tokens",
        ),
        Option(
            "paths",
            kinds.NAME,
            "Arguments by which tools take files.",
            "Add those of your own tools.",
            is_list=True,
        ),
        Option(
            "commands",
            kinds.NAME,
            "Arguments by which tools take commands.",
            "Add those of your own tools.",
            is_list=True,
        ),
    ),
)

RECALL: Final = Section(
    "recall",
    RecallPolicy,
    "Removed passages that the newest message touches on are shown again behind it.",
    (
        Option(
            "tokens",
            kinds.whole(),
            "The most that is shown for one message, and never more than an eighth of the window; 0 = nothing is. It"
            " stays in the prompt until the next cut, which comes the sooner for it.",
            "Set it to a few hundred for chats that come back to old matters.",
            unit="tokens",
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


def _unusable_rule(
    rule: Mapping[str, Any], before: Sequence[Mapping[str, Any]], read: Mapping[str, Any]
) -> tuple[str, str] | None:
    upstream, pattern = rule.get("upstream"), rule.get("match")
    known = [DEFAULT, *(each["name"] for each in read.get("upstreams", ()) if "name" in each)]
    if upstream is not None and upstream not in known:
        near = nearest(upstream, known)
        meant = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
        return "upstream", f"{upstream!r} is the name of none of the upstreams; {meant}"
    for index, earlier in enumerate(before):
        takes = earlier.get("match") in (ANY_MODEL, pattern)
        if pattern is not None and takes and earlier.get("upstream") in (None, upstream):
            return (
                "match",
                f"never applies: rule {index} of the list takes all of it; put the general one last",
            )
    return None


MODELS: Final = Section(
    "models",
    ModelPolicy,
    "What holds for which model. The first rule that matches counts; the defaults hold where none does.",
    (
        Option(
            "window",
            kinds.window(),
            "The most tokens that the model takes, prompt and answer together. Left out or 0 means that the upstream is"
            " asked, and where it tells none, that nothing is compacted until a refusal tells it. A window that an"
            " answer proves too large is lowered for a day.",
            "Set it where the upstream tells none, or to stay below what it tells; nothing else overrules it.",
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
            "count",
            kinds.choice(Count),
            "Who counts a prompt before it is sent. local: the proxy estimates, and learns from each answer. upstream:"
            " the server is asked each time, where it has an endpoint for that (llama.cpp, vLLM, SGLang, TGI, TabbyAPI,"
            " Moonshot). auto: it is asked where the estimate is near the trigger.",
            "Take auto before such a server where the first prompts of conversations fill the window.",
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
        CARRY,
        RECALL,
        CALIBRATION,
    ),
    each=Each(
        ModelRule,
        (
            Option(
                "match",
                kinds.NAME,
                'Shell pattern over the request\'s model, in upper and lower case as it stands. Only "*" matches a'
                " request without one.",
                "Add a rule for each family of models; the general one comes last.",
            ),
            Option(
                "upstream",
                kinds.LABEL,
                "The name of the server that these models are asked of, out of upstreams; default is upstream. Left"
                " out, it is that one too, unless the path names another. A rule with a name holds for no other server."
                " The body is then read first, up to max_body, of every POST with JSON whose path names none.",
                "Set it where one address shall lead to several servers.",
            ),
        ),
        "policy",
        _unusable_rule,
    ),
    ascending=("compact_to", "compact_at"),
)
