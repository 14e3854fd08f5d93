"""Every command of the pages is run, before a scripted upstream, or is marked as one that cannot run here.

Rules. A block is run by a shell as it stands, in a folder that looks like the checkout with `transom` installed, a
`transom.yaml` and a `request.json`. Two things are changed: the ports that the pages speak of become those of this
run, and a command that serves gets a free port to listen on. Such a command is the last of its block; it has to come
up, to be healthy, and to end when it is told to.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.conftest import ROOT
from tests.docs.pages import Block, blocks, read
from tests.needs import lacks
from tests.peers.answers import Answer, json_answer
from tests.peers.scripted import PATIENCE, Request, ScriptedUpstream

COMMANDS: Final = blocks("sh")
SERVES: Final = re.compile(r"^(?:\.venv/bin/)?transom (?:serve\b|--upstream|--config)")
CONFIGURATION: Final = """\
upstream:
  base_url: http://127.0.0.1:8080/v1
models:
  - match: "*"
    window: 32k
"""

NOT_RUN: Final = {"README.md": 2, "docs/architecture.md": 2, "docs/operations.md": 1}
"""How many blocks of a page are marked as not run."""


def answer(request: Request) -> Answer:
    if request.path == "/v1/models":
        return json_answer({"object": "list", "data": [{"id": "any", "object": "model"}]})
    if request.path != "/v1/chat/completions":
        return json_answer({"error": {"message": "There is none.", "code": "not_found"}}, status=404)
    said = {
        "role": "assistant",
        "content": "Services were read, one after another; rounding was mended in three.",
    }
    usage = {"prompt_tokens": len(request.body) // 4, "completion_tokens": 12}
    usage["total_tokens"] = sum(usage.values())
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    return json_answer({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


def request_json() -> str:
    """A history of twenty turns, so that there is something to measure and to compact."""
    messages = [{"role": "system", "content": "You are a careful engineer."}]
    for turn in range(20):
        messages.append(
            {"role": "user", "content": f"Go on with service {turn}. " + "Read before you edit. " * 40}
        )
        messages.append(
            {"role": "assistant", "content": f"Service {turn} is done. " + "All of it is read. " * 40}
        )
    messages.append({"role": "user", "content": "What is left?"})
    return json.dumps({"model": "any", "messages": messages})


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder like the checkout, and the upstream that the pages call 127.0.0.1:8080."""

    folder: Path
    upstream: ScriptedUpstream

    def here(self, text: str, port: int = 0) -> str:
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.upstream.port}")
        return text.replace("127.0.0.1:8787", f"127.0.0.1:{port}")

    async def start(self, text: str) -> asyncio.subprocess.Process:
        environ = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        return await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            text,
            cwd=self.folder,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    @contextlib.asynccontextmanager
    async def served(self, command: str) -> AsyncIterator[int]:
        """The port that a command serves on while this lasts. It has to be healthy, and to end with status 0."""
        listening = command.rstrip() if "--listen" in command else f"{command.rstrip()} --listen 127.0.0.1:0"
        process = await self.start(f"exec {listening}")
        try:
            assert process.stderr is not None
            line = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
            assert b'"listening"' in line, line.decode()
            port = int(json.loads(line)["url"].rpartition(":")[2])
            url = f"http://127.0.0.1:{port}/-/healthz"
            async with aiohttp.ClientSession() as client, client.get(url) as told:
                assert told.status == 200
            yield port
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.communicate(), PATIENCE)
            assert process.returncode == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    for each in ROOT.iterdir():
        if each.is_file():  # a command may write one
            shutil.copy(each, tmp_path)
        elif not each.name.startswith("."):
            (tmp_path / each.name).symlink_to(each)
    command = tmp_path / "bin" / "transom"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(command.parent)
    (tmp_path / ".curlrc").write_text("fail-with-body\n")  # what is answered with an error fails the block
    (tmp_path / "request.json").write_text(request_json())
    async with ScriptedUpstream(otherwise=answer) as upstream:
        desk = Desk(tmp_path, upstream)
        (tmp_path / "transom.yaml").write_text(desk.here(CONFIGURATION))
        yield desk


@pytest.mark.parametrize("block", [each for each in COMMANDS if each.reason is None], ids=str)
async def test_the_commands_of_a_page_run(block: Block, desk: Desk) -> None:
    if "curl" in block.text and shutil.which("curl") is None:
        lacks("curl is not installed", "Debian: apt-get install curl")
    lines = block.text.replace("\\\n", " ").splitlines()
    commands = [line.partition(" # ")[0].rstrip() for line in lines if line.strip()]
    serving = [command for command in commands if SERVES.match(command)]
    if serving:
        assert serving == commands[-1:], "what serves stays, so it is the last command of its block"
        commands.pop()
    async with contextlib.AsyncExitStack() as stack:
        text = "\n".join(commands)
        port = 0
        if "127.0.0.1:8787" in text:
            port = await stack.enter_async_context(desk.served("transom serve --config transom.yaml"))
        await shown(desk, desk.here(text, port))
        if serving:
            await stack.enter_async_context(desk.served(desk.here(serving[0])))


async def shown(desk: Desk, text: str) -> None:
    """Run it to its end; it has to succeed, and to say something unless there is nothing to run."""
    process = await desk.start(text)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE * 3)
    assert process.returncode == 0, f"{text}\n{out.decode()}{err.decode()}"
    assert out.strip() or not text.strip(), f"{text}\nsaid nothing"


@pytest.mark.parametrize("block", COMMANDS, ids=str)
async def test_a_shell_can_read_every_block(block: Block) -> None:
    process = await asyncio.create_subprocess_exec("bash", "-n", "-c", block.text)
    assert await process.wait() == 0


def test_blocks_that_cannot_run_here_are_counted() -> None:
    counted = Counter(each.page for each in COMMANDS if each.reason is not None)
    assert counted == NOT_RUN


def test_a_mark_belongs_to_the_fence_below_it_and_a_fence_is_closed() -> None:
    page = "<!-- not run here: needs a cluster -->\n```sh\nkubectl get pods\n```\n\n```sh\ntrue\n```\n"
    assert [(each.line, each.reason) for each in read("page", page)] == [(2, "needs a cluster"), (6, None)]
    for wrong in ("<!-- not run here: why -->\n\n```sh\n```\n", "```sh\ntrue\n"):
        with pytest.raises(ValueError, match="page:1"):
            list(read("page", wrong))
