"""The pages lead to what there is, show configurations that are read, and repeat no figure otherwise than it was told.

Rules. A link is resolved as a reader's program does it, headings included. Pictures are well-formed and say in words
what they show.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.config_files import UPSTREAM
from tests.config_files import read as read_configuration
from tests.conftest import ROOT
from tests.docs.pages import PAGES, Block, blocks

LINK: Final = re.compile(r'(?:\]\(|src="|srcset=")([^)"\s]+)')
OURS: Final = re.compile(r"^(?:listen|upstream|auth|store|models|admin|side_calls|log)\b.*:", re.MULTILINE)
SVG: Final = "{http://www.w3.org/2000/svg}"


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target:
                yield page, target


def headings(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize(
    ("page", "target"), [pytest.param(*each, id=f"{each[0].name}-{each[1]}") for each in links()]
)
def test_each_link_leads_to_what_there_is(page: Path, target: str) -> None:
    path, _, heading = target.partition("#")
    file = page.parent / path if path else page
    assert file.exists()
    assert not heading or heading in headings(file)


def test_each_page_can_be_reached_from_the_readme() -> None:
    reached = {
        (page.parent / target.partition("#")[0]).resolve()
        for page, target in links()
        if page.name == "README.md"
    }
    assert {page for page in PAGES if page.name != "README.md"} <= reached


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if OURS.search(each.text)], ids=str)
def test_each_configuration_that_is_shown_is_read(block: Block, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("made-up-as-well\n", encoding="utf-8")
    text = block.text.replace("/run/secrets/tokens", str(tokens))
    whole = text if re.search(r"^upstream:", text, re.MULTILINE) else UPSTREAM + text
    read_configuration(tmp_path, whole, environ={"TRANSOM_TOKEN": "made-up"})


def test_the_readme_repeats_figures_as_they_were_measured() -> None:
    def rows(name: str) -> dict[tuple[str, str], list[str]]:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = [
            re.split(r" *\| *", line.strip("| \n"))
            for line in text.splitlines()
            if re.match(r"\| \d+k \|", line)
        ]
        return {(cells[0], cells[1]): cells[2:] for cells in found}

    measured = rows("docs/measurements.md")
    told = rows("README.md")
    assert told
    for key, (refused, side_calls, extends, reread) in told.items():
        turns, *figures = measured[key]
        assert [refused.partition(" of ")[0], side_calls, extends, reread] == figures[:4], key
        assert refused.endswith(f" of {turns}"), key


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name
)
def test_a_drawing_is_well_formed_small_and_said_in_words(picture: Path) -> None:
    root = ET.fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 - a file of ours
    assert root.tag == f"{SVG}svg"
    for name in ("title", "desc"):
        found = root.find(f"{SVG}{name}")
        assert found is not None
        assert found.text
    assert picture.stat().st_size < 10_000
    assert not root.findall(f".//{SVG}script")
