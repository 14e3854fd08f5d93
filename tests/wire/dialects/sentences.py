"""Excerpts of what upstreams say when the context is full.

Rules. Each sentence stands with what it means. Wordings are the servers' own, the sizes in them are changed freely.
"""

import json
from dataclasses import dataclass
from typing import Final

from proxy.wire.dialects import Exactness, Overflow

EXACT, ABOUT, AT_LEAST = Exactness.EXACT, Exactness.ABOUT, Exactness.AT_LEAST


@dataclass(frozen=True, slots=True)
class Sentence:
    """One message text and its meaning."""

    text: str
    said: Overflow

    def __str__(self) -> str:
        return f"{self.said.dialect}: {self.text[:50]}"


def said(
    dialect: str,
    text: str,
    window: int | None = None,
    prompt: int | None = None,
    completion: int | None = None,
    *,
    prompt_is: Exactness = EXACT,
) -> Sentence:
    return Sentence(text, Overflow(dialect, window, prompt, prompt_is, completion))


OPENAI_PLAIN: Final = (
    "This model's maximum context length is 4097 tokens. However, your messages resulted in 4294 tokens. "
    "Please reduce the length of the messages."
)
LITELLM_WINDOW: Final = (  # as 1.106.12 said it
    "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: {} - {}\n"
    "model=demo-model. context_window_fallbacks=None. fallbacks=None.\n\nSet 'context_window_fallback' - "
    "https://docs.litellm.ai/docs/routing#fallbacks\n\nLiteLLM: model group 'demo-model' failed with the error "
    "above. No fallback was attempted."
)

SENTENCES: Final = (
    said("openai", OPENAI_PLAIN, 4097, 4294),
    said(
        "openai",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens "
        "(202767 in the messages, 101 in the functions). Please reduce the length of the messages or functions.",
        128000,
        202868,
    ),
    said(
        "openai",
        "This model's maximum context length is 4097 tokens. However, you requested 4203 tokens (3703 in the "
        "messages, 500 in the completion). Please reduce the length of the messages or completion.",
        4097,
        3703,
        500,
    ),
    said(
        "openai",
        "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the "
        "messages, 730 in the functions, and 800 in the completion). Please reduce the length of the messages, "
        "functions, or completion.",
        8192,
        6683 + 730,
        800,
    ),
    said(
        "openai",
        "This model's maximum context length is 4097 tokens, however you requested 4569 tokens (3545 in your prompt; "
        "1024 for the completion). Please reduce your prompt; or completion length.",
        4097,
        3545,
        1024,
    ),
    said(
        "openai",
        "This model's maximum context length is 2048 tokens. However, you requested 2600 tokens (2600 in the "
        "messages, None in the completion). Please reduce the length of the messages or completion.",
        2048,
        2600,
    ),
    said(
        "openai",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens. Please "
        "reduce the length of the messages.",
        272000,
        300123,
    ),
    said(
        "openai",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    said(
        "vllm",
        "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens in the messages, "
        "Please reduce the length of the messages.",
        8192,
        9001,
    ),
    said(
        "vllm",
        "'max_tokens' or 'max_completion_tokens' is too large: 8191. This model's maximum context length is 32768 "
        "tokens and your request has 30000 input tokens (8191 > 32768 - 30000).",
        32768,
        30000,
        8191,
    ),
    said(
        "vllm",
        "'max_tokens' or 'max_completion_tokens' is too large: 4000. This maximum context length is 32768 tokens and "
        "your request has 30000 input tokens (4000 > 32768 - 30000).",
        32768,
        30000,
        4000,
    ),
    said(
        "vllm",
        "This model's maximum context length is 32768 tokens. However, your request has 40012 input tokens. Please "
        "reduce the length of the input messages. (parameter=input_tokens, value=40012)",
        32768,
        40012,
    ),
    said(
        "vllm",
        "This model's maximum context length is 32768 tokens. However, your request has 32769 input tokens. Please "
        "reduce the length of the input messages. (parameter=input_tokens, value=32769)",
        32768,
        32769,
        prompt_is=AT_LEAST,
    ),
    said(
        "vllm",
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only "
        "131073 tokens, resulting in a maximum input length of 98305 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=98306)",
        131073,
        98305,
        32768,
    ),
    said(
        "vllm",
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only "
        "131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=98305)",
        131072,
        98305,
        32768,
        prompt_is=AT_LEAST,
    ),
    said(
        "vllm",
        "You passed 900000 input characters and requested 1024 output tokens. However, the model's context length is "
        "only 8192 tokens, resulting in a maximum input length of 7168 tokens (at most 860160 characters). Please "
        "reduce the length of the input prompt. (parameter=input_text, value=900000)",
        8192,
        None,
        1024,
    ),
    said(
        "vllm",
        "This model's maximum context length is 40960 tokens. However, you requested 100 output tokens and your prompt "
        "contains at least 40861 input tokens, for a total of at least 40961 tokens. Please reduce the length of the "
        "input prompt or the number of requested output tokens. (parameter=input_tokens, value=40861)",
        40960,
        40861,
        100,
        prompt_is=AT_LEAST,
    ),
    said(
        "vllm",
        "This model's maximum context length is 8192 tokens. However, you requested 2048 output tokens and your prompt "
        "contains 7000 input tokens, for a total of 9048 tokens (7000 + 2048 = 9048 > 8192).",
        8192,
        7000,
        2048,
    ),
    said(
        "vllm",
        "This model's maximum context length is 8192 tokens. However, you requested 1024 output tokens and your prompt "
        "contains 900000 characters (more than 860160 characters, which is the upper bound for 7168 input tokens).",
        8192,
        None,
        1024,
    ),
    said(
        "vllm",
        "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, "
        "which exceeds this limit even without any output tokens. (parameter=input_tokens, value=4097)",
        4096,
        4097,
        prompt_is=AT_LEAST,
    ),
    said(
        "vllm",
        "This model's maximum context length is 8192 tokens. However, your prompt contains 2000000 characters (more "
        "than 1048576 characters, which is the upper bound for 8192 input tokens).",
        8192,
    ),
    said("vllm", "Input length (265330) exceeds model's maximum context length (262144).", 262144, 265330),
    said(
        "vllm",
        "The decoder prompt (length 9121) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
        8192,
        9121,
    ),
    said(
        "vllm",
        "The decoder prompt (length 8192) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 8192. Make sure that `max_model_len` is no smaller.",
        8192,
        8192,
    ),
    said("vllm", "max_tokens must be at least 1, got -46771. (parameter=max_tokens, value=-46771)"),
    said(
        "llamacpp",
        "request (3030 tokens) exceeds the available context size (2048 tokens), try increasing it",
        2048,
        3030,
    ),
    said(
        "llamacpp",
        "rpc error: code = Internal desc = request (20652 tokens) exceeds the available context size (8192 tokens), "
        "try increasing it",
        8192,
        20652,
    ),
    said(
        "llamacpp", "input (900 tokens) is larger than the max context size (512 tokens). skipping", 512, 900
    ),
    said(
        "llamacpp",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
    ),
    said("llamacpp", "Context size has been exceeded."),
    said("llama_cpp_python", "Prompt exceeds n_ctx: 5120 > 4096", 4096, 5120),
    said("llama_cpp_python", "Requested tokens (9437) exceed context window of 8192", 8192, 9437),
    said(
        "ollama",
        "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust "
        "the context length in settings, or use a model with a longer context length",
    ),
    said("ollama", "the input length exceeds the context length"),
    said("ollama", "the input length exceeds the context length of 4096", 4096),
    said("ollama", "prompt too long; exceeded max context length by 15935 tokens"),
    said(
        "lmstudio",
        "Trying to keep the first 6269 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or "
        "provide a shorter input",
        4096,
        6269,
    ),
    said(
        "lmstudio",
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 10978 >= "
        "n_ctx: 8192). Try to load the model with a larger context length, or provide a shorter input.",
        8192,
        10978,
    ),
    said("lmstudio", "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 7424, 15028),
    said(
        "lmstudio",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
    ),
    said(
        "sglang",
        "The input (35034 tokens) is longer than the model's context length (32768 tokens).",
        32768,
        35034,
    ),
    said(
        "sglang",
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of "
        "131265 tokens: 193 tokens from the input messages and 131071 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        131072,
        193,
        131071,
    ),
    said(
        "sglang",
        "Input length (28000 tokens) exceeds the maximum allowed length (24570 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        24570,
        28000,
    ),
    said(
        "tgi",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3997 `inputs` tokens and "
        "100 `max_new_tokens`",
        4096,
        3997,
        100,
    ),
    said("tgi", "Input validation error: `inputs` must have less than 1024 tokens. Given: 1244", 1024, 1244),
    said(
        "together",
        "Input token count + max_tokens parameter must be less than the context length of the model being queried.",
    ),
    said(
        "tabbyapi",
        "Prompt length 40012 exceeds the available context size of 32768 tokens",
        32768,
        40012,
    ),
    said(
        "tabbyapi",
        "Initial job allocation requires 33024 cache tokens, which exceeds the available context size of 32768 tokens",
        32768,
    ),
    said(
        "lmdeploy",
        "Input length (9001) must be smaller than the model context length (8192).",
        8192,
        9001,
    ),
    said("lmdeploy", "The request exceeds the model context length."),
    said(
        "tensorrt",
        "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
        69632,
        72417,
    ),
    said(
        "tensorrt",
        "The sum of prompt length (8000) and query length (0) max_tokens (512) should not exceed max_seq_len (8192)",
        8192,
        8000,
        512,
    ),
    said(
        "tensorrt",
        "`default_max_tokens` (-152) must be greater than 0, `default_max_tokens` (-152) = max_seq_len (8192) - "
        "`splited_prompt_len` (8000) - `query_token_len` (344)",
        8192,
        8344,
    ),
    said(
        "tensorrt",
        "Deduced max_tokens -10 is less than 0, because prompt length 8202 plus query length 0 is larger than "
        "max_seq_len 8192",
        8192,
        8202,
    ),
    said("tensorrt", "`prompt_token_ids` length (9000) is greater than `max_seq_len` (8192)", 8192, 9000),
    said(
        "openrouter",
        "This endpoint's maximum context length is 204800 tokens. However, you requested about 626524 tokens (585543 "
        "of text input, 8981 of tool input, 32000 in the output). Please reduce the length of either one, or use the "
        "context-compression plugin to compress your prompt automatically.",
        204800,
        585543 + 8981,
        32000,
        prompt_is=ABOUT,
    ),
    said(
        "openrouter",
        "This endpoint's maximum context length is 16384 tokens. However, you requested about 94307 tokens (94307 of "
        'text input). Please reduce the length of either one, or use the "middle-out" transform to compress your '
        "prompt automatically.",
        16384,
        94307,
        prompt_is=ABOUT,
    ),
    said(
        "openrouter",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7884 of "
        "text input, 131071 in the output). Please reduce the length of either one.",
        131072,
        7884,
        131071,
        prompt_is=ABOUT,
    ),
    said(
        "cerebras",
        "Please reduce the length of the messages or completion. Current length is 9120 while limit is 8192",
        8192,
        9120,
    ),
    said("groq", "Please reduce the length of the messages or completion."),
    said("fireworks", "The prompt is too long: 40177, model maximum context length: 32767", 32767, 40177),
    said(
        "mistral",
        "Prompt contains 159202 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        131072,
        159202,
    ),
    said(
        "mistral",
        "Prompt contains 66385 tokens, too large for model with 32768 maximum context length",
        32768,
        66385,
    ),
    said("mistral", "Prompt 267060 > 262144 maximum context length", 262144, 267060),
    said(
        "xai",
        "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        131072,
        136973,
    ),
    said(
        "moonshot",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
        262144,
        270000,
    ),
    said("moonshot", "Invalid request: Your request exceeded model token limit: 8192", 8192),
    said("moonshot", "model max length exceeded, max length:8192", 8192),
    said("zhipu", "Prompt exceeds max length"),
    said("zhipu", "tokens in request more than max tokens allowed"),
    said(
        "dashscope",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
        983616,
    ),
    said(
        "gemini",
        "The input token count (3475108) exceeds the maximum number of tokens allowed (1048576).",
        1048576,
        3475108,
    ),
    said(
        "gemini",
        "Unable to submit request because the input token count is 1200000 but the model supports up to 1048576.",
        1048576,
        1200000,
    ),
    said("copilot", "prompt token count of 140000 exceeds the limit of 128000", 128000, 140000),
    said(
        "deepinfra",
        "Requested input length 39818 exceeds maximum input length 32767 (via DeepInfra)",
        32767,
        39818,
    ),
    said(
        "deepinfra",
        "Input length 265330 exceeds the maximum allowed input length of 262144 tokens.",
        262144,
        265330,
    ),
    said("minimax", "invalid params, context window exceeds limit (2013)"),
    said(
        "cohere",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter "
        "prompt, or enabling prompt truncating.",
        4081,
        4292,
    ),
    said("anthropic", "prompt is too long: 213462 tokens > 200000 maximum", 200000, 213462),
    said("anthropic", "prompt is too long: 204521 > 200000", 200000, 204521),
    said(
        "anthropic",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
        200000,
        188240,
        21333,
    ),
    said("anthropic", "The prompt is too long for this model"),
    said("anthropic", "Input is too long for requested model."),
    said(
        "mlx",
        "Prompt too long: 360012 tokens exceeds max context window of 262144 tokens",
        262144,
        360012,
    ),
    said(
        "mlx",
        "Context limit is 49152 tokens; prompt=51402 leaves 0 output tokens, below the minimum 16",
        49152,
        51402,
    ),
    said("mlx", "Prompt exceeds maximum context length"),
    said(
        "ds4",
        "Prompt has 200000 tokens, but the configured context size is 131072 tokens",
        131072,
        200000,
    ),
    said(
        "litellm",
        "litellm.ContextWindowExceededError: Hosted_vllmException - Input does not fit. Received Model Group=x",
    ),
    said("openai", LITELLM_WINDOW.format("OpenAIException", OPENAI_PLAIN), 4097, 4294),
    said(
        "openai",
        LITELLM_WINDOW.format("Hosted_vllmException", json.dumps({"error": {"message": OPENAI_PLAIN}})),
        4097,
        4294,
    ),
    said("generic", "Your prompt of 9001 tokens exceeds the context window of 8192 tokens", 8192, 9001),
    said("generic", "Request rejected: the maximum context length is 8192 tokens.", 8192),
    said(
        "generic",
        "Requested token count exceeds the model's maximum context length of 163840 tokens.",
        163840,
    ),
    said("generic", "The conversation is too long for the context window of 8192 tokens", 8192),
    said("generic", "The conversation exceeds the model's context window."),
    said("generic", "context_length_exceeded: the request is too big for this model"),
)
