"""The rules of strict chat templates and of Mistral: what they accept and what they refuse, in their own words.

Rules. A refusal is compared whole: status, envelope, message, type, param and code.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from proxy.demo.counting import measure
from proxy.demo.rules import Accepted, Refusal, Temper, judge
from tests.peers.chats import SAID, SYSTEM, USER, asks, chat, result
from tests.peers.tokens import o200k


def verdict(body: Mapping[str, Any], temper: Temper, window: int = 100_000) -> Accepted | Refusal:
    return judge(body, window=window, count=o200k, temper=temper)


def llama_error(status: int, message: str, kind: str) -> Refusal:
    return Refusal(status, {"error": {"code": status, "message": message, "type": kind}})


def mistral_error(message: str, kind: str = "invalid_request_message_order", code: str = "3230") -> Refusal:
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return Refusal(400, {**error, "raw_status_code": 400})


# --- templates ------------------------------------------------------------------------------------------------------

ALTERNATE = (
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
)

TEMPLATE_ACCEPTS = {
    "a system message first": chat(SYSTEM, USER, SAID, USER),
    "a developer message first": chat({"role": "developer", "content": "x"}, USER),
    "calls and results in between (B11)": chat(
        USER, asks("a"), result("a"), asks("b"), result("b"), SAID, USER
    ),
    "a prefill at the end": chat(USER, SAID),
    "tools without an end of their run": chat(USER, asks("a"), result("a")),
}

TEMPLATE_REFUSES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no messages": ({}, 400, "'messages' is required", "invalid_request_error"),
    "messages that are a text": (
        {"messages": "hi"},
        400,
        "Expected 'messages' to be an array",
        "invalid_request_error",
    ),
    "no role": (
        chat({"content": "A"}),
        500,
        """Failed to parse messages: Missing 'role' in message: {"content":"A"}""",
        "server_error",
    ),
    "no content": (
        chat({"role": "user"}),
        400,
        "All non-assistant messages must contain 'content'",
        "invalid_request_error",
    ),
    "an assistant that says nothing": (
        chat(USER, {"role": "assistant"}),
        400,
        "Assistant message must contain either 'content' or 'tool_calls'!",
        "invalid_request_error",
    ),
    "content that is a number": (
        chat({"role": "user", "content": 5}),
        400,
        "Expected 'content' to be a string or an array",
        "invalid_request_error",
    ),
    "two assistant messages at the end": (
        chat(USER, SAID, SAID),
        400,
        "Cannot have 2 or more assistant messages at the end of the list.",
        "invalid_request_error",
    ),
    "arguments that are cut short (B08)": (
        chat(
            USER, asks() | {"tool_calls": [{"id": "a", "function": {"name": "r", "arguments": '{"a": "b'}}]}
        ),
        500,
        "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error",
        "server_error",
    ),
    "a second system message (B10)": (
        chat(SYSTEM, SYSTEM, USER),
        500,
        "Jinja Exception: System message must be at the beginning.",
        "server_error",
    ),
    "a late system message (B10)": (
        chat(USER, SYSTEM),
        500,
        "Jinja Exception: System message must be at the beginning.",
        "server_error",
    ),
    "no user message (B14)": (
        chat(SYSTEM, asks("a"), result("a")),
        500,
        "Jinja Exception: No user query found in messages.",
        "server_error",
    ),
    "only tool output in the user's name": (
        chat(SYSTEM, {"role": "user", "content": "<tool_response>\nx\n</tool_response>"}),
        500,
        "Jinja Exception: No user query found in messages.",
        "server_error",
    ),
    "an assistant message first": (
        chat(SYSTEM, asks("a"), result("a"), USER),
        500,
        "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/...",
        "server_error",
    ),
    "two user messages in a row": (chat(USER, USER), 500, f"Jinja Exception: {ALTERNATE}", "server_error"),
    "two user messages with only calls between (B11)": (
        chat(USER, asks("a"), result("a"), USER),
        500,
        f"Jinja Exception: {ALTERNATE}",
        "server_error",
    ),
    "two assistant messages with only calls between": (
        chat(USER, SAID, asks("a"), result("a"), SAID, USER),
        500,
        f"Jinja Exception: {ALTERNATE}",
        "server_error",
    ),
}


@pytest.mark.parametrize("body", TEMPLATE_ACCEPTS.values(), ids=TEMPLATE_ACCEPTS)
def test_a_strict_template_accepts(body: dict[str, Any]) -> None:
    assert isinstance(verdict(body, Temper.TEMPLATE), Accepted)


@pytest.mark.parametrize("case", TEMPLATE_REFUSES.values(), ids=TEMPLATE_REFUSES)
def test_a_strict_template_refuses(case: tuple[dict[str, Any], int, str, str]) -> None:
    body, status, message, kind = case
    assert verdict(body, Temper.TEMPLATE) == llama_error(status, message, kind)


def test_llama_cpp_refuses_a_prompt_that_fills_the_window_and_ignores_what_the_answer_may_need() -> None:
    body = chat(USER, max_tokens=1_000_000)
    tokens = measure(body, o200k).total
    assert verdict(body, Temper.TEMPLATE, tokens + 1) == Accepted(tokens)
    error = {
        "code": 400,
        "message": f"request ({tokens} tokens) exceeds the available context size ({tokens} tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": tokens,
    }
    assert verdict(body, Temper.TEMPLATE, tokens) == Refusal(400, {"error": error})


# --- Mistral --------------------------------------------------------------------------------------------------------

UNEQUAL = "Not the same number of function calls and responses"

MISTRAL_ACCEPTS = {
    "a plain chat": chat(SYSTEM, USER, SAID, USER),
    "two user messages in a row": chat(USER, USER),
    "a system message behind a user message": chat(USER, SYSTEM, USER),
    "parallel results in another order": chat(USER, asks("a", "b"), result("b"), result("a")),
    "a prefix at the end": chat(USER, SAID | {"prefix": True}),
    "ids that repeat in a later turn": chat(USER, asks("a"), result("a"), asks("a"), result("a")),
}

MISTRAL_REFUSES = {
    "an empty list": (chat(), "Conversation must have at least one message"),
    "a lone assistant message": (chat(SAID), "Conversation must start with a user message or system message"),
    "an assistant message at the end": (
        chat(USER, SAID),
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    ),
    "a user message behind a result": (
        chat(USER, asks("a"), result("a"), USER),
        "Unexpected role 'user' after role 'tool'",
    ),
    "a system message behind an assistant message": (
        chat(USER, SAID, SYSTEM),
        "Unexpected role 'system' after role 'assistant'",
    ),
    "a result missing at the end": (chat(USER, asks("a", "b"), result("b")), UNEQUAL),
    "a result missing before the next message": (
        chat(USER, asks("a", "b"), result("b"), asks("c"), result("c")),
        UNEQUAL,
    ),
    "a user message instead of the result": (chat(USER, asks("a"), USER), UNEQUAL),
    "a result of another call": (
        chat(USER, asks("a"), result("b")),
        "Unexpected tool call id b in tool results",
    ),
    "a call answered twice": (
        chat(USER, asks("a"), result("a"), result("a")),
        "Duplicate tool call id a in tool results",
    ),
    "one id for two calls": (
        chat(USER, asks("a", "a"), result("a")),
        "Duplicate tool call id a in assistant message",
    ),
    "a system message without content": (
        chat({"role": "system", "content": None}, USER),
        "System prompt must have content",
    ),
}


@pytest.mark.parametrize("body", MISTRAL_ACCEPTS.values(), ids=MISTRAL_ACCEPTS)
def test_mistral_accepts(body: dict[str, Any]) -> None:
    assert isinstance(verdict(body, Temper.MISTRAL), Accepted)


@pytest.mark.parametrize("case", MISTRAL_REFUSES.values(), ids=MISTRAL_REFUSES)
def test_mistral_refuses(case: tuple[dict[str, Any], str]) -> None:
    body, message = case
    assert verdict(body, Temper.MISTRAL) == mistral_error(message)


def test_mistral_refuses_an_assistant_message_with_nothing_in_it() -> None:
    message = "Assistant message must have either content or tool_calls, but not none."
    refusal = mistral_error(message, "invalid_request_assistant_message", "3240")
    assert verdict(chat(USER, {"role": "assistant", "content": ""}, USER), Temper.MISTRAL) == refusal


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            chat(USER, stream=True, stream_options={"include_usage": True}),
            (
                "extra_forbidden",
                ["body", "stream_options"],
                "Extra inputs are not permitted",
                {"include_usage": True},
            ),
        ),
        (
            chat({"role": "function", "name": "f", "content": "x"}),
            (
                "literal_error",
                ["body", "messages", 0, "role"],
                "Input should be 'system', 'user', 'assistant' or 'tool'",
                "function",
            ),
        ),
        ({"messages": "hi"}, ("list_type", ["body", "messages"], "Input should be a valid list", "hi")),
        (
            chat(USER, max_tokens=100_000),
            ("less_than", ["body", "max_tokens"], "Input should be less than 100000", 100_000),
        ),
    ],
    ids=[
        "stream options (B84)",
        "an unknown role",
        "messages that are a text",
        "a limit as large as the window",
    ],
)
def test_mistral_cannot_process(body: dict[str, Any], detail: tuple[str, list[object], str, object]) -> None:
    told = dict(zip(("type", "loc", "msg", "input"), detail, strict=True))
    assert verdict(body, Temper.MISTRAL) == Refusal(422, {"detail": [told]})


@pytest.mark.parametrize("call_id", ["call_12345", "abcdefgh", "abcdefgh-"])
def test_mistral_nine_wants_ids_of_nine_letters_or_digits(call_id: str) -> None:
    body = chat(USER, asks(call_id), result(call_id))
    message = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
    assert verdict(body, Temper.MISTRAL_NINE) == mistral_error(message, "invalid_function_call", "3280")
    assert isinstance(verdict(body, Temper.MISTRAL), Accepted)
    nine = chat(USER, asks("abcdEFG12"), result("abcdEFG12"))
    assert isinstance(verdict(nine, Temper.MISTRAL_NINE), Accepted)


def test_mistral_refuses_a_prompt_over_the_window() -> None:
    tokens = measure(chat(USER), o200k).total
    assert verdict(chat(USER), Temper.MISTRAL, tokens) == Accepted(tokens)
    message = f"Prompt {tokens} > {tokens - 1} maximum context length"
    assert verdict(chat(USER), Temper.MISTRAL, tokens - 1) == mistral_error(
        message, "invalid_request_prompt_too_long", "3059"
    )
