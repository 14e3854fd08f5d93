"""Upstreams as they are opened: their connections, and what is known of them.

Rules. A backend is made of options and of the files that they name, and of nothing else: two that are made of the same
are one, so that it outlives a change of the configuration that does not concern it, with all that it knows. Whatever
is opened here is closed by its `close`, in reverse order.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from proxy.config import Config, SideCalls, tls
from proxy.config import Discovery as DiscoveryOptions
from proxy.config import Upstream as Options
from proxy.config.values import Tls, is_on_this_machine
from proxy.edge.connections import Ends, Timeouts, Way
from proxy.edge.counts import Counts
from proxy.edge.discovery import Discovery
from proxy.edge.headers import Base, RawHeaders
from proxy.edge.performer import Remembers
from proxy.edge.questions import Questions
from proxy.edge.server import Parts
from proxy.edge.sidecalls import SideCaller
from proxy.edge.spending import Spending
from proxy.edge.summaries import Summaries, Waits
from proxy.edge.upstream import Upstream

if TYPE_CHECKING:
    from proxy.edge.tracing import Tracing

Mark: TypeAlias = Callable[[RawHeaders], RawHeaders]

Stamp: TypeAlias = tuple[int, int, int]
"""What tells that a file is another one or was written again."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a backend is made of."""

    options: Options
    side_calls: SideCalls
    discovery: DiscoveryOptions
    stamps: tuple[Stamp | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """One upstream, opened."""

    spec: Spec
    upstream: Upstream
    base: Base
    key: str
    questions: Questions
    summaries: Summaries
    discovery: Discovery
    counts: Counts
    memories: Remembers
    close: Callable[[], Awaitable[None]]


def specs(config: Config) -> dict[str, Spec]:
    """What the backends of a configuration are made of, by name."""
    return {name: _spec(config, name, options) for name, options in config.servers.items()}


def _spec(config: Config, name: str, options: Options) -> Spec:
    side_calls = config.side_calls_of(name)
    files = (*options.tls.files, *side_calls.tls.files)
    return Spec(options, side_calls, config.discovery, tuple(map(stamp, files)))


def stamp(path: str) -> Stamp | None:
    """What tells whether a file has changed; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


async def opened(made_of: Spec, parts: Parts, tracing: "Tracing | None" = None) -> Backend:
    """Open it. Raises OSError for files of certificates that cannot be used."""
    options, side_calls = made_of.options, made_of.side_calls
    base, key = Base.of(options.base_url), options.api_key.reveal() if options.api_key else ""
    clock = asyncio.get_running_loop().time
    memories = parts.memories(options.base_url)
    async with AsyncExitStack() as stack:
        mark = tracing.marked if tracing else None
        main = _connections(options, options.base_url, options.tls, parts.ends, mark)
        upstream = await stack.enter_async_context(main)
        aside = upstream
        if side_calls.base_url is not None:
            other = _connections(
                options, side_calls.base_url, side_calls.tls, parts.ends
            )  # it hears of no client's trace
            aside = await stack.enter_async_context(other)
        caller = SideCaller(aside, side_calls, base, key=key)
        summaries = Summaries(
            caller if tracing is None else tracing.side_calls(caller),
            memories.keep,
            parts.log,
            note=parts.metrics.note_side_call,
            spending=Spending(side_calls.per_hour, clock),
            prepares=_has_room_for_side_calls(made_of),
            waits=Waits(patience=side_calls.patience(options.base_url)),
        )
        stack.push_async_callback(summaries.close)
        questions = Questions(upstream, base, key)
        discovery = Discovery(questions, made_of.discovery, clock)
        stack.push_async_callback(discovery.close)
        return Backend(
            spec=made_of,
            upstream=upstream,
            base=base,
            key=key,
            questions=questions,
            summaries=summaries,
            discovery=discovery,
            counts=Counts(questions, clock),
            memories=memories,
            close=stack.pop_all().aclose,
        )


def _connections(
    options: Options, base_url: str, secured: Tls, ends: Ends, mark: Mark | None = None
) -> Upstream:
    timeouts = Timeouts(options.connect_timeout, options.idle_timeout)
    return Upstream(timeouts, _way(Base.of(base_url), secured, trust_env=options.trust_env), mark, ends)


def _way(base: Base, options: Tls, *, trust_env: bool) -> Way:
    if base.socket:
        return Way(path=base.socket)
    secured = tls.context(options)
    return Way.of_environment(base.origin, secured) if trust_env else Way(tls=secured)


_REMOTE_SLOTS: Final = 2
"""A server elsewhere is taken to work on more than one request at a time."""


def _has_room_for_side_calls(made_of: Spec) -> bool:
    """Whether a side call in the background delays nobody.

    On a server with one slot it would keep the client's next request waiting and throw out its prompt cache, and
    nearly every server on the user's own machine has one slot.
    """
    if made_of.side_calls.base_url is not None:
        return True
    options = made_of.options
    return (options.slots or (1 if is_on_this_machine(options.base_url) else _REMOTE_SLOTS)) > 1
