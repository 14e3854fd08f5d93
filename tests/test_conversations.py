"""Whole conversations as stateless clients send them, on a strict upstream, with the exact cost of each.

Every summary differs from every other, so that a mix-up of two conversations or a second side call for one cut shows.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.context import invariants, rawjson
from proxy.context.policy import ModelPolicy, SummaryPolicy
from proxy.demo.rules import Accepted, Memory
from proxy.exchange import Order, Save
from tests.desk import about, count
from tests.replay import ReplayDesk, Sizes

WINDOW = 3000
POLICY = ModelPolicy(window=WINDOW, reserve_output=300, summary=SummaryPolicy(prepare_at=0))
SYSTEM = {"role": "system", "content": "You are a tester."}
Talk = list[dict[str, Any]]


class Upstream(ReplayDesk):
    """Counts four characters a token on both sides, and names each summary after the call that wrote it."""

    def answer_to(self, order: Order) -> str:
        return f"summary number {self.side_calls} of what was said: {about(order)} " + "s" * 200


@dataclass
class Run:
    """One client's requests and what became of them."""

    desk: Upstream
    views: list[list[Any]] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    cuts: int = 0

    def send(self, talk: Sequence[dict[str, Any]], system: dict[str, Any] = SYSTEM) -> list[Any]:
        """One request; the forwarded history."""
        body = json.dumps({"model": "m", "messages": [system, *talk]}).encode()
        verdict = self.desk.run(body)
        assert isinstance(self.desk.verdict, Accepted), self.desk.verdict
        original, view = (self.desk.reader.read(_messages(each)) for each in (body, self.desk.body))
        assert invariants.broken(original, view) == []
        self.cuts += sum(isinstance(command, Save) for command in self.desk.done)
        self.desk.done.clear()
        self.views.append([json.loads(m.raw) for m in view.history])
        self.over.append((verdict.original or 0) > WINDOW)
        return self.views[-1]

    def extends(self) -> list[bool]:
        """For each over-window request after the first: whether its prompt begins with the one before."""
        pairs = zip(self.views, self.views[1:], self.over[1:], strict=False)
        return [later[: len(earlier)] == earlier for earlier, later, over in pairs if over]


def _messages(body: bytes) -> list[bytes]:
    return rawjson.elements(rawjson.members(body)["messages"])


def run(policy: ModelPolicy = POLICY, desk: Upstream | None = None) -> Run:
    return Run(desk or Upstream(policy, window=WINDOW, sizes=Sizes(count), upstream_memory=Memory()))


def step(number: int, size: int = 600) -> Talk:
    call = {"id": f"c{number % 3}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number % 3}", "content": f"<{number}> " + "x" * size},
    ]


def turn(number: int, who: str = "", size: int = 300) -> Talk:
    return [
        {"role": "user", "content": f"{who} question {number} " + "q" * size},
        {"role": "assistant", "content": f"{who} answer {number} " + "a" * size},
    ]


def growing(talk: Talk, parts: Iterator[Talk]) -> Iterator[Talk]:
    for part in parts:
        talk = [*talk, *part]
        yield talk


def agent(steps: int) -> Iterator[Talk]:
    return growing([{"role": "user", "content": "the task"}], (step(n) for n in range(steps)))


def chat(turns: int, who: str = "") -> Iterator[Talk]:
    """Before each answer."""
    for talk in growing([], (turn(n, who) for n in range(turns))):
        yield talk[:-1]


def share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def test_b74_a_growing_agent_loop_asks_at_most_once_a_cut_and_mostly_extends() -> None:
    client = run()
    for talk in agent(100):
        client.send(talk)
    assert client.desk.side_calls <= client.cuts
    assert client.desk.side_calls <= 8
    assert share(client.extends()) >= 0.8


def test_a_plain_chat_asks_once_a_cut_and_mostly_extends() -> None:
    client = run()
    for talk in chat(100):
        client.send(talk)
    assert client.desk.side_calls == client.cuts
    assert client.desk.side_calls <= 20
    assert share(client.extends()) >= 0.75


def test_a_chat_with_tools_extends_too() -> None:
    client = run()
    talks = growing([], (part for n in range(50) for part in (turn(n)[:1], step(n), turn(n)[1:])))
    for talk in talks:
        if talk[-1]["role"] != "assistant":
            client.send(talk)
    assert client.desk.side_calls <= client.cuts
    assert share(client.extends()) >= 0.75


def test_b113_two_interleaved_chats_with_one_system_prompt_and_one_first_message_never_mix() -> None:
    desk = run().desk
    ada, bob = run(desk=desk), run(desk=desk)
    same = turn(0)
    for mine, yours in zip(chat(60, "ada"), chat(60, "bob"), strict=True):
        a, b = ada.send([*same, *mine]), bob.send([*same, *yours])
        assert "bob" not in json.dumps(a)
        assert "ada" not in json.dumps(b)
        assert not set(_summaries(a)) & set(_summaries(b))
    assert desk.side_calls == ada.cuts + bob.cuts
    assert share(ada.extends()) >= 0.75


def _summaries(view: list[Any]) -> list[str]:
    text = json.dumps(view)
    return [text[i : i + 18] for i in range(len(text)) if text.startswith("summary number", i)]


def test_a_clock_in_the_system_prompt_costs_no_checkpoint() -> None:
    client = run()
    for number, talk in enumerate(chat(100)):
        client.send(talk, {"role": "system", "content": f"It is {number} o'clock."})
    assert client.desk.side_calls == client.cuts
    assert share(client.extends()) >= 0.75


def test_a_reminder_put_into_mid_history_on_each_turn_and_taken_out_again_is_survived() -> None:
    client = run()
    for talk in agent(60):
        reminder = {"role": "user", "content": "Reminder: the tests must pass."}
        client.send([*talk[:-2], reminder, *talk[-2:]])
    assert client.desk.side_calls <= 12


def test_b115_an_edited_message_cuts_anew_and_going_back_finds_the_old_cut() -> None:
    client = run()
    talk = list(chat(18))[-1]
    edited = [*talk[:2], {"role": "user", "content": "an edited question"}, *talk[3:]]
    first = client.send(talk)
    other = client.send(edited)
    assert client.desk.side_calls == 2
    assert client.send(talk) == first
    assert client.send(edited) == other
    assert client.desk.side_calls == 2


def test_b116_after_the_clients_own_compaction_nothing_of_ours_is_added() -> None:
    client = run()
    client.send(list(chat(18))[-1])
    own = [{"role": "user", "content": "My own summary of it all."}]
    assert client.send(own) == own


def test_a_rewind_by_five_turns_costs_no_side_call() -> None:
    client = run()
    talks = list(chat(40))
    for talk in talks:
        client.send(talk)
    asked = client.desk.side_calls
    client.send(talks[-6])
    assert client.desk.side_calls == asked


def test_an_identical_retry_gets_identical_bytes_without_a_side_call() -> None:
    client = run()
    talk = list(chat(18))[-1]
    assert client.send(talk) == client.send(talk)
    assert client.desk.side_calls == 1


def test_b25_three_hundred_turns_keep_side_calls_few_and_their_input_bounded() -> None:
    client = run()
    inputs = []
    for talk in chat(300):
        before = client.desk.side_calls
        client.send(talk)
        inputs += [client.desk.last_order_characters] * (client.desk.side_calls - before)
    assert client.desk.side_calls <= 60
    assert max(inputs) <= 2 * WINDOW * 4
    assert all(len(json.dumps(view)) <= WINDOW * 4 for view in client.views)


def test_a_summary_written_ahead_is_used_at_the_trigger_and_not_before() -> None:
    waiting = run()
    client = run(replace(POLICY, summary=SummaryPolicy(prepare_at=0.7)))
    for talk in chat(60):
        client.send(talk)
        waiting.send(talk)
    assert client.desk.waited_for == 0
    assert client.desk.side_calls - client.cuts in (0, 1), "the last may wait for a trigger still"
    assert [len(view) for view in client.views[:6]] == [len(view) for view in waiting.views[:6]]
    assert share(client.extends()) >= 0.75


def test_b75_the_same_conversation_gets_the_same_bytes_in_another_process() -> None:
    program = (
        "from tests.test_conversations import *; client = run()\n"
        "for talk in [*agent(40), *chat(20, 'another')]: client.send(talk)\n"
        "print(client.cuts, client.views)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (output,) = outputs
    assert int(output.split()[0]) > 1


def test_a_replica_that_finds_the_stored_edits_forwards_the_same_bytes() -> None:
    whole, first = run(), run()
    talks = list(chat(40))
    expected = [whole.send(talk) for talk in talks]
    seen = [first.send(talk) for talk in talks[:20]]
    second = run()
    second.desk.checkpoints = first.desk.checkpoints
    second.desk.stored = first.desk.stored
    second.desk.side_calls = first.desk.side_calls
    second.desk.calibration = first.desk.calibration
    seen += [second.send(talk) for talk in talks[20:]]
    assert seen == expected
