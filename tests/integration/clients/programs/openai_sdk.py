"""The OpenAI client for Python as programs use it; the word on the command line says which way.

Rules. Nothing is given to the client but what the environment says: its base URL, its key and a model. The last line on
standard output is a JSON object that tells what the program got.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import openai
from pydantic import BaseModel

from tests.integration.clients.programs.book import SYSTEM, TASK, page

MODEL: Final = os.environ.get("OPENAI_MODEL", "demo-model")

_PARAMETERS: Final = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}


class ReadPage(BaseModel):
    """Read a page of the book."""

    number: int


class Found(BaseModel):
    """What the answer has to be."""

    word: str
    pages: int


def tools() -> Any:
    function = {"name": "read_page", "description": "Read a page.", "parameters": _PARAMETERS}
    return [{"type": "function", "function": function}]


def opening() -> Any:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]


def results(calls: Any, read: list[int]) -> Any:
    """The tool messages that answer these calls; `read` gets the numbers of the pages."""
    answers = []
    for call in calls:
        number = json.loads(call.function.arguments)["number"]
        read.append(number)
        answers.append({"role": "tool", "tool_call_id": call.id, "content": page(number)})
    return answers


def whole() -> dict[str, Any]:
    """Whole answers, with their headers."""
    client = openai.OpenAI()
    messages, read, actions = opening(), list[int](), list[str]()
    while True:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, tools=tools(), max_completion_tokens=300
        )
        actions.append(raw.headers.get("x-context-actions", ""))
        answer = raw.parse()
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            tokens = answer.usage.prompt_tokens if answer.usage else None
            return {"text": message.content, "read": read, "actions": actions, "tokens": tokens}
        messages += results(message.tool_calls, read)


async def streamed() -> dict[str, Any]:
    """The helper that puts streams together, in the asynchronous client."""
    messages, read, usages = opening(), list[int](), list[bool]()
    async with openai.AsyncOpenAI() as client:
        while True:
            usages.append(False)
            async with client.chat.completions.stream(
                model=MODEL, messages=messages, tools=tools()
            ) as stream:
                async for event in stream:
                    if event.type == "chunk":
                        usages[-1] |= event.chunk.usage is not None or not event.chunk.choices
                final = await stream.get_final_completion()
            message = final.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return {"text": message.content, "read": read, "usages": any(usages)}
            messages += results(message.tool_calls, read)


def parsed() -> dict[str, Any]:
    """Structured output, with tools whose arguments are parsed."""
    client = openai.OpenAI()
    messages, read = opening(), list[int]()
    tool = openai.pydantic_function_tool(ReadPage, name="read_page")
    while True:
        answer = client.chat.completions.parse(
            model=MODEL, messages=messages, tools=[tool], response_format=Found
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            assert message.parsed is not None
            return {"found": message.parsed.model_dump(), "read": read}
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed": True}))
        for call in message.tool_calls:
            assert isinstance(call.function.parsed_arguments, ReadPage)
        messages += results(message.tool_calls, read)


def retried() -> dict[str, Any]:
    """Two answers that the client tries again by itself."""
    client = openai.OpenAI(max_retries=3)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=opening())
    return {"text": raw.parse().choices[0].message.content, "retries": raw.retries_taken}


def refused() -> dict[str, Any]:
    """An answer that nothing makes good, as the client's own exception."""
    try:
        openai.OpenAI(max_retries=0).chat.completions.create(model=MODEL, messages=opening())
    except openai.APIStatusError as error:
        told = {"kind": type(error).__name__, "status": error.status_code, "code": error.code}
        return {**told, "message": error.message, "id": error.request_id}
    return {}


def timed_out() -> dict[str, Any]:
    """A limit of the client's own, before an answer that does not come."""
    client = openai.OpenAI(max_retries=0, timeout=1.0)
    try:
        client.chat.completions.create(model=MODEL, messages=opening())
    except openai.APITimeoutError as error:
        return {"kind": type(error).__name__}
    return {}


def aborted() -> dict[str, Any]:
    """A stream that is left behind its first words; the same client then asks again."""
    client = openai.OpenAI(max_retries=0)
    words = []
    with client.chat.completions.create(model=MODEL, messages=opening(), stream=True) as stream:
        for chunk in stream:
            words.append(chunk.choices[0].delta.content or "")
            if len(words) == 3:
                break
    again = client.chat.completions.create(model=MODEL, messages=opening())
    return {"words": words, "again": again.choices[0].message.content}


def listed() -> dict[str, Any]:
    """The list of models."""
    return {"models": [model.id for model in openai.OpenAI().models.list()]}


WAYS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = MappingProxyType(
    {
        "whole": whole,
        "streamed": lambda: asyncio.run(streamed()),
        "parsed": parsed,
        "retried": retried,
        "refused": refused,
        "timed_out": timed_out,
        "aborted": aborted,
        "listed": listed,
    }
)

if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(WAYS[sys.argv[1]]())}\n")
