"""Prometheus' text format, read as strictly as Prometheus and `promtool check metrics` read it.

Rules. The library's own parser reads the samples; everything that it is lenient about is checked here. What breaks a
rule raises `AssertionError` with the line or the name.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.peers.client import RawClient

TYPES: Final = frozenset({"counter", "gauge", "histogram", "summary"})

NOT_BASE_UNITS: Final = frozenset(
    {
        *("milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "weeks"),
        *("kilobytes", "megabytes", "gigabytes", "kibibytes", "mebibytes", "gibibytes", "bits"),
        *("percent", "fahrenheit", "celcius", "kilograms", "kilometers", "inches", "miles"),
        *("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"),
    }
)
"""Words of a name that promtool finds fault with: other units than the base ones, and abbreviations of units."""

NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

SUFFIXES: Final[Mapping[str, Sequence[str]]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what stands in its HELP and TYPE lines, and its samples."""

    name: str
    kind: str
    says: str
    samples: tuple[Sample, ...]

    @property
    def sample_names(self) -> frozenset[str]:
        """The names that its samples may have."""
        return frozenset(f"{self.name}{suffix}" for suffix in SUFFIXES.get(self.kind, ("",)))

    @property
    def labels(self) -> frozenset[str]:
        """The names of its labels, as far as its samples show any."""
        return frozenset(label for sample in self.samples for label in sample.labels) - {"le"}


@dataclass(frozen=True, slots=True)
class Scrape:
    """All metrics of one answer."""

    text: str
    families: Mapping[str, Family]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 where there is none."""
        return sum(sample.value for sample in self._samples(name) if labels.items() <= sample.labels.items())

    def series(self, name: str, label: str) -> dict[str, float]:
        """The samples of this name by one label, the others summed."""
        found: Counter[str] = Counter()
        for sample in self._samples(name):
            found[sample.labels[label]] += sample.value  # type: ignore[assignment]
        return dict(found)

    def _samples(self, name: str) -> Iterator[Sample]:
        known = [family for family in self.families.values() if name in family.sample_names]
        assert known, f"there is no metric {name}"
        return (sample for family in known for sample in family.samples if sample.name == name)


def read(text: str) -> Scrape:
    """The metrics in a text. Raises AssertionError for what Prometheus or promtool would find fault with."""
    assert text.endswith("\n")
    heads = dict(_heads(text))
    samples: dict[str, list[Sample]] = {name: [] for name in heads}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[_family_of(sample.name, heads)].append(sample)
    families = {name: Family(name, kind, says, tuple(samples[name])) for name, (kind, says) in heads.items()}
    for found in families.values():
        _check(found)
    _check_order(text, heads)
    return Scrape(text, families)


def _heads(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Name, type and help of each metric, which must stand in two lines one behind the other, once for each."""
    lines = [line for line in text.splitlines() if line.startswith("#")]
    assert len(lines) % 2 == 0, "a HELP without its TYPE"
    seen: set[str] = set()
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        name, says = first.removeprefix("# HELP ").split(" ", 1)
        assert first.startswith("# HELP "), first
        assert second.startswith(f"# TYPE {name} "), second
        assert says.strip(), f"{name} says nothing"
        assert name not in seen, f"{name} stands there twice"
        seen.add(name)
        yield name, (second.rpartition(" ")[2], says)


def _family_of(sample: str, heads: Mapping[str, tuple[str, str]]) -> str:
    for name, (kind, _) in heads.items():
        if any(sample == f"{name}{suffix}" for suffix in SUFFIXES.get(kind, ("",))):
            return name
    raise AssertionError(f"{sample} has neither HELP nor TYPE")


def _check(family: Family) -> None:
    name, words = family.name, family.name.split("_")
    assert NAME.fullmatch(name), f"{name} is not in snake case"
    assert family.kind in TYPES, f"{name} is of no known type"
    assert (family.kind == "counter") == name.endswith("_total"), (
        f"{name}: only counters end in _total, and all do"
    )
    assert not TYPES & set(words), f"{name} names its type"
    assert not NOT_BASE_UNITS & set(words), f"{name} is not in a base unit"
    assert not name.endswith(("_bucket", "_sum", "_count", "_created", "_info_info")), name
    series = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples)
    assert not [each for each, times in series.items() if times > 1], f"{name} has a series twice"
    for sample in family.samples:
        assert all(NAME.fullmatch(label) for label in sample.labels), sample
        assert family.kind == "histogram" or "le" not in sample.labels, sample
        assert family.kind != "counter" or sample.value >= 0, sample
    shapes = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    assert len(shapes) <= 1, f"{name} has samples with different labels"
    if family.kind == "histogram":
        _check_histogram(family)


def _check_histogram(family: Family) -> None:
    """Buckets rise and end in +Inf, which counts what `_count` counts; sums never fall."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    ends: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        key = tuple(sorted((label, value) for label, value in sample.labels.items() if label != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        else:
            ends[sample.name.removeprefix(family.name), key] = sample.value
    for key, found in buckets.items():
        assert found == sorted(found), family.name
        assert [count for _, count in found] == sorted(count for _, count in found), family.name
        assert found[0][0] >= 0, f"{family.name} has a bound below zero, and its sum could fall"
        assert found[-1] == (float("inf"), ends["_count", key]), family.name
        assert ends["_sum", key] >= 0, family.name


def _check_order(text: str, heads: Mapping[str, tuple[str, str]]) -> None:
    """All samples of a metric stand together, behind its head."""
    at: str | None = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            at = line.split(" ", 3)[2]
        elif not line.startswith("#"):
            assert _family_of(re.split(r"[{ ]", line, maxsplit=1)[0], heads) == at, line


async def scraped(url: str, after: int = 0) -> Scrape:
    """The proxy's metrics, once so many requests are over: a client may have its answer a little earlier."""
    async with asyncio.timeout(20), RawClient(url) as client:
        while True:
            answer = await client.request("GET", "/-/metrics")
            assert answer.status == 200
            assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
            scrape = read(answer.body.decode("utf-8"))
            if scrape.value("transom_requests_total") >= after:
                return scrape
