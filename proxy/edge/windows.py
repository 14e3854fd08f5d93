"""The windows that requests went by: said once each in the log, and added to the upstream's list of models if wanted.

Rules. Nothing is decided here. A window of a model is said once; names of models are the clients' to invent, so that
all that is kept is bounded. One tenant never sees what was learned for another.
"""

from collections import OrderedDict
from typing import Final

from structlog.typing import FilteringBoundLogger

from proxy.config import Config
from proxy.context.budget import REFUSAL, SILENT_CUT
from proxy.context.policy import Mode
from proxy.exchange import Verdict
from proxy.wire import model_list

MOST_TOLD: Final = 500
MODEL_CHARACTERS: Final = 100
"""A model's name is the client's text; the log takes no more of it."""

_MOST_KNOWN: Final = 2000
_MOST_BYTES: Final = 8 * 1024 * 1024
"""A longer list of models goes by as it is."""


class Windows:
    """The windows of one upstream's models; `upstream` is its name."""

    def __init__(self, config: Config, log: FilteringBoundLogger, upstream: str) -> None:
        self._config = config
        self._upstream = upstream
        self._log = log
        self._told: set[tuple[str, int | None, str]] = set()
        self._cutting: set[str] = set()
        self._gone_by: OrderedDict[tuple[str, str], int] = OrderedDict()

    def note(self, tenant: str, verdict: Verdict) -> None:
        """Take in the window that a request went by, and what tells that it is larger than the real one."""
        model, window, source = verdict.model[:MODEL_CHARACTERS], verdict.window, verdict.window_source
        if window is not None:
            self._keep((tenant, verdict.model), window)
        told = (model, window, source)
        is_idle = window is None and verdict.mode is not Mode.MANAGE
        if not is_idle and told not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(told)
            self._say(model, window, source)
        if verdict.recovered:
            self._log.warning("prompt_was_refused", model=model, window=window)
        if verdict.seems_cut and model not in self._cutting and len(self._cutting) < MOST_TOLD:
            self._cutting.add(model)
            counts = {"sent": verdict.forwarded, "counted": verdict.reported, "window": window}
            self._log.warning("prompt_seems_cut", model=model, **counts)

    def annotator(self, tenant: str) -> "Annotator":
        """Adds this tenant's windows to a list of models that goes by."""
        return Annotator(self, tenant)

    def window_for(self, tenant: str, model: str, told: int | None) -> int | None:
        """The window that a request of this tenant would go by, in tokens; `told` is what the list itself says."""
        return (
            self._gone_by.get((tenant, model))
            or self._config.policy_for(model, self._upstream).window
            or told
        )

    def _say(self, model: str, window: int | None, source: str) -> None:
        if window is None:
            effect = "nothing is compacted until the upstream tells it or refuses a prompt"
            self._log.warning("window_unknown", model=model, effect=effect)
        elif source in (REFUSAL, SILENT_CUT):
            self._log.warning("window_lowered", model=model, window=window, source=source)
        else:
            self._log.info("window", model=model, window=window, source=source)

    def _keep(self, key: tuple[str, str], window: int) -> None:
        self._gone_by[key] = window
        self._gone_by.move_to_end(key)
        if len(self._gone_by) > _MOST_KNOWN:
            self._gone_by.popitem(last=False)


class Annotator:
    """Holds a list of models back until it is whole, and lets it go on with the windows added."""

    def __init__(self, windows: Windows, tenant: str) -> None:
        self._windows = windows
        self._tenant = tenant
        self._pieces: list[bytes] = []
        self._room = _MOST_BYTES

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes; those that go on."""
        if self._room < 0:
            return chunk
        self._pieces.append(chunk)
        self._room -= len(chunk)
        return b"".join(self._pieces) if self._room < 0 else b""

    async def read_on(self) -> None:
        """Nothing can be done before the end."""

    def end(self) -> bytes:
        """Nothing more comes; the bytes that still go on."""
        return b"" if self._room < 0 else model_list.annotated(b"".join(self._pieces), self._window_for)

    def _window_for(self, model: str, told: int | None) -> int | None:
        return self._windows.window_for(self._tenant, model, told)
