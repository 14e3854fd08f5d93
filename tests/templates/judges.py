"""Every judge by its name: the published templates, and the versions of Mistral's own validation."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tests.templates.mistral import VERSIONS, MistralRules
from tests.templates.published import PUBLISHED, published
from tests.templates.render import Judge

_MISTRAL: Final[Mapping[str, MistralRules]] = MappingProxyType(
    {rules.name: rules for rules in map(MistralRules, VERSIONS)}
)

NAMES: Final = (*PUBLISHED, *_MISTRAL)


def judge_named(name: str) -> Judge:
    """The judge; a published template that is not installed skips the test, see `published`."""
    return _MISTRAL[name] if name in _MISTRAL else published(name)
