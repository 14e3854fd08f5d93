"""What the log never says: keys and text, at any level, in any value, on any path."""

import asyncio
import io
import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from proxy.config import Config, LogFormat, LogLevel, LogOptions, Secret, is_loopback
from proxy.config import Upstream as UpstreamOptions
from proxy.context.conversation import Message
from proxy.context.tokens import Size
from proxy.edge import logs
from tests.edge.proxied import Lettered, Watched, memories, proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient
from tests.peers.upstream import Answer, Cut, Framing, ScriptedUpstream, bytes_answer, json_answer, raw_answer

CHAT = "/v1/chat/completions"
SECRET = "s3cr3t-value"
WORD = "marker-word"
NAMES = (
    "Authorization",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    "x-transom-token",
    "Cookie",
    "Proxy-Authorization",
)
FIELDS = [(name, f"Bearer {SECRET}" if name == "Authorization" else SECRET) for name in NAMES]
QUERY = f"?key={SECRET}&api_key={SECRET}&token={SECRET}"
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": f"{WORD} " * 50}], "stream": True}
).encode()


def written(level: LogLevel = LogLevel.DEBUG, form: LogFormat = LogFormat.JSON) -> tuple[Any, io.StringIO]:
    """A log, and where it writes."""
    stream = io.StringIO()
    return logs.build(LogOptions(level, form), stream), stream


class Unread(io.StringIO):
    """A pipe that nobody reads any more."""

    def flush(self) -> None:
        """Fail, as the kernel has it."""
        raise BrokenPipeError


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
async def test_a_log_that_cannot_be_written_is_no_fault_of_who_writes_it(form: LogFormat) -> None:
    logs.build(LogOptions(LogLevel.INFO, form), Unread()).error("listening", url="http://h")


async def test_where_the_log_cannot_be_written_requests_are_answered_and_counted_all_the_same() -> None:
    async with (
        ScriptedUpstream([json_answer({})]) as upstream,
        proxied(upstream.url, watched=Watched(written=Unread())) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.get("/v1/models")
        health, metrics = await client.get("/-/healthz"), await client.get("/-/metrics")
    assert health.status == 200
    assert b"\ntransom_requests_in_flight 0.0\n" in metrics.body


VALUES = [
    {"headers": dict.fromkeys(NAMES, SECRET)},
    {"headers": [(name, SECRET) for name in NAMES]},
    {"headers": [(name.lower().encode(), SECRET.encode()) for name in NAMES]},
    {"headers": repr([(name, SECRET) for name in NAMES])},
    {"headers": repr([(name.encode(), SECRET.encode()) for name in NAMES])},
    {"headers": "\r\n".join(f"{name}: {SECRET}" for name in NAMES)},
    {"url": f"http://h/v1/models{QUERY}"},
    {"url": f"http://h/v1/models?x=1&key={SECRET}#part"},
    {"what": f"sent Bearer {SECRET}, got 401"},
    {"what": ValueError(SECRET)},
    {"Set-Cookie": SECRET},
    {"deep": {"deeper": [{"authorization": SECRET}]}},
]


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
@pytest.mark.parametrize("values", VALUES, ids=range(len(VALUES)))
def test_b131_a_credential_in_any_value_of_an_event_is_hidden(
    values: dict[str, object], form: LogFormat
) -> None:
    log, stream = written(form=form)
    log.debug("event", **values)
    assert "event" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_numbers_and_fixed_words_are_left_alone() -> None:
    log, stream = written()
    log.info(
        "request", tokens=5, key=None, seconds=0.5, complete=True, tokenizer="o200k_base", spent={"send": 1}
    )
    told = json.loads(stream.getvalue())
    assert (told["tokens"], told["key"], told["seconds"], told["complete"]) == (5, None, 0.5, True)
    assert (told["tokenizer"], told["spent"]) == ("o200k_base", {"send": 1})


ODD = "a\x1b[2J\x07\u009b31m\r\n{}\u202e\u2028\udcff b"
"""Colours, a bell, a new line, writing from right to left, half a character."""


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
def test_what_a_client_chooses_neither_controls_a_terminal_nor_begins_a_line(form: LogFormat) -> None:
    log, stream = written(form=form)
    log.info("request", model=ODD, path={"deep": [ODD]}, header=(b"x", ODD.encode("utf-8", "replace")))
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "[2J" in line


@pytest.mark.parametrize("odd", ["\x7f", "\udcff", "\u2028", "\x1b"])
def test_so_does_no_character_of_a_plain_event(odd: str) -> None:
    log, stream = written()
    log.info("request", path=f"/v1/{odd}", spent={"send": 0.1})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert json.loads(line)["path"] == "/v1/" + odd.encode("unicode_escape").decode()


@pytest.mark.parametrize("named", ["tokens", "Tokens", "total_tokens"])
def test_a_name_of_ours_hides_no_credential_beside_it(named: str) -> None:
    log, stream = written()
    log.info("request", **{named: 5}, path=f"/v1?{named}&access_token={SECRET}", tokens_of=f"Bearer {SECRET}")
    assert json.loads(stream.getvalue())[named] == 5
    assert SECRET not in stream.getvalue()


async def test_no_more_of_a_path_is_logged_than_tells_what_it_is() -> None:
    async with ScriptedUpstream() as upstream, proxied(upstream.url) as proxy, RawClient(proxy.url) as client:
        await client.request("GET", "/v1/" + "x" * 60_000)
        assert len(proxy.log) < 3000


def test_of_an_exception_only_type_and_place_are_written() -> None:
    log, stream = written()
    try:
        raise ValueError(SECRET)
    except ValueError as fault:
        log.exception("one", exc_info=fault)
        log.exception("two")
        log.exception("three", exc_info=(type(fault), fault, fault.__traceback__))
    for line in stream.getvalue().splitlines():
        told = json.loads(line)
        assert told["exception"] == "ValueError"
        assert told["place"].startswith("test_logs.py:")
    assert SECRET not in stream.getvalue()


def test_a_level_leaves_out_what_is_below_it() -> None:
    log, stream = written(LogLevel.WARNING)
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


async def test_records_of_libraries_become_events_without_their_arguments_and_only_for_a_time() -> None:
    log, stream = written()
    library = logging.getLogger("aiohttp.server")
    with logs.adopted(log):
        library.error("Error handling request from %s", SECRET, exc_info=ValueError(SECRET))
        library.warning(f"wrote it out: {SECRET}")
        asyncio.get_running_loop().call_exception_handler({"message": f"failed in <{SECRET}>"})
    library.error("not any more")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["what"] for line in told] == ["Error handling request from %s", "wrote it out", "failed in"]
    assert SECRET not in stream.getvalue()


class Quoting(Lettered):
    """Fails with what it was given in its message."""

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        raise ValueError(messages[0].text + SECRET)


ANSWERS = {
    "answered": json_answer({"choices": [], "said": WORD}),
    "streamed": Answer(
        200, peers.SSE_HEADERS, (b"data: {no json " + WORD.encode() + b"\n\n",), Framing.CHUNKED
    ),
    "refused": bytes_answer(
        WORD.encode(), status=401, headers=(("WWW-Authenticate", SECRET), ("Set-Cookie", SECRET))
    ),
    "hung up": raw_answer(Cut.RESET),
    "garbage": raw_answer(WORD.encode() + b"\r\n\r\n", Cut.CLOSE),
    "cut short": Answer(200, peers.SSE_HEADERS, (b"data: 1", Cut.CLOSE), Framing.CHUNKED),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("fails", [False, True], ids=("", "failing inside"))
@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/-/unknown"])
async def test_b131_b132_neither_key_nor_text_is_in_the_log_or_in_an_error_of_ours(
    answer: Answer, fails: bool, target: str
) -> None:
    parts = (Quoting() if fails else Lettered(), memories())
    options = UpstreamOptions("", api_key=Secret(SECRET))
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        proxied(upstream.url, options=options, parts=parts) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(target + QUERY, BODY, FIELDS)
        await client.disconnect()
        assert proxy.events()
    assert SECRET not in proxy.log
    assert WORD not in proxy.log
    if response.status in (404, 500, 502):
        assert SECRET.encode() not in response.body
        assert WORD.encode() not in response.body


async def test_b131_what_a_parser_quotes_of_a_bad_request_is_neither_logged_nor_answered() -> None:
    async with proxied("http://127.0.0.1:9/v1") as proxy:
        async with RawClient(proxy.url) as client:
            await client.send(f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization {SECRET}\r\n\r\n".encode())
            colonless = await client.read()
        async with RawClient(proxy.url) as client:
            await client.send(
                f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: {SECRET * 20_000}\r\n\r\n".encode()
            )
            endless = await client.read()
    assert (colonless.status, colonless.json()["error"]["code"]) == (400, "bad_request")
    assert (endless.status, endless.json()["error"]["code"]) == (431, "headers_too_large")
    for response in (colonless, endless):
        assert SECRET.encode() not in response.body
    assert len(proxy.events("library")) == 2
    assert SECRET not in proxy.log


def test_b134_who_is_not_told_where_to_listen_listens_for_this_machine_alone() -> None:
    assert is_loopback(Config(upstream=UpstreamOptions("http://h")).listen)


@pytest.mark.parametrize("own", [[], [("Authorization", "Bearer mine")], [("api-key", "mine")]])
async def test_b134_the_configured_key_is_for_clients_without_one(own: list[tuple[str, str]]) -> None:
    options = UpstreamOptions("", api_key=Secret("configured"))
    async with (
        ScriptedUpstream(otherwise=json_answer({})) as upstream,
        proxied(upstream.url, options=options) as proxy,
        RawClient(proxy.url) as client,
    ):
        for target in (CHAT, "/v1/embeddings"):
            await client.post(target, BODY, own)
        for request in upstream.requests:
            sent = [field for field in request.headers if field[0].lower() in ("authorization", "api-key")]
            assert sent == (own or [("Authorization", "Bearer configured")])


class Fields(msgspec.Struct):
    """Some of an event's."""

    path: str
    tokens: int | None = None


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
@pytest.mark.parametrize(
    ("path", "shows"), [("/v1/x", "/v1/x"), (f"/v1?key={SECRET}", "/v1?key=***"), ("/a\n\ud83d", "/a")]
)
def test_fields_that_are_told_together_are_those_of_the_event_and_hide_as_much(
    form: LogFormat, path: str, shows: str
) -> None:
    log, stream = written(form=form)
    log.info("request", fields=Fields(path, 5))
    text = stream.getvalue()
    assert shows in text
    assert SECRET not in text
    assert text.count("\n") == 1
    if form is LogFormat.JSON:
        event = json.loads(text)
        assert (event["event"], event["level"], event["tokens"]) == ("request", "info", 5)
        assert set(event) == {"event", "level", "timestamp", "path", "tokens"}


def test_what_is_bound_to_a_log_is_told_beside_such_fields() -> None:
    log, stream = written()
    log.bind(upstream=f"Bearer {SECRET}").info("request", fields=Fields("/v1"))
    event = json.loads(stream.getvalue())
    assert (event["path"], event["tokens"], event["upstream"]) == ("/v1", None, "Bearer ***")
