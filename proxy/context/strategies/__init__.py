"""The ways of making a view smaller: one file each, and this table. The engine names none of them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from proxy.context.checkpoint import Edits
from proxy.context.situation import NeedSummary, Situation
from proxy.context.strategies import drop, elide, summarize

Strategy = Callable[[Situation, Edits], Edits | NeedSummary]

STRATEGIES: Final[Mapping[str, Strategy]] = MappingProxyType(
    {"elide": elide.plan, "summarize": summarize.plan, "drop": drop.plan}
)

LIMITS: Final[tuple[Callable[[Situation, Edits], Edits], ...]] = (drop.limit,)
"""Applied to every request, whatever its size."""

NAMES: Final = frozenset(STRATEGIES)
