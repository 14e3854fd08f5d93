"""A configuration that changes while the proxy runs: what holds for whom, and that nothing is lost meanwhile.

Rules. The configuration is a real file, read as at the start. What the proxy has taken over is heard from its log.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Flags, load
from proxy.edge import logs
from proxy.edge.metrics import Metrics
from proxy.edge.reloads import Reloads
from proxy.edge.server import Parts
from proxy.edge.service import running
from tests.edge.proxied import Lettered, memories
from tests.edge.test_managed import CHAT, WHOLE, asks
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, json_answer

ROOT = Path(__file__).resolve().parents[2]
OFTEN = 0.01
NEVER = 3600.0


class Page:
    """A log that tells when something is written; `events` are all of a name so far."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._written = asyncio.Event()

    def write(self, text: str) -> int:
        self._lines += text.splitlines()
        self._written.set()
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        return False

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self._lines) if event["event"] == name]

    async def until(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        """The events of this name, once there are so many."""
        async with asyncio.timeout(20):
            while len(found := self.events(name)) < times:
                self._written.clear()
                await self._written.wait()
        return found


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy with its file."""

    url: str
    page: Page
    path: Path
    reloads: Reloads

    def write(self, text: str) -> None:
        """Put another file in the place of the one that is there, as editors and orchestrators do."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self.path)


def file(base_url: str, *, window: int = 32_000, more: str = "") -> str:
    return f"""\
upstream: {{base_url: '{base_url}', slots: 4}}
listen: 127.0.0.1:0
log: {{level: debug, format: json}}
discovery: {{enabled: false}}
models: [{{match: "*", window: {window}}}]
{more}"""


@asynccontextmanager
async def reloading(folder: Path, text: str, *, interval: float = OFTEN) -> AsyncIterator[Running]:
    path = folder / "transom.yaml"
    path.write_text(text, encoding="utf-8")
    reloads = Reloads(path, partial(load, path, Flags(), {}), interval=interval)
    config = reloads.load()
    page, remembers = Page(), memories()
    log = logs.build(config.log, page)  # type: ignore[arg-type]
    parts = Parts(Lettered(), remembers.of, log, Metrics(), lambda: True)
    async with running(config, parts, grace=5.0, reloads=reloads) as url:
        yield Running(url, page, path, reloads)
    await remembers.close()


async def window_of(url: str) -> str | None:
    async with RawClient(url) as client:
        return (await client.post(CHAT, asks())).header("x-context-window")


async def status_for(url: str, token: str) -> int:
    async with RawClient(url) as client:
        return (await client.post(CHAT, asks(), (("Authorization", f"Bearer {token}"),))).status


async def test_a_changed_window_holds_for_the_next_request_and_what_was_served_is_still_listed(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        reloading(tmp_path, file(upstream.base_url)) as proxy,
    ):
        assert await window_of(proxy.url) == "32000"
        proxy.write(file(upstream.base_url, window=16_000))
        (told,) = await proxy.page.until("configuration_reloaded")
        assert told["changed"] == ["models"]
        assert await window_of(proxy.url) == "16000"
        async with RawClient(proxy.url) as client:
            listed = (await client.get("/-/state")).json()["conversations"]
            counted = (await client.get("/-/metrics")).body.decode()
        connections = upstream.connections
    assert [entry["requests"] for entry in listed] == [2]
    assert 'transom_requests_total{mode="manage",outcome="2xx"} 2' in counted
    assert connections == 1, "an upstream that is reached as before keeps its connections"


async def test_a_bad_file_is_refused_with_its_mistakes_and_what_held_goes_on(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        reloading(tmp_path, file(upstream.base_url)) as proxy,
    ):
        proxy.write(
            file(upstream.base_url, window=-1, more="max_bodi: 1KiB\nauth: {tokens: ['sword fish']}\n")
        )
        refused = await proxy.page.until("configuration_refused", 3)
        assert await window_of(proxy.url) == "32000"
        proxy.write("upstream: [")
        await proxy.page.until("configuration_refused", 4)
        proxy.path.unlink()
        await proxy.page.until("configuration_refused", 5)
        assert await window_of(proxy.url) == "32000"
        proxy.write(file(upstream.base_url, window=8_000))
        await proxy.page.until("configuration_reloaded")
        assert await window_of(proxy.url) == "8000"
    told = [each["mistake"].removeprefix(str(proxy.path)) for each in refused]
    assert told[0].startswith(":5: models[0].window: '-1'")
    assert told[1].startswith(":6: max_bodi: unknown key; did you mean max_body?")
    assert told[2].startswith(":7: auth.tokens[0]: the value holds")


async def test_a_request_ends_with_the_configuration_that_it_began_with(tmp_path: Path) -> None:
    gate = asyncio.Event()
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", gate, b"data: [DONE]\n\n"), Framing.CHUNKED)
    async with (
        ScriptedUpstream([stream]) as before,
        ScriptedUpstream([json_answer(WHOLE)]) as after,
        reloading(tmp_path, file(before.base_url)) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, asks(stream=True))
        await client.read_head()
        assert await client.read_chunk() == b"data: 1\n\n"
        proxy.write(file(after.base_url, window=16_000))
        await proxy.page.until("configuration_reloaded")
        assert await window_of(proxy.url) == "16000"
        gate.set()
        assert await client.read_chunk() == b"data: [DONE]\n\n"
        assert (await client.read_chunk(), client.ended) == (None, True)
        await before.drained()
    assert (before.request_count, after.request_count) == (1, 1)


async def test_reloads_under_load_lose_no_request(tmp_path: Path) -> None:
    async def visit(proxy: Running, done: asyncio.Event) -> list[int]:
        statuses = []
        async with RawClient(proxy.url) as client:
            while not done.is_set():
                response = await client.post(CHAT, asks())
                statuses.append(response.status if response.json() == WHOLE else 0)
        return statuses

    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE), keep=0) as one,
        ScriptedUpstream(otherwise=json_answer(WHOLE), keep=0) as other,
        reloading(tmp_path, file(one.base_url)) as proxy,
    ):
        done = asyncio.Event()
        visits = [asyncio.create_task(visit(proxy, done)) for _ in range(10)]
        for time in range(1, 13):
            upstream = (one, other)[time % 2]
            proxy.write(file(upstream.base_url, window=10_000 + time))
            await proxy.page.until("configuration_reloaded", time)
        done.set()
        statuses = [status for each in await asyncio.gather(*visits) for status in each]
    assert len(statuses) > 100
    assert set(statuses) == {200}
    assert one.request_count + other.request_count == len(statuses)
    assert min(one.request_count, other.request_count) > 0


async def test_what_needs_a_restart_is_named_and_all_else_is_taken_over(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        reloading(tmp_path, file(upstream.base_url)) as proxy,
    ):
        changed = file(upstream.base_url, window=16_000, more="store: sqlite:///other.db\n")
        proxy.write(changed.replace("127.0.0.1:0", "127.0.0.1:1"))
        (told,) = await proxy.page.until("restart_needed")
        assert told["options"] == ["listen", "store"]
        assert await window_of(proxy.url) == "16000"


async def test_what_is_known_of_windows_goes_on_where_the_upstream_is_reached_as_before(
    tmp_path: Path,
) -> None:
    listed = json_answer({"data": [{"id": "m", "max_model_len": 24_000}]})

    def answer(request: peers.Request) -> Answer:
        return listed if request.path == "/v1/models" else json_answer(WHOLE)

    def asked(upstream: ScriptedUpstream) -> int:
        return sum(request.path == "/v1/models" for request in upstream.requests)

    async with ScriptedUpstream(otherwise=answer) as one, ScriptedUpstream(otherwise=answer) as other:
        text = file(one.base_url, window=0).replace("enabled: false", "wait: 20s")
        async with reloading(tmp_path, text) as proxy:
            assert await window_of(proxy.url) == "24000"
            proxy.write(f"{text}max_body: 1MiB\n")
            await proxy.page.until("configuration_reloaded")
            assert await window_of(proxy.url) == "24000"
            assert asked(one) == 1
            proxy.write(text.replace(one.base_url, other.base_url))
            await proxy.page.until("configuration_reloaded", 2)
            assert await window_of(proxy.url) == "24000"
    assert (asked(one), asked(other)) == (1, 1)


async def test_a_changed_file_of_tokens_is_taken_over(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("first\n", encoding="utf-8")
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        reloading(tmp_path, file(upstream.base_url, more=f"auth: {{tokens_file: {tokens}}}\n")) as proxy,
    ):
        assert await status_for(proxy.url, "second") == 401
        tokens.write_text("second\n", encoding="utf-8")
        (told,) = await proxy.page.until("configuration_reloaded")
        assert told["changed"] == ["auth.tokens_file"]
        assert await status_for(proxy.url, "second") == 200


async def test_who_asks_for_it_need_not_wait_for_the_next_look(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(otherwise=json_answer(WHOLE)) as upstream,
        reloading(tmp_path, file(upstream.base_url), interval=NEVER) as proxy,
    ):
        proxy.write(file(upstream.base_url, window=16_000))
        proxy.reloads.ask()
        await proxy.page.until("configuration_reloaded")
        assert await window_of(proxy.url) == "16000"
        proxy.reloads.ask()
        assert (await proxy.page.until("configuration_reloaded", 2))[1]["changed"] == []


@pytest.mark.slow
async def test_sighup_reloads_and_a_change_is_seen_without_it(tmp_path: Path) -> None:
    path = tmp_path / "transom.yaml"
    path.write_text(file("http://127.0.0.1:9/v1"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "--config", str(path), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None

    async def told(name: str) -> dict[str, Any]:
        while line := await process.stderr.readline():  # type: ignore[union-attr]
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"the log ended without {name}")

    try:
        async with asyncio.timeout(60):
            await told("listening")
            process.send_signal(signal.SIGHUP)
            assert (await told("configuration_reloaded"))["changed"] == []
            path.write_text(file("http://127.0.0.1:9/v1", more="max_body: 1MiB\n"), encoding="utf-8")
            assert (await told("configuration_reloaded"))["changed"] == ["max_body"]
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
