"""Head and tail of a text that is too long, with a statement of how much is left out between them.

Rules. The result is never longer than the limit, so clipping it again changes nothing. Pieces end at a line's end where
one is near, else between two characters, never within one that is made of several code points. The statement holds
nothing of what it stands for.
"""

import unicodedata

MARKER = "\n[... {characters} characters left out here ...]\n"

LONGEST_MARKER = 60
"""Characters of a marker with a number of twelve digits, rounded up."""

LEAST = 200
"""Characters below which no text is clipped: the marker would say more than what it leaves."""

_NEAR = 0.2
"""A line's end within this share of a piece is taken for its border."""

_JOINER = "\u200d"


def clip(text: str, limit: int) -> str:
    """The text within `limit` characters, two thirds of them from its head; no limit is below `LEAST`."""
    gap = gap_of(text, limit)
    return text if gap is None else text[: gap[0]] + marker(gap) + text[gap[1] :]


def gap_of(text: str, limit: int) -> tuple[int, int] | None:
    """Where the gap in a text begins and ends, so that what is left and the marker are within `limit` characters."""
    limit = max(limit, LEAST)
    if len(text) <= limit:
        return None
    room = limit - LONGEST_MARKER
    return _head(text, room * 2 // 3), _tail(text, len(text) - room // 3)


def marker(gap: tuple[int, int]) -> str:
    """What stands in a gap."""
    return MARKER.format(characters=gap[1] - gap[0])


def _head(text: str, stop: int) -> int:
    """Where the head ends: at most at `stop`."""
    line = text.rfind("\n", int(stop * (1 - _NEAR)), stop)
    if line >= 0:
        return line
    while stop > 0 and _continues(text, stop):
        stop -= 1
    return stop


def _tail(text: str, start: int) -> int:
    """Where the tail begins: at least at `start`."""
    line = text.find("\n", start, start + int((len(text) - start) * _NEAR))
    if line >= 0:
        return line + 1
    while start < len(text) and _continues(text, start):
        start += 1
    return start


def _continues(text: str, index: int) -> bool:
    """Whether the character at `index` belongs to the one before it: an accent, a joined or coloured emoji."""
    one = text[index]
    return (
        unicodedata.combining(one) != 0
        or one in (_JOINER, "\ufe0f")
        or "\U0001f3fb" <= one <= "\U0001f3ff"
        or text[index - 1] == _JOINER
        or ("\udc00" <= one <= "\udfff" and "\ud800" <= text[index - 1] <= "\udbff")
    )
