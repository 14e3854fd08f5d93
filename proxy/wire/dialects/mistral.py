"""Mistral."""

from typing import Final

from proxy.wire.dialects.discovery import MODELS, Field, Rank, listed
from proxy.wire.dialects.rows import ANY, PROMPT, WINDOW, Code, Dialect, wording

DIALECT: Final = Dialect(
    name="mistral",
    wordings=(
        wording(
            rf"prompt contains {PROMPT} tokens(?: and {ANY} draft tokens)?, too large for model with {WINDOW} maximum",
            "report: code 3051, which other errors have too; pi packages/ai/src/utils/overflow.ts",
        ),
        wording(
            rf"prompt {PROMPT} > {WINDOW} maximum context length",
            "report: codes 3059 and 5059, 2026",
        ),
    ),
    codes=(Code("invalid_request_prompt_too_long", "report: the type beside the codes 3059 and 5059, 2026"),),
    windows=(
        Field(
            MODELS,
            "data[].max_context_length",
            listed("data", "max_context_length"),
            Rank.PUBLISHED,
            "source: mistralai client/models/basemodelcard.py:72",
        ),
    ),
)
