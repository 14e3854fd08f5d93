"""The real OpenAI client, the proxy, and strict upstreams whose window the conversation outgrows."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from proxy.config import Flags, LogFormat, LogLevel, LogOptions, load
from proxy.demo import run as demo
from proxy.demo.rules import Temper
from proxy.demo.upstream import DemoUpstream
from proxy.edge import logs, service
from proxy.edge.memories import Memories
from proxy.edge.metrics import Metrics
from proxy.edge.server import Parts
from proxy.edge.tokenizer import Tokenizer
from proxy.stores.memory import MemoryStore
from tests.peers.tokens import o200k

WINDOW = 6000
STEPS = 60


@pytest.fixture(params=[Temper.OPENAI, Temper.TEMPLATE])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[DemoUpstream]:
    async with DemoUpstream(window=WINDOW, count=o200k, temper=request.param, steps=STEPS) as server_behind:
        yield server_behind


@pytest.fixture
async def client(upstream: DemoUpstream) -> AsyncIterator[openai.AsyncOpenAI]:
    config = load(None, Flags(upstream=upstream.base_url, listen="127.0.0.1:0", window=str(WINDOW)), {})
    log = logs.build(LogOptions(LogLevel.ERROR, LogFormat.JSON))
    tokenizer = Tokenizer(log)
    store = MemoryStore(lambda: 0.0, max_entries=1000, max_age=1000)
    memories = Memories(store, upstream.base_url)
    parts = Parts(tokenizer, memories.of, log, Metrics(), lambda: True)
    async with (
        service.running(config, parts) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a-key", max_retries=0) as made,
    ):
        yield made
    await memories.close()
    tokenizer.close()


async def test_sixty_steps_of_tool_calls_outgrow_the_window_and_every_request_is_answered(
    client: openai.AsyncOpenAI, upstream: DemoUpstream
) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be careful."},
        {"role": "user", "content": "Fix it all."},
    ]
    originals, actions = [], set()
    for number in range(1, STEPS + 1):
        row, reply = await demo.step(client, messages, number, upstream)
        assert row.status == 200
        assert reply is not None
        originals += [int(row.original)] if row.original != demo.UNCOUNTED else []
        actions |= {action.split("=")[0] for action in row.actions.split(",")}
        messages += [reply, *demo.results(reply, number)]
    assert originals[-1] > 5 * WINDOW
    assert {"elide", "summarize", "include_usage"} <= actions
    assert all(served.status == 200 for served in upstream.log)
    assert max(served.prompt_tokens or 0 for served in upstream.log) < WINDOW


async def test_a_chat_without_tools_that_outgrows_the_window_is_answered_whole_and_streamed(
    client: openai.AsyncOpenAI, upstream: DemoUpstream
) -> None:
    messages: list[Any] = []
    for number in range(30):
        messages.append({"role": "user", "content": f"Question {number}: " + "why is that so? " * 60})
        if number % 2:
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        else:
            answer = await client.chat.completions.create(model="m", messages=messages)
            text = answer.choices[0].message.content or ""
        assert text
        messages.append({"role": "assistant", "content": text + " because" * 100})
    assert all(served.status == 200 for served in upstream.log)


async def test_a_client_that_asks_for_usage_gets_it_and_one_that_does_not_sees_none(
    client: openai.AsyncOpenAI,
) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    asked = await client.chat.completions.create(
        model="m", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.usage is not None for chunk in [chunk async for chunk in asked]][-1]
    silent = await client.chat.completions.create(model="m", messages=messages, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in silent])
