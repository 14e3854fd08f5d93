"""What crosses the proxy and what does not: header fields and URLs, as pure functions over raw bytes.

Rules. A field that ends at this hop is never passed on; every other field keeps its name, its case, its place and its
very bytes. The client's credential is passed as it came, and the configured key is added only where the client sent
none. A path and a query are never decoded or encoded again. Nothing here logs, opens or waits.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from proxy.config.values import UNIX_SCHEME

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Fields as they came: (name, value) in order, repeated names repeated."""

Fields = list[tuple[bytes, bytes]]
"""Fields as they go."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 section 7.6.1, with the names from RFC 2616 and practice. `Proxy-Status` is end-to-end and not here."""

CREDENTIALS = frozenset({b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key"})
"""Where clients put their key: OpenAI and most, Azure, Anthropic, Google."""

MODE_HEADER = b"x-context-mode"

TOKEN_HEADER = b"x-transom-token"
"""Where a token of our own stands beside the client's own credential.

`Proxy-Authorization` would be the field for it, but web pages cannot set it and proxies on the way take it out.
"""

REQUEST_ID = b"x-request-id"

_TOLD = b"x-context-"
"""What the fields begin with that tell what a proxy did."""

_NOT_FORWARDED = HOP_BY_HOP | {
    b"host",  # names the upstream instead
    b"expect",  # this hop answers it: the upstream need not, and some stall on it
    MODE_HEADER,
    TOKEN_HEADER,
}

_SIDE_CALL = CREDENTIALS | {
    b"openai-organization",  # these two choose whose account pays, and some keys are refused without them
    b"openai-project",
    b"http-referer",  # these two name the application to a router that shares out quota by application
    b"x-title",
    b"user-agent",  # firewalls in front of some upstreams refuse a request that has none
}


# --------------------------------------------------------------------------------------------------------- requests


class Head(list[tuple[bytes, bytes]]):
    """Fields in which many are looked for: `first` is the first value under each name in lower case."""

    __slots__ = ("first",)

    def __init__(self, raw: RawHeaders) -> None:
        super().__init__(raw)
        self.first = {name.lower(): value for name, value in reversed(self)}


def find(raw: RawHeaders, name: bytes) -> bytes | None:
    """The first value under this lower-case name."""
    if type(raw) is Head:
        return raw.first.get(name)
    for key, value in raw:
        if key.lower() == name:
            return value
    return None


def has_credential(raw: RawHeaders) -> bool:
    """Whether the client sent a key of its own."""
    return any(name.lower() in CREDENTIALS or _is_key_of_a_page(name, value) for name, value in raw)


def _is_key_of_a_page(name: bytes, value: bytes) -> bool:
    # A page in a browser can set no header of a WebSocket; OpenAI takes its key as the name of a sub-protocol.
    return name.lower() == b"sec-websocket-protocol" and b"openai-insecure-api-key." in value


def asks_for_websocket(raw: RawHeaders) -> bool:
    """Whether these fields ask for a WebSocket and nothing else: RFC 9110 section 7.8, RFC 6455 section 4.1."""
    if find(raw, b"upgrade") is None:
        return False
    asked = [value.strip().lower() for name, value in raw if name.lower() == b"upgrade"]
    return asked == [b"websocket"] and b"upgrade" in _listed(raw)


def credential(raw: RawHeaders) -> bytes:
    """All credential fields as one value, for a digest that tells tenants apart; empty when there are none."""
    return b"\n".join(name.lower() + b":" + value for name, value in raw if name.lower() in CREDENTIALS)


def without_credentials(raw: RawHeaders) -> RawHeaders:
    """The fields without whatever shows who the client is, to its own upstream."""
    return tuple(field for field in raw if field[0].lower() not in _CLIENTS_OWN)


_CLIENTS_OWN = CREDENTIALS | {b"cookie", b"openai-organization", b"openai-project"}


def for_upstream(
    raw: RawHeaders,
    *,
    length: int | None = None,
    decoded: bool = False,
    unencoded: bool = False,
    key: str = "",
) -> Fields:
    """The client's fields as the upstream gets them, in their order; `Host` is left to the caller.

    `length` (bytes) is the body's when the proxy sends a whole one, None when the client's body is streamed and its
    own `Content-Length`, if any, is right. `decoded`: the body goes without the content-encoding that it came in, and
    so without the field. `unencoded` asks for an answer without content-encoding, because an event
    has to be taken out of it. `key` is the configured one.
    """
    own: dict[bytes, tuple[bytes, bytes]] = {}
    if length is not None:
        own[b"content-length"] = (b"Content-Length", b"%d" % length)
    if unencoded:
        own[b"accept-encoding"] = (b"Accept-Encoding", b"identity")
    dropped, left = _dropped(raw, decoded=decoded), dict(own)
    fields: Fields = []
    for name, value in raw:
        lower = name.lower()
        if lower in own:
            if mine := left.pop(lower, None):
                fields.append((name, mine[1]))
        elif lower not in dropped:
            fields.append((name, value))
    fields += left.values()
    if key and not has_credential(raw):
        fields.append(bearer(key))
    return fields


def _dropped(raw: RawHeaders, *, decoded: bool) -> frozenset[bytes]:
    """Names in lower case of what does not go on."""
    dropped = _NOT_FORWARDED
    if listed := _listed(raw):
        dropped |= listed
    if decoded:
        dropped |= {b"content-encoding"}
    if find(raw, b"transfer-encoding") is not None:
        dropped |= {b"content-length"}  # it would contradict the chunks: RFC 9112 section 6.3
    return dropped


def for_upgrade(raw: RawHeaders, *, key: str = "") -> Fields:
    """The fields of a client that asks for a WebSocket; `for_upstream`, and the two that ask for it at the next hop."""
    return [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), *for_upstream(raw, key=key)]


def for_side_call(raw: RawHeaders, *, key: str = "") -> Fields:
    """The few fields of the client's that its own upstream needs to accept a side call in its name.

    Never used towards another host: a configured summary model has a key of its own.
    """
    fields = [field for field in raw if field[0].lower() in _SIDE_CALL]
    if key and not has_credential(raw):
        fields.append(bearer(key))
    return fields


# ---------------------------------------------------------------------------------------------------------- answers


def for_client(raw: RawHeaders, added: Iterable[tuple[str, str]] = (), *, keep_length: bool = True) -> bytes:
    """The upstream's fields as the client gets them, serialised, each line with its CRLF.

    A field of ours replaces the upstream's of the same name, and those that tell what was done replace all that another
    proxy behind tells: what is of two of them fits together in nobody's eyes. `keep_length` is False when the number of
    bytes changes.
    """
    ours = [(name.encode("ascii"), value.encode("ascii", "replace")) for name, value in added]
    dropped = HOP_BY_HOP
    if listed := _listed(raw):
        dropped |= listed
    if ours:
        dropped |= {name.lower() for name, _ in ours}
    if not keep_length:
        dropped |= {b"content-length"}
    if any(name.startswith(_TOLD) for name, _ in ours):
        raw = [field for field in raw if not field[0].lower().startswith(_TOLD)]
    lines = [b"%b: %b\r\n" % (name, value) for name, value in raw if name.lower() not in dropped]
    lines += [b"%b: %b\r\n" % field for field in ours]
    return b"".join(lines)


def for_switch(raw: RawHeaders) -> bytes:
    """The fields of an upstream's 101 as the client gets them. It has no body, whatever it says of one."""
    return b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + for_client(raw, keep_length=False)


# ------------------------------------------------------------------------------------------------------------- both


def request_id(raw: RawHeaders) -> str:
    """The name that the sender gave to the request; empty where there is none that a log can take as it is."""
    value = find(raw, REQUEST_ID)
    return value.decode("ascii") if value is not None and _ID.fullmatch(value) else ""


_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def was_cut_behind(raw: RawHeaders) -> bool:
    """Whether another proxy says in its answer that it sent on another prompt than it was sent.

    It tells both numbers; a field of one of these names alone is somebody else's.
    """
    sent, original = find(raw, _TOLD + b"tokens"), find(raw, _TOLD + b"original-tokens")
    return None not in (sent, original) and sent != original


def codings(raw: RawHeaders) -> tuple[bytes, ...]:
    """The content codings in the order in which they were applied, in lower case; none where the bytes are plain."""
    if find(raw, b"content-encoding") is None:
        return ()
    values = [value for name, value in raw if name.lower() == b"content-encoding"]
    names = [name.strip().lower() for value in values for name in value.split(b",")]
    return tuple(name for name in names if name not in (b"", b"identity"))


def is_encoded(raw: RawHeaders) -> bool:
    """Whether the content is compressed, so that its bytes say nothing to a reader."""
    return bool(codings(raw))


def is_framed_plainly(raw: RawHeaders) -> bool:
    """Whether a message's bytes are its body once chunks are undone; any other transfer coding ends at this hop too."""
    if find(raw, b"transfer-encoding") is None:
        return True
    codings = [value for name, value in raw if name.lower() == b"transfer-encoding"]
    return all(coding.strip().lower() in _PLAIN_CODINGS for value in codings for coding in value.split(b","))


def are_named_plainly(raw: RawHeaders) -> bool:
    """Whether no space stands behind a name: one reader would take the field for the one so named, and another not."""
    return not any(name[-1:].isspace() for name, _ in raw)


_PLAIN_CODINGS = frozenset({b"chunked", b"identity", b""})


def _listed(raw: RawHeaders) -> frozenset[bytes]:
    """Names that `Connection` declares to end at this hop; a body's length is not its to take away."""
    if find(raw, b"connection") is None:
        return frozenset()
    values = [value for name, value in raw if name.lower() == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b",")) - {
        b"content-length"
    }


def bearer(key: str) -> tuple[bytes, bytes]:
    """The field with a configured key."""
    return (b"Authorization", b"Bearer " + key.encode())


# ------------------------------------------------------------------------------------------------------------- URLs
#
# How the client's request target and `upstream.base_url` become one URL:
#
#   base_url                     target                               URL
#   http://h                     /v1/chat/completions                 http://h/v1/chat/completions
#   http://h/                    /chat/completions                    http://h/chat/completions
#   http://h/v1                  /chat/completions                    http://h/v1/chat/completions
#   http://h/v1/                 /v1/chat/completions                 http://h/v1/chat/completions
#   http://h/api/v1              /v1/models                           http://h/api/v1/models
#   http://h/api/v1              /api/v1/models                       http://h/api/v1/models
#   http://h/api/paas/v4         /v1/chat/completions                 http://h/api/paas/v4/chat/completions
#   http://h/v1beta/openai       /v1/chat/completions                 http://h/v1beta/openai/chat/completions
#   http://h/openai              /openai/deployments/d/chat/...?a=1   http://h/openai/deployments/d/chat/...?a=1
#   http://h/v1?api-version=1    /v1/chat/completions?x=y             http://h/v1/chat/completions?api-version=1&x=y
#   http://h/v1?a=1              /v1/models?a=2                       http://h/v1/models?a=2
#   http://h/v1                  /v1                                  http://h/v1
#   http://h/v1                  /v10/models                          http://h/v1/v10/models
#   http://h/v1                  http://elsewhere/v1/models           http://h/v1/models
#   http+unix://%2Fs.sock/v1     /v1/models                           http://localhost/v1/models, by the socket /s.sock
#
# The rules behind it. (1) Slashes at the end of the base do not count. (2) The longest run of whole segments that
# ends the base and begins the target is written once. (3) A target's `v1`, which clients write by habit, gives way
# to a version that the base names anywhere. (4) Parameters of the base come first, except those that the client sends
# too. (5) All else is kept byte for byte: percent-encoding, empty segments, dots, order. The host is always the base's.

_VERSION = re.compile(r"v\d+[a-z0-9]*")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


@dataclass(frozen=True, slots=True)
class Base:
    """A base URL, taken apart once. `socket`: the path of the Unix socket that its server listens on."""

    origin: str
    segments: tuple[str, ...]
    query: str
    socket: str = ""

    @classmethod
    def of(cls, url: str) -> "Base":
        """Take apart an absolute http, https or http+unix URL. Raises ValueError when it is none."""
        matched = _ABSOLUTE.match(url)
        if matched is None:
            raise ValueError("A base URL begins with http:// or https:// and names a host.")
        origin, socket = matched.group(), ""
        scheme, _, host = origin.partition("://")
        if scheme.lower() == UNIX_SCHEME:
            origin, socket = (
                "http://localhost",
                unquote(host),
            )  # the host that most clients of such servers name
        path, _, query = url[matched.end() :].partition("#")[0].partition("?")
        segments = path.rstrip("/").split("/")[1:] if path.rstrip("/") else []
        return cls(origin, tuple(segments), query, socket)


def authority(target: str) -> str:
    """The host, and the port if there is one, that an absolute request target names; empty for any other."""
    matched = _ABSOLUTE.match(target)
    return matched.group().partition("://")[2] if matched else ""


def split_target(target: str) -> tuple[str, str]:
    """(path, query) of a request target as it came; an absolute one loses its host, a fragment is left out."""
    if not target.startswith("/") and (matched := _ABSOLUTE.match(target)):
        target = target[matched.end() :]
    path, _, query = target.partition("#")[0].partition("?")
    if not path.startswith("/"):  # `OPTIONS *` asks about the whole server
        path = "/" + path.removeprefix("*")
    return path, query


def join(base: Base, path: str, query: str) -> str:
    """The upstream's URL for this path and query, by the table above."""
    segments = path.split("/")[1:]
    shared = _overlap(base.segments, segments)
    if not shared and segments[0] == "v1" and any(map(_VERSION.fullmatch, base.segments)):
        shared = 1
    rest = "/".join(segments[shared:])
    joined = "/".join((base.origin, *base.segments))
    if rest or (len(segments) > shared and path != "/") or not base.segments:
        joined += "/" + rest
    whole = _merge(base.query, query)
    return f"{joined}?{whole}" if whole else joined


def _overlap(base: Sequence[str], segments: Sequence[str]) -> int:
    for size in range(min(len(base), len(segments)), 0, -1):
        if list(base[-size:]) == list(segments[:size]):
            return size
    return 0


def _merge(ours: str, theirs: str) -> str:
    if not ours or not theirs:
        return ours or theirs
    sent = {parameter.partition("=")[0] for parameter in theirs.split("&")}
    kept = [parameter for parameter in ours.split("&") if parameter.partition("=")[0] not in sent]
    return "&".join([*kept, theirs])
