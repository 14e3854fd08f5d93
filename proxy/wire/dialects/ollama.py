"""Ollama and Ollama Cloud. By default a local model drops old messages and says nothing."""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, ending, listed, parameter
from proxy.wire.dialects.rows import WINDOW, Dialect, wording

_LOADED: Final = Ask(Base.ROOT, "/api/ps")
_SHOW: Final = Ask(Base.ROOT, "/api/show", method="POST", names_model=True)

DIALECT: Final = Dialect(
    name="ollama",
    wordings=(
        wording(
            r"prompt is longer than the context length currently available",
            "source: ollama llm/llama_server.go:298, models whose context cannot be shifted",
        ),
        wording(
            rf"input length exceeds the (?:maximum )?context length(?: of {WINDOW})?",
            "source: ollama llm/llama_server.go:2443",
        ),
        wording(
            r"prompt too long; exceeded (?:max )?context length",
            "report: Ollama Cloud tells only by how many tokens; source: pi packages/ai/src/utils/overflow.ts",
        ),
    ),
    lookalikes=(
        wording(
            r"exceeds (?:the )?model's maximum output tokens",
            "report: Ollama Cloud, max_tokens above the model's own limit",
        ),
    ),
    windows=(
        Field(
            _LOADED,
            "models[].context_length",
            listed("models", "context_length", alone=False),
            Rank.LOADED,
            "source: ollama server/routes.go, docs/context-length.mdx",
        ),
        Field(
            _SHOW,
            "parameters num_ctx",
            parameter("parameters", "num_ctx"),
            Rank.PUBLISHED,
            "source: ollama server/routes.go; what the model's file asks for when it is loaded",
        ),
        Field(
            _SHOW,
            "model_info[*.context_length]",
            ending("model_info", ".context_length"),
            Rank.TRAINED,
            "source: ollama server/routes.go; not what is loaded, which by default is 4k, 32k or 256k by memory",
        ),
    ),
)
