"""A real redis-server on a free port of this machine, which can be killed, paused and started again.

Rules. It keeps nothing on disk and listens on the loopback interface alone. Every method returns when what it says has
happened. Without a redis-server (or valkey-server) the test is skipped with that reason; where CI=true it fails.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import lacks

_READY = b"Ready to accept connections"


def program(*names: str) -> str:
    """The first of these executables that there is. Without any the test is skipped, or fails where CI=true."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        lacks(f"{names[0]} is not installed", f"Debian: apt-get install {names[0]}")
    return found


class RedisServer:
    """One server; `arguments` are added to its command line. Its port stays the same when it is started again."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._program = program("redis-server", "valkey-server")
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Its address, with database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Listen, on the port of last time if there was one."""
        for _ in range(5):  # a port that is free now may be taken in the next moment
            port = self.port or _free_port()
            if self._listens(port):
                self.port = port
                return
        pytest.fail("redis-server did not start")

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._gone()

    def pause(self) -> None:
        """Stop it where it stands: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let it go on, with all that has come in meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it whatever state it is in."""
        if self._process is not None:
            self.kill()

    def _listens(self, port: int) -> bool:
        command = [self._program, "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", ""]
        ports = ["--port", str(port)]
        if "--tls-port" in self._arguments:
            ports = ["--port", "0", "--tls-port", str(port)]
        added = [argument for argument in self._arguments if argument != "--tls-port"]
        self._process = subprocess.Popen(
            [*command, *ports, *added], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None
        if any(_READY in line for line in self._process.stdout):
            return True
        self._gone()
        return False

    def _gone(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[RedisServer]:
    """A server for as long as this lasts."""
    server = RedisServer(folder, *arguments)
    server.start()
    try:
        yield server
    finally:
        server.end()
