"""What is carried of removed messages beside their summary, taken from them by rule and not by a model.

Rules. Written once, when history is cut or a result is elided, and kept in the checkpoint, so that the prompt stays as
it is until the next cut. It says what was left out, the last plan, files with what was done to them, commands with
their outcome, and then names, those used most and last first, as many as the bound leaves room for. What stands in the
prompt anyway is not carried. Each text in it is one line, and none of the conversation can pass for our frame.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import log2
from types import MappingProxyType

from proxy.context import deeds, names, view
from proxy.context.conversation import Kind, Message
from proxy.context.deeds import Deeds
from proxy.context.edits import Edits
from proxy.context.names import Finder, Shape
from proxy.context.situation import LEAST_CARRIED, Situation
from proxy.context.steps import Pace, Steps

FIRST_LINE = "[Carried over from messages that are left out, as background. Taken from them without a model:]"
LAST_LINE = "[End of what is carried over.]"

PLAN_TITLE = "Last plan:"

PLAN_SHARE = 0.2
DEEDS_SHARE = 0.35
"""Shares of the bound that the plan, and plan, files, commands and calls together take at most."""

_WEIGHTS = MappingProxyType({Kind.USER: 3.0, Kind.ASSISTANT: 4.0, Kind.RESULT: 1.0})
_OF_CALLS = 4.0
"""What a name is worth by who wrote it: what was put into a call was of use already."""

_OLDEST = 0.5
"""What the oldest mention counts beside the newest."""

_MOST_CALLS = 12
"""The newest calls of one tool that are named."""

_CROWD = 20
"""Names of one message from which on each counts less: a listing of all files says little of any of them."""

_DIGIT = 2 / 3
"""Tokens that a digit takes beyond our count of it: many vocabularies take every digit for one, ours three."""

_LOOKED_AT, _SCORED, _COUNTED, _COUNTED_CHARACTER = 2.0, 1.0, 5.0, 0.15
"""Microseconds in which it is told whether a message is lost, in which a name gets a score, in which a line or a name
is written and counted, and for each of its characters."""

Count = Callable[[str], int]


def writing(situation: Situation, edits: Edits) -> Steps[Edits]:
    """These edits with what they carry in the block of a new cut."""
    cut, room = edits.cut, situation.carry_tokens
    if not room or cut is None or cut.facts is not None:
        return edits
    bare = edits.with_cut(replace(cut, facts=""))
    room = min(room, _room(situation, bare))
    facts = (yield from _facts(situation, bare, room)) if room >= LEAST_CARRIED else ""
    return edits.with_cut(replace(cut, facts=facts))


def _room(situation: Situation, edits: Edits) -> int:
    """Tokens between the view and the trigger."""
    bare = situation.bare_tokens(edits)
    return situation.limits.trigger - situation.recall_tokens - bare if situation.limits else 0


# --- the block of a cut -------------------------------------------------------------------------------------


def _facts(situation: Situation, edits: Edits, room: int) -> Steps[str]:
    """What is carried through a cut, within so many tokens."""
    cut = edits.cut
    assert cut is not None
    count = _wary(situation.count)
    done = yield from deeds.reading(situation.conversation, cut.stop, situation.policy.carry)
    head = [FIRST_LINE, _left_out(situation.conversation.history[: cut.stop])]
    left = room - count("\n".join([*head, LAST_LINE]))
    lines = [*head, *(yield from _deed_lines(done, count, room, left))]
    seen = yield from _visible(situation, edits)
    seen.update(names.names_in("\n".join(lines)).keys())
    spare = room - count("\n".join([*lines, LAST_LINE]))
    lost = yield from _lost(situation, edits)
    ranked = yield from _ranked(situation, lost, seen, spare)
    lines += yield from _name_lines(ranked, count, spare)
    return "\n".join([*lines, LAST_LINE])


def _wary(count: Count) -> Count:
    """The same count with each digit for one."""
    return lambda text: count(text) + int(sum(map(str.isdigit, text)) * _DIGIT)


def _left_out(history: Sequence[Message]) -> str:
    """One sentence with the numbers."""
    calls = sum(len(message.calls) for message in history)
    users = sum(message.is_user for message in history)
    assistants = sum(message.is_assistant for message in history)
    return f"Left out: {len(history)} messages, {users} of the user, {assistants} of the assistant, {calls} tool calls."


def _deed_lines(done: Deeds, count: Count, room: int, left: int) -> Steps[list[str]]:
    """What was done, within its share of the room and within what the frame leaves of it."""
    spare, written = min(int(room * DEEDS_SHARE), left), list[str]()
    for title, lines, most in (
        (PLAN_TITLE, done.plan, int(room * PLAN_SHARE)),
        ("Files:", _file_lines(done), spare),
        ("Commands, last outcome:", _command_lines(done), spare),
        ("Other calls:", _call_lines(done), spare),
    ):
        own = count(title) + 1
        kept = yield from _within((f"  {line}" for line in lines), count, min(spare, most) - own)
        if kept:
            spare -= own + sum(count(line) + 1 for line in kept)
            # The newest were taken first; they read in the order in which they were done.
            written += [title, *(kept if title == PLAN_TITLE else reversed(kept))]
    return written


def _within(lines: Iterable[str], count: Count, room: int) -> Steps[list[str]]:
    kept, pace = list[str](), Pace()
    for line in lines:
        cost = count(line) + 1
        if cost <= room:
            room -= cost
            kept.append(line)
        if pace.is_over(_COUNTED + _COUNTED_CHARACTER * len(line)):
            yield
    return kept


def _file_lines(done: Deeds) -> Iterator[str]:
    """A line for each directory, the one with the newest deed first."""
    for directory, members in names.tree(reversed(done.files)).items():
        deeds_of = ((name, done.files.get(directory + name, ())) for name in members)
        shown = ", ".join(f"{name} ({', '.join(each)})" if each else name for name, each in deeds_of)
        yield f"{directory} {shown}" if directory else shown


def _command_lines(done: Deeds) -> Iterator[str]:
    for command, (outcome, times) in reversed(done.commands.items()):
        often = f" ({times} times)" if times > 1 else ""
        yield f"{command}{often}{' -> ' + outcome if outcome else ''}"


def _call_lines(done: Deeds) -> Iterator[str]:
    for name, arguments in reversed(done.calls.items()):
        yield f"{name}: {'; '.join(arguments[-_MOST_CALLS:])}" if arguments else name


# --- names --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lost:
    """A message of which something does not stand in the prompt any more."""

    index: int
    text: str
    arguments: str = ""


def _lost(situation: Situation, edits: Edits) -> Steps[list[_Lost]]:
    """What the view shows no more: of removed messages all, of elided results the text."""
    history = situation.conversation.history
    elided = {rewrite.index for rewrite in edits.rewrites}
    lost, pace = list[_Lost](), Pace()
    for index, message in enumerate(history):
        if not view.keeps(situation.conversation, edits, index):
            calls = "\n".join(call.arguments for call in message.calls)
            lost.append(_Lost(index, message.text, calls))
        elif index in elided:
            lost.append(_Lost(index, message.text))
        if pace.is_over(_LOOKED_AT):
            yield
    return lost


def _visible(situation: Situation, edits: Edits) -> Steps[Counter[str]]:
    """Names that stand in the prompt anyway."""
    seen: Counter[str] = Counter()
    finder = Finder()
    for message in (yield from view.applying(situation.conversation, edits)).messages:
        for text in (message.text, *(call.arguments for call in message.calls)):
            seen.update((yield from finder.finding(text)))
    return seen


def _ranked(
    situation: Situation, lost: Sequence[_Lost], seen: Container[str], most: int
) -> Steps[Sequence[str]]:
    """So many names of what is lost and not seen, those first that were used often and of late and are short."""
    scores, finder, pace = dict[str, float](), Finder(), Pace()
    history = situation.conversation.history
    for each in lost:
        recency = _OLDEST + (1 - _OLDEST) * each.index / len(history)
        own = _WEIGHTS.get(history[each.index].kind, 1.0)
        for text, weight in ((each.text, own), (each.arguments, _OF_CALLS)):
            found = yield from finder.finding(text)
            each_one = weight * recency / (1 + len(found) / _CROWD) ** 0.5
            for name, number in found.items():
                scores[name] = scores.get(name, 0.0) + each_one * (1 + log2(number))
                if pace.is_over(_SCORED):
                    yield
    worth = dict[str, float]()
    for name, score in scores.items():
        if name not in seen:
            worth[name] = score / (4 + len(name)) ** 0.5
        if pace.is_over(_SCORED):
            yield
    return nsmallest(most, worth, key=lambda name: (-worth[name], name))


def _name_lines(ranked: Sequence[str], count: Count, room: int) -> Steps[list[str]]:
    """As many of these names as fit, sorted by what they are."""
    low, high, pace = 0, len(ranked), Pace()
    while low < high:
        middle = (low + high + 1) // 2
        text = "\n".join(_sorted_out(ranked[:middle]))
        if pace.is_over(_COUNTED * middle + _COUNTED_CHARACTER * len(text)):
            yield
        if count(text) <= room:
            low = middle
        else:
            high = middle - 1
    return list(_sorted_out(ranked[:low]))


def _sorted_out(ranked: Sequence[str]) -> Iterator[str]:
    """Lines of names: paths by directory, identifiers, and values of other kinds."""
    kinds: dict[Shape, list[str]] = {shape: [] for shape in Shape}
    for name in ranked:
        kinds[names.shape_of(name)].append(name)
    if kinds[Shape.PATH]:
        yield "Other paths that were mentioned:"
        for directory, members in names.tree(sorted(kinds[Shape.PATH])).items():
            yield f"  {directory} {', '.join(members)}" if directory else f"  {', '.join(members)}"
    if kinds[Shape.IDENTIFIER]:
        yield f"Identifiers: {', '.join(kinds[Shape.IDENTIFIER])}"
    if kinds[Shape.VALUE]:
        yield f"Numbers, dates and codes: {', '.join(kinds[Shape.VALUE])}"
