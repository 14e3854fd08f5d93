"""Small chat requests: how many a second, how long each takes, and what processor time it costs.

Rules. Every request is a conversation of its own. The subjects take turns within each round, and another one begins in
each. A subject counts only what was answered well; what was not is shown.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.speed.options import Options
from benchmarks.speed.processes import HOST, Server, program
from benchmarks.speed.subjects import Stage, post
from benchmarks.speed.tables import Target, middle, over_rounds, ratio, shown, table, targets

SCRIPT: Final = Path(__file__).with_name("post.lua")
MODES: Final = ("manage", "observe", "off")
COLUMNS: Final = (
    "",
    "requests/s",
    "of floor",
    "p50 ms",
    "p99 ms",
    "CPU us/request",
    "x floor's CPU",
    "failed",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round; milliseconds, and microseconds of processor time for a request if any was answered."""

    rate: float
    p50: float
    p99: float
    cpu: float | None
    failed: int


def run(options: Options) -> str:
    """The table and the targets. Raises Absent."""
    wrk = program("wrk", "wrk")
    with Stage(options) as stage:
        upstream = stage.fixed_upstream()
        makers = {
            "direct": partial(stage.direct, upstream),
            "nginx": partial(stage.nginx, upstream),
            "floor": partial(stage.floor, upstream),
            **{mode: partial(_transom, stage, upstream, mode) for mode in MODES},
            "litellm": partial(stage.litellm, upstream),
        }
        subjects = stage.wanted(makers)
        for subject in subjects:
            assert b"choices" in post(
                subject.port, b'{"model":"bench","messages":[{"role":"user","content":"Hi"}]}'
            )
            if options.warming:
                _loaded(wrk, subject, options.connections, options.warming, "warming")
        samples: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
        for number in range(options.rounds):
            for subject in options.in_turn(subjects, number):
                taken = _loaded(wrk, subject, options.connections, options.seconds, f"round {number}")
                samples[subject.name].append(taken)
    return f"{_title(options)}\n\n{_table(samples)}\n\n{_targets(samples)}"


def _transom(stage: Stage, upstream: Server, mode: str) -> Server:
    return stage.transom(upstream, mode, [{"match": "*", "window": 128_000, "mode": mode}])


def _loaded(wrk: str, subject: Server, connections: int, seconds: int, tag: str) -> Sample:
    """What wrk and the process's own clock say of so many seconds."""
    url = f"http://{HOST}:{subject.port}/v1/chat/completions"
    load = ("-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "30s")
    before = subject.cpu
    outcome = subprocess.run(
        (wrk, *load, "-s", str(SCRIPT), url, "--", tag), capture_output=True, text=True, check=True
    )
    return sample(outcome.stdout, subject.cpu - before)


def sample(output: str, cpu: float) -> Sample:
    """What wrk's script wrote, and so many seconds of processor time spread over it."""
    said = json.loads(output.strip().splitlines()[-1])
    requests = said["requests"]
    answered = said["requests"] - said["failed"]
    return Sample(
        rate=answered / said["microseconds"] * 1e6,
        p50=said["p50"] / 1000,
        p99=said["p99"] / 1000,
        cpu=cpu / requests * 1e6 if answered else None,
        failed=said["failed"],
    )


def _title(options: Options) -> str:
    return (
        f"Small chats: {options.connections} connections, {options.seconds} s a subject and round; each request is a"
        " conversation of its own"
    )


def _table(samples: dict[str, list[Sample]]) -> str:
    rows = []
    for name, taken in samples.items():
        has_process = name != "direct"
        rows.append(
            (
                name,
                shown(middle(each.rate for each in taken), 0),
                shown(_share(samples, name, "floor"), 2),
                shown(middle(each.p50 for each in taken), 2),
                shown(middle(each.p99 for each in taken), 2),
                shown(middle(each.cpu for each in taken) if has_process else None, 0),
                shown(_cpu_share(samples, name, "floor") if has_process else None, 2),
                str(sum(each.failed for each in taken)),
            )
        )
    return table(COLUMNS, rows)


def _share(samples: dict[str, list[Sample]], ours: str, theirs: str) -> float | None:
    """The throughput of one subject as a multiple of another's."""
    return over_rounds(_rates(samples, ours), _rates(samples, theirs), ratio)


def _cpu_share(samples: dict[str, list[Sample]], ours: str, theirs: str) -> float | None:
    return over_rounds(_cpus(samples, ours), _cpus(samples, theirs), ratio)


def _rates(samples: dict[str, list[Sample]], name: str) -> Sequence[float]:
    return [each.rate for each in samples.get(name, ())]


def _cpus(samples: dict[str, list[Sample]], name: str) -> Sequence[float | None]:
    return [each.cpu for each in samples.get(name, ())]


def _targets(samples: dict[str, list[Sample]]) -> str:
    wanted = (
        Target("manage serves at least 0.7 of the floor's requests", _share(samples, "manage", "floor"), 0.7),
        Target("the same by processor time", _cpu_share(samples, "floor", "manage"), 0.7),
        Target("manage serves at least 10 times LiteLLM's", _share(samples, "manage", "litellm"), 10),
        Target("the same by processor time", _cpu_share(samples, "litellm", "manage"), 10),
    )
    return "Targets:\n\n" + targets(wanted)
