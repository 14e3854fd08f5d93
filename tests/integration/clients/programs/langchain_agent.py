"""An agent of LangChain's; the word on the command line says which way it is run.

Rules. The model is told its name alone; base URL and key come from the environment. The last line on standard output is
a JSON object that tells what the program got.
"""

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.integration.clients.programs import book


class Found(BaseModel):
    """What the answer has to be."""

    word: str
    pages: int


def main(way: str) -> dict[str, Any]:
    read: list[int] = []

    def read_page(number: int) -> str:
        """Read a page of the book."""
        read.append(number)
        return book.page(number)

    model = ChatOpenAI(model="demo-model", streaming=way == "streamed")
    agent = create_agent(model, tools=[tool(read_page)], system_prompt=book.SYSTEM)
    task = {"messages": [{"role": "user", "content": book.TASK}]}
    limits = {"recursion_limit": 500}
    match way:
        case "whole":
            messages = agent.invoke(task, limits)["messages"]
            return {"text": messages[-1].text, "read": read, "tokens": messages[-1].usage_metadata}
        case "streamed":
            return {**asyncio.run(streamed(agent, task, limits)), "read": read}
        case _:
            structured = model.with_structured_output(Found)
            found = structured.invoke([("system", book.SYSTEM), ("user", book.TASK)])
            return {"found": found.model_dump()}


async def streamed(agent: Any, task: Any, limits: Any) -> dict[str, Any]:
    """The words as they come, and the text that they make up in the end."""
    pieces, text, last = 0, "", None
    async for piece, _ in agent.astream(task, limits, stream_mode="messages"):
        if piece.type == "AIMessageChunk":
            pieces += 1
            text = text + piece.text if piece.id == last else piece.text
            last = piece.id
    return {"text": text, "pieces": pieces}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(sys.argv[1]))}\n")
