"""The forms in which knowledge of upstreams is written down: rows of data, each with its evidence beside it.

Rules. A pattern is written for plain text (see `envelope.plain`): lower case, single spaces, no quotation marks but the
apostrophe, no thousands separators. It is searched anywhere in the text; its repetitions are bounded, and nothing that
holds one is repeated, so that no body makes it slow. A number means something only by the name of its group. What lies
outside the bounds is no number of tokens, and is as if it had not been said.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from proxy.wire.dialects.counters import Counter
from proxy.wire.dialects.discovery import Field, believable
from proxy.wire.dialects.envelope import Refusal

_DIGITS: Final = r"[0-9]{1,24})(?![0-9])(?:\.[0-9]{1,6})?"
"""The inside of a group, closed, and a fraction behind it: some print counts as floats (72417.0)."""

WINDOW: Final = rf"(?P<window>{_DIGITS}"
PROMPT: Final = rf"(?P<prompt>{_DIGITS}"
COMPLETION: Final = rf"(?P<completion>{_DIGITS}"
EXTRA: Final = rf"(?P<extra>{_DIGITS}"
"""Tokens that belong to the prompt and are told apart from it: tools."""
ANY: Final = r"-?[0-9]{1,24}(?:\.[0-9]{1,6})?"
"""A number that is not wanted: a total, a count of characters."""
ABOUT: Final = r"(?P<about>about )?"
AT_LEAST: Final = r"(?P<least>at least )?"

_MOST_COUNTED: Final = 1_000_000_000


class Exactness(Enum):
    """How the server means the size of the prompt."""

    EXACT = auto()
    ABOUT = auto()  # an estimate of its own
    AT_LEAST = auto()  # it stopped counting once it was too much


@dataclass(frozen=True, slots=True)
class Overflow:
    """A refusal because prompt, or prompt and answer together, are more than the server takes. Sizes in tokens.

    `dialect`: the name of the file here that recognised it. `window`: as the server says it. That may be the limit of
    the prompt alone, or one less than the window (Fireworks); it is never a size of characters or bytes. `prompt`:
    with what tools take; `prompt_is` says how exact it is, and EXACT means nothing where there is none. `completion`:
    the tokens of the answer that were reckoned with. Where `prompt` is below `window`, it is the completion that does
    not fit. None: not said, or not believable.
    """

    dialect: str
    window: int | None = None
    prompt: int | None = None
    prompt_is: Exactness = Exactness.EXACT
    completion: int | None = None


@dataclass(frozen=True, slots=True)
class Wording:
    """A sentence that says one thing only. `stops_counting`: a prompt of one token too many means "at least"."""

    written: str
    evidence: str
    stops_counting: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern for plain text, compiled when it is first asked for: all of them take long at the start."""
        return re.compile(self.written, re.ASCII)  # which has a memory for what it has compiled

    def read(self, dialect: str, text: str) -> Overflow | None:
        """What this plain text says, if it is this sentence."""
        found = self.pattern.search(text)
        if found is None:
            return None
        groups = found.groupdict()
        said = Overflow(
            dialect,
            window=believable(_whole(groups.get("window"))),
            prompt=_prompt(groups),
            prompt_is=Exactness.ABOUT if groups.get("about") else Exactness.EXACT,
            completion=_counted(_whole(groups.get("completion"))),
        )
        is_bound = groups.get("least") or (self.stops_counting and _is_one_too_many(said))
        return replace(said, prompt_is=Exactness.AT_LEAST) if is_bound else said


def wording(pattern: str, evidence: str, *, stops_counting: bool = False) -> Wording:
    """A row."""
    return Wording(pattern, evidence, stops_counting)


@dataclass(frozen=True, slots=True)
class Code:
    """A value, in lower case, that `code`, `type`, `status` or the like has for one thing only.

    `window`, `prompt`, `completion`: the members beside it that hold the numbers, where there are such.
    """

    value: str
    evidence: str
    window: str = ""
    prompt: str = ""
    completion: str = ""

    def read(self, dialect: str, refusal: Refusal) -> Overflow | None:
        """What this answer says, if it has the code."""
        if self.value not in refusal.codes:
            return None
        numbers = refusal.numbers
        return Overflow(
            dialect,
            window=believable(numbers.get(self.window)),
            prompt=_counted(numbers.get(self.prompt)) or None,
            completion=_counted(numbers.get(self.completion)),
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """All that is known of one upstream, or of a family that speaks alike.

    `name`: that of its file. `wordings` and `codes`: what says that the context is full. `lookalikes` and
    `lookalike_codes`: what sounds like it and is something else; one of any dialect decides against an overflow.
    `numbers`: asked for a window where a code alone has said what it is. `windows`: where the window is
    told before anything is refused. `counters`: where a request is counted before it is sent.
    """

    name: str
    wordings: tuple[Wording, ...] = ()
    codes: tuple[Code, ...] = ()
    lookalikes: tuple[Wording, ...] = ()
    lookalike_codes: tuple[Code, ...] = ()
    numbers: tuple[Wording, ...] = ()
    windows: tuple[Field, ...] = ()
    counters: tuple[Counter, ...] = ()

    def by_wording(self, refusal: Refusal) -> Overflow | None:
        """The first sentence that gives a window, else the first that is one of these."""
        return best_of(row.read(self.name, text) for row in self.wordings for text in refusal.texts)

    def by_code(self, refusal: Refusal) -> Overflow | None:
        """The first code with a window beside it, else the first that is one of these."""
        return best_of(code.read(self.name, refusal) for code in self.codes)

    def denies(self, refusal: Refusal) -> bool:
        """Whether this is one of the look-alikes."""
        if any(code.value in refusal.codes for code in self.lookalike_codes):
            return True
        return any(row.pattern.search(text) for row in self.lookalikes for text in refusal.texts)

    def window_in(self, refusal: Refusal) -> int | None:
        """A window in the text beside a code."""
        readings = (row.read(self.name, text) for row in self.numbers for text in refusal.texts)
        return next((read.window for read in readings if read is not None and read.window is not None), None)


def best_of(readings: Iterable[Overflow | None]) -> Overflow | None:
    """The first reading that gives a window, else the first that there is; later ones are not made."""
    first: Overflow | None = None
    for read in readings:
        if read is not None and read.window is not None:
            return read
        first = first or read
    return first


def _whole(digits: str | None) -> int | None:
    return int(digits) if digits else None


def _prompt(groups: Mapping[str, str | None]) -> int | None:
    parts = [_whole(groups.get(name)) for name in ("prompt", "extra")]
    return _counted(sum(part or 0 for part in parts)) or None if parts[0] is not None else None


def _is_one_too_many(said: Overflow) -> bool:
    return said.window is not None and said.prompt == said.window + 1 - (said.completion or 0)


def _counted(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= _MOST_COUNTED else None
