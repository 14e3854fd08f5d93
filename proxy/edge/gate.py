"""The gate before everything: who may come in, and from where our own endpoints may be asked.

Rules. A request is judged by its head alone, and nothing here waits. A token is compared as a digest with every one
that there is, so that neither its text nor the time tells anything. Whichever field holds one of our tokens ends here:
the request that goes on carries none of them. What is refused says how to come in, and repeats nothing that was sent.
"""

import hashlib
import hmac
import ipaddress
import re
from enum import Enum, auto
from typing import Final

import msgspec
from aiohttp import hdrs
from msgspec import structs

from proxy.config import Address, Config, Secret, is_loopback
from proxy.edge import admin, headers
from proxy.edge.headers import RawHeaders
from proxy.errors import ForeignHost, ForeignPage, NotHere, TransomError, Unauthorized


class Door(Enum):
    """What an address is for."""

    ALL = auto()
    CLIENTS = auto()  # our own endpoints have another address
    OWN = auto()  # that address


class Admitted(msgspec.Struct, frozen=True):
    """What goes on of a request: its fields without our tokens, and who its sender is.

    `holder` names the token, as a digest; empty where there are none. `may_use_key` says whether the configured key of
    the upstream may be used for it.
    """

    fields: RawHeaders
    holder: str = ""
    may_use_key: bool = True


def lends_key(config: Config) -> bool:
    """Whether an upstream's key is used for whoever reaches the address from another machine (B134)."""
    has_key = any(options.api_key is not None for options in config.servers.values())
    return has_key and not config.auth.accepted and not is_loopback(config.listen)


class Gate:
    """The gate of one address."""

    def __init__(self, config: Config, door: Door) -> None:
        self._door = door
        self._holders = tuple(map(_digest_of, config.auth.accepted))
        listening = (config.listen, config.admin.listen)
        names = [each.host.lower() for each in listening if isinstance(each, Address)]
        self._hosts = frozenset({"localhost", *config.admin.hosts, *names})

    def admit(self, method: str, target: str, raw: RawHeaders) -> Admitted:
        """Let a request in. `target` is as it came. Raises NotHere, ForeignHost, ForeignPage and Unauthorized."""
        path, _ = headers.split_target(target)
        if admin.is_own(path):
            return self._admit_to_own(path, target, raw)
        admitted = self._let_in(raw, method)
        if self._door is Door.OWN:
            raise NotHere(f"At this address there are only the endpoints under {admin.PREFIX}.")
        if not admitted.holder and _is_socket_of_a_page(raw) and self._foreign(raw, target) is not None:
            # Of another answer a browser shows a foreign page nothing; of a WebSocket it shows everything.
            return structs.replace(admitted, may_use_key=False)
        return admitted

    def _admit_to_own(self, path: str, target: str, raw: RawHeaders) -> Admitted:
        if admin.is_for_all(path):
            return Admitted(raw)
        if (foreign := self._foreign(raw, target)) is not None:
            raise foreign
        admitted = Admitted(raw) if admin.is_page(path) else self._let_in(raw, "")
        if self._door is Door.CLIENTS:
            raise NotHere(f"The endpoints under {admin.PREFIX} are at another address of this proxy's.")
        return admitted

    # --- tokens -----------------------------------------------------------------------------------------------

    def _let_in(self, raw: RawHeaders, method: str) -> Admitted:
        """By its tokens; `method` is empty where the upstream is not asked."""
        if not self._holders:
            return Admitted(raw)
        held = [(name.lower(), self._holder_of(name.lower(), value)) for name, value in raw]
        fields = tuple(field for field, (_, holder) in zip(raw, held, strict=True) if not holder)
        named = [holder for name, holder in held if name == headers.TOKEN_HEADER]
        holder = next(filter(None, named or (holder for _, holder in held)), "")
        if holder:
            return Admitted(fields, holder)
        if _is_preflight(method, raw):  # a browser sends no credential with it, so it gets none either
            return Admitted(fields, may_use_key=False)
        is_known = named or headers.has_credential(raw)
        raise Unauthorized(_NONE_OF_OURS if is_known else _NOTHING_SENT)

    def _holder_of(self, name: bytes, value: bytes) -> str:
        """Which token a field holds, as its digest; empty for none."""
        if name != headers.TOKEN_HEADER and name not in headers.CREDENTIALS:
            return ""
        said = _digest(_SCHEME.sub(b"", value, count=1))
        # Every one of them is compared, so that the time does not tell which it was.
        matches = [holder for holder in self._holders if hmac.compare_digest(holder, said)]
        return matches[0] if matches else ""

    # --- where our own endpoints are asked from ---------------------------------------------------------------

    def _foreign(self, raw: RawHeaders, target: str) -> TransomError | None:
        """What is wrong with a request that only a web page of somebody else's would send; None for any other."""
        hosts = [value.decode("latin-1") for name, value in raw if name.lower() == b"host"]
        named = [host for host in (*hosts, headers.authority(target)) if host]
        if not all(map(self._is_one_of_ours, named)):
            return ForeignHost(
                "This proxy does not answer under this name. Ask by its IP address or as localhost, or list the name"
                " under admin.hosts in its configuration."
            )
        pages = [value.decode("latin-1") for name, value in raw if name.lower() == b"origin"]
        same = {host.lower() for host in named}
        is_foreign = any(page.partition("://")[2].lower() not in same for page in pages)
        sites = [value.strip().lower() for name, value in raw if name.lower() == b"sec-fetch-site"]
        if is_foreign or b"cross-site" in sites:
            return ForeignPage(f"Web pages of other sites may not ask for what is under {admin.PREFIX}.")
        return None

    def _is_one_of_ours(self, host: str) -> bool:
        """Whether a `Host` is an IP address, which no name can be made to lead to, or one of our names."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        if found["six"] is None and found["name"].lower().removesuffix(".") in self._hosts:
            return True
        try:
            ipaddress.ip_address(found["six"] or found["name"])
        except ValueError:
            return False
        return True


_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?")
_SCHEME: Final = re.compile(rb"\Abearer[ \t]+", re.IGNORECASE)

_NOTHING_SENT: Final = (
    "This proxy takes only requests with one of its tokens: as `Authorization: Bearer TOKEN`, as `x-api-key` or as"
    " `api-key`; or as `x-transom-token` beside a key of your own for the upstream."
)
_NONE_OF_OURS: Final = (
    "The credential of this request is no token of this proxy's. Send one as `Authorization: Bearer TOKEN`, as"
    " `x-api-key` or as `api-key`; or as `x-transom-token` beside a key of your own for the upstream."
)


def _digest_of(token: Secret) -> str:
    return _digest(token.reveal().encode())


def _digest(token: bytes) -> str:
    return hashlib.blake2b(token, digest_size=16, person=b"transom token").hexdigest()


def _is_socket_of_a_page(raw: RawHeaders) -> bool:
    return headers.find(raw, b"origin") is not None and headers.asks_for_websocket(raw)


def _is_preflight(method: str, raw: RawHeaders) -> bool:
    """Whether this is how a browser asks, on its own account, if a page may send the request that it wants to."""
    names = {name.lower() for name, _ in raw}
    asks = method == hdrs.METH_OPTIONS and {b"origin", b"access-control-request-method"} <= names
    return asks and not names & {b"content-length", b"transfer-encoding"}
