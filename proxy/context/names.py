"""Names in a text: paths, identifiers, codes, dates and numbers that somebody may need again letter by letter.

Rules. What is a name is told by its shape alone, never by the language around it: a word of plain prose is none. A name
is one line, at most `LONGEST` characters, and stands exactly as it does in the text. The same text gives the same names
in the same order everywhere.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from proxy.context.steps import Pace, Steps, at_once
from proxy.context.tokens import slices

LONGEST = 100
"""Characters of a name; what is longer is data."""

SHORTEST = 4
"""Characters; what is shorter is cheap to find again and means little alone."""


class Shape(StrEnum):
    """What a name looks like."""

    PATH = "path"
    IDENTIFIER = "identifier"
    VALUE = "value"


_CHUNK = re.compile(r"[^\W_]?[\w~@/.#:+-]*\w/?|(?<![\w/])[.~]?/[\w~@/.+-]*[\w/]")
_KEY = re.compile(r'"\w{1,60}"\s*:')
"""A key of JSON: it names a place and no thing."""

_URL = re.compile(r"[a-z][a-z+.-]*://[\w~@/.#:+?&=%-]*[\w/]")
_PATH = re.compile(r"(?:[A-Za-z]:|~|\.{1,2}|@?[\w.+-]+)?(?:/[\w.@+~#-]+)+/?")
_FILE = re.compile(r"[\w+-][\w.+-]*\.[a-zA-Z][a-zA-Z0-9]{0,4}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?![\w-])|\d{4}-\d\d-\d\d(?=T\d)")
_LINE = re.compile(r"(?::\d+)+$")
_HUMP = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_NUMBER = re.compile(r"\d[\d.]*")
_HEX_DUMP = re.compile(r"[0-9a-fA-F]{41,}|[A-Za-z0-9+/]{65,}")

_EXTENSIONS = re.compile(
    r"bat|c|cc|cfg|conf|cpp|cs|css|csv|env|ex|go|h|hpp|html?|in|ini|ipynb|java|jpg|jsx?|jsonl?|kt|less|lock|log|lua|mdx?"
    r"|mjs|pdf|php|pl|png|ps1|pyi?|rb|rs|rst|scss|sh|sql|svg|swift|tex|toml|tsx?|txt|vue|xml|ya?ml|zip",
    re.IGNORECASE,
)
"""Endings by which a dotted word is a file, and not an attribute of something."""


_SEARCHED, _LOOKED_AT = 0.1, 3.0
"""Microseconds in which a character of a text is searched, and in which a chunk is looked at that may be a name."""


def names_in(text: str) -> Counter[str]:
    """The names of a text and how often each stands there, in the order in which they come."""
    return at_once(Finder().finding(text))


class Finder:
    """Finds the names of many texts, in steps, and looks once at what stands in several of them."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._known: dict[str, tuple[str, ...]] = {}

    def finding(self, text: str) -> Steps[Counter[str]]:
        """The same as `names_in`."""
        found: Counter[str] = Counter()
        chunks: Counter[str] = Counter()
        for piece in slices(text):
            chunks.update(_CHUNK.findall(_KEY.sub(" ", piece)))
            if self._pace.is_over(len(piece) * _SEARCHED):
                yield
        for chunk, number in chunks.items():
            names = self._known.get(chunk)
            if names is None:
                names = self._known[chunk] = tuple(_names_of(chunk))
                if self._pace.is_over(_LOOKED_AT):
                    yield
            for name in names:
                found[name] += number
        return found


def shape_of(name: str) -> Shape:
    """The shape of something that is a name."""
    if _is_path(name):
        return Shape.PATH
    has_letter_case = name[:1].isalpha() or name[:1] in "_$"
    is_identifier = has_letter_case and ("_" in name or _HUMP.search(name) is not None)
    return Shape.IDENTIFIER if is_identifier else Shape.VALUE


def _names_of(chunk: str) -> Iterator[str]:
    if len(chunk) < SHORTEST or (chunk.isalpha() and not _HUMP.search(chunk) and not _is_code(chunk)):
        return
    if _HEX_DUMP.search(chunk) or len(chunk) > 4 * LONGEST:
        return
    whole = _LINE.sub("", chunk.rstrip(".:#+-") if chunk.startswith((".", "~")) else chunk.strip(".:#+-"))
    if date := _DATE.match(whole):
        yield date[0]
        return
    if _is_name(whole):
        yield whole
        return
    for piece in re.split(r"[.:#/@+]|--+|->", whole):
        name = piece.strip("-~")
        if name != whole and _is_name(name):
            yield name


def _is_name(text: str) -> bool:
    if not SHORTEST <= len(text) <= LONGEST or not any(map(str.isalnum, text)):
        return False
    if _is_path(text) or _DATE.fullmatch(text):
        return True
    if _NUMBER.fullmatch(text):
        return text.isdigit()
    if not re.fullmatch(r"[\w-]+", text) or not text.isascii():
        return False
    has_digit, has_letter = any(map(str.isdigit, text)), any(map(str.isalpha, text))
    if "-" in text:
        return has_digit and has_letter
    inner = text.strip("_")
    return "_" in inner or (has_digit and has_letter) or _HUMP.search(text) is not None or _is_code(text)


def _is_code(text: str) -> bool:
    """Letters all large, as error codes and constants are."""
    return len(text) > SHORTEST and text.isupper() and text.isascii()


def _is_path(text: str) -> bool:
    if "/" not in text:
        ending = text.rpartition(".")[2]
        return _EXTENSIONS.fullmatch(ending) is not None and _FILE.fullmatch(text) is not None
    if _URL.fullmatch(text):
        return True
    if not _PATH.fullmatch(text) or not any(map(str.isalpha, text)):
        return False
    # "and/or" is no path; "src/main", with no ending and no beginning of one, is taken for one of three parts on.
    parts = [part for part in text.split("/") if part]
    begins = text[0] in "/~." and len(parts) > 1
    return begins or len(parts) > 2 or (bool(parts) and "." in parts[-1].strip("."))


def tree(paths: Iterable[str]) -> Mapping[str, list[str]]:
    """Paths by their directory, both in the order in which they come; a directory ends with its slash."""
    found: dict[str, dict[str, None]] = {}
    for path in paths:
        directory, slash, name = path.rstrip("/").rpartition("/")
        found.setdefault(directory + slash, {})[name] = None
    return {directory: list(members) for directory, members in found.items()}
