"""deploy/compose.yaml: valid by Compose's own schema, locked down, and with a configuration that the proxy reads.

Rules. `${NAME:-default}` is put in as Compose does it, with nothing of the tests' environment.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.config import Address
from tests.conftest import ROOT
from tests.deploy.checkers import configuration, program

FILE: Final = ROOT / "deploy" / "compose.yaml"
GIVEN: Final = {"MODEL": "model.gguf", "LLAMA_IMAGE": "llama:server"}
VARIABLE: Final = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, environ: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, how, rest = found.groups()
        if environ.get(name):
            return environ[name]
        assert how == "-", f"{name} has to be given"
        return str(rest)

    return VARIABLE.sub(value, text)


def compose(environ: Mapping[str, str] = GIVEN) -> dict[str, Any]:
    held: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text(encoding="utf-8"), environ))
    return held


def test_it_is_valid_by_the_schema_of_compose_files() -> None:
    done = subprocess.run(
        [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", FILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("store", ["sqlite:////var/lib/transom/transom.db", "redis://redis:6379/0"])
def test_its_configuration_is_read_with_the_environment_that_it_gives(store: str, tmp_path: Path) -> None:
    given = GIVEN | ({"TRANSOM_STORE": store} if store.startswith("redis") else {})
    service = compose(given)["services"]["transom"]
    [mounted] = [each for each in service["volumes"] if each["type"] == "bind"]
    text = (FILE.parent / mounted["source"]).read_text(encoding="utf-8")
    config = configuration(tmp_path, text, service["environment"], {})
    assert config.listen == Address("0.0.0.0", 8787)
    assert config.store.reveal() == store
    assert config.upstream.base_url == "http://llama:8080/v1"
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert mounted["target"] in dockerfile
    assert [each["target"] in dockerfile for each in service["volumes"]] == [True, True]


def test_nothing_is_published_but_the_proxy_on_this_machine() -> None:
    published = {name: each.get("ports", []) for name, each in compose()["services"].items()}
    assert published == {"transom": ["127.0.0.1:8787:8787"], "llama": [], "redis": []}


def test_each_service_is_checked_for_its_health_and_given_no_more_than_it_needs() -> None:
    for name, service in compose()["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "healthcheck" in service or name == "transom", f"{name}: that of transom is in the image"
        assert service.get("read_only", False) or name == "llama", f"{name}: the server may write caches"


def test_what_the_proxy_waits_for_is_there_and_redis_only_where_it_is_asked_for() -> None:
    services = compose()["services"]
    waits = services["transom"]["depends_on"]
    assert {name for name, each in waits.items() if each.get("required", True)} == {"llama"}
    assert set(waits) <= set(services)
    assert [name for name, each in services.items() if each.get("profiles")] == ["redis"]


@pytest.mark.parametrize("name", GIVEN)
def test_a_model_or_an_image_that_is_not_named_is_said_and_not_guessed(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name} has to be given"):
        compose({key: value for key, value in GIVEN.items() if key != name})


def test_it_builds_from_the_folder_of_the_dockerfile() -> None:
    context = FILE.parent / compose()["services"]["transom"]["build"]["context"]
    assert (context / "Dockerfile").is_file()
