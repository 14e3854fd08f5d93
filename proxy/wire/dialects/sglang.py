"""SGLang, and providers that run it: Together since 2025, Volcengine, Venice."""

from typing import Final

from proxy.wire.dialects.counters import TOKENIZE, TOKENIZED, Counter
from proxy.wire.dialects.rows import ANY, COMPLETION, PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="sglang",
    wordings=(
        wording(
            rf"input \({PROMPT} tokens\) is longer than the model's context length \({WINDOW} tokens\)",
            "source: sglang srt/managers/tokenizer_manager.py:1326 (also when equal); inspect_ai together.py:140",
        ),
        wording(
            rf"requested token count exceeds the model's maximum context length of {WINDOW} tokens\. you requested a "
            rf"total of {ANY} tokens: {PROMPT} tokens from the input messages and {COMPLETION} tokens for the",
            "source: sglang srt/managers/tokenizer_manager.py:1380",
        ),
        wording(
            rf"input length \({PROMPT} tokens\) exceeds the maximum allowed length \({WINDOW} tokens\)",
            "source: sglang srt/managers/utils.py:284 (by the size of the cache, below the model's own limit)",
        ),
    ),
    counters=(
        Counter(
            TOKENIZE,
            "count",
            "source: sglang srt/entrypoints/openai/serving_tokenize.py (makes a chat request of the body)",
            takes=TOKENIZED,
        ),
    ),
)
