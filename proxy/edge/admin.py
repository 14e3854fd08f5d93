"""The proxy's own endpoints, under `/-/` and nowhere else.

Rules. Whatever lies under the prefix is answered here and never forwarded. Answers are JSON, but for the metrics. They
hold no key, and nothing of a conversation but what was sent with the very request. They cost no call to the upstream,
but for the summary of a compaction, and for one where readiness is configured to depend on it. An endpoint is one
function and one row in the table.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from proxy.edge import metrics
from proxy.edge.downstream import JSON, Downstream
from proxy.edge.performer import Surroundings
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


class Reply(NamedTuple):
    """An answer of ours: `kind` is its content type."""

    status: int
    body: bytes
    kind: str = JSON


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to an endpoint of ours. `measurement` and `compaction` read its body as a chat request."""

    path: str
    around: Surroundings
    measurement: Callable[[], Awaitable[Measurement]]
    compaction: Callable[[], Awaitable[Compaction]]


def is_own(path: str) -> bool:
    """Whether a path is one of ours rather than the upstream's."""
    return path.startswith(PREFIX)


def is_for_all(path: str) -> bool:
    """Whether an endpoint of ours is open to everybody: probes have no token, and call any name and address."""
    return path.rstrip("/") in _FOR_ALL


def is_polled(path: str) -> bool:
    """Whether this is asked by machines, again and again: of no interest to who reads the log."""
    return path.rstrip("/") in _POLLED


async def answer(method: str, asked: Asked, client: Downstream) -> None:
    """Answer a request to one of our own paths. Raises ClientGone."""
    path = asked.path
    methods = _ENDPOINTS.get(path.rstrip("/"), _ONE_STATE if path.startswith(f"{_STATE}/") else None)
    if methods is None:
        said = chat.error_body(f"There is no such endpoint under {PREFIX}.", _KIND, "not_found")
        await client.say(404, said)
    elif method not in methods:
        allowed = ", ".join(methods)
        said = chat.error_body(f"This endpoint takes {allowed}.", _KIND, "method_not_allowed")
        await client.say(405, said, f"Allow: {allowed}\r\n".encode())
    else:
        reply = await methods[method](asked)
        await client.say(reply.status, reply.body, kind=reply.kind)


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
    """The conversations that this process has served of late."""
    return Reply(200, msgspec.json.encode({"conversations": asked.around.ledger.listed()}))


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
    around.summaries.forget(keys)
    around.ledger.strike(id_)
    return Reply(200, msgspec.json.encode({"forgotten": len(keys)}))


Endpoint = Mapping[str, Callable[[Asked], Awaitable[Reply]]]

_ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        _HEALTH: MappingProxyType({"GET": _healthz, "HEAD": _healthz}),
        f"{PREFIX}compact": MappingProxyType({"POST": _compact}),
        f"{PREFIX}measure": MappingProxyType({"POST": _measure}),
        _METRICS: MappingProxyType({"GET": _metrics, "HEAD": _metrics}),
        _READY: MappingProxyType({"GET": _readyz, "HEAD": _readyz}),
        _STATE: MappingProxyType({"GET": _state, "HEAD": _state}),
    }
)

_ONE_STATE: Final[Endpoint] = MappingProxyType({"DELETE": _forget})
