"""What a process leaves behind of the chats that went through it: counts in its log, summaries in its store.

Rules. The process is a real one, at its most talkative, with a store on disk. Its folders are empty before, so that
whatever is in them afterwards was written by it.
"""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_side_calls import strict
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, StrictUpstream, bytes_answer, chat_answer, text_message

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"

SYSTEM, ASKED, ANSWERED, RESULT, ARGUMENT, PINNED, NEWEST, SAID, REFUSED = MARKERS = tuple(
    f"marker{number}" for number in range(101, 110)
)
"""Words that no file and no line of the log may hold."""

SUMMARISED = "markersummary"
SECRETS = ("upstream-secret", "token-secret", "own-secret", "query-secret", "cookie-secret", "tenant-secret")

CONFIGURATION = """
listen: 127.0.0.1:0
upstream: {{base_url: {url}, api_key: upstream-secret}}
auth: {{tokens: [token-secret]}}
tenant: {{secret: tenant-secret}}
store: sqlite:///transom.db
log: {{level: debug, format: json}}
models:
  - match: "*"
    window: 2000
    reserve_output: 200
    compact_to: 0.9
    pin: [{pinned}]
    elide: {{keep: 1}}
    carry: {{share: 0}}
    summary: {{prepare_at: 0}}
"""


@dataclass(slots=True)
class Left:
    """What there was when the process had ended."""

    log: str
    files: Mapping[str, bytes]
    modes: Mapping[str, int]


@asynccontextmanager
async def serving(folder: Path, upstream: StrictUpstream, left: Left) -> AsyncIterator[str]:
    """A process that works in this folder; `left` is filled when it has ended."""
    (folder / "config").mkdir()
    work = folder / "work"
    work.mkdir(mode=0o755)
    config = folder / "config" / "transom.yaml"
    config.write_text(CONFIGURATION.format(url=upstream.base_url, pinned=PINNED), encoding="utf-8")
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(work))
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(config)),
        cwd=work,
        env={**os.environ, **places, "PYTHONPATH": str(ROOT), "PYTHONASYNCIODEBUG": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert started.stdout is not None
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(60):
            while b'"listening"' not in (line := await started.stdout.readline()):
                lines.append(line)
        yield json.loads(line)["url"]
    finally:
        started.send_signal(signal.SIGTERM)
        rest, _ = await started.communicate()
    left.log = b"".join([*lines, line, rest]).decode()
    found = [path for path in work.rglob("*") if path.is_file()]
    left.files = {path.name: path.read_bytes() for path in found}
    left.modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}


def chat(turns: int, newest: int = 1) -> bytes:
    """A chat with tools, whose every kind of text holds a marker; `newest` lengthens the last message."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"Be brief. {SYSTEM}"}]
    for number in range(turns):
        call = {"name": "look", "arguments": json.dumps({"at": f"{ARGUMENT} {number}"})}
        messages += [
            {"role": "user", "content": f"Question {number}: {ASKED} " + "what and why " * 30},
            {
                "role": "assistant",
                "content": f"{ANSWERED} {number}",
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{RESULT} {number} " * 120},
            {"role": "assistant", "content": f"Answer {number}: {ANSWERED} " + "so and so " * 20},
        ]
    messages[4]["content"] = f"A rule: {PINNED}."
    messages.append({"role": "user", "content": f"And now? {NEWEST} " + "at great length " * newest})
    return json.dumps({"model": "m", "messages": messages, "stream": turns % 2 == 1}).encode()


async def exercise(url: str) -> list[str]:
    """Sends requests of all kinds; what the managed ones were answered about what was done."""
    done: list[str] = []
    fields = [
        ("Authorization", "Bearer own-secret"),
        ("x-transom-token", "token-secret"),
        ("Cookie", "session=cookie-secret"),
    ]
    async with RawClient(url) as client:
        assert (await client.post(CHAT, chat(1), fields)).status == 500
        for turns, newest in ((4, 1), (6, 1), (9, 1), (5, 600)):
            body = chat(turns, newest)
            response = await client.post(f"{CHAT}?key=query-secret&api_key=query-secret", body, fields)
            assert response.status == 200, response.body
            done.append(response.header("x-context-actions") or "")
        await client.post(f"/v1/responses?token=query-secret&q={ASKED}", chat(1), fields)
        await client.post(CHAT, b'{"messages": [{"content": "' + NEWEST.encode(), fields)
        state = await client.request("GET", f"/-/state?key=query-secret&q={ASKED}", None, fields)
        assert state.status == 200
        assert not any(word in state.body.decode() for word in (*MARKERS, SUMMARISED, *SECRETS))
    async with RawClient(url) as client:
        refused = await client.post(CHAT, chat(1), [("Authorization", "Bearer own-secret")])
        assert (refused.status, b"secret" in refused.body) == (401, False)
    return done


@pytest.mark.slow
async def test_b131_b132_a_process_leaves_no_text_but_its_summaries_and_no_key_at_all(tmp_path: Path) -> None:
    left = Left("", {}, {})

    def summarise(body: Mapping[str, Any]) -> Answer:
        return chat_answer(
            body, text_message(f"What was done: {SUMMARISED}, at some length."), prompt_tokens=9
        )

    refusal = bytes_answer(REFUSED.encode(), status=500)
    async with (
        strict(first=[refusal], reply=lambda _: text_message(SAID), summarise=summarise) as upstream,
        serving(tmp_path, upstream, left) as url,
    ):
        done = await exercise(url)
    for step in ("elide=", "summarize=", "shorten="):
        assert any(step in each for each in done), done
    whole = b"".join(left.files.values())
    assert SUMMARISED.encode() in whole, "the store is what was meant to be looked at"
    for word in (*MARKERS, *SECRETS):
        assert word not in left.log, word
        assert word.encode() not in whole, word
    assert SUMMARISED not in left.log
    assert '"request"' in left.log
    assert {name.removeprefix("transom.db") for name in left.files} <= {"", "-wal", "-shm"}
    assert set(left.modes.values()) == {0o600}
