"""What a summary costs a real model server: asked of a transcript, and asked behind the prompt that it has just read.

Run: python -m benchmarks.side_calls [FOLDER] [--steps 30] [--window 4096] [--deadline 300]
FOLDER, or TRANSOM_SHARED_DATA, holds `conversations.jsonl`, of which the user's texts are taken; without either they
are made up, the same every time.

llama.cpp's server with SmolLM2-135M and one slot is installed where it is missing and started anew for each mode. One
client holds the same conversation in both, over the window several times, through the proxy with `summary.mode` as
told. The instruction is a plain one of three lines, of any answer to which a summary is made: so small a model writes
none of the sections that the built-in one asks for, and would be shown transcripts alone after two tries. What is
measured is what the server must read, not how good a summary is.

  side calls  those that were answered
  asked       prompt tokens of a side call, the median
  processed   those of them that the model had to read (`timings.prompt_n`), the median; the rest came from its cache
  seconds     that a side call took, the median
  next turn   prompt tokens that the main call behind a side call had to read, the median

The last line tells the share of the transcript's processed tokens that the suffix has; the exit status is 1 where it is
over a tenth.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.memory import served
from benchmarks.real_server import conversation, conversing, texts_of
from benchmarks.served import Call, Relay, counting_relay, model_server
from benchmarks.speed import machine
from benchmarks.speed.tables import table

MODES: Final = ("transcript", "suffix")
MOST: Final = 0.1
"""Of the tokens that a transcript has read, the most that a suffix may."""

PROMPT: Final = """\
{update}Summarise the conversation in at most {words} words: what the user wants, what was said, and every name and
number. Reply with the summary alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """The side calls of one conversation, and the main calls right behind each."""

    side: Sequence[Call]
    behind: Sequence[Call]

    @property
    def processed(self) -> float:
        """Prompt tokens that the model read for a side call, the median."""
        return median(call.processed for call in self.side)

    def row(self, mode: str) -> tuple[str, ...]:
        asked, read = median(call.asked for call in self.side), median(call.processed for call in self.behind)
        seconds = median(call.seconds for call in self.side)
        return (
            mode,
            str(len(self.side)),
            f"{asked:,.0f}",
            f"{self.processed:,.0f}",
            f"{seconds:.1f}",
            f"{read:,.0f}",
        )


def found(relay: Relay, ids: Sequence[str]) -> Found:
    """What the relay saw beside the answers with these ids."""
    side = relay.beside(ids)
    behind = [call for before, call in zip(relay.calls, relay.calls[1:], strict=False) if before in side]
    return Found(side, [call for call in behind if call not in side])


async def measured(mode: str, texts: Sequence[str], options: argparse.Namespace) -> Found:
    """The conversation through a proxy that asks in this mode, before a server of its own."""
    rule = {"match": "*", "summary": {"mode": mode, "prompt": PROMPT}}
    with model_server(window=options.window) as server, tempfile.TemporaryDirectory() as folder:
        async with counting_relay(server.url) as relay:
            config = Path(folder) / "transom.yaml"
            settings = {
                "listen": "127.0.0.1:0",
                "upstream": {"base_url": relay.base_url},
                "side_calls": {"deadline": options.deadline},
                "models": [rule],
                "log": {"format": "json"},
            }
            config.write_text(json.dumps(settings), encoding="utf-8")
            async with served("--config", str(config)) as (_, url):
                steps = conversation(f"{url}/v1", texts, options.answer)
                ids = [step.id async for step in steps]
            return found(relay, ids)


COLUMNS: Final = ("mode", "side calls", "asked", "processed", "seconds", "next turn")


def arguments() -> argparse.ArgumentParser:
    parser = conversing(__doc__, 30)
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds that the proxy waits for a summary"
    )
    return parser


async def run(options: argparse.Namespace) -> int:
    texts = texts_of(options.folder, options.steps, options.characters)
    told = {mode: await measured(mode, texts, options) for mode in MODES}
    print(machine.running())
    print(f"{len(texts)} steps of {options.characters} characters, a window of {options.window} tokens.\n")
    if not all(each.side for each in told.values()):
        print("No side call was answered: too few steps, or too short a deadline.")
        return 1
    print(table(COLUMNS, [each.row(mode) for mode, each in told.items()]))
    share = told["suffix"].processed / told["transcript"].processed
    print(f"\nBehind the prompt a side call reads {share:.1%} of what a transcript has it read.")
    return 0 if share <= MOST else 1


def main(words: Sequence[str] | None = None) -> int:
    return asyncio.run(run(arguments().parse_args(words)))


if __name__ == "__main__":
    sys.exit(main())
