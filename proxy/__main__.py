"""The command line, and the composition root: the only place that names the concrete parts.

Rules. Every command reads the same configuration in the same way. What is wrong with it is printed as one line a
mistake on standard error, with exit status 2, and nothing is started. Standard output carries what was asked for and
nothing else; the log goes to standard error.
"""

import argparse
import asyncio
import contextlib
import difflib
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from proxy import __version__, stores
from proxy.cli import compact, measure
from proxy.cli.requests import requests_in
from proxy.config import Config, Flags, LogFormat, LogLevel, LogOptions, describe, load, schema
from proxy.config.reference import reference
from proxy.edge import logs, service, workers
from proxy.edge.front import sites
from proxy.edge.memories import Memories
from proxy.edge.metrics import Metrics
from proxy.edge.reloads import Reloads
from proxy.edge.server import Parts
from proxy.edge.tokenizer import Encoder, Tokenizer, usual_encoders
from proxy.errors import ConfigError, NoChatRequest, TransomError
from proxy.stores import Bounds, open_store
from proxy.wire import dialects

try:
    import uvloop
except ImportError:  # not made for every platform; the standard loop serves as well, only slower
    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_event_loop = uvloop.new_event_loop

COMMANDS: Final = ("serve", "check", "schema", "measure", "compact", "demo")
USAGE_ERROR: Final = 2
NOBODY: Final = "http://127.0.0.1/v1"
"""The upstream of a measurement, which calls none."""


_NO_ENCODERS: Final[Mapping[str, Encoder]] = MappingProxyType({})

QUIET: Final = LogOptions(LogLevel.WARNING, LogFormat.AUTO)
"""For commands whose output is what was asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(_with_default_command(words))
        command: Callable[[argparse.Namespace], int] = options.run
        return command(options)
    except ConfigError as invalid:
        print(invalid, file=sys.stderr)
        return USAGE_ERROR
    except TransomError as error:
        print(error.message, file=sys.stderr)
        return 1


def _with_default_command(words: list[str]) -> list[str]:
    """`serve` is meant where no command is named. Raises `ConfigError` for a word that is none."""
    first = words[0] if words else ""
    if first in COMMANDS or first in ("-h", "--help", "--version"):
        return words
    if not first or first.startswith("-"):
        return ["serve", *words]
    near = difflib.get_close_matches(first, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}."
    raise ConfigError(f"transom: there is no command {first}; {hint}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transom",
        description="Keeps every chat inside its model's context window. Default command: serve.",
    )
    parser.add_argument("--version", action="version", version=f"transom {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the proxy")
    _add_configuration(serve)
    serve.set_defaults(run=_serve)
    check = commands.add_parser("check", help="print the resolved configuration, or every mistake in it")
    _add_configuration(check)
    check.set_defaults(run=_check)
    written = commands.add_parser("schema", help="print the JSON Schema of the configuration, for editors")
    written.add_argument(
        "--reference", action="store_true", help="the page docs/configuration.md in its place"
    )
    written.set_defaults(run=_schema)
    measured = commands.add_parser("measure", help="say what a request measures and what would be done to it")
    _add_requests(measured)
    measured.set_defaults(run=_measure)
    compacted = commands.add_parser(
        "compact", help="have the older part of a request summarised, at any size"
    )
    _add_requests(compacted)
    compacted.set_defaults(run=_compact)
    shown = commands.add_parser("demo", help="show a long agent conversation through the proxy, offline")
    shown.add_argument("--window", type=int, default=6000, help="tokens of the demonstration's upstream")
    shown.add_argument("--steps", type=int, default=60, help="requests of the agent")
    shown.set_defaults(run=_demo)
    return parser


def _add_requests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", help="a chat request, a list of messages, or a request in each line; - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each request")
    parser.add_argument("--model", default="", help="the model of a list of messages")
    _add_configuration(parser)


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; see config.example.yaml")
    parser.add_argument(
        "--upstream", metavar="URL", help="the server's base URL, for example http://127.0.0.1:8080/v1"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen, or unix:PATH; default 127.0.0.1:8787"
    )
    parser.add_argument("--window", metavar="TOKENS", help="the window of all models, for example 128k")
    parser.add_argument("--store", metavar="URL", help="where checkpoints are kept; default memory")


def _configuration(options: argparse.Namespace) -> Config:
    flags = Flags(
        upstream=options.upstream, listen=options.listen, window=options.window, store=options.store
    )
    return load(options.config, flags, os.environ)


def _serve(options: argparse.Namespace) -> int:
    read = partial(_configuration, options)
    reloads = Reloads(options.config, read) if options.config is not None else None
    config = read() if reloads is None else reloads.load()
    count = workers.how_many(config.workers)
    # Before anything is served: what builds the encoder lets nothing else run meanwhile.
    encoders = usual_encoders()
    if count == 1:
        return _run(_served(config, reloads, None, encoders))
    _settle_collector()  # what is there now is shared by all, for as long as nothing touches it
    log = logs.build(config.log)
    held = _Held(config, reloads)
    outcome = workers.run(config, count, log, grace=service.GRACE, look=held.look if reloads else None)
    return outcome if isinstance(outcome, int) else _run(_served(held.config, reloads, outcome, encoders))


@dataclass
class _Held:
    """The configuration that a worker begins with, in the parent of all."""

    config: Config
    reloads: Reloads | None

    def look(self, is_asked: bool) -> None:
        """Take over what has changed."""
        if self.reloads is not None:
            self.config = self.reloads.newest(self.config, at_once=is_asked)


async def _served(
    config: Config,
    reloads: Reloads | None,
    worker: workers.Worker | None,
    encoders: Mapping[str, Encoder],
) -> int:
    async with _parts(config, worker=worker, encoders=encoders) as parts:
        _settle_collector()
        await service.serve(config, parts, worker=worker, reloads=reloads)
    return 0


def _settle_collector() -> None:
    """What the start has made lives to the end: the collector need not look at it again, nor look so often.

    Nearly nothing of a request is part of a cycle, and by default a small one in three would pay for a look.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _check(options: argparse.Namespace) -> int:
    config = _configuration(options)
    stores.check(config.store.reveal())
    print(describe(config), end="")
    return 0


def _schema(options: argparse.Namespace) -> int:
    print(reference() if options.reference else schema.text(), end="")
    return 0


def _measure(options: argparse.Namespace) -> int:
    if options.config is None and options.upstream is None:
        options.upstream = NOBODY
    config = _configuration(options)
    requests = list(requests_in(_read(options.file), options.file, options.model))

    async def show() -> int:
        async with _parts(config, QUIET) as parts:
            await measure.run(
                requests,
                config,
                parts.memories,
                parts.tokenizer,
                sys.stdout,
                as_json=options.json,
            )
        return 0

    return _run(show())


def _compact(options: argparse.Namespace) -> int:
    config = _configuration(options)
    requests = list(requests_in(_read(options.file), options.file, options.model))

    async def show() -> int:
        async with _parts(config, QUIET) as parts, sites(config, parts) as found:
            is_whole = await compact.run(requests, config, found, sys.stdout, as_json=options.json)
        return 0 if is_whole else 1

    return _run(show())


def _read(file: str) -> bytes:
    """All of a file. Raises NoChatRequest where it cannot be read."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as cause:
        raise NoChatRequest(f"{file} cannot be read: {cause.strerror or cause}.") from cause


def _demo(options: argparse.Namespace) -> int:
    # Here and not above: the client that it drives takes longer to import than the proxy takes to start.
    from proxy.demo import run as demo  # noqa: PLC0415

    async def show() -> int:
        async with demo.upstream(options.window, options.steps) as upstream:
            config = load(
                None, Flags(upstream=upstream.base_url, listen="127.0.0.1:0", window=str(options.window)), {}
            )
            async with _parts(config, QUIET) as parts, service.running(config, parts) as url:
                return await demo.show(url, upstream, options.steps, sys.stdout)

    return _run(show())


@contextlib.asynccontextmanager
async def _parts(
    config: Config,
    log_options: LogOptions | None = None,
    worker: workers.Worker | None = None,
    encoders: Mapping[str, Encoder] = _NO_ENCODERS,
) -> AsyncIterator[Parts]:
    """The parts of a server, and what else is needed soon on its way while it starts to listen."""
    log = logs.build(log_options or config.log)
    metrics = Metrics()
    which = (1, 1)
    if worker is not None:
        which = (worker.number, worker.count)
        log = log.bind(worker=worker.number)
        metrics.share(worker.board, worker.number - 1, asyncio.get_running_loop().call_later)
    kept = config.checkpoints
    bounds = Bounds(kept.max_entries, kept.max_bytes, kept.max_age)
    async with open_store(config.store.reveal(), bounds, metrics.hearing(log.warning)) as opened:
        metrics.watch_store(opened.shared)
        memories = Memories(opened.store, config.upstream.base_url, shared=opened.shared)
        tokenizer = Tokenizer(log, encoders=encoders)
        warming = asyncio.create_task(_made_ready(tokenizer))
        try:
            yield Parts(tokenizer, memories.of, log, metrics, opened.shared, which)
        finally:
            warming.cancel()
            tokenizer.close()
            await memories.close()


async def _made_ready(tokenizer: Tokenizer) -> None:
    """What is not needed to listen, but would keep a request waiting that needs it."""
    await tokenizer.warm()
    for _ in dialects.prepared():
        await asyncio.sleep(0)


def _run(course: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        return runner.run(course)


if __name__ == "__main__":
    sys.exit(main())
