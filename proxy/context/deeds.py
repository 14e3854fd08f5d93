"""What the tool calls of a history did: files with what was done to them, commands with their outcome, the last plan.

Rules. All of it is read from calls and their results by a few conventions: names of arguments, which are configured,
names of tools, and the ways in which tools tell an exit status. Where these say nothing, nothing is said; an outcome is
never guessed. Every text that is handed on is one bounded line, but for the plan, which is a list of such.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from proxy.context import rawjson
from proxy.context.conversation import Call, Conversation
from proxy.context.policy import CarryPolicy
from proxy.context.steps import Pace, Steps

LONGEST_COMMAND: Final = 160
LONGEST_STEP: Final = 200
LONGEST_ARGUMENT: Final = 60
"""Characters of one line."""

MOST_STEPS: Final = 40
MOST_ARGUMENTS: Final = 4

_VERBS: Final = (
    (re.compile(r"undo"), "undone"),
    (re.compile(r"delete|remove|unlink|(?:^|_)rm(?:$|_)"), "deleted"),
    (re.compile(r"move|rename|(?:^|_)mv(?:$|_)"), "moved"),
    (re.compile(r"edit|replace|patch|insert|append|update|modify|apply"), "edited"),
    (re.compile(r"write|create|save|touch"), "written"),
    (re.compile(r"list|glob|tree|(?:^|_)ls(?:$|_)"), "listed"),
    (re.compile(r"search|grep|find"), "searched"),
    (re.compile(r"read|view|open|cat|show|get|fetch|load"), "read"),
)
"""What a tool does to a file, by its name; the first match counts: `str_replace_editor` edits."""

_SUBCOMMANDS: Final = frozenset({"view", "create", "str_replace", "insert", "undo_edit", "delete", "rename"})
"""What editors of one tool take in an argument `command`; the tool's own name says less."""

_STATUS: Final = re.compile(
    r"(?:exit(?:ed)?[ _-]?(?:code|status)?(?: with(?: code)?)?|return[ _-]?code)[\"']?\s*[:=]?\s*(-?\d{1,5})\b",
    re.IGNORECASE,
)
_FAULT: Final = re.compile(
    r"^\W*(?:error|fatal|traceback|exception|bash: |sh: |usage: |command failed|permission denied)\b[^\n]*",
    re.IGNORECASE,
)
_PLANS: Final = re.compile(r"todo|(?:^|_)plan(?:$|_)|update_plan|task_?list", re.IGNORECASE)
_STEP_TEXTS: Final = ("content", "step", "text", "title", "task", "description", "name")
_STEP_STATES: Final = ("status", "state", "done", "completed")
_CHECKBOX: Final = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+\[[ xX~>-]\]\s+\S.*$", re.MULTILINE)


@dataclass(slots=True)
class Deeds:
    """What was done, each kind in the order in which it was last done.

    files     path -> what was done to it, each deed once
    commands  command -> its last outcome and how often it was run
    calls     name of another tool -> the short arguments that it was called with
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    commands: dict[str, tuple[str, int]] = field(default_factory=dict)
    calls: dict[str, list[str]] = field(default_factory=dict)
    plan: tuple[str, ...] = ()


_READ: Final = 20.0
"""Microseconds in which a round is read."""


def reading(conversation: Conversation, stop: int, policy: CarryPolicy) -> Steps[Deeds]:
    """All that the calls of `history[:stop]` did."""
    done, pace = Deeds(), Pace()
    for part in conversation.rounds:
        if part.start >= stop:
            break
        asking = conversation.history[part.start]
        if boxes := _CHECKBOX.findall(asking.text) if asking.is_assistant else None:
            done.plan = tuple(one_line(box, LONGEST_STEP) for box in boxes[:MOST_STEPS])
        for call in asking.calls:
            _note(done, call, _result(conversation, part.start, part.stop, call), policy)
        if pace.is_over(_READ * (1 + len(asking.calls))):
            yield
    return done


def _result(conversation: Conversation, start: int, stop: int, call: Call) -> str:
    """The text of a call's result; empty where it cannot be told."""
    results = [m for m in conversation.history[start + 1 : stop] if m.is_result]
    mine = [m for m in results if m.answers and m.answers == call.id] or (
        results if len(results) == 1 else []
    )
    return mine[0].text if mine else ""


def _note(done: Deeds, call: Call, result: str, policy: CarryPolicy) -> None:
    arguments = _arguments(call)
    if _PLANS.search(call.name) and (steps := tuple(_steps(arguments))):
        done.plan = steps
        return
    command = _named(arguments, policy.commands)
    paths = [text for text in _all_named(arguments, policy.paths) if text]
    is_sub = command in _SUBCOMMANDS
    if paths:
        for path in paths:
            _again(done.files, one_line(path, LONGEST_COMMAND), _verb(command if is_sub else call.name))
    elif command:
        line = one_line(command, LONGEST_COMMAND)
        _, times = done.commands.pop(line, ("", 0))
        done.commands[line] = (outcome(result), times + 1)
    else:
        _again(done.calls, one_line(call.name, LONGEST_ARGUMENT) or "a tool", _shown(arguments))


def _again(found: dict[str, list[str]], key: str, value: str) -> None:
    """Notes it as the newest."""
    values = found.pop(key, [])
    found[key] = [*(each for each in values if each != value), *([value] if value else [])]


def outcome(result: str) -> str:
    """How a command ended, as its result tells; empty where it tells nothing."""
    found = _STATUS.findall(result[-400:]) or _STATUS.findall(result[:400])
    if found:
        return f"exit {found[-1]}"
    fault = _FAULT.match(result)
    return one_line(fault[0], LONGEST_ARGUMENT) if fault else ""


def _verb(name: str) -> str:
    return next((verb for pattern, verb in _VERBS if pattern.search(name.lower())), "used")


def _arguments(call: Call) -> Mapping[str, object]:
    if call.is_custom:
        return {"input": call.arguments}
    try:
        value = rawjson.value(call.arguments.encode("utf-8", "surrogatepass"))
    except (rawjson.NotJSON, RecursionError):
        return {}
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _named(arguments: Mapping[str, object], names: Sequence[str]) -> str:
    return next(_all_named(arguments, names), "")


def _all_named(arguments: Mapping[str, object], names: Sequence[str]) -> Iterator[str]:
    """The texts of the arguments with these names, and of lists of them."""
    for name in names:
        match arguments.get(name):
            case str(text):
                yield text
            case [*items]:
                texts = [item for item in items if isinstance(item, str)]
                # A command may be a list of its words; several paths are a list of whole ones.
                yield from [" ".join(texts)] if name in ("command", "cmd") else texts


def _shown(arguments: Mapping[str, object]) -> str:
    """The short values of a call's arguments; texts of several lines are content and no name for anything."""
    texts = [str(value) for value in arguments.values() if isinstance(value, str | int) and str(value)]
    short = [text for text in texts if len(text) <= LONGEST_ARGUMENT and "\n" not in text]
    return ", ".join(short[:MOST_ARGUMENTS])


def _steps(arguments: Mapping[str, object]) -> Iterator[str]:
    """The lines of a plan: of the first argument that is a list of steps, else of one that is a text."""
    values = list(arguments.values())
    steps = next((value for value in values if isinstance(value, list) and value), None)
    if steps is None:
        text = next((value for value in values if isinstance(value, str) and "\n" in value), "")
        steps = [line for line in text.splitlines() if line.strip()]
    for step in steps[:MOST_STEPS]:
        if line := one_line(_step(step), LONGEST_STEP):
            yield line


def _step(step: object) -> str:
    if isinstance(step, str):
        return step
    fields = cast(dict[str, object], step) if isinstance(step, dict) else {}
    text = next((value for key in _STEP_TEXTS if isinstance(value := fields.get(key), str)), "")
    state = next((fields[key] for key in _STEP_STATES if key in fields), "")
    shown = {True: "done", False: "open"}.get(state, state) if isinstance(state, bool) else state
    return f"{text} ({shown})" if text and isinstance(shown, str) and shown else text


def one_line(text: str, limit: int) -> str:
    """The text as one line of at most so many characters, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
