"""Agents of Python frameworks, each at the same task: a book that is longer than the window."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.models import Coder, Reader
from tests.integration.clients.programs.book import ANSWER, PAGES
from tests.integration.clients.rooms import PythonRoom
from tests.integration.clients.stage import staged
from tests.peers.upstream import call_message, text_message

WINDOW = 6000
ALL_PAGES = list(range(1, PAGES + 1))
"""Two calls of one answer are carried out at once, by threads, and either may be noted first."""
FOUND = {"word": "heron", "pages": PAGES}
JSON = text_message('{"word": "heron", "pages": 40}')

LANGCHAIN = PythonRoom("langchain", ("langchain==1.5.2", "langchain-openai==1.7.4"))
LITELLM = PythonRoom("litellm", ("litellm==1.110.2",))
AGENTS = PythonRoom("openai-agents", ("openai-agents==0.24.0",))
PYDANTIC = PythonRoom("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",))
SMOLAGENTS = PythonRoom("smolagents", ("smolagents[openai]==1.26.0",))


# --- LangChain ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_an_agent_of_langchain_s_reads_the_book(tmp_path: Path, way: str) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await stage.program(LANGCHAIN.python, "langchain_agent", way)
        assert (told["text"], sorted(told["read"])) == (ANSWER, ALL_PAGES)
        stage.outgrew_the_window()
        assert all(bool(body.get("stream")) is (way == "streamed") for body in stage.upstream.main_bodies)


async def test_langchain_gets_structured_output(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, reply=lambda body: JSON) as stage:
        assert await stage.program(LANGCHAIN.python, "langchain_agent", "structured") == {"found": FOUND}


# --- LiteLLM --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_litellm_s_sdk_reads_the_book(tmp_path: Path, way: str) -> None:
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await stage.program(LITELLM.python, "litellm_sdk", way, added=local)
        assert (told["text"], sorted(told["read"])) == (ANSWER, ALL_PAGES)
        stage.outgrew_the_window()


# --- OpenAI Agents SDK ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_an_agent_of_the_agents_sdk_reads_the_book(tmp_path: Path, way: str) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader()) as stage:
        told = await stage.program(AGENTS.python, "agents_sdk", way)
        assert (told["text"], sorted(told["read"])) == (ANSWER, ALL_PAGES)
        stage.outgrew_the_window()


async def test_an_agent_of_the_agents_sdk_ends_with_a_structure(tmp_path: Path) -> None:
    async with staged(tmp_path, window=WINDOW, reply=Reader(last=JSON)) as stage:
        told = await stage.program(AGENTS.python, "agents_sdk", "structured")
        assert (told["found"], sorted(told["read"])) == (FOUND, ALL_PAGES)
        stage.outgrew_the_window()


# --- Pydantic AI ----------------------------------------------------------------------------------------------------

ENDS: Any = call_message(("callfound", "final_result", '{"word": "heron", "pages": 40}'))


@pytest.mark.parametrize(
    ("way", "reader", "text"),
    [
        ("whole", Reader(), ANSWER),
        ("streamed", Reader(speaks=False), ANSWER),  # it takes the first text of a stream for the answer
        ("structured", Reader(last=ENDS), FOUND),
    ],
)
async def test_an_agent_of_pydantic_ai_s_reads_the_book(
    tmp_path: Path, way: str, reader: Reader, text: object
) -> None:
    async with staged(tmp_path, window=WINDOW, reply=reader) as stage:
        told = await stage.program(PYDANTIC.python, "pydantic_agent", way)
        assert (told["text"], sorted(told["read"])) == (text, ALL_PAGES)
        stage.outgrew_the_window()


# --- smolagents -----------------------------------------------------------------------------------------------------

FINAL: Any = call_message(("callfinal", "final_answer", f'{{"answer": "{ANSWER}"}}'))


@pytest.mark.parametrize(
    ("way", "model"),
    [
        ("whole", Reader(last=FINAL, pairs=False)),
        ("streamed", Reader(last=FINAL, pairs=False)),
        ("code", Coder()),
    ],
)
async def test_an_agent_of_smolagents_reads_the_book(tmp_path: Path, way: str, model: Any) -> None:
    async with staged(tmp_path, window=WINDOW, reply=model) as stage:
        told = await stage.program(SMOLAGENTS.python, "smolagents_agent", way)
        assert (told["text"], sorted(told["read"])) == (ANSWER, ALL_PAGES)
        stage.outgrew_the_window()
