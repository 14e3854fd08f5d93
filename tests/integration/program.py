"""The proxy as a process of its own: started, killed and told to stop as operators do it.

Rules. Its log is read as it comes, so that it never waits for a reader. It is gone when the context is left, whatever
happened to it before.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conftest import ROOT
from tests.peers.client import RawClient

PATIENCE: Final = 60.0
"""Seconds that it may take to listen, to say what is waited for, and to end."""

_OWN: Final = "/-/state"
"""An endpoint of the proxy's own, of which every request is in the log."""


@dataclass(eq=False)
class Program:
    """A proxy that listens at `url`; `log` has its events as they come."""

    process: asyncio.subprocess.Process
    log: list[dict[str, Any]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        url: str = self.events("listening")[0]["url"]
        return url

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of this name so far."""
        return [each for each in self.log if each["event"] == name]

    async def until(self, name: str, times: int = 1) -> None:
        """Wait until this event has been written so often."""
        await self._until(lambda: len(self.events(name)) >= times)

    async def has_told(self) -> None:
        """Wait until the log has all requests that are over: they are told a moment later, in their order."""
        before = self._own_requests()
        async with RawClient(self.url) as client:
            await client.get(_OWN)
        await self._until(lambda: self._own_requests() > before)

    def _own_requests(self) -> int:
        return sum(each["path"] == _OWN for each in self.events("request"))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def killed(self) -> None:
        """End it without a word, as a crash does."""
        self.process.kill()
        await self.process.wait()

    async def stopped(self) -> int:
        """Tell it to stop, and wait until it has; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def read(self) -> None:
        """Take in the log until it ends."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(json.loads(line))
            self._changed.set()


@asynccontextmanager
async def program(config: Path) -> AsyncIterator[Program]:
    """The proxy by this configuration, whose log has to be JSON, for as long as this lasts."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(config)),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    running = Program(process)
    reading = asyncio.create_task(running.read())
    try:
        await running.until("listening")
        yield running
        if process.returncode is None:
            await running.stopped()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        reading.cancel()
