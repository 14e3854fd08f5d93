"""Recorded conversations through the ladder, at several windows: what is refused, what it costs, what is forwarded.

Run: python -m benchmarks.replay FOLDER [WINDOW ...]   (FOLDER holds conversations.jsonl; windows in tokens)

Each conversation longer than the window is replayed turn by turn, the client resending everything, against a strict
upstream that counts with o200k_base by an arithmetic of its own. Refused requests are listed: those whose system head,
tools, newest round and the user message it works on exceed the window cannot be helped by dropping history.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.replay import Outcomes, ReplayDesk, Sizes, policy_for, recordings, replay

WINDOWS = (8192, 16384, 32768)


@dataclass
class Row:
    """The sums of one window."""

    window: int
    conversations: int = 0
    requests: int = 0
    over_window: int = 0
    side_calls: int = 0
    damaged: int = 0
    refused: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)

    def add(self, outcomes: Outcomes) -> None:
        self.conversations += 1
        self.requests += outcomes.requests
        self.over_window += outcomes.over_window
        self.side_calls += outcomes.side_calls
        self.damaged += len(outcomes.damaged)
        self.refused += outcomes.refused
        self.needless += outcomes.refused_without_need


def measured(folder: Path, window: int, sizes: Sizes) -> Row:
    """All conversations that outgrow this window."""
    row = Row(window)
    for recording in recordings(folder):
        if sum(map(len, recording.raws)) > 2 * window:
            row.add(replay(recording, ReplayDesk(policy_for(window), window=window, sizes=sizes)))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("windows", type=int, nargs="*", default=WINDOWS)
    options = parser.parse_args()
    sizes = Sizes()
    print("  window  conversations  requests  over window  side calls  damaged  refused  needlessly  seconds")
    listed = []
    for window in options.windows:
        began = time.perf_counter()
        row = measured(options.folder, window, sizes)
        seconds = time.perf_counter() - began
        print(
            f"{row.window:8}  {row.conversations:13}  {row.requests:8}  {row.over_window:11}  {row.side_calls:10}  "
            f"{row.damaged:7}  {len(row.refused):7}  {len(row.needless):10}  {seconds:7.0f}",
            flush=True,
        )
        listed += [*row.needless, *row.refused]
    print("\nRefused:", *listed, sep="\n  ")


if __name__ == "__main__":
    main()
