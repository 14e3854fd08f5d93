"""Answers as chat-completions servers write them: completions, chunks, usage, server-sent events.

Rules. Everything here is a value: equal arguments give equal answers, no clock and no chance. The pieces of a streamed
message, joined by a client, give the very message. `sse` is the only place that knows how events become bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Event = str | bytes | Mapping[str, object]
"""The data of one server-sent event: a text as it is, or an object that becomes compact JSON."""

Message = Mapping[str, object]
"""An assistant message in the API's form."""

DONE = "[DONE]"

_CREATED = 1_700_000_000
_WORDS = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+")


def text_message(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call_message(*calls: tuple[str, str, str], text: str | None = None) -> Message:
    """An assistant message with tool calls, each an id, a name and its arguments as JSON text."""
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text, "tool_calls": made}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion(
    message: Message,
    *,
    usage: Mapping[str, object] | None = None,
    model: str = "demo-model",
    finish: str | None = None,
) -> dict[str, object]:
    """A whole answer. `finish`: by default `tool_calls` or `stop`, after what the message holds."""
    choice = {"index": 0, "message": message, "finish_reason": finish or _finish(message)}
    answer = {"id": "chatcmpl-0", "object": "chat.completion", "created": _CREATED, "model": model}
    return {**answer, "choices": [choice], **({"usage": usage} if usage is not None else {})}


def chunk(
    delta: Mapping[str, object] | None,
    *,
    finish: str | None = None,
    model: str = "demo-model",
    **more: object,
) -> dict[str, object]:
    """One chunk of a stream; without a delta one without choices, as the usage chunk is. `more`: further members."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    return {**head, "choices": choices, **more}


def usage_chunk(usage: Mapping[str, object], *, model: str = "demo-model") -> dict[str, object]:
    return chunk(None, model=model, usage=usage)


def chunks(
    message: Message, *, model: str = "demo-model", finish: str | None = None
) -> list[dict[str, object]]:
    """The message as a stream: role, text word by word, calls with their arguments in two halves, finish reason."""
    deltas: list[Mapping[str, object]] = [{"role": "assistant", "content": ""}]
    text = message.get("content")
    deltas += [{"content": word} for word in _WORDS.findall(text)] if isinstance(text, str) else []
    deltas += _call_deltas(message.get("tool_calls"))
    made = [chunk(delta, model=model) for delta in deltas]
    return [*made, chunk({}, finish=finish or _finish(message), model=model)]


def model_list(models: Sequence[str], window: int | None = None) -> dict[str, object]:
    """The answer of `GET /v1/models`; with a window (tokens) each entry tells it as vLLM does, `max_model_len`."""
    told = {} if window is None else {"max_model_len": window}
    rows = [{"id": m, "object": "model", "created": _CREATED, "owned_by": "demo", **told} for m in models]
    return {"object": "list", "data": rows}


def sse(
    events: Sequence[Event],
    *,
    line_end: str = "\n",
    comments: Sequence[str] = (),
    space: bool = True,
    done: bool = True,
) -> tuple[bytes, ...]:
    """The bytes of a stream, one item an event or comment, blank line included.

    `line_end` is any that the grammar knows; `comments` are sent in turn, one before each event; without `space` the
    fields read `data:{...}`; `done` ends the stream with the event `[DONE]`. A text of several lines becomes several
    `data` lines.
    """
    blank = line_end + line_end
    field = "data: " if space else "data:"
    sent: list[bytes] = []
    for index, event in enumerate([*events, DONE] if done else events):
        if comments:
            sent.append(f": {comments[index % len(comments)]}{blank}".encode())
        lines = _data(event).split("\n")
        sent.append((line_end.join(field + line for line in lines) + blank).encode("utf-8", "surrogatepass"))
    return tuple(sent)


def _call_deltas(calls: object) -> Iterator[Mapping[str, object]]:
    for index, call in enumerate(calls if isinstance(calls, list) else []):
        arguments = call["function"]["arguments"]
        opened = {**call["function"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": opened}]}
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _finish(message: Message) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _data(event: Event) -> str:
    if isinstance(event, bytes):
        return event.decode()
    return event if isinstance(event, str) else json.dumps(event, ensure_ascii=False, separators=(",", ":"))
