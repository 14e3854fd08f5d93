"""Anthropic, and Claude on Bedrock. How its OpenAI-compatible path refuses is not known; not in OpenAI's words."""

from typing import Final

from proxy.wire.dialects.rows import COMPLETION, PROMPT, WINDOW, Code, Dialect, wording

DIALECT: Final = Dialect(
    name="anthropic",
    wordings=(
        wording(
            rf"prompt is too long: {PROMPT}(?: tokens)? > {WINDOW}",
            "report: continue 8454",
        ),
        wording(
            rf"input length and max_tokens exceed context limit: {PROMPT} \+ {COMPLETION} > {WINDOW}",
            "report: onlook 1354",
        ),
        wording(
            r"prompt is too long",
            "source: pi packages/ai/src/utils/overflow.ts",
        ),
        wording(
            r"input is too long for requested model",
            "fixture: cline error-classification.test.ts (Bedrock)",
        ),
    ),
    lookalikes=(
        wording(
            r"maximum allowed number of output tokens",
            "report: Anthropic's output limit, A > B as in the overflow",
        ),
        wording(
            r"request exceeds the maximum size",
            "documentation: Anthropic's errors (32 MB, status 413)",
        ),
        wording(
            r"too many tokens, please wait",
            "report: Bedrock's throttling",
        ),
    ),
    lookalike_codes=(
        Code("request_too_large", "documentation: Anthropic's errors (bytes, status 413)"),
        Code("rate_limit_error", "documentation: Anthropic's errors"),
        Code("overloaded_error", "documentation: Anthropic's errors"),
    ),
)
