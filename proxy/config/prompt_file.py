"""A file of instructions for the model that writes summaries.

Rules. The file is read when the configuration is. One that cannot be read, or that says nothing, is a mistake.
"""

from typing import Final

from proxy.config import shapes
from proxy.config.kinds import Kind, Wrong
from proxy.config.text_file import text_of
from proxy.config.values import PromptFile


def _read(text: str) -> object:
    path = text.strip()
    found = text_of(path)
    if isinstance(found, Wrong):
        return found
    prompt = found.strip()
    return (
        PromptFile(path, prompt)
        if prompt
        else Wrong("is empty; leave the option out for the built-in prompt")
    )


PROMPT_FILE: Final = Kind(_read, shapes.FILE, str)
