"""An agent of OpenAI's Agents SDK that speaks chat completions; the word on the command line says which way it is run.

Rules. Base URL and key come from the environment; the SDK is told to speak chat completions, and to trace nothing. The
last line on standard output is a JSON object that tells what the program got.
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)
from pydantic import BaseModel

from tests.integration.clients.programs import book


class Found(BaseModel):
    """What the answer has to be."""

    word: str
    pages: int


async def main(way: str) -> dict[str, Any]:
    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    read: list[int] = []

    def read_page(number: int) -> str:
        """Read a page of the book."""
        read.append(number)
        return book.page(number)

    agent = Agent(
        name="Reader",
        instructions=book.SYSTEM,
        model="demo-model",
        model_settings=ModelSettings(parallel_tool_calls=True, max_tokens=300),
        tools=[function_tool(read_page)],
        output_type=Found if way == "structured" else None,
    )
    if way == "streamed":
        running = Runner.run_streamed(agent, book.TASK, max_turns=100)
        events = [event.type async for event in running.stream_events()]
        return {"text": running.final_output, "read": read, "events": len(events)}
    result = await Runner.run(agent, book.TASK, max_turns=100)
    if way == "structured":
        return {"found": result.final_output.model_dump(), "read": read}
    return {"text": result.final_output, "read": read}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(asyncio.run(main(sys.argv[1])))}\n")
