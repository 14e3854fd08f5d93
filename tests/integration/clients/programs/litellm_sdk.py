"""LiteLLM's SDK; the word on the command line says which way it is asked.

Rules. The model is named `openai/...`, as LiteLLM wants it of a server that speaks that API; base URL and key come
from the environment. The last line on standard output is a JSON object that tells what the program got.
"""

import asyncio
import json
import sys
from typing import Any

import litellm

from tests.integration.clients.programs import book

_PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def options(messages: list[Any]) -> dict[str, Any]:
    function = {"name": "read_page", "description": "Read a page.", "parameters": _PARAMETERS}
    tools = [{"type": "function", "function": function}]
    return {"model": "openai/demo-model", "messages": messages, "tools": tools}


def whole(messages: list[Any]) -> Any:
    return litellm.completion(**options(messages), num_retries=2)


async def streamed(messages: list[Any]) -> Any:
    stream = await litellm.acompletion(**options(messages), stream=True)
    return litellm.stream_chunk_builder([chunk async for chunk in stream], messages=messages)


def main(way: str) -> dict[str, Any]:
    messages: list[Any] = [
        {"role": "system", "content": book.SYSTEM},
        {"role": "user", "content": book.TASK},
    ]
    read: list[int] = []
    while True:
        answer = whole(messages) if way == "whole" else asyncio.run(streamed(messages))
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return {"text": message.content, "read": read, "tokens": answer.usage.prompt_tokens}
        for call in message.tool_calls:
            number = json.loads(call.function.arguments)["number"]
            read.append(number)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": book.page(number)})


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(sys.argv[1]))}\n")
