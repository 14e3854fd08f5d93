"""The ways of making a view smaller: one file each, and this table. The engine names none of them.

What goes through the texts or the messages one by one does so in steps; a pass over numbers is none.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from proxy.context.edits import Edits
from proxy.context.situation import NeedSummary, Situation
from proxy.context.steps import Steps, in_one
from proxy.context.strategies import drop, elide, images, shorten, summarize

Strategy = Callable[[Situation, Edits], Steps[Edits | NeedSummary]]

STRATEGIES: Final[Mapping[str, Strategy]] = MappingProxyType(
    {
        "images": in_one(images.plan),
        "elide": elide.planning,
        "summarize": in_one(summarize.plan),
        "drop": in_one(drop.plan),
        "shorten": shorten.planning,
    }
)

LIMITS: Final[tuple[Callable[[Situation, Edits], Edits], ...]] = (images.limit, drop.limit)
"""Applied to every request, whatever its size."""

NAMES: Final = frozenset(STRATEGIES)
