"""The stand-in for a model behind the demonstration's upstream: a fixed script of tool calls, and extracts of texts.

Rules. It is no model and says so. The same request gets the same message, with no memory between requests: how far the
script has come is read from the ids of the calls that are answered last, which every sound history still holds. It
obeys the request's limit of tokens.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from proxy.demo.counting import Count, Fields, fields_of, objects_in, requested, text_of
from proxy.demo.replies import Message, call_message, text_message

_CALL_ID = re.compile(r"t(\d{2})s(\d{4})[a-z]")
"""Turn, step and place within the step; nine letters and digits, which is all that the strictest server accepts."""

_PREFERRED: Final = ("list_files", "read_file", "read_file", "search", "read_file", "edit_file", "run_tests")
_SUBJECTS: Final = (
    "orders",
    "billing",
    "ledger",
    "invoices",
    "payments",
    "accounts",
    "reports",
    "exports",
    "audit",
)
_PAIR_EVERY: Final = 6

_EXTRACT_FROM: Final = 20
"""Lines of a lone user message from which on it is taken for a text to be extracted and not for a question."""

_EXTRACT_LINES: Final = 24
_LINE_CHARACTERS: Final = 160
_EXTRACT_TOKENS: Final = 512


class Said(NamedTuple):
    """An assistant message, and whether the request's limit cut it short."""

    message: Message
    is_cut: bool


def reply(body: Fields, *, steps: int, count: Count) -> Said:
    """The answer to this chat request. `steps`: rounds of tool calls in one turn before an answer in text."""
    messages = objects_in(body.get("messages"))
    tools = [fields_of(tool.get("function")) for tool in objects_in(body.get("tools"))]
    if tools and body.get("tool_choice") != "none":
        turn, step = _position(messages)
        if step < steps:
            return Said(_step(tools, turn, step, steps), False)
        text = f"All {steps} steps of turn {turn} are done; the last prompt held {len(messages)} messages."
    elif source := _text_to_extract(messages):
        text = _extract(source, requested(body) or _EXTRACT_TOKENS, count)
    else:
        text = "This is the demonstration's stand-in for a model; it has nothing to say."
    told = _clipped(text, requested(body), count)
    return Said(text_message(told), told != text)


def _position(messages: Sequence[Fields]) -> tuple[int, int]:
    """The turn and the step that come next: one step behind the newest result, or a new turn behind a question."""
    last = _CALL_ID.fullmatch(text_of(messages[-1].get("tool_call_id"))) if messages else None
    if last is not None:
        return int(last[1]), int(last[2]) + 1
    ids = [text_of(call.get("id")) for message in messages for call in objects_in(message.get("tool_calls"))]
    turns = [int(found[1]) for found in map(_CALL_ID.fullmatch, ids) if found]
    return max(turns, default=0) % 99 + 1, 0


def _step(tools: Sequence[Fields], turn: int, step: int, steps: int) -> Message:
    places = "ab" if step % _PAIR_EVERY == _PAIR_EVERY - 1 else "a"
    calls = []
    for offset, place in enumerate(places):
        tool = _tool_for(tools, step + offset)
        arguments = _arguments(fields_of(tool.get("parameters")), step + offset)
        calls.append((f"t{turn:02d}s{step:04d}{place}", text_of(tool.get("name")), json.dumps(arguments)))
    names = " and ".join(name for _, name, _ in calls)
    return call_message(*calls, text=f"Step {step + 1} of {steps}: {names}.")


def _tool_for(tools: Sequence[Fields], number: int) -> Fields:
    preferred = _PREFERRED[number % len(_PREFERRED)]
    fitting = [tool for tool in tools if tool.get("name") == preferred]
    return fitting[0] if fitting else tools[number % len(tools)]


def _arguments(schema: Fields, number: int) -> dict[str, object]:
    """Made-up values for the parameters that the tool requires, or for all when it requires none."""
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    known = {"path": f"src/{subject}.py", "command": f"pytest -q tests/test_{subject}.py", "directory": "src"}
    properties = fields_of(schema.get("properties"))
    wanted = schema.get("required") or list(properties)
    values: dict[str, object] = {}
    for name in wanted:
        kind = fields_of(properties.get(name)).get("type")
        made = {"integer": number, "number": number, "boolean": True, "array": [], "object": {}}
        values[name] = made.get(text_of(kind), known.get(name, f"{subject} {number}"))
    return values


def _text_to_extract(messages: Sequence[Fields]) -> str:
    """The user's text when a system message and a long user message are all there is: so a summary is asked for."""
    if [message.get("role") for message in messages] != ["system", "user"]:
        return ""
    content = messages[1].get("content")
    text = text_of(content) or "\n".join(text_of(part.get("text")) for part in objects_in(content))
    return text if len(text.splitlines()) >= _EXTRACT_FROM else ""


def _extract(source: str, limit: int, count: Count) -> str:
    """An even sample of the lines, under a heading that says what this is, within so many tokens."""
    lines = [line.strip() for line in source.splitlines() if line.strip("= ")]
    taken = min(_EXTRACT_LINES, len(lines))
    while (text := _sampled(lines, taken)) and count(text) > limit and taken > 1:
        taken //= 2
    return text


def _sampled(lines: Sequence[str], taken: int) -> str:
    sample = [lines[index * len(lines) // taken][:_LINE_CHARACTERS] for index in range(taken)]
    heading = "Extract by the demonstration's stand-in, which is no model:"
    return "\n".join(
        [heading, f"{taken} of {len(lines)} lines, evenly spread", *(f"- {line}" for line in sample)]
    )


def _clipped(text: str, limit: int | None, count: Count) -> str:
    while text and limit is not None and (tokens := count(text)) > limit:
        text = text[: len(text) * max(limit, 0) // tokens]
    return text
