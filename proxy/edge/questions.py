"""Small questions to the upstream in a client's name: where it tells its window, what it counts of a prompt.

Rules. A question goes to the host of the main calls and nowhere else, with the credential that the main call has. Its
answer is bounded in size, and whatever it is, nothing is raised for it: an upstream that cannot be reached and one that
answers with something else than JSON are answers too. How long one waits is the caller's affair.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.edge import encodings, headers
from proxy.edge.encodings import Undecodable, answer_bound
from proxy.edge.headers import Base
from proxy.edge.sidecalls import Origin
from proxy.edge.upstream import Reply, Upstream
from proxy.errors import TransomError
from proxy.wire import dialects
from proxy.wire.dialects import Ask

MOST_BYTES: Final = 8 * 1024 * 1024
"""The longest answer that is read; the longest known one, a provider's list of all its models, has one megabyte."""

UNREACHABLE: Final = 0
"""The status of no answer."""

NOT_FOUND: Final = 404

_CHAT: Final = "/chat/completions"
_VERSION: Final = re.compile(r"v\d+[a-z0-9]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """The status, and the decoded JSON of a success; None where there is none."""

    status: int
    value: object = None

    @property
    def is_absent(self) -> bool:
        """Whether the server says that it has no such endpoint."""
        return self.status in (NOT_FOUND, 405, 501)

    @property
    def is_out_of_reach(self) -> bool:
        """Whether the server cannot answer now, and another time may."""
        return self.status in (UNREACHABLE, 429) or (self.status >= 500 and not self.is_absent)


class Questions:
    """Asks. `base` is the base URL of the main calls, `key` the credential configured for it."""

    def __init__(self, upstream: Upstream, base: Base, key: str) -> None:
        self._upstream = upstream
        self._base = base
        self._key = key

    async def ask(self, ask: Ask, model: str, origin: Origin, body: bytes | None = None) -> Answer:
        """Ask one thing about a model. `body` takes the place of the one that the question has by itself."""
        body = ask.body_for(model) if body is None else body
        fields = headers.for_side_call(origin.fields, key=self._key)
        fields += [(b"Accept", b"application/json"), (b"Accept-Encoding", b"identity")]
        if body is not None:
            fields += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
        try:
            reply = await self._upstream.call(ask.method, self._url(ask, model, origin), fields, body)
        except TransomError:
            return Answer(UNREACHABLE)
        try:
            pieces: list[bytes] = []
            room = MOST_BYTES
            while room >= 0 and (piece := await reply.chunk()):
                pieces.append(piece)
                room -= len(piece)
        except TransomError:
            return Answer(UNREACHABLE)
        finally:
            reply.close()
        is_success = 200 <= reply.status < 300 and room >= 0
        return Answer(reply.status, await _read(reply, b"".join(pieces)) if is_success else None)

    def _url(self, ask: Ask, model: str, origin: Origin) -> str:
        prefix = origin.path.rstrip("/").removesuffix(_CHAT)
        path, _, query = ask.path_for(model).partition("?")
        match ask.base:
            case dialects.Base.API:
                return headers.join(self._base, prefix + path, origin.query or query)
            case dialects.Base.ROOT:
                return headers.join(self._root, path, query)

    @property
    def _root(self) -> Base:
        """The server's root: what stands before the version in the base URL."""
        segments = self._base.segments
        versions = (place for place, segment in enumerate(segments) if _VERSION.fullmatch(segment))
        return Base(self._base.origin, segments[: next(versions, len(segments))], "")


async def _read(reply: Reply, body: bytes) -> object:
    codings = headers.codings(reply.headers)  # though it was asked for an answer without
    try:
        return msgspec.json.decode(await encodings.decoded(body, codings, answer_bound(MOST_BYTES)))
    except (Undecodable, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
