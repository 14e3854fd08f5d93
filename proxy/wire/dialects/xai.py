"""xAI, whose limit is that of the prompt alone."""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, listed
from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="xai",
    wordings=(
        wording(
            rf"maximum prompt length is {WINDOW} but the request contains {PROMPT} tokens",
            "report: cline 3120",
        ),
    ),
    windows=(
        Field(
            Ask(Base.API, "/language-models"),
            "models[].max_prompt_length",
            listed("models", "max_prompt_length"),
            Rank.PUBLISHED,
            "source: xai_sdk's protocol",
        ),
    ),
)
