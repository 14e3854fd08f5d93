"""Cerebras. It also refuses without any body, which `judge.says_nothing` is about."""

from typing import Final

from proxy.wire.dialects.rows import PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="cerebras",
    wordings=(
        wording(
            rf"current length is {PROMPT} while limit is {WINDOW}",
            "source: inspect_ai _providers/openai_compatible.py:423, litellm exception_mapping_utils.py:118",
        ),
    ),
)
