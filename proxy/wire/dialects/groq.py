"""Groq, whose refusal tells no number."""

from typing import Final

from proxy.wire.dialects.discovery import MODELS, Field, Rank, listed
from proxy.wire.dialects.rows import Dialect, wording

DIALECT: Final = Dialect(
    name="groq",
    wordings=(
        wording(
            r"please reduce the length of the messages or completion",
            "source: inspect_ai _providers/groq.py:311",
        ),
    ),
    lookalikes=(
        wording(
            r"\bmax_(?:completion_)?tokens must be less than or equal to",
            "report: the output limit of a model, in a sentence that names the context_window too",
        ),
    ),
    windows=(
        Field(
            MODELS,
            "data[].context_window",
            listed("data", "context_window"),
            Rank.PUBLISHED,
            "documentation: tidyllm's groq_list_models",
        ),
    ),
)
