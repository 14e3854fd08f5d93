"""DashScope (Qwen), whose limit is that of the input alone."""

from typing import Final

from proxy.wire.dialects.rows import ANY, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="dashscope",
    wordings=(
        wording(
            rf"range of input length should be \[{ANY}, ?{WINDOW}\]",
            "report: QwenPaw 6255, qwen-code 2068",
        ),
    ),
    lookalikes=(
        wording(
            r"\brange of max_tokens\b",
            "report: DashScope's output limit, one word apart from the overflow; DeepSeek's says the valid range of",
        ),
    ),
)
