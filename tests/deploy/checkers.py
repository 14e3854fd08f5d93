"""The programs that check deployment files, and configurations read as the proxy reads them.

Rules. A checker is the well-kept one of its kind, run as its users run it, at its strictest. One that is not installed
ends the test, as `tests.needs` says. A configuration that a deployment carries is read with the environment that this
deployment gives it, and with nothing else.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from proxy.config import Config, Flags, load
from tests.needs import lacks


def program(name: str) -> str:
    """A checker that comes with the project's own tools, or with the system."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        lacks(f"{name} is not installed", "`make test` installs it, where it comes as a package")
    return found


def configuration(folder: Path, text: str, environ: Mapping[str, str], mounts: Mapping[str, Path]) -> Config:
    """What the proxy makes of a configuration whose folders are mounted elsewhere. Raises for any mistake."""
    for place, folder_here in mounts.items():
        text = text.replace(f"{place}/", f"{folder_here}/")
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, Flags(), environ)
