"""What each judge refuses, in its own words, of a row of small requests; all else in the row it accepts.

Rules. The tables say what the published templates and Mistral's validation really do, which is not always what is told
of them: Qwen 3 takes a request without any user message, which 3.5 refuses; no template but gpt-oss's looks at whether
a result has its call; Mistral's newest template joins what follows of one role, and refuses no second user message.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest

from tests.templates.judges import NAMES, judge_named
from tests.templates.render import Refused
from tests.templates.talks import TOOLS, Message, calls, results

HEAD: Final[Message] = {"role": "system", "content": "The head."}
OTHER_HEAD: Final[Message] = {"role": "system", "content": "Another head."}
USER: Final[Message] = {"role": "user", "content": "The question."}
SAID: Final[Message] = {"role": "assistant", "content": "The answer."}
WRAPPED: Final[Message] = {"role": "user", "content": "<tool_response>\nresult\n</tool_response>"}
LEGACY: Final[Message] = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "read", "arguments": "{}"},
}
LEGACY_RESULT: Final[Message] = {"role": "function", "name": "read", "content": "The result."}


def with_call(**fields: object) -> Message:
    """A message with one call, some of whose fields are others."""
    message = calls(1, 1)
    return {**message, "tool_calls": [{**message["tool_calls"][0], **fields}]}


[CALL, RESULT] = [calls(1, 1), *results(1, 1)]
[PAIR, FIRST, SECOND] = [calls(2, 2), *results(2, 2)]

REQUESTS: Final[Mapping[str, Sequence[Message]]] = MappingProxyType(
    {
        "chat": [USER, SAID, USER],
        "head": [HEAD, USER, SAID, USER],
        "developer": [{**HEAD, "role": "developer"}, USER],
        "two heads": [HEAD, OTHER_HEAD, USER],
        "late head": [USER, SAID, HEAD, USER],
        "head after user": [USER, HEAD, USER],
        "head alone": [HEAD],
        "assistant first": [SAID, USER],
        "two users": [USER, SAID, USER, USER],
        "two assistants": [USER, SAID, SAID, USER],
        "prefill": [USER, {**SAID, "prefix": True}],
        "unmarked prefill": [USER, SAID],
        "two assistants last": [USER, SAID, SAID],
        "call": [USER, CALL, RESULT],
        "call and on": [USER, CALL, RESULT, SAID, USER],
        "call with text": [USER, calls(1, 1, "Now I read."), RESULT],
        "two calls": [USER, PAIR, FIRST, SECOND],
        "two calls, turned": [USER, PAIR, SECOND, FIRST],
        "user after result": [USER, CALL, RESULT, USER],
        "no user": [CALL, RESULT],
        "no user but a head": [HEAD, CALL, RESULT],
        "wrapped result": [WRAPPED],
        "orphan": [USER, SAID, RESULT],
        "orphan first": [RESULT, USER],
        "orphan after head": [HEAD, RESULT, USER],
        "orphan after user": [USER, RESULT],
        "missing result": [USER, PAIR, FIRST],
        "missing result and on": [USER, PAIR, FIRST, SAID, USER],
        "unanswered call": [USER, CALL],
        "unanswered and on": [USER, CALL, SAID, USER],
        "user instead of result": [USER, CALL, USER],
        "other id": [USER, CALL, {**RESULT, "tool_call_id": "zzzzzzzz9"}],
        "answered twice": [USER, CALL, RESULT, RESULT],
        "short id": [USER, with_call(id="call_1"), {**RESULT, "tool_call_id": "call_1"}],
        "head between results": [USER, PAIR, FIRST, HEAD, SECOND],
        "empty answer": [USER, {**SAID, "content": ""}, USER],
        "function": [USER, LEGACY, LEGACY_RESULT],
        "broken arguments": [USER, with_call(function={"name": "read", "arguments": '{"path'}), RESULT],
    }
)

ALTERNATE: Final = "Conversation roles must alternate user/assistant/user/assistant/..."
AFTER_HEAD: Final = f"After the optional system message, c{ALTERNATE[1:]}"
BROKEN: Final = ("Unterminated string", ["broken arguments"])

_IN_CALLS: Final = [
    "call",
    "call and on",
    "call with text",
    "two calls",
    "two calls, turned",
    "user after result",
]
_IN_DAMAGE: Final = [
    *["orphan", "orphan first", "missing result", "missing result and on", "unanswered and on", "other id"],
    *["answered twice", "short id", "head between results", "function"],
]
_OF_PLAIN_TALK: Final = ["late head", "assistant first", "two users", "two assistants", "two assistants last"]
_NEVER_TOOLS: Final = [*_OF_PLAIN_TALK, "no user", *_IN_CALLS, *_IN_DAMAGE]

_MISTRAL: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "Unexpected role 'system' after role 'assistant'": ["late head"],
        "Unexpected role 'system' after role 'tool'": ["head between results"],
        "Unexpected role 'tool' after role 'system'": ["orphan after head"],
        "Unexpected role 'tool' after role 'user'": ["orphan after user"],
        "Expected last role User or Tool (or Assistant with prefix) for serving but got assistant": [
            *["unmarked prefill", "two assistants last", "unanswered call"]
        ],
        "Unknown message role: function": ["function"],
    }
)
_MISTRAL_BY_ID: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        **_MISTRAL,
        # The first message of all is not looked at: a call there is none that a result can answer.
        "Unexpected tool call id c000001p0 in tool results": ["orphan", "no user"],
        "Unexpected tool call id zzzzzzzz9 in tool results": ["other id"],
        "Duplicate tool call id c000001p0 in tool results": ["answered twice"],
        "Not the same number of function calls and responses": [
            *["missing result", "missing result and on", "unanswered and on", "user instead of result"]
        ],
    }
)
_NINE: Final = {"Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.": ["short id"]}

REFUSALS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = MappingProxyType(
    {
        "Qwen 2.5": dict([BROKEN]),
        "Qwen 3": dict([BROKEN]),
        "Qwen 3.5": {
            "System message must be at the beginning.": [
                *["two heads", "late head", "head after user", "head between results"]
            ],
            "No user query found in messages.": [
                *["head alone", "no user", "no user but a head", "wrapped result"]
            ],
            "Unexpected message role.": ["function"],
            **dict([BROKEN]),
        },
        "Gemma 2": {
            "System role not supported": [
                *["head", "developer", "two heads", "head alone", "no user but a head", "orphan after head"]
            ],
            ALTERNATE: _NEVER_TOOLS,
            **dict([BROKEN]),
        },
        "Gemma 3": {
            ALTERNATE: [*_NEVER_TOOLS, "two heads", "no user but a head", "orphan after head"],
            **dict([BROKEN]),
        },
        "Llama 2": {
            ALTERNATE: [*_NEVER_TOOLS, "two heads", "no user but a head", "orphan after head"],
            **dict([BROKEN]),
        },
        "Llama 3.1": {
            "This model only supports single tool-calls at once!": [
                *["two calls", "two calls, turned", "missing result", "missing result and on"],
                "head between results",
            ],
            **dict([BROKEN]),
        },
        "Mistral 7B v0.3": {
            AFTER_HEAD: [
                *_OF_PLAIN_TALK,
                *["two heads", "user after result", "user instead of result", "function"],
            ],
            "Only user and assistant roles are supported": ["head after user", "head between results"],
            "Tool call IDs should be alphanumeric strings with length 9!": ["short id"],
            **dict([BROKEN]),
        },
        "Mistral Small 3.2": {
            AFTER_HEAD: [
                *_OF_PLAIN_TALK,
                *["two heads", "user after result", "user instead of result", "function"],
            ],
            "Tool call IDs should be alphanumeric strings with length 9!": ["short id"],
            **dict([BROKEN]),
        },
        "Mistral Large 3": {
            "Unexpected role 'system' after role 'assistant'": ["late head"],
            "Unexpected role 'system' after role 'tool'": ["head between results"],
            "Unexpected role 'tool' after role 'system'": ["orphan after head"],
            "Unexpected role 'tool' after role 'user'": ["orphan after user"],
            "Unexpected role 'function' after role 'assistant'": ["function"],
            "Conversation must start with a user or system message, got assistant.": [
                *["assistant first", "no user"]
            ],
            "Conversation must start with a user or system message, got tool.": ["orphan first"],
            "Assistant message must have a string or a list of chunks": ["empty answer"],
            **dict([BROKEN]),
        },
        "Hermes 2 Pro": dict([BROKEN]),
        "DeepSeek V3": {},
        "gpt-oss": {
            "Message has tool role, but there was no previous assistant message with a tool call!": [
                *["orphan", "orphan first", "orphan after head", "orphan after user"]
            ],
            **dict([BROKEN]),
        },
        "mistral-common v3": {
            **_MISTRAL,
            **_NINE,
            "Assistant message must have either content or tool_calls, but not both.": [
                *["call with text", "empty answer"]
            ],
            "Not the same number of function calls and responses": [
                *["missing result", "missing result and on", "unanswered and on", "user instead of result"],
                *["orphan", "no user", "answered twice"],
            ],
        },
        "mistral-common v11": {**_MISTRAL_BY_ID, **_NINE},
        "mistral-common v13": _MISTRAL_BY_ID,
    }
)


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("name", NAMES)
def test_b10_b11_a_judge_refuses_what_the_table_says_and_nothing_else(
    name: str, tools: Sequence[Message]
) -> None:
    judge = judge_named(name)
    offered = {"tools": tools} if tools else {}
    found = {key: judge.judge({"model": "m", "messages": REQUESTS[key], **offered}) for key in REQUESTS}
    refused = {key: said.reason for key, said in found.items() if isinstance(said, Refused)}
    if name == "Llama 3.1" and tools:  # which it puts into the first user message
        assert "there's no first user message" in refused.pop("head alone")
    expected = {key: reason for reason, keys in REFUSALS[name].items() for key in keys}
    assert set(refused) == set(expected)
    assert {key: refused[key][: len(reason)] for key, reason in expected.items()} == expected
