"""`${NAME}` and `${NAME:-default}` in a text, from the environment.

Rules. What a variable holds is text and nothing more: it is not expanded again and never read as YAML. `$$` stands for
the sign itself, and a `$` before anything but a name or a brace too. A problem names variables and never shows what
they, or a default, hold.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_REFERENCE: Final = re.compile(
    r"(?P<sign>\$\$)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|(?P<odd>\$[A-Za-z_{])"
)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A text with its references resolved. `has_references`: part of it came from outside, or from a default."""

    text: str
    has_references: bool
    problem: str = ""


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
    """The text with all references resolved; a default also stands for a variable that is set but empty."""
    found = list(_REFERENCE.finditer(text))
    has_references = any(each["name"] for each in found)
    expanded = _REFERENCE.sub(lambda each: _resolved(each, environ), text)
    return Expanded(expanded, has_references, _problem(found, expanded, environ))


def _resolved(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    if reference["sign"]:
        return "$"
    value = environ.get(reference["name"] or "", "")
    return value or (reference["default"] or "").replace("$$", "$")


def _problem(found: list[re.Match[str]], expanded: str, environ: Mapping[str, str]) -> str:
    if any(each["odd"] for each in found):
        return "has a $ that starts no reference; write ${NAME} or ${NAME:-default} for a variable, $$ for the sign"
    unset = sorted({each["name"] for each in found if each["name"] and _is_unset(each, environ)})
    if unset:
        return _unset_says(unset)
    if any(0xD800 <= ord(character) <= 0xDFFF for character in expanded):
        return "holds half a character (a lone surrogate), which cannot be sent"
    return ""


def _unset_says(names: list[str]) -> str:
    if len(names) == 1:
        return f"the environment variable {names[0]} is not set; set it, or write ${{{names[0]}:-default}}"
    return f"the environment variables {', '.join(names)} are not set; set them, or write ${{NAME:-default}}"


def _is_unset(reference: re.Match[str], environ: Mapping[str, str]) -> bool:
    return reference["default"] is None and reference["name"] not in environ
