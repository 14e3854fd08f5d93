"""DeepInfra and Poolside, mostly met behind OpenRouter."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="deepinfra",
    wordings=(
        wording(
            rf"input length {PROMPT} exceeds (?:the )?maximum (?:allowed )?input length (?:of )?{WINDOW}",
            "report: DeepInfra behind OpenRouter and Hugging Face; source: pi packages/ai/src/utils/overflow.ts has "
            "Poolside's",
        ),
    ),
)
