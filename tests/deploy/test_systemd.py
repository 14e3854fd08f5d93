"""deploy/systemd: a unit that systemd reads without a word, that is locked down, and a configuration for it.

Rules. systemd's own program judges the unit; that the proxy lives with what the unit takes from it is tried on the
kernel where the kernel offers it.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from proxy.edge.service import GRACE
from tests.conftest import ROOT
from tests.deploy.checkers import configuration, program
from tests.needs import lacks

FOLDER: Final = ROOT / "deploy" / "systemd"
UNIT: Final = FOLDER / "transom.service"
SET_MDWE: Final = 65
REFUSE_EXEC_GAIN: Final = 1


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    """The unit's section of the service: each name with all its values."""
    found: dict[str, list[str]] = {}
    section = UNIT.read_text(encoding="utf-8").partition("[Service]\n")[2].partition("\n[")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_systemd_reads_the_unit_without_a_word(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    installed = UNIT.read_text(encoding="utf-8").replace("/opt/transom/bin/transom", "/bin/true")
    unit.write_text(installed, encoding="utf-8")
    done = subprocess.run(
        [program("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_finds_it_little_exposed(tmp_path: Path) -> None:
    words = [
        program("systemd-analyze"),
        "security",
        "--offline=true",
        "--threshold=15",
        "--no-pager",
        str(UNIT),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = re.search(r"exposure level for transom.service: ([\d.]+)", done.stdout)
    assert found
    assert float(found[1]) <= 1.5, "of 10, where 10 is a service that nothing is taken from"


def test_it_starts_the_console_script_with_the_configuration_that_is_told_of(
    service: dict[str, list[str]],
) -> None:
    assert service["ExecStart"] == ["/opt/transom/bin/transom serve --config /etc/transom/config.yaml"]
    assert "config.yaml /etc/transom/config.yaml" in UNIT.read_text(encoding="utf-8")
    assert service["RestartPreventExitStatus"] == ["2"]


def test_workers_are_told_to_end_by_their_parent_alone_and_have_their_time(
    service: dict[str, list[str]],
) -> None:
    assert service["KillMode"] == ["mixed"], "a second SIGTERM ends a process at once"
    [limit] = service["TimeoutStopSec"]
    assert int(limit.removesuffix("s")) > GRACE


def test_its_configuration_is_read_and_keeps_its_store_in_the_units_folder(
    service: dict[str, list[str]], tmp_path: Path
) -> None:
    text = (FOLDER / "config.yaml").read_text(encoding="utf-8")
    config = configuration(tmp_path, text, {}, {})
    [state] = service["StateDirectory"]
    assert config.store.reveal().startswith(f"sqlite:////var/lib/{state}/")


def test_names_are_not_given_twice_by_mistake(service: dict[str, list[str]]) -> None:
    assert {name for name, values in service.items() if len(values) > 1} <= {"SystemCallFilter"}


def test_the_proxy_lives_where_memory_cannot_be_made_executable() -> None:
    def deny() -> None:
        if ctypes.CDLL(None).prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
            os._exit(77)

    done = subprocess.run(
        [sys.executable, "-m", "proxy", "demo", "--steps", "5"],
        cwd=ROOT,
        preexec_fn=deny,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        lacks("this kernel cannot deny it", "Linux 6.3 or newer")
    assert done.returncode == 0, done.stderr
    assert "5 requests answered" in done.stdout
