"""Configuration files as tests write them.

Rules. Whatever is read goes through a real file and `load`. The file's name is always the same, so that a mistake's
whole place can be told beforehand.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from proxy.config import Config, Flags, InvalidConfig, Mistake, load

URL: Final = "http://127.0.0.1:8080/v1"
UPSTREAM: Final = f"upstream: {{base_url: '{URL}'}}\n"
NAME: Final = "transom.yaml"
NO_FLAGS: Final = Flags()
NO_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({})


def model(option: str) -> str:
    """A valid file with one rule, whose option stands on line 4."""
    return f"{UPSTREAM}models:\n  - match: '*'\n    {option}\n"


def read(
    folder: Path,
    text: str | bytes,
    flags: Flags = NO_FLAGS,
    environ: Mapping[str, str] = NO_ENVIRONMENT,
) -> Config:
    """The configuration that a file with this text gives."""
    path = folder / NAME
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, flags, environ)


def mistakes(
    folder: Path,
    text: str | bytes,
    flags: Flags = NO_FLAGS,
    environ: Mapping[str, str] = NO_ENVIRONMENT,
) -> tuple[Mistake, ...]:
    """All mistakes of a file with this text. Fails when there is none."""
    with pytest.raises(InvalidConfig) as caught:
        read(folder, text, flags, environ)
    return caught.value.mistakes


def only_mistake(folder: Path, text: str | bytes, environ: Mapping[str, str] = NO_ENVIRONMENT) -> Mistake:
    """The one mistake of a file with this text. Fails when there are more or none."""
    found = mistakes(folder, text, environ=environ)
    assert len(found) == 1, found
    return found[0]
