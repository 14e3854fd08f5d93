"""What an answer's `usage` says, read from any JSON value.

Rules. `read_usage` is total: whatever JSON value it is given, it raises nothing, and what it cannot believe
is None. A count is believed when it is a whole number within bounds; a string, a boolean, a negative, NaN or
1e12 is not one, and a prompt of zero tokens means that the server did not count. The fields are as reported:
servers disagree on whether `prompt_tokens` includes what came from a cache, so the learner chooses among the
readings.
"""

from collections.abc import Iterable

import msgspec

_MOST_TOKENS = 100_000_000
"""No window comes near this; a larger count is a fault of the server."""

_PLACEHOLDER = (100, 100, 200)
"""Prompt, completion and total of KoboldCpp 1.76, which invents them."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer, each as reported, or None where nothing believable was.

    `cached_tokens`: the part of the prompt that came from a cache, by `prompt_tokens_details.cached_tokens`
    (OpenAI and most others) or `prompt_cache_hit_tokens` (DeepSeek); both normally count it within
    `prompt_tokens`. `cache_read_tokens`, `cache_written_tokens`: the top-level `cache_read_input_tokens` and
    `cache_creation_input_tokens` of gateways to Anthropic models, counted within `prompt_tokens` by some of
    them and beside it by others.
    """

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_written_tokens: int | None = None

    @property
    def prompt_readings(self) -> tuple[int, ...]:
        """The sizes, in tokens and ascending, that the whole prompt can have had; empty when that is unknown.

        Mostly one. Two where cached tokens may stand beside `prompt_tokens`: as reported, and with them added
        (prompt_tokens 50 and cache_read_input_tokens 950 mean 50 or 1000). Which it is, the estimate tells
        (B54).
        """
        if self.prompt_tokens is None:
            return ()
        beside = (self.cache_read_tokens or 0) + (self.cache_written_tokens or 0)
        if not beside and self.cached_tokens is not None and self.cached_tokens > self.prompt_tokens:
            beside = self.cached_tokens  # A part cannot exceed its whole, so this was no part.
        return (self.prompt_tokens, self.prompt_tokens + beside) if beside else (self.prompt_tokens,)

    @property
    def cached(self) -> int | None:
        """Tokens of the prompt that were read from a cache, by whichever name; None where none is reported."""
        return self.cache_read_tokens if self.cached_tokens is None else self.cached_tokens


def together(one: Usage | None, other: Usage | None) -> Usage | None:
    """What two calls cost; what neither of them told is None."""
    if one is None or other is None:
        return one or other
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return Usage(*(None if a is None and b is None else (a or 0) + (b or 0) for a, b in pairs))


def read_usage(value: object) -> Usage | None:
    """The usage that a decoded JSON value reports; None unless a prompt or a completion has some tokens.

    `total_tokens` alone tells neither, and is not read. Raises nothing.
    """
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    part = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, completion, hit, read, written, cached = _counts((*map(value.get, _COUNTS), part))
    if not prompt and not completion:
        return None
    if (prompt, completion, value.get("total_tokens")) == _PLACEHOLDER:
        return None
    return Usage(prompt or None, completion, hit if cached is None else cached, read, written)


_COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "prompt_cache_hit_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


def _counts(values: Iterable[object]) -> list[int | None]:
    """Each as a believable number of tokens, None where it is none."""
    counts: list[int | None] = []
    for value in values:
        number = value if value is None or type(value) is int else _whole(value)
        counts.append(number if number is not None and 0 <= number <= _MOST_TOKENS else None)
    return counts


def _whole(value: object) -> int | None:
    """Gateways in a language with one kind of number may write 12 as 12.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else None
