"""A file of tokens: one a line.

Rules. The file is read when the configuration is. One that cannot be read, or that holds no token, is a mistake
and never the same as no file: a proxy that should ask for tokens must not start without any. What is wrong is told by
the number of a line, never by its text.
"""

from typing import Final

from proxy.config import shapes
from proxy.config.kinds import TOKEN, Kind, Wrong
from proxy.config.text_file import text_of
from proxy.config.values import Secret, TokensFile

_COMMENT: Final = "#"


def _read(text: str) -> object:
    path = text.strip()
    found = text_of(path)
    if isinstance(found, Wrong):
        return found
    tokens: list[Secret] = []
    for number, line in enumerate(found.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(_COMMENT):
            continue
        token = TOKEN.read(line)
        if not isinstance(token, Secret):
            problem = token.problem if isinstance(token, Wrong) else "is no token"
            return Wrong(f"has on line {number} what {problem}")
        tokens.append(token)
    if not tokens:
        return Wrong("holds no token; write one a line, or leave the option out to let everybody in")
    return TokensFile(path, tuple(tokens))


TOKENS_FILE: Final = Kind(_read, shapes.FILE, str, is_quotable=False)  # a token may stand there by mistake
