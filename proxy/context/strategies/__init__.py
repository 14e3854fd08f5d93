"""The ways of making a view smaller: one file each, and this table. The engine names none of them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from proxy.context.edits import Edits
from proxy.context.situation import NeedSummary, Situation
from proxy.context.strategies import drop, elide, images, shorten, summarize

Strategy = Callable[[Situation, Edits], Edits | NeedSummary]

STRATEGIES: Final[Mapping[str, Strategy]] = MappingProxyType(
    {
        "images": images.plan,
        "elide": elide.plan,
        "summarize": summarize.plan,
        "drop": drop.plan,
        "shorten": shorten.plan,
    }
)

LIMITS: Final[tuple[Callable[[Situation, Edits], Edits], ...]] = (images.limit, drop.limit)
"""Applied to every request, whatever its size."""

NAMES: Final = frozenset(STRATEGIES)
