"""GitHub Copilot."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Code, Dialect, wording

DIALECT: Final = Dialect(
    name="copilot",
    wordings=(
        wording(
            rf"prompt token count of {PROMPT} exceeds the limit of {WINDOW}",
            "report: the limit of the prompt alone; source: pi packages/ai/src/utils/overflow.ts",
        ),
    ),
    codes=(Code("model_max_prompt_tokens_exceeded", "report: the code beside that sentence"),),
)
