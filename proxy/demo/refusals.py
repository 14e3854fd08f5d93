"""The complaints of strict chat-completions servers, in their own words.

Rules. Each server has four judges: `..._body` looks at all but the messages themselves, `..._message` at one message
apart from the others, `..._order` at how they follow each other, `..._overflow` at a weighed prompt and the window. The
first three yield what they find; only the first complaint is ever sent, and each may take for granted that the judges
before it found nothing. Wordings, types, codes and statuses are those that the servers were seen to use; what is
stricter here than there, or a guess, says so beside it.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from proxy.demo.counting import Fields, Prompt, compact, fields_of, is_integer, objects_in, requested, text_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer: HTTP status and the decoded JSON body."""

    status: int
    body: object


# --- OpenAI ---------------------------------------------------------------------------------------------------------

_OPENAI_ROLES: Final = ("system", "assistant", "user", "function", "tool", "developer")


def _openai(message: str, param: str | None, code: str | None = None) -> Refusal:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Refusal(400, {"error": error})


NOT_JSON: Final = _openai(
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)",
    None,
)

REFUSED_STREAM_OPTIONS: Final = _openai("Unrecognized request argument supplied: stream_options", None)
"""How an API refuses what it does not know: Azure's old versions, by hearsay."""


def openai_overflow(body: Fields, prompt: Prompt, window: int) -> Refusal | None:
    """Prompt and requested completion together may fill the window, and not more."""
    completion = requested(body) or 0
    if prompt.total + completion <= window:
        return None
    found = [
        (prompt.messages, "messages"),
        *([(prompt.tools, "functions")] if prompt.tools else []),
        *([(completion, "completion")] if completion else []),
    ]
    shares = _listing([f"{tokens} in the {place}" for tokens, place in found], "and")
    places = _listing([place for _, place in found], "or")
    if completion:
        what = f"you requested {prompt.total + completion} tokens ({shares})"
    else:
        what = f"your messages resulted in {prompt.total} tokens" + (f" ({shares})" if prompt.tools else "")
    return _openai(
        f"This model's maximum context length is {window} tokens. However, {what}. "
        f"Please reduce the length of the {places}.",
        "messages",
        "context_length_exceeded",
    )


def _listing(items: Sequence[str], joint: str) -> str:
    """The API's own punctuation: "a", "a or b", "a, b, or c"; amounts are joined by commas until there are three."""
    if len(items) < 3:
        return (", " if joint == "and" else f" {joint} ").join(items)
    return f"{', '.join(items[:-1])}, {joint} {items[-1]}"


def openai_body(body: Fields) -> Iterator[Refusal]:
    yield from _openai_options(body)
    if "messages" not in body:
        yield _openai("Missing required parameter: 'messages'.", "messages", "missing_required_parameter")
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield _openai_wrong_type("messages", "an array of objects", messages)
    if not messages:
        yield _openai_empty("messages")


def _openai_options(body: Fields) -> Iterator[Refusal]:
    for limit in ("max_tokens", "max_completion_tokens"):
        tokens = body.get(limit)
        if tokens is not None and not is_integer(tokens):
            yield _openai_wrong_type(limit, "an integer", tokens)
        elif tokens is not None and tokens < 1:
            wording = f"integer below minimum value. Expected a value >= 1, but got {tokens} instead."
            yield _openai(f"Invalid '{limit}': {wording}", limit, "integer_below_min_value")
    if body.get("tools") == []:
        yield _openai_empty("tools")
    if body.get("tool_choice") is not None and not body.get("tools"):
        wording = "'tool_choice' is only allowed when 'tools' are specified."
        yield _openai(f"Invalid value for 'tool_choice': {wording}", "tool_choice")
    if body.get("stream_options") is not None and not body.get("stream"):
        wording = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        yield _openai(wording, "stream_options")


def openai_message(index: int, message: object) -> Iterator[Refusal]:
    place = f"messages[{index}]"
    if not isinstance(message, dict):
        yield _openai_wrong_type(place, "an object", message)
        return
    role = message.get("role")
    if "role" not in message:
        wording = f"Missing required parameter: '{place}.role'."
        yield _openai(wording, f"{place}.role", "missing_required_parameter")
    if role not in _OPENAI_ROLES:
        known = f"{', '.join(repr(name) for name in _OPENAI_ROLES[:-1])}, and {_OPENAI_ROLES[-1]!r}"
        wording = f"Invalid value: '{role}'. Supported values are: {known}."
        yield _openai(wording, f"{place}.role", "invalid_value")
    yield from _openai_content(index, message)
    yield from _openai_calls(f"{place}.tool_calls", message.get("tool_calls"))
    for needed, wanting in (("tool", "tool_call_id"), ("function", "name")):
        if role == needed and not message.get(wanting):
            wording = f"Missing parameter '{wanting}': messages with role '{role}' must have a '{wanting}'."
            yield _openai(wording, f"messages.[{index}].{wanting}")


def _openai_content(index: int, message: Fields) -> Iterator[Refusal]:
    content = message.get("content")
    place = f"messages[{index}]"
    if content is None and not (message.get("tool_calls") or message.get("function_call")):
        wording = "Invalid value for 'content': expected a string, got null."
        yield _openai(wording, f"messages.[{index}].content")
    if content is not None and not isinstance(content, str | list):
        yield _openai_wrong_type(f"{place}.content", "one of a string or array of objects", content)
    if content == []:
        yield _openai_empty(f"{place}.content")
    role = message.get("role")
    if role != "user" and any(part.get("type") == "image_url" for part in objects_in(content)):
        wording = "Image URLs are only allowed for messages with role 'user'"
        wording += f", but this message with role '{role}' contains an image URL."
        yield _openai(f"Invalid '{place}'. {wording}", place, "invalid_value")


def _openai_calls(place: str, calls: object) -> Iterator[Refusal]:
    if calls is None:
        return
    if not isinstance(calls, list):
        yield _openai_wrong_type(place, "an array of objects", calls)
        return
    if not calls:
        yield _openai_empty(place)
    for number, call in enumerate(calls):
        fields = fields_of(call)
        kind = "custom" if fields.get("type") == "custom" else "function"
        wanted = {
            f"{place}[{number}].id": fields.get("id"),
            f"{place}[{number}].{kind}.name": fields_of(fields.get(kind)).get("name"),
        }
        if kind == "function":
            wanted[f"{place}[{number}].function.arguments"] = fields_of(fields.get(kind)).get("arguments")
        for param, value in wanted.items():
            if value is None:
                yield _openai(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
            elif not isinstance(value, str):
                yield _openai_wrong_type(param, "a string", value)


class _Round:
    """The nearest preceding assistant message: what it asked for and what was not answered yet."""

    __slots__ = ("asked", "function", "waiting")

    def __init__(self, opener: Fields) -> None:
        is_assistant = opener.get("role") == "assistant"
        calls = objects_in(opener.get("tool_calls")) if is_assistant else []
        self.asked = [text_of(call.get("id")) for call in calls]
        self.waiting = list(self.asked)
        legacy = fields_of(opener.get("function_call")) if is_assistant else {}
        self.function = text_of(legacy.get("name"))


def openai_order(messages: Sequence[Fields]) -> Iterator[Refusal]:
    """Calls are answered by the messages that follow directly, each once; results answer the call just before."""
    current = _Round({})
    for index, message in enumerate(messages):
        match message.get("role"):
            case "tool":
                yield from _openai_result(index, message, current)
            case "function":
                yield from _openai_function_result(index, message, current)
            case _:
                yield from _openai_unanswered(current)
                current = _Round(message)
                yield from _openai_repeated(index, current)
    yield from _openai_unanswered(current)


def _openai_result(index: int, message: Fields, current: _Round) -> Iterator[Refusal]:
    answered = text_of(message.get("tool_call_id"))
    if not current.asked:
        wording = (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
        )
        yield _openai(wording + "'tool_calls'.", f"messages.[{index}].role")
    elif answered not in current.asked:
        wording = f"Invalid parameter: 'tool_call_id' of '{answered}' not found in 'tool_calls' of previous message."
        yield _openai(wording, f"messages.[{index}].tool_call_id")
    elif answered not in current.waiting:
        yield _openai_duplicate(index, answered)
    else:
        current.waiting.remove(answered)


def _openai_function_result(index: int, message: Fields, current: _Round) -> Iterator[Refusal]:
    """Stricter than the API, which asks for the name alone: a `function` message answers the call just before it."""
    if not current.function or current.function != message.get("name"):
        wording = "Invalid parameter: messages with role 'function' must be a response to a preceeding message with "
        yield _openai(wording + "'function_call'.", f"messages.[{index}].role")
    current.function = ""


def _openai_unanswered(current: _Round) -> Iterator[Refusal]:
    if current.waiting:
        wording = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        )
        wording += "'tool_call_id'. The following tool_call_ids did not have response messages: "
        yield _openai(wording + ", ".join(current.waiting), "messages")
    if current.function:  # Stricter than the API, which does not look.
        wording = (
            "An assistant message with 'function_call' must be followed by a function message responding to "
        )
        yield _openai(f"{wording}'{current.function}'.", "messages")


def _openai_repeated(index: int, current: _Round) -> Iterator[Refusal]:
    for number, call_id in enumerate(current.asked):
        if call_id in current.asked[:number]:
            yield _openai_duplicate(index, call_id)


def _openai_duplicate(index: int, call_id: str) -> Refusal:
    return _openai(f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]", "messages")


def _openai_empty(place: str) -> Refusal:
    wording = "empty array. Expected an array with minimum length 1, but got an empty array instead."
    return _openai(f"Invalid '{place}': {wording}", place, "empty_array")


def _openai_wrong_type(place: str, expected: str, value: object) -> Refusal:
    wording = f"Invalid type for '{place}': expected {expected}, but got {_type_name(value)} instead."
    return _openai(wording, place, "invalid_type")


def _type_name(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


# --- llama.cpp before a strict chat template --------------------------------------------------------------------------

_ALTERNATE = "conversation roles must alternate user/assistant/user/assistant/..."
_SYSTEM_ROLES: Final = ("system", "developer")
_RESULT_ROLES: Final = ("tool", "function")


def _llama(status: int, message: str, kind: str = "invalid_request_error") -> Refusal:
    return Refusal(status, {"error": {"code": status, "message": message, "type": kind}})


def _raised(message: str) -> Refusal:
    """What `raise_exception` in a template becomes."""
    return _llama(500, f"Jinja Exception: {message}", "server_error")


def template_overflow(body: Fields, prompt: Prompt, window: int) -> Refusal | None:
    """The prompt must leave room for one token at least; a completion that is asked for is cut, never refused."""
    if prompt.total < window:
        return None
    error = {
        "code": 400,
        "message": f"request ({prompt.total} tokens) exceeds the available context size ({window} tokens), "
        "try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": prompt.total,
        "n_ctx": window,
    }
    return Refusal(400, {"error": error})


def template_body(body: Fields) -> Iterator[Refusal]:
    if "messages" not in body:
        yield _llama(400, "'messages' is required")
    if not isinstance(body.get("messages"), list):
        yield _llama(400, "Expected 'messages' to be an array")


def template_message(index: int, message: object) -> Iterator[Refusal]:
    fields = fields_of(message)
    if "role" not in fields:
        wording = f"Failed to parse messages: Missing 'role' in message: {compact(message)}"
        yield _llama(500, wording, "server_error")
    content = fields.get("content")
    if "content" not in fields and fields.get("role") != "assistant":
        yield _llama(400, "All non-assistant messages must contain 'content'")
    if "content" not in fields and "tool_calls" not in fields:
        yield _llama(400, "Assistant message must contain either 'content' or 'tool_calls'!")
    if content is not None and not isinstance(content, str | list):
        yield _llama(400, "Expected 'content' to be a string or an array")
    for call in objects_in(fields.get("tool_calls")):
        arguments = fields_of(call.get("function")).get("arguments")
        if isinstance(arguments, str) and not _is_json(arguments):
            wording = (
                "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error"
            )
            yield _llama(500, wording, "server_error")


def template_order(messages: Sequence[Fields]) -> Iterator[Refusal]:
    """Qwen's rules for system and user messages, and the alternation of Gemma and Mistral templates."""
    if [message.get("role") for message in messages[-2:]] == ["assistant", "assistant"]:
        yield _llama(400, "Cannot have 2 or more assistant messages at the end of the list.")
    spoken = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
    for index, message in enumerate(messages):
        if index and message.get("role") in _SYSTEM_ROLES:
            yield _raised("System message must be at the beginning.")
    if not any(_is_query(message) for message in spoken):
        yield _raised("No user query found in messages.")
    if spoken and spoken[0].get("role") != "user":
        yield _raised(_ALTERNATE.capitalize())
    # Results and assistant messages with calls are invisible to the alternation, so that after
    # user, assistant with calls, result the next in line is an assistant message and no user message.
    seen = [m for m in spoken if m.get("role") not in _RESULT_ROLES and not m.get("tool_calls")]
    for index, message in enumerate(seen):
        if (message.get("role") == "user") != (index % 2 == 0):
            yield _raised(f"After the optional system message, {_ALTERNATE}")


def _is_query(message: Fields) -> bool:
    """A user message that is no tool output in Qwen's wrapping."""
    content = message.get("content")
    parts = [text_of(part.get("text")) for part in objects_in(content)]
    text = (text_of(content) or "".join(parts)).strip()
    wrapped = text.startswith("<tool_response>") and text.endswith("</tool_response>")
    return message.get("role") == "user" and not wrapped


# --- Mistral --------------------------------------------------------------------------------------------------------

_MISTRAL_NEXT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "system": frozenset({"user", "assistant", "system"}),
        "user": frozenset({"assistant", "system", "user"}),
        "assistant": frozenset({"assistant", "user", "tool"}),
        "tool": frozenset({"assistant", "tool"}),
    }
)
"""Which role may follow which: mistral-common, `protocol/instruct/validator.py`, message order."""

_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def _mistral(message: str, kind: str = "invalid_request_message_order", code: str = "3230") -> Refusal:
    envelope = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return Refusal(400, {**envelope, "raw_status_code": 400})


def _unprocessable(kind: str, place: Sequence[str | int], message: str, given: object) -> Refusal:
    detail = {"type": kind, "loc": ["body", *place], "msg": message, "input": given}
    return Refusal(422, {"detail": [detail]})


def mistral_overflow(body: Fields, prompt: Prompt, window: int) -> Refusal | None:
    completion = requested(body)
    if completion is not None and completion >= window:
        return _unprocessable("less_than", ["max_tokens"], f"Input should be less than {window}", completion)
    if prompt.total <= window:
        return None
    wording = f"Prompt {prompt.total} > {window} maximum context length"
    return _mistral(wording, "invalid_request_prompt_too_long", "3059")


def mistral_body(body: Fields) -> Iterator[Refusal]:
    if "stream_options" in body:
        given = body["stream_options"]
        yield _unprocessable("extra_forbidden", ["stream_options"], "Extra inputs are not permitted", given)
    if "messages" not in body:
        yield _unprocessable("missing", ["messages"], "Field required", body)
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield _unprocessable("list_type", ["messages"], "Input should be a valid list", messages)
    if not messages:
        yield _mistral("Conversation must have at least one message")


def mistral_message(index: int, message: object) -> Iterator[Refusal]:
    if not isinstance(message, dict):
        wording = "Input should be a valid dictionary"
        yield _unprocessable("dict_type", ["messages", index], wording, message)
        return
    role = text_of(message.get("role"))
    if role not in _MISTRAL_NEXT:
        wording = "Input should be 'system', 'user', 'assistant' or 'tool'"
        yield _unprocessable("literal_error", ["messages", index, "role"], wording, message.get("role"))
    if role == "assistant" and not (message.get("content") or message.get("tool_calls")):
        wording = "Assistant message must have either content or tool_calls, but not none."
        yield _mistral(wording, "invalid_request_assistant_message", "3240")
    if role == "system" and message.get("content") is None:
        yield _mistral("System prompt must have content")


def mistral_nine_message(index: int, message: object) -> Iterator[Refusal]:
    yield from mistral_message(index, message)
    fields = fields_of(message)
    ids = [call.get("id") for call in objects_in(fields.get("tool_calls"))]
    ids += [fields.get("tool_call_id")] if fields.get("role") == "tool" else []
    for call_id in ids:
        if not _NINE.fullmatch(text_of(call_id)):
            wording = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
            yield _mistral(wording, "invalid_function_call", "3280")


def mistral_order(messages: Sequence[Fields]) -> Iterator[Refusal]:
    yield from _mistral_roles(messages)
    yield from _mistral_pairs(messages)


def _mistral_roles(messages: Sequence[Fields]) -> Iterator[Refusal]:
    roles = [text_of(message.get("role")) for message in messages]
    if len(roles) == 1 and roles[0] not in ("user", "system"):
        yield _mistral("Conversation must start with a user message or system message")
    if roles[-1] == "assistant" and not messages[-1].get("prefix"):
        wording = (
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
        )
        yield _mistral(wording)
    for before, after in itertools.pairwise(roles):
        if after not in _MISTRAL_NEXT[before]:
            yield _mistral(f"Unexpected role '{after}' after role '{before}'")


def _mistral_pairs(messages: Sequence[Fields]) -> Iterator[Refusal]:
    """Version 13: by id, each call once, all answered before the next assistant message and at the end."""
    asked: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        match message.get("role"):
            case "tool":
                call_id = text_of(message.get("tool_call_id"))
                if call_id in answered:
                    yield _mistral(f"Duplicate tool call id {call_id} in tool results")
                if call_id not in asked:
                    yield _mistral(f"Unexpected tool call id {call_id} in tool results")
                answered.add(call_id)
            case "assistant":
                if asked != answered:
                    yield _mistral("Not the same number of function calls and responses")
                ids = [text_of(call.get("id")) for call in objects_in(message.get("tool_calls"))]
                asked, answered = set(ids), set()
                for number, call_id in enumerate(ids):
                    if call_id in ids[:number]:
                        yield _mistral(f"Duplicate tool call id {call_id} in assistant message")
    if asked != answered:
        yield _mistral("Not the same number of function calls and responses")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
