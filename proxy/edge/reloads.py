"""The configuration while it runs: read again when one of its files changes, or when a signal asks for it.

Rules. A file is read once it has stopped changing for one look, so that none is read half written. A configuration with
a mistake is never gone by: its mistakes are logged, each with its line, and what held goes on. What only a restart can
change stays as it is and is named in the log. Names of options are logged and never their values.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from structlog.typing import FilteringBoundLogger

from proxy.config import Config, InvalidConfig
from proxy.config.changes import between, files_of
from proxy.edge.backends import Stamp, stamp

INTERVAL: Final = 1.0
"""Seconds between two looks at the files."""

_Stamps: TypeAlias = Mapping[str, Stamp | None]


class Reloads:
    """Of one file and those that it names. `read` gives the configuration as it stands there."""

    def __init__(self, path: Path, read: Callable[[], Config], *, interval: float = INTERVAL) -> None:
        """`interval` is in seconds."""
        self._read = read
        self._path = str(path)
        self._seen: _Stamps = {}
        self._last: _Stamps = {}
        self._interval = interval
        self._asked = asyncio.Event()

    def load(self) -> Config:
        """The configuration as it stands there now; what changes from then on is seen. Raises InvalidConfig."""
        before = stamp(self._path)
        config = self._read()
        self._seen = {**self._look(config), self._path: before}
        return config

    def newest(self, config: Config, *, at_once: bool = False) -> Config:
        """What holds now, where `config` did: for a process that serves nothing itself and starts those that do.

        Whoever is started then follows from there. What is refused, and what only a restart can change, is left to
        those to tell.
        """
        now, last = self._look(config), self._last
        self._last = now
        if not at_once and not now == last != self._seen:
            return config
        self._seen = now  # what is refused is not read again before it changes
        try:
            return between(config, self.load()).config
        except InvalidConfig:
            return config

    def ask(self) -> None:
        """Load it again now, whether or not a file has changed."""
        self._asked.set()

    async def follow(
        self, config: Config, turn_to: Callable[[Config], Awaitable[None]], log: FilteringBoundLogger
    ) -> None:
        """Go on for ever. `config` was loaded here and holds, `turn_to` makes another one hold."""
        last = self._seen
        while True:
            is_asked = await self._next()
            now = await asyncio.to_thread(self._look, config)
            if is_asked or now == last != self._seen:
                self._seen = now  # what is refused is not read again before it changes
                config = await self._reload(config, turn_to, log)
                now = self._seen
            last = now

    async def _next(self) -> bool:
        """Wait for the next look; whether it was asked for."""
        try:
            async with asyncio.timeout(self._interval):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True

    def _look(self, config: Config) -> _Stamps:
        return {path: stamp(path) for path in (self._path, *files_of(config))}

    async def _reload(
        self, config: Config, turn_to: Callable[[Config], Awaitable[None]], log: FilteringBoundLogger
    ) -> Config:
        """What holds afterwards."""
        read = await self._loaded()
        if isinstance(read, Config):
            change = between(config, read)
            mistakes = await self._turned(turn_to, change.config)
            if not mistakes:
                log.info("configuration_reloaded", changed=change.applied)
                if change.needs_restart:
                    log.warning("restart_needed", options=change.needs_restart)
                return change.config
        else:
            mistakes = read
        for mistake in mistakes:
            log.error("configuration_refused", mistake=mistake)
        return config

    async def _loaded(self) -> Config | tuple[str, ...]:
        """The configuration as it stands in the file, or its mistakes."""
        try:
            return await asyncio.to_thread(self.load)
        except InvalidConfig as invalid:
            return tuple(map(str, invalid.mistakes))

    async def _turned(self, turn_to: Callable[[Config], Awaitable[None]], config: Config) -> tuple[str, ...]:
        """Make it hold; what was in the way."""
        try:
            await turn_to(config)
        except OSError as error:  # a file of certificates that went between reading and opening
            return (f"{self._path}: tls: {error.strerror or type(error).__name__}",)
        return ()
