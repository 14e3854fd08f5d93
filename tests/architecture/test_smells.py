"""The smells that the design names, measured from the source.

Rules. A limit is a number in this file and applies everywhere the check runs; there are no exemptions by file. The one
blind `except` is the server's door, marked `the one door` on its line. Each check proves on a planted fault that it
can find what it looks for, and on a near miss that it leaves the rest alone.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest

from tests.architecture._source import (
    ROOT,
    Check,
    Finding,
    Module,
    dotted,
    is_dynamic_import,
    module,
    modules_under,
)

MODULE_LINES: Final = 600
FUNCTION_LINES: Final = 60
COMPLEXITY: Final = 10
SEAM_MEMBERS: Final = 5

THE_DOOR: Final = "proxy.edge.server"
DOOR_MARK: Final = "the one door"
BLIND: Final = frozenset({"Exception", "BaseException"})

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

# Calls and displays whose value can be changed later; a wrapper in FREEZING around one makes it a constant.
MUTABLE_CALLS: Final = frozenset(
    {
        "ChainMap",
        "Counter",
        "Event",
        "Lock",
        "OrderedDict",
        "Queue",
        "Semaphore",
        "SimpleNamespace",
        "WeakKeyDictionary",
        "WeakSet",
        "WeakValueDictionary",
        "bytearray",
        "count",
        "defaultdict",
        "deque",
        "dict",
        "list",
        "set",
    }
)
MUTABLE_DISPLAYS: Final = (
    ast.List,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
    ast.GeneratorExp,
)
FREEZING: Final = frozenset({"MappingProxyType", "frozenset", "tuple"})
CACHES: Final = frozenset({"cache", "lru_cache"})

# What patches a method or waits by the clock, and what gives it away when it is imported or called.
PATCHING: Final = frozenset({"Mock", "MagicMock", "AsyncMock", "NonCallableMock", "create_autospec"})
PATCHING_OWNERS: Final = frozenset({"mock", "mocker", "unittest.mock", "patch", "mock.patch", "mocker.patch"})


def long_modules(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        if len(each.lines) > MODULE_LINES:
            yield Finding(each.name, MODULE_LINES, f"{len(each.lines)} lines")


def long_functions(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for function in _functions(each.tree):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES:
                yield Finding(each.name, function.lineno, f"{function.name} has {lines} lines")


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def blind_excepts(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        doors = 0
        for line in sorted(_blind_lines(each.tree)):
            is_door = _within(each.name, THE_DOOR) and DOOR_MARK in each.lines[line - 1]
            doors += is_door
            if not is_door or doors > 1:
                yield Finding(each.name, line, "catches everything")


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _blind_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=None):
                yield node.lineno
            case ast.ExceptHandler(type=ast.Tuple(elts=caught)) if _is_any_blind(caught):
                yield node.lineno
            case ast.ExceptHandler(type=ast.expr() as caught_one) if _is_any_blind([caught_one]):
                yield node.lineno
            case ast.Call(func=func, args=args) if dotted(func).endswith("suppress") and _is_any_blind(args):
                yield node.lineno


def _is_any_blind(expressions: Sequence[ast.expr]) -> bool:
    return any(dotted(each).rpartition(".")[2] in BLIND for each in expressions)


def unowned_tasks(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        groups = _task_groups(each.tree)
        for node in ast.walk(each.tree):
            match node:
                case ast.Expr(value=ast.Call() as call) if _is_loose_start(call, groups):
                    yield Finding(each.name, node.lineno, "starts a task and forgets it")
                case ast.Assign(targets=[ast.Name(id="_")], value=ast.Call() as call) if _is_loose_start(
                    call, groups
                ):
                    yield Finding(each.name, node.lineno, "starts a task and throws it away")


def _task_groups(tree: ast.Module) -> frozenset[str]:
    """Names bound by `async with TaskGroup() as name`; a group owns what it starts."""
    return frozenset(
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and dotted(item.context_expr).endswith("TaskGroup()")
    )


def _is_loose_start(call: ast.Call, groups: frozenset[str]) -> bool:
    owner, _, method = dotted(call.func).rpartition(".")
    return method in ("create_task", "ensure_future") and owner not in groups


def module_state(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for name, value, line in _module_assignments(each.tree):
            if name != "__all__" and _is_mutable(value):
                yield Finding(each.name, line, f"{name} can be changed by whoever imports it")
            elif _is_frozen_call(value) and name != name.upper():
                yield Finding(
                    each.name, line, f"{name} is a constant and is written like one: {name.upper()}"
                )
        yield from _caches_and_globals(each)


def _module_assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    for node in _statements_at_module_level(tree.body):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((dotted(target), value, node.lineno) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield dotted(target), value, node.lineno


def _statements_at_module_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import, those under `if`, `try`, `with`, `for` and in class bodies included."""
    for node in body:
        yield node
        if not isinstance(node, FUNCTIONS):
            for nested in ("body", "orelse", "finalbody"):
                yield from _statements_at_module_level(getattr(node, nested, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements_at_module_level(handler.body)


def _is_mutable(value: ast.expr) -> bool:
    match value:
        case ast.Tuple(elts=parts):
            return any(_is_mutable(part) for part in parts)
        case ast.BinOp(left=left, right=right):  # of two sets, the left one decides what comes out
            return _is_mutable(left) or (_is_mutable(right) and not isinstance(right, ast.Set | ast.SetComp))
        case ast.IfExp(body=one, orelse=other):
            return _is_mutable(one) or _is_mutable(other)
        case ast.Call(args=arguments) if _is_frozen_call(value):
            return any(_is_mutable_inside(argument) for argument in arguments)
        case ast.Call(func=func):
            return dotted(func).rpartition(".")[2] in MUTABLE_CALLS
        case _:
            return isinstance(value, MUTABLE_DISPLAYS)


def _is_mutable_inside(display: ast.expr) -> bool:
    """Whether a display that is about to be frozen holds parts that stay mutable."""
    match display:
        case ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return any(_is_mutable(part) for part in parts)
        case (
            ast.ListComp(elt=part)
            | ast.SetComp(elt=part)
            | ast.GeneratorExp(elt=part)
            | ast.DictComp(value=part)
        ):
            return _is_mutable(part)
        case _:
            return False


def _is_frozen_call(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in FREEZING


def _caches_and_globals(source: Module) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield Finding(source.name, node.lineno, f"rebinds the module's {', '.join(node.names)}")
    for function in _statements_at_module_level(
        source.tree.body
    ):  # one inside a function belongs to that call
        for decorator in getattr(function, "decorator_list", []):
            if dotted(decorator).removesuffix("()").rpartition(".")[2] in CACHES:
                yield Finding(source.name, function.lineno, f"the cache of {dotted(decorator)} has no owner")


def wide_seams(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        classes = {node.name: node for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef)}
        for node in classes.values():
            members = _members(node, classes)
            if _is_protocol(node) and len(members) > SEAM_MEMBERS:
                yield Finding(each.name, node.lineno, f"{node.name} has {len(members)} members")


def _is_protocol(node: ast.ClassDef) -> bool:
    # asyncio's own is the base of connections, and no seam.
    bases = {dotted(base) for base in node.bases} - {"asyncio.Protocol"}
    return any(base.rpartition(".")[2] == "Protocol" for base in bases)


def _members(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> frozenset[str]:
    own = {each.name for each in node.body if isinstance(each, FUNCTIONS)}
    own |= {dotted(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    for base in node.bases:
        parent = classes.get(dotted(base))
        if parent is not None and parent is not node:
            own |= _members(parent, classes)
    return frozenset(own)


def inner_imports(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for function in _functions(each.tree):
            for node in ast.walk(function):
                is_import = isinstance(node, ast.Import | ast.ImportFrom) and not _is_late_command(each, node)
                if is_import or (isinstance(node, ast.Call) and is_dynamic_import(node)):
                    yield Finding(
                        each.name, function.lineno, f"{function.name} imports something when it is called"
                    )


def _is_late_command(where: Module, node: ast.Import | ast.ImportFrom) -> bool:
    """The composition root may fetch the demonstration when it is asked for, the face of the stores the one with a
    foreign client, and the service the traces: those take a second and a fifth of one to import, or are extras."""
    late = {
        "proxy.__main__": ("proxy.demo",),
        "proxy.edge.service": ("proxy.edge.tracing",),
        "proxy.stores": ("proxy.stores.redis",),
    }
    return isinstance(node, ast.ImportFrom) and node.module in late.get(where.name, ())


def patched_methods(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for node in ast.walk(each.tree):
            match node:
                case ast.ImportFrom(module="unittest.mock" | "mock" | "pytest_mock"):
                    yield Finding(each.name, node.lineno, "imports a patching library")
                case ast.ImportFrom(module="unittest", names=names) if any(n.name == "mock" for n in names):
                    yield Finding(each.name, node.lineno, "imports a patching library")
                case ast.Import(names=names) if any(n.name in ("unittest.mock", "mock") for n in names):
                    yield Finding(each.name, node.lineno, "imports a patching library")
                case ast.Call(func=func) if _patches(dotted(func)):
                    yield Finding(
                        each.name, node.lineno, f"{dotted(func)} patches; script a real peer instead"
                    )


def _patches(called: str) -> bool:
    owner, _, name = called.rpartition(".")
    if name == "patch":  # a client's PATCH request is none
        return not owner or owner in PATCHING_OWNERS
    return name in PATCHING or owner in PATCHING_OWNERS or called == "monkeypatch.setattr"


def waits_by_the_clock(modules: Sequence[Module]) -> Iterator[Finding]:
    for each in modules:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "sleep":
                yield Finding(each.name, node.lineno, "waits by the clock; await the event itself")


PRODUCT: Final = ("proxy",)
EVERYWHERE: Final = ("proxy", "tests", "benchmarks")
TESTS: Final = ("tests",)

# Each smell with the folders in which it is looked for.
SMELLS: Final = (
    (Check("long module", f"no module over {MODULE_LINES} lines", long_modules), EVERYWHERE),
    (Check("long function", f"no function over {FUNCTION_LINES} lines", long_functions), EVERYWHERE),
    (
        Check("blind except", "errors are caught by name, but for the server's one door", blind_excepts),
        EVERYWHERE,
    ),
    (Check("un-owned task", "whoever starts a task keeps and ends it", unowned_tasks), EVERYWHERE),
    (Check("module state", "nothing mutable at module level", module_state), PRODUCT),
    (Check("wide seam", f"a protocol has at most {SEAM_MEMBERS} members", wide_seams), PRODUCT),
    (Check("inner import", "imports stand at the top of a module", inner_imports), EVERYWHERE),
    (Check("patching", "tests script a peer and patch nothing", patched_methods), TESTS),
    (Check("sleeping", "tests wait for events, not for time", waits_by_the_clock), TESTS),
)
BY_NAME: Final = MappingProxyType({check.name: check for check, _ in SMELLS})


@pytest.fixture(scope="module")
def checkout() -> Mapping[str, tuple[Module, ...]]:
    return {folder: modules_under(folder) for folder in EVERYWHERE}


@pytest.mark.parametrize(("smell", "folders"), SMELLS, ids=lambda value: getattr(value, "name", ""))
def test_the_tree_is_free_of_the_smell(
    smell: Check, folders: tuple[str, ...], checkout: Mapping[str, tuple[Module, ...]]
) -> None:
    found = [str(finding) for folder in folders for finding in smell.find(checkout[folder])]
    assert not found, "\n".join([f"{smell.says}:", *found])


LONG_FUNCTION: Final = "def f():\n" + "    x = 1\n" * FUNCTION_LINES
LONG_METHOD: Final = "class A:\n    async def f(self):\n" + "        x = 1\n" * FUNCTION_LINES
TWO_DOORS: Final = "try:\n    f()\nexcept Exception:  # the one door\n    g()\n" * 2


def _protocol(members: int, base: str = "Protocol") -> str:
    return f"class Seam({base}):\n" + "".join(f"    def f{n}(self) -> int: ...\n" for n in range(members))


VIOLATIONS: Final = (
    ("long module", "proxy.a", "x = 1\n" * (MODULE_LINES + 1)),
    ("long function", "proxy.a", LONG_FUNCTION),
    ("long function", "proxy.a", LONG_METHOD),
    ("blind except", "proxy.a", "try:\n    f()\nexcept:\n    g()"),
    ("blind except", "proxy.a", "try:\n    f()\nexcept Exception:\n    g()"),
    ("blind except", "proxy.a", "try:\n    f()\nexcept (KeyError, BaseException) as e:\n    g()"),
    ("blind except", "proxy.a", "try:\n    f()\nexcept builtins.Exception:\n    raise"),
    ("blind except", "proxy.a", "with contextlib.suppress(Exception):\n    f()"),
    ("blind except", "proxy.a", "try:\n    f()\nexcept Exception:  # the one door\n    g()"),
    ("blind except", "proxy.edge.server", "try:\n    f()\nexcept Exception:\n    g()"),
    ("blind except", "proxy.edge.server", TWO_DOORS),
    ("un-owned task", "proxy.a", "async def f():\n    asyncio.create_task(g())"),
    ("un-owned task", "proxy.a", "async def f():\n    _ = asyncio.ensure_future(g())"),
    ("un-owned task", "proxy.a", "async def f():\n    asyncio.get_running_loop().create_task(g())"),
    ("un-owned task", "proxy.a", "async def f():\n    create_task(g())"),
    ("module state", "proxy.a", "seen = []"),
    ("module state", "proxy.a", "SEEN: Final = {}"),
    ("module state", "proxy.a", "TABLE = {'a': 1}"),
    ("module state", "proxy.a", "NAMES = {n for n in range(3)}"),
    ("module state", "proxy.a", "cache: dict[str, int] = dict()"),
    ("module state", "proxy.a", "queue = collections.deque()"),
    ("module state", "proxy.a", "lock = asyncio.Lock()"),
    ("module state", "proxy.a", "ROWS = (1, [2])"),
    ("module state", "proxy.a", "ROWS = OTHERS + [2]"),
    ("module state", "proxy.a", "TABLE = OTHERS | {'a': 1}"),
    ("module state", "proxy.a", "NAMES = {'a'} | OTHERS"),
    ("module state", "proxy.a", "TABLE = MappingProxyType({'a': [1]})"),
    ("module state", "proxy.a", "table = MappingProxyType({'a': 1})"),
    ("module state", "proxy.a", "if True:\n    seen = []"),
    ("module state", "proxy.a", "try:\n    import x\nexcept ImportError:\n    known = set()"),
    ("module state", "proxy.a", "class A:\n    seen = []"),
    ("module state", "proxy.a", "def f():\n    global n\n    n = 1"),
    ("module state", "proxy.a", "@functools.lru_cache(maxsize=8)\ndef f(): ..."),
    ("module state", "proxy.a", "@cache\ndef f(): ..."),
    ("module state", "proxy.a", "class A:\n    @cache\n    def f(self): ..."),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS + 1)),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS + 1, "typing.Protocol[T]")),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS) + "    size: int\n"),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS) + "class Wider(Seam, Protocol):\n    size: int\n"),
    ("inner import", "proxy.a", "def f():\n    import json"),
    ("inner import", "proxy.a", "def f():\n    from proxy.demo import run"),
    ("inner import", "proxy.__main__", "def f():\n    from proxy.edge import server"),
    (
        "inner import",
        "proxy.a",
        "class A:\n    async def f(self):\n        if x:\n            from json import loads",
    ),
    ("inner import", "proxy.a", "def f():\n    return importlib.import_module('json')"),
    ("patching", "tests.a", "from unittest.mock import ANY"),
    ("patching", "tests.a", "from unittest import mock"),
    ("patching", "tests.a", "import unittest.mock"),
    *(("patching", "tests.a", f"x = {name}()") for name in sorted(PATCHING)),
    *(
        ("patching", "tests.a", f"x = {name}('a.b')")
        for name in (
            "patch",
            "mock.patch",
            "mocker.patch",
            "patch.object",
            "mock.patch.dict",
            "monkeypatch.setattr",
        )
    ),
    *(
        ("sleeping", "tests.a", f"def f():\n    {name}(0.1)")
        for name in ("sleep", "time.sleep", "asyncio.sleep")
    ),
)


@pytest.mark.parametrize(("name", "where", "source"), VIOLATIONS)
def test_a_planted_smell_is_found(name: str, where: str, source: str) -> None:
    assert list(BY_NAME[name].find([module(where, source)]))


def test_every_smell_has_a_planted_fault() -> None:
    assert {name for name, _, _ in VIOLATIONS} == set(BY_NAME)


NEAR_MISSES: Final = (
    ("long module", "proxy.a", "x = 1\n" * MODULE_LINES),
    ("long function", "proxy.a", LONG_FUNCTION.removesuffix("    x = 1\n")),
    ("blind except", "proxy.a", "try:\n    f()\nexcept (ValueError, errors.TransomError):\n    g()"),
    ("blind except", "proxy.a", "with contextlib.suppress(KeyError):\n    f()"),
    (
        "blind except",
        "proxy.edge.server",
        "try:\n    f()\nexcept Exception:  # noqa: BLE001 - the one door\n    g()",
    ),
    ("un-owned task", "proxy.a", "async def f():\n    task = asyncio.create_task(g())\n    await task"),
    ("un-owned task", "proxy.a", "async def f():\n    self.tasks.add(asyncio.create_task(g()))"),
    (
        "un-owned task",
        "proxy.a",
        "async def f():\n    async with asyncio.TaskGroup() as t:\n        t.create_task(g())",
    ),
    ("module state", "proxy.a", "TABLE: Final = MappingProxyType({'a': (1, 2)})"),
    (
        "module state",
        "proxy.a",
        "NAMES = frozenset({'a'})\nROWS = (1, 2)\n_KINDS = tuple([1])\n__all__ = ['a']",
    ),
    (
        "module state",
        "proxy.a",
        "PATTERN = re.compile('x')\nread = msgspec.json.Decoder(dict[str, int]).decode",
    ),
    (
        "module state",
        "proxy.a",
        "def f():\n    seen = []\nclass A:\n    seen: list[int] = field(default_factory=list)",
    ),
    ("module state", "proxy.a", "class A:\n    @cached_property\n    def f(self): ..."),
    ("module state", "proxy.a", "def f():\n    @lru_cache(maxsize=8)\n    def g(): ..."),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS)),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS + 1, "object")),
    ("wide seam", "proxy.a", _protocol(SEAM_MEMBERS + 1, "asyncio.Protocol")),
    (
        "inner import",
        "proxy.a",
        "if TYPE_CHECKING:\n    import json\ntry:\n    import x\nexcept ImportError:\n    x = None",
    ),
    (
        "patching",
        "tests.a",
        "async def f():\n    await client.patch('/v1/x')\n    monkeypatch.setenv('A', 'b')",
    ),
    ("sleeping", "tests.a", "async def f():\n    await event.wait()\n    asleep()"),
)


@pytest.mark.parametrize(("name", "where", "source"), NEAR_MISSES)
def test_a_near_miss_is_left_alone(name: str, where: str, source: str) -> None:
    assert not [str(finding) for finding in BY_NAME[name].find([module(where, source)])]


# Complexity is the linter's measure; here it runs with no exemption by comment or by file.


def _ruff_complexity(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet"]
    command += ["--select", "C901", "--config", limit, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)


def _branches(count: int) -> str:
    return "def f(x):\n" + "".join(f"    if x == {n}:\n        return {n}\n" for n in range(count))


def test_no_function_is_too_complex() -> None:
    folders = [folder for folder in EVERYWHERE if (ROOT / folder).is_dir()]
    outcome = _ruff_complexity(*folders)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(("branches", "status"), [(COMPLEXITY - 1, 0), (COMPLEXITY, 1)])
def test_complexity_is_measured_to_the_branch(branches: int, status: int) -> None:
    text = _branches(branches).replace("def f(x):", "def f(x):  # noqa: C901", 1)
    assert _ruff_complexity("--stdin-filename", "planted.py", "-", text=text).returncode == status
