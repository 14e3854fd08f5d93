"""vLLM, in all the wordings that it has had from 0.4 on.

From 0.16 on the tokenizer stops at one token more than fits, so that a prompt of that very size means "at least"; the
rows say so whether the sentence does or not. The forms with characters tell no size of the prompt in tokens.
"""

from typing import Final

from proxy.wire.dialects.counters import TOKENIZE, TOKENIZED, Counter
from proxy.wire.dialects.discovery import MODELS, Field, Rank, listed
from proxy.wire.dialects.rows import ANY, AT_LEAST, COMPLETION, PROMPT, WINDOW, Dialect, wording

_LENGTH: Final = rf"maximum context length is {WINDOW}(?: tokens)?"
_HOWEVER: Final = rf"{_LENGTH}[.,;]? however,? "

DIALECT: Final = Dialect(
    name="vllm",
    wordings=(
        wording(
            rf"{_HOWEVER}you requested {PROMPT} tokens in the messages",
            "source: vllm 0.4.2-0.9.2 entrypoints/openai/serving_engine.py, no output limit asked",
        ),
        wording(
            rf"is too large: {COMPLETION}\. th.{{1,20}}{_LENGTH} and your request has {PROMPT} input tokens",
            "source: vllm 0.10.2 entrypoints/openai/serving_engine.py:685 and renderer.py:386 (this maximum ...)",
            stops_counting=True,
        ),
        wording(
            rf"{_HOWEVER}your request has {PROMPT} input tokens",
            "source: vllm 0.10.2 entrypoints/openai/serving_engine.py:676, 0.16 openai/engine/serving.py:903",
            stops_counting=True,
        ),
        wording(
            rf"you passed {PROMPT} input tokens and requested {COMPLETION} output tokens\. however, "
            rf".{{1,20}}context length is only {WINDOW} tokens",
            "source: vllm 0.16-0.17 renderers/params.py:338; report: kilocode 8698",
            stops_counting=True,
        ),
        wording(
            rf"you passed {ANY} input characters and requested {COMPLETION} output tokens\. however, "
            rf".{{1,20}}context length is only {WINDOW} tokens",
            "source: vllm 0.17.1 renderers/params.py:256",
        ),
        wording(
            rf"{_HOWEVER}you requested {COMPLETION} output tokens and your prompt contains "
            rf"{AT_LEAST}{PROMPT} input tokens",
            "source: vllm 0.18-0.25 renderers/params.py:419, entrypoints/openai/engine/serving.py:779",
            stops_counting=True,
        ),
        wording(
            rf"{_HOWEVER}you requested {COMPLETION} output tokens and your prompt contains {ANY} characters",
            "source: vllm 0.20.0 renderers/params.py:327",
        ),
        wording(
            rf"{_HOWEVER}your prompt contains {AT_LEAST}{PROMPT} input tokens",
            "source: vllm 0.33.0 renderers/params.py:544; recorded: vLLM 0.32.0",
            stops_counting=True,
        ),
        wording(
            rf"{_HOWEVER}your prompt contains {ANY} characters",
            "source: vllm 0.33.0 renderers/params.py:405",
        ),
        wording(
            rf"input length \({PROMPT}\) exceeds (?:the )?model's maximum context length \({WINDOW}\)",
            "source: vllm 0.33.0 renderers/params.py and serve/utils/api_utils.py",
        ),
        wording(
            rf"(?:de|en)coder prompt \(length {PROMPT}\).{{0,80}} longer than the maximum model length of {WINDOW}",
            "source: vllm 0.8.5 v1/engine/processor.py:380, 0.13.0 v1/engine/input_processor.py:632",
        ),
        wording(
            r"max_tokens must be at least 1, got -(?!1\b)[0-9]",
            "source: vllm 0.6 sampling_params.py (the window less the prompt; got -1 is what a client itself sent, as "
            "recorded with vLLM 0.32.0); inspect_ai _providers/vllm.py:486 takes it for an overflow",
        ),
    ),
    lookalikes=(
        wording(
            r"max_tokens ?= ?[0-9]{1,12} cannot be greater than max_model_len",
            "source: vllm 0.20.0 renderers/params.py:206; recorded: vLLM 0.32.0 (the output alone is too long)",
        ),
    ),
    windows=(
        Field(
            MODELS,
            "data[].max_model_len",
            listed("data", "max_model_len"),
            Rank.SERVED,
            "source: vllm entrypoints/serve/engine/protocol.py:105; recorded: vLLM 0.32.0; SGLang's "
            "entrypoints/http_server.py has the same, and null for adapters",
        ),
    ),
    counters=(
        Counter(
            TOKENIZE,
            "count",
            "source: vllm entrypoints/serve/tokenize/protocol.py and serving.py (other members pass without effect, "
            "where a chat puts reasoning_effort, documents and response_format into the template; tools are counted "
            "since 0.9, pull request 18187); recorded: vLLM 0.32.0",
            takes=TOKENIZED,
        ),
    ),
)
