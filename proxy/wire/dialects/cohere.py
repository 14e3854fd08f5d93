"""Cohere."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="cohere",
    wordings=(
        wording(
            rf"total number of tokens in the prompt (?:cannot exceed|exceeds the limit of) {WINDOW}"
            rf"(?: - received {PROMPT})?",
            "documentation: Cohere's list of errors",
        ),
    ),
    lookalikes=(
        wording(
            r"the maximum output for this model",
            "documentation: Cohere's list of errors (the output alone is too long)",
        ),
    ),
)
