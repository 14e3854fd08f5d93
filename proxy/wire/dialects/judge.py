"""Whether an answer refuses a prompt because the context is full, and what it tells of sizes.

Rules. A look-alike in any dialect decides against an overflow before anything can decide for one: an overflow that is
missed costs one error, a rate limit that is taken for one costs the conversation its history. Then one dialect after
the other is asked, in the order of the table, for sentences first and for codes after; the first reading with a window
is taken, else the first at all. What the model says is no error, whatever it quotes: of an answer with status 200 only
its errors are looked at, and only while the model has said nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from proxy.context import rawjson
from proxy.wire.dialects import envelope
from proxy.wire.dialects.envelope import MOST_BYTES, Refusal
from proxy.wire.dialects.rows import Overflow, best_of
from proxy.wire.dialects.table import DIALECTS

OTHER_MATTERS: Final = frozenset({401, 402, 403, 405, 407, 408, 429, 529})
"""Statuses of credentials, money, method, time, rate and load. Their bodies may speak of tokens, and of limits."""

WORDLESS: Final = frozenset({400, 413})

_FINE_CODES: Final = (None, "", 0, "0", 200, "200", "ok", "success")


def classify(status: int, body: bytes) -> Overflow | None:
    """The overflow that an answer reports, None for any other answer.

    `body` is decoded of its content encoding, and may be anything. With a status below 400 it is read as
    `classify_event` reads a frame.
    """
    if status in OTHER_MATTERS:
        return None
    if status < 400:
        return classify_event(body)
    return _judge(envelope.read(body))


def classify_event(data: bytes) -> Overflow | None:
    """The overflow that the first real frame of a stream reports, or a complete answer with status 200.

    `data` is that of one event (or the value of an `error:` field): JSON, with an error where servers put it, and with
    no word of the model beside it.
    """
    if len(data) > MOST_BYTES:
        return None
    try:
        value = rawjson.value(data)
    except rawjson.NotJSON:
        return None
    if isinstance(value, list) and len(value) == 1:  # Gemini streams the elements of an array.
        value = value[0]
    if not isinstance(value, dict) or not _reports_failure(value):
        return None
    return _judge(envelope.read_value(value))


def says_nothing(status: int, body: bytes) -> bool:
    """Whether a refusal has no words at all, as Cerebras refuses a prompt that is too long.

    Others refuse so for any reason. Only a caller that knows its prompt to be near the window, or over it, may take
    this for an overflow.
    """
    return status in WORDLESS and not body.strip()


def _judge(refusal: Refusal) -> Overflow | None:
    if any(dialect.denies(refusal) for dialect in DIALECTS):
        return None
    worded = best_of(dialect.by_wording(refusal) for dialect in DIALECTS)
    if worded is not None and worded.window is not None:
        return worded
    coded = best_of(dialect.by_code(refusal) for dialect in DIALECTS)
    if coded is not None and coded.window is not None:
        return coded
    if worded is not None:
        return worded
    return replace(coded, window=_any_window(refusal)) if coded is not None else None


def _any_window(refusal: Refusal) -> int | None:
    """A number that no known sentence explains; only where a code has said what the answer is."""
    windows = (dialect.window_in(refusal) for dialect in DIALECTS)
    return next((window for window in windows if window is not None), None)


def _reports_failure(answer: Mapping[str, object]) -> bool:
    """Whether a frame or answer can be an error: it says so in one of the known places, and the model says nothing."""
    choices = answer.get("choices")
    if choices is None:
        return bool(answer.get("error") or answer.get("error_type")) or _is_bare_error(answer)
    if not isinstance(choices, list) or not all(map(_is_silent, choices)):
        return False
    groq = answer.get("x_groq")
    failed = answer.get("error") or (isinstance(groq, dict) and groq.get("error"))
    return bool(failed) or any(_ends_at_once(choice) for choice in choices)


def _is_bare_error(answer: Mapping[str, object]) -> bool:
    """An error object without the member `error` around it."""
    if not isinstance(answer.get("message"), str):
        return False
    kind = answer.get("type")
    is_called_so = answer.get("object") == "error" or (isinstance(kind, str) and "error" in kind.lower())
    code = answer.get("code")
    return is_called_so or (isinstance(code, str | int) and code not in _FINE_CODES)


def _is_silent(choice: object) -> bool:
    """Whether a choice has no word of the model: at most a role."""
    if not isinstance(choice, dict) or choice.get("text"):
        return False
    spoken = choice.get("delta") or choice.get("message") or {}
    return isinstance(spoken, dict) and not any(value for key, value in spoken.items() if key != "role")


def _ends_at_once(choice: object) -> bool:
    return isinstance(choice, dict) and bool(choice.get("error") or choice.get("finish_reason"))
