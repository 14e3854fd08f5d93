"""What stands in the place of old output: a statement and nothing invented, and only where there was need.

Rules. A result that is forwarded is the client's own, or head and tail of it around a marker, or a marker alone. The
client's tools are its own business: none is added, none is promised.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.edits import SummaryRole
from proxy.context.policy import ElidePolicy, ImagePolicy
from proxy.demo.rules import Temper
from tests.scenarios.messages import (
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
    text_of,
    text_part,
    user,
)
from tests.scenarios.scene import LADDERS, POLICY, TEMPERS, WINDOW, Scene, Sent, askings, once, refusals

GAP = re.compile(r"\n?\[\.\.\. (\d+) characters left out here \.\.\.\]\n?")
MARKER = re.compile(r"\[Output of (\S+) left out here: (\d+) characters, (\d+) lines\.\]")

LISTING = "\n".join(
    f"-rw-r--r-- 1 ada ada {n:6} ruff_{n}.py error_{n}.log  # 'ruff' found no error" for n in range(400)
)


def results_of(messages: Sequence[Message]) -> list[Message]:
    return [m for m in messages if m["role"] in ("tool", "function")]


def invented(original: str, shown: str, tool: str) -> str:
    """What is wrong with a result as it is shown; empty where nothing is."""
    if shown == original:
        return ""
    if marker := MARKER.fullmatch(shown):
        told = (marker[1], int(marker[2]), int(marker[3]))
        truth = (tool, len(original), original.count("\n") + 1)
        return "" if told == truth else f"{told} is not {truth}"
    head, gone, tail = GAP.split(shown) if len(GAP.findall(shown)) == 1 else ("?", "0", "?")
    if not original.startswith(head) or not original.endswith(tail):
        return "head or tail was not there"
    lost = len(original) - len(head) - len(tail)
    return "" if 0 <= lost - int(gone) <= 2 else f"{lost} characters are gone and not {gone}"


@pytest.mark.parametrize("ladder", [*LADDERS, ("elide",), ("shorten",)])
@pytest.mark.parametrize("keep", [0, 2])
def test_b66_of_a_listing_no_line_is_worded_anew(ladder: tuple[str, ...], keep: int) -> None:
    history = [SYSTEM, TASK]
    for number in range(9):
        listing = LISTING[number * 997 : number * 997 + 700 * (number + 1)]
        history += [calls(call(f"l{number}", "ls", path=".")), result(f"l{number}", listing)]
    policy = replace(POLICY, window=4500, strategies=ladder, elide=ElidePolicy(keep=keep))
    sent = once(history, policy)
    originals = {m["tool_call_id"]: text_of(m) for m in results_of(history)}
    shown = results_of(sent.messages)
    assert any(text_of(m) != originals[m["tool_call_id"]] for m in shown) or len(shown) < 9
    assert [said for m in shown if (said := invented(originals[m["tool_call_id"]], text_of(m), "ls"))] == []


@pytest.mark.parametrize("size", [12_000, 27_000])
def test_b67_three_rounds_of_3000_tokens_stay_whole_in_a_window_of_32k(size: int) -> None:
    history = agent(3, size)
    sent = once(history, replace(POLICY, window=32_768))
    assert sent.is_untouched
    assert sent.tokens >= 3 * size // 4


@pytest.mark.parametrize("keep", [1, 2, 5])
@pytest.mark.parametrize("aim", [0.3, 0.5, 0.7, 0.9])
def test_b67_oldest_go_first_and_no_more_than_the_target_needs(keep: int, aim: float) -> None:
    history = agent(30)
    policy = replace(POLICY, elide=ElidePolicy(keep=keep), compact_to=aim, strategies=("elide",))
    sent = once(history, policy)
    whole = [m in history for m in results_of(sent.messages)]
    assert whole == sorted(whole)
    assert sum(whole) >= keep
    target = (sent.verdict.trigger or 0) / policy.compact_at * aim
    one_result = 100
    assert target - one_result <= sent.tokens
    assert sent.tokens <= target or sum(whole) == keep


def test_b67_what_was_elided_stays_elided_and_the_prompt_only_grows() -> None:
    scene = Scene()
    before: list[Any] = []
    extends = []
    for history in askings(agent(60, 300)):
        shown = scene.send(history).messages
        extends.append(shown[: len(before)] == before)
        before = shown
    assert sum(extends) / len(extends) >= 0.8


# --- tools whose output is exact -----------------------------------------------------------------------------

SPELLINGS: Mapping[str, tuple[str, str]] = {
    "the name": ("read_file", "read_file"),
    "a server's own name": ("mcp__x__read", "mcp__x__read"),
    "behind a namespace": ("read_file", "functions.read_file"),
    "behind a colon": ("read_file", "ns:read_file"),
    "behind two colons": ("read_file", "ns::read_file"),
    "behind a slash": ("read_file", "server/read_file"),
    "behind two namespaces": ("read_file", "a.b:read_file"),
    "configured with its namespace": ("ns.read_file", "ns:read_file"),
}


def reading(name: str, number: int, size: int = 700) -> list[Message]:
    return step(number, size, name=name)


@pytest.mark.parametrize(("configured", "called"), SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("strategies", [("elide",), ("shorten",), ("elide", "shorten")])
@pytest.mark.parametrize("form", ["by call", "by own name", "parts"])
def test_b68_the_output_of_a_protected_tool_is_verbatim(
    configured: str, called: str, strategies: tuple[str, ...], form: str
) -> None:
    exact = reading(called, 0)
    if form == "by own name":
        exact = [exact[0], {**exact[1], "name": called}]
    elif form == "parts":
        exact = [exact[0], {**exact[1], "content": [text_part(text_of(exact[1])), text_part("end")]}]
    others = [message for number in range(1, 14) for message in reading("run", number)]
    policy = replace(POLICY, strategies=strategies, elide=ElidePolicy(keep=0), protect_tools=(configured,))
    sent = once([SYSTEM, TASK, *exact, *others], policy)
    shown = results_of(sent.messages)
    assert shown[0] == exact[1]
    assert all(m not in others for m in shown[1:5])


@pytest.mark.parametrize("called", ["thread_file", "read_files", "read", "read_file_2", "read_file.old"])
def test_b68_a_name_that_only_looks_alike_is_not_protected(called: str) -> None:
    history = [SYSTEM, TASK, *(m for n in range(12) for m in reading(called, n))]
    policy = replace(POLICY, strategies=("elide",), protect_tools=("read_file",))
    assert once(history, policy).done()["elide"] > 0


def test_b68_a_deprecated_function_is_protected_by_its_name() -> None:
    history = [SYSTEM, TASK]
    for number, name in enumerate(["read_file", *["run"] * 14]):
        function_call = {"name": name, "arguments": "{}"}
        history += [{"role": "assistant", "content": None, "function_call": function_call}]
        history += [{"role": "function", "name": name, "content": filler(f"{name} {number}", 700)}]
    policy = replace(POLICY, strategies=("elide", "shorten"), protect_tools=("read_file",))
    sent = once(history, policy)
    assert sent.messages[3] == history[3]
    assert sent.done()["elide"] > 0


MARKINGS = (
    "[Output of {tool} left out here: {characters} characters, {lines} lines.]",
    "({lines}/{characters}) {tool}?",
    "gone",
)


@pytest.mark.parametrize("marker", MARKINGS)
@pytest.mark.parametrize("name", ["read", "a.b*c[d]", "x" * 200, "", "leer\u202e\nzeile"])
def test_b68_what_was_elided_once_is_elided_no_further(marker: str, name: str) -> None:
    history = [SYSTEM, TASK, *(m for n in range(20) for m in step(n, 500, name=name))]
    policy = replace(POLICY, strategies=("elide",), elide=ElidePolicy(keep=1, marker=marker))
    first = Scene(policy).sent(history)
    assert first.done()["elide"] > 3
    deeper = replace(policy, window=WINDOW // 2, compact_to=0.01)
    second = Scene(deeper).sent(first.messages)
    texts = [[text_of(m) for m in results_of(sent.messages)] for sent in (first, second)]
    elided = first.done()["elide"]
    assert texts[0][:elided] == texts[1][:elided]
    third = Scene(deeper).sent(second.messages)
    assert third.is_untouched


# --- what the client can do ------------------------------------------------------------------------------------

TOOLS = b'[ {"type":"function", "function":{"name":"read","parameters":{"type":"object","n":1.0}}} ]'
BESIDE = (
    b'"tools": ' + TOOLS,
    b'"tools":' + TOOLS + b', "tool_choice" : "auto","parallel_tool_calls":false',
    b'"functions": [{"name":"read","parameters":{}}] ,"function_call":"none"',
    b'"user":"ada"',
)


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("history", [agent(40), mixed(12)], ids=["agent", "mixed"])
@pytest.mark.parametrize("ladder", [*LADDERS[:2], ("elide",)])
def test_b69_the_clients_tools_keep_their_bytes_and_none_is_added(
    beside: bytes, history: Sequence[Message], ladder: tuple[str, ...]
) -> None:
    body = b'{"model":"m", ' + beside + b' ,"messages":' + json.dumps(list(history)).encode() + b"}"
    sent = Scene(replace(POLICY, strategies=ladder)).run(body)
    assert not sent.is_untouched
    assert beside in sent.raw
    assert sent.body.keys() == sent.request.keys()
    known = {"read"}
    assert {m[1] for m in MARKER.finditer(sent.raw.decode())} <= known


# --- results of several parts -----------------------------------------------------------------------------------

SHAPES: Mapping[str, Any] = {
    "text": filler("shape", 2500),
    "one part": [text_part(filler("shape", 2500))],
    "two parts": [
        text_part(filler("shape", 2500)),
        text_part("and more", cache_control={"type": "ephemeral"}),
    ],
    "part and picture": [text_part(filler("shape", 2500)), PICTURE],
    "pictures alone": [PICTURE] * 12,
    "a document": [{"type": "document", "document": {"text": filler("shape", 2500)}}],
    "a text in the list": [filler("shape", 2500)],
    "null text": [{"type": "text", "text": None}, text_part(filler("shape", 2500))],
    "reasoning": [{"type": "thinking", "thinking": "t" * 900}, text_part(filler("shape", 2500))],
}


@pytest.mark.parametrize("content", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("strategies", [("elide",), ("images",), ("shorten",), *LADDERS[:2]])
@pytest.mark.parametrize("vision", [True, False])
def test_b71_content_of_parts_stays_a_text_or_a_list_of_parts(
    content: Any, strategies: tuple[str, ...], vision: bool
) -> None:
    history = [SYSTEM, TASK]
    for number in range(8):
        history += [calls(call(f"p{number}", "shot")), result(f"p{number}", content)]
    policy = replace(POLICY, window=4000, strategies=strategies, vision=vision, elide=ElidePolicy(keep=1))
    sent = once(history, policy, fits=False)
    for message in results_of(sent.messages):
        shown = message["content"]
        assert shown
        assert isinstance(shown, str | list)
        if isinstance(shown, list):
            assert {type(part) for part in shown} <= {type(part) for part in content}
            assert not any(isinstance(part, dict) and part.get("text") == "" for part in shown)
        written = json.dumps(shown)
        assert "{'" not in written
        assert vision or "image_url" not in written


def test_b71_a_result_whose_picture_and_text_are_too_much_loses_both_and_says_so() -> None:
    content = [text_part(filler("shape", 7000)), PICTURE]
    history = [SYSTEM, TASK, calls(call("p", "shot")), result("p", content), said("Done."), QUESTION]
    sent = once(history, replace(POLICY, strategies=("elide",), elide=ElidePolicy(keep=0)))
    [shown] = results_of(sent.messages)
    assert MARKER.fullmatch(shown["content"])


# --- pictures ----------------------------------------------------------------------------------------------------


def shots(number: int, each: int = 1) -> list[Message]:
    """Questions with pictures, answered; a picture costs 85 tokens."""
    return [
        message
        for n in range(number)
        for message in (user([text_part(f"Shot {n}."), *[PICTURE] * each]), said(f"I see {n}."))
    ]


def pictures_in(sent: Sent) -> list[int]:
    """How many pictures each user message has."""
    contents = [m["content"] for m in sent.of_role("user")]
    return [content.count(PICTURE) if isinstance(content, list) else 0 for content in contents]


def test_no_more_than_twenty_pictures_are_forwarded_and_the_prompt_only_grows_between_two_batches() -> None:
    scene = Scene(replace(POLICY, window=None, images=ImagePolicy(keep=20)))
    before: list[Any] = []
    breaks = []
    for number in range(1, 64):
        sent = scene.send([SYSTEM, *shots(number), QUESTION])
        shown = sent.messages[:-1]
        held = sum(pictures_in(sent))
        assert held <= 20
        assert held == number or held >= 10
        breaks += [number] if shown[: len(before)] != before else []
        before = shown
    assert breaks == [21, 31, 41, 51, 61]


@pytest.mark.parametrize("each", [1, 3, 7, 25])
def test_a_batch_may_end_within_a_message(each: int) -> None:
    sent = once(
        [SYSTEM, *shots(12, each), QUESTION], replace(POLICY, window=None, images=ImagePolicy(keep=20))
    )
    counts = pictures_in(sent)[:-1]
    gone = sent.done().get("images", 0)
    assert sum(counts) == 12 * each - gone
    assert sum(counts) <= 20
    assert counts == sorted(counts)
    for message in sent.of_role("user")[:-1]:
        assert len(message["content"]) == 1 + each
        assert all(part == PICTURE or part["text"] for part in message["content"])


@pytest.mark.parametrize("place", ["newest message", "newest request", "result"])
def test_pictures_of_what_is_being_worked_on_are_the_last_that_size_takes(place: str) -> None:
    newest = user([text_part("Look."), *[PICTURE] * 3])
    working = {
        "newest message": [newest],
        "newest request": [newest, *step(1)],
        "result": [newest, calls(call("s", "shot")), result("s", [text_part("a shot"), PICTURE])],
    }[place]
    history = [SYSTEM, *shots(30), *working]
    sent = once(history, replace(POLICY, strategies=("images",)))
    assert sent.messages[-len(working) :] == working
    assert sent.done()["images"] > 5


@pytest.mark.parametrize("role", list(SummaryRole))
@pytest.mark.parametrize("window", [None, 900, 2000])
def test_a_model_without_vision_gets_no_picture_and_every_server_takes_it(
    role: SummaryRole, window: int | None
) -> None:
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    history = [SYSTEM, *shots(14, 2), user([data, text_part("And this?"), data])]
    scene = Scene(replace(POLICY, window=window, vision=False, summary_role=role))
    for talk in askings(history):
        sent = scene.sent(talk)
        assert b"image_url" not in sent.raw
        assert refusals(sent, window or 1 << 40, [Temper.OPENAI, Temper.MISTRAL]) == {}
    sent = scene.sent(history)
    assert text_of(sent.messages[-1]).count("[Image left out here.]") >= 2
    if role is SummaryRole.AUTO:
        assert refusals(sent, window or 1 << 40, TEMPERS) == {}


def test_a_picture_that_came_before_its_message_was_elided_is_gone_with_it() -> None:
    history = [SYSTEM, TASK]
    for number in range(12):
        shot = [text_part(filler(f"shot {number}", 600)), PICTURE, PICTURE]
        history += [calls(call(f"p{number}", "shot")), result(f"p{number}", shot)]
    policy = replace(POLICY, images=ImagePolicy(keep=4), strategies=("elide",), elide=ElidePolicy(keep=1))
    sent = once(history, policy)
    assert sent.done()["elide"] > 3
    for message in results_of(sent.messages):
        assert isinstance(message["content"], list) or MARKER.fullmatch(message["content"])
    again = Scene(policy).send(sent.messages)
    assert again.is_untouched
