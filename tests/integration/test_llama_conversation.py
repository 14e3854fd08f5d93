"""A conversation that outgrows a real model server's window: what it costs through the proxy, and what it is spared.

Rules. Nothing is said about what the model writes. What the server read is its own word, noted by a relay before it,
which sees the side calls too. The client that keeps the last messages that fit is not run but worked out, in its
favour: it is told the server's count, and nothing is read again that its prompt before began with.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.real_server import Messages, NewestThatFit, conversation, made_up
from benchmarks.served import Cost, Relay, counting_relay, prompt_tokens_total
from proxy.config import LogFormat, LogLevel, LogOptions
from proxy.context.policy import Count, ModelPolicy, SummaryPolicy
from proxy.edge import logs
from proxy.edge.tokenizer import Tokenizer
from tests.edge.proxied import Proxied, memories, proxied
from tests.integration.llama_server import LlamaServer, running

pytestmark = pytest.mark.slow

WINDOW = 1024
"""A small one, since the server reads a hundred tokens a second on a busy machine."""

STEPS = 12
ANSWER = 8
QUESTION_CHARACTERS = 360
BRIEF = SummaryPolicy(max_tokens=48, prompt="Summarise the transcript in {words} words.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running(tmp_path_factory.mktemp("llama"), window=WINDOW) as started:
        yield started


@asynccontextmanager
async def before(server: LlamaServer) -> AsyncIterator[tuple[Proxied, Relay]]:
    """The proxy with its real tokenizer before the relay before the server."""
    tokenizer = Tokenizer(logs.build(LogOptions(LogLevel.ERROR, LogFormat.JSON)))
    policy = ModelPolicy(window=WINDOW, count=Count.AUTO, summary=BRIEF)
    try:
        async with (
            counting_relay(server.url) as relay,
            proxied(relay.base_url, policy=policy, parts=(tokenizer, memories(relay.base_url))) as proxy,
        ):
            yield proxy, relay
    finally:
        tokenizer.close()


def least_read(prompts: list[tuple[Messages, int]]) -> int:
    """The tokens that a client with these prompts, of so many tokens each, leaves the server to read at least."""
    total, cached, previous = 0, 0, Messages()
    for messages, tokens in prompts:
        total += tokens - (cached if messages[: len(previous)] == previous else HEAD)
        cached, previous = tokens + ANSWER, messages
    return total


HEAD = 40
"""More tokens than the system message has."""


async def test_a_conversation_of_twice_the_window_is_answered_to_its_end_and_costs_less_than_keeping_the_last(
    server: LlamaServer,
) -> None:
    read_before = await prompt_tokens_total(server.url)
    prompts: list[tuple[Messages, int]] = []
    newest = NewestThatFit(server.base_url, WINDOW - ANSWER)

    async def everything(history: Messages) -> Messages:
        kept = await newest(history)
        prompts.append((kept, newest.tokens))
        return list(history)

    texts = [made_up(number, QUESTION_CHARACTERS) for number in range(STEPS)]
    async with before(server) as (proxy, relay):
        steps = [each async for each in conversation(f"{proxy.url}/v1", texts, ANSWER, everything)]
    cuts = {cut for step in steps for cut in step.actions.split(",") if cut.startswith("summarize=")}
    side_calls = relay.beside(step.id for step in steps)
    cost = Cost.of(relay.calls)
    assert all(step.id for step in steps)
    assert relay.refusals == 0
    assert len(cuts) == len(side_calls) >= 2
    assert cost.calls == STEPS + len(side_calls)
    assert cost.processed == await prompt_tokens_total(server.url) - read_before
    assert cost.processed <= least_read(prompts)
