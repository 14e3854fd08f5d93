"""A real model server behind the proxy: its refusals, its usage and its own counts, met by the real client.

Rules. Nothing is said about what the model writes, only about what was counted, sent and told. Prompts are short where
they can be, because the server reads a hundred tokens a second on a busy machine.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.config import Discovery, LogFormat, LogLevel, LogOptions
from proxy.context.policy import Count, ModelPolicy
from proxy.edge import logs
from proxy.edge.tokenizer import Tokenizer
from proxy.wire.dialects import COUNTERS
from tests.edge.proxied import Proxied, memories, proxied
from tests.integration.llama_server import MODEL, LlamaServer, running
from tests.peers.client import RawClient

pytestmark = pytest.mark.slow

WINDOW = 2048
CUT_LOW = ModelPolicy(reserve_output=64, compact_to=0.2, strategies=("drop",))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running(tmp_path_factory.mktemp("llama"), window=WINDOW) as started:
        yield started


@asynccontextmanager
async def before(
    server: LlamaServer, policy: ModelPolicy | None = None, *, discovers: bool = False
) -> AsyncIterator[tuple[Proxied, openai.AsyncOpenAI]]:
    """The proxy with its real tokenizer before the server, and a client that knows the proxy alone."""
    tokenizer = Tokenizer(logs.build(LogOptions(LogLevel.ERROR, LogFormat.JSON)))
    parts = (tokenizer, memories(server.base_url))
    try:
        async with (
            proxied(
                server.base_url, policy=policy, parts=parts, discovery=Discovery(enabled=discovers)
            ) as proxy,
            openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="a-key", max_retries=0) as client,
        ):
            yield proxy, client
    finally:
        tokenizer.close()


def message(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


def talk(name: str, turns: int) -> list[dict[str, Any]]:
    """A chat about `name`; a turn of it is some sixty tokens."""
    messages = [message("system", "Be brief.")]
    for number in range(turns):
        messages.append(
            message(
                "user", f"{name}, question {number}: what is the {number}th thing to know of it, and why?"
            )
        )
        messages.append(message("assistant", f"The {number}th is how it came about, since all else follows."))
    return [*messages, message("user", "And now?")]


async def ask(client: openai.AsyncOpenAI, messages: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Headers and body of a short answer."""
    whole: Any = messages
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=whole, max_tokens=4)
    return raw.headers, raw.parse()


# --- the window ---------------------------------------------------------------------------------------------


async def test_b64_a_chat_beyond_the_real_window_is_refused_once_cut_and_goes_on_from_there(
    server: LlamaServer,
) -> None:
    async with before(server, replace(CUT_LOW, window=100_000)) as (_, client):
        messages = talk("Rome", 80)
        headers, answer = await ask(client, messages)
        assert headers["x-context-actions"].endswith("recover=1")
        assert int(headers["x-context-original-tokens"]) > WINDOW > answer.usage.prompt_tokens
        messages += [answer.choices[0].message.model_dump(exclude_none=True), message("user", "Go on.")]
        headers, answer = await ask(client, messages)
        assert headers["x-context-actions"].startswith("drop=")
        assert "recover" not in headers["x-context-actions"]
        assert answer.usage.prompt_tokens < WINDOW


async def test_b61_a_window_that_a_refusal_told_holds_for_every_other_chat(server: LlamaServer) -> None:
    async with before(server, replace(CUT_LOW, window=12_000)) as (_, client):
        headers, _ = await ask(client, talk("Rome", 80))
        assert headers["x-context-actions"].endswith("recover=1")
        headers, answer = await ask(client, talk("Oslo", 80))
        assert headers["x-context-window"] == str(WINDOW)
        assert "recover" not in headers["x-context-actions"]
        assert answer.usage.prompt_tokens < WINDOW


async def test_b61_a_window_that_nobody_configured_is_asked_of_the_server_and_kept_within(
    server: LlamaServer,
) -> None:
    async with before(server, CUT_LOW, discovers=True) as (proxy, client):
        headers, answer = await ask(client, talk("Graz", 80))
        assert headers["x-context-window"] == str(WINDOW)
        assert headers["x-context-actions"].startswith("drop="), "cut before it was ever refused"
        assert answer.usage.prompt_tokens < WINDOW
        assert proxy.events()[0]["window_source"] == "llamacpp: GET v1/models data[].meta.n_ctx"


async def test_b61_the_window_of_a_server_with_slots_is_that_of_one_slot(tmp_path: Path) -> None:
    with running(tmp_path, window=512, slots=2) as shared:
        async with before(shared, CUT_LOW, discovers=True) as (_, client):
            headers, _ = await ask(client, talk("Ulm", 1))
            assert headers["x-context-window"] == "512"


async def test_the_server_is_asked_for_its_count_of_a_prompt_near_the_trigger(server: LlamaServer) -> None:
    async with before(server, replace(CUT_LOW, count=Count.AUTO), discovers=True) as (proxy, client):
        headers, answer = await ask(client, talk("Linz", 32))
        assert headers["x-context-tokens"] == str(answer.usage.prompt_tokens)
        assert headers["x-context-actions"] == "none"
        assert proxy.events()[0]["usage_based"]


# --- usage --------------------------------------------------------------------------------------------------


async def test_the_usage_of_a_stream_is_read_and_a_client_that_did_not_ask_sees_none(
    server: LlamaServer,
) -> None:
    messages: Any = talk("Bern", 1)
    async with before(server) as (proxy, client):
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason
        (event,) = proxy.events()
    tokens = await counted(server, {"model": MODEL, "messages": messages})
    assert (event["reported_tokens"], event["actions"]) == (tokens, "include_usage")


FILE = "\n".join(
    f"def step_{number}(values: list[float]) -> float:\n"
    f"    return sum(values) / max(len(values), 1) + step_{number - 1}(values[:-1])\n"
    for number in range(1, 31)
)
"""Long enough that its count teaches something."""

ASKED = (
    f"This is my module.\n\n{FILE}\nWhat happens when the list is empty?",
    "And what does a compiler do between reading such a file and writing one? Name the stages in their order.",
    '{"id": 17, "name": "Ada", "roles": ["admin", "editor"], "active": true}\nIs this valid JSON?',
    "Und auf Deutsch: Wozu dient eine Brandmauer, und woran erkennt man, dass sie zu viel durchlässt?",
    "2026-11-30T19:17:56 GET /v1/models 200 14ms\n2026-11-30T19:17:57 POST /v1/chat 400 3ms\nWhat failed?",
    "Thanks. In one sentence, what have we talked about so far, and what is left to do tomorrow morning?",
)


async def test_the_estimate_is_within_three_percent_of_the_server_s_count_from_the_second_answer_on(
    server: LlamaServer,
) -> None:
    errors = []
    async with before(server) as (_, client):
        messages = [message("system", "You answer questions of programmers, in a sentence or two.")]
        for text in ASKED:
            messages.append(message("user", text))
            headers, answer = await ask(client, messages)
            tokens = answer.usage.prompt_tokens
            errors.append(int(headers["x-context-tokens"]) / tokens - 1)
            messages.append(message("assistant", answer.choices[0].message.content or "Yes."))
    assert max(abs(error) for error in errors[1:]) <= 0.03, errors


# --- exact counts -------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"name": "run", "description": "Run a command.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": RUN}]
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls -l"}'}}
REQUESTS: dict[str, dict[str, Any]] = {
    "a long chat": {"messages": talk("Kyiv", 4)},
    "a stream": {"messages": talk("Bonn", 0), "stream": True, "stream_options": {"include_usage": True}},
    "parts": {"messages": [message("user", [{"type": "text", "text": text} for text in ("One.", "Two.")])]},
    "tools": {"messages": talk("Lima", 0), "tools": TOOLS, "tool_choice": "auto"},
    "a call and its result": {
        "messages": [
            *talk("Baku", 0),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "total 8"},
        ],
        "tools": TOOLS,
    },
    "an answer that is begun": {"messages": [*talk("Oran", 0), message("assistant", "Now it")]},
    "a schema": {"messages": talk("Pune", 0), "response_format": {"type": "json_object"}},
    "words of the template": {"messages": [message("user", "<|im_end|> 日本語 \u0000 😀")]},
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_the_server_s_own_counter_tells_what_its_usage_says_of_the_same_request(
    server: LlamaServer, kind: str
) -> None:
    request = {"model": MODEL, "max_tokens": 1, **REQUESTS[kind]}
    whole = {name: value for name, value in request.items() if not name.startswith("stream")}
    async with RawClient(server.url) as client:
        answer = (await client.post("/v1/chat/completions", whole)).json()
    assert await counted(server, request) == answer["usage"]["prompt_tokens"]


async def counted(server: LlamaServer, request: dict[str, Any]) -> int | None:
    """The server's own count of a request, by the row that is llama.cpp's."""
    [counter] = [each for each in COUNTERS if each.name == "POST v1/chat/completions/input_tokens"]
    async with RawClient(server.url) as client:
        answer = await client.post(f"/v1{counter.ask.path}", counter.body_for(json.dumps(request).encode()))
    return counter.read(answer.json())
