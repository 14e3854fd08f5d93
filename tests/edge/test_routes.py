"""Several upstreams behind one address: which one a request reaches, and that no key reaches another one."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.config import Discovery, ModelRule, Secret, SideCalls, Upstream
from proxy.config.values import DEFAULT, NamedUpstream
from proxy.context.policy import Count, Mode, ModelPolicy, UsageMode
from tests.edge.proxied import Lettered, Proxied, proxied
from tests.edge.test_fail_open import FAULT, Trouble, TroubledMemories
from tests.edge.test_managed import CHAT, JSON, WHOLE, asks
from tests.integration.test_recovery import talk
from tests.peers.client import RawClient
from tests.peers.scripted import Request
from tests.peers.strict import StrictUpstream, marked
from tests.peers.upstream import ScriptedUpstream, json_answer

OWN = ("Authorization", "Bearer clients-own")


@dataclass(frozen=True, slots=True)
class Pair:
    """A proxy before two servers: the default, and one that is called openai."""

    proxy: Proxied
    default: ScriptedUpstream
    openai: ScriptedUpstream

    @property
    def counts(self) -> tuple[int, int]:
        return self.default.request_count, self.openai.request_count

    async def post(self, target: str, body: bytes, *fields: tuple[str, str]) -> Any:
        async with RawClient(self.proxy.url) as client:
            return await client.post(target, body, (*JSON, *fields))


RULES = (
    ModelRule("gpt-*", ModelPolicy(window=400_000), "openai"),
    ModelRule("*", ModelPolicy(window=32_000)),
)


@asynccontextmanager
async def pair(
    default: ScriptedUpstream | None = None,
    openai: ScriptedUpstream | None = None,
    *,
    rules: Sequence[ModelRule] = RULES,
    **fields: Any,
) -> AsyncIterator[Pair]:
    default = default or ScriptedUpstream(otherwise=json_answer(WHOLE))
    openai = openai or ScriptedUpstream(otherwise=json_answer(WHOLE))
    async with default, openai:
        key = Secret("default-key")
        named = NamedUpstream("openai", Upstream(openai.base_url, Secret("openai-key"), slots=4))
        options = Upstream(default.base_url, key, slots=4)
        async with proxied(
            default.base_url, options=options, upstreams=(named,), models=tuple(rules), **fields
        ) as proxy:
            yield Pair(proxy, default, openai)


def keys_in(requests: Sequence[Request]) -> set[str]:
    """All credentials that an upstream was sent."""
    names = ("authorization", "api-key", "x-api-key", "cookie")
    return {value for request in requests for name in names for value in request.headers_named(name)}


# --- by path --------------------------------------------------------------------------------------------------


async def test_a_name_in_front_of_the_path_chooses_the_server_and_goes_no_further() -> None:
    async with pair() as both:
        answer = await both.post("/openai/v1/chat/completions?a=1", asks(model="m"))
        (request,) = both.openai.requests
    assert (answer.status, answer.json()) == (200, WHOLE)
    assert request.target == "/v1/chat/completions?a=1"
    assert request.body == asks(model="m")
    assert keys_in([request]) == {"Bearer openai-key"}
    assert both.counts == (0, 1)
    (event,) = both.proxy.events()
    assert (event["upstream"], event["path"], event["mode"]) == ("openai", "/v1/chat/completions", "manage")


@pytest.mark.parametrize(
    "target", ["/v1/models", "/openai/v1/models", "/openaix/v1/models", "/v1/openai/models"]
)
async def test_what_has_no_model_is_asked_of_the_default_unless_the_path_says_otherwise(target: str) -> None:
    async with pair() as both:
        async with RawClient(both.proxy.url) as client:
            await client.get(target)
        is_named = target.startswith("/openai/")
        assert both.counts == ((0, 1) if is_named else (1, 0))
        (request,) = both.openai.requests if is_named else both.default.requests
    assert request.target.endswith("/v1/models" if is_named else target.removeprefix("/v1"))


async def test_whoever_writes_the_name_of_a_server_may_send_it_a_key_of_their_own() -> None:
    async with pair() as both:
        await both.post("/openai/v1/chat/completions", asks(), OWN)
        assert keys_in(both.openai.requests) == {"Bearer clients-own"}


async def test_a_rule_of_another_server_does_not_hold_behind_a_name() -> None:
    rules = (
        ModelRule("*", ModelPolicy(window=32_000), DEFAULT),
        ModelRule("*", ModelPolicy(window=64_000), "openai"),
    )
    async with pair(rules=rules) as both:
        plain = await both.post(CHAT, asks())
        named = await both.post(f"/openai{CHAT}", asks())
    assert (plain.header("x-context-window"), named.header("x-context-window")) == ("32000", "64000")
    assert both.counts == (1, 1)


async def test_our_own_endpoints_are_not_found_behind_a_name() -> None:
    async with pair() as both:
        async with RawClient(both.proxy.url) as client:
            assert (await client.get("/openai/-/state")).json() == WHOLE
        assert both.default.requests[0].target == "/v1/openai/-/state"


async def test_behind_a_name_whose_rules_are_all_off_no_body_is_read_before_it_goes_on() -> None:
    rules = (
        ModelRule("*", ModelPolicy(), DEFAULT),
        ModelRule("*", ModelPolicy(mode=Mode.OFF), "openai"),
    )
    async with pair(rules=rules) as both, RawClient(both.proxy.url) as client:
        body = asks()
        head = f"POST /openai{CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        await client.send(head.encode() + body[:10])
        await both.openai.until(lambda: both.openai.connections == 1)
        await client.send(body[10:])
        assert (await client.read()).json() == WHOLE
    assert both.openai.requests[0].body == body


# --- by model -------------------------------------------------------------------------------------------------


async def test_a_rule_sends_its_models_to_their_server_and_the_bytes_stay_the_clients() -> None:
    async with pair() as both:
        routed = await both.post(CHAT, asks(model="gpt-5"), OWN, ("Cookie", "a=b"), ("OpenAI-Project", "p"))
        plain = await both.post(CHAT, asks(model="qwen"), OWN)
        assert both.counts == (1, 1)
        (request,) = both.openai.requests
        assert request.body == asks(model="gpt-5")
        assert keys_in([request]) == {"Bearer openai-key"}, "the client's own key is for the default server"
        assert request.header("openai-project") is None
        assert keys_in(both.default.requests) == {"Bearer clients-own"}
    assert (routed.header("x-context-window"), plain.header("x-context-window")) == ("400000", "32000")
    assert [event.get("upstream") for event in both.proxy.events()] == ["openai", None]


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_the_model_decides_also_where_nothing_is_managed(mode: str) -> None:
    async with pair() as both:
        await both.post(CHAT, asks(model="gpt-5"), ("x-context-mode", mode))
        await both.post("/v1/embeddings", b'{"input": "x", "model": "gpt-embedding"}')
        await both.post("/v1/embeddings", b'{"input": "x", "model": "other"}')
        await both.post(CHAT, b'{"model": "gpt-5", "messages": 7}')
        assert both.counts == (1, 3)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[1", b'{"model": 5}', b'{"model": "gpt-5", "model": "gpt-5"}', b"\xff"]
)
async def test_a_body_that_names_no_model_goes_to_the_default(body: bytes) -> None:
    async with pair() as both:
        await both.post(CHAT, body)
        await both.post("/v1/embeddings", body)
        assert both.counts == (2, 0)
        assert [request.body for request in both.default.requests] == [body, body]


async def test_a_body_that_is_no_json_is_not_waited_for() -> None:
    async with pair() as both, RawClient(both.proxy.url) as client:
        head = "POST /v1/audio HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data\r\nContent-Length: 4\r\n\r\n"
        await client.send(f"{head}gp".encode())
        await both.default.until(lambda: both.default.connections == 1)
        await client.send(b"t-")
        assert (await client.read()).status == 200


async def test_a_body_that_must_be_read_is_read_up_to_the_limit() -> None:
    async with pair(max_body=100) as both:
        answer = await both.post("/v1/embeddings", b'{"model": "gpt-5", "input": "%b"}' % (b"x" * 100))
    assert (answer.status, both.counts) == (413, (0, 0))


async def test_after_a_fault_of_ours_a_request_still_goes_to_the_server_of_its_model() -> None:
    parts = (Lettered(), TroubledMemories("recall", Trouble(FAULT)))
    async with pair(parts=parts) as both:
        answer = await both.post(
            CHAT, asks(model="gpt-5", messages=[{"role": "user", "content": "x" * 900_000}])
        )
    assert answer.header("x-context-actions") == "bypass=store"
    assert both.counts == (0, 1)


# --- what is known and kept of each ---------------------------------------------------------------------------


async def test_no_server_is_sent_the_key_of_another_whatever_is_asked_of_it() -> None:
    default = StrictUpstream(window=2000, is_side_call=marked("working memory"))
    openai = StrictUpstream(window=4000, is_side_call=marked("working memory"))
    rules = (
        ModelRule("gpt-*", ModelPolicy(reserve_output=200, count=Count.AUTO), "openai"),
        ModelRule("*", ModelPolicy(reserve_output=200)),
    )
    calls = SideCalls(api_key=Secret("summary-key"))
    async with pair(default, openai, rules=rules, discovery=Discovery(), side_calls=calls) as both:
        for turns in range(8, 40, 4):
            for model in ("qwen", "gpt-5"):
                assert (await both.post(CHAT, _of(model, turns))).status == 200
        assert default.side_calls
        assert openai.side_calls
        assert keys_in(default.requests) == {"Bearer default-key", "Bearer summary-key"}
        assert keys_in(openai.requests) == {"Bearer openai-key"}


async def test_what_one_server_taught_of_a_model_does_not_hold_at_another() -> None:
    default, openai = StrictUpstream(window=2000), StrictUpstream(window=6000)
    policy = ModelPolicy(reserve_output=200, strategies=("drop",))
    async with pair(default, openai, rules=(ModelRule("*", policy),)) as both:
        windows = []
        for target in (CHAT, f"/openai{CHAT}", CHAT, f"/openai{CHAT}"):
            answer = await both.post(target, _of("m", 120))
            assert answer.status == 200
            windows.append(answer.header("x-context-window"))
    assert windows == ["2000", "6000", "2000", "6000"]


async def test_what_our_own_endpoints_are_asked_of_a_model_is_told_of_its_server() -> None:
    async with pair() as both, RawClient(both.proxy.url) as client:
        found = (await client.post("/-/measure", asks(model="gpt-5"))).json()
        await client.post(CHAT, asks(model="gpt-5"))
        (listed,) = (await client.get("/-/state")).json()["conversations"]
        assert (await client.request("DELETE", f"/-/state/{listed['id']}")).status == 200
    assert (found["window"], both.counts) == (400_000, (0, 1))


def _of(model: str, turns: int) -> bytes:
    return json.dumps({**json.loads(talk(turns)), "model": model}).encode()


async def test_what_the_preset_of_a_server_sets_holds_there_alone() -> None:
    passive = ModelPolicy(usage=UsageMode.PASSIVE)
    body = asks(stream=True)
    async with pair(rules=(ModelRule("*", ModelPolicy(), others=(("openai", passive),)),)) as both:
        await both.post(CHAT, body)
        await both.post(f"/openai{CHAT}", body)
        assert b"include_usage" in both.default.requests[0].body
        assert both.openai.requests[0].body == body


async def test_one_that_does_not_answer_keeps_nobody_from_the_other() -> None:
    async with pair() as both:
        await both.openai.close()
        waiting = [both.post(CHAT, asks(model=model)) for model in ("gpt-5", "qwen")]
        answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [502, 200]
