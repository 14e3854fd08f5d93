"""The README and the pages under docs, as the tests read them: their fenced blocks, and which of them cannot run here.

Rules. A block of `sh` runs unless the line above its fence is `<!-- not run here: REASON -->`, which no reader sees.
Such lines stand nowhere else, and how many a page has is counted by a test, so that none is added in passing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.conftest import ROOT

PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE: Final = re.compile(r"^```(\w*)$")
NOT_RUN: Final = re.compile(r"^<!-- not run here: (.+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page as the checkout names it, the line of its fence, its language, and why it cannot run."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Block]:
    """All blocks of this language, on every page."""
    return [
        each
        for page in PAGES
        for each in read(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
        if each.language == language
    ]


def read(name: str, text: str) -> Iterator[Block]:
    """The blocks of a page. Raises ValueError for a fence that is not closed, and for a mark that marks nothing."""
    lines = text.splitlines()
    marked = {number for number, line in enumerate(lines) if NOT_RUN.match(line)}
    number = 0
    while number < len(lines):
        opened = FENCE.match(lines[number])
        if opened:
            end = next((n for n in range(number + 1, len(lines)) if lines[n] == "```"), None)
            if end is None:
                raise ValueError(f"{name}:{number + 1}: a fence that is not closed")
            mark = NOT_RUN.match(lines[number - 1]) if number else None
            marked.discard(number - 1)
            inside = "\n".join(lines[number + 1 : end]) + "\n"
            yield Block(name, number + 1, opened[1], inside, mark[1] if mark else None)
            number = end
        number += 1
    if marked:
        raise ValueError(f"{name}:{min(marked) + 1}: a mark that stands above no fence")
