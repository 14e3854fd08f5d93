"""Memory: what an open, silent stream takes of a process, and what a conversation takes that is remembered.

Rules. Each figure is the growth of a process that was started for it alone, after it has served a little of the same
kind. Conversations are all different; the first third of them is not counted, in which pools and tables get their size.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Final

import uvloop

from benchmarks.memory import conversation
from benchmarks.speed.options import Options
from benchmarks.speed.processes import Server
from benchmarks.speed.streams import PATIENCE, opened
from benchmarks.speed.subjects import Stage, post
from benchmarks.speed.tables import middle, shown, table

CONVERSATION_BYTES: Final = 40_000
WARMING: Final = 20

WINDOWS: Final = (("fits its window", 128_000), ("compacted, 3 windows long", 4_000))

OURS: Final = "transom"


def run(options: Options) -> str:
    """The table. Raises Absent."""
    streams: dict[str, list[float]] = defaultdict(list)
    talks: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for name, grown in _idle_streams(options, is_first=number == 0).items():
            streams[name].append(grown)
        for what, window in WINDOWS:
            if OURS not in options.without:
                talks[what].append(_remembered(options, window))
    rows = [(name, "an idle stream", shown(middle(grown), 1)) for name, grown in streams.items()]
    rows += [
        (OURS, f"a remembered conversation: {what}", shown(middle(grown), 1)) for what, grown in talks.items()
    ]
    title = (
        f"Memory: growth of resident KiB by {options.idle} open, silent streams, and by {options.remembered}"
        f" conversations of {CONVERSATION_BYTES:,} bytes, for each"
    )
    return f"{title}\n\n{table(('', 'for', 'KiB'), rows, left=2)}"


def _idle_streams(options: Options, *, is_first: bool) -> Mapping[str, float]:
    """KiB for each stream, by the subject's name."""
    with Stage(options) as stage:
        upstream = stage.upstream()
        makers = {
            "nginx": partial(stage.nginx, upstream),
            "floor": partial(stage.floor, upstream),
            OURS: partial(stage.transom, upstream, OURS, [{"match": "*", "window": 128_000}]),
        }
        subjects = stage.wanted(makers, tells=is_first)
        return {subject.name: uvloop.run(_growth(subject, options.idle)) for subject in subjects}


async def _growth(subject: Server, streams: int) -> float:
    for _ in range(WARMING):
        stream = await opened(subject.port, "flood 10")
        async with asyncio.timeout(PATIENCE):
            await stream.ended
        stream.close()
    before = subject.resident
    running = [await opened(subject.port, "idle") for _ in range(streams)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(stream.begun for stream in running))
    grown = subject.resident - before
    for stream in running:
        stream.close()
    return grown / streams / 1024


def _remembered(options: Options, window: int) -> float:
    """KiB for each conversation that is sent once."""
    with Stage(options) as stage:
        subject = stage.transom(stage.upstream(), OURS, [{"match": "*", "window": window}])
        uncounted = max(1, options.remembered // 3)
        before = 0
        for number in range(options.remembered):
            if number == uncounted:
                before = subject.resident
            messages = conversation(number, CONVERSATION_BYTES)
            post(subject.port, json.dumps({"model": "bench", "messages": messages}).encode())
        return (subject.resident - before) / max(1, options.remembered - uncounted) / 1024
