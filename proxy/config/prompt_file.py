"""A file of instructions for the model that writes summaries.

Rules. The file is read when the configuration is. One that cannot be read, or that says nothing, is a mistake.
"""

from pathlib import Path
from typing import Final

from proxy.config import shapes
from proxy.config.kinds import Kind, Wrong
from proxy.config.values import PromptFile


def _read(text: str) -> object:
    path = text.strip()
    try:
        prompt = Path(path).read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        return Wrong(f"cannot be read: {error.strerror or type(error).__name__}")
    except ValueError:  # no UTF-8, or a path with a zero byte
        return Wrong("is no file of text; save it as UTF-8")
    return (
        PromptFile(path, prompt)
        if prompt
        else Wrong("is empty; leave the option out for the built-in prompt")
    )


PROMPT_FILE: Final = Kind(_read, shapes.FILE, str)
