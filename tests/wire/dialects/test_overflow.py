"""A refusal because the context is full is recognised by its words, wherever they stand, with the numbers in them.

Rules. What is claimed of a sentence is claimed of it in every envelope. No clock is looked at: what is hostile is only
required to come to an end, and to be read no further than the bounds.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy.wire.dialects
from proxy.wire.dialects import Exactness, Overflow, classify, classify_event, says_nothing
from proxy.wire.dialects.envelope import plain
from proxy.wire.dialects.rows import Dialect, Wording
from proxy.wire.dialects.table import DIALECTS
from tests.wire.dialects.envelopes import ENVELOPES
from tests.wire.dialects.lookalikes import CODED, ENDED_AT_ONCE, LOOKALIKES, OTHER_REFUSALS
from tests.wire.dialects.sentences import OPENAI_PLAIN, SENTENCES, Sentence

REFUSING: Final = (400, 404, 413, 422, 500)
KINDS_OF_EVIDENCE: Final = ("source", "report", "documentation", "recorded", "fixture", "common")
MACHINERY: Final = frozenset(
    {"__init__", "counters", "discovery", "envelope", "judge", "probes", "rows", "table"}
)

sentences = st.sampled_from(SENTENCES)
envelopes = st.sampled_from(sorted(ENVELOPES))


def nested(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()


# --- sentences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", SENTENCES, ids=str)
def test_b64_each_wording_of_each_server_is_recognised_and_its_numbers_are_read(sentence: Sentence) -> None:
    assert classify(400, nested(sentence.text)) == sentence.said


@pytest.mark.parametrize("status", REFUSING)
def test_b64_the_same_sentence_counts_with_every_status_that_servers_refuse_with(status: int) -> None:
    assert {classify(status, nested(each.text)) == each.said for each in SENTENCES} == {True}


@pytest.mark.parametrize("name", sorted(ENVELOPES))
def test_b64_the_envelope_does_not_matter(name: str) -> None:
    for sentence in SENTENCES:
        assert classify(400, ENVELOPES[name](sentence.text)) == sentence.said, sentence.text


@given(sentence=sentences, inner=envelopes, outer=envelopes)
def test_an_envelope_in_an_envelope_does_not_matter_either(
    sentence: Sentence, inner: str, outer: str
) -> None:
    wrapped = ENVELOPES[inner](sentence.text)
    if len(wrapped) < 100_000:  # else the words stand beyond what is read of one body
        assert classify(400, ENVELOPES[outer](wrapped.decode("utf-8", "replace"))) == sentence.said


@given(sentence=sentences, before=st.text("abc .,:\n", max_size=40), after=st.text("abc .,:\n", max_size=40))
def test_words_around_the_sentence_do_not_matter(sentence: Sentence, before: str, after: str) -> None:
    assert classify(400, nested(f"{before} {sentence.text} {after}")) == sentence.said


@pytest.mark.parametrize(("body", "said"), CODED)
def test_a_code_says_it_without_words(body: dict[str, Any], said: Overflow) -> None:
    assert classify(400, json.dumps(body).encode()) == said


def test_b61_the_window_of_a_slot_is_read_from_the_fields_of_the_error() -> None:
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 24071, "n_ctx": 8192}
    assert classify(400, json.dumps({"error": error}).encode()) == Overflow("llamacpp", 8192, 24071)


def test_a_prompt_that_fits_alone_is_told_apart_from_one_that_does_not() -> None:
    small = (
        "This model's maximum context length is 8192 tokens. However, you requested 9048 tokens (7000 in the messages, "
        "2048 in the completion). Please reduce the length of the messages or completion."
    )
    said = classify(400, nested(small))
    assert said is not None
    assert (said.window, said.prompt, said.completion) == (8192, 7000, 2048)


def test_an_empty_refusal_is_no_overflow_but_can_be_asked_about() -> None:
    assert classify(400, b"") is None
    assert says_nothing(400, b"")
    assert says_nothing(413, b" \r\n")
    assert not says_nothing(400, b"{}")
    assert not says_nothing(500, b"")
    assert not says_nothing(429, b"")


# --- numbers ------------------------------------------------------------------------------------------------

WINDOWS: Final = st.integers(256, 100_000_000)
COUNTS: Final = st.integers(1, 1_000_000_000)
WRITTEN: Final = ("{}", "{:,}", "{:_}", "nbsp", "narrow", "apostrophe", "{}.0", "{}.00")
SEPARATORS: Final = {"nbsp": "\u00a0", "narrow": "\u202f", "apostrophe": "'"}


def written(number: int, how: str) -> str:
    if how in SEPARATORS:
        return f"{number:,}".replace(",", SEPARATORS[how])
    return how.format(number)


def told(sentence: Sentence) -> dict[str, int]:
    """Name of a number -> its value, where it stands in the text by itself and no other has the same value."""
    numbers = {
        name: value
        for name in ("window", "prompt", "completion")
        if (value := getattr(sentence.said, name)) is not None
    }
    literal = all(re.search(rf"(?<!\d){value}(?!\d)", sentence.text) for value in numbers.values())
    return numbers if literal and len(set(numbers.values())) == len(numbers) else {}


MUTABLE: Final = tuple(sentence for sentence in SENTENCES if told(sentence))


def rewritten(text: str, changes: dict[str, str]) -> str:
    return re.sub(r"(?<!\d)(\d+)(?:\.\d+)?(?!\d)", lambda found: changes.get(found[1], found[0]), text)


@given(
    sentence=st.sampled_from(MUTABLE),
    window=WINDOWS,
    prompt=COUNTS,
    completion=COUNTS,
    how=st.sampled_from(WRITTEN),
)
def test_other_numbers_are_followed_however_they_are_written(
    sentence: Sentence, window: int, prompt: int, completion: int, how: str
) -> None:
    new = {"window": window, "prompt": prompt, "completion": completion}
    old = told(sentence)
    text = rewritten(sentence.text, {str(value): written(new[name], how) for name, value in old.items()})
    read = classify(400, nested(text))
    assert read is not None
    expected = {name: new[name] if name in old else getattr(sentence.said, name) for name in new}
    assert {name: getattr(read, name) for name in new} == expected


def test_most_sentences_take_part_in_that() -> None:
    assert len(MUTABLE) > len(SENTENCES) / 2


@pytest.mark.parametrize("window", [0, 1, 16, 255, 100_000_001, 10**11, 10**12, 10**20])
def test_a_window_that_none_can_have_is_not_believed_but_the_refusal_is(window: int) -> None:
    read = classify(400, nested(OPENAI_PLAIN.replace("4097", str(window))))
    assert read is not None
    assert read.window is None


def test_a_vllm_prompt_of_one_token_too_many_is_a_lower_bound_whether_it_says_so_or_not() -> None:
    silent = (
        "You passed {} input tokens and requested 1024 output tokens. However, the model's context length is only "
        "8192 tokens, resulting in a maximum input length of 7168 tokens."
    )
    readings = [classify(400, nested(silent.format(prompt))) for prompt in (7168, 7169, 7170)]
    assert [read.prompt_is for read in readings if read] == [
        Exactness.EXACT,
        Exactness.AT_LEAST,
        Exactness.EXACT,
    ]


# --- what is none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "text"), LOOKALIKES)
@pytest.mark.parametrize("name", sorted(ENVELOPES))
def test_a_lookalike_is_refused_in_every_envelope(name: str, dialect: str, text: str) -> None:
    assert classify(400, ENVELOPES[name](text)) is None


@pytest.mark.parametrize(("dialect", "text"), LOOKALIKES)
def test_a_lookalike_decides_against_the_plainest_overflow_beside_it(dialect: str, text: str) -> None:
    assert classify(400, nested(f"{text} {OPENAI_PLAIN}")) is None


@pytest.mark.parametrize("text", OTHER_REFUSALS)
def test_b35_any_other_refusal_is_none(text: str) -> None:
    for envelope in ENVELOPES.values():
        assert classify(400, envelope(text)) is None


@pytest.mark.parametrize("status", [401, 402, 403, 408, 429, 529])
def test_b64_a_status_of_credentials_money_or_rate_decides_against_it(status: int) -> None:
    assert [each.text for each in SENTENCES if classify(status, nested(each.text)) is not None] == []


@pytest.mark.parametrize(
    "code", ["rate_limit_exceeded", "insufficient_quota", "string_above_max_length", 429, "429"]
)
def test_a_code_of_something_else_decides_against_the_plainest_overflow(code: object) -> None:
    body = {"error": {"message": OPENAI_PLAIN, "code": code}}
    assert classify(400, json.dumps(body).encode()) is None


def test_b64_tokens_per_minute_are_no_window() -> None:
    text = (
        "Request too large for model `llama-3.3-70b-versatile` in organization `org_x` service tier `on_demand` on "
        "tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again."
    )
    for status in (413, 429):
        assert classify(status, nested(text)) is None


@pytest.mark.parametrize("status", [400, 413, 502])
@pytest.mark.parametrize(
    "page",
    [
        "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>nginx</body>\r\n</html>\r\n",
        f"<!DOCTYPE html><html><body>{OPENAI_PLAIN}</body></html>",
        f"<?xml version='1.0'?><Error><Message>{OPENAI_PLAIN}</Message></Error>",
    ],
)
def test_b122_a_page_is_no_overflow(status: int, page: str) -> None:
    assert classify(status, page.encode()) is None


def test_a_validator_that_repeats_the_request_is_none() -> None:
    body = {
        "detail": [
            {
                "type": "int_parsing",
                "loc": ["body", "n"],
                "msg": "Input should be a valid integer",
                "input": {"messages": [{"role": "user", "content": OPENAI_PLAIN}], "message": OPENAI_PLAIN},
            }
        ],
        "body": {"error": {"message": OPENAI_PLAIN}},
        "messages": [{"content": OPENAI_PLAIN, "message": OPENAI_PLAIN}],
    }
    assert classify(422, json.dumps(body).encode()) is None


def test_json_within_prose_is_opened_and_what_it_repeats_of_the_request_is_not_read() -> None:
    repeated = json.dumps({"error": {"message": "bad tool", "input": OPENAI_PLAIN}})
    assert (
        classify(400, nested(f"litellm.BadRequestError: OpenAIException - {repeated}. Fallbacks=None"))
        is None
    )


# --- the first frame of a stream ----------------------------------------------------------------------------

SILENT: Final = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "error"}]


@pytest.mark.parametrize(
    "frame",
    [
        {"error": {"object": "error", "message": OPENAI_PLAIN, "type": "BadRequestError", "code": 400}},
        {"error": OPENAI_PLAIN},
        {"error": {"message": OPENAI_PLAIN, "http_status_code": 422}},
        {"type": "error", "sequence_number": 2, "error": {"type": "a", "message": OPENAI_PLAIN}},
        {"error_type": "validation_error", "error_message": json.dumps({"error": {"message": OPENAI_PLAIN}})},
        {"id": "1", "object": "chat.completion.chunk", "choices": SILENT, "error": {"message": OPENAI_PLAIN}},
        {"choices": [], "error": {"code": 400, "message": OPENAI_PLAIN}},
        {"choices": [{"index": 0, "message": {"role": "assistant"}, "error": {"message": OPENAI_PLAIN}}]},
        {"choices": [{"index": 0, "delta": {}}], "x_groq": {"error": OPENAI_PLAIN}},
        {"code": 400, "message": OPENAI_PLAIN, "type": "invalid_request_error"},
        {"code": "InvalidParameter", "message": OPENAI_PLAIN, "request_id": "r"},
        {"object": "error", "message": OPENAI_PLAIN, "type": "BadRequestError", "param": None, "code": 400},
        [{"error": {"code": 400, "message": OPENAI_PLAIN, "status": "INVALID_ARGUMENT"}}],
    ],
)
def test_b65_an_error_in_the_first_frame_is_read(frame: object) -> None:
    assert classify_event(json.dumps(frame).encode()) == Overflow("openai", 4097, 4294)
    assert classify(200, json.dumps(frame).encode()) == Overflow("openai", 4097, 4294)


def test_an_answer_that_ends_at_once_because_the_context_is_full_is_one() -> None:
    assert classify(200, json.dumps(ENDED_AT_ONCE).encode()) == Overflow("zhipu", None, 202750, completion=0)


@pytest.mark.parametrize(
    "frame",
    [
        OPENAI_PLAIN,
        {"choices": [{"index": 0, "delta": {"content": OPENAI_PLAIN}}]},
        {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": OPENAI_PLAIN},
                    "finish_reason": "stop",
                }
            ]
        },
        {
            "choices": [
                {"index": 0, "delta": {"content": 'data: {"error":{"code":"context_length_exceeded"}}'}}
            ]
        },
        {"choices": [{"index": 0, "text": "ok"}], "error": {"message": OPENAI_PLAIN}},
        {"choices": [{"delta": {"reasoning_content": "hm"}}], "error": {"message": OPENAI_PLAIN}},
        {"choices": [{"delta": {"tool_calls": [{"id": "c"}]}}], "error": {"message": OPENAI_PLAIN}},
        {"choices": "x", "error": {"message": OPENAI_PLAIN}},
        {"choices": [{"delta": {}, "finish_reason": "length"}], "error": None},
        {"message": OPENAI_PLAIN},
        {"message": OPENAI_PLAIN, "code": 200},
        {"message": {"role": "assistant", "content": OPENAI_PLAIN}, "done": False},
        {"error": None, "message": OPENAI_PLAIN},
        {"error": {"message": "The server had an error while processing your request. Sorry about that!"}},
        {
            "error": {
                "message": "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000",
                "code": 429,
            }
        },
        [{"error": {"message": OPENAI_PLAIN}}, {"choices": []}],
    ],
)
def test_b65_what_the_model_says_is_no_error_whatever_it_quotes(frame: object) -> None:
    assert classify_event(json.dumps(frame).encode()) is None
    assert classify(200, json.dumps(frame).encode()) is None


def test_a_frame_that_is_no_json_is_none() -> None:
    for data in (b"", b"[DONE]", OPENAI_PLAIN.encode(), b'{"error": {"message": "' + OPENAI_PLAIN.encode()):
        assert classify_event(data) is None


WORDS: Final = st.sampled_from([*(each.text for each in SENTENCES), "context_length_exceeded", "x"])
MEMBERS: Final = st.sampled_from(
    [
        "error",
        "message",
        "code",
        "type",
        "detail",
        "choices",
        "delta",
        "x_groq",
        "usage",
        "error_type",
        "metadata",
        "raw",
    ]
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(MEMBERS | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(
    words=WORDS, rest=st.dictionaries(MEMBERS, JSON, max_size=4), member=st.sampled_from(["delta", "message"])
)
def test_nothing_beside_the_model_s_words_makes_an_error_of_a_frame(
    words: str, rest: dict[str, object], member: str
) -> None:
    frame = {**rest, "choices": [{"index": 0, member: {"content": words}, "finish_reason": None}]}
    assert classify_event(json.dumps(frame).encode()) is None


# --- totality and bounds ------------------------------------------------------------------------------------


@given(status=st.integers(100, 599), value=JSON)
def test_no_json_makes_it_raise(status: int, value: object) -> None:
    body = json.dumps(value).encode()
    for outcome in (
        classify(status, body),
        classify_event(body),
        classify(400, json.dumps(body.decode()).encode()),
    ):
        assert outcome is None or isinstance(outcome, Overflow)


@given(body=st.binary(max_size=200), sentence=sentences)
def test_no_bytes_make_it_raise(body: bytes, sentence: Sentence) -> None:
    whole = nested(sentence.text)
    for odd in (body, body + whole, whole + body, whole[: len(body)] + body, whole[: len(whole) - len(body)]):
        classify(400, odd)
        classify_event(odd)


FILLERS: Final = (
    "9",
    "[",
    '{"error":',
    '"',
    "\\",
    "\\u0",
    " ",
    "\n",
    "1 tokens exceed ",
    "exceeds the ",
    "exceeds context length ",
    "maximum context length is ",
    "maximum context length is 8192 tokens. however, ",
    "prompt is too long: 1",
    "decoder prompt (length 5) longer than ",
    "trying to keep the first 9 tokens when context overflows ",
    "n_keep: 1 >= ",
    "limit ",
    "1,000,",
    'x {"a":',
    '[{"a":1},',
    '"message":"',
    '{"message":"a',
    "<html>",
    'data: {"error":"\n\n',
    "data: x\n",
)


@pytest.mark.parametrize("filler", FILLERS)
def test_a_megabyte_of_anything_comes_to_an_end(filler: str) -> None:
    text = (filler * (1_000_000 // len(filler) + 1))[:1_000_000]
    bodies = [text, json.dumps({"error": text}), json.dumps({"error": {"message": text[:60_000]}})]
    bodies.append(json.dumps({"error": {"message": text[:60_000], "code": "context_length_exceeded"}}))
    for body in bodies:
        outcome = classify(400, body.encode())
        assert outcome is None or outcome.prompt is None
        classify_event(body.encode())


def test_a_large_body_is_read_where_errors_stand() -> None:
    echo = "x" * 3_000_000
    assert classify(400, json.dumps({"message": OPENAI_PLAIN, "input": echo}).encode()) == SENTENCES[0].said
    assert classify(400, json.dumps({"input": echo, "message": OPENAI_PLAIN}).encode()) is None
    traceback = f"Traceback: {'frame ' * 9000} ValueError: {OPENAI_PLAIN}"
    assert classify(500, nested(traceback)) == SENTENCES[0].said


def test_deep_nesting_is_not_followed_for_ever() -> None:
    deep = b'{"error":' * 20_000 + b'"x"' + b"}" * 20_000
    assert classify(400, deep) is None
    wrapped = OPENAI_PLAIN
    for _ in range(40):
        wrapped = json.dumps({"error": wrapped})[:100_000]
    assert classify(400, wrapped.encode()) is None


# --- the table ----------------------------------------------------------------------------------------------


def rows_of(dialect: Dialect) -> Iterator[Wording]:
    yield from (*dialect.wordings, *dialect.lookalikes, *dialect.numbers)


def deciding_row(text: str) -> Wording:
    """The row that gives the reading of a text: the first with a window, else the first at all."""
    readings = [
        (row, read)
        for dialect in DIALECTS
        for row in dialect.wordings
        if (read := row.read(dialect.name, plain(text))) is not None
    ]
    with_window = [row for row, read in readings if read.window is not None]
    return (with_window or [row for row, _ in readings])[0]


def test_every_row_decides_an_example() -> None:
    deciding = {deciding_row(sentence.text) for sentence in SENTENCES}
    assert [row.pattern.pattern for each in DIALECTS for row in each.wordings if row not in deciding] == []


def test_every_row_about_a_lookalike_has_an_example_of_its_own_dialect() -> None:
    for dialect in DIALECTS:
        texts = [plain(text) for name, text in LOOKALIKES if name == dialect.name]
        for row in dialect.lookalikes:
            assert any(row.pattern.search(text) for text in texts), row.pattern.pattern
        for text in texts:
            assert any(row.pattern.search(text) for row in dialect.lookalikes), text


def test_every_code_has_an_example() -> None:
    said = {json.dumps(body) for body, _ in CODED} | {json.dumps(ENDED_AT_ONCE)}
    for dialect in DIALECTS:
        for code in dialect.codes:
            assert any(f'"{code.value}"' in body for body in said), code.value


def test_every_row_has_evidence_of_a_known_kind() -> None:
    for dialect in DIALECTS:
        told = [row.evidence for row in rows_of(dialect)] + [row.evidence for row in dialect.windows]
        told += [code.evidence for code in (*dialect.codes, *dialect.lookalike_codes)]
        for evidence in told:
            kind, _, rest = evidence.partition(": ")
            assert kind in KINDS_OF_EVIDENCE, evidence
            assert len(rest) > 5, evidence


def test_no_pattern_repeats_without_bound_or_repeats_a_group() -> None:
    for dialect in DIALECTS:
        for row in rows_of(dialect):
            bare = re.sub(r"\\.|\[[^\]]*\]", "x", row.pattern.pattern)
            assert not re.search(r"[*+]|\)\{|\{\d+,\}", bare), row.pattern.pattern
            assert all(int(most) <= 100 for most in re.findall(r"\{\d+,(\d+)\}", bare)), row.pattern.pattern


def test_patterns_are_written_for_plain_text() -> None:
    for dialect in DIALECTS:
        for row in rows_of(dialect):
            literal = re.sub(r"\(\?P<\w+>|\\b", "", row.pattern.pattern)
            assert literal == literal.lower()
            assert not re.search(r'["`]|  ', literal), literal


def test_each_file_of_a_dialect_has_its_line_in_the_table() -> None:
    folder = Path(str(proxy.wire.dialects.__file__)).parent
    files = {path.stem for path in folder.glob("*.py")} - MACHINERY
    names = [dialect.name for dialect in DIALECTS]
    assert sorted(names) == sorted(files)
    assert names[-1] == "generic"


@given(text=st.text(max_size=300))
def test_plain_text_stays_as_it_is(text: str) -> None:
    once = plain(text)
    assert plain(once) == once


def test_the_readings_are_values() -> None:
    said = SENTENCES[0].said
    assert replace(said) == said
    assert hash(replace(said)) == hash(said)
