"""Long conversations: what a first request and each further turn take more than without anything between.

Rules. A conversation that was counted once is never sent again as a first one. Added time is the subject's less that of
the direct way in the same round. The delay of others is measured in a pass of its own, by small requests one after the
other while the long ones are under way, and is what they take more than in the quiet before: on a busy machine the
direct way's own delay shows how much of it is the machine's.
"""

import http.client
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Final

from benchmarks.speed.options import Options
from benchmarks.speed.processes import HOST, Server
from benchmarks.speed.subjects import Stage, post
from benchmarks.speed.tables import (
    ABSENT,
    Target,
    middle,
    over_rounds,
    percentile,
    ratio,
    shown,
    table,
    targets,
)
from benchmarks.speed.talks import Talk, grown, made_up, recorded
from proxy.edge.tokenizer import Encoder, load_encoding

TURNS: Final = 6
QUIET: Final = 40
"""Small requests before the long ones begin, by which the delay is measured."""

PAUSE: Final = 0.001
"""Seconds between two small requests."""

TIKTOKEN: Final = "tiktoken"
OURS: Final = "transom"
OVER: Final = "transom-over"
FITTING: Final = 0.7
"""Tokens of the window for each byte of the first request: no less than it counts, and no more than its bytes."""

OVERFLOWING: Final = 1 / 12
"""The same where the conversation is some three windows long."""

SMALL: Final = b'{"model":"bench","messages":[{"role":"user","content":"Are you there?"}]}'

COLUMNS: Final = (
    "MB",
    "",
    "first ms",
    "added",
    "CPU",
    "later ms",
    "added",
    "CPU",
    "x floor",
    "others p99 ms",
    "max",
    "first / later",
)


@dataclass(frozen=True, slots=True)
class Taken:
    """One conversation through one subject, in milliseconds. `later` and its processor time are of one turn."""

    first: float
    later: float
    first_cpu: float
    later_cpu: float
    done: str = ""


@dataclass(frozen=True, slots=True)
class Delays:
    """What small requests took more while long ones were under way, in milliseconds."""

    p99: float
    most: float


@dataclass
class Results:
    """All rounds of one size, by the subject's name."""

    size: int
    taken: dict[str, list[Taken]] = field(default_factory=lambda: defaultdict(list))
    delays: dict[str, list[Delays]] = field(default_factory=lambda: defaultdict(list))

    def firsts(self, name: str) -> list[float]:
        return [each.first for each in self.taken.get(name, ())]

    def laters(self, name: str) -> list[float]:
        return [each.later for each in self.taken.get(name, ())]

    def first_cpus(self, name: str) -> list[float]:
        return [each.first_cpu for each in self.taken.get(name, ())]

    def later_cpus(self, name: str) -> list[float]:
        return [each.later_cpu for each in self.taken.get(name, ())]

    def added_first(self, name: str) -> list[float]:
        """What the first request took more than the direct way, by rounds."""
        return _less(self.firsts(name), self.firsts("direct"))

    def added_later(self, name: str) -> list[float]:
        """The same of a further turn."""
        return _less(self.laters(name), self.laters("direct"))

    def longest_delay(self, name: str) -> float | None:
        """The longest delay of another request, the median of the rounds."""
        return middle(each.most for each in self.delays.get(name, ()))


def _less(ours: Sequence[float], direct: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(ours, direct, strict=True)] if direct else []


def run(options: Options) -> str:
    """The table and the targets. Raises Absent."""
    source = recorded(options.folder) if options.folder else made_up
    encoder = load_encoding("o200k_base")
    assert encoder is not None, "the vocabulary comes with the installation"
    sizes = [int(each * 1e6) for each in options.sizes]
    with Stage(options) as stage:
        upstream = stage.upstream()
        subjects = stage.wanted(
            {
                "direct": partial(stage.direct, upstream),
                "nginx": partial(stage.nginx, upstream),
                "floor": partial(stage.floor, upstream),
                OURS: partial(stage.transom, upstream, OURS, _models(sizes)),
            }
        )
        subjects += [
            replace(each, name=OVER) for each in subjects if each.name == OURS and OVER not in options.without
        ]
        results = [_measured(grown(source, size, TURNS), size, subjects, encoder, options) for size in sizes]
    return f"{_title(options)}\n\n{_table(results)}\n\n{_targets(results)}"


def _models(sizes: Sequence[int]) -> list[Mapping[str, object]]:
    shares = {OURS: FITTING, OVER: OVERFLOWING}
    rules = [
        {"match": f"{name}-{size}", "window": int(size * share)}
        for size in sizes
        for name, share in shares.items()
    ]
    return [*rules, {"match": "*", "window": 128_000}]


def _measured(
    talk: Talk, size: int, subjects: Sequence[Server], encoder: Encoder, options: Options
) -> Results:
    results = Results(size)
    for number in range(options.rounds):
        for subject in options.in_turn(subjects, number):
            bodies = partial(talk.under, f"{subject.name}-{size}")
            results.taken[subject.name].append(_timed(subject, bodies(f"{number:03}t")))
            results.delays[subject.name].append(_delays(subject, bodies(f"{number:03}d")))
        results.taken[TIKTOKEN].append(_counted(talk, encoder))
    return results


def _timed(subject: Server, bodies: Sequence[bytes]) -> Taken:
    """A conversation turn by turn on one connection, which is open before."""
    connection = http.client.HTTPConnection(HOST, subject.port, timeout=120)
    try:
        _asked(connection, SMALL)
        begun = subject.cpu
        first, done = _asked(connection, bodies[0])
        between = subject.cpu
        later = [_asked(connection, body) for body in bodies[1:]]
        end = subject.cpu
    finally:
        connection.close()
    seconds = median(seconds for seconds, _ in later)
    each = (end - between) / len(later)
    said = f"{done} / {later[-1][1]}" if done else ""
    return Taken(1000 * first, 1000 * seconds, 1000 * (between - begun), 1000 * each, said)


def _asked(connection: http.client.HTTPConnection, body: bytes) -> tuple[float, str]:
    """The seconds that an answer took, and what it says was done."""
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    seconds = time.perf_counter() - began
    assert answer.status == 200, f"answered {answer.status}: {said[:500]!r}"
    return seconds, answer.getheader("x-context-actions", "")


def _counted(talk: Talk, encoder: Encoder) -> Taken:
    """A bare count of the texts of the first request."""
    began, used = time.perf_counter(), time.thread_time()
    for text in talk.texts:
        encoder.encode_ordinary(text)
    seconds = time.perf_counter() - began
    return Taken(1000 * seconds, 0.0, 1000 * (time.thread_time() - used), 0.0)


def _delays(subject: Server, bodies: Sequence[bytes]) -> Delays:
    """Small requests on a connection of their own, first in quiet and then while a conversation goes on beside them."""
    others = _Others(subject)
    others.start()
    try:
        others.settled.wait()
        for body in bodies:
            post(subject.port, body)
    finally:
        others.stop.set()
        others.join()
    quiet = median(others.seconds[:QUIET])
    late = [1000 * (each - quiet) for each in others.seconds[QUIET:]] or [0.0]
    return Delays(percentile(late, 0.99), max(late))


class _Others(threading.Thread):
    """Whoever else uses the server: a small request after the other, until they are told to stop."""

    def __init__(self, subject: Server) -> None:
        super().__init__()
        self._subject = subject
        self.settled, self.stop = threading.Event(), threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection(HOST, self._subject.port, timeout=120)
        try:
            while not self.stop.wait(PAUSE):
                self.seconds.append(_asked(connection, SMALL)[0])
                if len(self.seconds) == QUIET:
                    self.settled.set()
        finally:
            self.settled.set()
            connection.close()


def _title(options: Options) -> str:
    what = f"recorded in {options.folder}" if options.folder else "made up"
    return (
        f"Long conversations, {what}: the first request and each of {TURNS} later turns; added: over the direct way;"
        " CPU: ms of the process;\nothers: the delay of small requests meanwhile; tiktoken: a bare count of the texts;"
        f" {OVER}: through a window of about a third"
    )


def _table(results: Sequence[Results]) -> str:
    rows = [_row(each, name) for each in results for name in (*_subjects(each), TIKTOKEN)]
    return table(COLUMNS, rows, left=2)


def _subjects(results: Results) -> list[str]:
    order = ("direct", "nginx", "floor", OURS, OVER)
    return [name for name in order if name in results.taken]


def _row(results: Results, name: str) -> tuple[str, ...]:
    is_relay = name not in ("direct", TIKTOKEN)
    has_later = name != TIKTOKEN
    has_cpu = name != "direct"
    delays = results.delays.get(name, [])
    return (
        f"{results.size / 1e6:g}",
        name,
        shown(middle(results.firsts(name))),
        shown(middle(results.added_first(name)) if is_relay else None),
        shown(middle(results.first_cpus(name)) if has_cpu else None),
        shown(middle(results.laters(name)) if has_later else None, 2),
        shown(middle(results.added_later(name)) if is_relay else None, 2),
        shown(middle(results.later_cpus(name)) if is_relay else None, 2),
        shown(_later_ratio(results, name) if is_relay else None),
        shown(middle(each.p99 for each in delays)),
        shown(results.longest_delay(name)),
        results.taken[name][-1].done or ABSENT,
    )


def _later_ratio(results: Results, name: str) -> float | None:
    return over_rounds(results.added_later(name), results.added_later("floor"), ratio)


def _targets(results: Sequence[Results]) -> str:
    """For each target the worst of the sizes."""

    def worst(found: Sequence[float | None]) -> float | None:
        return max((each for each in found if each is not None), default=None)

    cpu_ratios = [over_rounds(r.later_cpus(OURS), r.later_cpus("floor"), ratio) for r in results]
    firsts = [over_rounds(r.added_first(OURS), r.firsts(TIKTOKEN), ratio) for r in results]
    first_cpus = [over_rounds(r.first_cpus(OURS), r.first_cpus(TIKTOKEN), ratio) for r in results]
    wanted = (
        Target(
            "later turns add at most 3 times what the floor adds",
            worst([_later_ratio(r, OURS) for r in results]),
            most=3,
        ),
        Target("the same by processor time", worst(cpu_ratios), most=3),
        Target("later turns grow no faster than the bytes (growth / growth)", _growth(results), most=1),
        Target("the first request adds at most twice a bare count", worst(firsts), most=2),
        Target("the same by processor time", worst(first_cpus), most=2),
        Target(
            "no other request is delayed more than 20 ms",
            worst([r.longest_delay(OURS) for r in results]),
            most=20,
            digits=1,
        ),
        Target(
            "the same over the window", worst([r.longest_delay(OVER) for r in results]), most=20, digits=1
        ),
    )
    return "Targets, each at the worst size:\n\n" + targets(wanted)


def _growth(results: Sequence[Results]) -> float | None:
    """How much faster than the bytes the added time of a later turn grows, from the smallest size to the largest."""
    ends = [(each.size, middle(each.added_later(OURS))) for each in results]
    if len(ends) < 2:
        return None
    (small, little), (large, much) = min(ends), max(ends)
    return much / little / (large / small) if little and much and little > 0 else None
