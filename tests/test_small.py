"""Requests that fit for certain: sent as they came, counted only where their answer teaches something."""

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.budget import REFUSAL, Window
from proxy.context.policy import CacheKey, Count, DropPolicy, Mode, ModelPolicy
from proxy.exchange import Accepted, Learn, LookUp, Measure, Refused, Relay, Send, Terms
from proxy.wire.usage import Usage
from tests.desk import Desk
from tests.test_exchange import ODD, body, chat

OPEN = ModelPolicy(window=20_000, reserve_output=100)
SHORT = body(*chat(2))
LONG = body(*chat(12))


def steps(desk: Desk) -> list[type]:
    return [type(command) for command in desk.done]


def test_it_is_looked_up_sent_and_relayed_and_that_is_all() -> None:
    desk = Desk(OPEN, usage=Usage(60, 5))
    tiny = body({"role": "user", "content": "Say hello."})
    verdict = desk.run(tiny)
    assert steps(desk) == [LookUp, Send, Relay]
    assert desk.sent == [tiny]
    assert (verdict.window, verdict.window_source, verdict.actions) == (20_000, "configured", "none")
    assert verdict.forwarded is None
    assert "x-context-tokens" not in dict(verdict.headers())


def test_b73_its_bytes_stay_whatever_they_are() -> None:
    desk = Desk(OPEN)
    desk.run(ODD)
    assert desk.sent == [ODD]


def test_a_stream_is_asked_for_its_usage_all_the_same() -> None:
    desk = Desk(OPEN)
    verdict = desk.run(body(*chat(2), stream=True))
    assert verdict.actions == "include_usage"
    assert json.loads(desk.sent[0])["stream_options"] == {"include_usage": True}
    assert next(command for command in desk.done if isinstance(command, Relay)).strip_usage


def test_one_that_teaches_is_counted_after_it_was_sent() -> None:
    desk = Desk(replace(OPEN, window=100_000), usage=Usage(2_000, 5))
    verdict = desk.run(LONG)
    order = steps(desk)
    assert order.index(Send) < order.index(Relay) < order.index(Measure) < order.index(Learn)
    assert verdict.raw is not None
    assert desk.calibration.samples == 1
    assert desk.anchors


def test_what_it_taught_is_gone_by_in_the_same_conversation() -> None:
    desk = Desk(replace(OPEN, window=100_000), usage=Usage(2_000, 5))
    desk.run(LONG)
    desk.policy = replace(OPEN, window=9_000)
    assert desk.run(LONG).forwarded == 2_000


@pytest.mark.parametrize(
    "policy",
    [
        replace(OPEN, window=None),
        replace(OPEN, window=2 * len(SHORT) - 2),
        replace(OPEN, count=Count.UPSTREAM),
        replace(OPEN, drop=DropPolicy(max_turns=1)),
        replace(OPEN, prompt_cache_key=CacheKey.AUTO),
        replace(OPEN, vision=False),
    ],
    ids=["no window", "too large", "counted upstream", "a limit of turns", "a cache key", "no vision"],
)
def test_whatever_may_ask_for_more_is_counted_first(policy: ModelPolicy) -> None:
    desk = Desk(policy)
    desk.run(SHORT)
    assert steps(desk).index(Measure) < steps(desk).index(Send)


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


@pytest.mark.parametrize(
    "request_body",
    [
        body({"role": "user", "content": [PICTURE]}),
        body({"role": "user", "content": "Hello."}, max_tokens=15_000),
        body(
            {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "user", "content": "And?"}
        ),
    ],
    ids=["a picture", "a large answer", "a broken order"],
)
def test_so_is_a_request_that_needs_more(request_body: bytes) -> None:
    desk = Desk(OPEN)
    desk.run(request_body)
    assert steps(desk).index(Measure) < steps(desk).index(Send)


def test_b61_a_window_that_a_refusal_proved_is_minded_before_it_is_sent() -> None:
    desk = Desk(replace(OPEN, window=100_000, strategies=("drop",)))
    desk.run(LONG)
    who = next(command.who for command in desk.done if isinstance(command, LookUp))
    desk.windows[who] = Window(1_000, REFUSAL)
    verdict = desk.run(LONG)
    assert verdict.window == 1_000
    assert verdict.forwarded is not None
    assert verdict.forwarded <= 1_000


def test_b61_one_that_is_refused_all_the_same_is_counted_planned_and_sent_again() -> None:
    said = (
        "This model's maximum context length is 1000 tokens. However, your messages resulted in 1650 tokens."
    )
    refusal = {"error": {"message": said, "code": "context_length_exceeded"}}
    desk = Desk(
        replace(OPEN, window=100_000, strategies=("drop",)),
        answers=[Refused(400, json.dumps(refusal).encode()), Accepted(200)],
    )
    verdict = desk.run(LONG)
    assert (verdict.status, verdict.window, verdict.recovered) == (200, 1_000, 1)
    assert len(desk.sent) == 2
    assert len([command for command in desk.done if isinstance(command, Relay)]) == 1


def test_b84_one_whose_usage_option_is_refused_is_sent_again_without_it() -> None:
    refusal = {"error": {"message": "Unrecognized request argument supplied: stream_options"}}
    desk = Desk(OPEN, answers=[Refused(400, json.dumps(refusal).encode()), Accepted(200)])
    request = body(*chat(2), stream=True)
    verdict = desk.run(request)
    assert desk.sent[-1] == request
    assert (verdict.status, verdict.actions) == (200, "none")
    assert desk.refuses_usage


@pytest.mark.parametrize("mode", [Mode.MANAGE, Mode.OBSERVE])
def test_any_other_refusal_is_relayed_after_one_call(mode: Mode) -> None:
    desk = Desk(OPEN, answers=[Refused(429, b'{"error":{"message":"slow down"}}')], mode=mode)
    verdict = desk.run(SHORT)
    assert verdict.status == 429
    assert len(desk.sent) == 1


def test_observe_changes_nothing() -> None:
    desk = Desk(OPEN, mode=Mode.OBSERVE)
    request: Any = body(*chat(2), stream=True)
    assert desk.run(request).actions == "none"
    assert desk.sent == [request]


def test_what_an_upstream_adds_to_every_prompt_makes_fewer_of_them_certain() -> None:
    desk = Desk(replace(OPEN, window=16_000))
    for turns in (12, 14, 16, 18, 20):
        desk.usage = Usage(6_000 + desk.measure(body(*chat(turns))).estimated_tokens, 5)
        desk.run(body(*chat(turns)))
    desk.done.clear()
    desk.run(LONG)
    assert steps(desk).index(Measure) < steps(desk).index(Send)


REFUSAL_BODY = json.dumps(
    {
        "error": {
            "message": "This model's maximum context length is 1000 tokens. However, you requested 1650 tokens.",
            "code": "context_length_exceeded",
        }
    }
).encode()


def test_b64_one_that_was_cut_before_goes_on_from_its_checkpoint() -> None:
    desk = Desk(
        replace(OPEN, window=100_000, strategies=("drop",)),
        answers=[Refused(400, REFUSAL_BODY), Accepted(200)],
    )
    desk.run(LONG)
    *before, _ = json.loads(desk.sent[-1])["messages"]
    desk.run(body(*chat(13)))
    assert len(desk.sent) == 3, "and is not refused again"
    assert json.loads(desk.sent[-1])["messages"][: len(before)] == before


class Told(Desk):
    """Where the upstream told a window before."""

    @property
    def terms(self) -> Terms:
        return replace(super().terms, told=Window(100_000, "told"))


def test_b36_a_refusal_of_what_was_sent_is_none_of_what_is_planned_then() -> None:
    desk = Told(
        replace(OPEN, window=None, strategies=("drop",)),
        answers=[Refused(400, REFUSAL_BODY), Accepted(200)],
        discovered=Window(1_000, "told anew"),
    )
    verdict = desk.run(LONG)
    assert (verdict.status, len(desk.sent)) == (200, 2)
    assert verdict.actions.startswith("drop=")


def test_below_a_low_trigger_alone_it_is_certain() -> None:
    desk = Desk(replace(OPEN, window=100_000, compact_at=0.001, compact_to=0.0005, strategies=("drop",)))
    assert "drop=" in desk.run(LONG).actions
