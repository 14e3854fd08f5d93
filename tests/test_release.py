"""What is released: a wheel that works where nothing else is installed, and a source archive that makes the same.

Rules. The wheel is built by its backend from this checkout, installed by pip with what the lock pins, and run from a
folder that knows nothing of the checkout.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy import __version__
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def built(kind: str, source: Path, target: Path) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend is not installed; `make test` installs it")
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = target.iterdir()
    return made


def held(wheel: Path) -> Mapping[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_source_archive_makes_the_same_wheel(tmp_path: Path) -> None:
    archive = built("sdist", ROOT, tmp_path / "archive")
    assert archive.name == f"transom-{__version__}.tar.gz"
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    ours = held(built("wheel", ROOT, tmp_path / "ours"))
    theirs = held(built("wheel", source, tmp_path / "theirs"))
    assert theirs == ours
    for name in (
        "Makefile",
        "config.example.yaml",
        "requirements.lock",
        "tests/conftest.py",
        "deploy/compose.yaml",
    ):
        assert (source / name).is_file(), name


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script as pipx puts it on the PATH: a link into an environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = built("wheel", ROOT, folder / "dist")
    assert wheel.name == f"transom-{__version__}-py3-none-any.whl"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")], check=True)
    python = str(folder / "environment" / "bin" / "python")
    into = ["--python", python, "--disable-pip-version-check", "--no-input"]
    what = ["--quiet", "--no-compile", "-c", str(ROOT / "requirements.lock"), str(wheel)]
    install = [sys.executable, "-m", "pip", *into, "install", *what]
    done = subprocess.run(install, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    link = folder / "bin" / "transom"
    link.parent.mkdir()
    link.symlink_to(folder / "environment" / "bin" / "transom")
    return link


def run(command: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, *words], cwd=command.parent, env=bare(), capture_output=True, text=True, check=False
    )


def bare() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def test_the_installed_command_tells_its_version_and_reads_a_configuration(command: Path) -> None:
    assert run(command, "--version").stdout == f"transom {__version__}\n"
    shown = run(command, "check", "--upstream", "http://127.0.0.1:8080/v1")
    assert (shown.returncode, shown.stderr) == (0, "")


def test_the_installed_command_counts_with_the_vocabularies_that_came_with_it(command: Path) -> None:
    request = command.parent / "request.json"
    request.write_text(json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}))
    done = run(command, "measure", "--json", "request.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["estimated_tokens"] > 0


def test_the_installed_command_serves_with_its_page(command: Path) -> None:
    words = [str(command), "--upstream", "http://127.0.0.1:9/v1", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, cwd=command.parent, env=bare(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = json.loads(process.stderr.readline())["url"]
        with urllib.request.urlopen(f"{url}/-/", timeout=20) as answer:  # noqa: S310 - our own address
            assert answer.read().lower().startswith(b"<!doctype html>")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["demo"], "pip install 'transom[demo]'"),
        (["--upstream", "http://127.0.0.1:9/v1", "--store", "redis://127.0.0.1:9/0"], "pip install redis"),
        (
            ["check", "--upstream", "http://127.0.0.1:9/v1", "--store", "redis://127.0.0.1:9/0"],
            "pip install redis",
        ),
    ],
)
def test_what_is_not_installed_is_told_in_one_line_with_the_remedy(
    command: Path, words: list[str], remedy: str
) -> None:
    done = run(command, *words)
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert line.endswith(remedy)
