"""The OpenAI client for Node.js: tools, streams, structured output, and what it does when things go wrong."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.folders import with_book
from tests.integration.clients.models import Reader
from tests.integration.clients.programs.book import ANSWER, PAGES
from tests.integration.clients.rooms import NodeRoom, node
from tests.integration.clients.stage import Stage, staged
from tests.integration.clients.trouble import WORDS, halting, refusal, silence
from tests.peers.upstream import text_message

ROOM = NodeRoom("openai-node", ("openai@6.49.0", "zod@4.6.7"))
PROGRAM = str(Path(__file__).parent / "programs" / "openai_sdk.mjs")
WINDOW = 6000
ALL_PAGES = list(range(1, PAGES + 1))


async def run(stage: Stage, way: str, folder: Path | None = None) -> Any:
    added = {"CLIENT_FOLDER": str(ROOM.folder)}
    return (await stage.run(node(), PROGRAM, way, folder=folder, added=added)).told


async def test_the_helper_that_runs_tools_streams_through_the_whole_book(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await run(stage, "tools", with_book(tmp_path / "work"))
        assert (told["text"], told["read"]) == (ANSWER, ALL_PAGES)
        assert told["pieces"] > PAGES
        stage.outgrew_the_window()


async def test_structured_output_and_parsed_arguments_outlive_every_cut(tmp_path: Path) -> None:
    found = text_message('{"word": "heron", "pages": 40}')
    async with staged(tmp_path, window=WINDOW, reply=Reader(last=found, speaks=False)) as stage:
        told = await run(stage, "parsed", with_book(tmp_path / "work"))
        assert (told["found"], told["read"]) == ({"word": "heron", "pages": PAGES}, ALL_PAGES)
        assert told["actions"] != "none"
        stage.outgrew_the_window()


async def test_the_client_s_own_retries_see_the_upstream_s_429_and_500(tmp_path: Path) -> None:
    troubles = (refusal(429, retry_after_ms="1"), refusal(500))
    async with staged(tmp_path, window=WINDOW, first=troubles) as stage:
        assert await run(stage, "retried") == {"text": "Reply 1."}
        assert [each["status"] for each in stage.requests] == [429, 500, 200]


@pytest.mark.parametrize(("status", "kind"), [(400, "BadRequestError"), (429, "RateLimitError")])
async def test_a_refusal_is_the_client_s_own_exception(tmp_path: Path, status: int, kind: str) -> None:
    async with staged(tmp_path, window=WINDOW, first=(refusal(status, x_request_id="req_1"),)) as stage:
        told = await run(stage, "refused")
        assert told == {"kind": kind, "status": status, "code": "because", "id": "req_1"}


async def test_when_the_client_s_time_is_up_the_upstream_is_left_as_well(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, first=(silence(),)) as stage:
        assert await run(stage, "timed_out") == {"kind": "APIConnectionTimeoutError"}
        await stage.left()


async def test_a_stream_that_is_left_is_left_at_the_upstream_and_the_client_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, first=(halting(),)) as stage:
        assert await run(stage, "aborted") == {"words": WORDS, "again": "Reply 1."}
        await stage.left()
