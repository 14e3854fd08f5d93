"""An agent of smolagents: one that calls tools, or one that writes code; the word on the command line says which.

Rules. Base URL and key come from the environment. The last line on standard output is a JSON object that tells what the
program got.
"""

import json
import os
import sys
from typing import Any

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

from tests.integration.clients.programs import book


def main(way: str) -> dict[str, Any]:
    read: list[int] = []

    def read_page(number: int) -> str:
        """Read a page of the book.

        Args:
            number: The number of the page.
        """
        read.append(number)
        return book.page(number)

    model = OpenAIModel(
        "demo-model", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    kind: Any = CodeAgent if way == "code" else ToolCallingAgent
    agent = kind(tools=[tool(read_page)], model=model, max_steps=100, stream_outputs=way == "streamed")
    return {"text": str(agent.run(book.TASK)), "read": read}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(sys.argv[1]))}\n")
