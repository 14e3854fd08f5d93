"""OpenAI, and who speaks its sentences: Azure, DeepSeek, old vLLM and llama-cpp-python with an output limit."""

from typing import Final

from proxy.wire.dialects.rows import ANY, COMPLETION, EXTRA, PROMPT, WINDOW, Code, Dialect, wording

_LENGTH: Final = rf"maximum context length is {WINDOW} tokens[.,;]? however,? "

DIALECT: Final = Dialect(
    name="openai",
    wordings=(
        wording(
            rf"{_LENGTH}your (?:messages|prompt|input) resulted in {PROMPT} tokens",
            "report: chathub-dev/chathub 126; with tools the sum stands first, bytedance/deer-flow 310",
        ),
        wording(
            rf"{_LENGTH}you requested {ANY} tokens \({PROMPT} in (?:the messages|your prompt)[,;]"
            rf"(?: {EXTRA} in the (?:functions|tools),)?(?: and)? (?:{COMPLETION}|none) (?:in|for) the completion",
            "report: quivr 505, OpenManus 62 (functions), openrouter-examples 10 (legacy text, code null), vLLM 20409, "
            "fast-agent 621 (DeepSeek); source: llama_cpp/server/errors.py prints None in the completion",
        ),
        wording(
            rf"input tokens exceed the configured limit of {WINDOW} tokens\. your messages resulted in {PROMPT} tokens",
            "report: cline 5474 (gpt-5; the limit of the input alone)",
        ),
        wording(
            r"your input exceeds the context window of this model",
            "report: dyad 1672; source: pi packages/ai/src/utils/overflow.ts",
        ),
    ),
    codes=(
        Code(
            "context_length_exceeded",
            "report: chathub-dev/chathub 126; source: OpenRouter's SDK components/apierrortype.py (as error_type), "
            "tabbyAPI common/errors.py, llama_cpp/server/errors.py",
        ),
    ),
    lookalikes=(
        wording(
            r"supports at most [0-9]{1,12} (?:completion|output) tokens",
            "report: the output limit of a model, in the error for a larger max_tokens",
        ),
        wording(
            r"(?:string|array) too long\. expected an? ",
            "source: litellm litellm_core_utils/exception_mapping_utils.py:97 (characters or elements, no tokens)",
        ),
        wording(
            r"(?:tokens|requests) per (?:min|minute|hour|day)\b|\btpm\b",
            "report: cline error-classification.test.ts; koassistant 106 (Groq's 413: the limit is of a minute)",
        ),
        wording(
            r"exceeded your current quota",
            "documentation: OpenAI's guide to error codes",
        ),
    ),
    lookalike_codes=(
        Code("string_above_max_length", "source: litellm litellm_core_utils/exception_mapping_utils.py:97"),
        Code("array_above_max_length", "source: the counterpart of string_above_max_length for lists"),
        Code("rate_limit_exceeded", "report: koassistant 106; documentation: OpenAI's guide to error codes"),
        Code("insufficient_quota", "documentation: OpenAI's guide to error codes"),
    ),
)
