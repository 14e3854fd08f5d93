"""Several processes that serve at one address, and the parent that starts, watches and ends them.

Rules. The parent serves nothing and runs no event loop: it holds the listening sockets, so that connections which wait
at a worker's socket outlive the worker, and its place is taken by another one. A worker that ends otherwise than it was
told to is started again, after a pause that grows where it ends at once; one that cannot even begin while the first are
started ends all. What the parent is told by a signal it tells the workers. None outlives it: each holds the end of a
pipe that closes with it.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Final, TypeAlias

from structlog.typing import FilteringBoundLogger

from proxy.config import Address, Config, SocketFile
from proxy.edge import listeners
from proxy.edge.board import Board
from proxy.edge.listeners import Held

AT_ONCE: Final = 5.0
"""Seconds; a worker that lives no longer is started again after a pause."""

LOOK: Final = 1.0
"""Seconds between two looks of the parent at the files of the configuration."""

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds; each pause is twice the one before."""

BEYOND: Final = 5.0
"""Seconds behind the grace time in which a worker ends by itself."""

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker is given: which it is, counted from 1, of how many; its sockets; the board that all share.

    `parent` is a descriptor that can be read once the parent is gone, `told` one that the parent hears of it by.
    """

    number: int
    count: int
    held: Held
    board: Board
    parent: int
    told: int

    def is_listening(self) -> None:
        """Tell the parent that requests are taken from now on."""
        with contextlib.suppress(OSError):
            os.write(self.told, b"\0")


@dataclass(slots=True)
class _Place:
    """A worker's place. `due` is when one is to be started there, by the clock; None while one runs."""

    number: int
    held: Held
    pid: int | None = None
    due: float | None = None
    began: float = 0.0
    pause: float = 0.0


def run(
    config: Config,
    count: int,
    log: FilteringBoundLogger,
    *,
    grace: float,
    look: Callable[[bool], None] | None,
) -> Worker | int:
    """In the parent the exit status, at the end; in each worker what it is given, at once. Raises CannotListen.

    `look` is called in the parent every second, and with True when SIGHUP asks for it, so that a worker begins with
    what holds by then; workers are told of SIGHUP too. Without it SIGHUP ends the parent, as it ends any process.
    """
    with ExitStack() as stack:
        places = [_Place(at, held) for at, held in enumerate(_held(config, count, stack))]
        ears = stack.enter_context(_Ears(look is not None))
        outcome = _Parent(places, log, grace, ears, look).run()
        if isinstance(outcome, Worker):
            stack.pop_all()  # what ends with the parent is not the worker's to end
        return outcome


def _held(config: Config, count: int, stack: ExitStack) -> Iterator[Held]:
    addresses: dict[str, Address | SocketFile] = {listeners.MAIN: config.listen}
    if config.admin.listen is not None:
        addresses[listeners.OWN] = config.admin.listen
    bound = {
        option: stack.enter_context(listeners.bound(listen, option, count))
        for option, listen in addresses.items()
    }
    for at in range(count):
        yield {option: sockets[at] for option, sockets in bound.items()}


_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class _Ears:
    """What the parent hears: signals, and workers that listen. Both come as bytes of a pipe."""

    def __init__(self, hears_hangup: bool) -> None:
        self._heard = (*_STOPPING, signal.SIGCHLD, *((signal.SIGHUP,) if hears_hangup else ()))
        self.signals, self._signalled = os.pipe()
        self.listening, self.told = os.pipe()
        self.gone, self._alive = os.pipe()
        for each in (self.signals, self._signalled, self.listening):
            os.set_blocking(each, False)
        self._before: Mapping[int, _Handler] = {}
        self._fd = -1

    def __enter__(self) -> "_Ears":
        self._fd = signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        self._before = {each: signal.signal(each, _nothing) for each in self._heard}
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def heard(self, seconds: float | None) -> tuple[set[int], bool]:
        """Signals, and whether a worker listens now; waits no longer than so many seconds for the first."""
        select.select([self.signals, self.listening], [], [], seconds)
        return set(_read(self.signals)), bool(_read(self.listening))

    def become_worker(self) -> None:
        """Hear nothing of that any longer."""
        signal.set_wakeup_fd(-1)
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if signal.SIGHUP in self._before:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it is asked for
        for each in (self.signals, self._signalled, self.listening, self._alive):
            os.close(each)

    def close(self) -> None:
        signal.set_wakeup_fd(self._fd)
        for each, handler in self._before.items():
            signal.signal(each, handler)
        for each in (self.signals, self._signalled, self.listening, self.told, self.gone, self._alive):
            os.close(each)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wakeup descriptor has it."""


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


class _Parent:
    """Starts, watches and ends the workers."""

    def __init__(
        self,
        places: Sequence[_Place],
        log: FilteringBoundLogger,
        grace: float,
        ears: _Ears,
        look: Callable[[bool], None] | None,
    ) -> None:
        self._places = places
        self._log = log
        self._grace = grace
        self._ears = ears
        self._look = look
        self._board = Board(len(places))
        self._until: float | None = None  # when whoever still runs is killed
        self._status = 0
        self._has_begun = False

    def run(self) -> Worker | int:
        """The course of the parent, and of each worker its beginning."""
        # The first alone: what keeps one from beginning would be told by all of them.
        self._places[0].due = time.monotonic()
        while True:
            for place in self._due():
                worker = self._started(place)
                if worker is not None:
                    return worker
            signals, is_listening = self._ears.heard(self._patience())
            if is_listening:
                self._begin_others()
            if signals & set(_STOPPING):
                self._stop()
            if self._look is not None:
                self._look(signal.SIGHUP in signals)
            if signal.SIGHUP in signals:
                self._tell(signal.SIGHUP)
            self._bury()
            if self._until is not None and not self._running():
                return self._status

    # --- beginning --------------------------------------------------------------------------------------------

    def _due(self) -> list[_Place]:
        now = time.monotonic()
        return [place for place in self._places if place.due is not None and place.due <= now]

    def _started(self, place: _Place) -> Worker | None:
        """Fork: the worker in the new process, None in this one."""
        place.due, place.began = None, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes before the new process has its own handlers waits until it has.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOPPING, signal.SIGHUP))
        try:
            place.pid = os.fork()
            if place.pid:
                return None
            os.setpgid(0, 0)  # Ctrl-C is for the parent, which tells all
            self._ears.become_worker()
            self._keep_only(place)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ears = self._ears
        return Worker(place.number + 1, len(self._places), place.held, self._board, ears.gone, ears.told)

    def _keep_only(self, mine: _Place) -> None:
        kept = {id(each) for sockets in mine.held.values() for each in sockets}
        for each in self._sockets():
            if id(each) not in kept:
                each.close()

    def _sockets(self) -> Iterator[socket.socket]:
        for place in self._places:
            for sockets in place.held.values():
                yield from sockets

    def _begin_others(self) -> None:
        self._has_begun = True
        for other in self._places:
            if other.pid is None and other.due is None and self._until is None:
                other.due = time.monotonic()

    # --- ending -----------------------------------------------------------------------------------------------

    def _stop(self, status: int = 0) -> None:
        """Tell all to end. Told twice, they end at once."""
        if self._until is None:
            self._until = time.monotonic() + self._grace + BEYOND
            self._status = status
            for place in self._places:
                place.due = None
            for each in self._sockets():
                each.close()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for place in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid or 0, number)

    def _running(self) -> list[_Place]:
        return [place for place in self._places if place.pid]

    def _patience(self) -> float | None:
        """Seconds until something is to be done without anything being heard."""
        times = [place.due for place in self._places if place.due is not None]
        if self._until is not None:
            if time.monotonic() >= self._until:
                self._tell(signal.SIGKILL)
                return None
            times.append(self._until)
        if self._look is not None:
            times.append(time.monotonic() + LOOK)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _bury(self) -> None:
        for place in self._running():
            pid, status = os.waitpid(place.pid or 0, os.WNOHANG)
            if pid:
                self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, status: int) -> None:
        pid, place.pid = place.pid, None
        lived = time.monotonic() - place.began
        if self._until is not None:
            self._status = self._status or min(abs(status), 1)
            return
        if not self._has_begun and status > 0:
            self._stop(status)  # it has said why
            return
        place.pause = min(max(FIRST_PAUSE, 2 * place.pause), LONGEST_PAUSE) if lived < AT_ONCE else 0.0
        place.due = time.monotonic() + place.pause
        self._log.warning(
            "worker_ended", worker=place.number + 1, pid=pid, status=status, again_in_seconds=place.pause
        )


def how_many(workers: int) -> int:
    """The number of workers; 0 stands for one for each core that this process may use."""
    if workers:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
