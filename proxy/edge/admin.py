"""The proxy's own endpoints, under `/-/` and nowhere else.

Rules. Whatever lies under the prefix is answered here and never forwarded. Answers are JSON, hold no content and no
key, and cost no call to the upstream. An endpoint is one function and one row in the table.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.edge.downstream import Downstream
from proxy.edge.performer import Surroundings
from proxy.wire import chat

PREFIX: Final = "/-/"
_STATE: Final = f"{PREFIX}state"
_KIND: Final = "invalid_request_error"

Reply = tuple[int, bytes]


def is_own(path: str) -> bool:
    """Whether a path is one of ours rather than the upstream's."""
    return path.startswith(PREFIX)


async def answer(method: str, path: str, client: Downstream, around: Surroundings) -> None:
    """Answer a request to one of our own paths. Raises ClientGone."""
    methods = _ENDPOINTS.get(path.rstrip("/"), _ONE_STATE if path.startswith(f"{_STATE}/") else None)
    if methods is None:
        said = chat.error_body(f"There is no such endpoint under {PREFIX}.", _KIND, "not_found")
        await client.say(404, said)
    elif method not in methods:
        allowed = ", ".join(methods)
        said = chat.error_body(f"This endpoint takes {allowed}.", _KIND, "method_not_allowed")
        await client.say(405, said, f"Allow: {allowed}\r\n".encode())
    else:
        await client.say(*await methods[method](path, around))


async def _healthz(path: str, around: Surroundings) -> Reply:
    """The process runs and answers; says nothing about the upstream."""
    return 200, b'{"status":"ok"}'


async def _state(path: str, around: Surroundings) -> Reply:
    """The conversations that this process has served of late."""
    return 200, msgspec.json.encode({"conversations": around.ledger.listed()})


async def _forget(path: str, around: Surroundings) -> Reply:
    """Forget a conversation's checkpoints: its next request is planned from nothing. Raises StoreUnavailable."""
    id_ = path.rpartition("/")[2]
    keys = around.ledger.keys_of(id_)
    if keys is None:
        return 404, chat.error_body("No conversation with this id is listed here.", _KIND, "not_found")
    await around.memories.forget(keys)
    around.summaries.forget(keys)
    around.ledger.strike(id_)
    return 200, msgspec.json.encode({"forgotten": len(keys)})


Endpoint = Mapping[str, Callable[[str, Surroundings], Awaitable[Reply]]]

_ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        f"{PREFIX}healthz": MappingProxyType({"GET": _healthz, "HEAD": _healthz}),
        _STATE: MappingProxyType({"GET": _state, "HEAD": _state}),
    }
)

_ONE_STATE: Final[Endpoint] = MappingProxyType({"DELETE": _forget})
