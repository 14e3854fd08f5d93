"""Long requests are read and chained in steps, which come to the same as reading at once."""

import json
from collections.abc import Sequence

import pytest

from proxy.context import checkpoint
from proxy.context.conversation import Message, read_message
from proxy.context.policy import ModelPolicy
from proxy.context.reader import MOST_VALUES_OF_ONE, Reader
from proxy.context.steps import Steps, T
from proxy.exchange import Pause
from proxy.wire import chat
from proxy.wire.chat import ChatRequest, NotManaged
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
    _, steps = counted(message.make_digest())
    assert steps >= 5
    assert message.digest == same.digest
    assert counted(message.make_digest()) == (None, 1)


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
    for messages, least, most in ((1000, 0, 0), (10_001, 4, 20)):
        desk = Desk(ModelPolicy(window=2000, strategies=("drop",)))
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
