"""The resolved configuration as text.

Rules. The text is YAML that the reader takes: read again, it gives the same configuration, but for the credentials,
which are hidden. Every option is there, in the order of the table. The same configuration gives the same text.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from proxy.config.forms import Each, Option, Section
from proxy.config.options import ROOT
from proxy.config.presets import PRESETS, left_to_presets
from proxy.config.values import DEFAULT, Config, ModelRule


def describe(config: Config) -> str:
    """YAML text of all options with their values, defaults included; `api_key: (set, hidden)` for credentials.

    What the presets of several upstreams make of one rule is left out there, and told with all that they set behind.
    """
    text = yaml.dump(_shown(ROOT, config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return f"{text}{''.join(_presets(config))}"


def _presets(config: Config) -> Iterator[str]:
    """A comment for each preset."""
    for name, options in config.servers.items():
        if options.preset is not None:
            preset = PRESETS[options.preset]
            sets = ", ".join(f"{option}: {value}" for option, value in preset.options.items())
            server = "upstream" if name == DEFAULT else f"the upstream {name}"
            yield f"# The preset {options.preset} of {server} sets {sets}, where a rule does not. {preset.evidence}\n"


class _Dumper(yaml.SafeDumper):
    """Text as people read it: many lines as a block, and rare line ends escaped, which PyYAML would fold away."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _RARE_LINE_ENDS & set(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_RARE_LINE_ENDS: Final = frozenset("\r\x85\u2028\u2029")
_Dumper.add_representer(str, _text)


def _shown(section: Section, holder: Any) -> dict[str, object]:
    shown: dict[str, object] = {}
    for entry in section.members:
        value = getattr(holder, entry.name)
        match entry:
            case Option():
                shown[entry.name] = _value(entry, value)
            case Section(each=None):
                shown[entry.name] = _shown(entry, value)
            case Section(each=Each() as each):
                shown[entry.name] = [_element(entry, each, element) for element in value]
    return shown


def _element(section: Section, each: Each, element: Any) -> dict[str, object]:
    own = {option.name: _value(option, getattr(element, option.name)) for option in each.options}
    left = left_to_presets(element) if isinstance(element, ModelRule) else frozenset()
    rest = _shown(section, getattr(element, each.rest))
    return {**own, **{name: value for name, value in rest.items() if name not in left}}


def _value(option: Option, value: Any) -> object:
    if value is None:
        return None
    return [_scalar(option, each) for each in value] if option.is_list else _scalar(option, value)


def _scalar(option: Option, value: Any) -> object:
    shown = option.kind.show(value)
    return shown.replace("$", "$$") if isinstance(shown, str) else shown
