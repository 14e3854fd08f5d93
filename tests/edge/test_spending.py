"""What side calls may cost in an hour: counted by tenant and in all, and forgotten when the hour is over."""

from dataclasses import dataclass

import pytest

from proxy.config import SideCalls
from proxy.config.values import SideCallLimits
from proxy.edge.spending import HOUR, Spending
from tests.edge.proxied import proxied
from tests.integration.test_side_calls import POLICY, post, strict, talk


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def calls_until_refused(spending: Spending, tenant: str, tokens: int | None = 10, sent: int = 400) -> int:
    made = 0
    while made < 50 and spending.begin(tenant):
        spending.end(tenant, tokens, sent)
        made += 1
    return made


@pytest.mark.parametrize(
    ("limits", "of_one", "of_another"),
    [
        (SideCallLimits(), 50, 50),
        (SideCallLimits(calls=3), 3, 0),
        (SideCallLimits(tenant_calls=3), 3, 3),
        (SideCallLimits(calls=5, tenant_calls=3), 3, 2),
        (SideCallLimits(tokens=25), 3, 0),
        (SideCallLimits(tenant_tokens=25), 3, 3),
    ],
)
def test_limits_hold_for_one_tenant_and_in_all(limits: SideCallLimits, of_one: int, of_another: int) -> None:
    clock = Clock(100.0)
    spending = Spending(limits, clock)
    assert (calls_until_refused(spending, "ada"), calls_until_refused(spending, "bob")) == (
        of_one,
        of_another,
    )
    clock.now += HOUR - 1
    assert calls_until_refused(spending, "ada") in (0, 50)
    clock.now += 1
    assert calls_until_refused(spending, "ada") == of_one, "the hour is over"


def test_tokens_that_nobody_told_are_those_of_the_bytes_sent() -> None:
    assert calls_until_refused(Spending(SideCallLimits(tokens=250), Clock()), "ada", None, sent=400) == 3


async def test_beyond_a_tenants_limit_requests_go_on_without_a_summary_and_others_get_theirs() -> None:
    limits = SideCalls(per_hour=SideCallLimits(tenant_calls=1))
    async with strict() as upstream, proxied(upstream.url, policy=POLICY, side_calls=limits) as proxy:
        actions = [
            (await post(proxy.url, talk(12, last), ("Authorization", f"Bearer {who}"))).header(
                "x-context-actions"
            )
            for last, who in (("One?", "ada"), ("Two?", "bob"))
        ]
        other = talk(14).replace(b"Question 0", b"Question zero")
        beyond = await post(proxy.url, other, ("Authorization", "Bearer ada"))
        assert all((each or "").startswith("summarize=") for each in actions)
        assert (beyond.status, (beyond.header("x-context-actions") or "")[:5]) == (200, "drop=")
        assert len(upstream.side_calls) == 2
        assert proxy.events("side_call")[-1]["outcome"] == "over_limit"
