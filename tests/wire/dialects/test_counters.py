"""A count is asked with the parts of the request that is forwarded, and believed only where it is one.

Rules. Every row has an answer of its server. Where an endpoint would not see all that a chat puts into its prompt,
there is no body to ask with. Whatever is answered or asked about, nothing raises.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.dialects import COUNTERS, Base, Counter
from proxy.wire.dialects.counters import SHAPING
from proxy.wire.dialects.table import DIALECTS

BY_NAME: Final = {counter.name: counter for counter in COUNTERS}
VLLM: Final = BY_NAME["POST /tokenize"]
LLAMA_CPP: Final = BY_NAME["POST v1/chat/completions/input_tokens"]
TGI: Final = BY_NAME["POST /chat_tokenize"]
TABBY: Final = BY_NAME["POST v1/token/encode"]
MOONSHOT: Final = BY_NAME["POST v1/tokenizers/estimate-token-count"]

# What each server answers: its recording or its documentation, shortened.
ANSWERS: Final[tuple[tuple[Counter, object, int], ...]] = (
    (VLLM, {"count": 30, "max_model_len": 4096, "tokens": [151644, 8948], "token_strs": None}, 30),
    (VLLM, {"tokens": [1, 2, 3], "count": 3, "max_model_len": -1}, 3),  # SGLang
    (LLAMA_CPP, {"input_tokens": 32, "object": "response.input_tokens"}, 32),
    (TGI, {"tokenize_response": [{"id": 128000}, {"id": 882}], "templated_text": "<|begin_of_text|>"}, 2),
    (TABBY, {"tokens": [1, 15043], "length": 2}, 2),
    (MOONSHOT, {"code": 0, "data": {"total_tokens": 80}, "scode": "0x0", "status": True}, 80),
)

TOOLS: Final = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
ASKED: Final = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SAMPLING: Final = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.2,
    "max_tokens": 100,
    "stop": ["\n"],
    "user": "u",
}


def body_for(counter: Counter, **fields: Any) -> Any:
    """The decoded body to ask with, None for none."""
    body = counter.body_for(json.dumps({**ASKED, **fields}).encode())
    return None if body is None else json.loads(body)


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "answer", "tokens"), ANSWERS, ids=lambda value: getattr(value, "name", None)
)
def test_each_server_s_answer_tells_its_count(counter: Counter, answer: object, tokens: int) -> None:
    assert counter.read(answer) == tokens
    others = [other.read(answer) for other in COUNTERS if other is not counter]
    assert others == [None] * len(others)


def test_every_row_of_every_dialect_is_asked_once_and_has_an_answer_here() -> None:
    assert {row for dialect in DIALECTS for row in dialect.counters} == set(COUNTERS)
    assert len(BY_NAME) == len(COUNTERS)
    assert {counter.name for counter, _, _ in ANSWERS} == set(BY_NAME)
    assert all(counter.ask.path.startswith("/") and counter.ask.method == "POST" for counter in COUNTERS)
    assert all(counter.evidence for counter in COUNTERS)


def test_real_servers_answers_are_read(shared_data: Path) -> None:
    def recorded(name: str) -> object:
        exchange = json.loads((shared_data / "recorded" / f"{name}.json").read_text(encoding="utf-8"))
        return exchange["response"]["json"]

    assert VLLM.read(recorded("vllm-0.32.0-extra/tokenize-chat")) == 30
    assert LLAMA_CPP.read(recorded("xll-b11549-np1-c4096/04-v1-chat-input-tokens")) == 32
    # What one server answers to a question that is another's.
    assert VLLM.read(recorded("xll-b11549-np1-c4096/03-tokenize")) is None
    assert VLLM.read(recorded("vllm-0.32.0-c4096/03-tokenize")) is None
    assert LLAMA_CPP.read(recorded("vllm-0.32.0-c4096/04-v1-chat-input-tokens")) is None


def test_the_bounds_are_counts() -> None:
    assert [VLLM.read({"count": tokens}) for tokens in (1, 12.0, 100_000_000)] == [1, 12, 100_000_000]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        100_000_001,
        1e300,
        float("nan"),
        float("inf"),
        "30",
        [30],
        {"count": 30},
    ],
)
def test_what_can_be_no_count_is_none(value: object) -> None:
    assert VLLM.read({"count": value}) is None
    assert MOONSHOT.read({"data": {"total_tokens": value}}) is None


@pytest.mark.parametrize(
    "answer", [None, [], "30", 30, {}, {"error": {"message": "no"}}, {"detail": "Not Found"}]
)
def test_an_answer_of_another_shape_tells_no_count(answer: object) -> None:
    assert [counter.read(answer) for counter in COUNTERS] == [None] * len(COUNTERS)


@pytest.mark.parametrize("value", [[], {}, "tokens", 2, None])
def test_a_list_that_is_empty_or_none_is_no_count(value: object) -> None:
    assert TGI.read({"tokenize_response": value}) is None


# --- bodies -------------------------------------------------------------------------------------------------


def test_a_body_holds_the_very_bytes_of_the_request_s_parts() -> None:
    messages = rb'[ {"role":"user", "content":"caf\u00e9 1.0 \ud83d"} ]'
    forwarded = b'{"temperature":1.0, "messages": ' + messages + b', "model" : "m","tools":[ 1.50 ]}'
    assert VLLM.body_for(forwarded) == b'{"messages":' + messages + b',"model":"m","tools":[ 1.50 ]}'
    assert TABBY.body_for(b'{"model":"m","messages":' + messages + b"}") == b'{"text":' + messages + b"}"


def test_what_only_steers_the_answer_stays_away() -> None:
    assert body_for(VLLM, **SAMPLING) == ASKED
    assert body_for(MOONSHOT, **SAMPLING) == ASKED
    assert body_for(TABBY, **SAMPLING) == {"text": ASKED["messages"]}


@pytest.mark.parametrize("counter", [LLAMA_CPP, TGI], ids=lambda counter: counter.name)
def test_where_the_chat_s_own_code_reads_the_body_all_goes_along_but_the_streaming(counter: Counter) -> None:
    fields = {"tools": TOOLS, "tool_choice": "none", "grammar": "x", "reasoning_effort": "low", "new": [1]}
    assert body_for(counter, **fields, stream=True, stream_options={}) == {**ASKED, **fields}


def test_tools_and_settings_of_the_template_go_to_a_server_that_takes_them() -> None:
    fields = {
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": False},
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert body_for(VLLM, **fields, parallel_tool_calls=True) == {**ASKED, **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "high"},
        {"tool_choice": "none", "tools": TOOLS},
        {"tool_choice": {"type": "function", "function": {"name": "run"}}, "tools": TOOLS},
        {"functions": [{"name": "run"}]},
        {"response_format": {"type": "json_object"}},
        {"documents": [{"title": "a", "text": "b"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_shapes_the_prompt_and_is_not_taken_leaves_no_question(fields: dict[str, Any]) -> None:
    assert body_for(VLLM, **fields) is None
    assert body_for(LLAMA_CPP, **fields) is not None


@pytest.mark.parametrize("counter", [TABBY, MOONSHOT], ids=lambda counter: counter.name)
@pytest.mark.parametrize("member", sorted(SHAPING))
def test_a_server_that_knows_messages_alone_is_asked_about_nothing_else(
    counter: Counter, member: str
) -> None:
    assert body_for(counter, **{member: ["x"]}) is None
    assert body_for(counter, **{member: None}) is not None


def test_values_that_say_nothing_are_as_good_as_absent() -> None:
    idle: dict[str, Any] = {
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "tools": [],
        "documents": None,
    }
    assert [body_for(counter, **idle) for counter in (VLLM, MOONSHOT)] == [ASKED, ASKED]


TEXT: Final = {"type": "text", "text": "Hi"}


@pytest.mark.parametrize("content", ["Hi", None, [], [TEXT], ["Hi"], [{"type": "refusal", "refusal": "No."}]])
def test_text_in_every_form_is_counted(content: object) -> None:
    assert all(body_for(counter, messages=[{"role": "user", "content": content}]) for counter in COUNTERS)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "file", "file": {}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"text": "without a type"}]},
        {"role": "user", "content": {"text": "an object"}},
        {"role": "assistant", "audio": {"id": "a"}},
        "Hi",
    ],
)
def test_pictures_and_what_nobody_knows_are_not_counted(message: object) -> None:
    assert not any(body_for(counter, messages=[ASKED["messages"][0], message]) for counter in COUNTERS)


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[]", b"null", b"{}", b'{"messages":"Hi"}', b'{"messages":null}', b"\xff", b'{"a":'],
)
def test_what_is_no_chat_request_cannot_be_counted(body: bytes) -> None:
    assert [counter.body_for(body) for counter in COUNTERS] == [None] * len(COUNTERS)


def test_exact_is_what_the_chat_itself_would_count() -> None:
    assert [counter.is_exact for counter in (VLLM, LLAMA_CPP, TGI)] == [True] * 3
    assert [counter.is_exact for counter in (TABBY, MOONSHOT)] == [False] * 2


def test_paths_begin_at_the_base_or_at_the_root() -> None:
    assert (VLLM.ask.base, TGI.ask.base) == (Base.ROOT, Base.ROOT)
    assert (LLAMA_CPP.ask.base, TABBY.ask.base, MOONSHOT.ask.base) == (Base.API, Base.API, Base.API)


# --- anything -----------------------------------------------------------------------------------------------

NAMES: Final = st.sampled_from(
    (
        *("count", "input_tokens", "tokenize_response", "length", "data", "total_tokens"),
        *("messages", "model", "tools", "tool_choice", "content", "role", "type", "audio", "text"),
    )
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(value=JSON, counter=st.sampled_from(COUNTERS))
def test_no_answer_makes_it_raise(value: object, counter: Counter) -> None:
    tokens = counter.read(value)
    assert tokens is None or (type(tokens) is int and 0 < tokens <= 100_000_000)


@given(value=JSON, messages=st.none() | st.lists(JSON, max_size=3), counter=st.sampled_from(COUNTERS))
def test_no_body_makes_it_raise_and_what_comes_of_it_is_an_object(
    value: object, messages: list[object] | None, counter: Counter
) -> None:
    whole = {**value, "messages": messages} if isinstance(value, dict) and messages is not None else value
    body = counter.body_for(json.dumps(whole, allow_nan=True).encode())
    assert body is None or isinstance(json.loads(body), dict)
