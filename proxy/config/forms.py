"""The forms in which an option is written down.

Rules. An option says its name, kind, unit, what it does, and why one would change it; its default is that of the field
of the same name in the section's dataclass. Nothing here knows an option.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.config.kinds import Kind

REQUIRED: Final = dataclasses.MISSING
"""The default of an option that has none."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key with a value.

    unit           of bare numbers
    is_list        a list of values of this kind, without repetition
    needs_restart  a process that runs cannot take over another value
    """

    name: str
    kind: Kind
    effect: str
    reason: str
    unit: str = ""
    is_list: bool = False
    needs_restart: bool = False


@dataclass(frozen=True, slots=True)
class Each:
    """The elements of a list of mappings.

    holds    what one becomes: a field for each of `options`, and the section's own values in the field `rest`
    options  those of the element itself; the first says what it is for
    check    of an element, those before it, and what the file said so far: a key of it that is of no use, and why
    """

    holds: type
    options: tuple[Option, ...]
    rest: str
    check: Callable[
        [Mapping[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Any]], tuple[str, str] | None
    ]


@dataclass(frozen=True, slots=True)
class Section:
    """A key with keys of its own, which become the dataclass `holds`.

    each       set for a list of such mappings
    like       the section that has the same members, and says what they are
    ascending  options whose values must grow in this order
    check      of the values that are given: the name of one that is of no use, and why
    """

    name: str
    holds: type
    effect: str
    members: "tuple[Option | Section, ...]"
    each: Each | None = None
    like: str = ""
    ascending: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], tuple[str, str] | None] | None = None

    @property
    def entries(self) -> "tuple[Option | Section, ...]":
        """All keys of one mapping, those of an element first."""
        return self.members if self.each is None else (*self.each.options, *self.members)

    @property
    def key(self) -> str:
        """The name as it stands in a dotted one."""
        return self.name if self.each is None else f"{self.name}[]"

    def default(self, option: Option) -> Any:
        """What the option is when it is left out, or REQUIRED."""
        holds = self.each.holds if self.each and option in self.each.options else self.holds
        return next(field.default for field in dataclasses.fields(holds) if field.name == option.name)
