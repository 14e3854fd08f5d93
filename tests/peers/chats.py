"""Small chat requests to build tests from: a few messages, and what puts them together.

Rules. Values here are shared and never changed: a test that needs another field makes a new dict with `|`.
"""

from typing import Any, Final

SYSTEM: Final[dict[str, Any]] = {"role": "system", "content": "Be brief."}
USER: Final[dict[str, Any]] = {"role": "user", "content": "What is in a.py?"}
SAID: Final[dict[str, Any]] = {"role": "assistant", "content": "A test."}
PICTURE: Final[dict[str, Any]] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object"}},
}


def asks(*ids: str, **more: object) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "read", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "print(1)"}


def chat(*messages: object, **options: object) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **options}
