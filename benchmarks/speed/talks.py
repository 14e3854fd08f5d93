"""Long conversations that grow turn by turn, of recorded messages or of made-up ones.

Rules. No two conversations with different tags share a message, so that whoever remembers messages has seen none of a
new one. The same arguments give the same conversation. No call lacks its result, and no result its call, so that
nothing has to be mended.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

Message = dict[str, Any]
Round = list[Message]
"""Messages that belong together: one, or calls with their results."""

Source = Callable[[str], Iterator[Round]]
"""A tag -> rounds without end, whose messages all carry it."""

PLACE_OF_MODEL: Final = "@model@"
PLACE_OF_TAG: Final = "@tag@"

RESULT_LINES: Final = 40
NEW_RESULT_LINES: Final = 25
"""Of the turns that are added: a result of some two thousand characters, as an agent's step mostly brings."""


@dataclass(frozen=True, slots=True)
class Talk:
    """The bodies of a conversation's requests, each the one before and a turn more; the texts of the first."""

    bodies: tuple[bytes, ...]
    texts: tuple[str, ...]

    def under(self, model: str, tag: str) -> tuple[bytes, ...]:
        """The bodies for another model, with another tag; copying is much quicker than growing."""
        return tuple(
            body.replace(PLACE_OF_MODEL.encode(), model.encode(), 1).replace(
                PLACE_OF_TAG.encode(), tag.encode()
            )
            for body in self.bodies
        )


def grown(source: Source, size: int, turns: int) -> Talk:
    """A conversation whose first request has about `size` bytes, and so many turns after it."""
    tag = PLACE_OF_TAG
    said = f"You are a coding agent at work in the repository {tag}. Answer briefly."
    messages: list[Message] = [{"role": "system", "content": said}]
    raws = [_raw(messages[0])]
    total = len(raws[0])
    for group in source(tag):
        if total >= size:
            break
        messages += group
        raws += map(_raw, group)
        total += sum(len(_raw(message)) + 1 for message in group)
    asked: Message = {"role": "user", "content": f"[{tag}] Now read what is left, one file after the other."}
    messages.append(asked)
    raws.append(_raw(asked))
    texts = tuple(text for message in messages for text in _texts(message))
    bodies = [_body(raws)]
    for number in range(turns):
        raws += map(_raw, _step(f"{tag}-later", number, NEW_RESULT_LINES))
        bodies.append(_body(raws))
    return Talk(tuple(bodies), texts)


def _raw(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _body(raws: list[bytes]) -> bytes:
    return b'{"model":"%b","messages":[%b]}' % (PLACE_OF_MODEL.encode(), b",".join(raws))


def _texts(message: Message) -> Iterator[str]:
    if message.get("content"):
        yield message["content"]
    for call in message.get("tool_calls", ()):
        yield call["function"]["arguments"]


# --- recorded ---------------------------------------------------------------------------------------------------------


def recorded(folder: Path) -> Source:
    """The messages of all recorded conversations, one after the other and from the beginning again."""
    with (folder / "conversations.jsonl").open(encoding="utf-8") as lines:
        rounds = [group for line in lines for group in _rounds(json.loads(line)["messages"])]
    return lambda tag: (
        [_tagged(message, f"{tag}-{number}") for message in group]
        for number, group in enumerate(cycle(rounds))
    )


def _rounds(messages: list[Message]) -> Iterator[Round]:
    """The rounds of a conversation that are whole and of text alone."""
    groups: list[Round] = []
    for message in messages:
        if message["role"] == "tool" and groups:
            groups[-1].append(message)
        elif message["role"] in ("user", "assistant"):
            groups.append([message])
    for group in groups:
        calls = group[0].get("tool_calls") or ()
        are_texts = all(isinstance(message.get("content") or "", str) for message in group)
        if are_texts and [call["id"] for call in calls] == [each["tool_call_id"] for each in group[1:]]:
            yield group


def _tagged(message: Message, tag: str) -> Message:
    """A message like it that no other conversation has."""
    changed = {"role": message["role"], "content": message.get("content")}
    if changed["content"] is not None:
        changed["content"] = f"[{tag}] {changed['content']}"
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [call | {"id": f"{call['id']}-{tag}"} for call in calls]
    if "tool_call_id" in message:
        changed["tool_call_id"] = f"{message['tool_call_id']}-{tag}"
    return changed


# --- made up ----------------------------------------------------------------------------------------------------------

_TEXT: Final = (
    "the of and to in is that it for as with was on be by this are from at which or an have not but has they had were"
    " their one all can more if when some there other into than its only could time these two may then do first any"
    " new over such our man even most made after also many before must through back years where much your way down"
    " should because each just those people too mister how little state good very make world still own see men work"
    " long get here between both life being under never day same another know while last might us great old year off"
    " come since against go came right used take three request response handler server client session token window"
    " message buffer socket thread process memory cache index table column value key field error timeout retry limit"
    " configuration parser encoder decoder stream chunk header payload status upstream proxy connection pool worker"
    " queue task event loop callback exception warning release version branch commit merge review test fixture mock"
    " coverage benchmark latency throughput deadline schedule migration database transaction schema query result"
)
WORDS: Final = tuple(_TEXT.split())
NAMES: Final = (
    "request",
    "response",
    "session",
    "window",
    "payload",
    "retries",
    "limit",
    "cursor",
    "entry",
    "total",
)


class _Dice:
    """Numbers that look like chance and are the same in each run."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._drawn = 0
        self._left = b""

    def below(self, most: int) -> int:
        if len(self._left) < 2:
            self._left = hashlib.blake2b(f"{self._seed} {self._drawn}".encode()).digest()
            self._drawn += 1
        number, self._left = int.from_bytes(self._left[:2]), self._left[2:]
        return number * most >> 16

    def of(self, words: tuple[str, ...]) -> str:
        return words[self.below(len(words))]


def made_up(tag: str) -> Iterator[Round]:
    """An agent's run: now and then the user asks for something; calls that read files and logs, and an answer."""
    number = 0
    while True:
        dice = _Dice(f"{tag} {number}")
        yield [{"role": "user", "content": f"[{tag}-{number}] {_prose(dice, 3)}"}]
        for _ in range(8):
            number += 1
            yield _step(tag, number, RESULT_LINES)
        yield [{"role": "assistant", "content": f"[{tag}-{number}] {_prose(dice, 6)}"}]


def _step(tag: str, number: int, lines: int) -> Round:
    dice = _Dice(f"{tag} step {number}")
    path = f"src/{dice.of(NAMES)}/{dice.of(NAMES)}_{number}.py"
    function = {"name": "read_file", "arguments": json.dumps({"path": path, "lines": [1, lines]})}
    calls = [{"id": f"call-{tag}-{number}", "type": "function", "function": function}]
    content = (_prose, _code, _log)[number % 3](dice, lines)
    return [
        {"role": "assistant", "content": f"[{tag}-{number}] {_prose(dice, 1)}", "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"call-{tag}-{number}", "content": f"# {tag}-{number}\n{content}"},
    ]


def _prose(dice: _Dice, sentences: int) -> str:
    said = (" ".join(dice.of(WORDS) for _ in range(8 + dice.below(10))) for _ in range(sentences))
    return " ".join(f"{each.capitalize()}." for each in said)


def _code(dice: _Dice, lines: int) -> str:
    made = (
        f"    {dice.of(NAMES)}_{dice.of(WORDS)} = self.{dice.of(NAMES)}.{dice.of(WORDS)}({dice.of(NAMES)},"
        f" {dice.of(WORDS)}={dice.below(5000)})  # {dice.of(WORDS)} {dice.of(WORDS)}"
        for _ in range(lines)
    )
    return "\n".join(made)


def _log(dice: _Dice, lines: int) -> str:
    made = (
        f"2026-03-{1 + dice.below(28):02} {dice.below(24):02}:{dice.below(60):02}:{dice.below(60):02}"
        f".{dice.below(1000):03} INFO worker-{dice.below(16)} {dice.of(WORDS)} {dice.of(NAMES)}"
        f" /api/v1/{dice.of(NAMES)}/{dice.below(60000)} 200 in {dice.below(900)} ms"
        for _ in range(lines)
    )
    return "\n".join(made)
