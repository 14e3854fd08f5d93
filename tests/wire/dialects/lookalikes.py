"""Refusals that sound like a full context and are none, and those that say what they are by a code alone."""

from typing import Final

from proxy.wire.dialects import Overflow

# A text and the row of which dialect it is that takes it for something else.
LOOKALIKES: Final = (
    (
        "openai",
        "max_tokens is too large: 128000. This model supports at most 16384 completion tokens, "
        "whereas you provided 128000.",
    ),
    (
        "openai",
        "Invalid 'messages[0].content': string too long. Expected a string with maximum length "
        "1048576, but got a string with length 2000000 instead.",
    ),
    (
        "openai",
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
        "Requested 35012.",
    ),
    ("openai", "You exceeded your current quota, please check your plan and billing details."),
    (
        "vllm",
        "max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer output tokens.",
    ),
    (
        "llamacpp",
        "input (900 tokens) is too large to process. increase the physical batch size (current "
        "batch size: 512)",
    ),
    ("ollama", "max_tokens (384000) exceeds model's maximum output tokens (65536) for model deepseek-v4"),
    ("tgi", "Input validation error: `max_new_tokens` must be <= 192. Given: 200"),
    (
        "openrouter",
        "This request requires more credits, or fewer max_tokens. You requested up to 32000 "
        "tokens, but can only afford 1234.",
    ),
    (
        "groq",
        "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` "
        "is less than the `context_window` for this model",
    ),
    ("moonshot", "Invalid request: total message size 2306631 exceeds limit 2097152"),
    ("dashscope", "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 65536]"),
    ("dashscope", "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    ("gemini", "Request payload size exceeds the limit: 20971520 bytes."),
    (
        "cohere",
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for "
        "this model - received 8192.",
    ),
    (
        "anthropic",
        "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for claude-opus-4-1",
    ),
    ("anthropic", "Request exceeds the maximum size"),
    (
        "generic",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6294932 bytes > 5242880 bytes",
    ),
    ("anthropic", "Too many tokens, please wait before trying again."),
    ("litellm", "Budget has been exceeded! Current cost: 12.3, Max budget: 10.0"),
    ("generic", "litellm.RateLimitError: the model is temporarily rate-limited upstream"),
    (
        "generic",
        "rpc error: code = ResourceExhausted desc = grpc: received message larger than max "
        "(400000002 vs. 4194304)",
    ),
    ("generic", "max_tokens (9000) exceeds the context window of 8192 tokens"),
    ("generic", "1 validation error: body.cache_control Extra inputs are not permitted"),
)

# Refusals that no row is about; they must not be taken for an overflow all the same.
OTHER_REFUSALS: Final = (
    "Invalid image_url: the image could not be downloaded within the maximum size and time limits.",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to "
    "each 'tool_call_id'.",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead.",
    "'messages.2' : property 'reasoning_content' is unsupported",
    "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "Input data may contain inappropriate content.",
    "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
    "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    "Invalid 'max_tokens': integer above maximum value. Expected a value <= 16384, but got 50000 instead.",
    "Invalid schema for function 'read': In context=('properties', 'path'), schema must have a 'type' key.",
    "failed to load the model: the maximum context length is not available",
    "context window: 200000 tokens",
    "Maximum tokens per request: 4096",
    "Input exceeds the context length of 1048576 characters",
    "The server had an error while processing your request. Sorry about that!",
    "model 'llama9' not found",
    "Loading model",
    "error code: 524",
    "Bad Request",
)

# Bodies that say it by a code, whatever else they say.
CODED: Final = (
    (
        {"error": {"message": "refused", "code": "context_length_exceeded"}},
        Overflow("openai"),
    ),
    (
        {"error": {"message": "The limit is 8192 tokens for this tier.", "code": "context_length_exceeded"}},
        Overflow("openai", 8192),
    ),
    (
        {"error": {"message": "no", "code": 400, "metadata": {"error_type": "context_length_exceeded"}}},
        Overflow("openai"),
    ),
    (
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 12045,
                "n_ctx": 8192,
            }
        },
        Overflow("llamacpp", 8192, 12045),
    ),
    (
        {"object": "error", "message": "no", "type": "invalid_request_prompt_too_long", "code": "3059"},
        Overflow("mistral"),
    ),
    ({"error": {"code": "1261", "message": "Prompt 超长"}}, Overflow("zhipu")),
    (
        {"error": {"message": "no", "code": "model_max_prompt_tokens_exceeded"}},
        Overflow("copilot"),
    ),
)

ENDED_AT_ONCE: Final = {
    "id": "1",
    "object": "chat.completion",
    "model": "glm-5",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": "model_context_window_exceeded",
        }
    ],
    "usage": {"prompt_tokens": 202750, "completion_tokens": 0, "total_tokens": 202750},
}
"""A successful answer of z.ai that has no word in it."""
