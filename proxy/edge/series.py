"""The kinds of metric: numbers under labels, added up over processes, and written in Prometheus' text format.

Rules. Counting is plain arithmetic on one thread, without locks. A row is what is known under one set of labels: a list
of numbers, which another process's row of the same metric and labels can be added to, and which a process that takes
the place of one that has ended goes on from. Everything that comes from outside of this process is bounded in number
and length.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

Labels: TypeAlias = tuple[str, ...]
Rows: TypeAlias = Mapping[Labels, list[float]]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OTHER: Final = "other"

_MOST_WORDS: Final = 60
_MOST_CHARACTERS: Final = 100


class Series(Protocol):
    """One metric."""

    def rows(self) -> Rows:
        """What this process knows now."""
        ...

    def go_on_from(self, rows: Rows) -> None:
        """Take over what a process knew that has ended."""
        ...

    def added(self, one: list[float], other: list[float]) -> list[float]:
        """The row of two processes together."""
        ...

    def lines(self, rows: Rows) -> Iterator[str]:
        """These rows in the text format, with what the metric is."""
        ...


class Few:
    """Labels for words from outside: the first so many get their own, all others share one."""

    def __init__(self, most: int = _MOST_WORDS) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, word: str) -> str:
        """The label of a word, which gets its own if there is room."""
        if word in self._known:
            return word
        own = word[:_MOST_CHARACTERS].encode("utf-8", "backslashreplace").decode()
        if own not in self._known:
            if not own or len(self._known) >= self._most:
                return OTHER
            self._known.add(own)
        return own

    def know(self, labels: Iterable[str]) -> None:
        """These are labels already."""
        self._known.update(label for label in labels if label != OTHER)


class Counter:
    """A number that rises, for each set of labels. One without labels is there from the start, at zero."""

    def __init__(self, name: str, says: str, *labels: str) -> None:
        self._head = _Head(f"transom_{name}", "counter", says, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, labels: Labels = (), amount: float = 1) -> None:
        """Count so much."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def words(self, place: int) -> Iterator[str]:
        """The labels that are in use, of those at this place."""
        return (labels[place] for labels in self._values)

    def rows(self) -> Rows:
        return {labels: [value] for labels, value in self._values.items()}

    def go_on_from(self, rows: Rows) -> None:
        self._values |= {labels: row[0] for labels, row in rows.items()}

    def added(self, one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0]]

    def lines(self, rows: Rows) -> Iterator[str]:
        yield from self._head.lines()
        for labels, row in rows.items():
            yield self._head.sample("", labels, row[0])


class Gauge:
    """Numbers as they are when somebody asks. `joined` makes one number of those of several processes."""

    def __init__(
        self,
        name: str,
        says: str,
        read: Callable[[], Mapping[Labels, float]],
        *labels: str,
        joined: Callable[[Sequence[float]], float] = max,
    ) -> None:
        self._head = _Head(f"transom_{name}", "gauge", says, labels)
        self._read = read
        self._joined = joined

    def rows(self) -> Rows:
        return {labels: [float(value)] for labels, value in self._read().items()}

    def go_on_from(self, rows: Rows) -> None:
        """It is what it is now."""

    def added(self, one: list[float], other: list[float]) -> list[float]:
        return [self._joined((one[0], other[0]))]

    def lines(self, rows: Rows) -> Iterator[str]:
        yield from self._head.lines()
        for labels, row in rows.items():
            yield self._head.sample("", labels, row[0])


class Histogram:
    """How often a value was within each bound, for each set of labels; their sum stands behind the counts."""

    def __init__(self, name: str, says: str, bounds: Sequence[float], *labels: str) -> None:
        self._head = _Head(f"transom_{name}", "histogram", says, labels)
        self._bounds = bounds
        self._rows: dict[Labels, list[float]] = {}
        if not labels:
            self._rows[()] = self._empty()

    def add(self, labels: Labels, value: float) -> None:
        """Count a value."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = self._empty()
        row[bisect_left(self._bounds, value)] += 1
        row[-1] += value

    def rows(self) -> Rows:
        return self._rows

    def go_on_from(self, rows: Rows) -> None:
        self._rows |= {labels: list(row) for labels, row in rows.items()}

    def added(self, one: list[float], other: list[float]) -> list[float]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def lines(self, rows: Rows) -> Iterator[str]:
        yield from self._head.lines()
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, row in rows.items():
            counts = list(accumulate(row[:-1]))
            for name, count in zip(names, counts, strict=True):
                yield self._head.sample("_bucket", labels, count, f'le="{name}"')
            yield self._head.sample("_count", labels, counts[-1])
            yield self._head.sample("_sum", labels, row[-1])

    def _empty(self) -> list[float]:
        return [0] * (len(self._bounds) + 2)


def sums(all_series: Sequence[Series], processes: Sequence[Sequence[Rows]]) -> Iterator[Rows]:
    """For each metric the rows of all processes together."""
    for at, series in enumerate(all_series):
        found: dict[Labels, list[float]] = {}
        for rows in processes:
            for labels, row in rows[at].items():
                known = found.get(labels)
                found[labels] = row if known is None else series.added(known, row)
        yield found


# --- the text format --------------------------------------------------------------------------------------------


class _Head:
    """What stands above the samples of a metric, and how each begins."""

    def __init__(self, name: str, kind: str, says: str, labels: Sequence[str]) -> None:
        self._name = name
        self._kind = kind
        self._says = says
        self._labels = labels

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self._name} {self._says}"
        yield f"# TYPE {self._name} {self._kind}"

    def sample(self, suffix: str, labels: Labels, value: float, last: str = "") -> str:
        pairs = [f'{name}="{_escaped(text)}"' for name, text in zip(self._labels, labels, strict=True)]
        shown = ",".join([*pairs, last] if last else pairs)
        return f"{self._name}{suffix}{{{shown}}} {value}" if shown else f"{self._name}{suffix} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
