"""Traces: what a collector gets of a request and its steps, what an upstream hears of them, and what nobody does."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Flags, SideCalls, load
from proxy.config.values import Telemetry
from proxy.context.policy import Mode, ModelPolicy
from proxy.errors import ConfigError
from tests.config_files import UPSTREAM, URL, only_mistake, read
from tests.edge.proxied import memories, proxied
from tests.integration.test_side_calls import CHAT, PATIENT, POLICY, post, strict, talk
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.collector import TAKEN, Collected, Collector
from tests.peers.scripted import Request
from tests.peers.upstream import Cut, ScriptedUpstream, bytes_answer, json_answer, raw_answer, sse_answer

ROOT = Path(__file__).parents[2]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
PARENT = ("traceparent", f"00-{TRACE}-{CALLER}-01")
UNSAMPLED = ("traceparent", f"00-{TRACE}-{CALLER}-00")
STATE = ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
KEY = ("Authorization", "Bearer sk-swordfish")
BODY = b'{"model":"m","messages":[{"role":"user","content":"The parrot is dead."}]}'
WHOLE = peers.completion(peers.text_message("No, it is resting."), usage=peers.usage(50, 5))
ANSWER = json_answer(WHOLE)
BIG = ModelPolicy(window=100_000)


def to(collector: Collector, **fields: str) -> Telemetry:
    return Telemetry(collector.url, **fields)


def parents(spans: tuple[Collected, ...]) -> set[tuple[str, str]]:
    """Each span's name with that of its parent, or with nothing."""
    names = {span.id: span.name for span in spans}
    return {(span.name, names.get(span.parent, "")) for span in spans}


def context(heard: Request) -> list[tuple[str, str, bool]]:
    """What a server heard of traces: trace, span, and whether it is sampled."""
    fields = [value.split("-") for value in heard.headers_named("traceparent")]
    return [(trace, span, bool(int(flags, 16) & 1)) for _, trace, span, flags in fields]


async def test_a_chat_is_a_trace_of_its_steps_and_the_upstream_goes_on_from_its_span() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            answer = await post(proxy.url, BODY, KEY)
            (heard,) = upstream.requests
            (event,) = proxy.events()
        assert answer.json() == WHOLE
        request, call = collector.one("request"), collector.one("upstream")
        steps = [span.name for span in collector.spans]
        assert steps == ["request", "look up", "discover", "measure", "plan", "upstream", "relay", "learn"]
        assert parents(collector.spans) == {("request", "")} | {(name, "request") for name in steps[1:]}
        assert {span.trace for span in collector.spans} == {event["trace_id"]}
        assert context(heard) == [(request.trace, call.id, True)]
        assert (request.kind, call.kind, collector.one("measure").kind) == ("server", "client", "internal")
        assert request.began <= call.began <= call.ended <= collector.one("relay").began < request.ended
        assert collector.requests[0].target == "/v1/traces"
        assert collector.services == {"transom"}


async def test_spans_say_counts_and_fixed_words() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, policy=BIG, telemetry=to(collector, service_name="east")) as proxy,
        ):
            await post(proxy.url, BODY, KEY, ("x-request-id", "r1"))
        said = collector.one("request").attributes
        assert said["http.request.method"] == "POST"
        assert said["http.response.status_code"] == 200
        assert said["gen_ai.request.model"] == "m"
        assert said["transom.request_id"] == "r1"
        assert (said["transom.mode"], said["transom.actions"]) == ("manage", "none")
        assert (said["transom.window"], said["transom.complete"]) == (100_000, True)
        sent = {"http.response.status_code": 200, "transom.refused": False, "transom.bytes": len(BODY)}
        assert collector.one("upstream").attributes == sent
        counted = {"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 5}
        assert collector.one("relay").attributes == {"transom.complete": True, **counted}
        assert collector.services == {"east"}


async def test_a_trace_goes_on_from_that_of_the_client_with_its_state() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            await post(proxy.url, BODY, PARENT, STATE, ("Baggage", "a=1"))
            (heard,) = upstream.requests
        request, call = collector.one("request"), collector.one("upstream")
        assert (request.trace, request.parent) == (TRACE, CALLER)
        assert context(heard) == [(TRACE, call.id, True)]
        assert heard.headers_named("tracestate") == [STATE[1]]
        assert heard.header("baggage") == "a=1"


ODD_PARENTS = (
    [("traceparent", "00-zz")],
    [("traceparent", f"00-{'0' * 32}-{CALLER}-01")],
    [PARENT, ("TraceParent", f"00-{TRACE}-{'1' * 16}-01")],
    [("traceparent", "00-" + "a" * 600)],
    [STATE],
)


@pytest.mark.parametrize("fields", ODD_PARENTS)
async def test_a_context_that_is_none_begins_a_new_trace(fields: list[tuple[str, str]]) -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            assert (await post(proxy.url, BODY, *fields)).status == 200
            (heard,) = upstream.requests
        request = collector.one("request")
        assert (request.parent, request.trace == TRACE) == ("", False)
        assert context(heard) == [(request.trace, collector.one("upstream").id, True)]
        assert heard.headers_named("tracestate") == []


async def test_what_the_client_does_not_sample_is_passed_on_and_not_collected() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            await post(proxy.url, BODY, UNSAMPLED)
            (heard,) = upstream.requests
        ((trace, _, is_sampled),) = context(heard)
        assert (trace, is_sampled) == (TRACE, False)
        assert not collector.spans


@pytest.mark.parametrize("mode", [Mode.MANAGE, Mode.OFF])
async def test_b74_without_a_collector_the_clients_context_passes_untouched(mode: Mode) -> None:
    odd = [("X-A", "1"), ("TraceParent", "  what-ever"), ("tracestate", ""), STATE, ("X-B", "2")]
    async with (
        ScriptedUpstream([ANSWER]) as upstream,
        proxied(upstream.url, policy=ModelPolicy(mode=mode)) as proxy,
    ):
        await post(proxy.url, BODY, *odd)
        (heard,) = upstream.requests
        (event,) = proxy.events()
    names = {name.lower() for name, _ in odd}
    passed = [(name, value) for name, value in heard.headers if name.lower() in names]
    assert passed == [(name, value.strip()) for name, value in odd]
    assert "trace_id" not in event


async def test_what_is_no_chat_has_spans_of_its_call_and_its_relaying() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([json_answer({"data": []}, status=404)]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
            RawClient(proxy.url) as client,
        ):
            await client.get("/v1/models/secret-name?key=sk-swordfish", [PARENT])
            assert (await client.get("/-/state")).status == 200
            (heard,) = upstream.requests
        assert [span.name for span in collector.spans] == ["request", "upstream", "relay"]
        assert parents(collector.spans) == {("request", ""), ("upstream", "request"), ("relay", "request")}
        call = collector.one("upstream")
        assert (call.trace, call.attributes) == (TRACE, {"http.response.status_code": 404})
        assert context(heard) == [(TRACE, call.id, True)]
        assert not collector.one("request").failed
        assert b"secret-name" not in collector.raw
        assert b"swordfish" not in collector.raw


async def test_each_request_of_a_connection_has_a_trace_of_its_own() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream(otherwise=ANSWER) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
            RawClient(proxy.url) as client,
        ):
            for _ in range(3):
                await client.post(CHAT, BODY)
        requests = collector.named("request")
        assert len({span.trace for span in requests}) == len(requests) == 3
        assert {span.parent for span in requests} == {""}


# --- side calls -----------------------------------------------------------------------------------------------------


async def test_a_side_call_has_a_span_of_its_own_below_that_of_who_waits_for_it() -> None:
    async with Collector() as collector:
        async with (
            strict() as upstream,
            proxied(upstream.url, policy=POLICY, side_calls=PATIENT, telemetry=to(collector)) as proxy,
        ):
            answer = await post(proxy.url, talk(12), PARENT, STATE, KEY)
            (side,), (main,) = upstream.side_calls, upstream.main_calls
        assert (answer.header("x-context-actions") or "").startswith("summarize=")
        assert {
            ("summary", "request"),
            ("side call", "summary"),
            ("save", "request"),
            ("plan", "request"),
        } <= parents(collector.spans)
        call, waiting = collector.one("side call"), collector.one("summary")
        assert context(side.request) == [(TRACE, call.id, True)]
        assert side.request.headers_named("tracestate") == [STATE[1]]
        assert context(main.request) == [(TRACE, collector.one("upstream").id, True)]
        assert waiting.attributes["transom.outcome"] == "used"
        assert call.attributes["transom.outcome"] == "answered"
        assert call.attributes["gen_ai.usage.input_tokens"] > 0
        assert waiting.began <= call.began <= call.ended <= waiting.ended
        assert collector.one("request").attributes["transom.actions"].startswith("summarize=")
        for secret in (
            b"swordfish",
            b"Question",
            b"what and why",
            b"so and so",
            b"Be brief",
            b"working memory",
        ):
            assert secret not in collector.raw


async def test_a_side_call_that_fails_says_its_fixed_word_alone() -> None:
    broken = json_answer({"error": {"message": "swordfish"}}, status=400)
    async with Collector() as collector:
        async with (
            strict(side_failures=[broken]) as upstream,
            proxied(upstream.url, policy=POLICY, side_calls=PATIENT, telemetry=to(collector)) as proxy,
        ):
            assert (await post(proxy.url, talk(12))).status == 200
        assert collector.one("side call").attributes["transom.outcome"] == "status_400"
        assert collector.one("summary").attributes["transom.outcome"] == "status_400"
        assert b"swordfish" not in collector.raw


async def test_b28_a_host_of_its_own_for_summaries_hears_of_no_trace() -> None:
    async with Collector() as collector, strict() as other:
        aside = SideCalls(base_url=other.base_url, model="small")
        async with (
            strict() as upstream,
            proxied(upstream.url, policy=POLICY, side_calls=aside, telemetry=to(collector)) as proxy,
        ):
            assert (await post(proxy.url, talk(12), PARENT, STATE)).status == 200
        (side,) = other.side_calls
        assert collector.one("side call").trace == TRACE
        assert TRACE.encode() not in side.request.head
        assert side.request.headers_named("tracestate") == []


# --- what goes wrong ------------------------------------------------------------------------------------------------


async def test_an_upstream_that_breaks_off_fails_the_spans_that_saw_it() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([raw_answer(Cut.RESET), raw_answer(Cut.RESET)]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            assert (await post(proxy.url, BODY)).status == 502
        assert [span.name for span in collector.spans if span.failed] == ["request", "upstream"]
        assert collector.one("request").attributes["transom.reason"] == "upstream_unreachable"


async def test_a_client_that_leaves_ends_its_spans() -> None:
    gate = asyncio.Event()
    stream = sse_answer(peers.chunks(peers.text_message("Hello there."))).pausing(10, gate)
    async with Collector() as collector:
        async with (
            ScriptedUpstream([stream]) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            async with RawClient(proxy.url) as client:
                await client.start(CHAT, BODY[:-1] + b',"stream":true}')
                await client.read_head()
            await upstream.until(upstream.client_gone.is_set)
        assert collector.one("relay").failed
        assert collector.one("request").attributes["transom.reason"] == "client_gone"
        assert not collector.one("request").failed


class _Broken:
    """Measures nothing."""

    def count(self, text: str, encoding: str) -> int:
        raise RuntimeError("The parrot is dead.")

    async def sizes(self, *_: object) -> Any:
        raise RuntimeError("The parrot is dead.")


async def test_a_fault_of_our_own_fails_its_span_and_its_words_go_nowhere() -> None:
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, parts=(_Broken(), memories()), telemetry=to(collector)) as proxy,
        ):
            answer = await post(proxy.url, BODY)
        assert answer.header("x-context-actions") == "bypass=measure"
        assert [span.name for span in collector.spans if span.failed] == ["measure"]
        assert collector.one("request").attributes["transom.reason"] == "measure"
        assert {("upstream", "request"), ("relay", "request")} <= parents(collector.spans)
        assert b"parrot" not in collector.raw


NEVER = asyncio.Event()
BAD_COLLECTORS = {
    "500": json_answer({"x": "swordfish"}, status=500),
    "503": json_answer({"x": "swordfish"}, status=503),
    "reset": raw_answer(Cut.RESET),
    "garbage": raw_answer(b"swordfish\r\n\r\n", Cut.CLOSE),
    "silent": raw_answer(NEVER),
}


@pytest.mark.parametrize("answer", BAD_COLLECTORS.values(), ids=BAD_COLLECTORS)
async def test_a_collector_that_fails_harms_no_request_and_delays_no_stop(answer: peers.Answer) -> None:
    loop = asyncio.get_running_loop()
    async with Collector(otherwise=answer) as collector:
        async with (
            ScriptedUpstream(otherwise=ANSWER) as upstream,
            proxied(upstream.url, telemetry=to(collector), grace=1.0) as proxy,
        ):
            for _ in range(20):
                assert (await post(proxy.url, BODY)).json() == WHOLE
            began = loop.time()
        assert loop.time() - began < 5.0
        assert collector.requests
        assert "swordfish" not in proxy.log


async def test_nobody_listening_where_the_collector_should_is_told_in_the_log_and_nowhere_else() -> None:
    async with Collector() as gone:
        pass
    async with (
        ScriptedUpstream([ANSWER]) as upstream,
        proxied(upstream.url, telemetry=Telemetry(gone.url), grace=0.5) as proxy,
    ):
        assert (await post(proxy.url, BODY)).json() == WHOLE
    assert {event["library"].partition(".")[0] for event in proxy.events("library")} == {"opentelemetry"}


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    gate = asyncio.Event()
    async with Collector([replace(TAKEN, before=gate)]) as collector:
        async with (
            ScriptedUpstream(otherwise=ANSWER) as upstream,
            proxied(upstream.url, telemetry=to(collector)) as proxy,
        ):
            await post(proxy.url, BODY)
            await collector.received(1)
            for _ in range(20):
                assert (await post(proxy.url, BODY)).status == 200
            gate.set()
        assert len(collector.spans) == 4 + 8, "what was under way, and the newest that the queue holds"


async def test_what_ended_last_is_sent_before_the_process_stops() -> None:
    gate = asyncio.Event()
    async with Collector() as collector:
        async with ScriptedUpstream([bytes_answer(b"{}").pausing(1, gate)]) as upstream:
            running = proxied(upstream.url, telemetry=to(collector), grace=10.0)
            proxy = await running.__aenter__()
            waiting = asyncio.create_task(post(proxy.url, BODY))
            await upstream.received(1)
            stopping = asyncio.create_task(running.__aexit__(None, None, None))
            gate.set()
            await asyncio.gather(waiting, stopping)
        assert collector.one("request").attributes["transom.complete"] is True


# --- where it is configured -----------------------------------------------------------------------------------------


def test_the_environment_names_the_collector_where_the_file_does_not(tmp_path: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/", "OTEL_SERVICE_NAME": "east"}
    assert read(tmp_path, UPSTREAM).telemetry == Telemetry()
    assert read(tmp_path, UPSTREAM, environ=environ).telemetry == Telemetry("http://h:4318", "east")
    text = f"{UPSTREAM}telemetry: {{otlp_endpoint: 'https://other/otlp'}}"
    assert read(tmp_path, text, environ=environ).telemetry == Telemetry("https://other/otlp", "east")
    assert load(None, Flags(upstream=URL), environ).telemetry == Telemetry("http://h:4318", "east")
    empty = {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_SERVICE_NAME": ""}
    assert read(tmp_path, UPSTREAM, environ=empty).telemetry == Telemetry()


@pytest.mark.parametrize(
    "url", ["h:4318", "ftp://h", "http://", "http://u:swordfish@h", "http://h/?a=swordfish", "http://h:x"]
)
def test_what_is_no_collector_is_a_mistake_that_repeats_no_secret(tmp_path: Path, url: str) -> None:
    in_file = only_mistake(tmp_path, f"{UPSTREAM}telemetry: {{otlp_endpoint: '{url}'}}")
    assert "transom.yaml:2: telemetry.otlp_endpoint: the value is no base URL of" in str(in_file)
    outside = only_mistake(tmp_path, UPSTREAM, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert str(outside).startswith("environment: OTEL_EXPORTER_OTLP_ENDPOINT: the value is no base URL")
    assert "swordfish" not in f"{in_file}{outside}"


WITHOUT = "import sys; sys.modules['opentelemetry'] = None; from proxy.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize("command", ["serve", "check"])
def test_without_the_extra_a_collector_is_refused_when_it_is_needed(command: str) -> None:
    words = [sys.executable, "-c", WITHOUT, command, "--upstream", URL, "--listen", "127.0.0.1:0"]
    environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    if command == "check":
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "otlp_endpoint: http://127.0.0.1:4318" in ended.stdout
        return
    assert ended.returncode == 2
    assert "telemetry.otlp_endpoint: the packages of OpenTelemetry" in ended.stderr
    assert "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" in ended.stderr


async def test_settings_of_the_library_that_cannot_be_are_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    async with Collector() as collector, ScriptedUpstream() as upstream:
        with pytest.raises(ConfigError, match="OTEL_"):
            async with proxied(upstream.url, telemetry=to(collector)):
                pass


@pytest.mark.parametrize("path", ["", "/v1/traces", "/otlp"])
async def test_spans_go_where_the_protocol_says_below_the_base_url(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    async with Collector() as collector:
        async with (
            ScriptedUpstream([ANSWER]) as upstream,
            proxied(upstream.url, telemetry=Telemetry(f"{collector.url}{path}")) as proxy,
        ):
            await post(proxy.url, BODY)
        (sent,) = collector.requests
        assert sent.target == f"{path.removesuffix('/v1/traces')}/v1/traces"
        assert sent.header("x-team") == "blue"
        assert collector.one("request").kind == "server"
