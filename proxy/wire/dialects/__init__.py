"""What is known of how upstreams refuse a prompt that is too long, of where they tell their window, and of how they
count a request.

Rules. The engine asks this face and names no dialect. Each dialect is one file of rows, each with its evidence, and one
line in `table.py`. Everything here is pure and total: no bytes and no JSON value make it raise, and the work that one
answer can cause is bounded.
"""

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import MODELS, Ask, Base, Found, Rank
from proxy.wire.dialects.judge import classify, classify_event, says_nothing
from proxy.wire.dialects.probes import PROBES, Probe, best
from proxy.wire.dialects.rows import Exactness, Overflow
from proxy.wire.dialects.table import COUNTERS, prepared

__all__ = [
    "COUNTERS",
    "MODELS",
    "PROBES",
    "Ask",
    "Base",
    "Counter",
    "Exactness",
    "Found",
    "Overflow",
    "Probe",
    "Rank",
    "best",
    "classify",
    "classify_event",
    "prepared",
    "says_nothing",
]
