"""The course of one request, and all that it says to the edge and is told by it."""

from proxy.exchange.commands import (
    Accepted,
    Ask,
    Command,
    Count,
    Counted,
    Deed,
    Discover,
    Discovered,
    Learn,
    LookUp,
    Measure,
    Measured,
    Memory,
    Order,
    Outcome,
    Pause,
    Prepare,
    Question,
    Refused,
    Relay,
    Relayed,
    Save,
    Send,
    SideCallFailed,
    Summarised,
)
from proxy.exchange.compaction import Compaction, compact
from proxy.exchange.course import Exchange, manage
from proxy.exchange.measurement import Measurement, measure
from proxy.exchange.verdict import Decision, SideCall, Terms, Verdict

__all__ = [
    "Accepted", "Ask", "Command", "Compaction", "Count", "Counted", "Decision", "Deed", "Discover",
    "Discovered", "Exchange", "Learn",
    "LookUp", "Measure", "Measured", "Measurement", "Memory", "Order", "Outcome", "Pause", "Prepare", "Question",
    "Refused", "Relay", "Relayed", "Save", "Send", "SideCall", "SideCallFailed", "Summarised", "Terms",
    "Verdict", "compact", "manage", "measure",
]  # fmt: skip
