"""The configuration file as a JSON Schema, for editors that complete and check while one writes.

Rules. It comes from the table of options alone and refuses nothing that the reader takes, but for one thing: an option
without a default is required here even where a flag gives it. What it cannot say, such as values that must grow, the
reader checks. It is of draft-07, which every editor knows.
"""

import json
from typing import Any, Final

from proxy.config.forms import REQUIRED, Option, Section
from proxy.config.kinds import Kind
from proxy.config.options import ROOT

DRAFT: Final = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """The schema of a whole file."""
    reference = {
        "description": "${NAME} or ${NAME:-default}, from the environment",
        "type": "string",
        "pattern": r"\$\{[A-Za-z_]",
    }
    about = {"$schema": DRAFT, "title": "Transom's configuration", "definitions": {"reference": reference}}
    return about | _mapping(ROOT) | {"type": ["object", "null"]}


def text() -> str:
    """The schema as it is printed and checked in."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def shown_default(section: Section, option: Option) -> Any:
    """An option's default as a file would have it; None where it is off or has none."""
    default = section.default(option)
    if default is None or default is REQUIRED:
        return None
    return [option.kind.show(each) for each in default] if option.is_list else option.kind.show(default)


def _mapping(section: Section) -> dict[str, Any]:
    options = [entry for entry in section.entries if isinstance(entry, Option)]
    required = [option.name for option in options if section.default(option) is REQUIRED]
    keys = {
        entry.name: _option(section, entry) if isinstance(entry, Option) else _section(entry)
        for entry in section.entries
    }
    made = {"type": "object", "additionalProperties": False, "properties": keys}
    return made | ({"required": required} if required else {})


def _section(section: Section) -> dict[str, Any]:
    described = {"description": section.effect}
    if section.each is not None:
        return described | {"type": ["array", "null"], "items": _mapping(section)}
    return described | _mapping(section) | {"type": ["object", "null"]}


def _option(section: Section, option: Option) -> dict[str, Any]:
    unit = f" Unit: {option.unit}." if option.unit else ""
    described: dict[str, Any] = {"description": f"{option.effect} {option.reason}{unit}"}
    default = shown_default(section, option)
    if default is not None:
        described["default"] = default
    value = _value(option.kind)
    if option.is_list:
        value = [{"type": "array", "items": {"anyOf": value}, "uniqueItems": True}]
    return described | {"anyOf": value if section.default(option) is REQUIRED else [*value, {"type": "null"}]}


def _value(kind: Kind) -> list[dict[str, Any]]:
    shape = dict(kind.shape.schema)
    return [*shape.get("anyOf", [shape]), {"$ref": "#/definitions/reference"}]
