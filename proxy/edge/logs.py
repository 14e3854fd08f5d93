"""The log: structured events of counts and fixed words, without keys and without text of conversations.

Rules. What goes into an event is chosen by who writes it, and redacted here all the same, at every level and in every
value. Of an exception only its type and its place are ever written: its message may quote what was being read. Records
of foreign libraries become events of the same kind, their arguments left out for the same reason.
"""

import asyncio
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from proxy.config import LogFormat, LogLevel, LogOptions

HIDDEN: Final = "***"

_SECRET_NAMES: Final = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "x-transom-token",
        "cookie",
        "set-cookie",
        "api_key",
        "key",
        "token",
        "access_token",
    }
)

# A credential in running text: a field with its value up to the end of the line or the next quote, a query parameter,
# a bearer token wherever it stands.
_IN_TEXT: Final = (
    re.compile(
        r"""((?:proxy-)?authorization|(?:x-)?(?:goog-)?api-key|x-transom-token|(?:set-)?cookie)(["']?\s*[:=,]\s*[bru]?["']?)[^"'\r\n]+""",
        re.IGNORECASE,
    ),
    re.compile(r"(\b(?:api_key|access_token|key|token))(=)[^&\s\"'#]+", re.IGNORECASE),
    re.compile(r"\b(bearer)(\s+)[^\s\"',]+", re.IGNORECASE),
)

_SUSPECT: Final = re.compile("auth|key|cookie|token|bearer", re.IGNORECASE)
"""Part of every text that one of the patterns finds something in, and of every secret's name; one look instead of
three."""


_LEVELS: Final[Mapping[LogLevel, int]] = MappingProxyType(
    {
        LogLevel.DEBUG: logging.DEBUG,
        LogLevel.INFO: logging.INFO,
        LogLevel.WARNING: logging.WARNING,
        LogLevel.ERROR: logging.ERROR,
    }
)


def build(options: LogOptions, stream: TextIO | None = None) -> FilteringBoundLogger:
    """A logger that writes to a stream, standard error by default. Nothing global is changed."""
    target = sys.stderr if stream is None else stream
    console = options.format is LogFormat.CONSOLE or (options.format is LogFormat.AUTO and target.isatty())
    shown = (structlog.dev.ConsoleRenderer(colors=target.isatty(), sort_keys=False),)
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Writer(target),
        processors=[
            _time_of_day if console else _Stamp(),
            _exceptions_as_places,
            *((_unfolded, Redaction(), *shown) if console else (_Lines(),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[options.level]),
    ).bind()  # or the library would make it anew for every event
    return logger


class _Writer(structlog.WriteLogger):
    """Writes lines. That a pipe is read by nobody any more, or a disk is full, is no fault of what was to be told."""

    def msg(self, message: str) -> None:
        """Write one, where that is possible."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warning = error = critical = msg


class _Lines:
    """Writes events as JSON. One whose line shows that there is nothing to redact in it is that line."""

    def __init__(self) -> None:
        self._redacted = Redaction()

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        """The event as it may be written."""
        with suppress(UnicodeEncodeError):  # half a character
            line = _line(event)
            if line and _shows_nothing(line):
                return line
        return msgspec.json.encode(self._redacted(logger, method, _unfolded(logger, method, event))).decode()


def _line(event: EventDict) -> str:
    """The event as it is, in JSON; empty where a value is neither number nor text."""
    fields = event.get(_FIELDS)
    if fields is None:
        return msgspec.json.encode(event).decode() if _is_plain(event) else ""
    beside = {name: value for name, value in event.items() if name != _FIELDS}
    if not _is_plain(beside):
        return ""
    return (msgspec.json.encode(fields)[:-1] + b"," + msgspec.json.encode(beside)[1:]).decode()


def _unfolded(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """An event whose fields are a struct, with each of them."""
    fields = event.pop(_FIELDS, None)
    return event if fields is None else {**msgspec.to_builtins(fields), **event}


_FIELDS: Final = "fields"
"""Under this name the fields of an event may be told together: a struct of numbers and texts."""


def _is_plain(event: Mapping[str, object]) -> bool:
    """Whether its values, and those of mappings in it, are numbers and texts."""
    if _SCALARS.issuperset(map(type, event.values())):
        return True
    deeper = [each for each in event.values() if type(each) not in _SCALARS]
    return all(type(each) is dict and _is_plain(each) for each in deeper)


def _shows_nothing(line: str) -> bool:
    """Whether a line of JSON has no character to escape, and no word with which a credential would be written."""
    if "\\" in line or not line.isprintable():
        return False
    text = line.lower().replace('tokens"', "")  # names of our own, of which nothing is a credential's
    suspect = "token" in text or "key" in text or "auth" in text
    return not (suspect or "cookie" in text or "bearer" in text)  # as in _SUSPECT, but several times as fast


class _Stamp:
    """Says of an event its level, and when it was in universal time; a second is written once."""

    def __init__(self) -> None:
        self._second = 0
        self._written = ""

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """The event with both."""
        second, rest = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._second, self._written = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        event["level"] = method
        event["timestamp"] = f"{self._written}.{rest // 1000:06}Z"
        return event


def _time_of_day(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The same for whoever looks on."""
    event["level"] = method
    event["timestamp"] = time.strftime("%H:%M:%S")
    return event


def place(fault: BaseException) -> str:
    """Where an exception was raised, as `file.py:line in function`; the file without its folders."""
    frames = traceback.extract_tb(fault.__traceback__)
    if not frames:
        return "unknown"
    last = frames[-1]
    return f"{last.filename.replace(chr(92), '/').rpartition('/')[2]}:{last.lineno} in {last.name}"


class Redaction:
    """Hides credentials in every value of an event, however deep; most of what is logged is said again and again."""

    def __init__(self) -> None:
        self._usual = lru_cache(maxsize=2048)(_clean)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """The event as it may be written."""
        return {
            key: value
            if type(value) in _HARMLESS and key not in _SECRET_NAMES
            else self._redacted(key, value)
            for key, value in event.items()
        }

    def _text(self, text: str) -> str:
        return self._usual(text) if len(text) <= _USUAL_TEXT else _clean(text)

    def _redacted(self, name: object, value: object) -> Any:
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        if isinstance(name, str) and name.lower() in _SECRET_NAMES and value is not None:
            return HIDDEN
        match value:
            case str():
                return self._text(value)
            case None | bool() | int() | float():
                return value
            case Mapping():
                return {key: self._redacted(key, each) for key, each in value.items()}
            case (str() | bytes() as first, second):  # a header field
                return [self._redacted(None, first), self._redacted(first, second)]
            case list() | tuple() | set() | frozenset():
                return [self._redacted(None, each) for each in value]
            case BaseException():
                return type(value).__name__
            case _:
                return self._text(str(value))


_HARMLESS: Final = frozenset({type(None), bool, int, float})
_SCALARS: Final = _HARMLESS | {str}
_USUAL_TEXT: Final = 300
"""Characters up to which a text is worth keeping."""


def _clean(text: str) -> str:
    if _SUSPECT.search(text) is not None:
        for pattern in _IN_TEXT:
            text = pattern.sub(rf"\g<1>\g<2>{HIDDEN}", text)
    if text.isprintable():
        return text
    # A path or a model's name is the client's to choose. What is not UTF-8 cannot be written, and what controls a
    # terminal, or begins a new line, would let it write the log.
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _exceptions_as_places(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    fault = event.pop("exc_info", None)
    if isinstance(fault, tuple):
        fault = fault[1]
    elif fault is True:
        fault = sys.exc_info()[1]
    if isinstance(fault, BaseException):
        event["exception"] = type(fault).__name__
        event["place"] = place(fault)
    return event


# ---------------------------------------------------------------------------------------- foreign libraries' records


class Foreign(logging.Handler):
    """Takes the standard library's log records and writes them as events: fixed words, type and place."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, without its arguments and without what was formatted into it before."""
        words = record.msg if record.args else _fixed_words(record.msg)
        self._log.log(record.levelno, "library", library=record.name, what=words, exc_info=record.exc_info)


@contextmanager
def adopted(log: FilteringBoundLogger) -> Iterator[None]:
    """While this lasts the libraries' records come here and nowhere else, and so do the event loop's own faults."""
    handler = Foreign(log)
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    loop.set_exception_handler(_reporter(log))
    try:
        yield
    finally:
        loop.set_exception_handler(before)
        for logger, propagate in zip(loggers, propagated, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate


_LIBRARIES: Final = ("aiohttp", "asyncio", "opentelemetry")

_FIXED_WORDS: Final = re.compile(r"[A-Za-z'.() ]*")


def _fixed_words(message: object) -> str:
    """How a message begins; behind its first words stand representations of whatever it is about."""
    said = _FIXED_WORDS.match(str(message))
    return said.group().strip() if said else ""


def _reporter(log: FilteringBoundLogger) -> Callable[[object, dict[str, Any]], None]:
    def report(loop: object, context: dict[str, Any]) -> None:
        log.error("loop_fault", what=_fixed_words(context.get("message")), exc_info=context.get("exception"))

    return report
