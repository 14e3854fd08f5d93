"""OpenAI's rules: what the server accepts and what it refuses, in its own words; and what holds for every server.

Rules. A refusal is compared whole: status, envelope, message, type, param and code. Real conversations must pass.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.demo.counting import measure
from proxy.demo.rules import Accepted, Memory, Refusal, Temper, judge
from tests.peers.chats import PICTURE, SAID, SYSTEM, TOOL, USER, asks, chat, result
from tests.peers.tokens import o200k

DATA = Path(os.environ.get("TRANSOM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


def verdict(body: Mapping[str, Any], temper: Temper, window: int = 100_000) -> Accepted | Refusal:
    return judge(body, window=window, count=o200k, temper=temper)


def openai_error(message: str, param: str | None, code: str | None = None) -> Refusal:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Refusal(400, {"error": error})


# --- OpenAI ---------------------------------------------------------------------------------------------------------

UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: "
)
ORPHAN = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
EMPTY = "empty array. Expected an array with minimum length 1, but got an empty array instead."
NULL = "Invalid value for 'content': expected a string, got null."

OPENAI_ACCEPTS = {
    "a plain chat": chat(SYSTEM, USER, SAID, USER),
    "several system messages anywhere": chat(
        SYSTEM, {"role": "developer", "content": "x"}, USER, SYSTEM, USER
    ),
    "parallel results in another order": chat(USER, asks("a", "b"), result("b"), result("a"), SAID),
    "ids that repeat in a later turn": chat(USER, asks("a"), result("a"), asks("a"), result("a")),
    "a legacy call and its result": chat(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}},
        {"role": "function", "name": "read", "content": "x"},
    ),
    "a custom tool's call": chat(
        USER,
        asks() | {"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "p", "input": "x"}}]},
        result("a"),
    ),
    "a picture from the user": chat({"role": "user", "content": [PICTURE]}),
    "an assistant message at the end": chat(USER, SAID),
    "limits and tools": chat(USER, max_tokens=1, tools=[{"type": "function"}], tool_choice="auto"),
    "usage in a stream": chat(USER, stream=True, stream_options={"include_usage": True}),
}

OPENAI_REFUSES = {
    "no messages": (
        {"model": "m"},
        "Missing required parameter: 'messages'.",
        "messages",
        "missing_required_parameter",
    ),
    "messages that are a text": (
        {"messages": "hi"},
        "Invalid type for 'messages': expected an array of objects, but got a string instead.",
        "messages",
        "invalid_type",
    ),
    "an empty list": (chat(), f"Invalid 'messages': {EMPTY}", "messages", "empty_array"),
    "a message that is null": (
        chat(USER, None),
        "Invalid type for 'messages[1]': expected an object, but got null instead.",
        "messages[1]",
        "invalid_type",
    ),
    "no role": (
        chat({"content": "x"}),
        "Missing required parameter: 'messages[0].role'.",
        "messages[0].role",
        "missing_required_parameter",
    ),
    "an unknown role": (
        chat({"role": "wizard", "content": "x"}),
        "Invalid value: 'wizard'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and "
        "'developer'.",
        "messages[0].role",
        "invalid_value",
    ),
    "no content": (chat({"role": "user", "content": None}), NULL, "messages.[0].content", None),
    "an assistant that says nothing": (
        chat(USER, {"role": "assistant", "content": None}),
        NULL,
        "messages.[1].content",
        None,
    ),
    "an empty list of parts": (
        chat(USER, asks("a"), result("a") | {"content": []}),
        f"Invalid 'messages[2].content': {EMPTY}",
        "messages[2].content",
        "empty_array",
    ),
    "a picture from a tool": (
        chat(USER, asks("a"), result("a") | {"content": [PICTURE]}),
        "Invalid 'messages[2]'. Image URLs are only allowed for messages with role 'user', but this message with "
        "role 'tool' contains an image URL.",
        "messages[2]",
        "invalid_value",
    ),
    "an empty list of calls": (
        chat(USER, SAID | {"tool_calls": []}),
        f"Invalid 'messages[1].tool_calls': {EMPTY}",
        "messages[1].tool_calls",
        "empty_array",
    ),
    "arguments that are an object": (
        chat(USER, asks() | {"tool_calls": [{"id": "a", "function": {"name": "read", "arguments": {}}}]}),
        "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object "
        "instead.",
        "messages[1].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    "a result without an id": (
        chat(USER, asks("a"), {"role": "tool", "content": "x"}),
        "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
        "messages.[2].tool_call_id",
        None,
    ),
    "an orphan result at the head (B05)": (chat(result("a"), USER), ORPHAN, "messages.[0].role", None),
    "an orphan result behind a user message (B04)": (
        chat(USER, asks("a"), result("a"), USER, result("a")),
        ORPHAN,
        "messages.[4].role",
        None,
    ),
    "an answer to another call": (
        chat(USER, asks("a"), result("b")),
        "Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
        "messages.[2].tool_call_id",
        None,
    ),
    "an answer to an older call of that id's turn (B07)": (
        chat(USER, asks("a"), result("a"), asks("b"), result("a")),
        "Invalid parameter: 'tool_call_id' of 'a' not found in 'tool_calls' of previous message.",
        "messages.[4].tool_call_id",
        None,
    ),
    "a call answered twice": (
        chat(USER, asks("a"), result("a"), result("a")),
        "Duplicate value for 'tool_call_id' of a in message[3]",
        "messages",
        None,
    ),
    "one id for two calls": (
        chat(USER, asks("a", "a"), result("a")),
        "Duplicate value for 'tool_call_id' of a in message[1]",
        "messages",
        None,
    ),
    "one of three results missing (B02)": (
        chat(USER, asks("a", "b", "c"), result("a"), result("c"), SAID),
        f"{UNANSWERED}b",
        "messages",
        None,
    ),
    "a summary between call and result (B04)": (
        chat(USER, asks("a", "b"), USER, result("a"), result("b")),
        f"{UNANSWERED}a, b",
        "messages",
        None,
    ),
    "an unanswered call at the end": (chat(USER, asks("a")), f"{UNANSWERED}a", "messages", None),
    "a legacy result without a name": (
        chat(USER, {"role": "function", "content": "x"}),
        "Missing parameter 'name': messages with role 'function' must have a 'name'.",
        "messages.[1].name",
        None,
    ),
    "a legacy result without its call (B09)": (
        chat(USER, {"role": "function", "name": "read", "content": "x"}),
        "Invalid parameter: messages with role 'function' must be a response to a preceeding message with "
        "'function_call'.",
        "messages.[1].role",
        None,
    ),
    "a legacy call without its result (B09)": (
        chat(
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": ""}},
            USER,
        ),
        "An assistant message with 'function_call' must be followed by a function message responding to 'read'.",
        "messages",
        None,
    ),
    "a limit of nothing (B32)": (
        chat(USER, max_completion_tokens=0),
        "Invalid 'max_completion_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "max_completion_tokens",
        "integer_below_min_value",
    ),
    "a limit with a fraction": (
        chat(USER, max_tokens=1.5),
        "Invalid type for 'max_tokens': expected an integer, but got a decimal instead.",
        "max_tokens",
        "invalid_type",
    ),
    "an empty list of tools": (chat(USER, tools=[]), f"Invalid 'tools': {EMPTY}", "tools", "empty_array"),
    "a choice without tools": (
        chat(USER, tool_choice="none"),
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        "tool_choice",
        None,
    ),
    "options of a stream that is none": (
        chat(USER, stream_options={"include_usage": True}),
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        "stream_options",
        None,
    ),
}


@pytest.mark.parametrize("body", OPENAI_ACCEPTS.values(), ids=OPENAI_ACCEPTS)
def test_openai_accepts(body: dict[str, Any]) -> None:
    assert isinstance(verdict(body, Temper.OPENAI), Accepted)


@pytest.mark.parametrize("case", OPENAI_REFUSES.values(), ids=OPENAI_REFUSES)
def test_openai_refuses(case: tuple[dict[str, Any], str, str, str | None]) -> None:
    body, message, param, code = case
    assert verdict(body, Temper.OPENAI) == openai_error(message, param, code)


@pytest.mark.parametrize(
    ("options", "spare", "wording"),
    [
        ({}, 0, "your messages resulted in {p} tokens. Please reduce the length of the messages."),
        (
            {"tools": [TOOL]},
            0,
            "your messages resulted in {p} tokens ({m} in the messages, {f} in the functions). Please reduce the "
            "length of the messages or functions.",
        ),
        (
            {"max_tokens": 50},
            50,
            "you requested {t} tokens ({p} in the messages, 50 in the completion). Please reduce the length of the "
            "messages or completion.",
        ),
        (
            {"tools": [TOOL], "max_completion_tokens": 50},
            50,
            "you requested {t} tokens ({m} in the messages, {f} in the functions, and 50 in the completion). Please "
            "reduce the length of the messages, functions, or completion.",
        ),
    ],
    ids=["messages", "tools", "completion", "tools and completion"],
)
def test_openai_counts_prompt_and_completion_against_the_window(
    options: dict[str, Any], spare: int, wording: str
) -> None:
    body = chat(SYSTEM, USER, **options)
    prompt = measure(body, o200k)
    window = prompt.total + spare
    assert verdict(body, Temper.OPENAI, window) == Accepted(prompt.total)
    said = wording.format(p=prompt.total, m=prompt.messages, f=prompt.tools, t=prompt.total + spare)
    assert verdict(body, Temper.OPENAI, window - 1) == openai_error(
        f"This model's maximum context length is {window - 1} tokens. However, {said}",
        "messages",
        "context_length_exceeded",
    )


# --- memory, totality and reality ----------------------------------------------------------------------------------


def test_a_memory_saves_the_counting_and_changes_no_verdict() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    memory = Memory()
    bodies = [
        chat(SYSTEM, USER),
        chat(SYSTEM, USER, SAID, USER),
        chat(USER, SAID, SAID),
        chat(result("a"), USER),
    ]
    for body in bodies:
        for temper in Temper:
            remembered = judge(body, window=30, count=count, temper=temper, memory=memory)
            assert remembered == judge(body, window=30, count=lambda _: 1, temper=temper)
    texts = {"system", "user", "assistant", "tool"} | {
        str(m["content"]) for m in (SYSTEM, USER, SAID, result("a"))
    }
    assert sorted(counted) == sorted(texts)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=2), SCALARS, max_size=2)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "function", "developer"])
KEYS = st.sampled_from(
    ["content", "name", "tool_call_id", "function_call", "id", "function", "arguments", "type"]
)
ODD_CALLS = st.lists(st.dictionaries(KEYS, JSON, max_size=3), max_size=2)
ODD = st.builds(
    lambda role, calls, more: {"role": role, "tool_calls": calls, **more},
    ROLES | JSON,
    ODD_CALLS | JSON,
    st.dictionaries(KEYS, JSON, max_size=3),
)
OPTIONS = ["max_tokens", "max_completion_tokens", "tools", "tool_choice", "stream_options", "response_format"]


@settings(max_examples=150, deadline=None)
@given(
    messages=st.lists(ODD | JSON, max_size=3) | JSON,
    options=st.dictionaries(st.sampled_from(OPTIONS), JSON, max_size=2),
    temper=st.sampled_from(Temper),
)
def test_any_json_gets_a_verdict_and_the_same_one_twice(messages: Any, options: Any, temper: Temper) -> None:
    body = {"messages": messages, **options}
    found = judge(body, window=50, count=len, temper=temper)
    assert isinstance(found, Accepted | Refusal)
    if isinstance(found, Accepted):
        assert 0 < found.prompt_tokens <= 50
    assert repr(judge(body, window=50, count=len, temper=temper)) == repr(found)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no shared data in {DATA}; set TRANSOM_SHARED_DATA")
def test_the_openai_server_accepts_every_recorded_conversation() -> None:
    refused: list[tuple[str, Refusal]] = []
    with (DATA / "conversations.jsonl").open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            found = judge({"messages": record["messages"]}, window=10**9, count=len, temper=Temper.OPENAI)
            refused += [(record["id"], found)] if isinstance(found, Refusal) else []
    assert refused == []


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no shared data in {DATA}; set TRANSOM_SHARED_DATA")
@pytest.mark.parametrize("number", ["e001", "e002", "e003", "e004"])
def test_the_overflow_wordings_are_the_recorded_ones(number: str) -> None:
    """Window, prompt and completion of the recorded body are put in; the very body must come out."""
    with (DATA / "overflow_errors.jsonl").open(encoding="utf-8") as lines:
        recorded = next(row for row in map(json.loads, lines) if row["id"] == number)
    said = recorded["body"]["error"]["message"]
    numbers = [int(text) for text in "".join(c if c.isdigit() else " " for c in said).split()]
    window, shares = numbers[0], numbers[2:] or numbers[1:]
    tools = shares[1] if "functions" in said else 0
    completion = {"max_tokens": shares[-1]} if "completion" in said else {}
    sizes = {"M" * 9: shares[0] - 7, "T" * 9: tools}
    body = chat({"role": "user", "content": "M" * 9}, **({"tools": ["T" * 9]} if tools else {}), **completion)

    def count(text: str) -> int:
        # 0.65 of what the schema counts is rounded up, so that this gives exactly the recorded share.
        return next((int(n / 0.65) if key[0] == "T" else n for key, n in sizes.items() if key in text), 1)

    assert judge(body, window=window, count=count, temper=Temper.OPENAI) == Refusal(400, recorded["body"])
