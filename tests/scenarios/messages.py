"""Messages of made-up conversations, and whole histories of them.

Rules. Values are shared and never changed. Every line of a filler names the text that it stands in, so that no two
texts of a conversation share a line, and what became of each can be told.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = Mapping[str, Any]

SYSTEM: Final[Message] = {"role": "system", "content": "You are a careful tester."}
DEVELOPER: Final[Message] = {"role": "developer", "content": "You are a careful developer."}
TASK: Final[Message] = {"role": "user", "content": "Make all tests of the project pass."}
QUESTION: Final[Message] = {"role": "user", "content": "And what follows from that?"}
PICTURE: Final[Message] = {
    "type": "image_url",
    "image_url": {"url": "https://example.org/a.png", "detail": "low"},
}


def user(content: Any, **more: Any) -> Message:
    return {"role": "user", "content": content, **more}


def said(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def text_part(text: str, **more: Any) -> Message:
    return {"type": "text", "text": text, **more}


def call(call_id: str, name: str = "read", /, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def calls(*made: Message, **more: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


def result(call_id: str, content: Any, **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def filler(label: str, characters: int) -> str:
    """A text of so many characters of which every line names the label."""
    line = f"{label}: and so it goes on\n"
    return (line * (characters // len(line) + 1))[: max(characters, len(label))]


def step(number: int, size: int = 400, *, width: int = 1, name: str = "read") -> list[Message]:
    """One round of an agent: `width` calls, and for each a result of `size` characters."""
    ids = [f"c{number}x{place}" for place in range(width)]
    made = calls(*(call(each, name, path=f"{each}.py") for each in ids))
    return [made, *(result(each, filler(f"output {each}", size)) for each in ids)]


def steps(number: int, size: int = 400, *, width: int = 1) -> list[Message]:
    return [message for each in range(number) for message in step(each, size, width=width)]


def turn(number: int, size: int = 300) -> list[Message]:
    """A question and its answer, each of `size` characters."""
    return [user(filler(f"question {number}", size)), said(filler(f"answer {number}", size))]


def turns(number: int, size: int = 300) -> list[Message]:
    return [message for each in range(number) for message in turn(each, size)]


def agent(number: int, size: int = 400, *, width: int = 1) -> list[Message]:
    """A head, a task, and so many rounds."""
    return [SYSTEM, TASK, *steps(number, size, width=width)]


def talk(number: int, size: int = 300) -> list[Message]:
    """A head, so many turns, and a question."""
    return [SYSTEM, *turns(number, size), QUESTION]


def mixed(number: int, size: int = 300, *, width: int = 2) -> list[Message]:
    """A head, so many turns whose answers take one round of calls each, and a question."""
    parts = [between(turn(n, size), step(n, size, width=width)) for n in range(number)]
    return [SYSTEM, *(message for part in parts for message in part), QUESTION]


def between(outer: Sequence[Message], inner: Sequence[Message]) -> list[Message]:
    """A turn with rounds of calls between its question and its answer."""
    return [outer[0], *inner, *outer[1:]]


def text_of(message: Message) -> str:
    """The text that a message shows, parts joined by line breaks."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def arguments_of(message: Message) -> list[str]:
    """The arguments of all calls of a message."""
    return [each["function"]["arguments"] for each in message.get("tool_calls") or ()]
