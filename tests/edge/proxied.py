"""A proxy under test: the real one on a free port, with a log that can be read and parts that can be exchanged.

Rules. Nothing of the proxy is replaced but what a composition root would choose as well: tokenizer, memories, options.
The log is at its most talkative, so that a secret has every chance to show up in it.
"""

import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.config import Address, Config, Discovery, LogFormat, LogLevel, LogOptions, ModelRule, SocketFile
from proxy.config import Upstream as UpstreamOptions
from proxy.context import tokens
from proxy.context.conversation import Message
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import Size
from proxy.edge import logs
from proxy.edge.afterwards import Afterwards
from proxy.edge.memories import Memories
from proxy.edge.metrics import Metrics
from proxy.edge.performer import Measures, Remembers
from proxy.edge.server import Parts
from proxy.edge.service import running
from proxy.stores.memory import MemoryStore

FREE_PORT = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Watched:
    """What a composition root hands over beside the parts that serve: metrics, whether the store answers, the log."""

    metrics: Metrics = field(default_factory=Metrics)
    store_answers: Callable[[], bool] = lambda: True
    written: io.StringIO = field(default_factory=io.StringIO)


class Lettered:
    """Counts a token for every four characters."""

    def count(self, text: str, encoding: str) -> int:
        return -(-len(text) // 4)

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        def count(text: str) -> int:
            return self.count(text, "")

        sizes = tuple(tokens.message_size(message, count, model) for message in messages)
        return sizes, tokens.extras_size(extras, count, model)


@dataclass(frozen=True, slots=True)
class Proxied:
    """The running proxy: where it listens, and what it has logged."""

    url: str
    written: io.StringIO
    afterwards: Afterwards

    @property
    def log(self) -> str:
        self.afterwards.settle()
        return self.written.getvalue()

    def events(self, name: str = "request") -> list[dict[str, Any]]:
        """All events of this name so far."""
        lines = [json.loads(line) for line in self.log.splitlines()]
        return [line for line in lines if line["event"] == name]


def memories(upstream: str = "") -> Memories:
    """Empty memories, with no clock that runs."""
    return Memories(MemoryStore(lambda: 0.0, max_entries=1000, max_age=1e9), upstream)


@asynccontextmanager
async def proxied(
    base_url: str,
    *,
    policy: ModelPolicy | None = None,
    options: UpstreamOptions | None = None,
    parts: tuple[Measures, Remembers] | None = None,
    grace: float = 5.0,
    listen: Address | SocketFile = FREE_PORT,
    watched: Watched | None = None,
    **fields: Any,
) -> AsyncIterator[Proxied]:
    """The proxy in front of this base URL; `fields` are those of its `Config` that are not at their default.

    Windows are not asked of the upstream unless a test says so: a script is for the requests that the test makes.
    """
    fields.setdefault("discovery", Discovery(enabled=False))
    fields.setdefault("models", (ModelRule("*", policy or ModelPolicy()),))
    config = Config(
        upstream=replace(options or UpstreamOptions(base_url, slots=4), base_url=base_url),
        listen=listen,
        log=LogOptions(LogLevel.DEBUG, LogFormat.JSON),
        **fields,
    )
    tokenizer, remembers = parts or (Lettered(), memories())
    watched = watched or Watched()
    log = logs.build(config.log, watched.written)
    whole = Parts(tokenizer, lambda upstream: remembers, log, watched.metrics, watched.store_answers)
    try:
        async with running(config, whole, grace=grace) as url:
            yield Proxied(url, watched.written, whole.afterwards)
    finally:
        if isinstance(remembers, Memories):
            await remembers.close()
