"""Usage is read from whatever a server calls so; what cannot be believed is as if it had not been said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.usage import Usage, read_usage

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
FIELDS = st.sampled_from(
    [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "prompt_cache_hit_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=12,
)


def test_the_reference_shape_is_read() -> None:
    reported = {
        "prompt_tokens": 1200,
        "completion_tokens": 30,
        "total_tokens": 1230,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    assert read_usage(reported) == Usage(1200, 30, cached_tokens=1024)


@pytest.mark.parametrize(
    "document",
    [
        "null",
        "{}",
        "[]",
        "[100, 5]",
        '"100"',
        "100",
        "true",
        "NaN",
        '{"prompt_tokens": 0}',
        '{"prompt_tokens": null}',
        '{"prompt_tokens": "12"}',
        '{"total_tokens": 5}',
        '{"prompt_tokens": -1}',
        '{"prompt_tokens": NaN}',
        '{"prompt_tokens": Infinity}',
        '{"prompt_tokens": 1e12}',
        '{"prompt_tokens": 1000000000000}',
        '{"prompt_tokens": 12.5}',
        '{"prompt_tokens": true}',
        '{"prompt_tokens": [12]}',
        '{"prompt_tokens": {"text": 12}}',
        '{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}',
    ],
)
def test_b53_what_is_no_usage_is_none(document: str) -> None:
    assert read_usage(json.loads(document)) is None


@pytest.mark.parametrize("prompt", ["0", "null", '"12"', "-1", "NaN", "1e12", "[]", "false"])
def test_b53_an_unbelievable_prompt_leaves_the_completion_readable(prompt: str) -> None:
    usage = read_usage(json.loads(f'{{"prompt_tokens": {prompt}, "completion_tokens": 7}}'))
    assert usage == Usage(None, 7)
    assert usage.prompt_readings == ()


@pytest.mark.parametrize("completion", ["null", '"12"', "-1", "NaN", "1e12", "[]", "false"])
def test_b53_an_unbelievable_completion_leaves_the_prompt_readable(completion: str) -> None:
    usage = read_usage(json.loads(f'{{"prompt_tokens": 12, "completion_tokens": {completion}}}'))
    assert usage == Usage(12, None)


def test_an_answer_without_tokens_has_a_completion_of_zero() -> None:
    assert read_usage({"prompt_tokens": 12, "completion_tokens": 0}) == Usage(12, 0)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert read_usage({"prompt_tokens": 12.0, "completion_tokens": 3.0}) == Usage(12, 3)


def test_invented_usage_is_unknown() -> None:
    assert read_usage({"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}) is None
    assert read_usage({"prompt_tokens": 100, "completion_tokens": 100}) == Usage(100, 100)


def test_cached_tokens_are_found_where_deepseek_puts_them() -> None:
    reported = {"prompt_tokens": 90, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 26}
    assert read_usage(reported) == Usage(90, None, cached_tokens=64)


@pytest.mark.parametrize("details", [None, [], "64", 64, {}, {"cached_tokens": None}, {"cached_tokens": -1}])
def test_unreadable_details_leave_the_cached_tokens_unknown(details: object) -> None:
    assert read_usage({"prompt_tokens": 90, "prompt_tokens_details": details}) == Usage(90, None)


def test_b54_cached_tokens_beside_the_prompt_give_a_second_reading() -> None:
    usage = read_usage({"prompt_tokens": 50, "completion_tokens": 3, "cache_read_input_tokens": 950})
    assert usage == Usage(50, 3, cache_read_tokens=950)
    assert usage.prompt_readings == (50, 1000)


def test_b54_tokens_written_to_a_cache_count_as_those_read_from_it() -> None:
    usage = read_usage(
        {"prompt_tokens": 50, "cache_read_input_tokens": 700, "cache_creation_input_tokens": 250}
    )
    assert usage == Usage(50, None, cache_read_tokens=700, cache_written_tokens=250)
    assert usage.prompt_readings == (50, 1000)


def test_b54_cached_tokens_within_the_prompt_keep_the_reported_reading_first() -> None:
    usage = read_usage(
        {
            "prompt_tokens": 1000,
            "prompt_tokens_details": {"cached_tokens": 950},
            "cache_read_input_tokens": 950,
        }
    )
    assert usage == Usage(1000, None, cached_tokens=950, cache_read_tokens=950)
    assert usage.prompt_readings == (1000, 1950)


def test_b54_a_cached_part_larger_than_the_prompt_stands_beside_it() -> None:
    assert Usage(50, 3, cached_tokens=950).prompt_readings == (50, 1000)
    assert Usage(1000, 3, cached_tokens=950).prompt_readings == (1000,)


def test_a_usage_cannot_be_changed() -> None:
    usage = Usage(1, 2)
    with pytest.raises(AttributeError):
        usage.prompt_tokens = 3  # type: ignore[misc]


@given(VALUES)
def test_b53_any_json_value_is_read_without_an_exception(value: object) -> None:
    usage = read_usage(value)
    if usage is None:
        return
    counts = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_read_tokens,
        usage.cache_written_tokens,
    )
    assert all(count is None or (type(count) is int and 0 <= count <= 10**8) for count in counts)
    assert usage.prompt_tokens or usage.completion_tokens
    assert list(usage.prompt_readings) == sorted(set(usage.prompt_readings))
