"""OpenRouter's own check, whose sizes are estimates; a provider's refusal stands as text in `metadata.raw`."""

from typing import Final

from proxy.wire.dialects.discovery import MODELS, Field, Rank, listed
from proxy.wire.dialects.rows import (
    ABOUT,
    ANY,
    COMPLETION,
    EXTRA,
    PROMPT,
    WINDOW,
    Code,
    Dialect,
    wording,
)

DIALECT: Final = Dialect(
    name="openrouter",
    wordings=(
        wording(
            rf"endpoint's maximum context length is {WINDOW} tokens\. however, you requested {ABOUT}{ANY} "
            rf"tokens \({PROMPT} of text input(?:, {EXTRA} of [a-z]{{1,12}} input)?"
            rf"(?:,(?: and)? {COMPLETION} in the output)?",
            "report: eca 380, cognee 1061, qwen-code 5950",
        ),
    ),
    lookalikes=(
        wording(
            r"requires more credits|can only afford",
            "report: status 402, which names max_tokens and how many tokens can be paid for",
        ),
    ),
    lookalike_codes=(
        Code("string_too_long", "source: OpenRouter's SDK components/apierrortype.py"),
        Code("payload_too_large", "source: OpenRouter's SDK components/apierrortype.py"),
        Code("provider_overloaded", "source: OpenRouter's SDK components/apierrortype.py"),
    ),
    windows=(
        Field(
            MODELS,
            "data[].top_provider.context_length",
            listed("data", "top_provider", "context_length"),
            Rank.SERVED,
            "source: OpenRouter's SDK components/model.py; other providers of the model may take less",
        ),
        Field(
            MODELS,
            "data[].context_length",
            listed("data", "context_length"),
            Rank.PUBLISHED,
            "source: OpenRouter's SDK components/model.py; Moonshot has the same, kimi-cli auth/platforms.py",
        ),
    ),
)
