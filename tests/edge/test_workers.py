"""Several processes at one address: real ones, started, killed and ended as operators do."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Flags, describe, load
from proxy.edge.workers import how_many
from tests.conftest import ROOT
from tests.edge import exposition
from tests.edge.test_lifetime import until_refused
from tests.peers import upstream as peers
from tests.peers.client import Disconnected, RawClient
from tests.peers.upstream import Answer, Framing, ScriptedUpstream, json_answer

CHAT = "/v1/chat/completions"
PATIENCE = 60.0
SAID = peers.completion(peers.text_message("Hello."), usage=None)
ANSWER = json_answer(SAID)


@dataclass
class Family:
    """The parent's process, the URL, and the log as far as it was read."""

    process: asyncio.subprocess.Process
    url: str = ""
    log: list[dict[str, Any]] = field(default_factory=list)

    async def until(self, event: str, times: int) -> list[dict[str, Any]]:
        """Reads the log until this event has come so many times in all."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while len(found := [each for each in self.log if each["event"] == event]) < times:
                line = await self.process.stderr.readline()
                assert line, "the log has ended"
                self.log.append(json.loads(line))
        return found

    async def ended(self) -> int:
        """Waits for the parent's end; its exit status."""
        async with asyncio.timeout(PATIENCE):
            _, written = await self.process.communicate()
            self.log += [json.loads(line) for line in written.splitlines()]
        return self.process.returncode or 0


def configuration(folder: Path, base_url: str, workers: int, listen: str = "127.0.0.1:0") -> Path:
    path = folder / f"{workers}.yaml"
    path.write_text(
        f"""
listen: {listen}
upstream: {{base_url: {base_url}}}
store: sqlite:///{folder}/{workers}.db
workers: {workers}
discovery: {{enabled: false}}
models: [{{match: "*", window: 3000, reserve_output: 100, strategies: [elide, drop]}}]
""",
        encoding="utf-8",
    )
    return path


@asynccontextmanager
async def family(folder: Path, base_url: str, workers: int = 2, **options: str) -> AsyncIterator[Family]:
    """So many workers and their parent, listening; killed at the end if they are still there."""
    path = configuration(folder, base_url, workers, **options)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(path)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found = Family(process)
        found.url = (await found.until("listening", workers))[0]["url"]
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


def request(number: int) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}


@asynccontextmanager
async def client_of(url: str, worker: int) -> AsyncIterator[RawClient]:
    """A connection that this worker has accepted."""
    while True:
        async with RawClient(url) as client:
            if (await client.get("/-/state")).json()["worker"] == worker:
                yield client
                return


async def scraped(url: str) -> exposition.Scrape:
    async with RawClient(url) as client:
        return exposition.read((await client.get("/-/metrics")).body.decode())


async def counted(url: str, most: float) -> float:
    """Requests that are counted, asked for until they are as many; the others know a moment later."""
    async with asyncio.timeout(PATIENCE):
        while (found := (await scraped(url)).value("transom_requests_total")) < most:
            pass
    return found


async def test_all_workers_serve_and_whichever_is_asked_tells_the_numbers_of_all(tmp_path: Path) -> None:
    async with ScriptedUpstream(otherwise=ANSWER) as upstream, family(tmp_path, upstream.base_url) as workers:
        for number in range(40):
            async with RawClient(workers.url) as client:
                assert (await client.post(CHAT, request(number))).json() == SAID
        events = await workers.until("request", 40)
        assert {event["worker"] for event in events} == {1, 2}
        for worker in (1, 2):
            async with client_of(workers.url, worker) as client:
                assert (await client.get("/-/readyz")).status == 200
                assert await counted(workers.url, 40) == 40
        scrape = await scraped(workers.url)
        assert scrape.value("transom_request_duration_seconds_count", mode="manage") == 40
        assert scrape.value("transom_build_info") == 1
        assert scrape.value("transom_requests_in_flight") == 0
        assert len(upstream.requests) == 40


def conversation(length: int) -> Sequence[dict[str, object]]:
    messages: list[dict[str, object]] = [{"role": "system", "content": "Be brief."}]
    for number in range(length):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"line {number} of many\n" * 40},
            {"role": "assistant", "content": f"Answer {number}"},
        ]
    return [*messages, {"role": "user", "content": "And now?"}]


async def test_workers_send_the_very_bytes_that_one_process_sends(tmp_path: Path) -> None:
    sent: dict[int, list[bytes]] = {}
    for workers in (1, 3):
        async with (
            ScriptedUpstream(otherwise=ANSWER) as upstream,
            family(tmp_path, upstream.base_url, workers) as running,
        ):
            for length in range(1, 31):
                async with RawClient(running.url) as client:
                    body = {"model": "m", "messages": conversation(length)}
                    assert (await client.post(CHAT, body)).status == 200
            events = await running.until("request", 30)
            assert len({event.get("worker") for event in events}) == workers
            assert sum("elide" in event["actions"] for event in events) > 10
            sent[workers] = [each.body for each in upstream.requests]
    assert sent[1] == sent[3]


async def test_a_worker_that_is_killed_is_replaced_and_nothing_of_the_others_is_lost(tmp_path: Path) -> None:
    gate = asyncio.Event()
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", gate, b"data: [DONE]\n\n"), Framing.CHUNKED)
    async with (
        ScriptedUpstream([stream], otherwise=ANSWER) as upstream,
        family(tmp_path, upstream.base_url) as workers,
        client_of(workers.url, 2) as client,
    ):
        first, second = children(workers.process.pid)
        await client.start(CHAT, {**request(0), "stream": True})
        assert (await client.read_head()).status == 200
        os.kill(first, signal.SIGKILL)
        # A connection that waits at the dead one's socket is accepted by the next.
        answers = await asyncio.gather(*(answered(workers.url, number) for number in range(1, 21)))
        assert answers == [200] * 20
        gate.set()
        assert b"[DONE]" in await client.read_bytes(1000)
        assert client.ended
        (ended,) = await workers.until("worker_ended", 1)
        assert (ended["worker"], ended["status"]) == (1, -signal.SIGKILL)
        await workers.until("listening", 3)
        assert second in children(workers.process.pid)
        assert first not in children(workers.process.pid)
        before = await counted(workers.url, 21)
        async with client_of(workers.url, 1) as other:
            assert (await other.post(CHAT, request(30))).status == 200
        assert await counted(workers.url, before + 1) == before + 1


async def test_b134_a_worker_that_is_started_again_goes_by_what_holds_and_not_by_what_held_at_the_start(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedUpstream(otherwise=ANSWER) as upstream,
        family(tmp_path, upstream.base_url) as workers,
    ):
        file = tmp_path / "2.yaml"
        file.write_text(
            f"{file.read_text()}auth: {{tokens: [a-token-of-ours-0123456789]}}\n", encoding="utf-8"
        )
        workers.process.send_signal(signal.SIGHUP)
        await workers.until("configuration_reloaded", 2)
        file.write_text(f"{file.read_text()}nonsense: 1\n", encoding="utf-8")
        workers.process.send_signal(signal.SIGHUP)
        await workers.until("configuration_refused", 2)
        os.kill(children(workers.process.pid)[0], signal.SIGKILL)
        await workers.until("listening", 3)
        answers = [await answered(workers.url, number) for number in range(20)]
        assert answers == [401] * 20
        assert not upstream.requests


async def answered(url: str, number: int) -> int:
    """The status of one request; made again where it had come to the worker that was killed."""
    while True:
        try:
            async with RawClient(url, patience=PATIENCE) as client:
                return (await client.post(CHAT, request(number))).status
        except (Disconnected, ConnectionError):
            continue


def children(pid: int | None) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children")
    if not told.exists():
        pytest.skip("this system does not tell a process's children")
    return [int(each) for each in told.read_text().split()]


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_b112_a_signal_to_the_parent_lets_streams_of_all_workers_end(
    tmp_path: Path, which: signal.Signals
) -> None:
    gate = asyncio.Event()
    stream = Answer(200, peers.SSE_HEADERS, (b"data: 1\n\n", gate, b"data: [DONE]\n\n"), Framing.CHUNKED)
    async with (
        ScriptedUpstream(otherwise=stream) as upstream,
        family(tmp_path, upstream.base_url) as workers,
        client_of(workers.url, 1) as one,
        client_of(workers.url, 2) as two,
    ):
        for client in (one, two):
            await client.start(CHAT, {**request(0), "stream": True})
            assert (await client.read_head()).status == 200
        workers.process.send_signal(which)
        await until_refused(workers.url)
        gate.set()
        for client in (one, two):
            assert b"[DONE]" in await client.read_bytes(1000)
        assert await workers.ended() == 0


async def test_workers_end_when_their_parent_is_gone(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream, family(tmp_path, upstream.base_url) as workers:
        workers.process.kill()
        await until_refused(workers.url)
        await workers.ended()  # which waits for the end of all that hold its standard error


async def test_workers_share_a_unix_socket_and_its_file_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with (
        ScriptedUpstream(otherwise=ANSWER) as upstream,
        family(tmp_path, upstream.base_url, listen=f"unix:{path}") as workers,
    ):
        statuses = await asyncio.gather(*(answered(workers.url, number) for number in range(40)))
        assert statuses == [200] * 40
        for pid in children(workers.process.pid)[:1]:
            os.kill(pid, signal.SIGTERM)
        await workers.until("worker_ended", 1)
        await workers.until("listening", 3)
        assert path.exists()
        assert await answered(workers.url, 41) == 200
        workers.process.terminate()
        assert await workers.ended() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("store", "listen", "status", "said"),
    [
        (
            "memory",
            "127.0.0.1:0",
            2,
            "workers: several processes cannot share the store memory; set store to",
        ),
        ("sqlite:///absent/x.db", "127.0.0.1:0", 2, "store: the folder"),
        ("sqlite:///x.db", "TAKEN", 1, "Cannot listen on"),
    ],
)
async def test_what_keeps_workers_from_beginning_is_told_in_one_line(
    tmp_path: Path, store: str, listen: str, status: int, said: str
) -> None:
    async with ScriptedUpstream() as upstream, ScriptedUpstream() as other:
        taken = other.url.removeprefix("http://").rstrip("/")
        path = tmp_path / "c.yaml"
        path.write_text(
            f"listen: {taken if listen == 'TAKEN' else listen}\nstore: {store}\nworkers: 2\n"
            f"upstream: {{base_url: {upstream.base_url}}}\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "--config", str(path)),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            _, written = await process.communicate()
    (line,) = written.decode().splitlines()
    assert said in line
    assert process.returncode == status


def test_auto_is_a_worker_for_each_core(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("upstream: {base_url: http://h/v1}\nstore: redis://localhost\nworkers: auto\n")
    config = load(path, Flags(), {})
    assert "workers: auto\n" in describe(config)
    assert how_many(config.workers) == len(os.sched_getaffinity(0))
    assert how_many(3) == 3
