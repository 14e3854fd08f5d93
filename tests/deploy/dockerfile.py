"""A Dockerfile as the tests read it: its stages, and in each its instructions.

Rules. Only what this project's Dockerfile needs is known; anything else is an error and never passed over.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a Dockerfile: `flags` are its leading `--name=value`, `rest` what follows."""

    name: str
    flags: Mapping[str, str]
    rest: str


@dataclass(frozen=True, slots=True)
class Stage:
    base: str
    alias: str
    steps: tuple[Instruction, ...]

    def all(self, name: str) -> Sequence[Instruction]:
        return [step for step in self.steps if step.name == name]

    def the(self, name: str) -> str:
        """What the only instruction of this name says."""
        [step] = self.all(name)
        return step.rest


KNOWN: Final = frozenset(
    {"FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    | {"ENTRYPOINT", "CMD"}
)


def read_dockerfile(text: str) -> tuple[Stage, ...]:
    """The stages of a Dockerfile. Raises ValueError for an instruction that it does not know or that has no stage."""
    stages: list[Stage] = []
    for step in _instructions(text):
        if step.name not in KNOWN:
            raise ValueError(f"{step.name!r} is no instruction that this Dockerfile should need")
        if step.name == "FROM":
            base, _, alias = step.rest.partition(" AS ")
            stages.append(Stage(base, alias, ()))
        elif not stages:
            raise ValueError(f"{step.name} stands before the first FROM")
        else:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.alias, (*last.steps, step))
    return tuple(stages)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        flags: dict[str, str] = {}
        while name in ("COPY", "HEALTHCHECK", "FROM") and rest.lstrip().startswith("--"):
            flag, _, rest = rest.lstrip().partition(" ")
            key, _, flags[key.removeprefix("--")] = flag.partition("=")
        if name:
            yield Instruction(name, MappingProxyType(flags), rest.strip())
