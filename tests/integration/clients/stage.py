"""A client as a process, a proxy as a process, and behind it a strict upstream whose window the work outgrows.

Rules. The client is told the proxy's address, a key and a model, as its own users tell it, and nothing else. It has an
empty home, and an environment that names no other server. What the upstream got is judged by its own rules and count;
what the proxy did is read from its log.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.integration.clients.rooms import ROOT
from tests.integration.program import Program, program
from tests.peers.upstream import Accepted, Message, StrictUpstream, marked

KEY: Final = "key-of-the-client"
MODEL: Final = "demo-model"

PATIENCE: Final = 120.0
"""Seconds that a client may take for its task."""

_CONFIGURATION: Final = """
listen: 127.0.0.1:{listen}
upstream: {{base_url: {url}, slots: 4}}
log: {{format: json}}
models:
  - {{match: "*", window: {window}}}
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What a client wrote, and how it ended."""

    out: str
    errors: str
    status: int

    @property
    def told(self) -> Any:
        """The JSON in its last line."""
        assert self.status == 0, self.everything
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def everything(self) -> str:
        return f"exit status {self.status}\n{self.out[-4000:]}\n{self.errors[-4000:]}"


@dataclass(frozen=True, slots=True)
class Stage:
    """The proxy is up. `home` is the client's; at `url` and `base_url` it finds the proxy, or what stands before it."""

    upstream: StrictUpstream
    proxy: Program
    home: Path
    url: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The events of the chats that the proxy has served."""
        return [each for each in self.proxy.events("request") if "chat" in each["path"]]

    async def run(
        self,
        *command: str,
        folder: Path | None = None,
        added: Mapping[str, str] | None = None,
        typed: str = "",
        patience: float = PATIENCE,
    ) -> Done:
        """Run a client to its end, in this folder, else in its home, with `added` in its environment.

        `typed` is what comes from its standard input, which then ends.
        """
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONPATH": str(ROOT),
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": KEY,
            **(added or {}),
        }
        client = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder or self.home,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(patience):
                out, errors = await client.communicate(typed.encode())
        except TimeoutError:
            _end_group(client.pid)
            out, errors = await client.communicate()
            errors += f"\nIt took longer than {patience:.0f} s.".encode()
        await self.proxy.has_told()
        return Done(out.decode(errors="replace"), errors.decode(errors="replace"), client.returncode or 0)

    async def program(self, python: str, name: str, *words: str, **options: Any) -> Any:
        """What a program of `programs/` tells, run by this interpreter."""
        done = await self.run(python, "-m", f"tests.integration.clients.programs.{name}", *words, **options)
        return done.told

    async def left(self) -> None:
        """Wait until the upstream's first request has been given up."""
        async with asyncio.timeout(20):
            await self.upstream.requests[0].client_gone.wait()

    def outgrew_the_window(self, *, cuts: int = 3, is_append_only: bool = True) -> None:
        """Assert that the work outgrew the window, was cut so often at least, and that nothing was refused.

        `is_append_only`: the client itself never changes what it has sent, so that all changes are the proxy's.
        """
        seen = self.upstream.main_calls
        assert self.upstream.refusals == []
        assert all(isinstance(call.verdict, Accepted) for call in seen)
        requests = self.requests
        assert {each["status"] for each in requests} == {200}
        largest = max(each.get("original_tokens") or 0 for each in requests)
        assert largest > 1.5 * self.upstream.window, largest
        cut = [each for each in requests if each.get("removed_tokens")]
        assert len(cut) >= cuts, [each["actions"] for each in requests]
        if is_append_only:
            has_tools = bool(seen[-1].body.get("tools"))  # other requests are for a title, say
            at_work = [call.body for call in seen if bool(call.body.get("tools")) is has_tools]
            changes = sum(not _extends(one, other) for one, other in pairwise(at_work))
            assert changes <= len(cut), (changes, len(cut))


def _extends(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a prompt begins with the whole one before, so that a prompt cache goes on."""
    earlier: Sequence[Any] = one["messages"]
    return list(other["messages"][: len(earlier)]) == list(earlier)


@asynccontextmanager
async def staged(
    folder: Path,
    *,
    window: int,
    reply: Callable[[Mapping[str, Any]], Message] | None = None,
    listen: int = 0,
    at: int = 0,
    through: str = "",
    is_told: bool = True,
    **options: Any,
) -> AsyncIterator[Stage]:
    """The proxy before a strict upstream that answers by `reply`; `options` are those of `StrictUpstream`.

    `listen` and `at` are their ports, `through` is the base URL of what stands between the two, if anything does.
    `is_told`: the proxy's configuration says how large the window is.
    """
    upstream = StrictUpstream(
        window=window, reply=reply, is_side_call=marked("working memory"), models=(MODEL,), **options
    )
    upstream.port = at
    home = folder / "home"
    home.mkdir()
    config = folder / "transom.yaml"
    async with upstream:
        written = _CONFIGURATION.format(
            listen=listen, url=through or upstream.base_url, window=window if is_told else 0
        )
        config.write_text(written, encoding="utf-8")
        async with program(config) as proxy:
            yield Stage(upstream, proxy, home, proxy.url)


def _end_group(group: int) -> None:
    """End a client with all that it has started."""
    os.killpg(group, signal.SIGKILL)
