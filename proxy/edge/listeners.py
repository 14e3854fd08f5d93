"""The sockets that requests come in at: bound in one step, for one process or for each of several.

Rules. Of an address that several processes share each has a socket of its own (SO_REUSEPORT), and the kernel deals
connections out to them; of a Unix socket there is one, which all accept at. Whoever shares an address with its own
kind shares it with nobody else: what is taken already is an error, as it is for one process.
"""

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Final, TypeAlias

from proxy.config import Address, SocketFile
from proxy.edge import socketfile
from proxy.edge.connections import unix_listener
from proxy.errors import CannotListen

Held: TypeAlias = Mapping[str, Sequence[socket.socket]]
"""Sockets that listen, by the option that names their address."""

NONE_HELD: Final[Held] = MappingProxyType({})

MAIN: Final = "--listen"
OWN: Final = "admin.listen"
"""The options, as a person would name them."""

BACKLOG: Final = 1024
"""Connections that may wait to be accepted. 128 by default: less than one burst of a large group of agents."""


@contextmanager
def bound(
    listen: Address | SocketFile, option: str, sharers: int = 1
) -> Iterator[list[Sequence[socket.socket]]]:
    """Sockets that listen there, those of each sharer; a socket's file is gone afterwards. Raises CannotListen.

    `option` is where the address comes from.
    """
    with ExitStack() as stack:
        try:
            if isinstance(listen, Address):
                found = [tuple(each) for each in zip(*_of_address(listen, sharers), strict=True)]
            else:
                found = [(_of_file(listen, stack),)] * sharers
        except OSError as cause:
            raise CannotListen(
                f"Cannot listen on {listen}: {_why(cause)}. Name another address with {option}."
            ) from cause
        yield list(found)


def _why(cause: OSError) -> str:
    is_lookup = isinstance(cause, socket.gaierror) or cause.errno is None
    return str(cause.strerror or cause) if is_lookup else os.strerror(cause.errno or 0)


def _of_file(listen: SocketFile, stack: ExitStack) -> socket.socket:
    socketfile.make_room(listen.path)
    with socketfile.bounded_mode():
        found = unix_listener(listen.path, BACKLOG)
    stack.enter_context(socketfile.removed_at_the_end(listen.path))
    return found


def _of_address(listen: Address, sharers: int) -> list[list[socket.socket]]:
    """For each address that the name stands for as many sockets as there are sharers."""
    infos = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[list[socket.socket]] = []
    absent: OSError | None = None
    for family, where in dict.fromkeys((family, where) for family, *_, where in infos):
        try:
            found.append(_of_each(family, (str(where[0]), *where[1:]), sharers))
        except OSError as cause:
            if cause.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _close(found)
                raise
            absent = cause  # a name may stand for addresses of a family that this machine does not have
    if not found and absent is not None:
        raise absent
    return found


def _of_each(family: int, where: tuple[object, ...], sharers: int) -> list[socket.socket]:
    # Alone at first: who shares would share with a foreign process too.
    first = socket.create_server(where, family=family, backlog=BACKLOG)
    if sharers == 1:
        return [first]
    host, _, *scope = where
    where = (host, first.getsockname()[1], *scope)
    first.close()
    found: list[socket.socket] = []
    for _ in range(sharers):
        found.append(socket.create_server(where, family=family, backlog=BACKLOG, reuse_port=True))
    return found


def _close(found: Sequence[Sequence[socket.socket]]) -> None:
    for each in found:
        for one in each:
            one.close()
