"""llama.cpp's server, and who passes its errors on: LocalAI with a prefix of its own, LM Studio, llama-swap."""

from typing import Final

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import MODELS, Ask, Base, Field, Rank, at, listed
from proxy.wire.dialects.rows import PROMPT, WINDOW, Code, Dialect, wording

# In router mode the server has no context of its own: it is asked about a model, and not to load it for that.
_PROPS: Final = Ask(Base.ROOT, "/props?model={model}&autoload=false")
_SLOTS: Final = Ask(Base.ROOT, "/slots")

DIALECT: Final = Dialect(
    name="llamacpp",
    wordings=(
        wording(
            rf"request \({PROMPT} tokens\) exceeds the available context size \({WINDOW} tokens\)",
            "source: llama.cpp tools/server/server-context.cpp:3186 (also when equal; the window is that of a slot); "
            "recorded: b11434, b11549; report: open-notebook 470 (LocalAI, status 500)",
        ),
        wording(
            rf"input \({PROMPT} tokens\) is larger than the max context size \({WINDOW} tokens\)",
            "source: llama.cpp tools/server/server-context.cpp, slots that cannot split",
        ),
        wording(
            r"request exceeds the available context size",
            "source: llama.cpp tools/server/server.cpp:3207, until October 2025",
        ),
        wording(
            r"context size has been exceeded",
            "source: llama.cpp tools/server/server-context.cpp:3676 (the cache that all slots share is full); "
            "report: llmmllab-api 202 (status 500)",
        ),
    ),
    codes=(
        Code(
            "exceed_context_size_error",
            "source: llama.cpp tools/server/server-task.cpp:1504; recorded: b11434, b11549",
            window="n_ctx",
            prompt="n_prompt_tokens",
        ),
    ),
    lookalikes=(
        wording(
            r"increase the physical batch size",
            "source: llama.cpp tools/server/server-context.cpp (a limit of one batch, not of the context)",
        ),
    ),
    windows=(
        Field(
            _PROPS,
            "default_generation_settings.n_ctx",
            at("default_generation_settings", "n_ctx"),
            Rank.SLOT,
            "source: llama.cpp tools/server/server-context.cpp:4537; recorded: b11434 with two slots says half of -c",
        ),
        Field(
            _SLOTS,
            "[].n_ctx",
            at("*", "n_ctx"),
            Rank.SLOT,
            "source: llama.cpp tools/server/server-context.cpp:1190; recorded: b11434 with two slots",
        ),
        Field(
            MODELS,
            "data[].meta.n_ctx",
            listed("data", "meta", "n_ctx"),
            Rank.LOADED,
            "source: llama.cpp tools/server/server-context.cpp:4587; recorded: b11434, b11549",
        ),
        Field(
            MODELS,
            "data[].meta.n_ctx_train",
            listed("data", "meta", "n_ctx_train"),
            Rank.TRAINED,
            "source: llama.cpp tools/server/server-context.cpp:4587; recorded: b11434, b11549",
        ),
    ),
    counters=(
        # Servers that lack it render by /apply-template and count that by /tokenize: two requests, left out here.
        Counter(
            Ask(Base.API, "/chat/completions/input_tokens", method="POST"),
            "input_tokens",
            "source: llama.cpp tools/server/server-context.cpp, handle_count_tokens (parses the body as a chat does); "
            "recorded: b11549",
        ),
    ),
)
