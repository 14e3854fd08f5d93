"""How many tokens a prompt may have: window, reserve, margin, budget, trigger, target.

Rules. A configured window goes before one that was discovered, and neither stands above what answers have proved. An
unknown window gives no budget at all, and then nothing is compacted on account of size. The reserve never
takes more than a quarter of the window, so that small windows still work. Everything is in tokens of the upstream,
that is in calibrated tokens.
"""

import msgspec

MOST_ASKED = 0.25
"""The largest share of the window that is kept free for an answer whose request names its limit."""

MOST_BY_DEFAULT = 0.125
"""The same for a request that names none: most answers are short, and what history fills is not free for them."""

SHORT_ANSWER = 1 / 32
"""Share of the window that the shortest answer worth having takes: 256 tokens of 8,192."""

NEW_UPSTREAM = 0.12
NEW_CONVERSATION = 0.06
"""Share of the window that is kept free before the first answer of an upstream's model, and of a conversation."""

LEAST_ANSWER = 16
"""A max_tokens is never lowered below this many tokens; below it an answer is worth nothing."""


CONFIGURED = "configured"
REFUSAL = "refusal"
SILENT_CUT = "silent_cut"
"""Where a window comes from: the configuration, a refusal on account of length, a server that cut prompts silently.
One that the upstream told names its place in words."""


class Window(msgspec.Struct, frozen=True):
    """The most tokens that an upstream takes, prompt and answer together, and where that comes from."""

    tokens: int
    source: str


def believed(configured: int | None, told: Window | None, proved: Window | None) -> Window | None:
    """The window to go by, None while nobody knows: the configured or else the told one, lowered to what is proved."""
    stated = Window(configured, CONFIGURED) if configured else told
    if stated is None or (proved is not None and proved.tokens < stated.tokens):
        return proved
    return stated


class Budget(msgspec.Struct, frozen=True):
    """Tokens of one request's window, all of them counted by the upstream's measure."""

    window: int
    reserve: int
    margin: int
    tokens: int
    trigger: int
    target: int

    @property
    def ceiling(self) -> int:
        """The largest prompt that is worth sending as it is: it leaves room for a short answer at least."""
        return max(self.tokens, int(self.window * (1 - SHORT_ANSWER)))

    def answer_room(self, prompt_tokens: int) -> int:
        """Tokens that are left for the answer beside a prompt of this size; may be negative."""
        return self.window - self.margin - prompt_tokens


def caution(*, knows_model: bool, knows_conversation: bool) -> float:
    """Share of the window to keep free at least: the less is known of what an upstream counts, the more."""
    if knows_conversation:
        return 0.0
    return NEW_CONVERSATION if knows_model else NEW_UPSTREAM


def work_out(
    window: int | None,
    asked_output: int | None,
    *,
    reserve_output: int,
    margin: float,
    caution: float = 0.0,
    compact_at: float,
    compact_to: float,
) -> Budget | None:
    """The budget for a request that asks for so many tokens of output; None when the window is unknown.

    `asked_output` is the request's own max_completion_tokens or max_tokens (tokens), None when it names none. `caution`
    is a share of the window that is kept free of history where that is more than the margin; an answer may use it.
    """
    if not window or window < 0:
        return None
    if asked_output is None:
        reserve = min(reserve_output, int(window * MOST_BY_DEFAULT))
    else:
        reserve = max(0, min(asked_output, int(window * MOST_ASKED)))
    kept_free = int(window * margin)
    tokens = max(1, window - reserve - max(kept_free, int(window * caution)))
    return Budget(
        window, reserve, kept_free, tokens, max(1, int(tokens * compact_at)), int(tokens * compact_to)
    )
