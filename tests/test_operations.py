"""The dashboard and the page for operators name the metrics and events that there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.edge.metrics import Metrics
from tests.edge import exposition

ROOT = Path(__file__).parents[1]
DASHBOARD = json.loads((ROOT / "deploy/grafana/transom.json").read_text("utf-8"))
PAGE = (ROOT / "docs/operations.md").read_text("utf-8")
NAME = re.compile(r"\b(?:transom|process)_[a-z_]+\b")
SCRAPE = exposition.read(Metrics().exposed().decode())
SAMPLES = {name for family in SCRAPE.families.values() for name in family.sample_names}
EXPRESSIONS = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])
]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_each_metric_that_the_dashboard_names_is_there(title: str, expression: str) -> None:
    named = set(NAME.findall(expression))
    assert named, title
    assert named <= SAMPLES


def test_each_metric_of_ours_is_on_the_dashboard() -> None:
    shown = {name for _, expression in EXPRESSIONS for name in NAME.findall(expression)}
    missing = [
        name
        for name, family in SCRAPE.families.items()
        if name.startswith("transom_") and not family.sample_names & shown
    ]
    assert missing == []


def test_the_variables_of_the_dashboard_are_asked_of_a_metric_that_is_there() -> None:
    queries = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert queries
    assert all(set(NAME.findall(query)) <= SAMPLES for query in queries)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_page_has_a_row_for_each_metric_with_its_type() -> None:
    rows = dict(re.findall(r"^\| `(transom_[a-z_]+)` \| ([a-z]+) \|", PAGE, re.MULTILINE))
    assert rows == {
        name: family.kind for name, family in SCRAPE.families.items() if name.startswith("transom_")
    }


def test_the_page_has_a_row_for_each_event() -> None:
    rows = set(
        re.findall(r"^\| `([a-z_]+)` \| (?:debug|info|warning|error|as it came) \|", PAGE, re.MULTILINE)
    )
    called = re.compile(
        r'\b_?(?:log|tell)(?:\.(?:debug|info|warning|error|log))?\(\s*(?:level,\s*|record\.levelno,\s*)?"([a-z_]+)"'
    )
    written = {
        name
        for folder in ("edge", "stores")
        for path in (ROOT / "proxy" / folder).glob("*.py")
        for name in called.findall(path.read_text("utf-8"))
    }
    assert rows == written
