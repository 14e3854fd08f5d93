"""The kinds of value that an option may have: how each is read from text, and how it is written again.

Rules. Reading takes text alone, so `off`, `010` and `1:30` mean what they say and not what YAML 1.1 makes of them. What
a kind writes, it reads back as the same value. A value that is wrong is answered with `Wrong`, never raised, and its
problem never repeats the text: whoever reports it knows whether the text may be shown.
"""

import difflib
import ipaddress
import re
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from proxy.config import shapes
from proxy.config.shapes import Shape
from proxy.config.values import (
    HIDDEN,
    HIDDEN_USER,
    UNIX_SCHEME,
    Address,
    Secret,
    SocketFile,
    StoreURL,
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a text is no value of its kind, as the rest of a sentence that begins with the text."""

    problem: str


def _as_it_is(value: Any) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` turns text into a value or `Wrong`; `show` turns the value into a plain YAML scalar.

    shape       how the text looks, for editors and for the reference
    is_counted  the value is a bare number, so that its option must name a unit
    is_quotable its text may stand in an error message; False for whatever may hold a credential
    reads_empty an empty text is read like any other, and does not mean that the value was left out
    """

    read: Callable[[str], object]
    shape: Shape
    show: Callable[[Any], object] = _as_it_is
    is_counted: bool = False
    is_quotable: bool = True
    reads_empty: bool = False


def nearest(text: str, known: Collection[str]) -> str | None:
    """The known word that is closest to a text, None when none is close."""
    close = difflib.get_close_matches(text, sorted(known), n=1)
    return close[0] if close else None


def _suggestion(text: str, known: Collection[str]) -> str:
    near = nearest(text, known)
    return f"; did you mean {near}?" if near else ""


# --- numbers ----------------------------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"([0-9][0-9_]{0,14}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")

MOST: Final = 10**15
"""No number of tokens, bytes or things is larger; whatever is, is a slip."""

LONGEST_DURATION: Final = 3650 * 86_400_000
"""Milliseconds."""

_THOUSANDS: Final = MappingProxyType({"": 1, "k": 1000, "m": 1000**2, "ki": 1024, "mi": 1024**2})
_BYTES: Final = MappingProxyType(
    {
        "": 1,
        "b": 1,
        "kb": 1000,
        "mb": 1000**2,
        "gb": 1000**3,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
    }
)
_MILLISECONDS: Final = MappingProxyType(
    {"": 1000, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
)


def _scaled(text: str, factors: Mapping[str, int]) -> Decimal | None:
    """A number with a suffix out of `factors`, in the unit whose factor is 1; None for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    factor = factors.get(found[2].lower()) if found else None
    if found is None or factor is None:
        return None
    return Decimal(found[1].replace("_", "")) * factor


def _whole_within(number: Decimal, least: int) -> int | Wrong:
    if number < least:
        return Wrong(f"is too small; the least is {least}")
    return int(number) if number <= MOST else Wrong(f"is too large; the most is {MOST}")


def whole(at_least: int = 0) -> Kind:
    """A whole number. `k` and `M` are thousand and million, `Ki` and `Mi` 1024 and 1048576: 128k = 128000."""

    def read(text: str) -> object:
        number = _scaled(text, _THOUSANDS)
        if number is None or number != int(number):
            return Wrong("is not a whole number; write for example 4096, 128k (128000) or 128Ki (131072)")
        return _whole_within(number, at_least)

    return Kind(read, shapes.whole(at_least), is_counted=True)


AUTO: Final = "auto"


def whole_or_auto() -> Kind:
    """A whole number of at least 1, or `auto`, which becomes 0."""
    number = whole(at_least=1)
    return Kind(
        lambda text: 0 if text.strip().lower() == AUTO else number.read(text),
        shapes.WHOLE_OR_AUTO,
        lambda value: value or AUTO,
        is_counted=True,
    )


def window() -> Kind:
    """Tokens of a model's window; 0 means unknown and becomes None."""
    tokens = whole()
    return Kind(lambda text: tokens.read(text) or None, tokens.shape, is_counted=True)


def between(low: float, high: float, *, above: bool = False, below: bool = False, hint: str = "") -> Kind:
    """A decimal number from `low` to `high`; `above` and `below` leave the bounds themselves out."""
    range_ = (
        f"{'more than' if above else 'at least'} {low:g} and {'less than' if below else 'at most'} {high:g}"
    )

    def read(text: str) -> object:
        found = _scaled(text, MappingProxyType({"": 1}))
        number = None if found is None else float(found)
        if number is None:
            return Wrong(f"is not a decimal number of {range_}")
        is_inside = (low < number if above else low <= number) and (
            number < high if below else number <= high
        )
        return number if is_inside else Wrong(f"must be {range_}{hint}")

    return Kind(read, shapes.between(low, high, above=above, below=below), _show_decimal, is_counted=True)


def _show_decimal(number: float) -> object:
    """The number itself, or its digits where YAML would write an exponent."""
    return f"{Decimal(repr(number)):f}" if "e" in repr(number) else number


def share() -> Kind:
    """A share of something, more than 0 and at most 1."""
    return between(0, 1, above=True, hint="; 85 % is written 0.85")


def _read_duration(text: str) -> object:
    found = _scaled(text, _MILLISECONDS)
    if found is None:
        return Wrong("is not a duration; write for example 500ms, 20s, 2m, 1h, 7d, or a number of seconds")
    if found != int(found) or not 1 <= found <= LONGEST_DURATION:
        return Wrong("is out of range; a duration is a whole number of milliseconds, from 1ms to 3650d")
    return int(found) / 1000


def _show_duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    suffix = next(each for each in ("d", "h", "m", "s", "ms") if milliseconds % _MILLISECONDS[each] == 0)
    return f"{milliseconds // _MILLISECONDS[suffix]}{suffix}"


DURATION: Final = Kind(_read_duration, shapes.DURATION, _show_duration)


def _read_size(text: str) -> object:
    found = _scaled(text, _BYTES)
    if found is None or found != int(found):
        return Wrong("is not a size; write for example 64MiB, 256MB, 512KiB, or a number of bytes")
    return _whole_within(found, least=1)


def _show_size(size: int) -> str:
    for suffix in ("GiB", "MiB", "KiB"):
        if size % _BYTES[suffix.lower()] == 0:
            return f"{size // _BYTES[suffix.lower()]}{suffix}"
    return f"{size}B"


SIZE: Final = Kind(_read_size, shapes.SIZE, _show_size)

# --- words ------------------------------------------------------------------------------------------------------

_YES: Final = frozenset({"true", "yes", "on"})
_NO: Final = frozenset({"false", "no", "off"})


def _read_switch(text: str) -> object:
    word = text.strip().lower()
    return word in _YES if word in _YES | _NO else Wrong("is neither true nor false")


SWITCH: Final = Kind(_read_switch, shapes.SWITCH)


def choice(words: type[StrEnum]) -> Kind:
    """One of a fixed set of words."""
    known = [str(word) for word in words]

    def read(text: str) -> object:
        word = text.strip()
        if word in known:
            return words(word)
        return Wrong(f"is none of {', '.join(known)}{_suggestion(word, known)}")

    return Kind(read, shapes.words(known), str)


def one_of(known: Collection[str], what: str) -> Kind:
    """One of the names that this version has."""
    names = ", ".join(sorted(known))

    def read(text: str) -> object:
        name = text.strip()
        return (
            name
            if name in known
            else Wrong(f"is no {what} of this version, which has {names}{_suggestion(name, known)}")
        )

    return Kind(read, shapes.words(sorted(known)))


def _read_name(text: str) -> object:
    name = text.strip()
    return name if name and name.isprintable() else Wrong("is no name: one line of visible characters")


NAME: Final = Kind(_read_name, shapes.NAME)

_LABEL: Final = re.compile(r"(?!v[0-9]+[a-z0-9]*$)[a-z0-9][a-z0-9._-]{0,59}")


def _read_label(text: str) -> object:
    name = text.strip()
    if _LABEL.fullmatch(name):
        return name
    return Wrong(
        "is no name of an upstream; write small letters and digits, with - . _ between, and no version like v1"
    )


LABEL: Final = Kind(_read_label, shapes.LABEL)
"""A name that can stand as the first part of a path."""

TEXT: Final = Kind(_as_it_is, shapes.TEXT)


def _read_pattern(text: str) -> object:
    try:
        re.compile(text)
    except re.error as error:
        return Wrong(f"is no regular expression: {error.msg} at character {(error.pos or 0) + 1}")
    return text if text else Wrong("is empty, and an empty pattern matches every message")


PATTERN: Final = Kind(_read_pattern, shapes.PATTERN)

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*")
"""RFC 9110 section 5.6.2, or nothing."""


def _read_header(text: str) -> object:
    return text if _HEADER.fullmatch(text) else Wrong("is no name of a header")


HEADER: Final = Kind(_read_header, shapes.HEADER)


def template(*fields: str, longest: int, may_be_empty: bool = False) -> Kind:
    """A text with `{field}` for values; `{{` and `}}` stand for the braces themselves. `longest`: characters."""
    known = ", ".join(f"{{{field}}}" for field in fields)

    def read(text: str) -> object:
        if len(text) > longest:
            return Wrong(f"has {len(text)} characters; the most is {longest}")
        if not text and may_be_empty:
            return text
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError:
            return Wrong(f"has a brace without its partner; fields are {known}, a brace itself is doubled")
        if any(_is_odd(field, spec, conversion, fields) for _, field, spec, conversion in pieces):
            return Wrong(f"has a field that is not known here; fields are {known}")
        # A marker is recognised by its own words; without any, every text would look like one.
        if sum(character.isalpha() for literal, *_ in pieces for character in literal) < LEAST_WORDS:
            return Wrong(
                f"says too little: it needs words of its own, at least {LEAST_WORDS} letters beside its fields"
            )
        return text

    return Kind(read, shapes.template(longest, fields))


LEAST_WORDS: Final = 4
"""Letters that a template has at least, beside its fields."""


def _is_odd(field: str | None, spec: str | None, conversion: str | None, known: Collection[str]) -> bool:
    return field is not None and (field not in known or bool(spec) or conversion is not None)


def _read_file(text: str) -> object:
    path = text.strip()
    if path.startswith("~"):
        return Wrong("begins with ~, which is not expanded; write for example ${HOME}/ca.pem")
    return path if path and path.isprintable() else Wrong("is no path of a file")


FILE: Final = Kind(_read_file, shapes.FILE)
"""A path; whether there is such a file is another question."""

# --- places -----------------------------------------------------------------------------------------------------


_NO_URL: Final = "is no URL of a server; write for example http://127.0.0.1:8080/v1"

_ENDPOINT: Final = "/chat/completions"


_UNIX: Final = re.compile(r"(http\+)?unix:.*")

_NO_UNIX: Final = (
    "is no URL of a server behind a Unix socket; write the socket's whole path with %2F for each /,"
    " for example http+unix://%2Frun%2Fllama.sock/v1"
)


def _read_url(text: str) -> object:
    url = text.strip().rstrip("/")
    is_unix = _UNIX.fullmatch(url) is not None
    try:
        parts = urlsplit(url)
        is_server = _names_socket(parts) if is_unix else _names_host(parts)
    except ValueError:
        return Wrong(_NO_URL)
    if "@" in parts.netloc:
        return Wrong("holds a user or a password; put the credential under api_key")
    if "?" in url or "#" in url:
        return Wrong("holds a query or a fragment; give the address up to and including /v1")
    if url.endswith(_ENDPOINT):
        return Wrong(f"names an endpoint; give the address up to and including /v1, without {_ENDPOINT}")
    is_plain = url.isprintable() and " " not in url
    return url if is_server and is_plain else Wrong(_NO_UNIX if is_unix else _NO_URL)


def _names_host(parts: SplitResult) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def _names_socket(parts: SplitResult) -> bool:
    path = unquote(parts.netloc)
    return (
        parts.scheme == UNIX_SCHEME and path.startswith("/") and not path.endswith("/") and "\0" not in path
    )


URL: Final = Kind(_read_url, shapes.URL, is_quotable=False)


def _read_collector(text: str) -> object:
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_server = _names_host(parts) and not set("@?#") & set(url)
    except ValueError:
        is_server = False
    is_plain = url.isprintable() and " " not in url
    return url if is_server and is_plain else Wrong(_NO_COLLECTOR)


_NO_COLLECTOR: Final = (
    "is no base URL of a collector; write for example http://127.0.0.1:4318, without a credential, which belongs in"
    " OTEL_EXPORTER_OTLP_HEADERS"
)

COLLECTOR: Final = Kind(_read_collector, shapes.URL, is_quotable=False)

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)


def _read_address(text: str) -> object:
    address = text.strip()
    if address.startswith("unix:"):
        return _read_socket(address.removeprefix("unix:"))
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return Wrong(
            "is not HOST:PORT; write 127.0.0.1:8787 (this machine alone), 0.0.0.0:8787 (every interface),"
            ' "[::1]:8787" or unix:/run/transom.sock'
        )
    host = found["six"] or found["name"]
    if not _is_host(host, is_six=found["six"] is not None):
        return Wrong("names a host that is no IP address")
    port = int(found["port"])
    return Address(host, port) if port <= 65535 else Wrong("names a port above 65535")


def _read_socket(path: str) -> object:
    """The file of `unix:/path`; `unix:///path` is taken as well, and two slashes would name a host."""
    is_path = bool(path) and path.isprintable() and not path.endswith("/") and not re.match(r"//[^/]|~", path)
    if not is_path:
        return Wrong("names no file; write for example unix:/run/transom.sock")
    return SocketFile(re.sub(r"^/+", "/", path))


def _is_host(host: str, *, is_six: bool) -> bool:
    """Whether digits and dots make a real address; a name of letters is left to the resolver."""
    if not is_six and not re.fullmatch(r"[0-9.]+", host):
        return True
    try:
        return ipaddress.ip_address(host).version == (6 if is_six else 4)
    except ValueError:
        return False


ADDRESS: Final = Kind(_read_address, shapes.ADDRESS, str)

_HOST_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def _read_host_name(text: str) -> object:
    name = text.strip().lower().removesuffix(".")
    if _HOST_NAME.fullmatch(name):
        return name
    return Wrong("is no name of a host; write it without http:// and without a port, for example proxy.lan")


HOST_NAME: Final = Kind(_read_host_name, shapes.HOST_NAME)


_STORES: Final = (
    "write memory, sqlite:///transom.db (beside the current folder), sqlite:////var/lib/transom/transom.db (anywhere)"
    " or redis://host:6379/0"
)


def _read_store(text: str) -> object:
    url = text.strip()
    if url == "memory":
        return StoreURL(url)
    scheme, separator, rest = url.partition("://")
    read = _STORE_URLS.get(scheme) if separator else None
    if read is None:
        return Wrong(f"is no store of this version; {_STORES}")
    if "?" in rest or "#" in rest:
        return Wrong(
            "holds a ? or a #; a store's URL takes no options, and in a password they are %3F and %23"
        )
    problem = read(rest) if url.isprintable() else "holds invisible characters"
    return Wrong(problem) if problem else StoreURL(url)


def _sqlite_problem(rest: str) -> str:
    """What is wrong with the part behind `sqlite://`; its path begins behind one more slash."""
    path = rest.removeprefix("/")
    if path == rest:
        return f"has no third slash before its path; {_STORES}"
    if path == ":memory:":
        return "would be gone with the process, like the store memory; write memory"
    if path.startswith("~"):
        return "begins with ~, which is not expanded; write for example sqlite:///${HOME}/transom.db"
    return "names no file" if not path or path.endswith("/") else ""


def _redis_problem(rest: str) -> str:
    """What is wrong with the part behind `redis://`."""
    try:
        parts = urlsplit(f"redis://{rest}")
        is_server = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server, parts = False, urlsplit("")
    if not is_server or " " in rest:
        return (
            "is no address of a server; write for example redis://host:6379/0, with a password"
            " redis://:password@host:6379/0; a / in it is %2F, an @ is %40"
        )
    if parts.netloc.rpartition("@")[0] == HIDDEN_USER:
        return f"has {HIDDEN_USER}, which stands for hidden credentials, in their place"
    if not re.fullmatch(r"(/[0-9]{0,4})?", parts.path):
        return "has a path that is no number of a database; write for example redis://host:6379/0"
    return ""


_STORE_URLS: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {"sqlite": _sqlite_problem, "redis": _redis_problem, "rediss": _redis_problem}
)

STORE: Final = Kind(_read_store, shapes.STORE, repr, is_quotable=False)

_KEY: Final = re.compile(r"[!-~]+")


def _read_secret(text: str) -> object:
    key = text.strip()
    if not key:
        return None
    if key == HIDDEN:
        return Wrong("is what stands for a hidden credential, not a credential")
    return (
        Secret(key)
        if _KEY.fullmatch(key)
        else Wrong("holds characters that no credential may have in a header")
    )


SECRET: Final = Kind(_read_secret, shapes.SECRET, repr, is_quotable=False)


def _read_token(text: str) -> object:
    return _read_secret(text) or Wrong("is empty; take it out of the list, or write what the token is")


TOKEN: Final = Kind(_read_token, shapes.SECRET, repr, is_quotable=False, reads_empty=True)
"""A credential in a list: an empty one must not leave the list empty unnoticed."""
