"""Events beyond the bound: not read, but known for events with data by the lines that begin within it."""

import pytest

from proxy.wire.sse import Observer
from tests.peers.answers import slices

LONG = b"x" * 300


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("event", "frames"),
    [
        (b"data: " + LONG, 1),
        (b"data\nid: " + LONG, 1),
        (b"id: 1\ndata: " + LONG, 1),
        (b"id: 1\rdata:" + LONG, 1),
        (b"database: x\r\ndata\r\nid: " + LONG, 1),
        (b"id: " + LONG, 0),
        (b"database: x\n data: x\nid: data:" + LONG, 0),
        (b"id: " + LONG + b"\ndata: x", 0),
    ],
)
def test_b87_an_event_beyond_the_bound_counts_when_a_line_of_data_begins_within_it(
    event: bytes, frames: int, size: int
) -> None:
    watch = Observer(100)
    for chunk in slices(event + b"\n\n", size):
        assert watch.feed(chunk) == chunk
    assert (watch.frames, watch.usage, watch.started) == (frames, None, True)
