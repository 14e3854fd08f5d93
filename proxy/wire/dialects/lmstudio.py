"""LM Studio. Newer versions also pass llama.cpp's own errors on."""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, listed
from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

_V0: Final = Ask(Base.ROOT, "/api/v0/models")
_V1: Final = Ask(Base.ROOT, "/api/v1/models")

DIALECT: Final = Dialect(
    name="lmstudio",
    wordings=(
        wording(
            rf"trying to keep the first {PROMPT} tokens when (?:the )?context (?:the )?overflows"
            rf".{{1,80}}context length of only {WINDOW} tokens",
            "report: lmstudio-bug-tracker 237, 546",
        ),
        wording(
            rf"\bn_keep:? \(?{PROMPT}\)? >=? n_ctx:? \(?{WINDOW}",
            "report: lmstudio-bug-tracker 2256, opencode 11141, claude-code-best 174 (status 500)",
        ),
        wording(
            r"tokens to keep from the initial prompt is greater than the context length",
            "source: pi packages/ai/src/utils/overflow.ts",
        ),
    ),
    windows=(
        Field(
            _V0,
            "data[].loaded_context_length",
            listed("data", "loaded_context_length"),
            Rank.LOADED,
            "documentation: LM Studio's REST API v0",
        ),
        Field(
            _V0,
            "data[].max_context_length",
            listed("data", "max_context_length"),
            Rank.TRAINED,
            "documentation: LM Studio's REST API v0",
        ),
        Field(
            _V1,
            "models[].loaded_instances[].config.context_length",
            listed("models", "loaded_instances", "*", "config", "context_length"),
            Rank.LOADED,
            "documentation: LM Studio's REST API v1",
        ),
        Field(
            _V1,
            "models[].max_context_length",
            listed("models", "max_context_length"),
            Rank.TRAINED,
            "documentation: LM Studio's REST API v1",
        ),
    ),
)
