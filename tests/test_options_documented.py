"""Code, table and config.example.yaml say the same about every option.

Rules. The table in `proxy.config.options` is the measure. The example holds each option once: its effect and its reason
in the comment above, its unit behind it, its default as the value; an option that is off by default is written
`#key: value`. What the example holds beyond that is a failure too.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from proxy.config import Flags, ModelRule, load
from proxy.config.forms import REQUIRED, Option, Section
from proxy.config.kinds import Wrong
from proxy.config.model_options import MODELS
from proxy.config.options import FLAGS, ROOT, walk
from proxy.config.values import NamedUpstream
from proxy.context.policy import ModelPolicy
from tests.peers.certificates import pem_files

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "config.example.yaml"
EXAMPLE_UPSTREAM: Final = "http://127.0.0.1:8080/v1"
OPTIONS: Final = tuple(walk())
ECHOES: Final = {name for name, _, _ in OPTIONS} - {name for name, _, _ in walk(echoes=False)}
"""Options of which another section says all."""

SWITCHED_OFF: Final = re.compile(r"^(\s*)#((?:- )?\w+:)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Documented:
    """One option as the example has it. `comment` is the block above it, `unit` what stands behind it."""

    values: tuple[str, ...]
    comment: str
    unit: str
    is_off: bool


def sections(section: Section = ROOT, prefix: str = "") -> Iterator[tuple[str, Section]]:
    """Every section with its dotted name; that of the whole file is empty."""
    yield f"{prefix}{section.name}", section
    below = f"{prefix}{section.key}." if section.name else ""
    for member in section.members:
        if isinstance(member, Section):
            yield from sections(member, below)


def with_everything_on(text: str) -> str:
    return SWITCHED_OFF.sub(r"\1\2", text)


def keys(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Every key with its dotted name, its node and its value, those of sections included."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        yield name, key, value
        elements = value.value if isinstance(value, yaml.SequenceNode) else [value]
        below = f"{name}[]." if isinstance(value, yaml.SequenceNode) else f"{name}."
        for element in elements:
            yield from keys(element, below)


def scalars(node: yaml.Node) -> tuple[str, ...]:
    """The text of a value, or of a list's elements; nothing for a section."""
    if isinstance(node, yaml.ScalarNode):
        return (node.value,)
    elements = node.value if isinstance(node, yaml.SequenceNode) else ()
    return tuple(element.value for element in elements if isinstance(element, yaml.ScalarNode))


def comment_above(lines: list[str], line: int) -> str:
    above: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("# "):
        line -= 1
        above.insert(0, lines[line].strip().removeprefix("# "))
    return " ".join(above)


def documented(text: str) -> Mapping[str, Documented]:
    """What an example says of each key. Raises AssertionError for a key that comes twice."""
    lines = text.splitlines()
    found: dict[str, Documented] = {}
    root = yaml.compose(with_everything_on(text), Loader=yaml.SafeLoader)
    assert root is not None
    for name, key, value in keys(root):
        assert name not in found, f"{name} is in the example twice"
        line = key.start_mark.line
        found[name] = Documented(
            scalars(value),
            comment_above(lines, line),
            lines[line].partition(" # ")[2],
            SWITCHED_OFF.match(lines[line]) is not None,
        )
    return found


def differences(found: Mapping[str, Documented]) -> Iterator[str]:
    """Where an example and the table do not agree, one sentence each."""
    known = {name for name, _, _ in OPTIONS}
    for name, section, option in OPTIONS:
        if name in ECHOES:
            continue
        if name in found:
            yield from (f"{name}: {what}" for what in option_differences(found[name], section, option))
        else:
            yield f"{name}: is not in the example"
    for name, section in sections():
        if name and not any(echo.startswith(f"{name}.") for echo in ECHOES):
            known.add(name)
            if name not in found or found[name].comment != section.effect:
                yield f"{name}: the comment above should read {section.effect!r}"
    yield from (f"{name}: is not in the table" for name in found if name not in known)


def option_differences(shown: Documented, section: Section, option: Option) -> Iterator[str]:
    default = section.default(option)
    sentences = f"{option.effect} {option.reason}"
    if shown.comment != sentences:
        yield f"the comment above should read {sentences!r}"
    if shown.unit != option.unit:
        yield f"the comment behind should read {option.unit!r}"
    if shown.is_off and default not in (None, REQUIRED):
        yield "has a default and should not be switched off"
    if not shown.is_off and default not in (None, REQUIRED) and values(shown, option) != default:
        yield f"should be {option.kind.show(default) if not option.is_list else default}"


def values(shown: Documented, option: Option) -> object:
    read = tuple(option.kind.read(text) for text in shown.values)
    return read if option.is_list else read[0]


@pytest.fixture(scope="module")
def example() -> Mapping[str, Documented]:
    return documented(EXAMPLE.read_text(encoding="utf-8"))


def test_every_field_of_every_section_has_a_row_in_the_table_and_every_row_a_field() -> None:
    for _, section in sections():
        fields = [field.name for field in dataclasses.fields(section.holds)]
        assert sorted(fields) == sorted(member.name for member in section.members), section.name
    assert [field.name for field in dataclasses.fields(ModelRule)] == [
        "match",
        "policy",
        "upstream",
        "others",
    ]
    assert [field.name for field in dataclasses.fields(NamedUpstream)] == ["name", "options"]
    assert MODELS.holds is ModelPolicy


@pytest.mark.parametrize("option", [option for _, _, option in OPTIONS], ids=[name for name, _, _ in OPTIONS])
def test_a_row_of_the_table_is_complete(option: Option) -> None:
    for sentence in (option.effect, option.reason):
        assert sentence.endswith(".")
        assert sentence == sentence.strip()
    assert bool(option.unit) == option.kind.is_counted, "bare numbers have a unit, and nothing else has"


def test_the_example_says_what_the_table_says(example: Mapping[str, Documented]) -> None:
    assert list(differences(example)) == []


def test_the_example_as_it_stands_is_the_defaults_and_needs_no_environment() -> None:
    assert load(EXAMPLE, Flags(), {}) == load(None, Flags(upstream=EXAMPLE_UPSTREAM), {})


def test_what_the_example_switches_off_is_a_valid_value(
    example: Mapping[str, Documented], tmp_path: Path
) -> None:
    path = tmp_path / "everything-on.yaml"
    path.write_text(with_everything_on(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
    files = pem_files(tmp_path)
    environ = {
        f"{server}_{name}": str(file)
        for server in ("UPSTREAM", "SUMMARY")
        for name, file in (("CA_FILE", files.ca), ("CERT_FILE", files.certificate), ("KEY_FILE", files.key))
    }
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("made-up-as-well\n", encoding="utf-8")
    (prompt := tmp_path / "prompt.txt").write_text("Sum up.", encoding="utf-8")
    environ |= {"SUMMARY_PROMPT_FILE": str(prompt)}
    environ |= {
        "OPENAI_API_KEY": "made-up",
        "SUMMARY_API_KEY": "made-up",
        "TENANT_SECRET": "made-up-too",
        "TOKENS_FILE": str(tokens),
    }
    config = load(path, Flags(), environ)
    assert [name for name, shown in example.items() if shown.is_off]
    assert config.policy_for("any").window == 128_000
    assert config.side_calls.api_key is not None


def test_a_flag_sets_an_option_that_exists() -> None:
    assert set(FLAGS.values()) <= {name for name, _, _ in OPTIONS}
    assert set(FLAGS) == {field.name for field in dataclasses.fields(Flags)}


def test_every_default_is_a_value_that_its_kind_reads_back() -> None:
    for name, section, option in OPTIONS:
        default = section.default(option)
        for value in default if option.is_list else (default,):
            if value is not None and value is not dataclasses.MISSING:
                read = option.kind.read(str(option.kind.show(value)))
                assert not isinstance(read, Wrong), name
                assert read == value, name


PLANTED: Final = (
    ("  connect_timeout: 10s", "  connect_timeout: 11s", "upstream.connect_timeout"),
    ("How long a connection to it may", "How long a link to it may", "upstream.connect_timeout"),
    ("reserve_output: 4096 # tokens", "reserve_output: 4096 # bytes", "models[].reserve_output"),
    (
        "[images, elide, summarize, drop, shorten]",
        "[images, summarize, elide, drop, shorten]",
        "models[].strategies",
    ),
    ("    mode: manage", "    #mode: manage", "models[].mode"),
    ("max_body: 256MiB", "", "max_body"),
    ("max_body: 256MiB", "max_body: 256MiB\nmax_head: 1MiB", "max_head"),
    ("# Old tool results become", "# Old results become", "models[].elide"),
)


@pytest.mark.parametrize(("old", "new", "name"), PLANTED)
def test_a_planted_difference_is_found(old: str, new: str, name: str) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert [each.partition(": ")[0] for each in differences(documented(text.replace(old, new)))] == [name]
