"""How the values of a kind look: as JSON Schema for editors, and in words for the reference.

Rules. A shape may take more than the kind reads, which then says what is wrong with its line; what the kind reads it
never refuses, blanks around a word apart. Patterns keep to what Python's and ECMAScript's regular expressions share,
and values to what YAML 1.2 makes of a text: `off` is a word there, and `0x10` a number.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Shape:
    """`says` in a few words what is written; `schema` is what a plain value keeps to, references left out."""

    says: str
    schema: Mapping[str, Any]


def _shape(says: str, **schema: Any) -> Shape:
    return Shape(says, MappingProxyType(schema))


def _text(says: str, pattern: str = "", **schema: Any) -> Shape:
    return _shape(says, type="string", **({"pattern": pattern} if pattern else {}), **schema)


def _any_text(says: str) -> Shape:
    """Where a text may look like a number or a switch."""
    return _shape(says, type=["string", "number", "boolean"])


_DIGITS: Final = r"[0-9][0-9_]*(\.[0-9]+)?"


def _number_with(suffixes: str) -> str:
    return rf"^\s*{_DIGITS}\s*{suffixes}\s*$"


def _any_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


def whole(at_least: int) -> Shape:
    """A whole number with or without a suffix."""
    numbers = {"type": "integer", "minimum": at_least}
    texts = {"type": "string", "pattern": _number_with("([kKmM][iI]?)?")}
    return _shape(f"whole number from {at_least}" if at_least else "whole number", anyOf=[numbers, texts])


def between(low: float, high: float, *, above: bool, below: bool) -> Shape:
    """A decimal number within bounds."""
    bounds = {
        "exclusiveMinimum" if above else "minimum": low,
        "exclusiveMaximum" if below else "maximum": high,
    }
    texts = {"type": "string", "pattern": _number_with("")}
    says = f"number, {'more than' if above else 'from'} {low:g} {'to less than' if below else 'to'} {high:g}"
    return _shape(says, anyOf=[{"type": "number", **bounds}, texts])


def words(known: Collection[str]) -> Shape:
    """One of a few words."""
    return _shape(f"one of {', '.join(f'`{word}`' for word in known)}", enum=list(known))


def template(longest: int, fields: Collection[str]) -> Shape:
    """A text with fields."""
    says = f"text with {', '.join(f'`{{{field}}}`' for field in fields)}"
    return _text(f"{says}, at most {longest} characters", maxLength=longest)


WHOLE_OR_AUTO: Final = _shape(
    "whole number from 1, or `auto`",
    anyOf=[
        {"enum": ["auto"]},
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": rf"{_number_with('([kKmM][iI]?)?')}|^\s*{_any_case('auto')}\s*$"},
    ],
)
DURATION: Final = _shape(
    "duration",
    anyOf=[
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": _number_with("([mM]?[sS]|[mMhHdD])?")},
    ],
)
SIZE: Final = _shape(
    "size",
    anyOf=[
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": _number_with("(([kKmMgG][iI]?)?[bB])?")},
    ],
)
SWITCH: Final = _shape(
    "`true` or `false`",
    anyOf=[
        {"type": "boolean"},
        {
            "type": "string",
            "pattern": rf"^\s*({'|'.join(map(_any_case, ('true', 'yes', 'on', 'false', 'no', 'off')))})\s*$",
        },
    ],
)
NAME: Final = _any_text("name")
LABEL: Final = _any_text("name")
TEXT: Final = _any_text("text")
PATTERN: Final = _any_text("regular expression")
SECRET: Final = _any_text("credential")
HEADER: Final = _any_text("name of a header")
FILE: Final = _any_text("path of a file")
HOST_NAME: Final = _any_text("name of a host")
URL: Final = _text("URL", rf"^\s*({_any_case('http')}[sS]?|http\+unix)://")
ADDRESS: Final = _text("`HOST:PORT` or `unix:PATH`", r"^\s*(unix:.*|.*:[0-9]{1,5}\s*)$")
STORE: Final = _text(
    "`memory`, `sqlite:///PATH`, `redis://...` or `rediss://...`",
    r"^\s*(memory\s*$|sqlite:///|rediss?://)",
)
