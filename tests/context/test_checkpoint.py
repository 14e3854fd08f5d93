"""Digests, and the chain that names the prefixes of a history."""

import json
from typing import Any

import pytest

from proxy.context import checkpoint
from proxy.context.conversation import read_message
from tests.context.histories import read

SEED = checkpoint.seed("tenant", "upstream", "model")


def digest(**fields: Any) -> bytes:
    return read_message(json.dumps(fields).encode()).digest


def test_what_clients_vary_between_requests_does_not_change_a_digest() -> None:
    plain = digest(role="user", content="hello")
    assert plain == digest(content="hello", role="user")
    assert plain == digest(role="user", content=[{"type": "text", "text": "hello"}])
    marked = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    assert plain == digest(role="user", content=[marked])
    assert digest(role="assistant", content="x") == digest(
        role="assistant", content="x", reasoning_content="why"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "hello "},
        {"role": "user", "content": "hello", "name": "ada"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {
            "role": "user",
            "content": "hello",
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}],
        },
        {"role": "user", "content": "hello", "tool_call_id": "a"},
    ],
)
def test_what_reaches_the_model_changes_a_digest(other: dict[str, Any]) -> None:
    assert digest(role="user", content="hello") != digest(**other)


PARTS: list[dict[str, Any]] = [
    {"type": "json", "json": {"balance": 1}},
    {"type": "image", "source": {"data": "AAAA"}},
    {"type": "image_url", "image_url": {"url": "x", "detail": "low"}},
]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_not_understood_is_told_apart_by_all_that_it_holds(part: dict[str, Any]) -> None:
    other = json.loads(json.dumps(part).replace("1", "2").replace("AAAA", "BBBB").replace("low", "high"))
    marked = {**part, "cache_control": {"type": "ephemeral"}}
    assert digest(role="tool", content=[part]) != digest(role="tool", content=[other])
    assert digest(role="tool", content=[part]) == digest(role="tool", content=[marked])
    assert digest(role="tool", content={"a": 1}) != digest(role="tool", content={"a": 2})
    assert digest(role="assistant", content=None, refusal="a") != digest(
        role="assistant", content=None, refusal="b"
    )


TEXT = {"type": "text", "text": "hello"}


@pytest.mark.parametrize(
    "varied",
    [
        [TEXT, {"type": "text", "text": ""}],
        [{"type": "thinking", "thinking": "let me see", "signature": "x"}, TEXT],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "let me see"}]}, TEXT],
        [{"type": "redacted_thinking", "data": "AAAA"}, TEXT],
        ["hello"],
    ],
)
def test_thoughts_and_empty_parts_that_clients_add_or_drop_do_not_change_a_digest(varied: list[Any]) -> None:
    assert digest(role="assistant", content=varied) == digest(role="assistant", content="hello")


def calling(arguments: object, kind: str = "function") -> bytes:
    field = "input" if kind == "custom" else "arguments"
    call = {"id": "a", "type": kind, kind: {"name": "f", field: arguments}}
    return digest(role="assistant", content=None, tool_calls=[call])


def test_arguments_that_a_client_parsed_and_wrote_anew_do_not_change_a_digest() -> None:
    plain = calling('{"path":"a.py","line":1}')
    for varied in ('{"path": "a.py", "line": 1}', '{"line":1,"path":"a.py"}', {"line": 1, "path": "a.py"}):
        assert plain == calling(varied)
    for other in ('{"path":"a.py","line":2}', '{"path":"a.py","line":1', "", '"a.py"'):
        assert plain != calling(other)


def test_a_custom_call_whose_input_is_free_text_is_told_apart_by_every_byte_and_from_a_function() -> None:
    assert calling("{}", "custom") != calling("{}")
    assert calling("{} ", "custom") != calling("{}", "custom")


def test_where_a_picture_stands_among_the_texts_changes_a_digest() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    orders = ([TEXT, picture, TEXT], [picture, TEXT, TEXT], [TEXT, TEXT, picture])
    assert len({digest(role="user", content=order) for order in orders}) == len(orders)


def test_a_spoken_answer_is_told_apart_by_its_id() -> None:
    spoken = [digest(role="assistant", content=None, audio={"id": name}) for name in ("audio_1", "audio_2")]
    assert len({*spoken, digest(role="assistant", content=None)}) == 3


def test_fields_cannot_slide_into_each_other() -> None:
    assert digest(role="user", content="ab", name="c") != digest(role="user", content="a", name="bc")


def test_b113_a_chain_names_the_whole_prefix_and_not_its_last_message() -> None:
    one = read([{"role": "user", "content": "a"}, {"role": "user", "content": "same"}])
    two = read([{"role": "user", "content": "b"}, {"role": "user", "content": "same"}])
    chains = [checkpoint.chain(talk.history, SEED) for talk in (one, two)]
    assert not set(chains[0]) & set(chains[1])


def test_b117_tenant_upstream_and_model_each_part_the_chains() -> None:
    talk = read([{"role": "user", "content": "a"}])
    seeds = [("t", "u", "m"), ("T", "u", "m"), ("t", "U", "m"), ("t", "u", "M"), ("tu", "", "m")]
    assert len({checkpoint.chain(talk.history, checkpoint.seed(*seed)) for seed in seeds}) == len(seeds)


def test_the_system_head_is_outside_the_chain() -> None:
    talks = [read([{"role": "system", "content": clock}, {"role": "user", "content": "a"}]) for clock in "12"]
    assert len({checkpoint.chain(talk.history, SEED) for talk in talks}) == 1
