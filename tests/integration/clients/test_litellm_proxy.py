"""LiteLLM's proxy behind ours and before it, with a client at one end and a strict upstream at the other.

Rules. It is one process for all tests here, since it takes long to start, and has a model for each place that it may
stand at. It is configured as its own pages say, and keeps no keys.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.processes import HOST, free_port, started
from benchmarks.speed.subjects import LITELLM_ENVIRONMENT, LITELLM_SETTINGS
from tests.integration.clients.models import Reader
from tests.integration.clients.programs.book import ANSWER, PAGES
from tests.integration.clients.rooms import PythonRoom
from tests.integration.clients.stage import MODEL, Stage, staged
from tests.integration.clients.test_openai_python import ROOM as OPENAI
from tests.integration.clients.trouble import WORDS, halting
from tests.peers.client import RawClient

ROOM = PythonRoom("litellm-proxy", ("litellm[proxy]==1.106.12",))
WINDOW = 6000
ALL_PAGES = list(range(1, PAGES + 1))

HOSTED = "hosted"
"""A model of the same upstream that LiteLLM speaks to as to a vLLM, whose refusals it words otherwise."""
BEFORE = "before"
"""A model behind our proxy, LiteLLM being the one that clients speak to."""


@dataclass(frozen=True, slots=True)
class Between:
    """LiteLLM's proxy at `url`; it looks for the upstream and for our proxy at these ports."""

    url: str
    upstream: int
    transom: int


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    command, folder = str(ROOM.scripts / "litellm"), tmp_path_factory.mktemp("litellm")
    port, upstream, transom = free_port(), free_port(), free_port()
    behind = ((MODEL, "openai", upstream), (HOSTED, "hosted_vllm", upstream), (BEFORE, "openai", transom))
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"{kind}/{MODEL}",
                "api_base": f"http://{HOST}:{at}/v1",
                "api_key": "none",
            },
        }
        for name, kind, at in behind
    ]
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": models, "general_settings": LITELLM_SETTINGS}))
    words = (command, "--config", str(config), "--host", HOST, "--port", str(port))
    with started("litellm", words, port, folder, added=LITELLM_ENVIRONMENT):
        yield Between(f"http://{HOST}:{port}", upstream, transom)


def staged_before(folder: Path, litellm: Between, **options: Any) -> Any:
    """Our proxy before LiteLLM's, with a window that only a refusal can tell."""
    through = f"{litellm.url}/v1"
    return staged(folder, window=WINDOW, at=litellm.upstream, through=through, is_told=False, **options)


def staged_behind(folder: Path, litellm: Between, **options: Any) -> Any:
    """Our proxy behind LiteLLM's."""
    return staged(folder, window=WINDOW, listen=litellm.transom, **options)


async def run(stage: Stage, way: str, model: str) -> Any:
    return await stage.program(OPENAI.python, "openai_sdk", way, added={"OPENAI_MODEL": model})


# --- behind ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "model"), [("whole", MODEL), ("streamed", MODEL), ("streamed", HOSTED)])
async def test_behind_ours_its_wording_of_a_refusal_tells_the_window_and_the_work_goes_on(
    tmp_path: Path, litellm: Between, way: str, model: str
) -> None:
    async with staged_before(tmp_path, litellm, reply=Reader()) as stage:
        told = await run(stage, way, model)
        assert (told["text"], told["read"]) == (ANSWER, ALL_PAGES)
        assert not told.get("usages"), "it asked for none"
        assert len(stage.upstream.refusals) == 1
        assert {each["status"] for each in stage.requests} == {200}
        assert [each["actions"] for each in stage.requests if "recover=1" in each["actions"]] != []
        last = stage.requests[-1]
        assert (last["window"], last["window_source"]) == (WINDOW, "refusal")
        assert sum(bool(each.get("removed_tokens")) for each in stage.requests) > 2
        assert all(each["reported_tokens"] for each in stage.requests)


@pytest.mark.parametrize("asks", [True, False])
async def test_behind_ours_a_stream_has_usage_where_the_client_asks_for_it_and_nowhere_else(
    tmp_path: Path, litellm: Between, asks: bool
) -> None:
    async with staged_before(tmp_path, litellm) as stage:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "stream": True}
        async with RawClient(stage.url, patience=60) as client:
            options = {"stream_options": {"include_usage": True}} if asks else {}
            said = (await client.post("/v1/chat/completions", {**body, **options})).body
        events = [json.loads(line[6:]) for line in said.decode().splitlines() if line.startswith("data: {")]
        assert [bool(event.get("usage")) for event in events] == [False] * 4 + [True] * asks
        assert said.endswith(b"data: [DONE]\n\n")
        await stage.proxy.until("request")  # it is told when the answer has ended
        assert stage.requests[0]["reported_tokens"] == 9


async def test_behind_ours_a_stream_that_is_left_is_left_at_the_upstream(
    tmp_path: Path, litellm: Between
) -> None:
    async with staged_before(tmp_path, litellm, first=(halting(),)) as stage:
        assert await run(stage, "aborted", MODEL) == {"words": WORDS, "again": "Reply 1."}
        await stage.left()


# --- before ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_before_ours_an_agent_outgrows_the_window(tmp_path: Path, litellm: Between, way: str) -> None:
    async with staged_behind(tmp_path, litellm, reply=Reader()) as stage:
        told = await run(replace(stage, url=litellm.url), way, BEFORE)
        assert (told["text"], told["read"]) == (ANSWER, ALL_PAGES)
        assert not told.get("usages"), "it asked for none"
        stage.outgrew_the_window()


async def test_before_ours_a_stream_that_is_left_is_left_at_the_upstream(
    tmp_path: Path, litellm: Between
) -> None:
    async with staged_behind(tmp_path, litellm, first=(halting(),)) as stage:
        told = await run(replace(stage, url=litellm.url), "aborted", BEFORE)
        assert told == {"words": WORDS, "again": "Reply 1."}
        await stage.left()


async def test_before_ours_what_we_tell_of_a_request_arrives_under_names_of_its_own(
    tmp_path: Path, litellm: Between
) -> None:
    async with staged_behind(tmp_path, litellm), RawClient(litellm.url, patience=60) as client:
        body = {"model": BEFORE, "messages": [{"role": "user", "content": "Hello."}]}
        answer = await client.post("/v1/chat/completions", body)
        assert answer.status == 200
        assert answer.header("llm_provider-x-context-window") == str(WINDOW)
        assert answer.header("x-context-window") is None
