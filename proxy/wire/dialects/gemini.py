"""Gemini, also on its OpenAI-compatible path, where errors come in an array. The limit is that of the input alone."""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, at
from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="gemini",
    wordings=(
        wording(
            rf"input token count \({PROMPT}\) exceeds the maximum number of (?:input )?tokens allowed \({WINDOW}\)",
            "report: gemini-cli 4231, 12214",
        ),
        wording(
            rf"input token count is {PROMPT} but the model supports up to {WINDOW}",
            "report: Vertex AI, in GitLab's own patterns and many a bug report",
        ),
    ),
    lookalikes=(
        wording(
            r"payload size exceeds the limit",
            "report: the limit is one of bytes",
        ),
    ),
    windows=(
        Field(
            Ask(Base.ROOT, "/v1beta/models/{model}"),
            "inputTokenLimit",
            at("inputTokenLimit"),
            Rank.PUBLISHED,
            "documentation: ai.google.dev, tokens; the OpenAI-compatible list tells none",
        ),
    ),
)
