"""The OpenAI client for Python: tools, streams, structured output, and what it does when things go wrong."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.models import Reader
from tests.integration.clients.programs.book import ANSWER, PAGES
from tests.integration.clients.rooms import PythonRoom
from tests.integration.clients.stage import KEY, Stage, staged
from tests.integration.clients.trouble import WORDS, halting, refusal, silence
from tests.peers.upstream import text_message

ROOM = PythonRoom("openai-python", ("openai==3.57.0",))
WINDOW = 6000
ALL_PAGES = list(range(1, PAGES + 1))


async def run(stage: Stage, way: str) -> Any:
    return await stage.program(ROOM.python, "openai_sdk", way)


async def test_an_agent_that_asks_for_whole_answers_outgrows_the_window(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await run(stage, "whole")
        assert (told["text"], told["read"]) == (ANSWER, ALL_PAGES)
        assert told["tokens"] < WINDOW
        assert {"elide", "summarize"} <= {each.split("=")[0] for each in ",".join(told["actions"]).split(",")}
        stage.outgrew_the_window()
        assert {call.request.header("authorization") for call in stage.upstream.calls} == {f"Bearer {KEY}"}


async def test_the_asynchronous_client_puts_streams_together_and_sees_no_usage_that_it_did_not_ask_for(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await run(stage, "streamed")
        assert (told["text"], told["read"], told["usages"]) == (ANSWER, ALL_PAGES, False)
        stage.outgrew_the_window()
        assert all(body["stream_options"] == {"include_usage": True} for body in stage.upstream.main_bodies)


async def test_structured_output_and_parsed_arguments_outlive_every_cut(tmp_path: Path) -> None:
    found = text_message('{"word": "heron", "pages": 40}')
    async with staged(tmp_path, window=WINDOW, reply=Reader(last=found, speaks=False)) as stage:
        told = await run(stage, "parsed")
        assert told == {"found": {"word": "heron", "pages": 40}, "read": ALL_PAGES}
        stage.outgrew_the_window()
        bodies = stage.upstream.main_bodies
        assert all(body["response_format"]["json_schema"]["name"] == "Found" for body in bodies)
        assert all(body["tools"] == bodies[0]["tools"] for body in bodies)


async def test_the_client_s_own_retries_see_the_upstream_s_429_and_500(tmp_path: Path) -> None:
    troubles = (refusal(429, retry_after_ms="1"), refusal(500))
    async with staged(tmp_path, window=WINDOW, first=troubles) as stage:
        assert await run(stage, "retried") == {"text": "Reply 1.", "retries": 2}
        assert [each["status"] for each in stage.requests] == [429, 500, 200]
        counts = [request.header("x-stainless-retry-count") for request in stage.upstream.requests]
        assert counts == ["0", "1", "2"]


@pytest.mark.parametrize(("status", "kind"), [(400, "BadRequestError"), (429, "RateLimitError")])
async def test_a_refusal_is_the_client_s_own_exception(tmp_path: Path, status: int, kind: str) -> None:
    async with staged(tmp_path, window=WINDOW, first=(refusal(status, x_request_id="req_1"),)) as stage:
        told = await run(stage, "refused")
        assert (told["kind"], told["status"], told["code"], told["id"]) == (kind, status, "because", "req_1")
        assert "No." in told["message"]


async def test_when_the_client_s_time_is_up_the_upstream_is_left_as_well(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, first=(silence(),)) as stage:
        assert await run(stage, "timed_out") == {"kind": "APITimeoutError"}
        await stage.left()


async def test_a_stream_that_is_left_is_left_at_the_upstream_and_the_client_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, first=(halting(),)) as stage:
        assert await run(stage, "aborted") == {"words": WORDS, "again": "Reply 1."}
        await stage.left()


async def test_it_lists_the_models(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW) as stage:
        assert await run(stage, "listed") == {"models": ["demo-model"]}
