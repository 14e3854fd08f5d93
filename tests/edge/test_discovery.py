"""Windows that the upstream tells: when it is asked, how long a request waits, what is remembered and for how long.

Rules. The rounds are driven by a clock of the test's own and by answers that it holds back; the whole is tried against
servers that answer as the real ones do.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from proxy.config import Discovery as Options
from proxy.context.budget import Window
from proxy.context.policy import Mode, ModelPolicy
from proxy.edge.discovery import PAUSES, Discovery
from proxy.edge.questions import Answer
from proxy.edge.sidecalls import Origin
from proxy.wire.dialects import Ask, Base
from proxy.wire.model_list import MOST_ENTRIES, annotated
from tests.edge.proxied import Proxied, proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.codings import CODECS
from tests.peers.scripted import Request, ScriptedUpstream
from tests.peers.upstream import Answer as Said
from tests.peers.upstream import json_answer

CHAT = "/v1/chat/completions"
MODELS = "GET v1/models"
WHO = "tenant:m"
ORIGIN = Origin((), CHAT, "")


@dataclass
class Server:
    """Answers what it has; everything else is not there. `gate` holds all answers back while it is not set.

    `never` names the questions that are not answered at all.
    """

    answers: Mapping[str, object]
    status: int = 200
    asked: Counter[str] = field(default_factory=Counter)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    now: float = 1000.0
    never: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.gate.set()

    def clock(self) -> float:
        return self.now

    async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
        self.asked[ask.name] += 1
        self.came.set()
        await self.gate.wait()
        if ask.name in self.never:
            await asyncio.get_running_loop().create_future()
        if self.status != 200:
            return Answer(self.status)
        return Answer(200, self.answers[ask.name]) if ask.name in self.answers else Answer(404)


def listed(**fields: object) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", **fields}]}


PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}
LOADED = {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]}
SHOWN = {"model_info": {"llama.context_length": 131072}, "parameters": "num_ctx 8192"}
TRAINED = {"model_info": {"llama.context_length": 131072}, "parameters": ""}


@asynccontextmanager
async def discovery(server: Server, patience: float = 10.0, **options: Any) -> AsyncIterator[Discovery]:
    made = Discovery(server, Options(**options), server.clock, patience=patience)
    try:
        yield made
    finally:
        await made.close()


async def settled(made: Discovery) -> None:
    """Until no round is under way."""
    while made.rounds:
        await asyncio.wait(made.rounds)


async def test_a_list_that_tells_the_window_is_all_that_is_asked() -> None:
    server = Server({MODELS: listed(max_model_len=32768), "GET /props": PROPS})
    async with discovery(server) as made:
        assert await made.window(WHO, "m", ORIGIN) == Window(
            32768, "vllm: GET v1/models data[].max_model_len"
        )
    assert server.asked == {MODELS: 1}


@pytest.mark.parametrize(
    ("answers", "tokens"),
    [
        ({MODELS: listed(), "GET /props": PROPS}, 4096),
        ({MODELS: listed(meta={"n_ctx": 2048, "n_ctx_train": 32768})}, 2048),
        ({MODELS: listed(meta={"n_ctx_train": 32768}), "GET /props": PROPS}, 4096),
        ({MODELS: listed(), "GET /api/ps": LOADED, "POST /api/show": SHOWN}, 4096),
        ({MODELS: listed(), "GET /api/ps": {"models": []}, "POST /api/show": SHOWN}, 8192),
        ({"GET /info": {"max_input_tokens": 4095, "max_total_tokens": 4096}}, 4096),
        ({MODELS: listed(), "GET v1/model": {"id": "m", "parameters": {"max_seq_len": 16384}}}, 16384),
        ({MODELS: listed()}, None),
        ({}, None),
    ],
)
async def test_loaded_beats_trained_and_a_slots_share_beats_the_whole(
    answers: Mapping[str, object], tokens: int | None
) -> None:
    async with discovery(Server(answers)) as made:
        found = await made.window(WHO, "m", ORIGIN)
    assert (found.tokens if found else None) == tokens


async def test_what_the_weights_allow_is_called_an_upper_bound() -> None:
    async with discovery(Server({MODELS: listed(), "POST /api/show": TRAINED})) as made:
        found = await made.window(WHO, "m", ORIGIN)
    assert found is not None
    assert found.tokens == 131072
    assert found.source.endswith("(at most)")


async def test_many_requests_at_once_make_one_round() -> None:
    server = Server({MODELS: listed(max_model_len=8192)})
    async with discovery(server) as made:
        found = await asyncio.gather(*(made.window(WHO, "m", ORIGIN) for _ in range(20)))
    assert {each.tokens for each in found if each} == {8192}
    assert server.asked == {MODELS: 1}


async def test_a_request_waits_its_time_and_the_next_one_finds_what_came_later() -> None:
    server = Server({MODELS: listed(max_model_len=8192)})
    server.gate.clear()
    async with discovery(server, wait=0.01) as made:
        assert await made.window(WHO, "m", ORIGIN) is None
        server.now += 1
        assert await made.window(WHO, "m", ORIGIN) is None, "its time is up: it does not wait again"
        server.gate.set()
        await settled(made)
        found = await made.window(WHO, "m", ORIGIN)
    assert found is not None
    assert server.asked == {MODELS: 1}


async def test_a_client_that_leaves_does_not_end_the_round() -> None:
    server = Server({MODELS: listed(max_model_len=8192)})
    server.gate.clear()
    async with discovery(server) as made:
        leaving = asyncio.create_task(made.window(WHO, "m", ORIGIN))
        await server.came.wait()
        leaving.cancel()
        server.gate.set()
        assert await made.window(WHO, "m", ORIGIN) is not None
    assert server.asked == {MODELS: 1}


async def test_a_window_is_given_out_at_once_while_it_is_asked_for_anew() -> None:
    server = Server({MODELS: listed(max_model_len=8192)})
    async with discovery(server, refresh=600.0) as made:
        await made.window(WHO, "m", ORIGIN)
        server.now += 599
        await made.window(WHO, "m", ORIGIN)
        assert server.asked[MODELS] == 1
        server.now += 1
        server.answers = {MODELS: listed(max_model_len=16384)}
        server.gate.clear()
        stale = await made.window(WHO, "m", ORIGIN)
        server.gate.set()
        await settled(made)
        fresh = await made.window(WHO, "m", ORIGIN)
    assert stale is not None
    assert fresh is not None
    assert (stale.tokens, fresh.tokens) == (8192, 16384)


async def test_an_upstream_that_tells_nothing_is_asked_ever_less_often() -> None:
    server = Server({MODELS: listed()})
    async with discovery(server) as made:
        for rounds, pause in enumerate([*PAUSES, PAUSES[-1]], start=1):
            assert await made.window(WHO, "m", ORIGIN) is None
            assert server.asked[MODELS] == rounds
            server.now += pause - 1
            await made.window(WHO, "m", ORIGIN)
            assert server.asked[MODELS] == rounds
            server.now += 1
            assert server.asked["GET /props"] <= rounds


async def test_an_endpoint_that_is_not_there_is_left_alone_for_an_hour() -> None:
    server = Server({MODELS: listed()})
    async with discovery(server) as made:
        for _ in range(3):
            await made.window(WHO, "m", ORIGIN)
            server.now += PAUSES[1]
    assert server.asked[MODELS] == 3
    assert server.asked["GET /api/ps"] == 1


async def test_a_question_that_is_never_answered_takes_nothing_from_the_others() -> None:
    server = Server({MODELS: listed(), "GET /props": PROPS}, never=frozenset({"GET /slots", "GET /info"}))
    async with discovery(server, patience=0.01) as made:
        found = await made.window(WHO, "m", ORIGIN)
    assert found is not None
    assert found.tokens == 4096


async def test_what_is_not_there_on_one_clients_path_may_be_on_anothers() -> None:
    class Server404(Server):
        async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
            answer = await super().ask(ask, model, origin)
            return answer if ask.base is Base.ROOT or origin.path == CHAT else Answer(404)

    server = Server404({MODELS: listed(), "GET v1/model": {"id": "m", "parameters": {"max_seq_len": 16384}}})
    async with discovery(server) as made:
        assert await made.window("other:m", "m", Origin((), f"/odd{CHAT}", "")) is None
        found = await made.window(WHO, "m", ORIGIN)
        assert server.asked["GET /props"] == 2, "it names the model"
        assert server.asked["GET /info"] == 1, "which is the same place for all"
    assert found is not None
    assert found.tokens == 16384


async def test_a_list_that_is_hidden_from_one_key_is_none_to_other_keys() -> None:
    class Hiding(Server):
        async def ask(self, ask: Ask, model: str, origin: Origin) -> Answer:
            answer = await super().ask(ask, model, origin)
            return answer if origin.fields else Answer(404)

    server = Hiding({MODELS: listed(max_model_len=8192)})
    async with discovery(server) as made:
        assert await made.window(WHO, "m", ORIGIN) is None
        found = await made.window("other:m", "m", Origin(((b"Authorization", b"Bearer other"),), CHAT, ""))
    assert found is not None
    assert found.tokens == 8192


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_a_server_that_is_not_up_yet_is_asked_one_thing_and_soon_again(status: int) -> None:
    server = Server({MODELS: listed(max_model_len=8192)}, status=status)
    async with discovery(server) as made:
        for _ in range(5):
            assert await made.window(WHO, "m", ORIGIN) is None
            server.now += PAUSES[0]
        assert server.asked == {MODELS: 5}
        server.status = 200
        assert await made.window(WHO, "m", ORIGIN) is not None


async def test_a_model_that_the_first_request_loads_tells_its_window_soon_after() -> None:
    server = Server({MODELS: listed(), "GET /api/ps": {"models": []}, "POST /api/show": TRAINED})
    async with discovery(server) as made:
        before = await made.window(WHO, "m", ORIGIN)
        server.answers = {**server.answers, "GET /api/ps": LOADED}
        server.now += PAUSES[0]
        await made.window(WHO, "m", ORIGIN)
        await settled(made)
        after = await made.window(WHO, "m", ORIGIN)
        server.answers = {**server.answers, "GET /api/ps": {"models": []}}
        server.now += 601
        await made.window(WHO, "m", ORIGIN)
        await settled(made)
        unloaded = await made.window(WHO, "m", ORIGIN)
    assert before is not None
    assert after is not None
    assert (before.tokens, after.tokens) == (131072, 4096)
    assert unloaded == after, "it is loaded again as it was"


async def test_one_list_serves_all_models_of_a_credential_and_none_of_another() -> None:
    server = Server({MODELS: {"data": [{"id": name, "max_model_len": 8192} for name in "abc"]}})
    other = Origin(((b"Authorization", b"Bearer other"),), CHAT, "")
    async with discovery(server) as made:
        for name in "abc":
            await made.window(f"tenant:{name}", name, ORIGIN)
        assert server.asked[MODELS] == 1
        await made.window("other:a", "a", other)
        assert server.asked[MODELS] == 2


async def test_names_that_clients_invent_fill_no_memory() -> None:
    server = Server({MODELS: listed()})
    async with discovery(server, wait=0.0) as made:
        for number in range(5000):
            await made.window(f"tenant:{number}", str(number), ORIGIN)
        assert len(made.rounds) <= 8
        await settled(made)
        assert await made.window("tenant:long", "x" * 201, ORIGIN) is None
        assert await made.window("tenant:", "", ORIGIN) is None
        assert made.size <= 2000


async def test_closing_ends_a_round_that_is_under_way() -> None:
    server = Server({})
    server.gate.clear()
    async with discovery(server, wait=0.0) as made:
        await made.window(WHO, "m", ORIGIN)
        [task] = made.rounds
    assert task.cancelled()


async def test_nothing_is_asked_when_it_is_switched_off() -> None:
    server = Server({MODELS: listed(max_model_len=8192)})
    async with discovery(server, enabled=False) as made:
        assert await made.window(WHO, "m", ORIGIN) is None
    assert not server.asked


# ------------------------------------------------------------------------------------------------ through the proxy

SPENT = peers.usage(50, 5)
WHOLE = peers.completion(peers.text_message("Hello."), usage=SPENT)


def asks(**fields: object) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], **fields}
    ).encode()


def serving(**paths: object) -> Any:
    """Answers by path; chats are answered, and everything else is not there."""

    def answer(request: Request) -> Said:
        if request.path.endswith("/chat/completions"):
            return json_answer(WHOLE)
        told = paths.get(request.path.removeprefix("/v1/").strip("/").replace("/", "_"))
        return json_answer({"error": "not found"}, status=404) if told is None else json_answer(told)

    return answer


@asynccontextmanager
async def before(
    answer: Any, *, path: str = "/v1", policy: ModelPolicy | None = None, options: Options | None = None
) -> AsyncIterator[tuple[ScriptedUpstream, Proxied, RawClient]]:
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url + path, policy=policy, discovery=options or Options()) as proxy,
        RawClient(proxy.url) as client,
    ):
        yield upstream, proxy, client


async def test_without_a_configured_window_the_upstreams_own_is_gone_by_and_shown() -> None:
    async with before(serving(models=listed(max_model_len=8192))) as (upstream, proxy, client):
        answer = await client.post(CHAT, asks(), (("Authorization", "Bearer sesame"),))
        state = json.loads((await client.get("/-/state")).body)
        [event] = proxy.events()[:1]
        assert [told["window"] for told in proxy.events("window")] == [8192]
    source = "vllm: GET v1/models data[].max_model_len"
    assert answer.header("x-context-window") == "8192"
    assert (event["window"], event["window_source"]) == (8192, source)
    assert (state["conversations"][0]["window"], state["conversations"][0]["window_source"]) == (8192, source)
    question = upstream.requests[0]
    assert (question.method, question.path) == ("GET", "/v1/models")
    assert question.header("authorization") == "Bearer sesame", "in the client's own name"


async def test_b63_a_configured_window_is_never_asked_for_nor_overruled() -> None:
    answer = serving(models=listed(max_model_len=1_000_000))
    async with before(answer, policy=ModelPolicy(window=32_768)) as (upstream, proxy, client):
        answered = await client.post(CHAT, asks(model="deepseek-v4-flash"))
        assert [request.path for request in upstream.requests] == [CHAT]
        assert proxy.events()[0]["window_source"] == "configured"
    assert answered.header("x-context-window") == "32768"


async def test_b63_an_unknown_window_is_no_silent_guess() -> None:
    async with before(serving(models=listed())) as (_, proxy, client):
        answered = await client.post(CHAT, asks())
        assert len(proxy.events("window_unknown")) == 1
        assert proxy.events()[0]["window_source"] == "unknown"
    assert answered.header("x-context-window") is None


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1", "/props"), ("", "/props"), ("/llama/v1", "/llama/props"), ("/v1beta/openai", "/props")],
)
async def test_a_servers_own_endpoints_lie_at_its_root(path: str, asked: str) -> None:
    async with before(serving(), path=path) as (upstream, _, client):
        await client.post(CHAT, asks())
        assert asked in [request.path for request in upstream.requests]
        models = "/v1/models" if path == "" else f"{path}/models"
        assert models in [request.path for request in upstream.requests]


async def test_an_upstream_that_never_answers_the_question_delays_the_request_by_no_more_than_the_wait() -> (
    None
):
    never = asyncio.Event()

    def answer(request: Request) -> Said:
        chats = request.path.endswith("/chat/completions")
        return json_answer(WHOLE) if chats else replace(json_answer({}), before=never)

    async with before(answer, options=Options(wait=0.02)) as (_, proxy, client):
        assert (await client.post(CHAT, asks())).status == 200
        assert (await client.post(CHAT, asks())).status == 200
        assert proxy.events()[0]["spent"]["discover"] < 10


@pytest.mark.parametrize(
    "odd", [b"<html>no</html>", b"[" * 100_000, b'"x"', b"", b'{"data":[{"id":null}]}', b"\xff"]
)
async def test_odd_answers_to_the_question_harm_nobody(odd: bytes) -> None:
    def answer(request: Request) -> Said:
        chats = request.path.endswith("/chat/completions")
        return json_answer(WHOLE) if chats else peers.bytes_answer(odd)

    async with before(answer) as (_, proxy, client):
        assert (await client.post(CHAT, asks())).status == 200
        assert "internal_error" not in proxy.log


async def test_b93_a_list_that_is_encoded_though_nobody_asked_for_that_tells_the_window_too() -> None:
    def answer(request: Request) -> Said:
        if request.path.endswith("/chat/completions"):
            return json_answer(WHOLE)
        listing = json.dumps(listed(max_model_len=8192)).encode()
        said = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
        return peers.bytes_answer(CODECS["gzip"](listing), headers=said)

    async with before(answer) as (_, _, client):
        assert (await client.post(CHAT, asks())).header("x-context-window") == "8192"


async def test_observe_shows_the_window_too_and_off_asks_nothing() -> None:
    answer = serving(models=listed(max_model_len=8192))
    async with before(answer, policy=ModelPolicy(mode=Mode.OBSERVE)) as (upstream, _, client):
        assert (await client.post(CHAT, asks())).header("x-context-window") == "8192"
    async with before(answer, policy=ModelPolicy(mode=Mode.OFF)) as (upstream, _, client):
        await client.post(CHAT, asks())
        assert [request.path for request in upstream.requests] == [CHAT]


async def test_a_discovered_window_is_kept_within() -> None:
    """The history is cut to the window that the upstream told, as it would be to a configured one."""
    said = [{"role": "user", "content": "word " * 300}, {"role": "assistant", "content": "yes " * 300}] * 10
    async with before(serving(models=listed(max_model_len=2048))) as (_, _, client):
        answered = await client.post(CHAT, asks(messages=[*said, {"role": "user", "content": "And now?"}]))
    assert (
        int(answered.header("x-context-tokens") or 0)
        < 2048
        < int(answered.header("x-context-original-tokens") or 0)
    )


# ------------------------------------------------------------------------------------------------ the list of models


async def test_the_list_of_models_is_relayed_untouched_unless_windows_are_to_be_added() -> None:
    models = peers.bytes_answer(
        b'{ "data":[ {"id":"m","max_model_len":8192} ] }', headers=(("Content-Type", "a/b"),)
    )
    async with before(lambda _: models) as (_, _, client):
        assert (await client.get("/v1/models")).body == b'{ "data":[ {"id":"m","max_model_len":8192} ] }'


async def test_windows_are_added_to_the_list_and_every_other_byte_stays() -> None:
    body = b'{ "object":"list", "data":[ {"id":"m","max_model_len":8192,"x":1.0e3},{"id":"n"} ],"y":[ ] }\n'
    models = peers.bytes_answer(body, headers=(("Content-Type", "application/json"),))
    policy = ModelPolicy(window=4096)
    async with before(lambda _: models, policy=policy, options=Options(annotate=True)) as (
        upstream,
        _,
        client,
    ):
        answered = await client.get("/v1/models", (("Accept-Encoding", "gzip"),))
        assert upstream.requests[0].header("accept-encoding") == "identity"
    assert answered.body == (
        b'{ "object":"list", "data":[{"context_length":4096,"id":"m","max_model_len":8192,"x":1.0e3},'
        b'{"context_length":4096,"id":"n"}],"y":[ ] }\n'
    )
    assert answered.header("content-type") == "application/json"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"data":null}',
        b'{"data":[1,null,[]]}',
        b'{"data":[{"id":5}]}',
        b"<html>",
        b'{"data":[{"id":"m"}',
    ],
)
async def test_what_is_no_list_of_models_goes_by_as_it_is(body: bytes) -> None:
    policy, options = ModelPolicy(window=4096), Options(annotate=True)
    async with before(lambda _: peers.bytes_answer(body), policy=policy, options=options) as (_, _, client):
        assert (await client.get("/v1/models")).body == body


async def test_an_adapter_in_the_list_has_the_window_of_its_base() -> None:
    body = b'{"data":[{"id":"base","max_model_len":8192},{"id":"sql","max_model_len":null,"parent":"base"}]}'
    async with before(lambda _: peers.bytes_answer(body), options=Options(annotate=True)) as (_, _, client):
        listed = json.loads((await client.get("/v1/models")).body)["data"]
    assert [entry["context_length"] for entry in listed] == [8192, 8192]


def test_a_list_of_very_many_entries_is_left_as_it_is() -> None:
    def long(entries: int) -> bytes:
        return json.dumps({"data": [{"id": str(number)} for number in range(entries)]}).encode()

    assert b"context_length" in annotated(long(MOST_ENTRIES), lambda _, told: 8192)
    assert annotated(long(MOST_ENTRIES + 1), lambda _, told: 8192) == long(MOST_ENTRIES + 1)


async def test_what_was_learned_for_one_tenant_is_not_in_anothers_list() -> None:
    def answer(request: Request) -> Said:
        if request.path.endswith("/chat/completions"):
            return json_answer(WHOLE)
        mine = request.header("authorization") == "Bearer one"
        return json_answer({"data": [{"id": "m", "max_model_len": 4096} if mine else {"id": "m"}]})

    async with before(answer, options=Options(annotate=True)) as (_, _, client):
        await client.post(CHAT, asks(), (("Authorization", "Bearer one"),))
        one = await client.get("/v1/models", (("Authorization", "Bearer one"),))
        two = await client.get("/v1/models", (("Authorization", "Bearer two"),))
    assert one.json()["data"][0]["context_length"] == 4096
    assert "context_length" not in two.json()["data"][0]
