"""What crosses the proxy and what does not: header fields and URLs, as pure functions over raw bytes.

Rules. A field that ends at this hop is never passed on; every other field keeps its name, its case, its place and its
very bytes. The client's credential is passed as it came, and the configured key is added only where the client sent
none. A path and a query are never decoded or encoded again. Nothing here logs, opens or waits.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, compress, repeat
from operator import itemgetter
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


# ------------------------------------------------------------------------------------------------------------ heads


class Names:
    """What the names of a head say by themselves, out of `joined` by colons, which no name has in it.

    `lower`: the names in lower case; `places`: where the fields of each are; `credentials`: where those with a key are;
    `are_plain`: no space stands behind one.
    """

    __slots__ = ("_passing", "are_plain", "credentials", "lower", "places")

    def __init__(self, joined: bytes) -> None:
        self.lower = joined.lower().split(b":") if joined else []
        self.places: dict[bytes, list[int]] = {}
        for at, name in enumerate(self.lower):
            self.places.setdefault(name, []).append(at)
        self.credentials = [at for at, name in enumerate(self.lower) if name in CREDENTIALS]
        self.are_plain = not any(name[-1:].isspace() for name in self.lower)
        self._passing: dict[Hashable, list[bool]] = {}

    def passing(self, rule: Callable[..., list[bool]], *how: Hashable) -> list[bool]:
        """Which fields go on by a rule, by their places; worked out once."""
        passing = self._passing.get((rule, how))
        if passing is None:
            if len(self._passing) >= _MOST_WAYS:
                self._passing.clear()  # who lists odd fields in `Connection` would else take all places for ever
            passing = self._passing[rule, how] = rule(self, *how)
        return passing


_MOST_WAYS = 16
"""Ways for a head to go on that are remembered of the same names; there are three or four in a configuration."""

_USUAL_NAMES = 2048
"""Bytes of a head's names up to which they are worth remembering. Some forty names have half of it."""

_name_of = itemgetter(0)


class Head(list[tuple[bytes, bytes]]):
    """Fields, and what their names say; `places` is theirs."""

    __slots__ = ("names", "places")

    def __init__(self, raw: RawHeaders, names: Names | None = None) -> None:
        super().__init__(raw)
        self.names = names or Names(b":".join(map(_name_of, raw)))
        self.places = self.names.places


class Heads:
    """Makes heads. A client, and a server, sends the same names each time: what they say is found out once."""

    def __init__(self) -> None:
        self._usual = lru_cache(maxsize=256)(Names)

    def of(self, raw: RawHeaders) -> Head:
        """The head with these fields."""
        joined = b":".join(map(_name_of, raw))
        return Head(raw, (self._usual if len(joined) <= _USUAL_NAMES else Names)(joined))


def _head(raw: RawHeaders) -> Head:
    return raw if type(raw) is Head else Head(raw)


def find(raw: RawHeaders, name: bytes) -> bytes | None:
    """The first value under this lower-case name."""
    if type(raw) is Head:
        places = raw.places.get(name)
        return raw[places[0]][1] if places else None
    for key, value in raw:
        if key.lower() == name:
            return value
    return None


def every(raw: RawHeaders, name: bytes) -> list[bytes]:
    """All values under this lower-case name."""
    head = _head(raw)
    return [head[at][1] for at in head.places.get(name, ())]


def lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Fields as they are written, each with its CRLF."""
    return b"\r\n".join([*map(b": ".join, fields), b""])


# --------------------------------------------------------------------------------------------------------- requests


def has_credential(raw: RawHeaders) -> bool:
    """Whether the client sent a key of its own."""
    head = _head(raw)
    # A page in a browser can set no header of a WebSocket; OpenAI takes its key as the name of a sub-protocol.
    protocols = every(head, b"sec-websocket-protocol")
    return bool(head.names.credentials) or any(b"openai-insecure-api-key." in named for named in protocols)


def asks_for_websocket(raw: RawHeaders) -> bool:
    """Whether these fields ask for a WebSocket and nothing else: RFC 9110 section 7.8, RFC 6455 section 4.1."""
    if find(raw, b"upgrade") is None:
        return False
    asked = [value.strip().lower() for value in every(raw, b"upgrade")]
    return asked == [b"websocket"] and b"upgrade" in _listed(_head(raw))


def credential(raw: RawHeaders) -> bytes:
    """All credential fields as one value, for a digest that tells tenants apart; empty when there are none."""
    head = _head(raw)
    return b"\n".join([b"%b:%b" % (head.names.lower[at], head[at][1]) for at in head.names.credentials])


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
    head = _head(raw)
    fields = [*head]
    if length is not None:
        _put(fields, head, b"Content-Length", b"%d" % length)
    if unencoded:
        _put(fields, head, b"Accept-Encoding", b"identity")
    if key and not has_credential(head):
        fields.append(bearer(key))
    passing = head.names.passing(_to_upstream, _listed(head), length is not None, decoded, unencoded)
    return [*compress(fields, chain(passing, repeat(True)))]  # what is added passes


def _put(fields: Fields, head: Head, name: bytes, value: bytes) -> None:
    """Have this value in the place of the first one under this name, or in a field behind the others."""
    if there := head.places.get(name.lower()):
        fields[there[0]] = (head[there[0]][0], value)
    else:
        fields.append((name, value))


def _to_upstream(
    names: Names, listed: frozenset[bytes], is_whole: bool, is_decoded: bool, is_unencoded: bool
) -> list[bool]:
    own = ({b"content-length"} if is_whole else set()) | ({b"accept-encoding"} if is_unencoded else set())
    dropped = _NOT_FORWARDED | listed
    if is_decoded:
        dropped |= {b"content-encoding"}
    if b"transfer-encoding" in names.places:
        dropped |= {b"content-length"}  # it would contradict the chunks: RFC 9112 section 6.3
    return [
        at == names.places[name][0] if name in own else name not in dropped
        for at, name in enumerate(names.lower)
    ]


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
    head, ours = _head(raw), tuple(added)
    passing = head.names.passing(_to_client, _listed(head), tuple(map(_name_of, ours)), keep_length)
    said = "\r\n".join([*map(": ".join, ours), ""])
    return lines(compress(head, passing)) + said.encode("ascii", "replace")


def _to_client(
    names: Names, listed: frozenset[bytes], added: tuple[str, ...], keeps_length: bool
) -> list[bool]:
    ours = {name.lower().encode("ascii") for name in added}
    dropped = HOP_BY_HOP | listed | ours
    if not keeps_length:
        dropped |= {b"content-length"}
    if any(name.startswith(_TOLD) for name in ours):
        dropped |= {name for name in names.lower if name.startswith(_TOLD)}
    return [name not in dropped for name in names.lower]


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
    sent = find(raw, b"x-context-tokens")
    return sent is not None and find(raw, b"x-context-original-tokens") not in (None, sent)


def codings(raw: RawHeaders) -> tuple[bytes, ...]:
    """The content codings in the order in which they were applied, in lower case; none where the bytes are plain."""
    if find(raw, b"content-encoding") is None:
        return ()
    names = [name.strip().lower() for value in every(raw, b"content-encoding") for name in value.split(b",")]
    return tuple(name for name in names if name not in (b"", b"identity"))


def is_encoded(raw: RawHeaders) -> bool:
    """Whether the content is compressed, so that its bytes say nothing to a reader."""
    return bool(codings(raw))


def is_framed_plainly(raw: RawHeaders) -> bool:
    """Whether a message's bytes are its body once chunks are undone; any other transfer coding ends at this hop too."""
    if find(raw, b"transfer-encoding") is None:
        return True
    values = every(raw, b"transfer-encoding")
    return all(coding.strip().lower() in _PLAIN_CODINGS for value in values for coding in value.split(b","))


def are_named_plainly(raw: RawHeaders) -> bool:
    """Whether no space stands behind a name: one reader would take the field for the one so named, and another not."""
    return _head(raw).names.are_plain


_PLAIN_CODINGS = frozenset({b"chunked", b"identity", b""})


def _listed(head: Head) -> frozenset[bytes]:
    """Names here that `Connection` declares to end at this hop; a body's length is not its to take away."""
    if b"connection" not in head.places:
        return _NONE
    tokens = {token.strip() for token in b",".join(every(head, b"connection")).lower().split(b",")}
    return frozenset(tokens.intersection(head.places) - {b"content-length"})


_NONE: frozenset[bytes] = frozenset()


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
    start: str = field(init=False, compare=False)
    """All of it but the query."""

    begun: tuple[str, ...] = field(init=False, compare=False)
    """What a target may begin with that the base has already, with a slash behind it; the longest first."""

    def __post_init__(self) -> None:
        """Find out what every target is held against."""
        begun = ["/" + "/".join(self.segments[at:]) + "/" for at in range(len(self.segments))]
        if any(map(_VERSION.fullmatch, self.segments)):
            begun.append("/v1/")
        object.__setattr__(self, "start", "/".join((self.origin, *self.segments)))
        object.__setattr__(self, "begun", tuple(begun))

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
    if target.startswith("/") and "?" not in target and "#" not in target:
        return target, ""
    if not target.startswith("/") and (matched := _ABSOLUTE.match(target)):
        target = target[matched.end() :]
    path, _, query = target.partition("#")[0].partition("?")
    if not path.startswith("/"):  # `OPTIONS *` asks about the whole server
        path = "/" + path.removeprefix("*")
    return path, query


def join(base: Base, path: str, query: str) -> str:
    """The upstream's URL for this path and query, by the table above."""
    slashed = f"{path}/"
    for begun in base.begun:
        if slashed.startswith(begun):
            joined = base.start + path[len(begun) - 1 :]
            break
    else:
        joined = base.start if path == "/" and base.segments else base.start + path
    whole = _merge(base.query, query)
    return f"{joined}?{whole}" if whole else joined


def _merge(ours: str, theirs: str) -> str:
    if not ours or not theirs:
        return ours or theirs
    sent = {parameter.partition("=")[0] for parameter in theirs.split("&")}
    kept = [parameter for parameter in ours.split("&") if parameter.partition("=")[0] not in sent]
    return "&".join([*kept, theirs])
