"""The upstream's list of models, with a window added to each entry.

Rules. What is no list of models is left as it is, and so is every byte of one but the member that is added. Only
`context_length` is ever written: it is the name that most clients read, and OpenRouter's and Moonshot's own.
"""

from collections.abc import Callable

from proxy.context import rawjson
from proxy.context.rawjson import NotJSON
from proxy.wire.dialects import MODELS, PROBES

_PATH = "/models"
_MEMBER = "context_length"
_PROBE = next(probe for probe in PROBES if probe.ask == MODELS)


def is_model_list(path: str) -> bool:
    """Whether a GET of this path (without query) lists models."""
    return path.rstrip("/").endswith(_PATH)


def annotated(body: bytes, window_for: Callable[[str, int | None], int | None]) -> bytes:
    """The list with the windows (tokens) that `window_for` gives for a model and what its entry itself tells."""
    try:
        listed = rawjson.members(body).get("data", b"null")
        entries = rawjson.elements(listed)
        written = [_with_window(entry, window_for) for entry in entries]
        return (
            rawjson.replace(body, {"data": b"[" + b",".join(written) + b"]"}) if written != entries else body
        )
    except NotJSON:
        return body


def _with_window(entry: bytes, window_for: Callable[[str, int | None], int | None]) -> bytes:
    value = rawjson.value(entry)
    name = value.get("id") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str):
        return entry
    told = _PROBE.windows({"data": [value]}, name)
    window = window_for(name, told.tokens if told else None)
    if not window or value.get(_MEMBER) == window:
        return entry
    return rawjson.replace(entry, {_MEMBER: str(window).encode()})
