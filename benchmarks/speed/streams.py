"""Streams: how much later a chunk arrives, of many paced streams at once; and how fast one stream goes.

Rules. Each chunk says when it was sent, by a clock that all processes of a machine share. The streams begin evenly
spread over the interval, so that their chunks do not come in bursts that no real load has. No chunk may be missing.
What is added is a percentile less the same one of the direct way, within a round.
"""

import asyncio
import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import uvloop

from benchmarks.speed.options import Options
from benchmarks.speed.processes import HOST, Server
from benchmarks.speed.subjects import Stage
from benchmarks.speed.tables import Target, middle, over_rounds, percentile, ratio, shown, table, targets

BODY: Final = b'{"model":"bench","stream":true,"messages":[{"role":"user","content":"Tell me of the sea."}]}'
WARMING: Final = 0.5
"""Seconds at the start of the paced streams whose chunks do not count."""

HALF: Final = 0.5
"""The load, in cores, at which the delay has its target."""

TOLERANCE: Final = 0.1
"""How far from it the load may be for the target to be judged."""

TRIES: Final = 3
"""Paced runs by which the interval for that load is found."""

NEAR: Final = 4
"""So many times longer or shorter than the one given may that interval be."""

PATIENCE: Final = 300.0
OURS: Final = "transom"

_EVENT: Final = b"data: "
_SENT: Final = re.compile(rb'"content":"(\d+) "')
_LAST: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Paced:
    """One subject in one round: delays in milliseconds, microseconds of processor time for a chunk, load in cores."""

    p50: float
    p99: float
    cpu: float
    load: float


@dataclass(frozen=True, slots=True)
class Flood:
    """One stream as fast as it goes: chunks a second, and microseconds of processor time for one."""

    rate: float
    cpu: float


class Stream(asyncio.Protocol):
    """One stream of a client, kept as it came; what it says is read when it is over, so that reading delays nothing."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._raw = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ends: list[int] = []
        self._times: list[int] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._times.append(time.monotonic_ns())
        self._raw += data
        self._ends.append(len(self._raw))
        if not self.begun.done() and self._raw.find(_EVENT) >= 0:
            self.begun.set_result(None)
        if self._raw.endswith(_LAST) and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        for each in (self.begun, self.ended):
            if not each.done():
                each.set_exception(ConnectionError("a stream broke off"))
                each.exception()  # whoever awaits it is told; nobody has to

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def seconds(self) -> float:
        """From the first bytes to the last."""
        return max(1, self._times[-1] - self._times[0]) / 1e9

    def arrivals(self) -> list[tuple[int, int]]:
        """Of each chunk, when it was sent and when it came."""
        body, frames = unframed(bytes(self._raw))
        found = []
        at = 0
        for event in _SENT.finditer(body):
            while frames[at][0] < event.end():
                at += 1
            in_body, in_raw = frames[at]
            piece = bisect_left(self._ends, in_raw - (in_body - event.end()))
            found.append((int(event[1]), self._times[piece]))
        return found


def unframed(raw: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The body of an answer in chunked coding; of each of its frames the end in the body and in `raw`.

    Servers may frame anew, and then a frame ends anywhere in an event.
    """
    pieces: list[bytes] = []
    frames: list[tuple[int, int]] = []
    at, total = raw.index(b"\r\n\r\n") + 4, 0
    while size := int(raw[at : (line := raw.index(b"\r\n", at))], 16):
        pieces.append(raw[line + 2 : line + 2 + size])
        total += size
        frames.append((total, line + 2 + size))
        at = line + 4 + size
    return b"".join(pieces), frames


def request(answer: str) -> bytes:
    """A streamed chat that is to be answered so."""
    fields = f"Host: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\nX-Answer: {answer}\r\n"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n".encode() + BODY


async def opened(port: int, answer: str) -> Stream:
    """A stream that has been asked for."""
    make = partial(Stream, request(answer))
    _, stream = await asyncio.get_running_loop().create_connection(make, HOST, port)
    return stream


def run(options: Options) -> str:
    """The tables and the targets. Raises Absent."""
    with Stage(options) as stage:
        upstream = stage.upstream()
        subjects = stage.wanted(
            {
                "direct": partial(stage.direct, upstream),
                "nginx": partial(stage.nginx, upstream),
                "floor": partial(stage.floor, upstream),
                OURS: partial(stage.transom, upstream, OURS, [{"match": "*", "window": 128_000}]),
            }
        )
        given = _paced(subjects, options, options.interval)
        interval = _interval_of_half(subjects, options)
        half = _paced(subjects, options, interval)
        floods = _floods(subjects, options)
    parts = (
        _paced_table(given, options, options.interval),
        _paced_table(half, options, interval),
        _flood_table(floods, options),
        _targets(half, floods),
    )
    return "\n\n".join(parts)


# --- paced ------------------------------------------------------------------------------------------------------------


def _paced(subjects: Sequence[Server], options: Options, interval: float) -> Mapping[str, list[Paced]]:
    found: dict[str, list[Paced]] = defaultdict(list)
    for number in range(options.rounds):
        for subject in options.in_turn(subjects, number):
            course = _paced_streams(subject, options.streams, interval, options.pacing)
            found[subject.name].append(uvloop.run(course))
    return found


async def _paced_streams(subject: Server, streams: int, interval: float, seconds: float) -> Paced:
    """Many streams at once, of so many seconds each."""
    chunks = max(1, int(seconds / interval))
    loop = asyncio.get_running_loop()
    began, used, since = loop.time(), subject.cpu, time.monotonic_ns()
    opening = []
    for number in range(streams):
        await asyncio.sleep(max(0.0, began + number * interval / streams - loop.time()))
        opening.append(asyncio.create_task(opened(subject.port, f"paced {chunks} {interval:.6f}")))
    running = await asyncio.gather(*opening)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(stream.ended for stream in running))
    cpu, lasted = subject.cpu - used, loop.time() - began
    arrivals = [_all_of(chunks, stream, subject) for stream in running]
    start = since + min(WARMING, seconds / 2) * 1e9
    delays = [(came - sent) / 1e6 for each in arrivals for sent, came in each if sent >= start]
    return Paced(
        p50=percentile(delays, 0.5),
        p99=percentile(delays, 0.99),
        cpu=cpu / (streams * chunks) * 1e6,
        load=cpu / lasted,
    )


def _interval_of_half(subjects: Sequence[Server], options: Options) -> float:
    """How often the chunks have to come for ours to use half a core.

    It is found by trying: a chunk costs less the more come at once. On a machine that is busy with something else there
    may be none, so that what is found stays near what was given.
    """
    interval = options.interval
    for subject in subjects:
        for _ in range(TRIES if subject.name == OURS else 0):
            tried = uvloop.run(_paced_streams(subject, options.streams, interval, options.pacing))
            wanted = interval * tried.load / HALF
            interval = min(max(wanted, options.interval / NEAR), options.interval * NEAR)
    return interval


def _all_of(chunks: int, stream: Stream, subject: Server) -> list[tuple[int, int]]:
    """When the chunks of a stream that is over were sent and came."""
    stream.close()
    arrivals = stream.arrivals()
    assert len(arrivals) == chunks, f"{subject.name} passed on {len(arrivals)} of {chunks} chunks"
    return arrivals


def _paced_table(found: Mapping[str, list[Paced]], options: Options, interval: float) -> str:
    columns = ("", "p50 ms", "added", "p99 ms", "added", "CPU us/chunk", "load of a core")
    rows = []
    for name, rounds in found.items():
        is_relay = name != "direct"
        rows.append(
            (
                name,
                shown(middle(each.p50 for each in rounds), 2),
                shown(_added_p50(found, name) if is_relay else None, 2),
                shown(middle(each.p99 for each in rounds), 2),
                shown(_added_p99(found, name) if is_relay else None, 2),
                shown(middle(each.cpu for each in rounds) if is_relay else None, 0),
                shown(middle(each.load for each in rounds) if is_relay else None, 2),
            )
        )
    rate = options.streams / interval
    return (
        f"Paced streams: {options.streams} at once, a chunk every {1000 * interval:.1f} ms each, {rate:,.0f} a second;"
        f" the delay of a chunk\n\n{table(columns, rows)}"
    )


def _added_p50(found: Mapping[str, list[Paced]], name: str) -> float | None:
    return _difference([each.p50 for each in found[name]], [each.p50 for each in found.get("direct", ())])


def _added_p99(found: Mapping[str, list[Paced]], name: str) -> float | None:
    ours = [each.p99 for each in found.get(name, ())]
    return _difference(ours, [each.p99 for each in found.get("direct", ())])


def _difference(ours: Sequence[float], direct: Sequence[float]) -> float | None:
    return over_rounds(ours, direct, lambda a, b: a - b)


# --- as fast as it goes -----------------------------------------------------------------------------------------------


def _floods(subjects: Sequence[Server], options: Options) -> Mapping[str, list[Flood]]:
    found: dict[str, list[Flood]] = defaultdict(list)
    for number in range(options.rounds):
        for subject in options.in_turn(subjects, number):
            found[subject.name].append(uvloop.run(_flood(subject, options.chunks)))
    return found


async def _flood(subject: Server, chunks: int) -> Flood:
    used = subject.cpu
    stream = await opened(subject.port, f"flood {chunks}")
    async with asyncio.timeout(PATIENCE):
        await stream.ended
    used = subject.cpu - used
    _all_of(chunks, stream, subject)
    return Flood(chunks / stream.seconds, used / chunks * 1e6)


def _flood_table(found: Mapping[str, list[Flood]], options: Options) -> str:
    columns = ("", "chunks/s", "of floor", "CPU us/chunk", "x floor's CPU")
    rows = []
    for name, rounds in found.items():
        is_relay = name != "direct"
        rows.append(
            (
                name,
                shown(middle(each.rate for each in rounds), 0),
                shown(_rate_ratio(found, name), 2),
                shown(middle(each.cpu for each in rounds) if is_relay else None, 1),
                shown(_cpu_ratio(found, name, "floor") if is_relay else None, 2),
            )
        )
    return f"One stream as fast as it goes: {options.chunks:,} chunks\n\n{table(columns, rows)}"


def _rate_ratio(found: Mapping[str, list[Flood]], name: str) -> float | None:
    ours = [each.rate for each in found.get(name, ())]
    return over_rounds(ours, [each.rate for each in found.get("floor", ())], ratio)


def _cpu_ratio(found: Mapping[str, list[Flood]], ours: str, theirs: str) -> float | None:
    mine = [each.cpu for each in found.get(ours, ())]
    return over_rounds(mine, [each.cpu for each in found.get(theirs, ())], ratio)


def _targets(half: Mapping[str, list[Paced]], floods: Mapping[str, list[Flood]]) -> str:
    load = middle(each.load for each in half.get(OURS, ()))
    is_half = load is not None and abs(load - HALF) <= TOLERANCE
    wanted = (
        Target(
            f"at half a core (load {shown(load, 2)}) the p99 adds at most 5 ms",
            _added_p99(half, OURS) if is_half else None,
            most=5,
        ),
        Target(
            "one stream goes at least 0.7 times as fast as through the floor", _rate_ratio(floods, OURS), 0.7
        ),
        Target("the same by processor time", _cpu_ratio(floods, "floor", OURS), 0.7),
    )
    return "Targets:\n\n" + targets(wanted)
