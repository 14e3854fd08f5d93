"""What can be asked of an upstream about its window, and the best of what it answers.

Rules. One probe for each request, whatever number of dialects read its answer. The order of the answers decides
nothing: the highest rank is taken, and of equals the smallest window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from proxy.wire.dialects.discovery import Ask, Field, Found
from proxy.wire.dialects.table import DIALECTS


@dataclass(frozen=True, slots=True)
class Probe:
    """A request, and the rows of all dialects that read its answer."""

    ask: Ask
    fields: tuple[tuple[str, Field], ...]

    @property
    def name(self) -> str:
        """The key of its answer."""
        return self.ask.name

    @property
    def dialects(self) -> frozenset[str]:
        """Whose request this is."""
        return frozenset(dialect for dialect, _ in self.fields)

    def windows(self, value: object, model: str) -> Found | None:
        """The window of the model by the decoded answer to this probe; None where it tells none."""
        return _best([field.read(value, model, dialect) for dialect, field in self.fields])


def _collect() -> tuple[Probe, ...]:
    rows = [(dialect.name, field) for dialect in DIALECTS for field in dialect.windows]
    asks = dict.fromkeys(field.ask for _, field in rows)
    return tuple(Probe(ask, tuple(row for row in rows if row[1].ask == ask)) for ask in asks)


def _best(readings: list[Found | None]) -> Found | None:
    told = [found for found in readings if found is not None]
    return min(told, key=lambda found: (-found.rank, found.tokens, found.source), default=None)


PROBES: Final = _collect()
_BY_NAME: Final = MappingProxyType({probe.name: probe for probe in PROBES})


def best(answers: Mapping[str, object], model: str) -> Found | None:
    """The window that these decoded answers, by the names of their probes, tell for the model; None for none."""
    known = [(_BY_NAME[name], value) for name, value in answers.items() if name in _BY_NAME]
    return _best([probe.windows(value, model) for probe, value in known])
