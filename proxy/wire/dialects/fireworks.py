"""Fireworks, whose number is one less than the window."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="fireworks",
    wordings=(
        wording(
            rf"prompt is too long: {PROMPT}, model maximum context length: {WINDOW}",
            "report: fw-ai/cookbook 134",
        ),
    ),
)
