"""Clients with machinery of their own: compaction, tools, prefills, structured answers, and what they read of usage.

Rules. Whatever a request has beside its messages, an over-long one is made to fit, and nothing else about it changes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.policy import ElidePolicy, Mode
from proxy.demo.rules import Accepted, Temper
from tests.edge.proxied import Lettered, memories, proxied
from tests.peers.client import RawClient
from tests.peers.upstream import StrictUpstream
from tests.scenarios.messages import (
    DEVELOPER,
    PICTURE,
    QUESTION,
    SYSTEM,
    TASK,
    Message,
    agent,
    call,
    calls,
    filler,
    mixed,
    result,
    said,
    step,
    talk,
    text_of,
    text_part,
    turns,
    user,
)
from tests.scenarios.scene import LADDERS, MEMORY, POLICY, TEMPERS, WINDOW, Scene, askings, once, refusals

CHAT = "/v1/chat/completions"

# --- the client's own compaction ---------------------------------------------------------------------------------

COMPACTION = user(
    "Your task is to create a detailed summary of the conversation so far. Respond with TEXT ONLY.\n\n"
    + filler("Section", 1200)
)
TITLE = user("Write a title of at most five words for this conversation. Reply with the title alone.")


@pytest.mark.parametrize("request_of_client", [COMPACTION, TITLE], ids=["compaction", "title"])
@pytest.mark.parametrize(("rounds", "size", "window"), [(20, 1200, 5000), (40, 1000, 8000)])
def test_b126_the_clients_own_summary_request_over_an_agents_run_costs_elision_and_no_side_call(
    request_of_client: Message, rounds: int, size: int, window: int
) -> None:
    policy = replace(POLICY, window=window, elide=ElidePolicy(keep=1), compact_to=0.6)
    sent = once([*agent(rounds, size), said("Done."), request_of_client], policy)
    assert list(sent.done()) == ["elide"]
    assert sent.side_calls == ()
    assert sent.messages[-1] == request_of_client


@pytest.mark.parametrize("request_of_client", [COMPACTION, TITLE], ids=["compaction", "title"])
@pytest.mark.parametrize("ladder", LADDERS[:3])
@pytest.mark.parametrize("fails", [False, True])
def test_b126_the_clients_own_summary_request_over_a_chat_is_answered_with_its_words_intact(
    request_of_client: Message, ladder: tuple[str, ...], fails: bool
) -> None:
    history = [*talk(30)[:-1], request_of_client]
    sent = Scene(replace(POLICY, strategies=ladder), fails=fails).send(history)
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert text_of(request_of_client) in text_of(sent.messages[-1])
    assert not any(text_of(request_of_client) in each for each in sent.transcripts())


@pytest.mark.parametrize(
    ("turns_before", "size", "done"),
    [(6, 2000, ["shorten"]), (16, 300, ["drop"]), (60, 300, ["drop"]), (200, 900, ["drop"])],
)
def test_b126_a_chat_that_asks_for_its_summary_is_shortened_or_dropped_and_not_summarised_for_it(
    turns_before: int, size: int, done: list[str]
) -> None:
    history = [*talk(turns_before, size)[:-1], COMPACTION]
    sent = Scene(POLICY).send(history)
    assert (list(sent.done()), sent.side_calls, sent.saved) == (done, (), 0)
    assert sent.messages[-1] == COMPACTION
    if done == ["shorten"]:
        assert len(sent.messages) == len(history), "every message is still there, in part"


def test_b126_after_a_cut_the_client_is_shown_its_own_words_again_and_not_our_summary_of_them() -> None:
    scene = Scene(POLICY)
    history = talk(6, 1700)
    for asking in askings(history):
        scene.send(asking)
    assert "summarize" in scene.send(history).done(), "what a client that goes on is shown"
    asked = [*history, said("So it is."), COMPACTION]
    sent = scene.send(asked)
    assert (list(sent.done()), sent.side_calls) == (["shorten"], ())
    assert len(sent.messages) == len(asked)
    assert not any(MEMORY in text_of(message) for message in sent.messages)


def test_b126_who_goes_on_with_the_old_history_finds_the_conversation_as_it_was() -> None:
    scene, other = Scene(POLICY), Scene(POLICY)
    history = [*talk(14), said("So it is.")]
    for asking in askings(history):
        scene.send(asking)
        other.send(asking)
    scene.send([*history, COMPACTION])
    later = [*history, user("And now?")]
    assert scene.send(later).messages == other.send(later).messages


def test_b126_a_ladder_without_these_steps_is_taken_as_it_is() -> None:
    sent = once([*talk(30)[:-1], COMPACTION], replace(POLICY, strategies=("summarize",)))
    assert list(sent.done()) == ["summarize"]


def test_b126_the_clients_summary_is_taken_for_a_message_like_any_other() -> None:
    own = user("This session is continued from one that ran out of context. Summary:\n" + filler("own", 2000))
    history = [SYSTEM, own, *turns(14), QUESTION]
    sent = once(history, replace(POLICY, strategies=("summarize",)))
    assert any("own: and so" in each for each in sent.transcripts())
    assert once([SYSTEM, own, QUESTION]).is_untouched


def test_b126_a_transcript_in_one_message_keeps_head_and_tail_around_a_marker() -> None:
    """How clients ask for a title or a summary without the conversation itself."""
    transcript = "<conversation>\n" + filler("line", 60_000) + "\n</conversation>\nSummarize the above."
    sent = once([SYSTEM, user(transcript)])
    assert refusals(sent, WINDOW, TEMPERS) == {}
    assert text_of(sent.messages[-1]).startswith("<conversation>\n")
    assert text_of(sent.messages[-1]).endswith("\n</conversation>\nSummarize the above.")


# --- usage, and what is told of it --------------------------------------------------------------------------------


@pytest.mark.parametrize("temper", [Temper.OPENAI, Temper.TEMPLATE, Temper.MISTRAL])
@pytest.mark.parametrize("stream", [False, True])
async def test_b127_b129_usage_is_the_upstreams_own_and_headers_and_log_tell_both_counts(
    temper: Temper, stream: bool
) -> None:
    body: dict[str, Any] = {"model": "m", "messages": talk(30), "stream": stream}
    if stream and temper is not Temper.MISTRAL:
        body["stream_options"] = {"include_usage": True}
    upstream = StrictUpstream(window=WINDOW, temper=temper, count=lambda text: Lettered().count(text, ""))
    parts = (Lettered(), memories())
    async with (
        upstream,
        proxied(upstream.url, policy=POLICY, parts=parts) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, body)
        [event] = proxy.events()
    assert response.status == 200
    main = upstream.main_calls[-1]
    assert isinstance(main.verdict, Accepted)
    if "stream_options" in body or not stream:
        assert b'"prompt_tokens":%d,' % main.verdict.prompt_tokens in response.body.replace(b" ", b"")
    original, forwarded = (
        int(response.header(name) or 0) for name in ("x-context-original-tokens", "x-context-tokens")
    )
    assert original > 2 * WINDOW > forwarded
    assert abs(forwarded - main.verdict.prompt_tokens) < forwarded * 0.05
    assert (event["original_tokens"], event["tokens"], event["window"]) == (original, forwarded, WINDOW)
    assert event["actions"] == response.header("x-context-actions")
    assert "reason" not in event


# --- one feature of a request must not turn all off --------------------------------------------------------------

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string", "description": "Where to look."}}}
SIXTY = [
    {
        "type": "function",
        "function": {"name": f"tool_{n}", "description": "d" * 200, "parameters": PARAMETERS},
    }
    for n in range(60)
]
SCHEMA = {"name": "verdict", "strict": True, "schema": PARAMETERS}
FEATURES: Mapping[str, dict[str, Any]] = {
    "sixty tools": {"tools": SIXTY, "tool_choice": "auto", "parallel_tool_calls": True},
    "a forced call": {
        "tools": SIXTY[:1],
        "tool_choice": {"type": "function", "function": {"name": "tool_0"}},
    },
    "functions": {"functions": [each["function"] for each in SIXTY[:5]], "function_call": "auto"},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "a JSON object": {"response_format": {"type": "json_object"}},
    "several choices": {"n": 3},
    "probabilities": {"logprobs": True, "top_logprobs": 5},
    "a stream": {"stream": True},
    "a stream with options": {"stream": True, "stream_options": {"include_usage": True, "x": 1}},
    "a seed and a stop": {"seed": 7, "stop": ["\n\n"], "temperature": 0, "logit_bias": {"1": -100}},
    "a prediction": {"prediction": {"type": "content", "content": "x" * 400}},
    "fields of a vendor": {
        "provider": {"order": ["a"]},
        "cache_prompt": True,
        "id_slot": 0,
        "extra_body": {},
    },
    "metadata": {"metadata": {"a": "b"}, "store": True, "user": "ada", "service_tier": "flex"},
    "modalities": {"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "wav"}},
    "reasoning": {"reasoning_effort": "high", "reasoning": {"max_tokens": 400}},
    "limits": {"max_tokens": 300, "max_completion_tokens": 300},
    "a model with a long name": {"model": "a/b:c" * 60},
    "no model": {"model": None},
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_b129_b130_an_over_long_request_is_cut_whatever_else_it_asks_for(feature: dict[str, Any]) -> None:
    sent = once(mixed(60), replace(POLICY, window=12_000, reserve_output=800), **feature)
    assert not sent.is_untouched
    assert {"elide", "summarize"} & sent.done().keys()
    assert sent.tokens <= (sent.verdict.trigger or 0)
    assert sent.verdict.reason == ""


PARTS: Mapping[str, Message] = {
    "picture": PICTURE,
    "large picture": {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}},
    "sound": {"type": "input_audio", "input_audio": {"data": "A" * 9000, "format": "wav"}},
    "file": {
        "type": "file",
        "file": {"file_data": "data:application/pdf;base64," + "A" * 9000, "filename": "a.pdf"},
    },
    "unknown": {"type": "hologram", "hologram": {"a": 1}},
    "marked": text_part("So.", cache_control={"type": "ephemeral"}),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_b129_a_part_of_any_kind_anywhere_turns_nothing_off(part: Message, place: str) -> None:
    history = talk(90)
    index = {"first": 1, "middle": 91, "last": len(history) - 1}[place]
    history[index] = user([text_part(text_of(history[index])), part])
    sent = once(history, replace(POLICY, window=8000))
    assert sent.done()["summarize"] > 0
    assert sent.tokens <= (sent.verdict.trigger or 0)
    assert place != "last" or part in sent.messages[-1]["content"]


def test_b129_an_observed_request_says_why_it_was_not_cut() -> None:
    sent = Scene(mode=Mode.OBSERVE).sent(talk(30))
    assert sent.is_untouched
    assert sent.verdict.reason == "observed_only"
    assert (sent.verdict.forwarded or 0) > (sent.verdict.trigger or 0)


# --- prefills and structured answers --------------------------------------------------------------------------------

PREFILLS: Mapping[str, Message] = {
    "text": said('{"verdict": "', prefix=True),
    "parts": said([text_part("The answer is")], prefix=True),
    "with reasoning": said("So", prefix=True, reasoning_content="hm"),
}


@pytest.mark.parametrize("prefill", PREFILLS.values(), ids=PREFILLS)
@pytest.mark.parametrize("history", [talk(30), mixed(16), [*agent(40), said("Done."), QUESTION]])
@pytest.mark.parametrize(("ladder", "fails"), [*((each, False) for each in LADDERS[:3]), (LADDERS[1], True)])
def test_b130_a_prefill_stays_last_as_it_is(
    prefill: Message, history: Sequence[Message], ladder: tuple[str, ...], fails: bool
) -> None:
    policy = replace(POLICY, strategies=ladder, elide=ElidePolicy(keep=0))
    sent = Scene(policy, fails=fails).send([*history, prefill])
    assert not sent.is_untouched
    assert sent.messages[-1] == prefill
    assert refusals(sent, WINDOW, TEMPERS) == {}


@pytest.mark.parametrize("ladder", LADDERS)
def test_b130_a_prefill_straight_behind_a_result_stays_last(ladder: tuple[str, ...]) -> None:
    history = [*agent(40), said("From this", prefix=True)]
    sent = once(history, replace(POLICY, strategies=ladder))
    assert sent.messages[-1] == history[-1]
    assert refusals(sent, WINDOW, TEMPERS) == {}


def test_b130_a_call_that_waits_for_its_result_stays_last() -> None:
    """An assistant message with calls at the end: in flight, and no prefill to any server that pairs."""
    history = [*agent(40), calls(call("w", "write_file", path="a"))]
    sent = Scene().sent(history)
    assert sent.messages[-1] == history[-1]


def test_b130_the_shape_of_the_answer_is_counted_and_kept() -> None:
    schema = {
        "type": "json_schema",
        "json_schema": {**SCHEMA, "schema": {**PARAMETERS, "description": "d" * 4000}},
    }
    plain, shaped = once(talk(2)), once(talk(2), response_format=schema)
    assert shaped.tokens - plain.tokens >= 1000
    assert shaped.is_untouched
    cut = once(talk(4), response_format=schema)
    assert not cut.is_untouched
    assert cut.body["response_format"] == schema


@pytest.mark.parametrize("fields", [{"n": 4, "logprobs": True, "top_logprobs": 2}, {"n": 1, "stream": True}])
def test_b130_choices_and_probabilities_keep_their_bytes(fields: dict[str, Any]) -> None:
    sent = once(mixed(16), **fields)
    assert not sent.is_untouched
    assert json.dumps(fields)[1:-1].encode() in sent.raw


# --- two clients that rewrite what they resend ------------------------------------------------------------------------


def test_a_developer_message_for_a_system_message_costs_no_second_summary() -> None:
    scene = Scene(replace(POLICY, strategies=("summarize",)))
    assert len(scene.send([SYSTEM, *talk(20)[1:]]).side_calls) == 1
    again = scene.send([DEVELOPER, *talk(20)[1:]])
    assert again.side_calls == ()
    assert MEMORY in text_of(again.messages[1])


def test_parts_for_a_text_and_arguments_in_another_spelling_cost_no_second_summary() -> None:
    scene = Scene(replace(POLICY, strategies=("summarize",)))
    history = [SYSTEM, TASK, *step(0, 4000), *step(1, 4000), *step(2), said("So it is.")]
    first = scene.send(history)
    spelled = [_otherwise(message) for message in history]
    assert spelled != history
    again = scene.send(spelled)
    assert len(first.side_calls) == 1
    assert again.side_calls == ()


def _otherwise(message: Message) -> Message:
    if message["role"] == "tool":
        return result(
            message["tool_call_id"], [text_part(text_of(message), cache_control={"type": "ephemeral"})]
        )
    if message.get("tool_calls"):
        made = [
            {
                **each,
                "function": {
                    **each["function"],
                    "arguments": each["function"]["arguments"].replace(": ", ":"),
                },
            }
            for each in message["tool_calls"]
        ]
        return {**message, "tool_calls": made}
    return message
