"""What it costs to count one request: `begun` and `note` of `Metrics` for a small managed one that went well.

Run it as `python -m benchmarks.metrics_cost` from the top of the checkout; it takes a few seconds. Processor
time, of which the best round is printed: whatever else runs on the machine only adds to it.
"""

import time

from proxy.context.policy import Mode
from proxy.edge.ledger import Beginning, Repeats
from proxy.edge.metrics import Added, Finished, Metrics
from proxy.exchange import Verdict
from proxy.wire.usage import Usage

REQUESTS = 10_000
ROUNDS = 15

VERDICT = Verdict(
    "gpt-4.1",
    Mode.MANAGE,
    window=200_000,
    window_source="configured",
    trigger=150_000,
    original=1200,
    forwarded=1200,
    raw=1180,
    usage_based=True,
    factor=1.02,
    frame="0123456789abcdef",
    status=200,
    usage=Usage(1210, 50, 600),
    complete=True,
)


def count(metrics: Metrics) -> None:
    """One request, as a server tells of it."""
    metrics.begun()
    finished = Finished(
        mode=Mode.MANAGE,
        status=200,
        complete=True,
        reason="",
        bypass="",
        seconds=0.8,
        verdict=VERDICT,
        added=Added(0.001, 0.0005),
        beginning=Beginning(Repeats.EXTENDED, 1000),
    )
    metrics.note(finished)


def microseconds(metrics: Metrics) -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        count(metrics)
    return (time.process_time() - began) / REQUESTS * 1e6


def main() -> None:
    metrics = Metrics()
    print(f"counting a request {min(microseconds(metrics) for _ in range(ROUNDS)):.1f} us")
    began = time.process_time()
    size = len(metrics.exposed())
    print(f"exposing {size} bytes {(time.process_time() - began) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
