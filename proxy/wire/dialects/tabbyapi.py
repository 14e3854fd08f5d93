"""TabbyAPI."""

from typing import Final

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, at
from proxy.wire.dialects.rows import ANY, PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="tabbyapi",
    wordings=(
        wording(
            rf"prompt length {PROMPT} exceeds the available context size of {WINDOW} tokens",
            "source: tabbyAPI common/errors.py",
        ),
        wording(
            rf"requires {ANY} cache tokens, which exceeds the available context size of {WINDOW} tokens",
            "report: what is required is rounded and holds the output, so it is no size of the prompt",
        ),
    ),
    windows=(
        Field(
            Ask(Base.API, "/model"),
            "parameters.max_seq_len",
            at("parameters", "max_seq_len"),
            Rank.LOADED,
            "source: tabbyAPI endpoints/core/router.py:149; it answers /props as llama.cpp does, types/model.py:143",
        ),
    ),
    counters=(
        Counter(
            Ask(Base.API, "/token/encode", method="POST"),
            "length",
            "source: tabbyAPI endpoints/core/router.py, encode_tokens (knows no tools, and leaves out what the "
            "template puts before the answer)",
            takes=("messages",),
            messages_as="text",
            is_exact=False,
        ),
    ),
)
