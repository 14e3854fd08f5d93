"""The demonstration: an agent with the real OpenAI client, the proxy, and an upstream with a small window.

Rules. Nothing leaves the machine. The client knows nothing of the proxy but its URL and resends its whole history with
every request, as agents do. The table shows what the headers said and what the upstream itself counted; the exit
status is 1 when one request was not answered.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, TextIO

from proxy.demo.upstream import DemoUpstream
from proxy.edge.tokenizer import count_with, load_encoding

try:
    import openai as client_library
except ImportError:
    _openai: ModuleType | None = None
else:
    _openai = client_library

MODEL: Final = "demo-model"
"""Unknown to every tokenizer table, as most models are."""

_MISSING_CLIENT: Final = (
    "The demonstration drives the proxy with the OpenAI client: pip install 'transom[demo]'"
)

_SYSTEM: Final = (
    "You are a careful engineer who works through a repository step by step with the tools you are given. "
    "Read before you edit, run the tests after each edit, and report what you did."
)
_TASK: Final = (
    "Go through the services of this repository one by one. In each, find where amounts of money are rounded, make "
    "the rounding half-even, and run the tests. Keep a list of the files that you have changed."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One request as the client saw it."""

    number: int
    kind: str
    original: str
    forwarded: str
    counted: str
    status: int
    actions: str


def upstream(window: int, steps: int) -> DemoUpstream:
    """The server behind the proxy."""
    encoder = load_encoding("o200k_base")
    return DemoUpstream(window=window, count=partial(count_with, encoder), steps=steps, models=(MODEL,))


async def show(url: str, server: DemoUpstream, steps: int, out: TextIO) -> int:
    """Drive the conversation and print the table; 0 when every request was answered."""
    if _openai is None:
        print(_MISSING_CLIENT, file=sys.stderr)
        return 1
    print(
        f"An agent of {steps} steps, a window of {server.window} tokens, Transom at {url} in between.\n{_COLUMNS}",
        file=out,
    )
    print(_HEADING, file=out)
    rows: list[Row] = []
    async with _openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="demonstration", max_retries=0) as client:
        messages: list[Any] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _TASK}]
        for number in range(1, steps + 1):
            row, reply = await step(client, messages, number, server)
            print(_line(row), file=out, flush=True)
            rows.append(row)
            if reply is None:
                break
            messages += [reply, *results(reply, number)]
    print(_closing(rows, server), file=out)
    return 0 if len(rows) == steps and all(row.status == 200 for row in rows) else 1


async def step(
    client: Any, messages: Sequence[Any], number: int, server: DemoUpstream
) -> tuple[Row, dict[str, Any] | None]:
    """One request, every third as a stream; its row and the assistant's message, None when it was refused."""
    streams = number % 3 == 0
    try:
        if streams:
            headers, reply = await _streamed(client, messages)
        else:
            headers, reply = await _whole(client, messages)
        status = 200
    except client_library.APIStatusError as error:
        headers, reply, status = error.response.headers, None, error.status_code
    served = next(each for each in reversed(server.log) if b'"tools"' in each.body)  # no side call
    row = Row(
        number,
        "stream" if streams else "json",
        headers.get("x-context-original-tokens", UNCOUNTED),
        headers.get("x-context-tokens", UNCOUNTED),
        str(served.prompt_tokens or "refused"),
        status,
        headers.get("x-context-actions", "?"),
    )
    return row, reply


async def _whole(client: Any, messages: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    answer = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, tools=TOOLS
    )
    return answer.headers, answer.parse().choices[0].message.model_dump(exclude_none=True)


async def _streamed(client: Any, messages: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """A streamed answer, its deltas put together as an agent does."""
    answer = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, tools=TOOLS, stream=True
    )
    calls: dict[int, dict[str, Any]] = {}
    text = ""
    async for chunk in answer.parse():
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for part in delta.tool_calls or ():
            call = calls.setdefault(
                part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] += part.id or ""
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    reply: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        reply["tool_calls"] = [calls[index] for index in sorted(calls)]
    return answer.headers, reply


def results(reply: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What the tools answer; a new question instead when the assistant is done."""
    calls = reply.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": f"Good. Now the next group of services, please ({number})."}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": _output(call["function"], number)}
        for call in calls
    ]


def _output(function: dict[str, Any], number: int) -> str:
    """Made-up output of a tool, of the length that such output has."""
    arguments = json.loads(function["arguments"] or "{}")
    subject = next((str(value) for value in arguments.values()), "repository")
    if function["name"] == "run_tests":
        return (
            "\n".join(f"tests/{subject}/test_{n}.py::test_rounding_{n} PASSED" for n in range(12))
            + "\n12 passed"
        )
    lines = (
        f"{n:4}  amount_{n} = round_half_even(price_{n} * quantity_{n}, places=2)  # {subject}, step {number}"
        for n in range(1, 10 + (number * 7) % 23)
    )
    return f"{function['name']} {subject}\n" + "\n".join(lines)


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS: Final = (
    _tool("list_files", "List the files of a folder.", "path"),
    _tool("read_file", "Read a text file.", "path"),
    _tool("search", "Search all files for a text.", "query"),
    _tool("edit_file", "Replace a text in a file.", "path", "old", "new"),
    _tool("run_tests", "Run the tests of a folder.", "path"),
)

UNCOUNTED: Final = "-"
"""Stands for the tokens of a request that is so small that it was sent before it was counted."""

_COLUMNS: Final = """
original   tokens of what the agent sent, its whole history, as Transom estimates them
forwarded  the same of what Transom sent on; - for a request so small that it was sent before it was counted
counted    tokens that the upstream itself counted of it
done       elide, summarize, drop: messages so far that a statement or a summary stands for, or that are left out;
           include_usage: the stream's usage was asked for, and taken out of the answer
"""

_HEADING: Final = (
    f"{'#':>3}  {'answer':6}  {'original':>8}  {'forwarded':>9}  {'counted':>8}  {'status':>6}  what was done\n"
    f"{'':3}  {'':6}  {'tokens':>8}  {'tokens':>9}  {'upstream':>8}"
)


def _line(row: Row) -> str:
    return (
        f"{row.number:>3}  {row.kind:6}  {row.original:>8}  {row.forwarded:>9}  {row.counted:>8}  "
        f"{row.status:>6}  {row.actions}"
    )


def _closing(rows: Sequence[Row], server: DemoUpstream) -> str:
    answered = sum(row.status == 200 for row in rows)
    refused = len(rows) - answered
    largest = max((served.prompt_tokens or 0 for served in server.log), default=0)
    side_calls = len(server.log) - len(rows)
    return (
        f"\n{answered} requests answered, {refused} refused. Largest prompt that the upstream counted: {largest} of "
        f"{server.window} tokens. Side calls for a summary: {side_calls}."
    )
