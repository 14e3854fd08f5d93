"""What requests come to: the server of the newest configuration, and earlier ones until their last request ends.

Rules. A request begins and ends with the configuration that held when it came. A new one holds all at once or not at
all: nothing of it is used before all of it could be opened. What does not depend on it goes on: the metrics, the lists
of conversations and requests, what is remembered, and every upstream that is reached as before. What no request uses
any more is closed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from proxy.config import Config
from proxy.config.values import DEFAULT
from proxy.context.reader import Reader
from proxy.edge import backends
from proxy.edge.backends import Backend, Spec
from proxy.edge.captures import MOST_BYTES, Captures
from proxy.edge.downstream import Downstream
from proxy.edge.gate import lends_key
from proxy.edge.ledger import Ledger
from proxy.edge.performer import Surroundings
from proxy.edge.readiness import Readiness
from proxy.edge.routes import Site
from proxy.edge.server import Parts, Server
from proxy.edge.watch import Watch

if TYPE_CHECKING:
    from proxy.edge.tracing import Tracing

ADVICE: Final = "set auth.tokens, or listen on 127.0.0.1"


class _Common:
    """What the servers of all configurations share. Made on the loop that it serves."""

    def __init__(self, parts: Parts, tracing: "Tracing | None") -> None:
        self._parts = parts
        self._tracing = tracing
        self.clock = asyncio.get_running_loop().time
        self.watch = Watch(self.clock, parts.store_answers, worker=parts.worker)
        self._ledger = Ledger(self.clock)
        self._readiness = Readiness(parts.store_answers, None, self.clock)
        self._captures = Captures(most_bytes=0)

    def turn_to(self, config: Config, default: Backend) -> None:
        """Go by what a configuration says of these; `default` is its default upstream."""
        self._readiness.ask(default.questions if config.ready_needs_upstream else None)
        self._captures.bound(MOST_BYTES if config.capture else 0)
        self.watch.captures = config.capture

    def site(self, config: Config, name: str, backend: Backend) -> Site:
        """An upstream as a server is given it."""
        made_of = backend.spec
        return Site(name, made_of.options, made_of.side_calls, self._around(config, backend))

    def _around(self, config: Config, backend: Backend) -> Surroundings:
        parts = self._parts
        return Surroundings(
            upstream=backend.upstream,
            base=backend.base,
            key=backend.key,
            ends=parts.ends,
            summaries=backend.summaries,
            tokenizer=parts.tokenizer,
            memories=backend.memories,
            discovery=backend.discovery,
            counts=backend.counts,
            ledger=self._ledger,
            metrics=parts.metrics,
            readiness=self._readiness,
            watch=self.watch,
            captures=self._captures,
            clock=self.clock,
            stopwatch=time.perf_counter,
            deadline=config.manage_deadline,
            afterwards=parts.afterwards,
            tracing=self._tracing,
        )


@asynccontextmanager
async def sites(config: Config, parts: Parts) -> AsyncIterator[Mapping[str, Site]]:
    """The upstreams by name, none of which is called before somebody does."""
    async with AsyncExitStack() as stack:
        common, found = _Common(parts, None), {}
        for name, made_of in backends.specs(config).items():
            backend = await backends.opened(made_of, parts)
            stack.push_async_callback(backend.close)
            found[name] = common.site(config, name, backend)
        yield found


class Front:
    """Made on the loop that it serves. `turn_to` comes first; `close` ends what is still open."""

    def __init__(self, parts: Parts, tracing: "Tracing | None" = None) -> None:
        self._parts = parts
        self._common = _Common(parts, tracing)
        self._tracing = tracing
        self._reader = Reader()
        self._in_use: dict[Server, Collection[Backend]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._newest: Server

    async def turn_to(self, config: Config) -> None:
        """Answer from now on as this configuration says. Raises OSError where it cannot be opened."""
        opened = await self._opened(backends.specs(config))
        sites = {name: self._common.site(config, name, backend) for name, backend in opened.items()}
        server = Server(config, sites, self._parts.log, self._reader)
        self._common.turn_to(config, opened[DEFAULT])
        earlier = next(reversed(self._in_use), None)
        self._in_use[server] = frozenset(opened.values())
        self._newest = server
        self._warn(config)
        if earlier is not None:
            task = asyncio.create_task(self._retire(earlier))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def handle(self, request: web.BaseRequest) -> Awaitable[Downstream]:
        """Answer one request."""
        return self._newest.handle(request)

    def handle_own(self, request: web.BaseRequest) -> Awaitable[Downstream]:
        """The same at the address that is for our own endpoints."""
        return self._newest.handle_own(request)

    def stop(self) -> None:
        """Let each answer from now on be the last one of its connection."""
        self.end_following()
        for server in self._in_use:
            server.stop()

    async def drain(self, grace: float) -> None:
        """Let running requests end, for so many seconds; then end them."""
        await asyncio.gather(*(server.drain(grace) for server in self._in_use))

    def end_following(self) -> None:
        """End what pages follow, which would never end by itself."""
        self._common.watch.close()

    async def close(self) -> None:
        """End all that is open."""
        self._parts.afterwards.settle()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        left = {backend for used in self._in_use.values() for backend in used}
        self._in_use.clear()
        for backend in left:
            await backend.close()

    async def _opened(self, wanted: Mapping[str, Spec]) -> dict[str, Backend]:
        """A backend for each name, out of those that are in use where one is made of the same."""
        known = {backend.spec: backend for used in self._in_use.values() for backend in used}
        async with AsyncExitStack() as stack:
            for made_of in wanted.values():
                if made_of not in known:
                    known[made_of] = await backends.opened(made_of, self._parts, self._tracing)
                    stack.push_async_callback(known[made_of].close)
            stack.pop_all()  # all of it could be opened, and is kept
        return {name: known[made_of] for name, made_of in wanted.items()}

    async def _retire(self, server: Server) -> None:
        """Wait for its last request, and close what was for it alone."""
        await server.finished()
        used = self._in_use.pop(server)
        still = {backend for others in self._in_use.values() for backend in others}
        for backend in used:
            if backend not in still:
                await backend.close()

    def _warn(self, config: Config) -> None:
        log = self._parts.log
        servers = [(name if name != DEFAULT else "upstream", each) for name, each in config.servers.items()]
        secured = [(name, each.base_url, each.tls) for name, each in servers]
        for name, url, options in [
            *secured,
            ("side_calls", config.side_calls.base_url, config.side_calls.tls),
        ]:
            if not options.verify:
                log.warning("certificate_is_not_verified", server=name, url=url)
        if lends_key(config):
            log.warning("key_is_open_to_the_network", address=str(config.listen), advice=ADVICE)
