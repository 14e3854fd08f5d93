"""llama-cpp-python's own sentences; with an output limit it speaks as OpenAI does."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="llama_cpp_python",
    wordings=(
        wording(
            rf"prompt exceeds n_ctx: {PROMPT} > {WINDOW}",
            "source: llama_cpp/llama_chat_format.py:2992 (multimodal, status 500)",
        ),
        wording(
            rf"requested tokens \({PROMPT}\) exceed context window of {WINDOW}",
            "source: llama_cpp/llama.py, which the server rewords unless its handler of errors is bypassed",
        ),
    ),
)
