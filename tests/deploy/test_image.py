"""What the Dockerfile's steps make, carried out without an engine: a folder stands for the image's file system.

Rules. The commands are the Dockerfile's own, with the folder put before each path of theirs, on the interpreter that
runs the tests. What would change that interpreter is left out, and named. The result runs as the image's user, with no
capability but to read (the tests' interpreter may be root's alone), on a file system that takes nothing in.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy import __version__
from tests.conftest import ROOT
from tests.deploy.dockerfile import Instruction, Stage, read_dockerfile
from tests.needs import lacks

pytestmark = pytest.mark.slow

PLACES = re.compile(r"(?<![\w.])/(?=(?:opt|src|var/lib|etc)\b)")
BASE = Path(sys.base_prefix) / "bin" / "python3"
"""The interpreter that virtual environments are made of; it has pip, as the base image has."""

OF_THE_INTERPRETER = "python -m pip uninstall"
LOCKED_DOWN = """
set -eu
mount --rbind / /
mount --bind "$ROOT" "$ROOT"
mount --bind "$ROOT/var/lib/transom" "$ROOT/var/lib/transom"
mount -o remount,ro,bind "$ROOT"
mount -o remount,ro,bind /
if touch "$ROOT/opt/transom/written" 2>/dev/null; then echo 'the file system takes things in' >&2; exit 70; fi
exec setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups --no-new-privs \
  --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The folder, and the stage that runs."""

    root: Path
    final: Stage

    def at(self, command: str) -> str:
        return PLACES.sub(f"{self.root}/", command)

    def locked_down(self, *words: str | Path, more: Sequence[str] = ()) -> subprocess.Popen[str]:
        """A command as the container would run it: its user, its environment, nothing writable but its state."""
        user, _, group = self.final.the("USER").partition(":")
        variables = dict(each.split("=", 1) for each in shlex.split(self.final.the("ENV")))
        environ = {
            **{
                name: self.at(value).replace("$PATH", os.environ["PATH"]) for name, value in variables.items()
            },
            "ROOT": str(self.root),
            "USER_ID": user,
            "GROUP_ID": group,
        }
        around = ["unshare", "--mount", "--propagation", "private", *more, "sh", "-c", LOCKED_DOWN, "sh"]
        return subprocess.Popen(
            [*around, *map(str, words)],
            env=environ,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def carry_out(image: Image, stage: Stage, environ: dict[str, str]) -> None:
    folder = image.root
    for step in stage.steps:
        if step.name == "WORKDIR":
            folder = Path(image.at(step.rest))
            folder.mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY" and "from" not in step.flags:
            copy(step, folder)
        elif step.name == "RUN":
            run(image.at(step.rest), folder, environ)


def copy(step: Instruction, folder: Path) -> None:
    *sources, target = shlex.split(step.rest)
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, folder / target)


def run(command: str, folder: Path, environ: dict[str, str]) -> None:
    ours = " && ".join(each for each in command.split(" && ") if OF_THE_INTERPRETER not in each)
    done = subprocess.run(
        ["sh", "-c", ours], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{ours}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        lacks("files can be given to the image's user by root alone", "run it as root, on Linux")
    stages = read_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "image"
        Path(folder).chmod(0o755)
        (root / "bin").mkdir(parents=True)
        (root / "var/lib").mkdir(parents=True)
        python = root / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(str(BASE))} "$@"\n')
        python.chmod(0o755)
        made = Image(root, stages[-1])
        environ = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
        for stage in stages:
            carry_out(made, stage, environ)
        yield made


def test_the_build_steps_make_the_command(image: Image) -> None:
    done = image.locked_down("transom", "--version")
    assert done.communicate(timeout=60) == (f"transom {__version__}\n", "")


def test_what_is_installed_is_locked_and_can_install_nothing(image: Image) -> None:
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    done = image.locked_down(image.root / "opt/transom/bin/python", "-I", "-c", code)
    listed, said = done.communicate(timeout=60)
    assert said == ""
    installed = {each.partition("==")[0].lower().replace("_", "-"): each for each in listed.split()}
    assert not {"pip", "setuptools", "wheel", "hatchling", "uv"} & set(installed)
    assert "redis" in installed
    locked = set((ROOT / "requirements.lock").read_text(encoding="utf-8").lower().replace("_", "-").split())
    ours = installed.pop("transom")
    assert ours == f"transom=={__version__}"
    assert {each.lower().replace("_", "-") for each in installed.values()} <= locked


def test_tokens_are_counted_with_no_network_and_nothing_writable(image: Image) -> None:
    request = image.root / "etc" / "request.json"
    request.parent.mkdir(exist_ok=True)
    request.write_text(
        json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello there"}]})
    )
    done = image.locked_down("transom", "measure", "--json", request, more=["--net"])
    shown, said = done.communicate(timeout=60)
    assert said == ""
    assert 3 <= json.loads(shown)["estimated_tokens"] <= 30


def test_it_serves_as_its_user_is_found_healthy_and_keeps_its_store_where_it_may(image: Image) -> None:
    config = image.root / "etc" / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(
        "listen: 0.0.0.0:0\n"
        "upstream: {base_url: 'http://127.0.0.1:9/v1'}\n"
        f"store: sqlite:///{image.root}/var/lib/transom/transom.db\n"
    )
    process = image.locked_down("transom", "serve", "--config", config)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        port = json.loads(said)["url"].rpartition(":")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/readyz", timeout=20) as answer:
            assert json.load(answer) == {"status": "ready", "store": "ok"}
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
        assert "NoNewPrivs:\t1" in status
        command = json.loads(image.final.the("HEALTHCHECK").removeprefix("CMD "))
        code = command[-1].replace("8787", port)
        check = image.locked_down(*command[:-1], code)
        assert check.communicate(timeout=60) == ("", "")
        assert check.returncode == 0
        process.send_signal(getattr(signal, image.final.the("STOPSIGNAL")))
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
    [store] = (image.root / "var/lib/transom").glob("transom.db")
    assert store.stat().st_uid == 10001
    assert store.stat().st_mode & 0o077 == 0
