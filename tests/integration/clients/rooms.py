"""Where clients live: a virtual environment or an npm prefix for each, made when it is first wanted and kept.

Rules. Clients are installed at the versions that the tests name, each apart from the others and from the proxy, into
`.clients/` of the checkout. One that cannot be installed, or not in time, skips its tests, which say what the installer
said; what was tried in vain is tried again with the next run only.
"""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / ".clients"

PATIENCE: Final = 150.0
"""Seconds that the installation of one client may take."""

TOGETHER: Final = 400.0
"""Seconds from the start of a run after which nothing more is installed, so that it stays within its ten minutes."""

_STARTED: Final = time.monotonic()
_UV: Final = (sys.executable, "-m", "uv", "--quiet", "--no-progress")
_NPM: Final = ("install", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--prefix")


class _Failed(Exception):
    """What the installer said."""


@dataclass(frozen=True, slots=True)
class PythonRoom:
    """A virtual environment of its own that holds these packages."""

    name: str
    packages: tuple[str, ...]

    @property
    def python(self) -> str:
        """Its interpreter. Where the packages cannot be installed the test is skipped."""
        return str(_ready(self) / "bin" / "python")

    @property
    def scripts(self) -> Path:
        """The folder of its commands."""
        return Path(self.python).parent

    def install(self, folder: Path, patience: float) -> None:
        _said_by([*_UV, "venv", "--clear", "--python", sys.executable, str(folder)], patience)
        python = str(folder / "bin" / "python")
        install = (
            *_UV,
            "pip",
            "install",
            "--native-tls",
            "--python",
            python,
        )  # the machine's own authorities
        _said_by([*install, *self.packages], patience)


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A folder of its own that holds these packages of npm's."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder that holds `node_modules`. Where the packages cannot be installed the test is skipped."""
        return _ready(self)

    def command(self, name: str) -> str:
        """A command of theirs."""
        return str(self.folder / "node_modules" / ".bin" / name)

    def install(self, folder: Path, patience: float) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise _Failed("npm is not installed")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _said_by([npm, *_NPM, str(folder), *self.packages], patience)


def node() -> str:
    """The interpreter of JavaScript; without one the test is skipped."""
    return shutil.which("node") or pytest.skip("Node.js is not installed")


def _ready(room: PythonRoom | NodeRoom) -> Path:
    folder, problem = _installed(room)
    if problem:
        pytest.skip(f"{' '.join(room.packages)} cannot be installed: {problem}")
    return folder


@functools.cache
def _installed(room: PythonRoom | NodeRoom) -> tuple[Path, str]:
    """Its folder, and what went wrong."""
    folder = FOLDER / room.name
    stamp, wanted = folder / ".installed", "\n".join(room.packages)
    with _alone(room.name):
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return folder, ""
        left = TOGETHER - (time.monotonic() - _STARTED)
        try:
            if left < 1:
                raise _Failed(f"{TOGETHER:.0f} s of this run are over")
            room.install(folder, min(PATIENCE, left))
        except _Failed as failed:
            return folder, str(failed)
        stamp.write_text(wanted, encoding="utf-8")
    return folder, ""


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Nobody else installs this client meanwhile, in no other process either."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _said_by(command: Sequence[str], patience: float) -> None:
    """Run it. Raises _Failed with the line that tells most of what went wrong."""
    # Node.js goes by authorities that it brings along, where it is not told to go by the machine's.
    env = {"NODE_OPTIONS": "--use-openssl-ca", **os.environ}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=max(patience, 1), env=env
        )
    except subprocess.TimeoutExpired as late:
        raise _Failed(f"it took longer than {late.timeout:.0f} s") from late
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        telling = [line for line in lines if "rror:" in line or "×" in line]
        raise _Failed((telling or lines or [f"exit status {done.returncode}"])[-1])
