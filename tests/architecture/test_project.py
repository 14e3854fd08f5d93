"""The project's own files agree with one another: metadata, lock, make targets, container, continuous integration.

Rules. Each fact is stated in one file and read from there; a test here fails when another file says something else.
Files are parsed as their own tools parse them. What speaks of the README is skipped only while there is no README.
"""

import hashlib
import importlib.util
import os
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import proxy
from tests.architecture._source import ROOT, imports_of, modules_under

# Import names whose distribution is called otherwise, or that belong to another distribution's interface.
DISTRIBUTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"yaml": "pyyaml", "multidict": "aiohttp", "yarl": "aiohttp", "opentelemetry": "opentelemetry-sdk"}
)

# Modules and rooms that need an extra, and which.
EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {"proxy.demo": "demo", "proxy.edge.tracing": "otel", "proxy.stores.redis": "redis"}
)

# The licence's own text, as its publisher and every package of it have it.
APACHE_2_0_SHA256: Final = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def readme() -> str:
    path = ROOT / "README.md"
    if not path.is_file():
        pytest.skip("there is no README.md yet")
    return path.read_text(encoding="utf-8")


def requirements(project: Mapping[str, Any], *extras: str) -> Mapping[str, Requirement]:
    """Declared dependencies by canonical name: those of running, and of the extras that are named."""
    optional = project["project"]["optional-dependencies"]
    lines = [*project["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each for each in parsed if each.name != "transom"}


# ------------------------------------------------------------------------------------------ version and wheel


def test_the_version_is_said_in_one_place(project: dict[str, Any]) -> None:
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"] == {"path": "proxy/__init__.py"}
    assert str(Version(proxy.__version__)) == proxy.__version__
    literal = f'"{proxy.__version__}"'
    naming = [each.name for each in modules_under("proxy") if literal in each.text]
    assert naming == ["proxy"]


def test_the_metadata_names_product_package_and_command(project: dict[str, Any]) -> None:
    metadata = project["project"]
    assert metadata["name"] == "transom"
    assert metadata["requires-python"] == ">=3.11"
    assert metadata["license"] == "Apache-2.0"
    assert metadata["scripts"] == {"transom": "proxy.__main__:main"}
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["proxy"]}


def test_the_licence_is_the_whole_of_apache_2_0() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0_SHA256


def test_the_wheel_holds_the_package_and_nothing_else(readme: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend is not installed; `make test` installs it")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    outcome = subprocess.run(build, capture_output=True, text=True, check=False, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    [wheel] = tmp_path.glob("*.whl")
    information = f"transom-{proxy.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        commands = archive.read(f"{information}/entry_points.txt").decode()
        metadata = archive.read(f"{information}/METADATA").decode()
    assert {name.partition("/")[0] for name in names} == {"proxy", information}
    assert f"{information}/licenses/LICENSE" in names
    assert "transom = proxy.__main__:main" in commands
    assert readme.strip() in metadata.replace("\r\n", "\n")
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "proxy").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    assert {f"proxy/edge/assets/page.{kind}" for kind in ("html", "css", "js")} <= set(names)


# -------------------------------------------------------------------------------------- dependencies and lock


def test_what_the_product_imports_is_declared(project: dict[str, Any]) -> None:
    for source in modules_under("proxy"):
        extras = [extra for room, extra in EXTRAS.items() if f"{source.name}.".startswith(f"{room}.")]
        declared = requirements(project, *extras)
        for each in imports_of(source):
            library = each.target.partition(".")[0]
            if library != "proxy" and library not in sys.stdlib_module_names:
                name = canonicalize_name(DISTRIBUTIONS.get(library, library))
                assert name in declared, (
                    f"{source.name}:{each.line} imports {library}, which pyproject.toml lacks"
                )


def locked() -> Mapping[str, Version]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [
        re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line) for line in lines if not line.startswith("#")
    ]
    assert all(pins), "the lock holds a line that is no exact pin"
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in pins if pin}


def test_the_lock_pins_every_dependency_within_its_bounds(project: dict[str, Any]) -> None:
    pins = locked()
    for name, requirement in requirements(project, "demo", "otel", "redis", "servers", "dev").items():
        assert name in pins, f"{name} is missing from requirements.lock; run `make lock`"
        assert pins[name] in requirement.specifier, (
            f"requirements.lock has {name} {pins[name]}, not {requirement}"
        )


def test_the_lock_names_neither_the_product_nor_a_place() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "transom" not in locked()
    assert not re.search(r"://|^-|@", text, re.MULTILINE)


# ------------------------------------------------------------------------------------ checks stay switched on


def test_the_linter_looks_for_what_the_design_forbids(project: dict[str, Any]) -> None:
    ruff = project["tool"]["ruff"]
    assert ruff["line-length"] == 110
    assert {"BLE", "C90", "E", "F", "W", "I", "B", "UP", "SIM", "RUF", "PGH"} <= set(ruff["lint"]["select"])
    assert ruff["lint"]["mccabe"]["max-complexity"] == 10


def test_no_exemption_from_the_linter_covers_a_whole_family_or_a_smell(project: dict[str, Any]) -> None:
    lint = project["tool"]["ruff"]["lint"]
    for rule in lint["ignore"]:
        assert re.fullmatch(r"[A-Z]+\d{3,}", rule), f"{rule} is a family, not one rule"
    exempted = {rule for rules in lint["per-file-ignores"].values() for rule in rules} | set(lint["ignore"])
    assert not [rule for rule in exempted if rule.startswith(("BLE", "C9", "PLC0415", "TID"))]


def test_types_are_checked_strictly_everywhere(project: dict[str, Any]) -> None:
    mypy = project["tool"]["mypy"]
    assert mypy["strict"] is True
    assert set(mypy["files"]) >= {"proxy", "tests"}
    for override in mypy.get("overrides", []):
        assert set(override) == {"module", "ignore_missing_imports"}, override


def test_tests_run_strictly(project: dict[str, Any]) -> None:
    options = project["tool"]["pytest"]["ini_options"]
    assert options["asyncio_mode"] == "auto"
    assert {"--strict-markers", "--strict-config"} <= set(options["addopts"])


# --------------------------------------------------------------------------- commands of the README and of CI


def make_targets() -> Mapping[str, str]:
    """Target -> its recipe, as the Makefile has them."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[^\s#])", (ROOT / "Makefile").read_text(encoding="utf-8")):
        head, _, recipe = block.partition("\n")
        target = re.match(r"([a-z]+):(?!=)", head)
        if target:
            found[target[1]] = recipe
    return found


def test_the_makefile_has_the_targets_that_people_are_told_of() -> None:
    targets = make_targets()
    assert {"demo", "test", "serve", "clean", "lock"} <= set(targets)
    assert "-m proxy demo" in targets["demo"]
    assert "-m pytest" in targets["test"]
    assert "--upstream" in targets["serve"]


def test_lint_and_types_are_part_of_the_test_command() -> None:
    dry = subprocess.run(["make", "-n", "test"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    for command in ("-m ruff check .", "-m ruff format --check .", "-m mypy ", "-m pytest"):
        assert command in dry


def test_every_make_command_in_the_readme_exists(readme: str) -> None:
    mentioned = set(re.findall(r"(?:^|`|\$ )make ([a-z]+)", readme, re.MULTILINE))
    assert {"demo", "test", "serve"} <= mentioned
    assert mentioned <= set(make_targets())


def test_every_picture_in_the_readme_is_there_and_small(readme: str) -> None:
    named = set(re.findall(r"docs/images/[\w-]+\.(?:png|svg)", readme))
    assert named == {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "images").iterdir()}
    for name in named:
        assert (ROOT / name).stat().st_size < 150_000, name


def test_serving_without_an_upstream_says_what_is_missing(tmp_path: Path) -> None:
    for stamp in (".made", ".run"):
        (tmp_path / ".venv").mkdir(exist_ok=True)
        (tmp_path / ".venv" / stamp).touch()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        os.utime(tmp_path / name, (0, 0))
    outcome = subprocess.run(["make", "serve"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert outcome.returncode != 0
    assert "make serve UPSTREAM=" in outcome.stderr


def test_ci_runs_the_same_commands_and_stops_at_the_first_failure() -> None:
    path = ROOT / ".ci" / "run"
    text = path.read_text(encoding="utf-8")
    commands = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert text.startswith("#!/usr/bin/env bash\n")
    assert path.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in commands
    assert commands.index("step make test") < commands.index("step make demo")
    assert not [line for line in commands if "||" in line or "set +e" in line]


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    for heading in headings[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", heading)
    allowed = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= allowed
