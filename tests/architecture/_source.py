"""Python source as the architecture tests read it: parsed, named, never imported.

Rules. Nothing here executes what it reads. A check is a function from modules to findings, so that the same function
runs over the checkout and over a made-up module with a planted fault; a check that cannot find its plant is no check.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed file. `name` is dotted (`proxy.edge.server`); a package's is that of its folder."""

    name: str
    text: str
    tree: ast.Module
    is_face: bool = False

    @property
    def lines(self) -> Sequence[str]:
        return self.text.splitlines()

    @property
    def package(self) -> str:
        """The package that a relative import starts from."""
        return self.name if self.is_face else self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a rule is broken, said as a sentence."""

    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Check:
    """A rule of the architecture: what it says, and the function that finds where it is broken."""

    name: str
    says: str
    find: Callable[[Sequence[Module]], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Import:
    """One imported thing. `target` is dotted and absolute, the imported name included: `proxy.errors.ConfigError`."""

    importer: str
    target: str
    line: int


def module(name: str, text: str, *, is_face: bool = False) -> Module:
    """A module from its text. Raises SyntaxError for what is no Python."""
    return Module(name, text, ast.parse(text, filename=name), is_face)


def modules_under(folder: str, root: Path = ROOT) -> tuple[Module, ...]:
    """Every Python file below a folder of the checkout, by path; none when the folder is absent."""
    return tuple(_read(path, root) for path in sorted((root / folder).rglob("*.py")))


def _read(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    is_face = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_face else parts)
    return module(name, path.read_text(encoding="utf-8"), is_face=is_face)


def imports_of(source: Module) -> Iterator[Import]:
    """Every import at any depth, by statement or by `import_module` and `__import__` with a constant name."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(source.name, alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(names=names):
                base = _base(node, source)
                yield from (Import(source.name, f"{base}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if is_dynamic_import(node):
                yield Import(source.name, target, node.lineno)


def _base(node: ast.ImportFrom, source: Module) -> str:
    if not node.level:
        return node.module or ""
    package = source.package.split(".")
    stem = package[: len(package) - node.level + 1]
    return ".".join([*stem, node.module] if node.module else stem)


def is_dynamic_import(call: ast.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] in ("import_module", "__import__")


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of attributes on a name; the part that can be read for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case ast.Subscript(value=value):
            return dotted(value)
        case ast.Call(func=func):
            return f"{dotted(func)}()"
        case _:
            return "?"
