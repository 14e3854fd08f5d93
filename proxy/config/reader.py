"""One YAML file -> values by option, with every mistake and its place.

Rules. Lines come from the parser's own nodes. Nodes are never constructed into objects: a scalar's text is read by its
option's kind, so tags mean nothing here and are refused. A key that is empty or null is left out and has its default.
A text is repeated in a mistake only when it stood in the file itself and its kind says that it holds no credential.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from proxy.config.environment import expand
from proxy.config.forms import REQUIRED, Each, Option, Section
from proxy.config.kinds import Wrong, nearest
from proxy.config.options import ROOT, walk
from proxy.config.values import Mistake

WHOLE_FILE: Final = "(file)"
"""The key of a mistake that is none of a single key."""

LONGEST_QUOTE: Final = 60
"""Characters of a text that a mistake repeats."""

_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = frozenset(
    f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)


def quoted(text: str) -> str:
    """The text on one line, in quotes, clipped."""
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}...")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something stands: its dotted key, empty for the file itself, and its line."""

    key: str
    line: int

    def below(self, name: str, line: int) -> "_Place":
        return _Place(f"{self.key}.{name}" if self.key else name, line)

    def item(self, index: int, node: yaml.Node) -> "_Place":
        return _Place(f"{self.key}[{index}]", _line(node))


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key of a mapping with its value; None is a key without one."""

    place: _Place
    node: yaml.Node | None


class Reading:
    """One pass over one file. Collects mistakes and goes on; `given` are the options that flags set."""

    def __init__(self, file: str, environ: Mapping[str, str], given: Collection[str]) -> None:
        self.mistakes: list[Mistake] = []
        self._file = file
        self._environ = environ
        # What is set elsewhere, or was meant by a misspelt key, is not called missing as well.
        self._not_missing = set(given)

    def file(self, path: Path) -> dict[str, Any]:
        """What the file says, by option, sections nested; what is wrong is left out and noted."""
        text = self._text(path)
        node = None if text is None else self._node(text)
        return {} if self.mistakes else self._section(ROOT, node, _Place("", 1))

    def _note(self, place: _Place, problem: str) -> None:
        self.mistakes.append(Mistake(self._file, place.line, place.key or WHOLE_FILE, problem))

    # --- the file as a whole ------------------------------------------------------------------------------------

    def _text(self, path: Path) -> str | None:
        try:
            raw = path.read_bytes()
        except OSError as error:
            self._note(_Place("", 1), f"cannot be read: {error.strerror or type(error).__name__}")
            return None
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self._note(_Place("", raw.count(b"\n", 0, error.start) + 1), "is not UTF-8; save it as UTF-8")
            return None

    def _node(self, text: str) -> yaml.Node | None:
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            self._note(_Place("", line), "holds a control character; write it escaped, in double quotes")
            return None
        try:
            return loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or loader.get_mark()
            problem = (
                f"is broken YAML: {_parser_says(error)} (column {mark.column + 1}); does a value need quotes?"
            )
            self._note(_Place("", mark.line + 1), problem)
        except RecursionError:
            self._note(_Place("", loader.line + 1), "is nested too deeply")
        except (ValueError, OverflowError):
            self._note(_Place("", loader.line + 1), "is broken YAML: an escape or a number out of range")
        finally:
            loader.dispose()
        return None

    # --- mappings and lists -------------------------------------------------------------------------------------

    def _section(self, section: Section, node: yaml.Node | None, place: _Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        before = len(self.mistakes)
        if node is not None and not _is_mapping(node):
            self._note(place, f"must hold keys of its own: {_names(section)}")
            return values
        entries = self._entries(section, node, place)
        for member in section.entries:
            entry = entries.get(member.name) or _Entry(place.below(member.name, place.line), None)
            value = self._member(section, member, entry, values)
            if value is not None:
                values[member.name] = value
        self._check_order(section, values, entries)
        if section.check is not None and len(self.mistakes) == before:
            unusable = section.check(values)
            if unusable is not None:
                self._note(entries[unusable[0]].place, unusable[1])
        return values

    def _member(
        self, section: Section, member: Option | Section, entry: _Entry, before: Mapping[str, Any]
    ) -> Any:
        """Its value; `before` are those of the members before it."""
        match member:
            case Option():
                return self._option(section, member, entry)
            case Section(each=None):
                return self._section(member, entry.node, entry.place)
            case Section(each=Each() as each):
                return self._elements(member, each, entry, before)

    def _entries(self, section: Section, node: yaml.Node | None, place: _Place) -> dict[str, _Entry]:
        """The known keys of a mapping; the others, and those that come twice, are noted."""
        entries: dict[str, _Entry] = {}
        known = {entry.name for entry in section.entries}
        for name, below, value in self._pairs(node, place):
            if name in entries:
                self._note(below, f"is given twice, first on line {entries[name].place.line}; keep one")
            elif name in known:
                entries[name] = _Entry(below, None if _is_null(value) else value)
            else:
                self._note(below, self._unknown(name, section, place))
        return entries

    def _pairs(self, node: yaml.Node | None, place: _Place) -> Iterator[tuple[str, _Place, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, place.below(_plain(key.value), _line(key)), value
            else:
                self._note(_Place(place.key, _line(key)), "has a key that is no plain text")

    def _unknown(self, name: str, section: Section, place: _Place) -> str:
        """Why a key is refused, with what was likely meant: a near one, or the same one in another section."""
        if name == "<<":
            return "YAML merge keys are not taken here; write the keys out"
        near = nearest(name, [entry.name for entry in section.entries])
        if near is not None:
            self._not_missing.add(place.below(near, 1).key)
            return f"unknown key; did you mean {near}?"
        elsewhere = [full for full, _, option in walk(echoes=False) if option.name == name]
        if elsewhere:
            self._not_missing.update(elsewhere)
            return f"unknown key here; did you mean {' or '.join(elsewhere)}?"
        return f"unknown key; known here are {_names(section)}"

    def _elements(
        self, section: Section, each: Each, entry: _Entry, before: Mapping[str, Any]
    ) -> list[dict[str, Any]] | None:
        """The elements of a list of mappings, each opened by its first option."""
        if entry.node is None:
            return None
        if not _is_list(entry.node):
            self._note(
                entry.place, f'must be a list; each element begins with - {each.options[0].name}: "..."'
            )
            return None
        elements: list[dict[str, Any]] = []
        for index, node in enumerate(entry.node.value):
            place = entry.place.item(index, node)
            element = self._section(section, None if _is_null(node) else node, place)
            unusable = each.check(element, elements, before)
            if unusable is not None:
                line = next((_line(key) for key in _keys(node) if key.value == unusable[0]), place.line)
                self._note(place.below(unusable[0], line), unusable[1])
            elements.append(element)
        return elements

    # --- values -------------------------------------------------------------------------------------------------

    def _option(self, section: Section, option: Option, entry: _Entry) -> Any:
        """The option's value; None when it is left out or wrong."""
        before = len(self.mistakes)
        read = self._list if option.is_list else self._scalar
        value = None if entry.node is None else read(option, entry.node, entry.place)
        is_wrong = len(self.mistakes) > before
        if value is None and not is_wrong and section.default(option) is REQUIRED:
            self._check_missing(option, entry.place)
        return value

    def _list(self, option: Option, node: yaml.Node, place: _Place) -> tuple[Any, ...] | None:
        if not _is_list(node):
            self._note(place, "must be a list: [one, another]")
            return None
        items: list[Any] = []
        for index, element in enumerate(node.value):
            at = place.item(index, element)
            item = self._scalar(option, element, at)
            if item is not None and item in items:
                self._note(at, f"{quoted(str(item))} is in the list twice; keep one")
            items.append(item)
        return tuple(item for item in items if item is not None)

    def _scalar(self, option: Option, node: yaml.Node, place: _Place) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self._note(place, "must be a single value, not a list or a mapping")
            return None
        place = _Place(place.key, _line(node))
        if node.tag not in _SCALARS:
            self._note(place, "has a YAML tag (!...); tags are not taken here")
            return None
        expanded = expand(node.value, self._environ)
        if expanded.problem:
            self._note(place, expanded.problem)
            return None
        is_empty = _is_null(node) or (node.style is None and not expanded.text)
        if is_empty and not option.kind.reads_empty:
            return None
        value = option.kind.read("" if is_empty else expanded.text)
        if isinstance(value, Wrong):
            is_shown = option.kind.is_quotable and not expanded.has_references
            self._note(place, f"{quoted(expanded.text) if is_shown else 'the value'} {value.problem}")
            return None
        return value

    # --- values together ----------------------------------------------------------------------------------------

    def _check_missing(self, option: Option, place: _Place) -> None:
        section = place.key.rpartition(".")[0]
        if not {place.key, section} & self._not_missing:
            self._note(place, f"is missing. {option.effect}")

    def _check_order(
        self, section: Section, values: Mapping[str, Any], entries: Mapping[str, _Entry]
    ) -> None:
        """Values that must grow. Skipped where one of them is wrong already."""
        given = [name for name in section.ascending if name in entries]
        wrong = {mistake.key for mistake in self.mistakes}
        if not given or any(entries[name].place.key in wrong for name in given):
            return
        defaults = {each.name: section.default(each) for each in section.members if isinstance(each, Option)}
        found = [values.get(name, defaults[name]) for name in section.ascending]
        if any(low >= high for low, high in itertools.pairwise(found)):
            needed = " < ".join(section.ascending)
            told = ", ".join(
                f"{name} is {value}{'' if name in values else ' by default'}"
                for name, value in zip(section.ascending, found, strict=True)
            )
            self._note(entries[given[0]].place, f"must keep the order {needed}; here {told}")


def _names(section: Section) -> str:
    return ", ".join(entry.name for entry in section.entries)


def _keys(node: yaml.Node) -> list[yaml.ScalarNode]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return [key for key, _ in pairs if isinstance(key, yaml.ScalarNode)]


def _is_mapping(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map"


def _is_list(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq"


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _plain(key: str) -> str:
    """A key as it can stand in a dotted name on one line."""
    return key if re.fullmatch(r"[\w.-]{1,60}", key) else quoted(key)


def _parser_says(error: yaml.MarkedYAMLError) -> str:
    """The parser's own words, without names out of the file: a credential may begin with * or & or !."""
    problem = str(error.problem or error.context or "it cannot be read")
    return re.sub(r"\b(alias|anchor|tag handle)\b.*", r"\1", problem)
