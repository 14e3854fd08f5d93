"""The schema for editors and the reference come from the table of options, and are checked in as it makes them.

Rules. What is checked in is compared with what the table gives, byte for byte. A file is read here as an editor reads
it, by YAML 1.2, where only `true` and `false` are switches. What the reader takes, the schema takes.
"""

import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from proxy.config import Flags, schema
from proxy.config.changes import restart_names
from proxy.config.options import walk
from proxy.config.reference import reference
from tests.config_files import UPSTREAM, mistakes, model, read
from tests.test_config import EVERYTHING
from tests.test_options_documented import EXAMPLE, with_everything_on

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = ROOT / "config.schema.json"
PAGE: Final = ROOT / "docs/configuration.md"
CHECKER: Final = jsonschema.Draft7Validator(schema.schema())


class Core(yaml.SafeLoader):
    """What YAML 1.2 makes of a file: its core schema."""

    yaml_implicit_resolvers = dict[str, Any]()  # noqa: RUF012 - the library changes it in its own way


for kind, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), [*first, ""])


def complaints(text: str) -> list[str]:
    """What the schema says against a file."""
    return [
        ".".join(map(str, each.absolute_path))
        for each in CHECKER.iter_errors(yaml.load(text, Loader=Core))  # noqa: S506 - as safe as its base
    ]


def test_the_schema_is_one_and_is_checked_in_as_the_table_gives_it() -> None:
    jsonschema.Draft7Validator.check_schema(schema.schema())
    told = "make it anew: transom schema > config.schema.json"
    assert SCHEMA.read_text(encoding="utf-8") == schema.text(), told


def test_the_reference_is_checked_in_as_the_table_gives_it() -> None:
    told = "make it anew: transom schema --reference > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), told


def test_the_reference_holds_every_option_under_its_section() -> None:
    found = []
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0].strip("`")
        if heading == "Presets":
            continue
        prefix = "" if heading == "At the top" else f"{heading}."
        found += [f"{prefix}{name}" for name in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)]
    assert sorted(found) == sorted(name for name, _, _ in walk(echoes=False))


def test_the_example_names_the_schema_in_its_first_line_and_keeps_to_it() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None
    assert (EXAMPLE.parent / named[1]).samefile(SCHEMA)
    assert complaints(text) == []
    assert complaints(with_everything_on(text)) == []


def test_the_example_names_what_needs_a_restart() -> None:
    words = " ".join(EXAMPLE.read_text(encoding="utf-8").split()).replace("# ", "")
    named = re.search(r"at once on SIGHUP; (.*) need a restart", words)
    assert named is not None
    listed = set(re.split(r", | and ", named[1]))
    sections = {name.partition(".")[0] if name != "admin.listen" else name for name in restart_names()}
    assert listed == sections


TAKEN: Final = (
    EVERYTHING,
    UPSTREAM,
    f"{UPSTREAM}listen: unix:/run/a.sock\nstore: sqlite:///a.db\n",
    f"{UPSTREAM}listen: '[::1]:0'\nstore: redis://u:p@h/0\nmax_body: 1.5 mib\nclient_idle_timeout: 90\n",
    "upstream: {base_url: 'HTTPS://a'}\n",
    f"{UPSTREAM}listen: ${{A:-localhost:1}}\nmax_body: ${{B:-1KiB}}\nready_needs_upstream: ${{C:-on}}\n",
    f"{UPSTREAM}listen:\nlog:\nmodels:\nmanage_deadline: ~\n",
    "upstream: {base_url: 'http+unix://%2Fa/v1', trust_env: Yes, slots: '2', api_key: 12345}\n",
    f"{UPSTREAM}auth: {{tokens: [a, '${{T:-b}}', 7]}}\nadmin: {{hosts: [a.b]}}\n",
    model("window: 128_000"),
    model("window: 0"),
    model("compact_at: '0.9'"),
    model("strategies: [drop]"),
    model("mode: off"),
    model("mode: '${M:-off}'"),
    model("repair: OFF"),
    model("elide: {keep: 1k, marker: 'Left ${OUT:-out}'}"),
)


@pytest.mark.parametrize("text", TAKEN)
def test_what_the_reader_takes_the_schema_takes(tmp_path: Path, text: str) -> None:
    read(tmp_path, text, Flags())
    assert complaints(text) == []


REFUSED: Final = (
    (f"{UPSTREAM}max_bodi: 1KiB\n", ""),
    ("upstream: {}\n", "upstream"),
    ("upstream: {base_url: 'ftp://x'}\n", "upstream.base_url"),
    (f"{UPSTREAM}listen: nowhere\n", "listen"),
    (f"{UPSTREAM}max_body: many\n", "max_body"),
    (f"{UPSTREAM}manage_deadline: 5 years\n", "manage_deadline"),
    (f"{UPSTREAM}log: {{level: loud}}\n", "log.level"),
    (f"{UPSTREAM}ready_needs_upstream: maybe\n", "ready_needs_upstream"),
    (f"{UPSTREAM}models: {{}}\n", "models"),
    (f"{UPSTREAM}models: [{{window: 1}}]\n", "models.0"),
    (model("window: -1"), "models.0.window"),
    (model("margin: 0.5"), "models.0.margin"),
    (model("strategies: [drop, drop]"), "models.0.strategies"),
    (model("strategies: [cut]"), "models.0.strategies"),
    (model("elide: {keep: [1]}"), "models.0.elide.keep"),
)


@pytest.mark.parametrize(("text", "place"), REFUSED)
def test_what_the_schema_refuses_the_reader_refuses_too(tmp_path: Path, text: str, place: str) -> None:
    assert complaints(text) == [place]
    assert mistakes(tmp_path, text)
