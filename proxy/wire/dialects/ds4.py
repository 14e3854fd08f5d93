"""ds4, a local server of DeepSeek models."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="ds4",
    wordings=(
        wording(
            rf"prompt has {PROMPT} tokens, but the configured context size is {WINDOW} tokens",
            "fixture: opencode's tests have it with thousands separators",
        ),
    ),
)
