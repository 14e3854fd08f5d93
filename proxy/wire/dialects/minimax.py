"""MiniMax. The number in its sentence is a code of errors."""

from typing import Final

from proxy.wire.dialects.rows import Dialect, wording

DIALECT: Final = Dialect(
    name="minimax",
    wordings=(
        wording(
            r"context window exceeds limit",
            "report: with the code 2013; source: pi packages/ai/src/utils/overflow.ts",
        ),
    ),
)
