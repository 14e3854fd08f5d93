"""What side calls have cost in the last hour, of each tenant and in all, held against what they may cost.

Rules. A call counts when it is made, its tokens when it has ended, by its usage, or where none is told by the bytes
that were sent: so calls that run at once may pass a limit on tokens together, and none is begun after. Without limits
nothing is remembered. It lives in this process alone: workers and replicas
each have accounts of their own.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from proxy.config.values import SideCallLimits

HOUR: Final = 3600.0

_BYTES_PER_TOKEN: Final = 4
_MOST_TENANTS: Final = 1024


class _Account:
    """The calls and tokens of one hour."""

    def __init__(self) -> None:
        self._calls: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def is_below(self, calls: int | None, tokens: int | None, since: float) -> bool:
        """Whether one more call may be made, with what was spent before this moment forgotten."""
        while self._calls and self._calls[0] <= since:
            self._calls.popleft()
        while self._spent and self._spent[0][0] <= since:
            self._tokens -= self._spent.popleft()[1]
        return (calls is None or len(self._calls) < calls) and (tokens is None or self._tokens < tokens)

    def call(self, now: float) -> None:
        """One call is made."""
        self._calls.append(now)

    def spend(self, now: float, tokens: int) -> None:
        """It has cost so much."""
        self._spent.append((now, tokens))
        self._tokens += tokens


class Spending:
    """The accounts of all tenants. `clock` tells seconds."""

    def __init__(self, limits: SideCallLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._all = _Account()
        self._tenants: OrderedDict[str, _Account] = OrderedDict()

    def begin(self, tenant: str) -> bool:
        """Take one call on the accounts; False where a limit is reached, and then nothing is taken."""
        limits, now = self._limits, self._clock()
        if limits == SideCallLimits():
            return True
        own = self._account(tenant)
        may = self._all.is_below(limits.calls, limits.tokens, now - HOUR)
        may = own.is_below(limits.tenant_calls, limits.tenant_tokens, now - HOUR) and may
        if may:
            self._all.call(now)
            own.call(now)
        return may

    def end(self, tenant: str, told: int | None, sent: int) -> None:
        """What a call cost: the tokens that were told, or else about those of so many bytes."""
        if self._limits == SideCallLimits():
            return
        tokens = sent // _BYTES_PER_TOKEN if told is None else told
        for account in (self._all, self._account(tenant)):
            account.spend(self._clock(), tokens)

    def _account(self, tenant: str) -> _Account:
        account = self._tenants.setdefault(tenant, _Account())
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > _MOST_TENANTS:
            self._tenants.popitem(last=False)
        return account
