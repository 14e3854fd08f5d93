"""Whatever of ours breaks or hangs, the client's own request goes out, once, and the answer says why it is not managed.

Rules. What fails here are parts that a composition root hands over. A part that hangs waits for an event that is never
set, so that only the deadline can end it.
"""

import asyncio
import io
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest

from proxy.config import LogFormat, LogOptions, SideCalls
from proxy.context.calibration import CalibrationPolicy
from proxy.context.conversation import Message
from proxy.context.edits import Edits
from proxy.context.policy import ModelPolicy
from proxy.context.tokens import Size
from proxy.edge import logs
from proxy.edge.memories import Memories
from proxy.edge.performer import DEEDS, Measures, Remembers
from proxy.edge.tokenizer import Encoder, Tokenizer
from proxy.errors import StoreUnavailable
from proxy.exchange import Deed, Learn, Memory, Question
from tests.edge.proxied import Lettered, memories, proxied
from tests.peers import upstream as peers
from tests.peers.client import RawClient, Response
from tests.peers.upstream import ScriptedUpstream, json_answer

CHAT = "/v1/chat/completions"
WHOLE = peers.completion(peers.text_message("Hello."), usage=peers.usage(50, 5))
TALK = [{"role": role, "content": f"{role} {'word ' * 200}"} for role in ("user", "assistant") * 20]
LONG = (
    json.dumps({"model": "m", "messages": [*TALK, {"role": "user", "content": "And now?"}]}).encode()
    + b"\r\n"
)
SHORT = b'{ "model":"m", "messages":[{"role":"user","content":"caf\\u00e9"}],"x":1.0e-7,"user":"%b" }' % (
    b"u" * 2000
)
"""Few tokens, and yet too many bytes to be sent before they are counted."""
SUMMARISED = ModelPolicy(window=4000, reserve_output=500, strategies=("summarize", "drop"))
DROPPED = ModelPolicy(window=4000, reserve_output=500, strategies=("drop",))
AS_EVER = SideCalls()
TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 2000 tokens. However, you requested 9000 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


@dataclass
class Trouble:
    """Comes over a part at its n-th use and, unless it is `only` that one, stays: a fault to raise, or None to hang."""

    fault: BaseException | None
    at_use: int = 1
    only: bool = False
    uses: int = 0
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def come(self) -> None:
        self.uses += 1
        if self.uses == self.at_use or (self.uses > self.at_use and not self.only):
            if self.fault is not None:
                raise self.fault
            await self.never.wait()


class TroubledTokenizer(Lettered):
    """Counts letters until trouble comes."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        await self._trouble.come()
        return await super().sizes(messages, extras, model)


class TroubledMemories(Memories):
    """Remembers until trouble comes over one kind of use."""

    def __init__(self, use: str, trouble: Trouble) -> None:
        super().__init__(memories()._store, "")
        self._use, self._trouble = use, trouble

    async def _come(self, use: str) -> None:
        if use == self._use:
            await self._trouble.come()

    async def recall(self, model: str, chain: Sequence[str], opening: str = "", who: str = "") -> Memory:
        await self._come("recall")
        return await super().recall(model, chain, opening, who)

    async def save(self, key: str, edits: Edits, *, replaces: bool = False) -> Edits:
        await self._come("save")
        return await super().save(key, edits, replaces=replaces)

    async def keep(self, key: str, text: str) -> None:
        await self._come("keep")
        await super().keep(key, text)

    async def learn(self, lesson: Learn, policy: CalibrationPolicy) -> None:
        await self._come("learn")
        await super().learn(lesson, policy)


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of requests: the answers, the bodies that the upstream got, events by name."""

    responses: list[Response]
    bodies: list[bytes]
    events: dict[str, list[dict[str, object]]]


async def seen(
    parts: tuple[Measures, Remembers],
    *bodies: bytes,
    answers: Sequence[peers.Reply] = (),
    policy: ModelPolicy = DROPPED,
    deadline: float = 0.05,
    side_calls: SideCalls = AS_EVER,
) -> Seen:
    """Send these bodies, one after the other on one connection."""
    async with (
        ScriptedUpstream(answers, otherwise=json_answer(WHOLE)) as upstream,
        proxied(
            upstream.url, policy=policy, parts=parts, manage_deadline=deadline, side_calls=side_calls
        ) as proxy,
        RawClient(proxy.url) as client,
    ):
        responses = [await client.post(CHAT, body) for body in bodies]
        names = ("request", "internal_error", "manage_deadline_passed")
        return Seen(
            responses,
            [request.body for request in upstream.requests],
            {name: proxy.events(name) for name in names},
        )


FAULT = KeyError("marker-word")
Parts = tuple[Measures, Remembers]


def measuring(fault: BaseException | None, at_use: int = 1) -> Callable[[], Parts]:
    return lambda: (TroubledTokenizer(Trouble(fault, at_use)), memories())


def remembering(use: str, fault: BaseException | None) -> Callable[[], Parts]:
    return lambda: (Lettered(), TroubledMemories(use, Trouble(fault)))


TROUBLES = {
    "measuring fails": (measuring(FAULT), "measure"),
    "measuring what was rewritten fails": (measuring(FAULT, at_use=2), "measure"),
    "looking up fails": (remembering("recall", FAULT), "store"),
    "looking up is refused": (remembering("recall", StoreUnavailable("marker-word")), "store"),
    "saving fails": (remembering("save", FAULT), "store"),
    "measuring hangs": (measuring(None), "deadline"),
    "measuring what was rewritten hangs": (measuring(None, at_use=2), "deadline"),
    "looking up hangs": (remembering("recall", None), "deadline"),
    "saving hangs": (remembering("save", None), "deadline"),
}


@pytest.mark.parametrize(("parts", "reason"), TROUBLES.values(), ids=TROUBLES)
async def test_the_clients_own_request_goes_out_once_and_the_answer_says_why(
    parts: Callable[[], Parts], reason: str
) -> None:
    # What fails is not to be overtaken by the deadline: planning is cut off by it, too, where it pauses.
    found = await seen(parts(), LONG, deadline=0.05 if reason == "deadline" else 30.0)
    (response,), (event,) = found.responses, found.events["request"]
    assert found.bodies == [LONG]
    assert (response.status, response.json()) == (200, WHOLE)
    assert response.header("x-context-actions") == f"bypass={reason}"
    assert (event["actions"], event["reason"], event["status"]) == (f"bypass={reason}", reason, 200)
    assert len(found.events["manage_deadline_passed"]) == (reason == "deadline")
    assert len(found.events["internal_error"]) == (reason != "deadline")
    assert "marker-word" not in json.dumps(found.events)


async def test_of_a_fault_type_and_place_are_logged() -> None:
    (told,) = (await seen(measuring(FAULT)(), SHORT)).events["internal_error"]
    assert (told["doing"], told["exception"]) == ("measure", "KeyError")
    assert str(told["place"]).startswith("test_fail_open.py:")


async def test_trouble_before_an_upstream_that_is_gone_is_still_a_502() -> None:
    async with (
        proxied("http://127.0.0.1:9/v1", parts=measuring(FAULT)()) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.post(CHAT, SHORT)
    assert response.status == 502
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_plan_that_fails_lets_the_clients_own_request_through() -> None:
    found = await seen((Lettered(), memories()), LONG, policy=replace(DROPPED, strategies=("no such step",)))
    assert found.bodies == [LONG]
    assert found.responses[0].header("x-context-actions") == "bypass=plan"
    assert found.events["internal_error"][0]["doing"] == "plan"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bypass_passes_an_answer_of_any_kind_as_it_is(stream: bool) -> None:
    answer = peers.sse_answer(
        [*peers.chunks(peers.text_message("Hello.")), peers.usage_chunk(peers.usage(9, 1))]
    )
    body = SHORT if not stream else SHORT[:-1] + b',"stream":true}'
    found = await seen(measuring(None)(), body, answers=[answer if stream else json_answer({}, status=429)])
    (response,) = found.responses
    assert found.bodies == [body]
    assert (response.status, response.body) == ((200, answer.body) if stream else (429, b"{}"))


async def test_a_thread_that_never_ends_counting_holds_a_request_up_no_longer_than_the_deadline() -> None:
    ends, begun = threading.Event(), threading.Event()

    def load(name: str) -> Encoder | None:
        begun.set()
        ends.wait()
        return None

    log = logs.build(LogOptions(format=LogFormat.JSON), io.StringIO())
    tokenizer = Tokenizer(log, load=load)
    try:
        found = await seen((tokenizer, memories()), SHORT, SHORT)
        assert begun.is_set()
        assert found.bodies == [SHORT, SHORT]
        assert {response.header("x-context-actions") for response in found.responses} == {"bypass=deadline"}
    finally:
        ends.set()
        tokenizer.close()


async def test_after_a_bypass_the_next_request_is_managed_again() -> None:
    trouble = Trouble(FAULT, only=True)
    found = await seen((TroubledTokenizer(trouble), memories()), SHORT, SHORT)
    assert [each.header("x-context-actions") for each in found.responses] == ["bypass=measure", "none"]


@pytest.mark.parametrize("fault", [FAULT, None], ids=["fails", "hangs"])
async def test_b125_where_the_upstream_has_refused_a_prompt_its_refusal_is_the_answer_to_trouble(
    fault: BaseException | None,
) -> None:
    """Counting what the first plan forwards goes well; counting for the plan after the refusal does not."""
    refusal = json_answer(TOO_LONG, status=400, headers=(("Content-Type", "application/json"), ("X-Id", "7")))
    found = await seen(measuring(fault, at_use=3)(), LONG, answers=[refusal])
    (response,) = found.responses
    assert len(found.bodies) == 1
    assert (response.status, response.json(), response.header("x-id")) == (400, TOO_LONG, "7")
    reason = "deadline" if fault is None else "measure"
    assert response.header("x-context-actions") == f"bypass={reason}"


@pytest.mark.parametrize("fault", [FAULT, None], ids=["fails", "hangs"])
async def test_learning_that_fails_or_hangs_takes_nothing_from_an_answer_and_the_connection_goes_on(
    fault: BaseException | None,
) -> None:
    found = await seen(remembering("learn", fault)(), SHORT, SHORT)
    assert [response.json() for response in found.responses] == [WHOLE, WHOLE]
    assert [response.header("x-context-actions") for response in found.responses] == ["none", "none"]
    assert all(response.complete for response in found.responses)
    assert "bypass" not in json.dumps(found.events["request"])


# -------------------------------------------------------------------------------------------------------- side calls


def is_side_call(request: peers.Request) -> bool:
    return bool(request.json()["messages"][0]["role"] == "system")


def hangs_on_side_calls(request: peers.Request) -> peers.Answer:
    return replace(json_answer(WHOLE), before=asyncio.Event() if is_side_call(request) else None)


async def test_b26_waiting_for_a_summary_is_bounded_by_its_own_deadline_and_not_by_that_of_our_work() -> None:
    found = await seen(
        (Lettered(), memories()),
        LONG,
        answers=[hangs_on_side_calls] * 2,
        policy=SUMMARISED,
        side_calls=SideCalls(deadline=0.2, attempts=1),
    )
    (response,) = found.responses
    assert (response.header("x-context-actions") or "").startswith("drop=")
    assert len(found.bodies) == 2
    assert len(found.bodies[1]) < len(LONG)


@pytest.mark.parametrize("fault", [FAULT, None], ids=["fails", "hangs"])
async def test_a_summary_that_cannot_be_stored_is_used_all_the_same(fault: BaseException | None) -> None:
    def answer(request: peers.Request) -> peers.Answer:
        said = "The user said word, the assistant said word." if is_side_call(request) else "Hello."
        return json_answer(peers.completion(peers.text_message(said), usage=peers.usage(50, 5)))

    found = await seen(
        remembering("keep", fault)(),
        LONG,
        answers=[answer] * 2,
        policy=SUMMARISED,
        deadline=5.0,
        side_calls=SideCalls(deadline=0.05),
    )
    (response,) = found.responses
    assert (response.header("x-context-actions") or "").startswith("summarize=")
    assert b"the assistant said word" in found.bodies[1]


def test_b111_there_is_no_command_that_nobody_knows_how_to_perform() -> None:
    assert set(DEEDS) == {*get_args(Question), *get_args(Deed)}
