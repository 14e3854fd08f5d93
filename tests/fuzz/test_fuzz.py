"""Every reader of foreign bytes is fuzzed a little in each run, always with the same inputs.

`python -m tests.fuzz --seconds 600` does it longer, and each time with others.
"""

from collections.abc import Hashable
from itertools import islice

import pytest

from tests.fuzz.engine import CORPUS, Fuzzer, corpus
from tests.fuzz.mutation import dice
from tests.fuzz.targets import FUZZED, Fuzzed

SMALL = 4096
"""Bytes of an input here; the long runs take larger ones."""


def fuzzer(fuzzed: Fuzzed) -> Fuzzer:
    return Fuzzer(fuzzed, dice(fuzzed.name), SMALL)


def run(fuzzed: Fuzzed) -> int:
    """All tries; in how many ways the target took its inputs."""
    tried = fuzzer(fuzzed)
    for data in islice(tried.inputs(), fuzzed.tries):
        tried.try_one(data)
    return len(tried.ways)


@pytest.mark.parametrize("fuzzed", FUZZED, ids=[each.name for each in FUZZED])
def test_no_bytes_break_a_promise(fuzzed: Fuzzed) -> None:
    assert run(fuzzed) > 5


def test_the_same_chance_makes_the_same_inputs() -> None:
    first, second = (list(islice(fuzzer(FUZZED[0]).inputs(), 300)) for _ in range(2))
    assert first == second
    assert max(map(len, first)) <= SMALL
    assert len(set(first)) > 250


def test_a_planted_fault_is_found() -> None:
    def fragile(data: bytes) -> Hashable:
        assert b'"role":null' not in data.replace(b" ", b"")
        return len(data) // 100

    with pytest.raises(AssertionError):
        run(Fuzzed("fragile", fragile, "requests", tries=20_000))


def test_the_corpus_is_of_small_files_that_a_target_takes_in_turn() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders == {each.corpus for each in FUZZED}
    for folder in folders:
        assert all(len(data) <= SMALL for data in corpus(folder).values())
