"""Old passages that the newest round touches on: found in what is left out, and shown again behind it.

Rules. Nothing but the client's own resent history is searched, by words alone (BM25), and the same request finds the
same. The edits name passages by their place and hold none of their text. A passage is shown once as long as it stands
in the prompt; what shares no telling word with the newest round is not shown at all. Passages stand behind the newest
message's own text, in a frame that calls them background.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import log, log2
from typing import Final

from proxy.context import names, view
from proxy.context.conversation import Conversation, Message
from proxy.context.edits import Edits, Passage, Recalled
from proxy.context.names import Finder
from proxy.context.situation import LEAST_RECALLED, Situation
from proxy.context.steps import Pace, Steps

PASSAGE: Final = 200
"""Characters of a passage, about; it ends at a line's end where one is near."""

MOST_CHARACTERS: Final = 2_000_000
"""The newest characters of what is left out that are searched; a search of so many takes some tenths of a second."""

MOST_TERMS: Final = 40
"""The rarest words of the newest round that are looked for."""

QUERY_CHARACTERS: Final = 6000
"""Of each text of the newest round, head and tail of so many characters are asked with."""

LONGEST_QUESTION: Final = 1000
"""Characters of a user's message that is read word by word; in a longer one names tell more than its words."""

_K1, _B = 1.2, 0.5
"""BM25's usual constants; passages are of about one length."""

_NEAR_BEST = 0.3
"""The share of the best passage's score that another must have."""

_NEIGHBOUR = 0.5
"""The part of a passage's score that the passages beside it get."""

_MOST_LOOKED_AT = 60
"""The passages by score that are looked at for names."""

_COMMON = 0.2
"""A word in more than this share of the passages tells nothing."""

_CUT_OUT, _SEARCHED = 2.0, 0.2
"""Microseconds in which a passage is made, and in which it is searched for a word."""

_WORD = re.compile(r"[a-z0-9_\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff]{3,}")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")
_ENDINGS = ("ing", "ed", "es", "s")
_SHORTEST_STEM = 4


def finding(situation: Situation, edits: Edits) -> Steps[Edits]:
    """These edits with the passages for the newest message, if it touches on any."""
    conversation, newest = situation.conversation, len(situation.conversation.history) - 1
    room = _room(situation, edits)
    if room < LEAST_RECALLED or not _may_take(conversation.history[newest]):
        return edits
    passages = yield from _passages(conversation, edits)
    if not passages:
        return edits
    taken = {passage for each in edits.recalled for passage in each.passages}
    query = yield from _query(situation, edits)
    ranked = yield from _ranked(passages, query)
    chosen, tokens = _within(situation, ranked, taken, room)
    if not chosen:
        return edits
    recalled = Recalled(newest, tuple(sorted(chosen)), tokens)
    return replace(edits, recalled=(*edits.recalled, recalled))


def _room(situation: Situation, edits: Edits) -> int:
    """Tokens for the passages: what is allowed and what the view leaves under the trigger."""
    if situation.limits is None or not situation.may_recall(edits):
        return 0
    bare = situation.bare_tokens(edits)
    return min(situation.recall_tokens, situation.limits.trigger - bare)


def _may_take(message: Message) -> bool:
    """Whether passages may stand behind this message: one that the model is about to answer, and no begun answer."""
    return message.is_user or message.is_result


# --- what is searched ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A passage and its text, also in small letters."""

    passage: Passage
    text: str
    small: str


def _text(passage: Passage, text: str) -> _Text:
    piece = text[passage.start : passage.stop]
    return _Text(passage, piece, piece.lower())


def _passages(conversation: Conversation, edits: Edits) -> Steps[list[_Text]]:
    """The passages of what the view does not show, in the order of the conversation."""
    elided = {rewrite.index for rewrite in edits.rewrites}
    found: list[list[_Text]] = []
    left, pace = MOST_CHARACTERS, Pace()
    for index in range(len(conversation.history) - 1, -1, -1):
        if view.keeps(conversation, edits, index) and index not in elided:
            continue
        text = view.source_text(conversation.history[index])
        if (left := left - len(text)) < 0:
            break
        found.append([])
        for piece in _pieces(text):
            found[-1].append(_text(Passage(index, *piece), text))
            if pace.is_over(_CUT_OUT):
                yield
    return [each for passages in reversed(found) for each in passages]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        stop = start + PASSAGE
        if stop < len(text):
            line = text.rfind("\n", start + PASSAGE // 2, stop)
            space = text.rfind(" ", start + PASSAGE // 2, stop)
            stop = line + 1 if line >= 0 else space + 1 if space >= 0 else stop
        yield start, min(stop, len(text))
        start = stop


# --- the search ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Query:
    """What is looked for. `asks`: in the user's words; else a passage is worth the names that are not `shown` yet."""

    terms: Sequence[str]
    asks: bool
    shown: Set[str]


def _ranked(passages: Sequence[_Text], query: _Query) -> Steps[list[_Text]]:
    """The passages worth showing, the best first."""
    scores = [0.0] * len(passages)
    average = sum(len(each.text) for each in passages) / len(passages)
    for hits in (yield from _telling(query.terms, passages)):
        rarity = log(1 + (len(passages) - len(hits) + 0.5) / (len(hits) + 0.5))
        for place, number in hits.items():
            length = 1 - _B + _B * len(passages[place].text) / average
            scores[place] += rarity * number * (_K1 + 1) / (number + _K1 * length)
    scores = _spread(scores)
    best = max(scores) * _NEAR_BEST
    order = sorted(range(len(passages)), key=lambda place: (-scores[place], -place))
    near = [place for place in order if scores[place] > best][:_MOST_LOOKED_AT]
    if not query.asks:
        worth = {place: scores[place] * log2(1 + _news(passages[place], query.shown)) for place in near}
        near = sorted((place for place in near if worth[place]), key=lambda place: (-worth[place], -place))
    return [passages[place] for place in near]


def _news(passage: _Text, shown: Set[str]) -> int:
    """The names in a passage that the prompt does not show."""
    return sum(name not in shown for name in names.names_in(passage.text))


def _spread(scores: Sequence[float]) -> list[float]:
    """Each passage with a part of what its neighbours in time score: the answer stands behind what asks the same."""
    padded = [0.0, *scores, 0.0]
    return [own + _NEIGHBOUR * max(padded[place], padded[place + 2]) for place, own in enumerate(scores)]


def _telling(terms: Sequence[str], passages: Sequence[_Text]) -> Steps[list[dict[int, int]]]:
    """Of the rarest terms that occur the number of times by passage."""
    most, telling, pace = max(2, int(len(passages) * _COMMON)), list[tuple[str, dict[int, int]]](), Pace()
    for term in terms:
        if 0 < len(places := _hits(term, passages)) <= most:
            telling.append((term, places))
        if pace.is_over(len(passages) * _SEARCHED):
            yield
    return [places for _, places in sorted(telling, key=lambda each: (len(each[1]), each[0]))[:MOST_TERMS]]


def _hits(term: str, passages: Sequence[_Text]) -> dict[int, int]:
    return {place: number for place, each in enumerate(passages) if (number := each.small.count(term))}


def _query(situation: Situation, edits: Edits) -> Steps[_Query]:
    """The words of the user, and of results and calls the names that are new to the prompt. What the prompt speaks of
    all along touches on nothing that is gone."""
    history, start = situation.conversation.history, situation.protected_from
    shown: Counter[str] = Counter()
    finder = Finder()
    for index in range(edits.start, start):
        shown.update((yield from finder.finding(view.source_text(history[index]))))
    terms: dict[str, None] = {}
    asks = False
    for message in history[start:]:
        text = _ends(view.source_text(message))
        found = names.names_in(text)
        terms.update((name.lower(), None) for name in found if name not in shown)
        if message.is_user and len(text) <= LONGEST_QUESTION:
            asks = True
            terms.update((word, None) for word in _words(text.lower()))
    for message in history[start:]:
        shown.update((yield from finder.finding(view.source_text(message))))
    return _Query(list(terms), asks, shown.keys())


def _ends(text: str) -> str:
    half = QUERY_CHARACTERS // 2
    return text if len(text) <= QUERY_CHARACTERS else f"{text[:half]} {text[-half:]}"


def _words(text: str) -> Iterator[str]:
    """The words of a text without their endings; of scripts without spaces, each pair of characters."""
    yield from map(_stem, _WORD.findall(text))
    for run in _UNSPACED.findall(text):
        yield from (run[place : place + 2] for place in range(len(run) - 1))


def _stem(word: str) -> str:
    """The word without an ending of its number or tense; the rest is found within other forms of it."""
    ending = next(
        (end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= _SHORTEST_STEM), ""
    )
    return word.removesuffix(ending)


def _within(
    situation: Situation, ranked: Sequence[_Text], taken: set[Passage], room: int
) -> tuple[list[Passage], int]:
    """As many of the best as fit, and their tokens with the frame."""
    conversation, count = situation.conversation, situation.count
    tokens = count(view.recalled_text(conversation, ()))
    chosen: list[Passage] = []
    for passage in (each.passage for each in ranked):
        if passage in taken:
            continue
        cost = count(view.passage_text(conversation, passage)) + 1
        if tokens + cost > room:
            break
        chosen.append(passage)
        tokens += cost
    return chosen, tokens
