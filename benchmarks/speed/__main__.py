"""What Transom costs in time and memory, side by side with nginx, a bare relay and LiteLLM; Linux.

Run: python -m benchmarks.speed [FOLDER] [--only small,long,streams,memory] [--rounds 5] [--without litellm]

  small    small chats at 32 connections: requests a second, latency, processor time
  long     conversations of 0.1 to 3.2 MB, first seen and turn by turn, and what other requests wait meanwhile
  streams  200 paced streams: the delay of a chunk; and one stream as fast as it goes
  memory   bytes for an idle stream, and for a remembered conversation

FOLDER holds conversations.jsonl, of which the long conversations are then made; without it they are made up. Everything
runs on the loopback interface, as processes that this program starts and ends: each subject on one core, all else on
the others. Needs nginx and wrk (Debian: apt-get install nginx-light wrk), and installs LiteLLM into .venv-litellm; what
is absent is left out, which is said. What is printed is Markdown.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from benchmarks.speed import idle, long, machine, small, streams
from benchmarks.speed.options import Options
from benchmarks.speed.processes import Absent

PARTS: Final[Mapping[str, Callable[[Options], str]]] = MappingProxyType(
    {"small": small.run, "long": long.run, "streams": streams.run, "memory": idle.run}
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for and print a table for each part."""
    only, pins, options = _options(arguments)
    print(machine.described(), flush=True)
    if pins:
        options = replace(options, core=machine.pinned())
    print(f"\n{_conditions(options)}", flush=True)
    for name in only:
        try:
            text = PARTS[name](options)
        except Absent as reason:
            text = f"{name} is left out: {reason}"
        print(f"\n{text}", flush=True)
    print(f"\n{machine.load()} at the end.")


def _conditions(options: Options) -> str:
    where = "on whatever core the system gives it"
    if options.core is not None:
        where = f"on core {options.core} (taskset -c {options.core}), load and upstream on the others"
    return (
        f"Each subject runs as one process {where}. Figures are medians of {options.rounds} rounds, in which the"
        " subjects take turns; a ratio or a difference is taken within a round."
    )


def _options(arguments: Sequence[str] | None) -> tuple[Sequence[str], bool, Options]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Options()
    add = parser.add_argument
    add("folder", type=Path, nargs="?")
    add("--only", type=_parts, default=tuple(PARTS), metavar="PART,...")
    add("--unpinned", action="store_true", help="leave it to the system which core a process runs on")
    add("--rounds", type=int, default=usual.rounds)
    add(
        "--without",
        type=_names,
        default=(),
        metavar="SUBJECT,...",
        help="subjects to leave out, as named in the tables",
    )
    add("--connections", type=int, default=usual.connections, help="of the small chats")
    add("--seconds", type=int, default=usual.seconds, help="of load on each subject in a round")
    add("--sizes", type=_sizes, default=usual.sizes, metavar="MB,...", help="of the long conversations")
    add("--streams", type=int, default=usual.streams, help="at the same time")
    add("--interval", type=float, default=usual.interval, help="seconds between two chunks of a stream")
    add("--pacing", type=float, default=usual.pacing, help="seconds that the paced streams last")
    add("--chunks", type=int, default=usual.chunks, help="of the stream as fast as it goes")
    add("--idle", type=int, default=usual.idle, help="streams that are open and silent")
    add("--remembered", type=int, default=usual.remembered, help="conversations")
    given = vars(parser.parse_args(arguments))
    return given.pop("only"), not given.pop("unpinned"), Options(**given)


def _names(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _parts(text: str) -> tuple[str, ...]:
    names = _names(text)
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}, only {', '.join(PARTS)}")
    return names


def _sizes(text: str) -> tuple[float, ...]:
    return tuple(map(float, _names(text)))


def _stop(*_: object) -> NoReturn:
    """Whoever ends this program ends what it started too."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    main()
