"""Together's own sentence; else it speaks as TGI did and as SGLang does."""

from typing import Final

from proxy.wire.dialects.discovery import MODELS, Field, Rank, listed
from proxy.wire.dialects.rows import Dialect, wording

DIALECT: Final = Dialect(
    name="together",
    wordings=(
        wording(
            r"input token count \+ max_tokens parameter must be less than the context length",
            "documentation: Together's error codes, as clients' own tests quote it",
        ),
    ),
    windows=(
        Field(
            MODELS,
            "data[].contextLength",
            listed("data", "contextLength"),
            Rank.PUBLISHED,
            "source: together types/supported_model.py:105 (a string); Fireworks' types/model.py:37 has the same name",
        ),
    ),
)
