"""Servers as processes of their own: started, asked for what they used, and ended.

Rules. Whoever starts a process here ends it, by its id, whatever happens. Everything listens on the loopback interface,
on a port that was free. What a process writes goes into a file of the temporary folder, and its last lines are told
where it does not start. What is not installed is said as `Absent`, with the way to get it.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.memory import resident

ROOT: Final = Path(__file__).resolve().parents[2]
HOST: Final = "127.0.0.1"

PATIENCE: Final = 120.0
"""Seconds that a server has to listen; one that has much to import needs half of them on a busy machine."""

_CPU_CLOCK: Final = 2  # CPUCLOCK_SCHED of Linux, the one that counts user and system time together


class Absent(Exception):
    """What should be measured cannot be; the text says why, and how to get it."""


@dataclass(frozen=True, slots=True)
class Server:
    """Something that answers chats. `pid` is None where nobody's time shall be taken."""

    name: str
    port: int
    pid: int | None

    @property
    def cpu(self) -> float:
        """Seconds of processor time that the process has used up to now, with all its threads."""
        # The clock id that clock_getcpuclockid(3) makes of a process id; its threads that have ended count too.
        return 0.0 if self.pid is None else time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)

    @property
    def resident(self) -> int:
        """Bytes of resident memory now."""
        return 0 if self.pid is None else resident(self.pid)


def program(name: str, package: str) -> str:
    """The path of an executable. Raises Absent."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        raise Absent(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def free_port() -> int:
    """A port of the loopback interface on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(
    name: str,
    command: Sequence[str],
    port: int,
    folder: Path,
    *,
    core: int | None = None,
    added: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server for as long as this lasts, on one core if that is said; `added` is put into its environment.

    Raises Absent if it does not start.
    """
    if core is not None:
        command = (program("taskset", "util-linux"), "-c", str(core), *command)
    log = folder / f"{name}-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(added or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        if not _listens(process, port):
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise Absent(f"it did not start: {' / '.join(said[-3:])}")
        yield Server(name, port, process.pid)
    finally:
        _end(process)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            return False
        return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
