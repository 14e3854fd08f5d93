"""The Dockerfile: what its instructions say, and what the linter of such files says of it.

Rules. Nothing is built here; what the build steps make is tested in `test_image.py`.
"""

import ast
import asyncio
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from tests.conftest import ROOT
from tests.deploy.checkers import program
from tests.deploy.dockerfile import Stage, read_dockerfile


@pytest.fixture(scope="module")
def stages() -> tuple[Stage, ...]:
    return read_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_the_image_is_built_in_one_stage_and_runs_in_another(stages: tuple[Stage, ...]) -> None:
    build, final = stages
    assert build.base == final.base, "the virtual environment points at the interpreter of its own base image"
    assert re.fullmatch(r"python:3\.\d+-slim", final.base)
    [taken] = final.all("COPY")
    assert taken.flags["from"] == build.alias


def test_nothing_that_builds_or_installs_is_left_in_the_image(stages: tuple[Stage, ...]) -> None:
    build, final = stages
    assert any("--without-pip" in step.rest for step in build.all("RUN"))
    assert any("--constraint requirements.lock" in step.rest for step in build.all("RUN"))
    runs = [step.rest for step in final.all("RUN")]
    assert [run for run in runs if "pip uninstall" in run]
    assert not [run for run in runs if re.search(r"\b(apt|apt-get|apk|pip install|gcc)\b", run)]


def test_what_the_image_copies_exists_and_is_not_ignored(stages: tuple[Stage, ...]) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [source for step in stages[0].all("COPY") for source in shlex.split(step.rest)[:-1]]
    assert sources
    for source in sources:
        assert source in kept, f"{source} is kept out by .dockerignore"
        assert (ROOT / source).exists() or source == "README.md", f"{source} does not exist"


def test_the_container_does_not_run_as_root(stages: tuple[Stage, ...]) -> None:
    user, _, group = stages[-1].the("USER").partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    steps = [step.name for step in stages[-1].steps]
    assert "RUN" not in steps[steps.index("USER") :]


def test_the_container_starts_the_console_script_with_a_mounted_configuration(
    stages: tuple[Stage, ...],
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [command] = json.loads(stages[-1].the("ENTRYPOINT"))
    assert command in project["project"]["scripts"]
    assert json.loads(stages[-1].the("CMD")) == ["serve", "--config", "/etc/transom/config.yaml"]


def health_command(stages: tuple[Stage, ...]) -> Sequence[str]:
    kind, _, command = stages[-1].the("HEALTHCHECK").partition(" ")
    assert kind == "CMD"
    parsed = json.loads(command)
    assert isinstance(parsed, list)
    return parsed


def test_the_health_check_asks_the_exposed_port(stages: tuple[Stage, ...]) -> None:
    interpreter, option, code = health_command(stages)
    assert (interpreter, option) == ("python", "-c")
    ast.parse(code)
    assert stages[-1].the("EXPOSE") == "8787"
    assert code.count("8787") == 1


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
async def test_the_health_check_passes_on_what_the_server_says(
    stages: tuple[Stage, ...], aiohttp_server: AiohttpServer, status: int, code: int
) -> None:
    async def healthz(request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/-/healthz", healthz)
    server = await aiohttp_server(app)
    source = health_command(stages)[-1].replace("8787", str(server.port))
    check = await asyncio.create_subprocess_exec(sys.executable, "-c", source)
    assert await check.wait() == code


@pytest.mark.parametrize("text", ["RUN true\n", "FROM a\nADD x y\n", "FROM a\nrun true\n"])
def test_a_dockerfile_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"instruction|before the first FROM"):
        read_dockerfile(text)


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [program("hadolint"), "--failure-threshold", "style", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
