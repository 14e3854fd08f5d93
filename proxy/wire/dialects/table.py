"""The table of dialects, in the order in which they are asked, and of what counts a request with them."""

from collections.abc import Iterator
from typing import Final

from proxy.wire.dialects import (
    anthropic,
    cerebras,
    cohere,
    copilot,
    dashscope,
    deepinfra,
    ds4,
    fireworks,
    gemini,
    generic,
    groq,
    koboldcpp,
    litellm,
    llama_cpp_python,
    llamacpp,
    lmdeploy,
    lmstudio,
    minimax,
    mistral,
    mlx,
    moonshot,
    ollama,
    openai,
    openrouter,
    sglang,
    tabbyapi,
    tensorrt,
    tgi,
    together,
    vllm,
    xai,
    zhipu,
)
from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.rows import Dialect

DIALECTS: Final[tuple[Dialect, ...]] = (
    openai.DIALECT,
    vllm.DIALECT,
    llamacpp.DIALECT,
    llama_cpp_python.DIALECT,
    ollama.DIALECT,
    lmstudio.DIALECT,
    sglang.DIALECT,
    tgi.DIALECT,
    together.DIALECT,
    tabbyapi.DIALECT,
    lmdeploy.DIALECT,
    tensorrt.DIALECT,
    koboldcpp.DIALECT,
    mlx.DIALECT,
    ds4.DIALECT,
    openrouter.DIALECT,
    cerebras.DIALECT,
    groq.DIALECT,
    fireworks.DIALECT,
    mistral.DIALECT,
    xai.DIALECT,
    moonshot.DIALECT,
    zhipu.DIALECT,
    dashscope.DIALECT,
    gemini.DIALECT,
    copilot.DIALECT,
    deepinfra.DIALECT,
    minimax.DIALECT,
    cohere.DIALECT,
    anthropic.DIALECT,
    litellm.DIALECT,
    generic.DIALECT,  # last: whoever speaks more precisely has spoken before
)

COUNTERS: Final[tuple[Counter, ...]] = tuple(
    dict.fromkeys(counter for dialect in DIALECTS for counter in dialect.counters)
)
"""Each once, though several dialects have it; the first that tells a count is to be believed."""


def prepared() -> Iterator[str]:
    """Compiles the patterns that refusals are recognised by, one a step, so that no refusal has to wait for all."""
    for dialect in DIALECTS:
        for row in (*dialect.wordings, *dialect.lookalikes):
            yield row.pattern.pattern
