"""Zhipu and z.ai (GLM). It may also take the prompt and finish at once, with a reason of its own."""

from typing import Final

from proxy.wire.dialects.rows import Code, Dialect, wording

DIALECT: Final = Dialect(
    name="zhipu",
    wordings=(
        wording(
            r"prompt exceeds max(?:imum)? length",
            "report: zeroclaw 4124",
        ),
        wording(
            r"tokens in request more than max tokens allowed",
            "report: opencode 27629 (code 1210, which other errors have too)",
        ),
    ),
    codes=(
        Code("1261", "report: zeroclaw 4124"),
        Code(
            "model_context_window_exceeded",
            "source: pi packages/ai/src/utils/overflow.ts (a finish_reason, beside no text at all)",
            prompt="prompt_tokens",
            completion="completion_tokens",
        ),
    ),
)
