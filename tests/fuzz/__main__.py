"""Fuzzing for as long as wanted: `python -m tests.fuzz --seconds 600`.

Rules. The targets take turns. The first broken promise ends the run with status 1: its input is written into the
corpus, where the ordinary tests find it until it is mended, and afterwards. So does one that takes over `PATIENCE`.
"""

import argparse
import signal
import sys
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from types import FrameType, TracebackType
from typing import Final, Self

from tests.fuzz.engine import CORPUS, Fuzzer
from tests.fuzz.mutation import dice
from tests.fuzz.targets import FUZZED

PATIENCE: Final = 20
"""Seconds of the processor for one input; how busy the machine is does not matter."""

TURN: Final = 50
"""Inputs of one target before it is the next one's turn."""


@dataclass
class Watched:
    """A fuzzer with what is told of it at the end; keeps the input that breaks a promise."""

    fuzzer: Fuzzer
    tries: int = 0
    slowest: float = 0.0
    slowest_input: bytes = field(default=b"", repr=False)

    def turn(self, inputs: list[bytes]) -> None:
        with self:
            for data in inputs:
                signal.setitimer(signal.ITIMER_PROF, PATIENCE)
                began = time.process_time()
                self.fuzzer.try_one(data)
                took = time.process_time() - began
                self.tries += 1
                if took > self.slowest:
                    self.slowest, self.slowest_input = took, data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if isinstance(error, Exception):
            name = f"found-{blake2b(self.fuzzer.last, digest_size=4).hexdigest()}"
            path = CORPUS / self.fuzzer.fuzzed.corpus / name
            path.write_bytes(self.fuzzer.last)
            error.add_note(f"{self.fuzzer.fuzzed.name} broke a promise on the input that is now {path}")

    def told(self) -> str:
        name, ways = self.fuzzer.fuzzed.name, len(self.fuzzer.ways)
        size = len(self.slowest_input)
        return f"{name:9} {self.tries:9} inputs {ways:5} ways  slowest {self.slowest:.3f} s of {size} bytes"


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"one input took more than {PATIENCE} seconds")


def main() -> int:
    """Fuzz, and tell what was done."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, all targets together")
    parser.add_argument("--seed", type=int, default=None, help="of chance; another one each time by default")
    parser.add_argument(
        "--target", choices=[each.name for each in FUZZED], action="append", help="only this one"
    )
    options = parser.parse_args()
    seed = time.time_ns() % 10**9 if options.seed is None else options.seed
    sys.stdout.write(f"seed {seed}\n")
    chosen = [each for each in FUZZED if each.name in (options.target or [each.name])]
    watched = [Watched(Fuzzer(each, dice(seed))) for each in chosen]
    inputs = [each.fuzzer.inputs() for each in watched]
    signal.signal(signal.SIGPROF, _too_long)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        for each, source in zip(watched, inputs, strict=True):
            each.turn(list(islice(source, TURN)))
    sys.stdout.writelines(f"{each.told()}\n" for each in watched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
