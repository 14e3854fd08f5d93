"""The proxy's own endpoints, under `/-/` and nowhere else.

Rules. Whatever lies under the prefix is answered here and never forwarded. Answers are JSON, but for the metrics, the
page and what it follows. They hold no key, and nothing of a conversation but what was sent with the very request or
what `capture` keeps. They cost no call to the upstream, but for the summary of a compaction, and for one where
readiness is configured to depend on it. An endpoint is one function and one row in the table.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from proxy.edge import metrics, page
from proxy.edge.downstream import JSON, Downstream
from proxy.edge.performer import Surroundings
from proxy.edge.summaries import Summaries
from proxy.exchange import Compaction, Measurement
from proxy.wire import chat

PREFIX: Final = "/-/"
_HEALTH: Final = f"{PREFIX}healthz"
_READY: Final = f"{PREFIX}readyz"
_METRICS: Final = f"{PREFIX}metrics"
_STATE: Final = f"{PREFIX}state"
_FOR_ALL: Final = frozenset({_HEALTH, _READY})
_POLLED: Final = frozenset({*_FOR_ALL, _METRICS})
_KIND: Final = "invalid_request_error"

_PAGE: Final = PREFIX.rstrip("/")
_CAPTURED: Final = f"{PREFIX}requests"

_NOT_KEPT: Final = b"Cache-Control: no-store\r\n"

STALLED: Final = 10.0
"""Seconds after which a page that takes nothing is given up."""


class Reply(NamedTuple):
    """An answer of ours: `kind` is its content type, `fields` are header lines with their CRLF.

    A body that goes on for as long as somebody reads comes in pieces.
    """

    status: int
    body: bytes | AsyncGenerator[bytes]
    kind: str = JSON
    fields: bytes = b""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to an endpoint of ours. `measurement` and `compaction` read its body as a chat request.

    `holder` names whose token it came with, `summaries` are those of all upstreams.
    """

    path: str
    holder: str
    around: Surroundings
    summaries: Collection[Summaries]
    measurement: Callable[[], Awaitable[Measurement]]
    compaction: Callable[[], Awaitable[Compaction]]


def is_own(path: str) -> bool:
    """Whether a path is one of ours rather than the upstream's; the page is also found without its last slash."""
    return path.startswith(PREFIX) or path == _PAGE


def is_for_all(path: str) -> bool:
    """Whether an endpoint of ours is open to everybody: probes have no token, and call any name and address."""
    return path.rstrip("/") in _FOR_ALL


def is_polled(path: str) -> bool:
    """Whether this is asked by machines, again and again: of no interest to who reads the log."""
    return path.rstrip("/") in _POLLED


def is_page(path: str) -> bool:
    """Whether this is the page itself: it tells nothing, and a browser that goes there has no way to send a token."""
    return path in (PREFIX, _PAGE)


async def answer(method: str, asked: Asked, client: Downstream) -> None:
    """Answer a request to one of our own paths. Raises ClientGone."""
    path = asked.path
    methods = _endpoint(path)
    if methods is None:
        said = chat.error_body(f"There is no such endpoint under {PREFIX}.", _KIND, "not_found")
        await client.say(404, said)
    elif method not in methods:
        allowed = ", ".join(methods)
        said = chat.error_body(f"This endpoint takes {allowed}.", _KIND, "method_not_allowed")
        await client.say(405, said, f"Allow: {allowed}\r\n".encode())
    else:
        await _give(await methods[method](asked), client)


def _endpoint(path: str) -> "Endpoint | None":
    whole = _ENDPOINTS.get(path.rstrip("/"))
    return whole or next((one for prefix, one in _ONE_OF_MANY.items() if path.startswith(prefix)), None)


async def _give(reply: Reply, client: Downstream) -> None:
    if isinstance(reply.body, bytes):
        await client.say(reply.status, reply.body, reply.fields, reply.kind)
        return
    fields = reply.fields + b"Content-Type: %b\r\n" % reply.kind.encode()
    async with contextlib.aclosing(reply.body) as pieces:
        await client.start(reply.status, HTTPStatus(reply.status).phrase, fields, has_length=False)
        async for piece in pieces:
            try:
                async with asyncio.timeout(STALLED):
                    await client.send(piece)
            except TimeoutError:
                client.break_off()
                return
    await client.finish()


async def _events(asked: Asked) -> Reply:
    """What happens, as it happens, until the client leaves or the process ends. Raises TooManyWatchers."""
    fields = _NOT_KEPT + b"X-Accel-Buffering: no\r\n"  # or a server before this one would collect the events
    return Reply(200, asked.around.watch.follow(asked.holder), "text/event-stream", fields)


async def _page(asked: Asked) -> Reply:
    """The page, which asks for all else itself, by paths that begin where it stands."""
    if asked.path == _PAGE:
        return Reply(308, b"", fields=b"Location: %b\r\n" % PREFIX.encode())
    return Reply(200, page.DOCUMENT, page.CONTENT_TYPE, page.FIELDS)


async def _captured(asked: Asked) -> Reply:
    """A request whose text was kept, beside what was forwarded."""
    pairs = await asked.around.captures.opened(asked.holder, asked.path.rpartition("/")[2])
    if pairs is None:
        said = "The text of this request is not kept here, or no longer; `capture: true` has that of new ones kept."
        return Reply(404, chat.error_body(said, _KIND, "not_found"))
    return Reply(200, msgspec.json.encode({"messages": pairs}), fields=_NOT_KEPT)


async def _healthz(asked: Asked) -> Reply:
    """The process runs and answers; says nothing about the upstream."""
    return Reply(200, b'{"status":"ok"}')


async def _readyz(asked: Asked) -> Reply:
    """Whether requests should be sent here."""
    told = await asked.around.readiness.told()
    return Reply(200 if told["status"] == "ready" else 503, msgspec.json.encode(told))


async def _metrics(asked: Asked) -> Reply:
    """What was counted since the process began."""
    return Reply(200, asked.around.metrics.exposed(), metrics.CONTENT_TYPE)


async def _state(asked: Asked) -> Reply:
    """The conversations that this process has served of late; which one it is, where there are several."""
    around = asked.around
    told = {"conversations": around.ledger.listed(), **around.watch.of_workers()}
    return Reply(200, msgspec.json.encode(told))


async def _measure(asked: Asked) -> Reply:
    """What a chat request measures, and what would be done to it. Raises NoChatRequest and BodyTooLarge."""
    return Reply(200, msgspec.json.encode(await asked.measurement()))


async def _compact(asked: Asked) -> Reply:
    """A chat request's messages with their older part summarised. Raises NoChatRequest and BodyTooLarge."""
    return Reply(200, msgspec.json.encode(await asked.compaction()))


async def _forget(asked: Asked) -> Reply:
    """Forget a conversation's checkpoints: its next request is planned from nothing. Raises StoreUnavailable."""
    around, id_ = asked.around, asked.path.rpartition("/")[2]
    keys = around.ledger.keys_of(id_)
    if keys is None:
        return Reply(404, chat.error_body("No conversation with this id is listed here.", _KIND, "not_found"))
    await around.memories.forget(keys)
    for summaries in asked.summaries:
        summaries.forget(keys)
    around.ledger.strike(id_)
    around.watch.strike(asked.holder, id_)
    return Reply(200, msgspec.json.encode({"forgotten": len(keys)}))


Endpoint = Mapping[str, Callable[[Asked], Awaitable[Reply]]]

_ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        _PAGE: MappingProxyType({"GET": _page, "HEAD": _page}),
        f"{PREFIX}events": MappingProxyType({"GET": _events}),
        _HEALTH: MappingProxyType({"GET": _healthz, "HEAD": _healthz}),
        f"{PREFIX}compact": MappingProxyType({"POST": _compact}),
        f"{PREFIX}measure": MappingProxyType({"POST": _measure}),
        _METRICS: MappingProxyType({"GET": _metrics, "HEAD": _metrics}),
        _READY: MappingProxyType({"GET": _readyz, "HEAD": _readyz}),
        _STATE: MappingProxyType({"GET": _state, "HEAD": _state}),
    }
)

_ONE_OF_MANY: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        f"{_STATE}/": MappingProxyType({"DELETE": _forget}),
        f"{_CAPTURED}/": MappingProxyType({"GET": _captured}),
    }
)
