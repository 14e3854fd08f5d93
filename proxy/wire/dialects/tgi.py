"""Text Generation Inference, status 422; Together spoke so until 2024, with counts that are one too high."""

from typing import Final

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, at
from proxy.wire.dialects.rows import COMPLETION, PROMPT, WINDOW, Dialect, wording

_INFO: Final = Ask(Base.ROOT, "/info")

DIALECT: Final = Dialect(
    name="tgi",
    wordings=(
        wording(
            rf"inputs tokens \+ max_new_tokens must be <= {WINDOW}\. given: {PROMPT} inputs tokens and {COMPLETION} ",
            "source: text-generation-inference router/src/validation.rs:997; report: helm 2079 (Together)",
        ),
        wording(
            rf"inputs must have less than {WINDOW} tokens\. given: {PROMPT}",
            "source: text-generation-inference router/src/validation.rs:1001 (a limit of the input alone)",
        ),
    ),
    lookalikes=(
        wording(
            r"(?<!\+ )max_new_tokens must be <=",
            "source: text-generation-inference router/src/validation.rs (the output alone is too long)",
        ),
    ),
    windows=(
        Field(
            _INFO,
            "max_total_tokens",
            at("max_total_tokens"),
            Rank.SERVED,
            "source: text-generation-inference router/src/lib.rs, Info",
        ),
    ),
    counters=(
        Counter(
            Ask(Base.ROOT, "/chat_tokenize", method="POST"),
            "tokenize_response[]",
            "source: text-generation-inference router/src/server.rs, get_chat_tokenize (makes of the body what a chat "
            "makes of it); an answer, with a doubled first token that later versions leave out: pull request 2333",
        ),
    ),
)
