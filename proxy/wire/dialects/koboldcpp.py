"""KoboldCpp drops the front of a long prompt and refuses nothing; it only tells its window."""

from typing import Final

from proxy.wire.dialects.discovery import Ask, Base, Field, Rank, at
from proxy.wire.dialects.rows import Dialect

DIALECT: Final = Dialect(
    name="koboldcpp",
    windows=(
        Field(
            Ask(Base.ROOT, "/api/extra/true_max_context_length"),
            "value",
            at("value"),
            Rank.LOADED,
            "source: koboldcpp.py 1.76:1746",
        ),
        Field(
            Ask(Base.ROOT, "/api/v1/config/max_context_length"),
            "value",
            at("value"),
            Rank.PUBLISHED,
            "source: koboldcpp.py 1.76:1734; may be set lower than what is loaded",
        ),
    ),
)
