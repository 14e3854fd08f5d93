"""The event of a request, as the log has it: counts, fixed words and bounded names.

Rules. What does not apply is absent, and what could not be known is null; docs/operations.md says what each field
tells. Tokens are estimates unless they are called reported, times are seconds. The names are a contract with whoever
reads the log.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from proxy.edge.metrics import Added
from proxy.exchange import Verdict

NO_TIME: Final[Mapping[str, float]] = MappingProxyType({})

Count: TypeAlias = int | UnsetType | None
"""Of a managed request alone, and there null where it could not be known."""


class SideCallTold(msgspec.Struct, frozen=True):
    """A side call of this request; the tokens are the upstream's."""

    outcome: str
    prompt_tokens: int | None
    completion_tokens: int | None


class RequestEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request that is over."""

    request_id: str
    method: str
    path: str
    status: int | None
    complete: bool
    bytes_in: int
    bytes_out: int
    seconds: float
    trace_id: str = ""
    window: Count = UNSET
    window_source: str = ""
    trigger: Count = UNSET
    tokens: Count = UNSET
    original_tokens: Count = UNSET
    raw_tokens: Count = UNSET
    factor: float | UnsetType | None = UNSET
    reported_tokens: Count = UNSET
    usage_based: bool | UnsetType = UNSET
    actions: str = ""
    checkpoint: str | UnsetType | None = UNSET
    reason: str = ""
    cached_tokens: int | None = None
    removed_tokens: int | None = None
    pins: int = 0
    pins_in_view: int | UnsetType = UNSET
    side_calls: tuple[SideCallTold, ...] = ()
    upstream_request_id: str = ""
    upstream_status: int | None = None
    upstream: str = ""
    mode: str = ""
    model: str = ""
    beginning: str = ""
    usage_unread: str = ""
    added: Added | None = None
    spent: Mapping[str, float] = NO_TIME

    def say(self, verdict: Verdict) -> None:
        """Take in what is known of a managed request."""
        self.window = verdict.window
        self.window_source = verdict.window_source or "unknown"
        self.trigger = verdict.trigger
        self.tokens = verdict.forwarded
        self.original_tokens = verdict.original
        self.raw_tokens = verdict.raw
        self.factor = None if verdict.factor is None else rounded(verdict.factor)
        self.reported_tokens = verdict.reported
        self.usage_based = verdict.usage_based
        self.actions = self.actions or verdict.actions
        self.checkpoint = verdict.checkpoint_id
        self.reason = self.reason or verdict.reason
        self.cached_tokens = verdict.usage.cached if verdict.usage else None
        self.removed_tokens = verdict.removed
        if verdict.pins:
            self.pins, self.pins_in_view = verdict.pins, verdict.pins_kept
        if verdict.side_calls:
            self.side_calls = tuple(
                SideCallTold(
                    call.outcome,
                    call.usage.prompt_tokens if call.usage else None,
                    call.usage.completion_tokens if call.usage else None,
                )
                for call in verdict.side_calls
            )

    def say_times(self, added: Added | None, spent: dict[str, float]) -> None:
        """Take in where the time went."""
        if added is not None:
            self.added = Added(rounded(added.before), rounded(added.after))
        if spent:
            self.spent = {kind: rounded(took) for kind, took in spent.items()}


_PLACES: Final = 4


def rounded(number: float) -> float:
    """As the log has it: a time to a tenth of a millisecond."""
    return round(number, _PLACES)
