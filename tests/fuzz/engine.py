"""Runs a target on its corpus and on ever new changes of it.

Rules. The same seed and corpus give the same inputs, as long as the target takes them alike. An input that is taken in
a way not seen before joins those that are changed; how many join is bounded.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.mutation import changed
from tests.fuzz.targets import Fuzzed

CORPUS: Final = Path(__file__).parent / "corpus"
_MOST_JOINED: Final = 5000


def corpus(name: str) -> dict[str, bytes]:
    """The inputs of a folder, by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


MOST_BYTES: Final = 96 * 1024


@dataclass
class Fuzzer:
    """`most` bounds the bytes of an input, `last` is the newest one, also when the target has raised."""

    fuzzed: Fuzzed
    chance: Random
    most: int = MOST_BYTES
    pool: list[bytes] = field(default_factory=list)
    ways: set[Hashable] = field(default_factory=set)
    last: bytes = b""

    def inputs(self) -> Iterator[bytes]:
        """All inputs of the corpus, then changes without end."""
        seeds: Sequence[bytes] = list(corpus(self.fuzzed.corpus).values())
        yield from seeds
        while True:
            joined = self.pool and self.chance.random() < 0.7
            base = self.chance.choice(self.pool if joined else seeds)
            yield changed(base, self.chance.choice(seeds), self.chance, self.most)

    def try_one(self, data: bytes) -> None:
        """Hand one input to the target. Raises whatever the target raises."""
        self.last = data
        way = self.fuzzed.target(data)
        if way not in self.ways and len(self.pool) < _MOST_JOINED:
            self.ways.add(way)
            self.pool.append(data)
