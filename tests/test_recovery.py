"""A main call that was refused as too long: what is learned, what is sent again, and what is passed on as it is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.budget import REFUSAL, SILENT_CUT, Window
from proxy.context.policy import ModelPolicy
from proxy.exchange import Accepted, Command, Learn, Outcome, Refused, Relay, Send, Verdict
from proxy.wire.usage import Usage
from tests.desk import Desk
from tests.test_exchange import body, chat

OPEN = ModelPolicy(reserve_output=100)
SMALL = replace(OPEN, window=4000)


def refusal(text: str, status: int = 400, **fields: Any) -> Refused:
    return Refused(status, json.dumps({"error": {"message": text, **fields}}).encode())


def too_long(window: int, prompt: int) -> Refused:
    window_is = f"This model's maximum context length is {window} tokens."
    said = f"{window_is} However, your messages resulted in {prompt} tokens."
    return refusal(said, code="context_length_exceeded", param="messages")


def test_b61_b64_a_window_that_a_refusal_tells_is_learned_and_the_request_sent_again_within_it() -> None:
    desk = Desk(OPEN, answers=[too_long(1000, 1650), Accepted(200)])
    verdict = desk.run(body(*chat(12)))
    first, second = desk.sent
    assert len(second) < len(first)
    assert "recover=1" in verdict.actions
    assert (verdict.status, verdict.window) == (200, 1000)
    assert verdict.forwarded is not None
    assert verdict.forwarded <= 1000
    assert set(desk.windows.values()) == {Window(1000, REFUSAL)}
    desk.run(body(*chat(13)))
    assert len(desk.sent) == 3, "later requests are cut before they are refused"


def test_b63_a_configured_window_that_a_refusal_proves_too_large_is_lowered() -> None:
    desk = Desk(SMALL, answers=[too_long(1000, 1650), Accepted(200)])
    assert desk.run(body(*chat(12))).window == 1000


@pytest.mark.parametrize("window", [100, 4000, 8000])
def test_a_window_that_is_no_news_or_none_at_all_is_not_believed(window: int) -> None:
    desk = Desk(SMALL, answers=[too_long(window, 1648)])
    desk.run(body(*chat(12)))
    assert desk.windows == {}


def test_the_count_that_a_refusal_tells_is_what_the_next_plan_goes_by() -> None:
    """The upstream counts twice as many tokens as we do, and its window is the configured one."""
    desk = Desk(replace(OPEN, window=2000), answers=[too_long(2000, 3300), Accepted(200)])
    verdict = desk.run(body(*chat(12)))
    assert len(desk.sent) == 2
    assert verdict.raw is not None
    assert verdict.raw <= 1000


def test_b36_nothing_is_sent_twice_unless_it_changed() -> None:
    head = {"role": "system", "content": "s" * 6000}
    desk = Desk(OPEN, answers=[too_long(1000, 1600)])
    request = body(head, {"role": "user", "content": "go"})
    verdict = desk.run(request)
    assert desk.sent == [request]
    assert verdict.status == 400


def test_b36_a_request_is_sent_three_times_at_most() -> None:
    answers = [too_long(window, 2 * window) for window in (3000, 2000, 1000, 500)]
    desk = Desk(OPEN, answers=answers)
    verdict = desk.run(body(*chat(40)))
    assert len(desk.sent) == 3
    assert len(set(desk.sent)) == 3
    assert verdict.status == 400


@pytest.mark.parametrize(
    "answer",
    [
        refusal("Rate limit reached for gpt-4o: Limit 30000 tokens per minute", 429),
        refusal("Invalid image url"),
        Refused(500, b"<html>maximum context length is 1000 tokens</html> bad gateway"),
        Refused(400, b""),
    ],
)
def test_b35_b125_other_refusals_are_passed_on_and_nothing_is_sent_again(answer: Refused) -> None:
    desk = Desk(SMALL, answers=[answer])
    desk.run(body(*chat(4)))
    assert len(desk.sent) == 1
    assert desk.windows == {}


def test_an_overflow_without_a_number_is_tried_once_more_with_a_good_deal_less_and_teaches_nothing() -> None:
    said = refusal("The prompt is too long for this model.", code="context_length_exceeded")
    desk = Desk(OPEN, answers=[said, Accepted(200)])
    verdict = desk.run(body(*chat(24)))
    first, second = desk.sent
    assert len(second) < len(first)
    assert verdict.status == 200
    assert desk.windows == {}


def test_b32_where_the_answer_alone_does_not_fit_its_limit_is_lowered_and_history_stays() -> None:
    said = (
        "This model's maximum context length is 2000 tokens. However, you requested 2900 tokens "
        "(900 in the messages, 2000 in the completion). Please reduce the length of the messages or completion."
    )
    desk = Desk(OPEN, answers=[refusal(said, code="context_length_exceeded"), Accepted(200)])
    desk.run(body(*chat(5), max_tokens=2000))
    first, second = map(json.loads, desk.sent)
    assert second["messages"] == first["messages"]
    assert 0 < second["max_tokens"] <= 1100


def test_b65_an_overflow_as_the_first_event_of_a_stream_is_one_too() -> None:
    data = too_long(1000, 1650).body
    desk = Desk(replace(OPEN, window=5000), answers=[Refused(200, data), Accepted(200)])
    verdict = desk.run(body(*chat(12), stream=True))
    assert "recover=1" in verdict.actions
    assert next(command for command in desk.done if isinstance(command, Send)).peeks


def test_what_was_learned_is_remembered_for_the_tenants_model_alone() -> None:
    desk = Desk(OPEN, answers=[too_long(1000, 1650), Accepted(200)], usage=Usage(900, 5))
    desk.run(body(*chat(12)))
    lessons = [command for command in desk.done if isinstance(command, Learn) and command.window]
    assert [(len(lesson.who), lesson.window) for lesson in lessons] == [(32, Window(1000, REFUSAL))]
    assert len([command for command in desk.done if isinstance(command, Relay)]) == 1


@pytest.mark.parametrize("said", ["word " * 6000, "some line of text\n" * 2000, "x" * 40_000])
def test_a_newest_message_that_was_shortened_too_little_is_shortened_more_after_a_refusal(said: str) -> None:
    """The upstream counts half as many tokens again as we do."""
    desk = Desk(replace(OPEN, window=4000), answers=[too_long(4000, 5200), Accepted(200)])
    verdict = desk.run(body({"role": "user", "content": said}))
    first, second = desk.sent
    assert len(second) < len(first)
    assert (verdict.status, verdict.actions) == (200, "shorten=1,recover=1")
    again = Desk(desk.policy, checkpoints=desk.checkpoints, anchors=desk.anchors)
    again.run(body({"role": "user", "content": said}))
    assert again.sent == [second], "what was learned is what was saved"


def test_a_window_far_below_the_configured_one_serves_the_request_and_is_not_remembered() -> None:
    """Upstreams quote what users wrote, and users write about windows."""
    said = refusal("Content policy: 'why does vLLM say maximum context length is 300 tokens' was blocked")
    desk = Desk(replace(OPEN, window=128_000), answers=[said, Accepted(200)])
    desk.run(body(*chat(40)))
    assert desk.windows == {}


def test_a_window_below_what_the_conversation_was_served_serves_the_request_and_is_not_remembered() -> None:
    """The server came back with a smaller one, or somebody is quoted: what comes next tells."""
    desk = Desk(replace(OPEN, window=32_000), usage=Usage(11_300, 5))
    desk.answers = [Accepted(200), too_long(8000, 11_600), Accepted(200), too_long(8000, 8100), Accepted(200)]
    first, second, *_, last = growing(range(50, 90))
    desk.run(first)
    desk.usage = Usage(1900, 5)
    smaller = desk.run(second)
    assert (smaller.status, smaller.window, desk.windows) == (200, 8000, {})
    again = desk.run(last)
    assert (again.status, again.window) == (200, 8000)
    assert set(desk.windows.values()) == {Window(8000, REFUSAL)}


def test_a_proved_window_is_taken_back_when_more_than_it_has_been_served() -> None:
    desk = Desk(OPEN, answers=[too_long(1000, 1650), Accepted(200)], usage=Usage(900, 5))
    desk.run(body(*chat(12)))
    assert set(desk.windows.values()) == {Window(1000, REFUSAL)}
    desk.usage = Usage(1200, 5)
    desk.run(body(*chat(13)))
    assert desk.windows == {}


def test_where_usage_and_length_are_refused_in_turn_no_body_is_sent_twice() -> None:
    class Server(Desk):
        def perform(self, command: Command) -> Outcome:
            if isinstance(command, Send):
                unknown = refusal("unknown field stream_options")
                return unknown if b"stream_options" in command.body else too_long(1000, 1600)
            return super().perform(command)

    desk = Server(OPEN)
    verdict = desk.run(
        body({"role": "system", "content": "s" * 6000}, {"role": "user", "content": "go"}, stream=True)
    )
    assert len(desk.sent) == len(set(desk.sent)) == 2
    assert "recover" not in verdict.actions


def test_a_refusal_that_changes_nothing_is_not_told_as_a_recovery() -> None:
    head = {"role": "system", "content": "s" * 6000}
    desk = Desk(OPEN, answers=[too_long(1000, 1600)])
    verdict = desk.run(body(head, {"role": "user", "content": "go"}))
    assert verdict.actions == "none"
    assert dict(next(c for c in desk.done if isinstance(c, Relay)).headers)["x-context-actions"] == "none"


# --- silent cuts ---------------------------------------------------------------------------------------------


def growing(turns: range) -> Iterator[bytes]:
    """A conversation that is sent whole each time, a few turns longer than before."""
    said = chat(turns.start)
    for number in turns:
        said += [{"role": "assistant", "content": f"answer {number} " * 50}]
        said += [{"role": "user", "content": f"question {number} " * 50}]
        yield body(*said)


def silently_cut(desk: Desk, window: int, turns: range) -> list[Verdict]:
    """A growing conversation with a server that counts no more than its window, whatever it is sent."""
    verdicts = []
    for number, request in enumerate(growing(turns)):
        true = desk.measure(request).estimated_tokens
        desk.usage = Usage(min(true, window - number % 3 * 40), 5)
        verdicts.append(desk.run(request))
    return verdicts


def test_b51_a_server_that_cuts_prompts_silently_is_found_out_and_its_window_kept_from_then_on() -> None:
    desk = Desk(replace(OPEN, window=50_000))
    verdicts = silently_cut(desk, 3_000, range(10, 30))
    cut = [verdict.seems_cut for verdict in verdicts]
    assert cut.count(True) >= 1
    assert {window.source for window in desk.windows.values()} == {SILENT_CUT}
    last = verdicts[-1]
    assert last.window_source == SILENT_CUT
    assert last.window is not None
    assert 2_800 <= last.window <= 3_000
    assert last.forwarded is not None
    assert last.forwarded <= last.window
    assert last.raw is not None
    assert abs(last.forwarded - last.raw) <= 0.15 * last.raw, "what it reported moved no estimate"


def test_b51_a_window_taken_from_a_silent_cut_is_given_back_when_more_is_counted() -> None:
    desk = Desk(replace(OPEN, window=50_000))
    silently_cut(desk, 3_000, range(10, 30))
    assert desk.windows
    desk.usage = Usage(4_000, 5)
    desk.run(body(*chat(31)))
    assert not desk.windows


def test_b51_a_constant_count_of_a_few_tokens_is_no_window() -> None:
    desk = Desk(OPEN, usage=Usage(300, 5))
    verdicts = [desk.run(request) for request in growing(range(10, 20))]
    assert verdicts[-1].seems_cut
    assert not desk.windows
    assert verdicts[-1].actions == "none"
