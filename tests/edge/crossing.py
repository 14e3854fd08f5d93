"""One request through the proxy, as the very bytes, and what of it arrives on both sides.

Rules. Nothing is added to a request and nothing of an answer is decoded but its framing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.edge.proxied import Proxied, proxied
from tests.peers.client import RawClient, Response
from tests.peers.upstream import Answer, Cut, Reply, Request, ScriptedUpstream, json_answer, raw_answer

CHAT: Final = "/v1/chat/completions"
FILES: Final = "/v1/files"
ASKED: Final = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
OK: Final = json_answer({"ok": True})
CHUNKS: Final = b"3\r\nabc\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Crossing:
    """One request that went through: its answer, what the upstream got, and the proxy with its log."""

    response: Response
    requests: Sequence[Request]
    proxy: Proxied


async def cross(raw: bytes, answer: Reply = OK, *, base: str = "", **fields: Any) -> Crossing:
    """Send these bytes, read one answer."""
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url + base, **fields) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(raw)
        return Crossing(await client.read(), upstream.requests, proxy)


def head(method: str, target: str, *lines: bytes, version: bytes = b"1.1") -> bytes:
    """A request's head, `Host` first."""
    start = b"%b %b HTTP/%b" % (method.encode(), target.encode("latin-1"), version)
    return b"\r\n".join([start, b"Host: proxy", *lines, b"", b""])


def answered(*lines: bytes, status: bytes = b"200 OK", body: bytes = b"abc") -> Answer:
    """An answer of exactly these bytes."""
    return raw_answer(b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", body]), Cut.CLOSE)
