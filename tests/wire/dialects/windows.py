"""Answers in which upstreams tell their window."""

import json
from dataclasses import dataclass
from typing import Final

from proxy.wire.dialects import Rank


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to one probe, and the window in it."""

    dialect: str
    probe: str
    answer: object
    model: str
    tokens: int
    rank: Rank


def _models(*entries: object) -> object:
    return {"object": "list", "data": list(entries)}


_OLLAMA_SHOW: Final = json.loads(
    '{"parameters": "num_ctx                        16384\\nstop                           \\"<|eot_id|>\\"", '
    '"model_info": {"general.architecture": "llama", "llama.context_length": 131072, "llama.block_count": 32}}'
)
_LM_STUDIO_V0: Final = {
    "id": "qwen2.5-7b-instruct",
    "object": "model",
    "state": "loaded",
    "max_context_length": 32768,
    "loaded_context_length": 4096,
}
_LM_STUDIO_V1: Final = {
    "type": "llm",
    "key": "qwen/qwen3-8b",
    "loaded_instances": [{"id": "fast", "config": {"context_length": 8192}}],
    "max_context_length": 40960,
}
_OPENROUTER: Final = {
    "id": "qwen/qwen3-coder",
    "context_length": 262144,
    "top_provider": {"context_length": 131072, "max_completion_tokens": 32000},
}
_PROPS: Final = {"default_generation_settings": {"params": {}, "n_ctx": 2048}, "total_slots": 2}

TOLD: Final = (
    Told(
        "vllm",
        "GET v1/models",
        _models({"id": "qwen", "root": "/models/qwen", "parent": None, "max_model_len": 4096}),
        "qwen",
        4096,
        Rank.SERVED,
    ),
    Told("llamacpp", "GET /props", _PROPS, "any", 2048, Rank.SLOT),
    Told(
        "llamacpp", "GET /slots", [{"id": 0, "n_ctx": 2048}, {"id": 1, "n_ctx": 2048}], "any", 2048, Rank.SLOT
    ),
    Told(
        "llamacpp",
        "GET v1/models",
        _models({"id": "q.gguf", "aliases": ["q"], "meta": {"n_ctx": 4096, "n_ctx_train": 32768}}),
        "q",
        4096,
        Rank.LOADED,
    ),
    Told(
        "llamacpp",
        "GET v1/models",
        _models({"id": "q", "meta": {"n_ctx_train": 32768}}),
        "q",
        32768,
        Rank.TRAINED,
    ),
    Told(
        "ollama",
        "GET /api/ps",
        {"models": [{"name": "llama3.1:latest", "model": "llama3.1:latest", "context_length": 8192}]},
        "llama3.1",
        8192,
        Rank.LOADED,
    ),
    Told("ollama", "POST /api/show", _OLLAMA_SHOW, "llama3.1", 16384, Rank.PUBLISHED),
    Told(
        "ollama",
        "POST /api/show",
        {"model_info": {"llama.context_length": 131072}},
        "x",
        131072,
        Rank.TRAINED,
    ),
    Told("lmstudio", "GET /api/v0/models", _models(_LM_STUDIO_V0), "qwen2.5-7b-instruct", 4096, Rank.LOADED),
    Told(
        "lmstudio",
        "GET /api/v0/models",
        _models({"id": "m", "state": "not-loaded", "max_context_length": 32768}),
        "m",
        32768,
        Rank.TRAINED,
    ),
    Told(
        "lmstudio",
        "GET /api/v1/models",
        {"models": [_LM_STUDIO_V1, {"key": "other"}]},
        "fast",
        8192,
        Rank.LOADED,
    ),
    Told(
        "lmstudio",
        "GET /api/v1/models",
        {"models": [{"key": "m", "loaded_instances": [], "max_context_length": 40960}]},
        "m",
        40960,
        Rank.TRAINED,
    ),
    Told("tgi", "GET /info", {"max_input_tokens": 4095, "max_total_tokens": 4096}, "m", 4096, Rank.SERVED),
    Told(
        "together",
        "GET v1/models",
        _models({"id": "m", "contextLength": "131072"}),
        "m",
        131072,
        Rank.PUBLISHED,
    ),
    Told(
        "tabbyapi", "GET v1/model", {"id": "m", "parameters": {"max_seq_len": 32768}}, "m", 32768, Rank.LOADED
    ),
    Told("koboldcpp", "GET /api/extra/true_max_context_length", {"value": 8192}, "m", 8192, Rank.LOADED),
    Told("koboldcpp", "GET /api/v1/config/max_context_length", {"value": 4096}, "m", 4096, Rank.PUBLISHED),
    Told(
        "openrouter",
        "GET v1/models",
        _models(_OPENROUTER, {"id": "x"}),
        "qwen/qwen3-coder",
        131072,
        Rank.SERVED,
    ),
    Told(
        "openrouter",
        "GET v1/models",
        _models({"id": "kimi", "context_length": 262144}),
        "kimi",
        262144,
        Rank.PUBLISHED,
    ),
    Told(
        "groq", "GET v1/models", _models({"id": "m", "context_window": 131072}), "m", 131072, Rank.PUBLISHED
    ),
    Told(
        "mistral",
        "GET v1/models",
        _models({"id": "m", "max_context_length": 131072}),
        "m",
        131072,
        Rank.PUBLISHED,
    ),
    Told(
        "xai",
        "GET v1/language-models",
        {
            "models": [
                {"id": "grok-4", "aliases": ["grok-latest"], "max_prompt_length": 256000},
                {"id": "grok-3"},
            ]
        },
        "grok-latest",
        256000,
        Rank.PUBLISHED,
    ),
    Told(
        "gemini",
        "GET /v1beta/models/{model}",
        {"inputTokenLimit": 1048576},
        "gemini-2.5-pro",
        1048576,
        Rank.PUBLISHED,
    ),
    Told(
        "litellm",
        "GET /model/info",
        {
            "data": [
                {
                    "model_name": "gpt",
                    "model_info": {"max_input_tokens": 272000, "max_output_tokens": 128000},
                },
                {"model_name": "gpt", "model_info": {"max_input_tokens": 128000, "max_output_tokens": 16384}},
                {"model_name": "o3", "model_info": {"max_input_tokens": None}},
            ]
        },
        "gpt",
        128000,
        Rank.PUBLISHED,
    ),
)
