"""The machine and the versions that figures are of."""

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

import proxy
from benchmarks.speed.processes import Absent, program
from benchmarks.speed.subjects import LITELLM

LIBRARIES: Final = ("aiohttp", "msgspec", "tiktoken", "uvloop")


def described() -> str:
    """Two lines: what it runs on, and what runs."""
    programs = (_answer("nginx", "nginx-light"), _answer("wrk", "wrk"))
    return running(*(f"{name} {version(name)}" for name in LIBRARIES), *filter(None, programs), LITELLM)


def running(*others: str) -> str:
    """The same with these beside Transom and Python."""
    cores = len(os.sched_getaffinity(0))
    nice = f", niceness {level}" if (level := os.nice(0)) else ""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    first = (
        f"Machine: {_processor()}, {cores} cores; {platform.system()} {platform.release()}; {load()}{nice}"
    )
    return f"{first}\nVersions: {', '.join((f'Transom {proxy.__version__}{_commit()}', python, *others))}"


def pinned() -> int | None:
    """Keep a core for the subjects, and this process and what it starts to the others; None with one core alone."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return None
    os.sched_setaffinity(0, cores - {max(cores)})
    return max(cores)


def load() -> str:
    """How many processes wanted a core in the last minute."""
    return f"load average {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _answer(name: str, package: str) -> str:
    """A program with the version that it tells; nothing where it is not there."""
    try:
        command = (program(name, package), "-v")
    except Absent:
        return ""
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+", said.stderr + said.stdout)
    return f"{name} {found[0]}" if found else name


def _commit() -> str:
    command = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD")
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return f" ({said.stdout.strip()})" if said.returncode == 0 else ""
