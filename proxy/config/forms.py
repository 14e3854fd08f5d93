"""The forms in which an option is written down.

Rules. An option says its name, kind, unit, what it does, and why one would change it; its default is that of the field
of the same name in the section's dataclass. Nothing here knows an option.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.config.kinds import Kind
from proxy.config.values import ModelRule

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
class Section:
    """A key with keys of its own, which become the dataclass `holds`.

    selector   set for a list of such mappings: the option that says what an element is for
    ascending  options whose values must grow in this order
    check      of the values that are given: the name of one that is of no use, and why
    """

    name: str
    holds: type
    effect: str
    members: "tuple[Option | Section, ...]"
    selector: Option | None = None
    ascending: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], tuple[str, str] | None] | None = None

    @property
    def entries(self) -> "tuple[Option | Section, ...]":
        """All keys of one mapping, the selector first."""
        return self.members if self.selector is None else (self.selector, *self.members)

    def default(self, option: Option) -> Any:
        """What the option is when it is left out, or REQUIRED."""
        holds = ModelRule if option is self.selector else self.holds
        return next(field.default for field in dataclasses.fields(holds) if field.name == option.name)
