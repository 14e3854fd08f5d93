"""Long conversations of every shape that clients have, each as the growing requests that one client sends.

Rules. A talk is cut into steps, and a request is all messages up to the end of a step: so each is what a stateless
client would send next. No text holds a quote or a line break, so that each is found in a prompt as it is, whether or
not a template writes JSON; ids have nine letters and digits, which the strictest templates want.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

Message = Mapping[str, Any]
Step = Sequence[Message]
"""What is new in one request."""

SYSTEM_TEXT: Final = "You are a tester and this is the head of all that follows."
SYSTEM: Final[Message] = {"role": "system", "content": SYSTEM_TEXT}
DEVELOPER: Final[Message] = {"role": "developer", "content": SYSTEM_TEXT}
REMINDER: Final[Message] = {"role": "system", "content": "The tests must pass."}
WORD: Final[Message] = {"role": "user", "content": "Are you still there?"}
SECOND_SYSTEM: Final[Message] = {"role": "system", "content": "And this is a second head."}

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Where."}},
                "required": ["path"],
            },
        },
    }
    for name in ("read", "run")
]


def padded(text: str, characters: int) -> str:
    """The text, made as long as this by words that hold nothing."""
    return (text + " and more" * (characters // 9 + 1))[: max(len(text), characters)].rstrip()


def user(number: int, size: int = 300) -> Message:
    return {"role": "user", "content": padded(f"Question number {number} is this:", size)}


def said(number: int, size: int = 300) -> Message:
    return {"role": "assistant", "content": padded(f"Answer number {number} is this:", size)}


def calls(number: int, count: int, content: str | None = None) -> Message:
    made = [
        {
            "id": call_id(number, place),
            "type": "function",
            "function": {"name": "read", "arguments": json.dumps({"path": f"file{number}p{place}"})},
        }
        for place in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def call_id(number: int, place: int = 0) -> str:
    return f"c{number:06d}p{place}"


def results(number: int, count: int, size: int = 500) -> list[Message]:
    return [
        {
            "role": "tool",
            "tool_call_id": call_id(number, place),
            "name": "read",
            "content": padded(f"Result {number}p{place} is this:", size),
        }
        for place in range(count)
    ]


# --- the shapes ---------------------------------------------------------------------------------------------


def chat(*head: Message, turns: int = 16) -> Iterator[Step]:
    """Questions and answers."""
    yield [*head, user(0)]
    for number in range(1, turns):
        yield [said(number - 1), user(number)]


def prefilled(*head: Message, turns: int = 16) -> Iterator[Step]:
    """Like `chat`; each request ends with the beginning of an answer, which the client does not keep."""
    yield [*head, user(0)]
    for number in range(1, turns):
        yield [said(number - 1), user(number)]


def agent(*head: Message, rounds: int = 22, width: int = 1, size: int = 500) -> Iterator[Step]:
    """One task, and a loop of calls: `width` of them at once."""
    yield [*head, user(0)]
    for number in range(1, rounds):
        yield [calls(number, width), *results(number, width, size)]


def talking_agent(*head: Message, rounds: int = 16) -> Iterator[Step]:
    """An agent that says something with each of its calls."""
    yield [*head, user(0)]
    for number in range(1, rounds):
        yield [calls(number, 1, f"Now comes call {number}."), *results(number, 1)]


def turns_with_tools(*head: Message, turns: int = 6, width: int = 2) -> Iterator[Step]:
    """Each question is answered after two rounds of calls."""
    for turn in range(turns):
        yield [*(head if turn == 0 else [said(turn - 1)]), user(turn)]
        for number in (2 * turn, 2 * turn + 1):
            yield [calls(number, width), *results(number, width)]


def spoken_protocol(*head: Message, rounds: int = 22) -> Iterator[Step]:
    """An agent that speaks JSON in plain chat: its results are user messages."""
    yield [*head, user(0)]
    for number in range(1, rounds):
        result = padded(f"TOOL_RESULTS Result {number} is this:", 600)
        yield [
            {"role": "assistant", "content": f"Call {number} of read."},
            {"role": "user", "content": result},
        ]


def pairs_of_questions(*head: Message, turns: int = 12) -> Iterator[Step]:
    """Each turn is opened by two user messages, as clients write that put a reminder beside the question."""
    yield [*head, user(0), user(1)]
    for number in range(1, turns):
        yield [said(number), user(2 * number), user(2 * number + 1)]


def interrupted(*head: Message, rounds: int = 16) -> Iterator[Step]:
    """An agent whose user puts a word in now and then, straight after a result."""
    yield [*head, user(0)]
    for number in range(1, rounds):
        word = [user(number)] if number % 5 == 0 else []
        yield [calls(number, 1), *results(number, 1), *word]


def reminded(*head: Message, turns: int = 16) -> Iterator[Step]:
    """System messages in mid-history."""
    yield [*head, user(0)]
    for number in range(1, turns):
        yield [said(number - 1), {"role": "system", "content": f"Reminder {number}."}, user(number)]


def interposed(between: Message, *head: Message, rounds: int = 16) -> Iterator[Step]:
    """An agent with this message between each call and its result, as clients write that add what just happened."""
    yield [*head, user(0)]
    for number in range(1, rounds):
        yield [calls(number, 1), between, *results(number, 1)]


SHAPES: Final[Mapping[str, Callable[[], Iterator[Step]]]] = MappingProxyType(
    {
        "chat": lambda: chat(SYSTEM),
        "chat without a head": chat,
        "chat under a developer": lambda: chat(DEVELOPER),
        "chat under two heads": lambda: chat(SYSTEM, SECOND_SYSTEM),
        "prefilled chat": lambda: prefilled(SYSTEM),
        "agent": lambda: agent(SYSTEM),
        "agent under a developer": lambda: agent(DEVELOPER),
        "agent without a head": agent,
        "agent with parallel calls": lambda: agent(SYSTEM, width=3, rounds=14),
        "agent that talks": lambda: talking_agent(SYSTEM),
        "turns with tools": lambda: turns_with_tools(SYSTEM),
        "turns with single calls": lambda: turns_with_tools(SYSTEM, width=1),
        "spoken protocol": lambda: spoken_protocol(SYSTEM),
        "pairs of questions": lambda: pairs_of_questions(SYSTEM),
        "interrupted agent": lambda: interrupted(SYSTEM),
        "reminders": lambda: reminded(SYSTEM),
        "agent with reminders in rounds": lambda: interposed(REMINDER, SYSTEM),
        "agent with words in rounds": lambda: interposed(WORD, SYSTEM),
    }
)

WITH_TOOLS: Final = frozenset(name for name in SHAPES if "agent" in name or "turns" in name)
PREFILL: Final[Message] = {"role": "assistant", "content": "The answer begins so:", "prefix": True}


def requests(name: str) -> Iterator[dict[str, Any]]:
    """The bodies of the shape's requests, decoded, in their order."""
    messages: list[Message] = []
    for step in SHAPES[name]():
        messages = [*messages, *step]
        sent = [*messages, PREFILL] if name == "prefilled chat" else messages
        yield {"model": "m", "messages": sent} | ({"tools": TOOLS} if name in WITH_TOOLS else {})
