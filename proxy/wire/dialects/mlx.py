"""Servers around MLX: oMLX, mlx-serve, and a proxy that swaps models. mlx_lm's own server has no check."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="mlx",
    wordings=(
        wording(
            rf"prompt too long: {PROMPT} tokens exceeds max context window of {WINDOW} tokens",
            "report: oMLX, in `detail` or in OpenAI's shape",
        ),
        wording(
            rf"context limit is {WINDOW} tokens; prompt={PROMPT} leaves",
            "fixture: a proxy that swaps models of mlx_lm, status 404",
        ),
        wording(
            r"prompt exceeds (?:the )?maximum context length",
            "report: mlx-serve",
        ),
    ),
)
