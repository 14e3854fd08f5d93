"""Sizes: all that a model reads is counted, nothing breaks the count, and it agrees with recorded usage."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context import rawjson
from proxy.context.conversation import read_message
from proxy.context.tokens import (
    PER_CALL,
    SLICE,
    Category,
    Size,
    encoding_for,
    extras_size,
    heuristic,
    message_size,
    request_size,
    slices,
)
from tests.peers.tokens import o200k

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "function_call",
    "reasoning_content",
    "refusal",
    "type",
    "text",
)
SCHEMA_WORDS = (
    "type",
    "properties",
    "items",
    "enum",
    "anyOf",
    "$ref",
    "description",
    "default",
    "required",
    "title",
)


def characters(text: str) -> int:
    return len(text)


def size(message: Any, count: Callable[[str], int] = characters, model: str = "gpt-4o") -> Size:
    return message_size(read_message(rawjson.encode(message)), count, model)


def extras(value: Any, count: Callable[[str], int] = characters, model: str = "gpt-4o") -> int:
    return extras_size([rawjson.encode(value)], count, model)


def shown(value: Any, model: str) -> list[str]:
    """The texts that are counted for an extra."""
    texts: list[str] = []
    extras(value, lambda text: texts.append(text) or len(text), model)  # type: ignore[func-returns-value]
    return texts


def function(name: str, parameters: Any = None, description: str = "") -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


# --- messages -----------------------------------------------------------------------------------------------


def test_a_message_costs_three_tokens_its_role_and_its_text() -> None:
    assert size({"role": "user", "content": "hello"}) == Size(3 + 4 + 5, 5, Category.USER)


def test_a_name_costs_one_more_than_itself() -> None:
    assert size({"role": "user", "content": "", "name": "Ann"}).tokens == 3 + 4 + 1 + 3


def test_the_name_of_a_result_is_counted_with_its_call() -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    assert (
        size({"role": "assistant", "content": None, "tool_calls": [call]}).tokens
        == 3 + 9 + PER_CALL + 2 * 4 + 2
    )
    assert size({"role": "tool", "content": "ok", "name": "look"}).tokens == 3 + 4 + 2


def test_a_request_is_its_messages_its_extras_and_the_opening_of_the_answer() -> None:
    assert request_size([Size(10, 5, Category.USER), Size(20, 5, Category.ASSISTANT)], 7) == 10 + 20 + 7 + 3


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ({"role": "system", "content": "a"}, Category.SYSTEM),
        ({"role": "developer", "content": "a"}, Category.SYSTEM),
        ({"role": "user", "content": "a"}, Category.USER),
        ({"role": "user", "content": "TOOL_RESULTS: a"}, Category.TOOL_RESULT),
        ({"role": "assistant", "content": "a"}, Category.ASSISTANT),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, Category.TOOL_CALL),
        ({"role": "assistant", "function_call": {"name": "f"}}, Category.TOOL_CALL),
        ({"role": "tool", "content": "a"}, Category.TOOL_RESULT),
        ({"role": "function", "content": "a"}, Category.TOOL_RESULT),
        ({"role": "critic", "content": "a"}, Category.OTHER),
        ("a", Category.OTHER),
    ],
)
def test_a_message_has_one_category(message: Any, category: Category) -> None:
    assert size(message).category is category


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"function": None}]},
        {"role": "assistant"},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": ["text"]}, {"type": {}}, None, 3]},
        {"role": "user", "content": [{"type": "image_url"}, {"type": "image_url", "image_url": None}]},
        {"role": "user", "content": 123},
        {"role": None, "content": {"text": None}},
        {"role": "assistant", "tool_calls": [None, 3, {"function": {"name": None, "arguments": {"a": [1]}}}]},
        {},
        None,
        [],
        12,
        "text",
    ],
)
def test_b41_odd_messages_have_a_small_size(message: Any) -> None:
    assert 3 <= size(message).tokens < 3000


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_value_is_a_message_with_a_size(value: Any) -> None:
    measured = size(value, heuristic)
    assert 0 <= measured.content <= measured.tokens - 3


def test_b48_arguments_and_reasoning_count_in_full() -> None:
    call = {"id": "c", "function": {"name": "write", "arguments": "x" * 80_000}}
    assert size({"role": "assistant", "content": None, "tool_calls": [call] * 10}).tokens >= 800_000
    assert size({"role": "assistant", "content": "a", "reasoning_content": "y" * 5000}).tokens >= 5000
    assert size({"role": "assistant", "content": None, "refusal": "z" * 5000}).tokens >= 5000


def test_b48_the_size_of_the_content_leaves_out_calls_and_reasoning() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "x" * 100}}
    measured = size({"role": "assistant", "content": "abc", "reasoning": "y" * 100, "tool_calls": [call]})
    assert measured.content == 3
    assert measured.tokens > 200


def test_b50_a_result_of_parts_counts_its_texts_and_bounds_its_image() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}
    measured = size({"role": "tool", "content": [{"type": "text", "text": "b" * 500}, picture]})
    assert measured.content == 500
    assert 500 < measured.tokens < 3000


def test_b59_a_message_says_that_it_holds_media() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert size({"role": "user", "content": [part]}).has_media
    assert not size({"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]}).has_media


def test_parts_of_unknown_types_count_as_the_texts_in_them() -> None:
    thinking = {"type": "thinking", "thinking": "t" * 300, "signature": "AbC+/0" * 200}
    nested = {"type": "tool_result", "content": [{"type": "text", "text": "result " * 100}]}
    assert 1000 < size({"role": "assistant", "content": [thinking, nested]}).tokens < 1100


# --- tools and other extras ---------------------------------------------------------------------------------

WEATHER = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "City,\n  then country", "title": "Place"},
        "days": {"type": "integer", "title": "Days", "default": 3},
        "unit": {"enum": ["C", "F"]},
        "with": {"type": "array", "items": {"$ref": "#/$defs/Extra"}},
        "note": {"type": ["string", "null"], "description": "Free text"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "or": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["place"],
    "$defs": {"Extra": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]}},
}


def test_openai_models_read_tools_as_typescript() -> None:
    (text,) = shown([function("weather", WEATHER, "Looks it up.\n\n  Slowly."), function("stop")], "gpt-4o")
    assert text.splitlines() == [
        "namespace functions {",
        "",
        "// Looks it up.",
        "//",
        "// Slowly.",
        "type weather = (_: {",
        "// Place",
        "//",
        "// City,",
        "// then country",
        "place: string,",
        "// Days",
        "days?: number, // default: 3",
        'unit?: "C" | "F",',
        "with?: Array<",
        "{",
        "wind: boolean,",
        "}",
        ">,",
        "// Free text",
        "note?: ",
        " | string // Free text",
        " | null // Free text",
        ",",
        "tags?: string[],",
        "or?: number | null,",
        "}) => any;",
        "",
        "type stop = () => any;",
        "",
        "} // namespace functions",
    ]


@pytest.mark.parametrize("model", ["qwen3-32b", "claude-sonnet-4-5", "mistral-large", "", "my-deployment"])
def test_other_models_read_tools_as_json(model: str) -> None:
    tools = [function("weather", WEATHER)]
    (text,) = shown(tools, model)
    assert json.loads(text) == tools


def test_b47_forty_tools_with_large_schemas_count_about_what_they_are() -> None:
    words = "Where the file stands that is to be read, from the top of the work tree, with forward slashes."
    members = {f"argument_{i}": {"type": "string", "description": words} for i in range(18)}
    tools = [function(f"tool_{i}", {"type": "object", "properties": members}, words) for i in range(40)]
    assert 15_000 < extras(tools, o200k) < 25_000
    assert 15_000 < extras([tool["function"] for tool in tools], o200k) < 25_000


def test_b47_the_schema_of_the_answer_and_a_forced_call_count() -> None:
    answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": WEATHER, "strict": True}}
    assert 100 < extras(answer, o200k) < 200
    assert 5 < extras({"type": "function", "function": {"name": "weather"}}, o200k) < 12
    assert 5 < extras({"name": "weather"}, o200k) < 12


@pytest.mark.parametrize("value", ["auto", None, [], {}, {"type": "json_object"}, {"type": "text"}, 3, True])
def test_extras_that_say_nothing_cost_nothing(value: Any) -> None:
    assert extras(value) == 0


@pytest.mark.parametrize(
    "tools",
    [
        [None, 3, "x", [], {}],
        [{"function": None}, {"function": {"name": 7}}, {"custom": []}],
        [function("f"), function("f", 3), function("f", []), function("f", {"properties": {"a": 1}})],
        [
            function(
                "f", {"properties": {"a": {"type": {}, "enum": {}, "anyOf": 3, "items": 3, "required": 1}}}
            )
        ],
        [
            function(
                "f",
                {"properties": {"a": {"anyOf": [None, 3, {"description": 3}], "title": 3, "default": None}}},
            )
        ],
        [
            function(
                "f", {"properties": {"a": {"$ref": 3}, "b": {"$ref": "#/nowhere"}, "c": {"enum": [None, {}]}}}
            )
        ],
        [{"type": "web_search"}],
    ],
)
@pytest.mark.parametrize("model", ["gpt-4o", "claude-3", "llama"])
def test_b47_odd_tools_are_counted_all_the_same(tools: Any, model: str) -> None:
    assert 0 < extras(tools, model=model) < 2000


@given(
    JSON | st.lists(st.dictionaries(st.sampled_from((*SCHEMA_WORDS, "name", "function", "parameters")), JSON))
)
def test_any_json_value_is_an_extra_with_a_size(value: Any) -> None:
    assert extras(value, heuristic) >= 0
    assert extras([function("f", {"type": "object", "properties": {"a": value}})], heuristic) > 0
    assert extras({"type": "json_schema", "json_schema": {"schema": value}}, heuristic) > 0


@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b'[{"name":"f","parameters":{"properties":{"a":{"items":']
)
def test_nesting_without_end_is_counted_as_text(opening: bytes) -> None:
    raw = opening * 5000
    assert extras_size([raw, b"not JSON", b"\xff"], characters, "gpt-4o") > len(raw)


def test_a_schema_that_refers_to_itself_ends() -> None:
    branch = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    node = {"type": "object", "properties": {f"branch_{i}": branch for i in range(9)}}
    tree = {"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    assert 0 < extras([function("grow", tree)]) < 10_000


def test_references_that_double_at_each_step_stay_small() -> None:
    definitions: dict[str, Any] = {
        f"D{i}": {"properties": {side: {"$ref": f"#/$defs/D{i + 1}"} for side in ("left", "right")}}
        for i in range(60)
    }
    schema = {"properties": {"root": {"$ref": "#/$defs/D0"}}, "$defs": definitions}
    assert 0 < extras([function("split", schema)]) < 20_000


# --- encodings and texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4",
        "gpt-4-0613",
        "gpt-4-turbo-2024-04-09",
        "gpt-4-1106-preview",
        "gpt-4-32k",
        "gpt-4-vision-preview",
        "GPT-4",
        "gpt-3.5-turbo",
        "gpt-35-turbo-16k",
        "gpt-35-turbo",
        "azure/gpt-35-turbo",
        "openai/gpt-4",
        "openrouter/openai/gpt-4-turbo",
        "openai.gpt-4",
        "ft:gpt-4-0613:acme::abc",
        "ft:gpt-3.5-turbo:acme",
    ],
)
def test_older_openai_models_have_the_older_encoding(model: str) -> None:
    assert encoding_for(model) == "cl100k_base"


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o",
        "gpt-4o-mini",
        "gpt4o",
        "chatgpt-4o-latest",
        "gpt-4.1",
        "gpt-4.1-mini",
        "gpt-41-mini",
        "gpt-4-1",
        "gpt-4.5-preview",
        "gpt-5",
        "gpt-5.2-chat-latest",
        "gpt-oss:20b",
        "o1",
        "o3-mini",
        "o4-mini",
        "ft:gpt-4o-2024-08-06:acme:gpt-4",
        "ft:gpt-4.1-mini:acme::abc",
        "ft:gpt-4.1-2025-04-14:acme",
        "openai/gpt-4.1",
        "gpt-4all-13b",
        "gpt4all",
        "claude-sonnet-4-5",
    ],
)
def test_newer_and_other_models_have_the_newer_encoding(model: str) -> None:
    assert encoding_for(model) == "o200k_base"


@pytest.mark.parametrize(
    "model", ["foo/bar:free", "C:\\models\\x.gguf", "C:\\gpt-4\\x.gguf", "", "/", None, 12, [], {}]
)
def test_b42_a_model_that_nobody_knows_has_the_default_encoding(model: object) -> None:
    assert encoding_for(model) == "o200k_base"


TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)
"""Any characters, lone surrogates included."""


@given(st.lists(st.tuples(TEXTS, st.integers(1, 30_000)), max_size=4))
def test_slices_are_bounded_and_join_to_the_text(runs: list[tuple[str, int]]) -> None:
    text = "".join(piece * (times // (len(piece) or 1)) for piece, times in runs)
    pieces = list(slices(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= SLICE for piece in pieces)


def test_slices_end_at_lines_and_words_where_there_are_some() -> None:
    assert all(piece.endswith("\n") for piece in slices("a line of some words\n" * 5000))
    assert all(piece.startswith(" word") for piece in slices(" word" * 20_000))


def test_a_pair_of_surrogates_stays_together() -> None:
    text = "x" + "\ud83d\ude00" * SLICE
    assert all(not piece.endswith("\ud83d") for piece in slices(text))


def test_slices_of_real_text_have_as_many_tokens_as_the_whole(shared_data: Path) -> None:
    with (shared_data / "conversations.jsonl").open(encoding="utf-8") as lines:
        conversations = [json.loads(line)["messages"] for line, _ in zip(lines, range(60), strict=False)]
    texts = [
        m["content"] for messages in conversations for m in messages if isinstance(m.get("content"), str)
    ]
    text = "\n".join(texts)[: 12 * SLICE]
    assert len(text) > 10 * SLICE
    whole = o200k(text)
    assert sum(o200k(piece) for piece in slices(text)) == pytest.approx(whole, rel=0.001)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abc", 1), ("abcd", 2), ("文", 1), ("\ud83d", 1)]
)
def test_without_an_encoding_three_bytes_are_a_token(text: str, tokens: int) -> None:
    assert heuristic(text) == tokens


# --- against recorded usage ---------------------------------------------------------------------------------


def recorded(folder: Path) -> dict[str, list[float]]:
    """Relative errors of whole requests to OpenAI with this encoding, of the half that chose no constant."""
    errors: dict[str, list[float]] = {"plain": [], "tools": [], "schema": []}
    with (folder / "usage_real.jsonl").open(encoding="utf-8") as lines:
        rows = {line: json.loads(line) for line in lines if '"api.openai.com"' in line}
    for row in rows.values():
        request, model = row["request"], row["request"].get("model") or row["model"] or ""
        held_out = int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % 2 == 1
        if not held_out or encoding_for(model) != "o200k_base":
            continue
        sizes = [size(message, o200k, model) for message in request["messages"]]
        beside = [
            request[key] for key in ("tools", "functions", "response_format", "tool_choice") if key in request
        ]
        estimate = request_size(sizes, sum(extras(value, o200k, model) for value in beside))
        has_schema = (request.get("response_format") or {}).get("type") == "json_schema"
        kind = (
            "tools"
            if request.get("tools") or request.get("functions")
            else "schema"
            if has_schema
            else "plain"
        )
        errors[kind].append((estimate - row["usage"]["prompt_tokens"]) / row["usage"]["prompt_tokens"])
    return errors


def test_estimates_agree_with_the_usage_that_openai_reported(shared_data: Path) -> None:
    errors = recorded(shared_data)
    assert {kind: len(found) > 50 for kind, found in errors.items()} == {
        "plain": True,
        "tools": True,
        "schema": True,
    }
    assert mean(error == 0 for error in errors["plain"]) > 0.95
    assert mean(map(abs, errors["tools"])) < 0.015
    assert mean(map(abs, errors["schema"])) < 0.015
    assert max(map(abs, errors["tools"])) < 0.1
