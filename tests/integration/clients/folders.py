"""Folders that terminal agents work in.

Rules. Each is a git repository of its own with one commit, since some agents want one.
"""

import subprocess
from pathlib import Path

from tests.integration.clients.programs.book import PAGES, page


def with_book(folder: Path, *, times: int = 1) -> Path:
    """A new folder with `pages/1.txt` and so on, each page so many times over."""
    (folder / "pages").mkdir(parents=True)
    for number in range(1, PAGES + 1):
        (folder / "pages" / f"{number}.txt").write_text(f"{page(number)}\n" * times, encoding="utf-8")
    git = ["git", "-C", str(folder), "-c", "user.name=reader", "-c", "user.email=reader@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "The book"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return folder
