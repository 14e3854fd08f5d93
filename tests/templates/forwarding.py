"""What the core forwards of a client's requests, without sockets: each with the request it was made from.

Rules. The exchange is the one that serves; whoever judges does so afterwards, so that one run serves every judge. The
upstream of a run takes everything and counts nothing, and each summary differs from every other.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from proxy.context.policy import ModelPolicy
from proxy.exchange import Ask, Order, Prepare, SideCallFailed
from tests.desk import Desk, about


@dataclass(frozen=True, slots=True)
class Forwarded:
    """One request, decoded: as the client sent it, as it was forwarded, and the side calls that were made for it."""

    original: dict[str, Any]
    body: dict[str, Any]
    side_calls: tuple[dict[str, Any], ...]

    @property
    def is_cut(self) -> bool:
        """Whether messages were taken away."""
        return len(self.body["messages"]) < len(self.original["messages"])

    @property
    def is_changed(self) -> bool:
        return self.body != self.original


@dataclass
class Writer(Desk):
    """A desk whose summaries are numbered; with `fails` there are none."""

    fails: bool = False

    def answer_to(self, order: Order) -> str | SideCallFailed:
        if self.fails:
            return SideCallFailed("status_500")
        return f"This is summary number {self.side_calls} of what was said before, and it goes on: {about(order)}."


def forwarded(
    requests: Iterable[dict[str, Any]], policy: ModelPolicy, *, fails: bool = False
) -> Iterator[Forwarded]:
    """What becomes of one client's requests, each sent after the other."""
    desk = Writer(policy, fails=fails)
    for request in requests:
        desk.run(json.dumps(request).encode())
        [body] = desk.sent
        made = [each.order.body for each in desk.done if isinstance(each, Ask | Prepare)]
        desk.done.clear()
        yield Forwarded(request, json.loads(body), tuple(json.loads(order) for order in made))
