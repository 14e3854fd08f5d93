"""The file of a Unix socket: from before it is listened on until after.

Rules. A file is removed only when it is a socket that nobody listens on, or the very one that was made here. Whoever is
neither its owner nor of its group can never connect to it.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from proxy.edge.connections import is_listened_on
from proxy.errors import CannotListen

_NEVER: Final = 0o117
"""What the file's mode never has: anything for others, and a right to execute."""


def make_room(path: str) -> None:
    """Remove a socket that a dead process has left there. Raises CannotListen where anything else is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as cause:
        raise CannotListen(f"Cannot listen on unix:{path}: {cause.strerror}.") from cause
    if not stat.S_ISSOCK(mode):
        raise CannotListen(
            f"Cannot listen on unix:{path}: a file that is no socket is there. Name another path with --listen."
        )
    if is_listened_on(path):
        raise CannotListen(
            f"Cannot listen on unix:{path}: another process listens there. End it, or name another path with --listen."
        )
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def bounded_mode() -> Iterator[None]:
    """What is made within is open to its owner alone, and to its group where the process's umask says so."""
    before = os.umask(0o777)
    os.umask(before | _NEVER)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def removed_at_the_end(path: str) -> Iterator[None]:
    """The file that is there now is gone afterwards, unless it has been replaced meanwhile.

    A process that was forked from this one leaves it there.
    """
    made, maker = os.lstat(path), os.getpid()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if maker == os.getpid() and os.path.samestat(made, os.lstat(path)):
                os.unlink(path)
