"""What is new in a configuration beside the one that runs.

Rules. An option that only a restart can change keeps the value that it has; it is named, like every option that takes
its new value. Values are not told.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.config.forms import Option, Section
from proxy.config.options import ROOT, walk
from proxy.config.values import Config


@dataclass(frozen=True, slots=True)
class Change:
    """`config` is what to go by from now on. The names are dotted; `applied` are those that change with it."""

    config: Config
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def between(running: Config, wanted: Config) -> Change:
    """What becomes of a running configuration when another one is wanted."""
    differs = dict(_differences(ROOT, running, wanted, ""))
    held = tuple(name for name, needs_restart in differs.items() if needs_restart)
    applied = tuple(name for name, needs_restart in differs.items() if not needs_restart)
    return Change(_holding(wanted, running, held), applied, held)


def restart_names() -> tuple[str, ...]:
    """The options that only a restart can change."""
    return tuple(name for name, _, option in walk() if option.needs_restart)


def files_of(config: Config) -> tuple[str, ...]:
    """The files that a configuration names and that are read with it."""
    tokens = config.auth.tokens_file
    secured = (*(options.tls for options in config.servers.values()), config.side_calls.tls)
    read = [each.path for each in (tokens, config.side_calls.prompt_file) if each is not None]
    return (*read, *(file for tls in secured for file in tls.files))


def _differences(section: Section, running: Any, wanted: Any, prefix: str) -> Iterator[tuple[str, bool]]:
    """Dotted names of what differs, and whether that needs a restart."""
    for entry in section.members:
        name = f"{prefix}{entry.name}"
        before, after = getattr(running, entry.name), getattr(wanted, entry.name)
        if before == after:
            continue
        match entry:
            case Option():
                yield name, entry.needs_restart
            case Section(each=None):
                yield from _differences(entry, before, after, f"{name}.")
            case Section():
                yield name, False


def _holding(wanted: Any, running: Any, names: tuple[str, ...]) -> Any:
    """What is wanted, with these options as they are in what runs."""
    kept: dict[str, Any] = {}
    for name in dict.fromkeys(name.partition(".")[0] for name in names):
        below = tuple(each.partition(".")[2] for each in names if each.startswith(f"{name}."))
        before, after = getattr(running, name), getattr(wanted, name)
        kept[name] = _holding(after, before, below) if below else before
    return dataclasses.replace(wanted, **kept)
