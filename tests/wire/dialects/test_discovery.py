"""An upstream's window is found in its own answers, and never in what they say of something else.

Rules. Every place that is looked at has an example of its server. Whatever is answered, nothing raises, and a number
counts only if it can be a window.
"""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.dialects import PROBES, Base, Found, Probe, Rank, best
from proxy.wire.dialects.table import DIALECTS
from tests.wire.dialects.windows import TOLD, Told

BY_NAME: Final = {probe.name: probe for probe in PROBES}


def models(*entries: object) -> dict[str, object]:
    return {"GET v1/models": {"object": "list", "data": list(entries)}}


def tokens(found: Found | None) -> int | None:
    return found.tokens if found else None


@pytest.mark.parametrize("told", TOLD, ids=lambda told: f"{told.dialect} {told.probe} {told.rank.name}")
def test_each_server_s_answer_tells_its_window(told: Told) -> None:
    found = BY_NAME[told.probe].windows(told.answer, told.model)
    assert found is not None
    assert (found.tokens, found.rank) == (told.tokens, told.rank)
    assert found.source.startswith(f"{told.dialect}: {told.probe} ")
    assert best({told.probe: told.answer}, told.model) == found


def test_every_place_has_an_example() -> None:
    shown = {(told.dialect, told.probe, told.rank) for told in TOLD}
    assert shown == {(each.name, row.ask.name, row.rank) for each in DIALECTS for row in each.windows}


# --- which number -------------------------------------------------------------------------------------------


def test_b61_the_window_of_a_slot_beats_that_of_all_slots_together() -> None:
    answers = models({"id": "m", "meta": {"n_ctx": 32768, "n_ctx_train": 131072}})
    assert tokens(best(answers, "m")) == 32768
    answers["GET /props"] = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4}
    assert best(answers, "m") == Found(
        8192, "llamacpp: GET /props default_generation_settings.n_ctx", Rank.SLOT
    )


def test_the_smallest_slot_counts() -> None:
    assert tokens(best({"GET /slots": [{"id": 0, "n_ctx": 8192}, {"id": 1, "n_ctx": 4096}]}, "m")) == 4096


def test_a_router_that_has_no_context_of_its_own_tells_none() -> None:
    assert best({"GET /props": {"default_generation_settings": {"n_ctx": 0}}}, "m") is None


def test_what_is_loaded_beats_what_was_trained() -> None:
    entry = {"id": "m", "loaded_context_length": 4096, "max_context_length": 131072}
    answers: dict[str, object] = {"GET /api/v0/models": {"data": [entry]}}
    assert tokens(best(answers, "m")) == 4096
    show = {"parameters": "num_ctx 16384", "model_info": {"llama.context_length": 131072}}
    ollama: dict[str, object] = {"POST /api/show": show}
    assert tokens(best(ollama, "m")) == 16384
    ollama["GET /api/ps"] = {"models": [{"name": "m:latest", "context_length": 8192}]}
    assert tokens(best(ollama, "m")) == 8192


def test_what_was_trained_says_that_it_is_no_more_than_that() -> None:
    found = best({"POST /api/show": {"model_info": {"qwen2.context_length": 32768}}}, "m")
    assert found is not None
    assert found.rank is min(Rank)


def test_the_provider_that_is_routed_to_beats_what_is_published() -> None:
    entry = {"id": "m", "context_length": 262144, "top_provider": {"context_length": 65536}}
    assert tokens(best(models(entry), "m")) == 65536
    assert tokens(best(models({**entry, "top_provider": {"context_length": None}}), "m")) == 262144


def test_of_equal_ranks_the_smaller_counts() -> None:
    assert tokens(best(models({"id": "m", "context_length": 8192, "context_window": 4096}), "m")) == 4096


@given(order=st.permutations(TOLD))
def test_the_order_of_the_answers_decides_nothing(order: list[Told]) -> None:
    answers = {told.probe: told.answer for told in sorted(TOLD, key=repr)}
    shuffled = {told.probe: answers[told.probe] for told in order}
    assert best(shuffled, "m") == best(answers, "m")


# --- which model --------------------------------------------------------------------------------------------

TWO: Final = models({"id": "small", "max_model_len": 4096}, {"id": "large", "max_model_len": 131072})


def test_b63_a_model_is_found_by_its_name_and_no_other_is_taken_for_it() -> None:
    assert tokens(best(TWO, "large")) == 131072
    assert tokens(best(TWO, "small")) == 4096
    assert best(TWO, "medium") is None
    assert best(TWO, "") is None


def test_a_model_is_found_by_its_alias() -> None:
    other = {"id": "other.gguf", "meta": {"n_ctx": 2048}}
    answers = models({"id": "q.gguf", "aliases": ["fast", "gpt-4o"], "meta": {"n_ctx": 8192}}, other)
    assert tokens(best(answers, "gpt-4o")) == 8192


def test_the_only_model_of_a_server_answers_to_any_name() -> None:
    alone = models({"id": "/models/q.gguf", "meta": {"n_ctx": 8192}})
    assert tokens(best(alone, "gpt-4o")) == 8192
    assert tokens(best(alone, "")) == 8192


def test_b63_what_happens_to_be_loaded_is_not_taken_for_another_model() -> None:
    loaded = {"GET /api/ps": {"models": [{"name": "gemma:2b", "model": "gemma:2b", "context_length": 4096}]}}
    assert tokens(best(loaded, "gemma:2b")) == 4096
    assert best(loaded, "llama3.1") is None


def test_the_exact_name_is_preferred_to_one_in_other_letters() -> None:
    answers = models({"id": "Qwen", "max_model_len": 4096}, {"id": "qwen", "max_model_len": 8192})
    assert tokens(best(answers, "qwen")) == 8192
    assert tokens(best(answers, "QWEN")) == 4096


def test_an_adapter_has_the_window_of_its_base() -> None:
    base = {"id": "base", "parent": None, "max_model_len": 32768}
    adapter = {"id": "tuned", "parent": "base", "max_model_len": None}
    assert tokens(best(models(base, adapter), "tuned")) == 32768
    assert best(models(base, {**adapter, "parent": "gone"}), "tuned") is None


def test_of_several_deployments_under_one_name_the_smallest_counts() -> None:
    entries = [{"model_name": "gpt", "model_info": {"max_input_tokens": size}} for size in (272000, 128000)]
    assert tokens(best({"GET /model/info": {"data": entries}}, "gpt")) == 128000


# --- numbers, and what are none -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [8192, 8192.0, "8192", " 8192 ", "8,192", "8_192"])
def test_a_number_counts_however_it_is_written(value: object) -> None:
    assert tokens(best(models({"id": "m", "max_model_len": value}), "m")) == 8192


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        255,
        8192.5,
        100_000_001,
        1e300,
        float("nan"),
        float("inf"),
        "",
        "many",
        "²",
        "9" * 5000,
        [8192],
        {},
    ],
)
def test_what_can_be_no_window_is_none(value: object) -> None:
    assert best(models({"id": "m", "max_model_len": value}), "m") is None


@pytest.mark.parametrize("value", [256, 100_000_000])
def test_the_bounds_are_windows(value: int) -> None:
    assert tokens(best(models({"id": "m", "max_model_len": value}), "m")) == value


PLACES: Final = (
    "data",
    "models",
    "parameters",
    "model_info",
    "top_provider",
    "loaded_instances",
    "config",
    "meta",
)
SIZES: Final = (
    "n_ctx",
    "max_model_len",
    "context_length",
    "value",
    "llama.context_length",
    "max_total_tokens",
)
NAMES: Final = st.sampled_from(
    (*PLACES, *SIZES, "id", "name", "aliases", "parent", "default_generation_settings")
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("m"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(value=JSON, probe=st.sampled_from(PROBES), model=st.sampled_from(["m", "", "M:latest", "\ud800"]))
def test_no_answer_makes_it_raise(value: object, probe: Probe, model: str) -> None:
    found = probe.windows(value, model)
    assert found is None or 256 <= found.tokens <= 100_000_000
    assert best({probe.name: value, "GET /nowhere": value}, model) == found


# --- the probes ---------------------------------------------------------------------------------------------


def test_each_request_is_made_once_and_has_a_name_of_its_own() -> None:
    assert (
        len(BY_NAME)
        == len(PROBES)
        == len({(probe.ask.method, probe.ask.base, probe.ask.path) for probe in PROBES})
    )
    assert {"vllm", "openrouter", "groq", "mistral", "llamacpp"} <= BY_NAME["GET v1/models"].dialects


def test_paths_begin_at_the_base_or_at_the_root() -> None:
    assert BY_NAME["GET v1/models"].ask.base is Base.API
    assert BY_NAME["GET /props"].ask.base is Base.ROOT
    assert all(probe.ask.path.startswith("/") for probe in PROBES)


def test_a_model_s_name_cannot_leave_its_place_in_a_path() -> None:
    path = BY_NAME["GET /props"].ask.path_for("../a b?c=d&e/\ud800ü")
    assert path == "/props?model=..%2Fa%20b%3Fc%3Dd%26e%2F%3F%C3%BC&autoload=false"


def test_the_only_request_with_a_body_names_the_model() -> None:
    bodies = {probe.name: body for probe in PROBES if (body := probe.ask.body_for('a"b')) is not None}
    assert list(bodies) == ["POST /api/show"]
    assert json.loads(bodies["POST /api/show"]) == {"model": 'a"b'}
