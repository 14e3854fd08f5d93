"""What most dialects have in common, for servers that have no file of their own. Always asked last.

A sentence is taken only where it says that something is exceeded or too long, and that the something is a context, a
prompt or an input; a sentence that only mentions a window is none. What rate limits, byte limits and output limits have
in common stands here too.
"""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Code, Dialect, wording

_COMMON: Final = "common: "
_EXCEEDS: Final = r"(?:\bexceed(?:s|ed|ing)?|(?:longer|larger|greater) than|too (?:long|large) for)"
_CONTEXT: Final = r"context (?:length|window|size|limit)"
_NO_TOKENS: Final = r"(?! ?(?:char|byte|kb|mb))"
_NO_SIZE: Final = r"(?!(?: of| is|:)? ?[0-9]{1,24} ?(?:char|byte|kb|mb))"

DIALECT: Final = Dialect(
    name="generic",
    wordings=(
        wording(
            rf"\b{PROMPT}(?: (?:input |prompt )?tokens\)?,?(?: which)?)? exceed(?:s|ed|ing)? [^0-9]{{0,40}}{_CONTEXT}"
            rf"[^0-9]{{0,20}}{WINDOW}{_NO_TOKENS}",
            f"{_COMMON}the sentences of llama.cpp, TabbyAPI and oMLX, in other words",
        ),
        wording(
            rf"maximum {_CONTEXT}(?: is| of|:)? \(?{WINDOW}{_NO_TOKENS}",
            f"{_COMMON}the sentences of OpenAI, vLLM, SGLang and OpenRouter, whatever follows",
        ),
        wording(
            rf"{_EXCEEDS} [a-z' ]{{0,40}}{_CONTEXT}(?: is| of|:)? \(?{WINDOW}{_NO_TOKENS}",
            f"{_COMMON}the sentences of llama.cpp, SGLang and Ollama",
        ),
        wording(
            rf"{_EXCEEDS} [a-z' ]{{0,40}}{_CONTEXT}\b{_NO_SIZE}",
            f"{_COMMON}the sentences of OpenAI, LMDeploy and Ollama without their numbers",
        ),
        wording(
            r"\bcontext[ _](?:length|window|size|limit)[ _](?:has been |was |is )?exceeded\b",
            f"{_COMMON}codes of OpenAI and llama.cpp as text; pi packages/ai/src/utils/overflow.ts",
        ),
    ),
    lookalikes=(
        wording(
            r"\brate[ _-]?limit|too many requests|\bthrottl",
            f"{_COMMON}the sentences of OpenAI, Anthropic, Bedrock and LiteLLM; cline and pi refuse these first too",
        ),
        wording(
            r"\bbytes?\b|entity too large|payload too large|message larger than max",
            f"{_COMMON}limits of Gemini, Anthropic, gRPC and reverse proxies, which are of bytes",
        ),
        wording(
            r"\bmax_(?:completion_|output_|new_)?tokens(?: ?[=:]? ?\(?[0-9]{1,12}\)?)? "
            r"(?:exceeds|cannot (?:be greater than|exceed)|must not exceed|must be less than)",
            f"{_COMMON}the sentences of Groq, vLLM and Ollama Cloud about an output that alone is too long",
        ),
        wording(
            r"extra_forbidden|extra inputs are not permitted|\binput_value=",
            f"{_COMMON}validators of Mistral, Cerebras and FastAPI, which repeat the request in their text",
        ),
    ),
    lookalike_codes=(
        Code("429", f"{_COMMON}the status of a rate limit, within an answer of another status"),
    ),
    numbers=(
        wording(
            rf"(?:{_CONTEXT}|\blimit|\bmaximum|\bwindow)[^0-9]{{0,24}}{WINDOW} (?:input )?tokens",
            f"{_COMMON}no server's sentence; read only where a code has said that the context is full",
        ),
    ),
)
