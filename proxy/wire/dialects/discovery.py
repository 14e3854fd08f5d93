"""Where an upstream tells its window before it refuses anything: what to ask, and where to look in the answer.

Rules. Nothing here asks: a caller does, and hands in the decoded answer, which may be any JSON value; nothing raises.
A number is a window only within the bounds, whatever its member is called. What belongs to another model is not taken:
an entry counts when its id or an alias is the model's, or when a server of one model lists no other. The ranks say how
near a number is to what the server enforces, and a caller decides how far down it trusts them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from itertools import islice
from typing import Final
from urllib.parse import quote

from proxy.context import rawjson

LEAST_WINDOW: Final = 256
MOST_WINDOW: Final = 100_000_000
"""Bounds in tokens: what lies outside is a count of something else, a placeholder, or a mistake."""

_MOST_ENTRIES: Final = 10_000
_MOST_DIGITS: Final = 15
_NAMES: Final = ("id", "name", "model", "key", "model_name")


class Base(Enum):
    """What a path begins at."""

    ROOT = auto()  # the server's root, where the base URL has `/v1` or a longer path
    API = auto()  # the base URL as configured


class Rank(IntEnum):
    """How near a number is to what the server enforces; the highest is believed."""

    TRAINED = 1  # what the weights allow: an upper bound, often far above what is loaded
    PUBLISHED = 2  # what a provider says of the model, or a setting that a load may not have followed
    SERVED = 3  # the limit of the running server, or of the provider that is routed to
    LOADED = 4  # of the very model that is loaded now
    SLOT = 5  # of one request, where several share what is loaded


@dataclass(frozen=True, slots=True)
class Found:
    """A window in tokens; `source` says in words where it was read."""

    tokens: int
    source: str
    rank: Rank


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that tells something about windows. `{model}` in the path stands for the model's name."""

    base: Base
    path: str
    method: str = "GET"
    names_model: bool = False  # whether the body is `{"model": NAME}`

    @property
    def name(self) -> str:
        """The key of its answer: `GET v1/models` below the base URL, `GET /props` below the root."""
        path = self.path.partition("?")[0]
        return f"{self.method} {'v1' if self.base is Base.API else ''}{path}"

    @property
    def is_about_one_model(self) -> bool:
        """Whether another model has another answer."""
        return self.names_model or "{model}" in self.path

    def path_for(self, model: str) -> str:
        """The path and query below the base, the model's name in it escaped."""
        return self.path.replace("{model}", quote(model, safe="", errors="replace"))

    def body_for(self, model: str) -> bytes | None:
        """The JSON body to send, None for none."""
        return rawjson.encode({"model": model}) if self.names_model else None


MODELS: Final = Ask(Base.API, "/models")
"""The list of models that nearly every server has; many put the window into it, each under a name of its own."""

Find = Callable[[object, str], Iterator[object]]
"""The values that may be the window of this model in a decoded answer."""


@dataclass(frozen=True, slots=True)
class Field:
    """A row: in the answer to `ask`, `find` gives windows of this rank. `member` names the place in words.

    Where several values are found the smallest counts: each of them can be the one that a request meets.
    """

    ask: Ask
    member: str
    find: Find
    rank: Rank
    evidence: str

    def read(self, value: object, model: str, dialect: str) -> Found | None:
        """The window that this place tells for the model."""
        told = [
            tokens for each in self.find(value, model) if (tokens := believable(_tokens(each))) is not None
        ]
        return Found(min(told), f"{dialect}: {self.ask.name} {self.member}", self.rank) if told else None


def believable(tokens: int | None) -> int | None:
    """A number that can be a window in tokens, else None."""
    return tokens if tokens is not None and LEAST_WINDOW <= tokens <= MOST_WINDOW else None


# --- places -------------------------------------------------------------------------------------------------


def at(*keys: str) -> Find:
    """One place in the answer of a server that speaks of the one model it has; `*` is every element of a list."""

    def find(value: object, _model: str) -> Iterator[object]:
        return _follow(value, keys)

    return find


def listed(member: str, *keys: str, alone: bool = True) -> Find:
    """A place in the model's own entry of the list in `member`.

    `alone`: an entry without company counts whatever its name is. Not so where the list holds what happens to be
    loaded, which need not be what is asked for. An adapter without a number of its own has that of its parent.
    """

    def find(value: object, model: str) -> Iterator[object]:
        entries = _entries(value, member)
        for entry in _matching(entries, model, alone=alone):
            told = [each for each in _follow(entry, keys) if each is not None]
            parent = entry.get("parent")
            if not told and isinstance(parent, str):
                told = [
                    each for base in _matching(entries, parent, alone=False) for each in _follow(base, keys)
                ]
            yield from told

    return find


def ending(member: str, suffix: str) -> Find:
    """Every member of the object in `member` whose name ends so."""

    def find(value: object, _model: str) -> Iterator[object]:
        for inner in _follow(value, (member,)):
            if isinstance(inner, dict):
                yield from (each for key, each in inner.items() if str(key).endswith(suffix))

    return find


def parameter(member: str, name: str) -> Find:
    """The value of a line `NAME VALUE` of the text in `member`."""

    def find(value: object, _model: str) -> Iterator[object]:
        for text in _follow(value, (member,)):
            lines = text.splitlines() if isinstance(text, str) else ()
            for line in lines:
                key, _, rest = line.strip().partition(" ")
                if key == name:
                    yield rest.strip()

    return find


def _follow(value: object, keys: tuple[str, ...]) -> Iterator[object]:
    if not keys:
        yield value
    elif keys[0] == "*":
        for each in islice(value, _MOST_ENTRIES) if isinstance(value, list) else ():
            yield from _follow(each, keys[1:])
    elif isinstance(value, dict) and keys[0] in value:
        yield from _follow(value[keys[0]], keys[1:])


def _entries(value: object, member: str) -> list[Mapping[str, object]]:
    listing = value.get(member) if isinstance(value, dict) else None
    return (
        [each for each in islice(listing, _MOST_ENTRIES) if isinstance(each, dict)]
        if isinstance(listing, list)
        else []
    )


def _matching(entries: list[Mapping[str, object]], model: str, *, alone: bool) -> list[Mapping[str, object]]:
    """The model's entries: by its very name; else regardless of case and of Ollama's default tag; else the only one."""
    exact = [entry for entry in entries if model in _names(entry)]
    if exact or not model:
        return exact or (entries if alone and len(entries) == 1 else [])
    loose = [entry for entry in entries if _bare(model) in map(_bare, _names(entry))]
    return loose or (entries if alone and len(entries) == 1 else [])


def _names(entry: Mapping[str, object]) -> list[str]:
    aliases = entry.get("aliases")
    found: list[object] = [entry.get(name) for name in _NAMES]
    found += aliases if isinstance(aliases, list) else []
    found += _follow(entry, ("loaded_instances", "*", "id"))
    return [name for name in found if isinstance(name, str) and name]


def _bare(name: str) -> str:
    return name.lower().removesuffix(":latest")


def _tokens(value: object) -> int | None:
    """A whole number, also one that was written as 8192.0, "8192" or "8,192"."""
    if isinstance(value, str):
        digits = value.strip().replace(",", "").replace("_", "")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not LEAST_WINDOW <= value <= MOST_WINDOW or value != int(value):  # NaN fails the first test.
        return None
    return int(value)
