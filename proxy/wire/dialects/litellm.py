"""LiteLLM's proxy: a sentence of its own around that of the upstream, which may be JSON.

Its /utils/token_counter is no counter here: it counts by a tokenizer of its own, and by the provider's only for a few
providers and when told to (documentation: docs.litellm.ai, Token Counting).
"""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, listed
from proxy.wire.dialects.rows import Dialect, wording

DIALECT: Final = Dialect(
    name="litellm",
    wordings=(
        wording(
            r"\bcontextwindowexceedederror\b",
            "source: litellm litellm_core_utils/exception_mapping_utils.py:89-125",
        ),
    ),
    lookalikes=(
        wording(
            r"budget has been exceeded",
            "source: litellm proxy, status 422 in 1.110.2 (money)",
        ),
    ),
    windows=(
        Field(
            Ask(Base.ROOT, "/model/info"),
            "data[].model_info.max_input_tokens",
            listed("data", "model_info", "max_input_tokens"),
            Rank.PUBLISHED,
            "source: litellm proxy (from its bundled list or the configuration; the input alone)",
        ),
    ),
)
