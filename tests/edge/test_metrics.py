"""What Prometheus is told of the requests that a real proxy serves, read as strictly as Prometheus reads it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from proxy.config import SideCalls
from proxy.context.policy import Mode, ModelPolicy
from proxy.edge.ledger import Beginning, Repeats
from proxy.edge.metrics import MOST_MODELS, Added, Finished, Metrics
from proxy.exchange import Verdict
from proxy.wire.usage import Usage
from tests.edge import exposition
from tests.edge.exposition import Scrape, scraped
from tests.edge.proxied import proxied
from tests.edge.test_fail_open import DROPPED, FAULT, LONG, SUMMARISED, is_side_call, measuring, remembering
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Cut, ScriptedUpstream, json_answer

CHAT = "/v1/chat/completions"
MARKER = "marker-word"
CACHED = {
    "prompt_tokens": 1000,
    "completion_tokens": 5,
    "total_tokens": 1005,
    "prompt_tokens_details": {"cached_tokens": 600},
}
WHOLE = peers.completion(peers.text_message("Hello."), usage=CACHED)
GOOD = json_answer(WHOLE)


def chat(*said: str, model: str = "m", system: str = "Be brief.") -> bytes:
    roles = ("user", "assistant") * len(said)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return json.dumps(
        {"model": model, "messages": [{"role": "system", "content": system}, *messages]}
    ).encode()


def words(word: str) -> str:
    return f"{word} " * 400


async def served(*bodies: bytes, path: str = CHAT, otherwise: peers.Reply = GOOD, **how: Any) -> Scrape:
    """The metrics behind these requests, one after the other; `how` goes to `proxied`."""
    async with ScriptedUpstream(otherwise=otherwise) as upstream, proxied(upstream.url, **how) as proxy:
        for body in bodies:
            async with RawClient(proxy.url) as client:
                await client.post(path, body)
        return await scraped(proxy.url, after=len(bodies))


# --- requests -----------------------------------------------------------------------------------------------------


async def test_requests_are_counted_by_mode_action_and_outcome() -> None:
    scrape = await served(LONG, chat("x"), policy=DROPPED)
    assert scrape.value("transom_requests_total", mode="manage", outcome="2xx") == 2
    assert scrape.series("transom_request_actions_total", "action") == {"drop": 1, "none": 1}
    assert scrape.value("transom_request_duration_seconds_count", mode="manage") == 2
    assert scrape.value("transom_requests_in_flight") == 0
    assert scrape.value("transom_bypasses_total") == 0


OUTCOMES: dict[str, tuple[peers.Reply, str]] = {
    "good": (json_answer(WHOLE), "2xx"),
    "refused": (json_answer({"error": {"message": "no"}}, status=401), "4xx"),
    "failed": (json_answer({}, status=503), "5xx"),
    "broken": (json_answer(WHOLE).cut_at(20, Cut.RESET), "upstream_broke"),
}


@pytest.mark.parametrize(("answer", "outcome"), OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_an_outcome_is_what_the_client_got(answer: peers.Reply, outcome: str, path: str) -> None:
    async with ScriptedUpstream([answer]) as upstream, proxied(upstream.url) as proxy:
        async with RawClient(proxy.url) as client:
            await client.post(path, chat("x"))
        scrape = await scraped(proxy.url, after=1)
    assert scrape.series("transom_requests_total", "outcome") == {outcome: 1}
    assert scrape.series("transom_requests_total", "mode") == {"manage" if path == CHAT else "none": 1}


async def test_b106_a_client_that_leaves_and_an_upstream_that_is_not_there_have_outcomes() -> None:
    slow = json_answer(WHOLE).pausing(20, asyncio.Event())
    async with (
        ScriptedUpstream([slow]) as upstream,
        proxied(upstream.url) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.start(CHAT, chat("x"))
        await client.read_head()
        assert (await scraped(proxy.url)).value("transom_requests_in_flight") == 1
        await client.reset()
        scrape = await scraped(proxy.url, after=1)
    assert scrape.series("transom_requests_total", "outcome") == {"client_gone": 1}
    assert scrape.value("transom_requests_in_flight") == 0
    async with proxied("http://127.0.0.1:9/v1") as proxy, RawClient(proxy.url) as client:
        assert (await client.post(CHAT, chat("x"))).status == 502
        scrape = await scraped(proxy.url, after=1)
    assert scrape.series("transom_requests_total", "outcome") == {"upstream_unreachable": 1}


async def test_requests_to_our_own_endpoints_are_not_counted() -> None:
    async with proxied("http://127.0.0.1:9/v1") as proxy, RawClient(proxy.url) as client:
        for path in ("/-/healthz", "/-/readyz", "/-/state", "/-/nothing", "/-/metrics"):
            await client.get(path)
        assert (await client.request("HEAD", "/-/metrics")).status == 200
        assert (await client.post("/-/metrics", b"")).status == 405
        scrape = await scraped(proxy.url)
    assert scrape.value("transom_requests_total") == 0
    assert scrape.value("transom_requests_in_flight") == 0


# --- bypasses -----------------------------------------------------------------------------------------------------


BYPASSES = {
    "no JSON": (b"no json", None, "not_json"),
    "no list of messages": (b'{"messages": 1}', None, "no_messages"),
    "a store that fails": (LONG, remembering("recall", FAULT), "store"),
    "a store that hangs": (LONG, remembering("recall", None), "deadline"),
    "measuring that fails": (LONG, measuring(FAULT), "measure"),
}


@pytest.mark.parametrize(("body", "parts", "reason"), BYPASSES.values(), ids=BYPASSES)
async def test_b130_what_passes_unmanaged_is_counted_by_its_reason(
    body: bytes, parts: Callable[[], object] | None, reason: str
) -> None:
    made = parts() if parts else None
    scrape = await served(body, parts=made, policy=DROPPED, manage_deadline=0.05)
    assert scrape.series("transom_bypasses_total", "reason") == {reason: 1}
    assert scrape.series("transom_requests_total", "outcome") == {"2xx": 1}
    assert scrape.value("transom_original_tokens_total") == 0


async def test_b124_endpoints_that_generate_and_are_not_managed_are_counted() -> None:
    scrape = await served(b"{}", b"{}", path="/v1/responses")
    assert scrape.series("transom_unmanaged_requests_total", "endpoint") == {"responses": 2}
    assert scrape.series("transom_bypasses_total", "reason") == {"endpoint_not_managed": 2}


async def test_a_model_that_is_not_to_be_managed_is_no_bypass() -> None:
    scrape = await served(chat("x"), policy=ModelPolicy(mode=Mode.OFF))
    assert scrape.series("transom_requests_total", "mode") == {"off": 1}
    assert scrape.value("transom_bypasses_total") == 0


# --- tokens, cuts, side calls -------------------------------------------------------------------------------------


async def test_tokens_are_those_of_the_client_those_sent_and_those_that_the_upstream_reports() -> None:
    scrape = await served(LONG, policy=DROPPED)
    original = scrape.value("transom_original_tokens_total", model="m")
    forwarded = scrape.value("transom_forwarded_tokens_total", model="m")
    assert original > 4000 > 3500 > forwarded > 0
    assert scrape.value("transom_saved_tokens_total") == original - forwarded
    assert scrape.value("transom_reported_prompt_tokens_total") == 1000
    assert scrape.value("transom_reported_completion_tokens_total") == 5
    assert scrape.value("transom_reported_cached_tokens_total") == 600
    assert scrape.value("transom_estimate_ratio_count", model="m", basis="model") == 1
    assert scrape.value("transom_estimate_ratio_sum") == pytest.approx(1000 / forwarded)


async def test_an_upstream_that_reports_nothing_cached_has_no_such_series() -> None:
    told = peers.completion(peers.text_message("Hello."), usage=peers.usage(1000, 5))
    scrape = await served(LONG, otherwise=json_answer(told))
    assert scrape.series("transom_reported_cached_tokens_total", "model") == {}
    assert scrape.series("transom_reported_prompt_tokens_total", "model") == {"m": 1000}


async def test_a_cut_is_counted_when_it_is_made_and_not_as_long_as_it_lasts() -> None:
    longer = json.loads(LONG)
    longer["messages"] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    scrape = await served(LONG, json.dumps(longer).encode(), policy=DROPPED)
    assert scrape.series("transom_compactions_total", "outcome") == {"fits": 1}
    assert scrape.value("transom_compaction_removed_tokens_total") > 500
    assert scrape.value("transom_compaction_duration_seconds_count") == 1
    assert scrape.series("transom_request_actions_total", "action") == {"drop": 2}
    assert scrape.value("transom_added_latency_seconds_count", phase="before") == 2
    assert scrape.value("transom_added_latency_seconds_count", phase="after") == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_side_calls_are_counted_with_their_time_and_tokens(fails: bool) -> None:
    said = "The user said word, the assistant said word."
    summary = json_answer(peers.completion(peers.text_message(said), usage=peers.usage(700, 30)))
    refusal = json_answer({"error": {"message": "no"}}, status=400)

    def answer(request: peers.Request) -> peers.Answer:
        if is_side_call(request):
            return refusal if fails else summary
        return json_answer(WHOLE)

    scrape = await served(LONG, otherwise=answer, policy=SUMMARISED, side_calls=SideCalls(attempts=1))
    calls = 1 if fails else 4  # the history is far longer than the window, and is summarised in parts
    assert scrape.series("transom_side_calls_total", "outcome") == {"status_400" if fails else "used": calls}
    assert scrape.value("transom_side_call_duration_seconds_count") == calls
    tokens = {} if fails else {"prompt": 700 * calls, "completion": 30 * calls}
    assert scrape.series("transom_side_call_tokens_total", "kind") == tokens
    assert scrape.series("transom_request_actions_total", "action").keys() == {
        "drop" if fails else "summarize"
    }


async def test_how_much_of_a_prompt_repeats_the_one_before_is_counted() -> None:
    first, second = words("one"), words("two")
    grown = chat(first, second, "And?")
    scrape = await served(
        chat(first), grown, chat(first, second, "And?", "Yes.", "Go on.", system="Be long.")
    )
    told = scrape.series("transom_prompts_total", "beginning")
    assert told == {"first": 1, "extended": 1, "changed": 1}
    once = scrape.value("transom_extended_tokens_total")
    assert 0 < once < scrape.value("transom_forwarded_tokens_total") / 2


# --- models -------------------------------------------------------------------------------------------------------


async def test_factor_and_window_of_a_model_are_told_with_the_windows_source() -> None:
    scrape = await served(chat(words("one")), policy=ModelPolicy(window=9000))
    assert scrape.value("transom_window_tokens", model="m", source="configured") == 9000
    assert scrape.value("transom_calibration_factor", model="m") > 0


def test_a_window_from_elsewhere_takes_the_place_of_the_old_one() -> None:
    metrics = Metrics()
    for window, source in ((9000, "configured"), (4000, "refusal")):
        metrics.note(finished(structs.replace(VERDICT, window=window, window_source=source)))
    scrape = exposition.read(metrics.exposed().decode())
    assert scrape.series("transom_window_tokens", "source") == {"refusal": 4000}


async def test_b131_names_that_a_client_makes_up_are_no_labels_before_they_are_answered_well() -> None:
    refusal = json_answer({"error": {"message": "no such model"}}, status=404)
    scrape = await served(chat(words("one"), model=MARKER), otherwise=refusal)
    assert MARKER not in scrape.text


VERDICT = Verdict(
    "m",
    Mode.MANAGE,
    window=9000,
    window_source="configured",
    original=2000,
    forwarded=2000,
    raw=2000,
    factor=1.0,
    status=200,
    usage=Usage(2000, 5),
    complete=True,
)


def finished(verdict: Verdict = VERDICT, reason: str = "", bypass: str = "") -> Finished:
    """A request that went well."""
    beginning = Beginning(Repeats.FIRST)
    return Finished(Mode.MANAGE, 200, True, reason, bypass, 1.0, verdict, Added(0.001, 0.0), beginning)


def test_b131_labels_are_bounded_whatever_comes() -> None:
    metrics = Metrics()
    for number in range(500):
        word = f"word-{number}"
        verdict = structs.replace(VERDICT, model=word, actions=f"{word}={number},none")
        metrics.note(finished(verdict, reason=word, bypass=word))
        metrics.note_side_call(word, None, 1.0)
    scrape = exposition.read(metrics.exposed().decode())
    models = scrape.series("transom_original_tokens_total", "model")
    assert len(models) == MOST_MODELS + 1
    assert models["other"] == 2000 * (500 - MOST_MODELS)
    for name, label in (
        ("transom_requests_total", "outcome"),
        ("transom_bypasses_total", "reason"),
        ("transom_request_actions_total", "action"),
        ("transom_side_calls_total", "outcome"),
    ):
        assert len(scrape.series(name, label)) <= 61
    assert set(scrape.series("transom_calibration_factor", "model")) == set(models) - {"other"}


@pytest.mark.parametrize("name", ["", "\ud800", 'a"b\\c\nd', "x" * 100_000, "é", "other"])
def test_any_name_of_a_model_can_be_exposed(name: str) -> None:
    metrics = Metrics()
    metrics.note(finished(structs.replace(VERDICT, model=name)))
    scrape = exposition.read(metrics.exposed().decode())
    (label,) = scrape.series("transom_original_tokens_total", "model")
    assert 0 < len(label) <= 100
    assert scrape.value("transom_original_tokens_total") == 2000


# --- the store ----------------------------------------------------------------------------------------------------


def test_troubles_of_the_store_are_counted_where_they_are_logged() -> None:
    metrics, said = Metrics(), []
    tell = metrics.hearing(lambda event, **facts: said.append((event, facts)))
    before = exposition.read(metrics.exposed().decode())
    assert before.series("transom_store_errors_total", "event") == dict.fromkeys(
        ("store_down", "store_gone", "store_set_aside"), 0
    )
    tell("store_down", reason="timeout")
    tell("store_back", seconds=1)
    after = exposition.read(metrics.exposed().decode())
    assert after.value("transom_store_errors_total") == after.value(
        "transom_store_errors_total", event="store_down"
    )
    assert said == [("store_down", {"reason": "timeout"}), ("store_back", {"seconds": 1})]


@pytest.mark.parametrize("answers", [True, False])
def test_whether_the_store_answers_is_asked_when_somebody_wants_to_know(answers: bool) -> None:
    metrics = Metrics()
    metrics.watch_store(lambda: answers)
    assert exposition.read(metrics.exposed().decode()).value("transom_store_up") == answers
