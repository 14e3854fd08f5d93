"""The strict reader of Prometheus' text format finds what it is there to find."""

import pytest

from tests.edge.exposition import read

GOOD = """\
# HELP a_requests_total Requests.
# TYPE a_requests_total counter
a_requests_total{mode="x"} 1.0
a_requests_total{mode="y"} 2.0
# HELP a_wait_seconds How long.
# TYPE a_wait_seconds histogram
a_wait_seconds_bucket{le="1.0"} 1.0
a_wait_seconds_bucket{le="+Inf"} 2.0
a_wait_seconds_count 2.0
a_wait_seconds_sum 3.5
"""

FAULTS = {
    "no help": ("# HELP a_requests_total Requests.\n", ""),
    "an empty help": ("Requests.", " "),
    "no type": ("# TYPE a_requests_total counter\n", ""),
    "a counter without its ending": ("a_requests_total", "a_requests"),
    "a gauge with a counter's ending": ("a_requests_total counter", "a_requests_total gauge"),
    "another unit": ("a_wait_seconds", "a_wait_milliseconds"),
    "an abbreviated unit": ("a_wait_seconds", "a_wait_ms"),
    "a type in the name": ("a_wait_seconds", "a_wait_histogram_seconds"),
    "capitals": ("a_requests_total", "a_Requests_total"),
    "a series twice": ('{mode="y"}', '{mode="x"}'),
    "other labels": ('{mode="y"}', '{kind="y"}'),
    "a sample of nothing": ("a_wait_seconds_sum", "b_wait_seconds_sum"),
    "no last bucket": ('a_wait_seconds_bucket{le="+Inf"} 2.0\n', ""),
    "buckets that fall": ('{le="1.0"} 1.0', '{le="1.0"} 3.0'),
    "a count that is another": ("_count 2.0", "_count 1.0"),
    "no end of line": ("_sum 3.5\n", "_sum 3.5"),
    "a sample behind another metric": (
        'a_requests_total{mode="y"} 2.0\n# HELP a_wait_seconds How long.\n# TYPE a_wait_seconds histogram\n',
        '# HELP a_wait_seconds How long.\n# TYPE a_wait_seconds histogram\na_requests_total{mode="y"} 2.0\n',
    ),
    "a metric twice": (
        "# HELP a_wait_seconds How",
        "# HELP a_requests_total R.\n# TYPE a_requests_total counter\n# HELP a_wait_seconds How",
    ),
}


def test_what_is_good_is_read() -> None:
    scrape = read(GOOD)
    assert scrape.value("a_requests_total") == 3
    assert scrape.value("a_requests_total", mode="y") == 2
    assert scrape.series("a_requests_total", "mode") == {"x": 1, "y": 2}
    assert scrape.value("a_wait_seconds_count") == 2


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(fault: tuple[str, str]) -> None:
    before, after = fault
    assert before in GOOD
    with pytest.raises((AssertionError, ValueError, KeyError)):
        read(GOOD.replace(before, after))
