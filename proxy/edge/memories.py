"""What is remembered between requests: checkpoints and what was learned of a model, in whatever store there is.

Rules. Everything that a request needs is read in one round trip, and nothing that was learned is written before an
answer: that is known here at once and written a little later. Keys of learned values name upstream and model by a
digest, so that any name fits any store; they cannot be taken for keys of a chain, which are plain hexadecimal digits.
A value that this version cannot read counts as absent, and so does everything while the store is out of reach: no
request fails for that.
"""

import contextlib
import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import msgspec

from proxy.context import calibration
from proxy.context.budget import REFUSAL, Window
from proxy.context.calibration import UNCALIBRATED, Anchor, Calibration, CalibrationPolicy
from proxy.context.edits import Edits, decode, encode
from proxy.edge.lessons import INTERVAL, Lessons
from proxy.errors import StoreUnavailable
from proxy.exchange import Learn, Memory
from proxy.stores import Store

PROOF_AGE: Final = 86_400.0
"""Seconds for which an answer proves a window: a server may come back with a larger one."""


@dataclass(frozen=True, slots=True)
class ProvedWindow:
    """What an answer left possible, in tokens, when it came, in seconds since the epoch, and what it was."""

    tokens: int
    at: float
    source: str = REFUSAL


class Memories:
    """The memories of one upstream; `upstream` is its name. Close them before the store."""

    def __init__(
        self,
        store: Store,
        upstream: str,
        *,
        shared: Callable[[], bool] = lambda: True,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`shared` says whether others would see what is saved now; lessons are written every `interval` seconds.

        `clock` tells seconds since the epoch, which other processes share.
        """
        self._clock = clock
        self._store = store
        self._upstream = upstream
        self._shared = shared
        self._lessons = Lessons(store, interval=interval)
        self._usual_keys = lru_cache(maxsize=1024)(_keys)
        self._of_model = lru_cache(maxsize=256)(_of_model)

    def of(self, upstream: str) -> "Memories":
        """Those of another upstream, in the same store; they are closed with these."""
        other = copy.copy(self)
        other._upstream = upstream
        return other

    async def recall(self, model: str, chain: Sequence[str], opening: str = "", who: str = "") -> Memory:
        """The newest checkpoint on this chain, the summaries that wait on it, and what was learned of the model."""
        prefixes = [*chain, *[f"{_SUMMARY}:{key}" for key in chain]]
        learned = (*self._keys(model), f"{_ANCHORS}:{opening}", f"{_WINDOW}:{who}")
        lessons = self._lessons
        try:
            *stored, known, refusal, anchors, window = await self._store.read([*prefixes, *learned])
        except StoreUnavailable:
            stored, (known, refusal, anchors, window) = [None] * len(prefixes), map(lessons.latest, learned)
        of_model = self._of_model(
            lessons.seen(learned[0], known), lessons.seen(learned[1], refusal) is not None, self._shared()
        )
        anchors, window = lessons.found(learned[2], anchors), lessons.found(learned[3], window)
        if stored.count(None) == len(stored) and anchors is None and window is None:
            return of_model  # nearly always: of a new conversation, and of one that was never cut, nothing is stored
        checkpoints, texts = stored[: len(chain)], stored[len(chain) :]
        kept = [at for at in range(len(chain)) if checkpoints[at] is not None or texts[at] is not None]
        key, edits = _newest(chain, checkpoints) if kept else (None, None)
        return replace(
            of_model,
            edits=edits,
            checkpoint_id=key,
            summaries={chain[at]: text for at in kept if (text := _text(texts[at]))},
            anchors=_anchors(anchors),
            window=self._window(window),
            kept=tuple(chain[at] for at in kept),
        )

    async def learn(self, lesson: Learn, policy: CalibrationPolicy) -> None:
        """Take in what an answer taught."""
        key, refusal = self._keys(lesson.model)
        if lesson.refuses_usage:
            self._lessons.put(refusal, b"true")
        if lesson.anchors:
            self._lessons.put(f"{_ANCHORS}:{lesson.opening}", msgspec.json.encode(lesson.anchors))
        if lesson.window is not None:
            proved = ProvedWindow(lesson.window.tokens, self._clock(), lesson.window.source)
            self._lessons.put(f"{_WINDOW}:{lesson.who}", msgspec.json.encode(proved))
        with contextlib.suppress(StoreUnavailable):  # the next answer teaches the same
            known = _calibration(await self._lessons.known(key))
            taught = calibration.learn(known, lesson.raw_tokens, lesson.reported_tokens, policy)
            if taught is not known:
                self._lessons.put(key, msgspec.json.encode(taught))

    async def save(self, key: str, edits: Edits, *, replaces: bool = False) -> Edits:
        """Store edits unless there are some, or in their place; those that are there afterwards."""
        try:
            if replaces:
                await self._store.write({key: encode(edits)})
                return edits
            winner = await self._store.claim(key, encode(edits))
        except StoreUnavailable:
            return edits
        return decode(winner) or edits

    async def keep(self, key: str, text: str) -> None:
        """Store a summary of the prefix that this key names, for when it is needed."""
        with contextlib.suppress(StoreUnavailable):
            await self._store.write({f"{_SUMMARY}:{key}": text.encode("utf-8", "replace")})

    async def forget(self, keys: Sequence[str]) -> None:
        """Forget the checkpoints and summaries under these keys. Raises StoreUnavailable."""
        await self._store.forget([*keys, *(f"{_SUMMARY}:{key}" for key in keys)])

    async def close(self) -> None:
        """Write what was learned and not yet written."""
        await self._lessons.close()

    def _window(self, stored: bytes | None) -> Window | None:
        """A proved window, for as long as the proof is believed."""
        try:
            proved = None if stored is None else _WINDOW_CODEC.decode(stored)
        except msgspec.DecodeError:
            return None
        if proved is None or not 0 <= self._clock() - proved.at <= PROOF_AGE:
            return None
        return Window(proved.tokens, proved.source) if proved.tokens else None

    def _keys(self, model: str) -> tuple[str, str]:
        usual = len(model) <= _USUAL_NAME  # a longer one is not worth keeping
        return (self._usual_keys if usual else _keys)(self._upstream, model)


_USUAL_NAME: Final = 200
"""Characters of a model's name up to which it is worth keeping."""


def _keys(upstream: str, model: str) -> tuple[str, str]:
    """Where a model's calibration is kept, and that it refuses `include_usage`."""
    names = msgspec.json.encode([upstream, model.encode("utf-8", "surrogatepass")])
    name = hashlib.blake2b(names, digest_size=16).hexdigest()
    return f"{_CALIBRATION}:{name}", f"{_REFUSAL}:{name}"


_SUMMARY: Final = "summary"
_CALIBRATION: Final = "calibration"
_ANCHORS: Final = "anchors"
_WINDOW: Final = "window"
_REFUSAL: Final = "refuses-usage"

_CODEC: Final = msgspec.json.Decoder(Calibration)
_WINDOW_CODEC: Final = msgspec.json.Decoder(ProvedWindow)
_ANCHOR_CODEC: Final = msgspec.json.Decoder(tuple[Anchor, ...])


def _newest(chain: Sequence[str], values: Sequence[bytes | None]) -> tuple[str, Edits] | tuple[None, None]:
    for length in range(len(chain), 0, -1):
        value = values[length - 1]
        edits = None if value is None else decode(value)
        if edits is not None and edits.speaks_about <= length:
            return chain[length - 1], edits
    return None, None


def _text(stored: bytes | None) -> str:
    """A stored summary; empty where there is none that can be read."""
    try:
        return "" if stored is None else stored.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _calibration(stored: bytes | None) -> Calibration:
    try:
        return UNCALIBRATED if stored is None else _CODEC.decode(stored)
    except msgspec.DecodeError:
        return UNCALIBRATED


def _of_model(known: bytes | None, refuses_usage: bool, may_ask: bool) -> Memory:
    """What is remembered where nothing is of the conversation."""
    return Memory(may_ask=may_ask, calibration=_calibration(known), refuses_usage=refuses_usage)


def _anchors(stored: bytes | None) -> tuple[Anchor, ...]:
    try:
        return () if stored is None else _ANCHOR_CODEC.decode(stored)
    except msgspec.DecodeError:
        return ()
