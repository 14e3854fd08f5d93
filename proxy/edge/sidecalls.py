"""Side calls: the proxy's own requests for a summary, bounded in time, in number and in size.

Rules. A side call goes to the same upstream, path, query and credential as the main call, unless an upstream for
summaries is configured: that one never hears the client's key or anything else of the client's. It ends with its
deadline, whatever happens. Every failure is one of a few fixed words; no text of an upstream's error leaves this file.
Usage is reported also when the answer is of no use. Whether a text is a good summary is not judged here.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from proxy import __version__
from proxy.config import SideCalls
from proxy.context.policy import SummaryMode
from proxy.edge import encodings, headers
from proxy.edge.encodings import Undecodable, answer_bound
from proxy.edge.headers import Base, RawHeaders
from proxy.edge.upstream import Reply, Upstream
from proxy.errors import TransomError, UpstreamTimeout
from proxy.exchange import SideCallFailed
from proxy.wire import chat
from proxy.wire.usage import Usage

MOST_BYTES: Final = 4 * 1024 * 1024
"""The longest answer that is read; a summary has a few thousand bytes, its reasoning perhaps a hundred thousand."""

_MOST_SHAPES: Final = 2
"""A side call is written anew for an upstream that takes no stream options, no system message or no choice of tools."""

_PAUSE: Final = 0.5
"""Seconds before the second try, twice that before the third, where the upstream does not say how long."""

_CHAT: Final = "/chat/completions"


class Origin(msgspec.Struct, frozen=True):
    """The main call in whose name a side call is made: its fields as they came, its path and its query."""

    fields: RawHeaders
    path: str
    query: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The text that a side call was answered with, not yet judged."""

    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class _Target:
    url: str
    fields: RawHeaders


class SideCaller:
    """Makes side calls. `main` is the base URL of the main calls, `key` the one configured for it."""

    def __init__(
        self, upstream: Upstream, options: SideCalls, main: Base, *, key: str = "", pause: float = _PAUSE
    ) -> None:
        self._upstream = upstream
        self._options = options
        self._patience = options.patience(main.origin)
        self._main = main
        self._key = key
        self._pause = pause

    async def ask(
        self, body: bytes, origin: Origin, mode: SummaryMode = SummaryMode.TRANSCRIPT
    ) -> Answered | SideCallFailed:
        """Make the call with this body, which asks in this mode; at most `attempts` tries and never beyond its
        deadline.
        """
        deadline = asyncio.get_running_loop().time() + self._patience
        failed = SideCallFailed("timeout")
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in range(1, self._options.attempts + 1):
                    outcome = await self._try(origin, body, mode)
                    for _ in range(_MOST_SHAPES):
                        if not isinstance(outcome, _Reshaped):
                            break
                        body = outcome.body
                        outcome = await self._try(origin, body, mode)
                    if isinstance(outcome, _Reshaped):
                        return SideCallFailed(outcome.reason)
                    if not isinstance(outcome, _Retry):
                        return outcome
                    failed = SideCallFailed(outcome.reason, after=outcome.after)
                    pause = self._pause * attempt if outcome.after is None else outcome.after
                    last = attempt == self._options.attempts
                    if last or asyncio.get_running_loop().time() + pause >= deadline:
                        break
                    await asyncio.sleep(pause)
        except TimeoutError:
            return SideCallFailed("timeout")
        return failed

    def _target(self, origin: Origin, length: int) -> _Target:
        options = self._options
        own = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % length)]
        own += [(b"Accept", b"application/json"), (b"Accept-Encoding", b"identity")]
        if options.base_url is not None:
            key = options.api_key.reveal() if options.api_key else ""
            fields = [headers.bearer(key)] if key else []
            fields.append((b"User-Agent", b"transom/" + __version__.encode()))
            return _Target(headers.join(Base.of(options.base_url), _CHAT, ""), (*fields, *own))
        if options.api_key is not None:
            kept = [field for field in origin.fields if field[0].lower() not in headers.CREDENTIALS]
            fields = headers.for_side_call(kept, key=options.api_key.reveal())
        else:
            fields = headers.for_side_call(origin.fields, key=self._key)
        return _Target(headers.join(self._main, origin.path, origin.query), (*fields, *own))

    async def _try(
        self, origin: Origin, body: bytes, mode: SummaryMode
    ) -> "Answered | SideCallFailed | _Retry | _Reshaped":
        target = self._target(origin, len(body))
        try:
            reply = await self._upstream.call("POST", target.url, target.fields, body)
        except UpstreamTimeout:
            return _Retry("timeout")
        except TransomError:
            return _Retry("unreachable")
        try:
            if reply.status in chat.REFUSING:
                refusal = await reply.chunk()
                if (other := _reshaped(body, mode, reply.status, refusal)) is not None:
                    return _Reshaped(f"status_{reply.status}", other)
                if chat.refuses_system(reply.status, refusal):
                    return SideCallFailed(f"status_{reply.status}")
            if reply.status == 429 or reply.status >= 500:
                return _Retry(f"status_{reply.status}", _retry_after(reply.headers))
            if not 200 <= reply.status < 300:
                return SideCallFailed(f"status_{reply.status}")
            return await _read(reply, self._options.stall)
        except UpstreamTimeout:
            return _Retry("timeout")
        except TransomError:
            return _Retry("broken")
        finally:
            reply.close()


@dataclass(frozen=True, slots=True)
class _Reshaped:
    """Worth another try with this body, which leaves out what the upstream does not take."""

    reason: str
    body: bytes


def _reshaped(body: bytes, mode: SummaryMode, status: int, refusal: bytes) -> bytes | None:
    """The body without what a refusal complains of; None where it is something else.

    Behind a forwarded prompt the messages are the client's, which the upstream has taken before.
    """
    if b'"stream_options"' in body and chat.refuses_usage(status, refusal):
        return chat.without_usage(body)
    if mode is SummaryMode.SUFFIX:
        plain = chat.without_forbidding(body) if chat.refuses_forbidding(status, refusal) else body
        return plain if plain != body else None
    has_system = b'"role":"system"' in body
    return chat.without_system(body) if has_system and chat.refuses_system(status, refusal) else None


@dataclass(frozen=True, slots=True)
class _Retry:
    """Worth another try: the reason, and after how many seconds where the upstream said so."""

    reason: str
    after: float | None = None


async def _read(reply: Reply, stall: float) -> Answered | SideCallFailed | _Retry:
    """The answer. Once a stream has begun to speak, it may be silent for `stall` seconds at most."""
    is_stream = b"event-stream" in (headers.find(reply.headers, b"content-type") or b"").lower()
    pieces: list[bytes] = []
    size, speaks = 0, False
    while True:
        piece = await _in_time(reply.chunk(), stall if speaks else None)
        if piece is None:
            return _Retry("stalled")
        if not piece:
            break
        pieces.append(piece)
        speaks = speaks or (is_stream and not piece.startswith(b":"))
        size += len(piece)
        if size > MOST_BYTES:
            return SideCallFailed("too_long")
    codings = headers.codings(reply.headers)  # though it was asked for an answer without
    try:
        body = await encodings.decoded(b"".join(pieces), codings, answer_bound(MOST_BYTES))
    except Undecodable:
        return SideCallFailed("encoded")
    answer = chat.read_stream(body) if is_stream else chat.read_answer(body)
    if answer is None:
        return SideCallFailed("not_json", None if is_stream else chat.usage_of(body))
    if answer.finish_reason == "content_filter":
        return SideCallFailed("content_filter", answer.usage)
    if answer.has_calls:
        return SideCallFailed("tool_call", answer.usage)
    return (
        Answered(answer.text, answer.usage) if answer.text.strip() else SideCallFailed("empty", answer.usage)
    )


async def _in_time(piece: Coroutine[None, None, bytes], seconds: float | None) -> bytes | None:
    """What comes within so many seconds, None when nothing does."""
    silence = asyncio.timeout(seconds)
    try:
        async with silence:
            return await piece
    except TimeoutError:
        if not silence.expired():
            raise
        return None


def _retry_after(fields: RawHeaders) -> float | None:
    """Seconds that the upstream asks for, as a number or as a date (RFC 9110 section 10.2.3)."""
    value = (headers.find(fields, b"retry-after") or b"").strip().decode("latin-1")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    now = datetime.now(UTC)
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())
