"""An agent of Pydantic AI's; the word on the command line says which way it is run.

Rules. Base URL and key come from the environment. The last line on standard output is a JSON object that tells what the
program got.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel

from tests.integration.clients.programs import book


class Found(BaseModel):
    """What the answer has to be."""

    word: str
    pages: int


async def main(way: str) -> dict[str, Any]:
    read: list[int] = []

    def read_page(number: int) -> str:
        """Read a page of the book."""
        read.append(number)
        return book.page(number)

    output: Any = Found if way == "structured" else str
    agent = Agent(
        OpenAIChatModel("demo-model"), tools=[read_page], system_prompt=book.SYSTEM, output_type=output
    )
    limits = UsageLimits(request_limit=None)
    if way == "streamed":
        async with agent.run_stream(book.TASK, usage_limits=limits) as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        return {"text": "".join(pieces), "read": read, "pieces": len(pieces)}
    result = await agent.run(book.TASK, usage_limits=limits)
    told = result.output.model_dump() if way == "structured" else result.output
    return {"text": told, "read": read}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(asyncio.run(main(sys.argv[1])))}\n")
