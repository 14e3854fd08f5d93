"""Agents for the terminal that npm carries, run without a terminal in a folder with a book in it.

Rules. Each is configured in the file that its own documentation names, and is kept from asking the network for anything
but the model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.folders import with_book
from tests.integration.clients.models import Reader
from tests.integration.clients.programs.book import ANSWER, TASK
from tests.integration.clients.rooms import NodeRoom
from tests.integration.clients.stage import KEY, MODEL, Stage, staged

OPENCODE = NodeRoom("opencode", ("opencode-ai@1.18.33",))
QWEN_CODE = NodeRoom("qwen-code", ("@qwen-code/qwen-code@0.15.10",))
PI = NodeRoom("pi", ("@earendil-works/pi-coding-agent@0.74.2",))


def configured(stage: Stage, file: str, value: Mapping[str, Any]) -> None:
    """Write a file of JSON into the client's home."""
    path = stage.home / file
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def reader(tool: str, argument: str, folder: Path | str) -> Reader:
    return Reader(tool=tool, arguments=lambda number: {argument: f"{folder}/{number}.txt"})


async def test_opencode_reads_the_book(tmp_path: Path) -> None:
    folder = with_book(tmp_path / "work", times=3)
    model = reader("read", "filePath", folder / "pages")
    async with staged(tmp_path, window=32_000, reply=model) as stage:
        options = {"baseURL": stage.base_url, "apiKey": KEY}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Transom",
            "options": options,
            "models": {MODEL: {}},
        }
        settings = {
            "model": f"transom/{MODEL}",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"transom": provider},
        }
        configured(stage, ".config/opencode/opencode.json", settings)
        offline = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
        done = await stage.run(OPENCODE.command("opencode"), "run", TASK, folder=folder, added=offline)
        assert ANSWER in done.out, done.everything
        assert "40.txt" in done.errors
        stage.outgrew_the_window()


async def test_qwen_code_reads_the_book(tmp_path: Path) -> None:
    folder = with_book(tmp_path / "work", times=3)
    model = reader("read_file", "file_path", folder / "pages")
    async with staged(tmp_path, window=40_000, reply=model) as stage:
        settings = {
            "security": {"auth": {"selectedType": "openai"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        configured(stage, ".qwen/settings.json", settings)
        words = (QWEN_CODE.command("qwen"), "--yolo", "--prompt", TASK)
        done = await stage.run(*words, folder=folder, added={"OPENAI_MODEL": MODEL})
        assert ANSWER in done.out, done.everything
        stage.outgrew_the_window()


async def test_pi_reads_the_book(tmp_path: Path) -> None:
    folder = with_book(tmp_path / "work", times=3)
    async with staged(tmp_path, window=24_000, reply=reader("read", "path", "pages")) as stage:
        provider = {
            "baseUrl": stage.base_url,
            "api": "openai-completions",
            "apiKey": KEY,
            "models": [{"id": MODEL}],
        }
        configured(stage, ".pi/agent/models.json", {"providers": {"transom": provider}})
        words = (PI.command("pi"), "--print", "--provider", "transom", "--model", MODEL, TASK)
        done = await stage.run(*words, folder=folder, added={"PI_OFFLINE": "1"})
        assert ANSWER in done.out, done.everything
        stage.outgrew_the_window()


@pytest.mark.skip(
    reason="crush 0.96.1: its npm package downloads the program from github.com while it is installed"
)
def test_crush_reads_the_book() -> None:
    """Not written, since it could not be run: no registry carries the program itself."""
