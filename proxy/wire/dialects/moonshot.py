"""Moonshot (Kimi)."""

from typing import Final

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import Ask, Base
from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="moonshot",
    wordings=(
        wording(
            rf"exceeded model token limit: {WINDOW}(?: \(requested: {PROMPT}\))?",
            "report: kimi-cli 2011; source: pi packages/ai/src/utils/overflow.ts",
        ),
        wording(
            rf"model max length exceeded, max length: ?{WINDOW}",
            "report: MoonshotAI-Cookbook 18, 2024",
        ),
    ),
    lookalikes=(
        wording(
            r"total message size [0-9]{1,15} exceeds limit",
            "report: the limit is one of bytes",
        ),
    ),
    counters=(
        Counter(
            Ask(Base.API, "/tokenizers/estimate-token-count", method="POST"),
            "data.total_tokens",
            "documentation: platform.moonshot.ai, Estimate Tokens (takes model and messages; calls itself an estimate)",
            takes=("model", "messages"),
            is_exact=False,
        ),
    ),
)
