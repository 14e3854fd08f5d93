"""LMDeploy from 0.16 on; before, it answered with an empty text."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="lmdeploy",
    wordings=(
        wording(
            rf"input length \({PROMPT}\) must be smaller than the model context length \({WINDOW}\)",
            "source: lmdeploy serve/core/async_engine.py:564",
        ),
        wording(
            r"request exceeds the model context length",
            "source: lmdeploy exceptions.py:41",
        ),
    ),
)
