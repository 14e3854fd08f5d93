"""The command line, run as a person runs it."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from proxy import __version__
from tests.conftest import ROOT

FIVE_MISTAKES = """\
listen: nowhere
upstream:
  base_url: ftp://example.org
  conect_timeout: 5s
models:
  - match: "*"
    window: many
    compact_at: 0.4
    compact_to: 0.6
"""


def transom(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UPSTREAM")}
    return subprocess.run(
        [sys.executable, "-m", "proxy", *words],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_example_configuration_is_checked_and_shown_in_full() -> None:
    done = transom("check", "--config", "config.example.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    shown = yaml.safe_load(done.stdout)
    assert shown["upstream"]["base_url"] == "http://127.0.0.1:8080/v1"
    assert shown["models"][0]["strategies"]


def test_every_mistake_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "five.yaml").write_text(FIVE_MISTAKES)
    done = transom("check", "--config", "five.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    places = [line.split(": ")[:2] for line in done.stderr.splitlines()]
    assert places == [
        ["five.yaml:1", "listen"],
        ["five.yaml:3", "upstream.base_url"],
        ["five.yaml:4", "upstream.conect_timeout"],
        ["five.yaml:7", "models[0].window"],
        ["five.yaml:9", "models[0].compact_to"],
    ]
    assert "did you mean connect_timeout" in done.stderr


@pytest.mark.parametrize(
    ("word", "hint"),
    [("chekc", "did you mean check?"), ("xyz", "there are serve, check, schema, measure, compact, demo.")],
)
def test_a_command_that_does_not_exist_is_told_with_the_nearest_one(word: str, hint: str) -> None:
    done = transom(word, "--upstream", "http://127.0.0.1:9/v1")
    assert (done.returncode, done.stderr) == (2, f"transom: there is no command {word}; {hint}\n")


@pytest.mark.parametrize("words", [["serve"], [], ["check"], ["--listen", "127.0.0.1:0"]])
def test_without_an_upstream_nothing_starts_and_the_way_out_is_named(words: Sequence[str]) -> None:
    done = transom(*words)
    assert done.returncode == 2
    assert "--upstream" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_cannot_be_opened_is_told_in_one_line_and_nothing_starts(tmp_path: Path) -> None:
    done = transom(
        "--upstream", "http://127.0.0.1:9/v1", "--store", f"sqlite:///{tmp_path}/absent/transom.db"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"store: the folder {tmp_path}/absent of the SQLite file does not exist")


def test_the_password_of_a_store_is_not_shown(tmp_path: Path) -> None:
    words = ("--upstream", "http://127.0.0.1:9/v1", "--store", "redis://user:swordfish@127.0.0.1:9/0")
    done = transom("check", *words, cwd=tmp_path)
    assert done.returncode == 0
    assert "store: redis://***@127.0.0.1:9/0\n" in done.stdout
    assert "swordfish" not in done.stdout + done.stderr


def test_the_version_is_told() -> None:
    assert transom("--version").stdout == f"transom {__version__}\n"


def test_the_demonstration_answers_every_request() -> None:
    done = transom("demo", "--steps", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 requests answered, 0 refused." in done.stdout
    assert "summarize=" in done.stdout or "elide=" in done.stdout
    assert done.stderr == ""


def test_an_address_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = transom("--upstream", "http://127.0.0.1:9/v1", "--listen", address)
    assert done.returncode == 1
    assert f"Cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr


def test_b112_sigterm_ends_a_served_proxy_with_status_0() -> None:
    words = [sys.executable, "-m", "proxy", "--upstream", "http://127.0.0.1:9/v1", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        url = yaml.safe_load(first)["url"]
        with urllib.request.urlopen(f"{url}/-/healthz", timeout=10) as answer:  # noqa: S310 - our own address
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
