"""What the system tells of processes: memory, processor time and open files, in Prometheus' usual metrics.

Rules. Linux alone tells them this way; elsewhere there are none. Of several processes numbers are added up, but for the
start, which is the first one's, and the limit of open files, which holds for each. Processor time never falls when one
of them ends: its parent has it then.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")

_SAYS: Final = (
    ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    ("process_open_fds", "gauge", "Number of open file descriptors."),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors."),
)


class _Process(NamedTuple):
    """In the order of the metrics."""

    virtual: float
    resident: float
    began: float
    processor: float
    open_files: float
    most_files: float


def lines(pids: Sequence[int], parent: int | None) -> Iterator[str]:
    """The metrics of these processes together, and of the one that has started them all, if any."""
    found = [each for pid in pids if (each := _process(pid)) is not None]
    if parent is not None and (each := _process(parent, with_children=True)) is not None:
        found.append(each)
    if not found:
        return
    columns = zip(*found, strict=True)
    joined: Sequence[Callable[[Iterable[float]], float]] = (sum, sum, min, sum, sum, min)
    for (name, kind, says), join, column in zip(_SAYS, joined, columns, strict=True):
        yield f"# HELP {name} {says}"
        yield f"# TYPE {name} {kind}"
        yield f"{name} {join(column)}"


def _process(pid: int, *, with_children: bool = False) -> _Process | None:
    """What is told of a process; with the processor time of those of its children that have ended."""
    folder = _PROC / str(pid)
    try:
        # Behind the name, which may hold anything; proc(5) counts these fields from 3 on.
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        files = len(os.listdir(folder / "fd"))
        most = next(each for each in (folder / "limits").read_bytes().splitlines() if _LIMIT in each)
        booted = next(each for each in (_PROC / "stat").read_bytes().splitlines() if each.startswith(_BOOT))
    except (OSError, StopIteration):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    spent = fields[11:15] if with_children else fields[11:13]
    return _Process(
        virtual=float(fields[20]),
        resident=float(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        began=float(booted.split()[1]) + float(fields[19]) / ticks,
        processor=sum(map(float, spent)) / ticks,
        open_files=float(files),
        most_files=_number(most.split()[3]),
    )


_LIMIT: Final = b"Max open files"
_BOOT: Final = b"btime "


def _number(told: bytes) -> float:
    return float("inf") if told == b"unlimited" else float(told)
