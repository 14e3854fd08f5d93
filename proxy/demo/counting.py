"""How the demonstration's upstream weighs a prompt: an arithmetic of its own, apart from the proxy's.

Rules. Nothing here is shared with the proxy's own measuring, so that estimate and count can disagree as they do in the
world. Counting is total over decoded JSON: what a model would not see weighs nothing. The tokenizer is handed in.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Count = Callable[[str], int]
"""Tokens of a text, as the server's tokenizer has them."""

Fields = Mapping[str, Any]
"""A decoded JSON object."""


class Prompt(NamedTuple):
    """Tokens of a prompt by where they stand."""

    messages: int
    tools: int

    @property
    def total(self) -> int:
        return self.messages + self.tools


_MESSAGE = 3
"""Tokens around each message, and the 3 that prime the reply: openai-cookbook, How_to_count_tokens_with_tiktoken."""

_CALL = 3
"""Tokens around one tool call; a round guess, OpenAI tells none."""

_SCHEMA_SHARE = 0.65
"""Tools cost 0.6 to 0.7 of the tokens of their compact JSON, by recorded usage of real requests."""

_PICTURE = 765
_SMALL_PICTURE = 85
"""A 1024 x 1024 picture in high and in low detail, gpt-4o. Other media are taken for one such picture."""


def measure(body: Fields, count: Count, *, factor: float = 1.0, hidden: int = 0) -> Prompt:
    """The tokens of the prompt that this body becomes.

    Each message costs 3 and the tokens of its role and of every string that a model sees: text, name (1 more),
    reasoning, refusal, names and arguments of calls, but no ids. Tools, functions and a JSON schema for the answer cost
    0.65 of their compact JSON. `factor` scales all of it, as another vocabulary would; `hidden` tokens are added to
    every prompt, as some servers do.
    """
    weight = sum(message_tokens(message, count) for message in objects_in(body.get("messages")))
    return prompt_of(weight, body, count, factor=factor, hidden=hidden)


def prompt_of(weight: int, body: Fields, count: Count, *, factor: float = 1.0, hidden: int = 0) -> Prompt:
    """Like `measure`, where the weight of all messages together is known."""
    schemas = [
        body.get("tools"),
        body.get("functions"),
        fields_of(body.get("response_format")).get("json_schema"),
    ]
    tools = _SCHEMA_SHARE * sum(count(compact(schema)) for schema in schemas if schema)
    return Prompt(math.ceil(factor * (_MESSAGE + weight)) + hidden, math.ceil(factor * tools))


def remembering(count: Count, most: int = 1 << 17) -> Count:
    """The same count with a memory for the newest `most` texts: a replayed history costs a look-up a string."""
    return functools.lru_cache(maxsize=most)(count)


def message_tokens(message: Fields, count: Count) -> int:
    """The weight of one message, see `measure`."""
    parts = objects_in(message.get("content"))
    texts = sum(count(text) for text in _visible(message, parts) if text)
    media = sum(_media_tokens(part) for part in parts if "text" not in part and "refusal" not in part)
    calls = _CALL * len(objects_in(message.get("tool_calls")))
    return _MESSAGE + texts + media + calls + bool(message.get("name"))


def _visible(message: Fields, parts: Sequence[Fields]) -> Iterator[str]:
    for key in ("role", "content", "name", "reasoning_content", "reasoning", "refusal"):
        yield text_of(message.get(key))
    for part in parts:
        yield text_of(part.get("text"))
        yield text_of(part.get("refusal"))
    for call in objects_in(message.get("tool_calls")):
        yield from _invocation(call.get("function", call.get("custom")))
    yield from _invocation(message.get("function_call"))


def _invocation(function: object) -> Iterator[str]:
    fields = fields_of(function)
    arguments = fields.get("arguments", fields.get("input"))
    yield text_of(fields.get("name"))
    yield arguments if isinstance(arguments, str) else compact(arguments) if arguments else ""


def _media_tokens(part: Fields) -> int:
    return _SMALL_PICTURE if fields_of(part.get("image_url")).get("detail") == "low" else _PICTURE


def requested(body: Fields) -> int | None:
    """The most tokens that the answer may have by the request; the newer field counts."""
    for limit in ("max_completion_tokens", "max_tokens"):
        if is_integer(body.get(limit)):
            return int(body[limit])
    return None


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def objects_in(value: object) -> list[Fields]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def fields_of(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
