"""The real model server for measuring programs, and a relay before it that notes what each chat completion cost.

Rules. The relay passes requests and answers on as they are, streams as they come, and reads a copy of what went by: so
it sees every call that the server gets, the proxy's own ones too. What a call cost is what the server itself says of it
(`timings`, `usage`) when its answer ends; of a call that was given up before, only that is known.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.integration.llama_server import MODEL_WHEEL, SERVER_WHEEL, LlamaServer, running

CHAT: Final = "/chat/completions"

_LOCK: Final = Path(__file__).resolve().parents[1] / "requirements.lock"
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "host"})

# --- the server -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def model_server(*, window: int, slots: int = 1) -> Iterator[LlamaServer]:
    """A fresh llama.cpp server with nothing in its cache, which is installed where it is missing.

    `window`: tokens of each slot, a multiple of 256.
    """
    _install(SERVER_WHEEL)
    _install(
        MODEL_WHEEL, "--no-deps"
    )  # it asks for what would have to be compiled, and nothing here runs that
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), window=window, slots=slots) as server:
        yield server


def _install(wheel: str, *words: str) -> None:
    try:
        metadata.version(wheel)
    except metadata.PackageNotFoundError:
        print(f"Installing {wheel} ...", flush=True)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", _LOCK)
        subprocess.run((*pip, "--only-binary", wheel, *words, wheel), check=True)


async def prompt_tokens_total(url: str) -> int:
    """What the server at this URL says that it has read of all prompts since it began (`/metrics`)."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(
        int(float(line.split()[1])) for line in lines if line.startswith("llamacpp:prompt_tokens_total")
    )


# --- what a call costs ------------------------------------------------------------------------------------


LEFT: Final = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One chat completion. `body` is what was asked, `id` that of the answer, `status` LEFT where it was given up."""

    body: bytes
    status: int
    seconds: float
    id: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """Tokens of the prompt, however they were come by."""
        return self.processed + self.cached

    @property
    def processed(self) -> int:
        """Those of them that the model had to read."""
        return int(self.timings.get("prompt_n", 0))

    @property
    def cached(self) -> int:
        """Those of them that the server still had."""
        return int(self.timings.get("cache_n", 0))

    @property
    def generated(self) -> int:
        """Tokens that the model wrote."""
        return int(self.timings.get("predicted_n", 0))


@dataclass(frozen=True, slots=True)
class Cost:
    """The sums of some calls."""

    calls: int = 0
    asked: int = 0
    processed: int = 0
    cached: int = 0
    generated: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, calls: Iterable[Call]) -> "Cost":
        """What these cost together."""
        rows = [(1, each.asked, each.processed, each.cached, each.generated, each.seconds) for each in calls]
        return cls(*map(sum, zip(*rows, strict=True)))


def call_of(body: bytes, status: int, answer: bytes, seconds: float) -> Call:
    """What an answer tells of its call, be it whole or a stream."""
    events = [line[6:] for line in answer.splitlines() if line.startswith(b"data: {")]
    said: dict[str, Any] = {}
    for event in events or [answer]:
        with contextlib.suppress(ValueError):
            said |= {name: value for name, value in json.loads(event).items() if value is not None}
    usage, timings = said.get("usage", {}), said.get("timings", {})
    return Call(body, status, seconds, said.get("id", ""), usage, timings)


# --- the relay --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Relay:
    """Where it listens, and the calls that have gone through it, in the order of their ends."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        """What the proxy, or a client, is configured with."""
        return f"{self.url}/v1"

    def beside(self, ids: Iterable[str]) -> list[Call]:
        """The calls whose answers have none of these ids: what a client with these answers knows nothing of."""
        known = frozenset(ids)
        return [call for call in self.calls if call.status == 200 and call.id not in known]

    @property
    def refusals(self) -> int:
        """How many calls were answered with an error."""
        return sum(call.status >= 400 for call in self.calls)

    @property
    def left(self) -> int:
        """How many calls were given up before their answer had ended."""
        return sum(call.status == LEFT for call in self.calls)


@contextlib.asynccontextmanager
async def counting_relay(upstream: str) -> AsyncIterator[Relay]:
    """A relay on a free port of the loopback interface before the server at this URL."""
    relay = Relay()
    timeout = aiohttp.ClientTimeout(total=None)
    # llama.cpp's server closes a kept connection after five seconds or a hundred requests, with no word of it.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        upstream, connector=connector, auto_decompress=False, timeout=timeout
    ) as client:

        async def handle(request: web.Request) -> web.StreamResponse:
            return await _relayed(request, client, relay)

        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            relay.url = "http://{}:{}".format(*runner.addresses[0][:2])
            yield relay
        finally:
            await runner.cleanup()


async def _relayed(request: web.Request, client: aiohttp.ClientSession, relay: Relay) -> web.StreamResponse:
    body = await request.read()
    began = time.perf_counter()
    status, kept = LEFT, bytearray()
    try:
        async with client.request(
            request.method, request.rel_url, headers=_end_to_end(request.headers), data=body or None
        ) as theirs:
            ours = web.StreamResponse(status=theirs.status, headers=_end_to_end(theirs.headers))
            await ours.prepare(request)
            async for piece in theirs.content.iter_any():
                kept += piece
                await ours.write(piece)
            status = theirs.status
            await ours.write_eof()
    finally:
        if request.path.endswith(CHAT):
            relay.calls.append(call_of(body, status, bytes(kept), time.perf_counter() - began))
    return ours


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
