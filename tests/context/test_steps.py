"""Long requests are read and chained in steps, which come to the same as reading at once."""

import json
from collections.abc import Callable, Mapping, Sequence

import pytest

from proxy.context import carried, checkpoint, names, recall, summary, transcript, view
from proxy.context.conversation import Message, read_message
from proxy.context.edits import NOTHING, Cut, Edits, Rewrite
from proxy.context.policy import ElidePolicy, ModelPolicy, RecallPolicy
from proxy.context.reader import MOST_VALUES_OF_ONE, Reader
from proxy.context.situation import Limits, Situation
from proxy.context.steps import STEP, Pace, Steps, T, in_one
from proxy.context.strategies import STRATEGIES
from proxy.exchange import Pause
from proxy.wire import chat
from proxy.wire.chat import ChatRequest, NotManaged
from tests.context.histories import read, situation
from tests.desk import Desk


def talk(messages: int, size: int = 20, of: str = "") -> bytes:
    made = [
        {"role": ("user", "assistant")[number % 2], "content": f"{of}{number} ".ljust(size, "x")}
        for number in range(messages)
    ]
    return json.dumps({"model": "m", "messages": made}).encode()


def counted(work: Steps[T]) -> tuple[T, int]:
    """What comes of the work, and in how many steps."""
    steps = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found, steps
        steps += 1


def said(request: ChatRequest) -> Sequence[str]:
    return [message.text.strip("x") for message in request.conversation.messages]


@pytest.mark.parametrize(("messages", "size"), [(3, 20), (1000, 20), (5000, 20), (500, 5000), (4, 1_000_000)])
def test_reading_in_steps_comes_to_the_same_as_reading_at_once(messages: int, size: int) -> None:
    body = talk(messages, size)
    request, steps = counted(chat.reading(body, Reader()))
    assert request == chat.read(body, Reader())
    assert [m.digest for m in request.conversation.messages] == [
        read_message(m.raw).digest for m in request.conversation.messages
    ]
    assert steps >= messages * (size + 2048) / (2 * 256 * 1024)
    assert messages > 3 or steps == 1, "what is small is read at once"


def test_a_large_message_is_digested_in_steps() -> None:
    raw = json.dumps({"role": "user", "content": "x" * 5_000_000}).encode()
    message, same = read_message(raw), read_message(raw)
    _, steps = counted(message.making_digest())
    assert steps >= 5
    assert message.digest == same.digest
    assert counted(message.making_digest()) == (None, 1)


def test_readings_that_take_turns_do_not_disturb_each_other_whatever_is_let_go_of_meanwhile() -> None:
    reader = Reader(most_bytes=300_000)  # less than one of them takes
    bodies = [talk(400 + 150 * number, of=f"talk {number % 3} ") for number in range(9)]
    for _ in range(2):
        waiting = [(body, chat.reading(body, reader)) for body in bodies]
        done: list[tuple[bytes, ChatRequest]] = []
        while waiting:
            body, work = waiting.pop(0)
            try:
                next(work)
            except StopIteration as end:
                done.append((body, end.value))
            else:
                waiting.append((body, work))
        assert len(done) == len(bodies)
        for body, request in done:
            assert said(request) == said(chat.read(body, Reader()))


def test_a_message_of_too_many_values_is_not_looked_into() -> None:
    def body(parts: int) -> bytes:
        content = [{"type": "text", "text": "a"}] * (parts // 2)
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()

    assert chat.read(body(MOST_VALUES_OF_ONE - 10), Reader()).model == "m"
    with pytest.raises(NotManaged, match="too_many_values"):
        chat.read(body(MOST_VALUES_OF_ONE + 10), Reader())


def test_media_know_how_much_text_stands_before_each() -> None:
    texts, picture = ["ab", "", "c"], {"type": "odd", "odd": 1}
    content: list[object] = [picture]
    for text in texts:
        content += [{"type": "text", "text": text}, picture]
    message = read_message(json.dumps({"role": "user", "content": content}).encode())
    assert [media.after for media in message.media] == [0, 2, 2, 4]
    assert message.text == "ab\nc"


def test_a_long_history_is_chained_with_pauses_and_a_short_one_without() -> None:
    for messages, least, most in ((400, 0, 0), (10_001, 9, 40)):
        desk = Desk(ModelPolicy(window=10_000_000))
        desk.run(talk(messages))
        pauses = [command for command in desk.done if isinstance(command, Pause)]
        assert least <= len(pauses) <= most


def test_the_names_of_a_long_history_are_those_of_its_messages_in_their_order() -> None:
    desk = Desk(ModelPolicy(window=10_000_000))
    desk.run(talk(5000))
    history: Sequence[Message] = chat.read(talk(5000), Reader()).conversation.history
    (chain,) = {command.chain for command in desk.done if hasattr(command, "chain")}
    seed = checkpoint.seed(desk.terms.tenant, desk.terms.upstream, "m")
    assert chain == checkpoint.chain(history, seed)


# --- planning, and all that is made of a plan ----------------------------------------------------------------


def run(calls: int) -> Situation:
    """An agent's run of so many calls, which is far over its window."""
    talk: list[dict[str, object]] = [{"role": "user", "content": "Read them all."}]
    for number in range(calls):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/{number}.py"})}
        said = f"some_name_{number} and value_{number % 97} in src/{number}.py\n" * 20
        talk += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": said},
        ]
    policy = ModelPolicy(elide=ElidePolicy(keep=0), recall=RecallPolicy(tokens=600))
    limits = Limits(window=8000, ceiling=7500, budget=7000, trigger=6000, target=3000)
    return situation(read([*talk, {"role": "user", "content": "What is some_name_7?"}]), limits, policy)


def elided(of: Situation) -> Edits:
    results = [index for index, message in enumerate(of.conversation.history) if message.is_result]
    return Edits(rewrites=tuple(Rewrite(index, "[gone]", "elide") for index in results))


def summarised(of: Situation) -> Edits:
    stop = len(of.sizes) - 1
    return Edits(Cut(stop, "a summary", stop))


def ordered(of: Situation) -> Steps[summary.Order]:
    source = yield from transcript.source(of.conversation.history, of.sizes)
    return (yield from summary.ordering(source, "", system="", item_characters=4000, room=2000.0))


WORK: Mapping[str, tuple[Callable[[Situation], Steps[object]], float]] = {
    "the elision of results": (lambda of: STRATEGIES["elide"](of, NOTHING), 20),
    "the shortening of texts": (lambda of: STRATEGIES["shorten"](of, NOTHING), 20),
    "a view with markers": (lambda of: view.applying(of.conversation, elided(of)), 15),
    "what a cut carries": (lambda of: carried.writing(of, summarised(of)), 20),
    "what is recalled": (lambda of: recall.finding(of, summarised(of)), 10),
    "the order of a summary": (ordered, 10),
}
"""What is done, and the microseconds that it is known to take for each call of the run at least."""


@pytest.mark.parametrize("what", WORK)
def test_all_that_goes_through_a_history_pauses_the_more_often_the_longer_that_is(what: str) -> None:
    work, takes = WORK[what]
    _, short = counted(work(run(3)))
    assert short <= 2, "a short history is worked on without a pause"
    for calls in (400, 1200):
        _, steps = counted(work(run(calls)))
        assert steps >= calls * takes / STEP


def test_a_step_that_is_told_by_its_pace_ends_with_the_work_that_fills_it() -> None:
    pace = Pace()
    assert [pace.is_over(STEP / 4) for _ in range(9)] == [False, False, False, True] * 2 + [False]
    assert pace.is_over(10 * STEP)
    assert not pace.is_over(STEP / 2)


def test_work_in_one_step_comes_to_the_same_as_without_steps() -> None:
    assert counted(in_one(divmod)(7, 2)) == ((3, 1), 1)


def test_names_are_found_in_a_long_text_step_by_step_and_are_the_same() -> None:
    text = "some_name_1 " * 20_000 + "src/main.py value_7"
    found, steps = counted(names.Finder().finding(text))
    assert found == {"some_name_1": 20_000, "src/main.py": 1, "value_7": 1}
    assert steps > 5


def test_planning_a_long_history_pauses_between_its_stages_and_a_short_one_never() -> None:
    for calls, least, most in ((20, 0, 1), (2000, 20, 400)):
        desk = Desk(ModelPolicy(window=8000))
        messages = [json.loads(message.raw) for message in run(calls).conversation.messages]
        desk.run(json.dumps({"model": "m", "messages": messages}).encode())
        planned = [type(command) is Pause for command in desk.done]
        assert least <= sum(planned) <= most
