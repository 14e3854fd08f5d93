"""The upstream's list of models, with a window added to each entry.

Rules. What is no list of models is left as it is, and so is every byte of one but the member that is added. Only
`context_length` is ever written: it is the name that most clients read, and OpenRouter's and Moonshot's own. A list of
very many entries is left as it is, too: everyone else's requests would wait for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from proxy.context import rawjson
from proxy.context.rawjson import NotJSON
from proxy.wire.dialects import MODELS, PROBES

_PATH = "/models"
_MEMBER = "context_length"
_PROBE = next(probe for probe in PROBES if probe.ask == MODELS)


def is_model_list(path: str) -> bool:
    """Whether a GET of this path (without query) lists models."""
    return path.rstrip("/").endswith(_PATH)


MOST_ENTRIES: Final = 2000
"""Most lists have a few hundred; so many cost a sixth of a second."""

WindowFor = Callable[[str, int | None], int | None]
"""The window (tokens) to write for a model, by its name and what the list itself tells."""


def annotated(body: bytes, window_for: WindowFor) -> bytes:
    """The list with the windows that `window_for` gives."""
    try:
        entries = rawjson.elements(rawjson.members(body).get("data", b"null"))
        if len(entries) > MOST_ENTRIES:
            return body
        written = list(_with_windows(entries, window_for))
        return (
            rawjson.replace(body, {"data": b"[" + b",".join(written) + b"]"}) if written != entries else body
        )
    except NotJSON:
        return body


def _with_windows(entries: Sequence[bytes], window_for: WindowFor) -> Iterator[bytes]:
    values = [value if isinstance(value := rawjson.value(entry), dict) else {} for entry in entries]
    named = {value.get("id"): value for value in values if isinstance(value.get("id"), str)}
    for entry, value in zip(entries, values, strict=True):
        name, parent = value.get("id"), value.get("parent")
        if not isinstance(name, str):
            yield entry
            continue
        # An adapter without a number of its own has that of its parent.
        bases = [named[parent]] if isinstance(parent, str) and parent in named else []
        yield _with_window(entry, value, window_for(name, _told([value, *bases], name)))


def _told(values: Sequence[Mapping[str, object]], name: str) -> int | None:
    found = _PROBE.windows({"data": values}, name)
    return found.tokens if found else None


def _with_window(entry: bytes, value: Mapping[str, object], window: int | None) -> bytes:
    if not window or value.get(_MEMBER) == window:
        return entry
    return rawjson.replace(entry, {_MEMBER: str(window).encode()})
