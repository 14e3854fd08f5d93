"""One proxy before another, and a proxy that has itself behind it.

Rules. Both are real and listen; behind the last is an upstream that judges as real ones do, or plays bytes. What is
compared are bytes: those that reach the upstream, and those that reach the client.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import openai
import pytest

from benchmarks.speed.processes import HOST, free_port
from proxy.config import Address, Secret
from proxy.config import Upstream as UpstreamOptions
from proxy.config.values import Auth
from proxy.context.policy import Mode, ModelPolicy, SummaryPolicy
from proxy.edge.connections import Ends
from tests.edge.proxied import Proxied, proxied
from tests.peers.client import RawClient, Response
from tests.peers.upstream import Accepted, ScriptedUpstream, StrictUpstream, json_answer, marked

CHAT: Final = "/v1/chat/completions"
KEY: Final = ("Authorization", "Bearer key-of-the-client")
BOTH: Final = [(Mode.MANAGE, Mode.MANAGE), (Mode.OFF, Mode.MANAGE), (Mode.OBSERVE, Mode.MANAGE)]
TURNS: Final = 40


def policy(window: int | None = None, mode: Mode = Mode.MANAGE) -> ModelPolicy:
    return ModelPolicy(window=window, mode=mode, reserve_output=200, summary=SummaryPolicy(prepare_at=0))


def strict(window: int) -> StrictUpstream:
    return StrictUpstream(window=window, is_side_call=marked("working memory"))


@asynccontextmanager
async def chain(upstream: str, *policies: ModelPolicy, **inner: Any) -> AsyncIterator[list[Proxied]]:
    """Proxies by these policies, the outermost first; `inner` is for the last, which stands before the upstream."""
    async with AsyncExitStack() as stack:
        proxies: list[Proxied] = []
        behind, options = upstream, inner
        for each in reversed(policies):
            proxies.insert(0, await stack.enter_async_context(proxied(behind, policy=each, **options)))
            behind, options = proxies[0].url, {}
        yield proxies


def talk(turns: int, *, stream: bool = False) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}: " + "what and why " * 20})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "so and so " * 20})
    body = {"model": "m", "messages": [*messages, {"role": "user", "content": "Next?"}]}
    return json.dumps({**body, "stream": True} if stream else body).encode()


async def ask(url: str, body: bytes, *fields: tuple[str, str]) -> Response:
    async with RawClient(url) as client:
        return await client.post(CHAT, body, [KEY, *fields])


async def held(url: str, turns: range) -> list[Response]:
    """The answers of a growing chat, every second one streamed; all good."""
    answers = [await ask(url, talk(number, stream=bool(number % 2))) for number in turns]
    assert [answer.status for answer in answers] == [200] * len(answers)
    return answers


def told(answer: Response) -> dict[str, str]:
    """What the answer says of what was done; each of it once."""
    found = [
        (name.lower(), value) for name, value in answer.head.headers if name.lower().startswith("x-context-")
    ]
    assert len(found) == len(dict(found))
    return dict(found)


# --- one before the other -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outer", "inner"), BOTH)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_under_the_trigger_both_ends_see_the_bytes_that_they_see_with_one_proxy(
    outer: Mode, inner: Mode, stream: bool
) -> None:
    body, seen = talk(2, stream=stream), []
    for policies in ([policy(8000, inner)], [policy(8000, outer), policy(8000, inner)]):
        async with strict(8000) as upstream, chain(upstream.url, *policies) as proxies:
            answer = await ask(proxies[0].url, body)
            (call,) = upstream.calls
            seen.append((call.request.body, answer.body, answer.complete))
    assert seen[0] == seen[1]


async def test_what_the_answer_tells_is_of_the_proxy_that_the_client_speaks_to() -> None:
    async with strict(2000) as upstream, chain(upstream.url, policy(), policy(2000)) as proxies:
        answer = await ask(proxies[0].url, talk(12))
        (outer,), (inner,) = proxies[0].events(), proxies[1].events()
        assert "summarize=" in inner["actions"]
        assert outer["actions"] == "none"
        assert told(answer).keys() == {
            "x-context-original-tokens",
            "x-context-tokens",
            "x-context-actions",
            "x-context-checkpoint",
        }, "no window, which the outer one does not know"
        assert told(answer)["x-context-actions"] == "none"


async def test_a_proxy_that_is_switched_off_passes_on_what_the_one_behind_tells() -> None:
    off = policy(mode=Mode.OFF)
    async with strict(2000) as upstream, chain(upstream.url, off, policy(2000)) as proxies:
        answer = await ask(proxies[0].url, talk(12))
        assert "summarize=" in told(answer)["x-context-actions"]
        assert told(answer)["x-context-window"] == "2000"


async def test_the_mode_that_a_request_asks_for_holds_for_the_first_proxy_alone() -> None:
    async with strict(2000) as upstream, chain(upstream.url, policy(2000), policy(2000)) as proxies:
        answer = await ask(proxies[0].url, talk(12), ("x-context-mode", "off"))
        assert answer.status == 200
        assert [each.events()[0]["mode"] for each in proxies] == ["off", "manage"]


async def test_whichever_id_the_client_sees_both_logs_know_the_request_by_it() -> None:
    async with strict(8000) as upstream, chain(upstream.url, policy(8000), policy(8000)) as proxies:
        named = await ask(proxies[0].url, talk(1), ("x-request-id", "mine-1"))
        nameless = await ask(proxies[0].url, talk(2))
        for number, answer in enumerate((named, nameless)):
            for proxy in proxies:
                event = proxy.events()[number]
                assert answer.header("x-request-id") in (
                    event["request_id"],
                    event.get("upstream_request_id"),
                )
        assert named.header("x-request-id") == "mine-1"


async def test_where_the_first_window_is_the_smaller_one_the_second_proxy_has_nothing_left_to_do() -> None:
    forwarded = []
    for policies in ([policy(2000)], [policy(2000), policy(4000)]):
        async with strict(2000) as upstream, chain(upstream.url, *policies) as proxies:
            await held(proxies[0].url, range(TURNS))
            assert upstream.refusals == []
            forwarded.append([call.request.body for call in upstream.calls])
    assert forwarded[0] == forwarded[1]


async def test_where_the_second_window_is_the_smaller_one_each_prompt_fits_it_all_the_same() -> None:
    async with strict(2000) as upstream, chain(upstream.url, policy(4000), policy(2000)) as proxies:
        await held(proxies[0].url, range(2 * TURNS))
        assert upstream.refusals == []
        assert all(isinstance(call.verdict, Accepted) for call in upstream.main_calls)
        assert max(each["original_tokens"] or 0 for each in proxies[0].events()) > 8000
        assert len(upstream.side_calls) < TURNS
        outer, inner = proxies
        assert min(each["factor"] or 1 for each in outer.events()) >= 1, (
            "a count of another prompt teaches nothing"
        )
        assert {each.get("usage_unread") for each in outer.events()} == {None, "cut_behind"}
        assert "summarize=" in "".join(each["actions"] for each in outer.events())
        assert not outer.events("prompt_seems_cut")
        assert not outer.events("internal_error") + inner.events("internal_error")


async def test_each_proxy_takes_its_own_token_out_and_adds_its_own_key() -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(ScriptedUpstream(otherwise=json_answer({})))
        inner = await stack.enter_async_context(
            proxied(
                upstream.url,
                options=UpstreamOptions("", Secret("key-of-the-upstream")),
                auth=Auth((Secret("token-of-the-inner-one"),)),
            )
        )
        outer = await stack.enter_async_context(
            proxied(
                inner.url,
                options=UpstreamOptions("", Secret("token-of-the-inner-one")),
                auth=Auth((Secret("token-of-the-outer-one"),)),
            )
        )
        async with RawClient(outer.url) as client:
            token = ("Authorization", "Bearer token-of-the-outer-one")
            assert (await client.post(CHAT, talk(1), [token])).status == 200
        (request,) = upstream.requests
        assert request.headers_named("authorization") == ["Bearer key-of-the-upstream"]
        assert b"token-of" not in request.head


# --- a proxy that has itself behind it ------------------------------------------------------------------------------


@asynccontextmanager
async def looped(host: str = HOST, **fields: Any) -> AsyncIterator[Proxied]:
    """A proxy with itself behind it."""
    port = free_port()
    async with proxied(f"http://{HOST}:{port}/v1", listen=Address(host, port), **fields) as proxy:
        yield proxy


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
@pytest.mark.parametrize("mode", ["manage", "observe", "off"])
async def test_a_proxy_that_is_its_own_upstream_refuses_what_comes_back_to_it(host: str, mode: str) -> None:
    async with looped(host) as proxy:
        answer = await ask(
            f"http://{HOST}:{proxy.url.rpartition(':')[2]}", talk(12, stream=True), ("x-context-mode", mode)
        )
        assert answer.status == 508
        assert answer.json()["error"]["code"] == "loop_detected"
        assert "upstream.base_url" in answer.json()["error"]["message"]
        assert proxy.events()[0]["reason"] == "loop_detected"
        assert len(proxy.events()) == 2


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/v1/models"), ("POST", "/v1/embeddings"), ("GET", "/x")]
)
async def test_so_it_does_with_whatever_else_it_sends_on(method: str, target: str) -> None:
    async with looped() as proxy, RawClient(proxy.url) as client:
        body = b"{}" if method == "POST" else None
        assert (await client.request(method, target, body)).status == 508
        assert len(proxy.events()) == 2


async def test_a_loop_is_told_apart_from_a_missing_token() -> None:
    auth = Auth((Secret("token-of-ours-0123456789"),))
    async with looped(auth=auth) as proxy, RawClient(proxy.url) as client:
        token = ("Authorization", "Bearer token-of-ours-0123456789")
        assert (await client.post(CHAT, talk(1), [token])).status == 508


async def test_a_client_is_told_of_a_loop_at_once_and_does_not_try_again() -> None:
    async with looped() as proxy:
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=5) as client:
            with pytest.raises(openai.InternalServerError, match="come back to the proxy"):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert len(proxy.events()) == 2


async def test_what_the_proxy_sends_is_known_by_its_connection_and_so_is_no_field_added() -> None:
    same = policy(8000)
    async with strict(8000) as upstream, chain(upstream.url, same, replace(same), replace(same)) as proxies:
        assert (await ask(proxies[0].url, talk(1))).status == 200
        (request,) = upstream.requests
        assert not request.headers_named("via")


def test_a_client_at_the_port_that_a_call_of_ours_came_from_is_a_client() -> None:
    ends = Ends()
    ours, server, proxy = ("127.0.0.1", 5), ("127.0.0.1", 80), ("127.0.0.1", 8787)
    ends.note(ours, server)
    assert not ends.hold(ours, proxy), (
        "the system gives one port to connections that lead to different places"
    )
    ends.note(ours, proxy)
    assert ends.hold(("::ffff:127.0.0.1", 5, 0, 0), ("::ffff:127.0.0.1", 8787, 0, 0))
    ends.strike(ours, proxy)
    assert not ends.hold(ours, proxy)
    ends.note("", "/run/server.sock")
    assert not ends.hold("", "/run/server.sock"), "the ends of Unix sockets have no names"
