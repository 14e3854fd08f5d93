"""Whether requests should be sent here: by the store until it has answered, by the upstream where that is wanted."""

import asyncio
from dataclasses import dataclass, field

import pytest

from proxy.config import Address, Secret
from proxy.config.values import Admin, Auth
from proxy.edge.questions import UNREACHABLE, Answer
from proxy.edge.readiness import FRESH, Readiness
from proxy.edge.sidecalls import Origin
from proxy.wire.dialects import Ask
from tests.edge.proxied import Watched, proxied
from tests.peers.client import RawClient
from tests.peers.upstream import ScriptedUpstream, json_answer

NOWHERE = "http://127.0.0.1:9/v1"
AUTH = Auth((Secret("token-of-ada"),))


@dataclass
class Scene:
    """A store and an upstream that answer or do not, and a clock that tells what it is set to."""

    store: bool = True
    upstream: Answer = field(default_factory=lambda: Answer(200, b"{}"))
    now: float = 0.0
    asked: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
        self.asked += 1
        await self.gate.wait()
        return self.upstream

    async def open(self) -> None:
        self.gate.set()

    def readiness(self, needs_upstream: bool = False) -> Readiness:
        return Readiness(lambda: self.store, self if needs_upstream else None, lambda: self.now)


async def test_a_process_is_ready_once_its_store_has_answered_and_stays_so() -> None:
    scene = Scene(store=False)
    readiness = scene.readiness()
    assert await readiness.told() == {"status": "not_ready", "store": "out_of_reach"}
    scene.store = True
    assert await readiness.told() == {"status": "ready", "store": "ok"}
    scene.store = False
    assert await readiness.told() == {"status": "ready", "store": "out_of_reach"}
    assert scene.asked == 0


ANSWERS = {200: True, 401: True, 404: True, 500: False, 503: False, UNREACHABLE: False}


@pytest.mark.parametrize(("status", "is_ready"), ANSWERS.items())
async def test_an_upstream_that_is_needed_has_to_answer_whatever_it_says(status: int, is_ready: bool) -> None:
    scene = Scene(upstream=Answer(status, b""))
    await scene.open()
    told = await scene.readiness(needs_upstream=True).told()
    word = "ready" if is_ready else "not_ready"
    assert told == {"status": word, "store": "ok", "upstream": "ok" if is_ready else "out_of_reach"}


async def test_however_many_ask_the_upstream_is_asked_once_in_a_while() -> None:
    scene = Scene()
    readiness = scene.readiness(needs_upstream=True)
    await asyncio.gather(*(readiness.told() for _ in range(20)), scene.open())
    scene.now = FRESH - 0.1
    await readiness.told()
    assert scene.asked == 1
    scene.now = FRESH
    await readiness.told()
    assert scene.asked == 2


# --- through the proxy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "status"), [(True, 200), (False, 503)])
async def test_readyz_says_it_by_its_status(answers: bool, status: int) -> None:
    watched = Watched(store_answers=lambda: answers)
    async with proxied(NOWHERE, watched=watched) as proxy, RawClient(proxy.url) as client:
        for method in ("GET", "HEAD"):
            assert (await client.request(method, "/-/readyz")).status == status
        assert (await client.get("/-/healthz")).status == 200
        assert (await client.post("/-/readyz", b"")).status == 405


@pytest.mark.parametrize("needs", [True, False])
async def test_an_upstream_that_is_not_there_counts_only_where_it_is_needed(needs: bool) -> None:
    async with proxied(NOWHERE, ready_needs_upstream=needs) as proxy, RawClient(proxy.url) as client:
        assert (await client.get("/-/readyz")).status == (503 if needs else 200)
    async with (
        ScriptedUpstream(otherwise=json_answer({"data": []})) as upstream,
        proxied(upstream.url, ready_needs_upstream=needs) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.get("/-/readyz")).status == 200
        assert [request.path for request in upstream.requests] == ["/models"] * needs


async def test_probes_need_no_token_and_the_metrics_do() -> None:
    async with proxied(NOWHERE, auth=AUTH) as proxy, RawClient(proxy.url) as client:
        for path in ("/-/healthz", "/-/readyz"):
            assert (await client.get(path)).status == 200
        assert (await client.get("/-/metrics")).status == 401
        assert (await client.get("/-/metrics", [("Authorization", "Bearer token-of-ada")])).status == 200


async def test_probes_are_answered_at_both_addresses_and_the_metrics_at_our_own_alone() -> None:
    admin = Admin(listen=Address("127.0.0.1", 0))
    async with (
        proxied(NOWHERE, admin=admin) as proxy,
        RawClient(proxy.url) as client,
        RawClient(proxy.events("listening")[0]["admin"]) as operator,
    ):
        for path in ("/-/healthz", "/-/readyz"):
            assert [(await each.get(path)).status for each in (client, operator)] == [200, 200]
        assert [(await each.get("/-/metrics")).status for each in (client, operator)] == [404, 200]
