"""File, environment and flags -> one frozen `Config`.

Rules. All mistakes are found before any is raised, those of the file and those of the flags together. A flag wins over
the file, the file over the variables that others have named, those over the defaults. The last rule of `models` matches
everything, so that `describe` shows what holds for a model that the file does not name.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from proxy.config.forms import Each, Option, Section
from proxy.config.kinds import Wrong
from proxy.config.model_options import MODELS
from proxy.config.options import FLAGS, ROOT, VARIABLES, walk
from proxy.config.presets import preset
from proxy.config.reader import Reading, quoted
from proxy.config.values import (
    ANY_MODEL,
    DEFAULT,
    IN_MEMORY,
    Config,
    Flags,
    InvalidConfig,
    Mistake,
    is_same_address,
)

COMMAND_LINE: Final = "command line"
ENVIRONMENT: Final = "environment"
"""What stands for the file in a mistake that is none of a file."""


def load(path: Path | None, flags: Flags, environ: Mapping[str, str]) -> Config:
    """The configuration of a file, or of the flags alone. Raises `InvalidConfig` with every mistake there is."""
    said = _said(flags)
    mistakes, values = _read(path, said, environ)
    _add_variables(values, environ, mistakes)
    mistakes += [
        Mistake(COMMAND_LINE, None, f"--{flag}", value.problem)
        for flag, value in said.items()
        if isinstance(value, Wrong)
    ]
    if mistakes:
        raise InvalidConfig(tuple(sorted(mistakes, key=lambda each: each.line or 0)))
    config = _config(values, {FLAGS[flag]: value for flag, value in said.items()})
    if config.workers != 1 and config.store == IN_MEMORY:
        problem = (
            "several processes cannot share the store memory; set store to sqlite:///transom.db"
            " (one machine) or redis://host:6379/0 (replicas), or workers to 1"
        )
        raise InvalidConfig((Mistake(str(path or COMMAND_LINE), None, "workers", problem),))
    for name, server in config.servers.items():
        if is_same_address(server.base_url, config.listen):
            option = "upstream.base_url" if name == DEFAULT else f"upstreams.{name}.base_url"
            problem = (
                "leads to the address where the proxy itself listens; name the server with the model behind"
            )
            raise InvalidConfig((Mistake(str(path or COMMAND_LINE), None, option, problem),))
    return config


def _said(flags: Flags) -> dict[str, Any]:
    """The flags that were given, with their values or `Wrong`."""
    options = {name: option for name, _, option in walk()}
    return {flag: _flag_value(options[name], text) for flag, name, text in _given(flags)}


def _given(flags: Flags) -> Iterator[tuple[str, str, str]]:
    for flag, name in FLAGS.items():
        text = getattr(flags, flag)
        if text is not None:
            yield flag, name, text


def _add_variables(values: dict[str, Any], environ: Mapping[str, str], mistakes: list[Mistake]) -> None:
    """Put in what the environment says of options that nobody else has set; an empty variable says nothing."""
    options = {name: option for name, _, option in walk()}
    for variable, name in VARIABLES.items():
        section, _, option = name.rpartition(".")
        text, target = environ.get(variable, ""), values.setdefault(section, {})
        if not text or option in target:
            continue
        value = _flag_value(options[name], text)
        if isinstance(value, Wrong):
            mistakes.append(Mistake(ENVIRONMENT, None, variable, value.problem))
        else:
            target[option] = value


def _flag_value(option: Option, text: str) -> Any:
    value = option.kind.read(text)
    if not isinstance(value, Wrong):
        return value
    return Wrong(f"{quoted(text) if option.kind.is_quotable else 'the value'} {value.problem}")


def _read(
    path: Path | None, said: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[list[Mistake], dict[str, Any]]:
    if path is not None:
        reading = Reading(str(path), environ, given=frozenset(FLAGS[flag] for flag in said))
        values = reading.file(path)
        return reading.mistakes, values
    if "upstream" in said:
        return [], {}
    missing = "is missing; give the upstream's address here, or a file with --config"
    return [Mistake(COMMAND_LINE, None, "--upstream", missing)], {}


def _config(values: dict[str, Any], said: Mapping[str, Any]) -> Config:
    """Frozen values of what was read, with the flags on top and a last rule for all other models."""
    rules = values.setdefault(MODELS.name, [])
    if all(rule["match"] != ANY_MODEL or "upstream" in rule for rule in rules):
        rules.append({"match": ANY_MODEL})
    for name, value in said.items():
        section, _, option = name.rpartition(".")
        for target in _targets(values, section):
            target[option] = value
    config = _built(ROOT, values)
    assert isinstance(config, Config)
    models = tuple(preset(*each, config.servers) for each in zip(config.models, rules, strict=True))
    return dataclasses.replace(config, models=models)


def _targets(values: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The mappings that a flag sets: the file itself, a section of it, or every element of a list."""
    if not section:
        return [values]
    if section.endswith("[]"):
        return list(values[section.removesuffix("[]")])
    return [values.setdefault(section, {})]


def _built(section: Section, values: Mapping[str, Any]) -> Any:
    made = dict(values)
    for entry in section.members:
        match entry:
            case Option():
                pass
            case Section(each=None):
                made[entry.name] = _built(entry, values.get(entry.name, {}))
            case Section(each=Each() as each):
                elements = values.get(entry.name, ())
                made[entry.name] = tuple(_element(entry, each, element) for element in elements)
    return section.holds(**made)


def _element(section: Section, each: Each, values: Mapping[str, Any]) -> Any:
    own = {option.name for option in each.options}
    rest = {name: value for name, value in values.items() if name not in own}
    given = {name: value for name, value in values.items() if name in own}
    return each.holds(**given, **{each.rest: _built(section, rest)})
