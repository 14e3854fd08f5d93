"""Orders for side calls: which texts are shown, and how long the answer may be.

Rules. A summary is asked for within a bound that the window it will stand in sets, and what it is asked of fits the
window of the model that writes it: what does not is asked for in parts, oldest first, each of which continues the
summary of those before. An answer beyond its bound is clipped, whatever the model thought of that. Behind the
forwarded prompt itself a summary is asked for only where that prompt shows all that is to be summarised; the transcript
is always at hand instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from proxy.context import cuts, summary, transcript, view
from proxy.context.clip import clip
from proxy.context.edits import Edits
from proxy.context.planner import LONG
from proxy.context.policy import SummaryMode
from proxy.context.situation import NeedSummary, Situation
from proxy.context.steps import Steps
from proxy.context.summary import Given
from proxy.exchange.commands import Order
from proxy.exchange.verdict import Terms
from proxy.wire import chat
from proxy.wire.chat import ChatRequest

_SAFE_SHARE = 0.9
"""Of the room for a transcript: its tokens are only estimated."""

MOST_CALLS = 4
"""Side calls for one request: a history that no single one holds is summarised in so many parts at most."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Makes the orders of one request. `window` is the budget's, None when it is not known."""

    request: ChatRequest
    terms: Terms
    window: int | None
    cache_key: str | None = None
    """What the main call is given as its `prompt_cache_key`."""

    @property
    def most_tokens(self) -> int:
        """The most tokens that a summary may have."""
        return summary.most_tokens(self.terms.policy.summary.max_tokens, self.window)

    def bounded(self, text: str) -> str:
        """The summary within its bound."""
        most, tokens = self.most_tokens, self.terms.count(text)
        return text if tokens <= most else clip(text, len(text) * most // tokens)

    def ordering(
        self,
        need: NeedSummary,
        situation: Situation,
        chain: Sequence[str],
        edits: Edits,
        calls: int = MOST_CALLS,
    ) -> Steps[Order]:
        """The side call by which this need is met, or a first part of it where it takes more than one.

        `chain` names the prefixes of the history, `edits` are those of the last forwarded prompt, `calls` how many may
        still be made for this request.
        """
        transcribed = yield from self._of_transcript(need, situation, chain, calls)
        if self.terms.policy.summary.mode is SummaryMode.TRANSCRIPT or not self.terms.shares_cache:
            return transcribed
        behind = yield from self._behind_prompt(need, situation, chain, edits)
        return replace(behind, instead=transcribed) if behind else transcribed

    def _behind_prompt(
        self, need: NeedSummary, situation: Situation, chain: Sequence[str], edits: Edits
    ) -> Steps[Order | None]:
        """The order behind the forwarded prompt up to what is to be summarised; None where that does not show it, or
        leaves no room for the answer.
        """
        if not _shows(edits, need) or (yield from situation.making(edits)):
            return None
        told = summary.suffix_instructions(self._prompt, self._words, need.previous)
        stop = self._stop_with_room(need, situation, edits, self.terms.count(told))
        if stop is None:
            return None
        history = situation.conversation.history
        seen = yield from view.applying(situation.conversation, edits)
        length = len(seen.history) - (len(history) - stop)
        body = chat.suffix_call(
            self.request,
            [message.raw for message in view.ending_with(seen, length, told)],
            max_tokens=self.most_tokens,
            stream=self.terms.streams,
            cache_key=self.cache_key,
        )
        source = yield from transcript.source(history[need.start : stop], situation.sizes[need.start : stop])
        given = Given(
            source.characters + len(need.previous),
            "\n".join(map(view.source_text, seen.history[:length])),
            told,
            need.previous,
            in_sections=not self._prompt,
        )
        return Order(chain[stop - 1], body, given, SummaryMode.SUFFIX)

    def _stop_with_room(self, need: NeedSummary, situation: Situation, edits: Edits, told: int) -> int | None:
        """How far the forwarded prompt may go to leave room for an order of so many tokens and its answer: as far as
        the need goes, or less far where that brings the next prompt low enough too; None where neither is so.
        """
        limits = situation.limits
        if limits is None:
            return need.stop
        each = situation.message_tokens(edits)
        lead = situation.lead_tokens(edits.cut, each) if edits.cut else 0
        beside = situation.fixed + lead + summary.FRAME_TOKENS + told + self.most_tokens
        upto = list(accumulate(each[edits.start : need.stop], initial=beside))
        stops = [stop for stop in cuts.possible(situation, edits) if need.start < stop <= need.stop]
        fitting = [stop for stop in stops if upto[stop - edits.start] <= limits.ceiling]
        if not fitting:
            return None
        block = self.most_tokens + situation.carry_tokens
        is_enough = (
            fitting[-1] == need.stop
            or cuts.size_after(situation, edits, fitting[-1], block) <= limits.halfway
        )
        return fitting[-1] if is_enough else None

    @property
    def _prompt(self) -> str:
        """Instructions of the user's own, if there are any."""
        return self.terms.policy.summary.prompt or self.terms.summary_prompt

    @property
    def _words(self) -> int:
        return int(self.most_tokens * summary.WORDS_PER_TOKEN)

    def _of_transcript(
        self, need: NeedSummary, situation: Situation, chain: Sequence[str], calls: int
    ) -> Steps[Order]:
        policy = self.terms.policy.summary
        system = summary.instructions(self._prompt, self._words, need.previous)
        room = self._room(system + need.previous, situation)
        place = slice(need.start, need.stop)
        source = yield from transcript.source(situation.conversation.history[place], situation.sizes[place])
        if len(source.messages) > LONG:
            yield
        between = [cut for cut in situation.conversation.safe_cuts if need.start < cut < need.stop]
        usable = [cut - need.start for cut in between if cut > 1 or cuts.removes_something(situation, cut)]
        source = source.before(transcript.part(source, usable, room, calls, policy.item_characters))
        texts = yield from summary.ordering(
            source, need.previous, system=system, item_characters=policy.item_characters, room=room
        )
        body = chat.side_call(
            texts,
            model=self.terms.summary_model or self.request.model,
            max_tokens=self.most_tokens,
            limit_name="" if self.terms.summary_model else self.request.output_limit_name,
            reasoning_effort=self.terms.reasoning_effort,
            stream=self.terms.streams,
        )
        key = chain[need.start + len(source.messages) - 1]
        given = Given(
            source.characters + len(need.previous), texts.shown + need.previous, system, need.previous
        )
        return Order(key, body, given)

    def _room(self, beside: str, situation: Situation) -> float | None:
        """Tokens for a transcript in the window of the model that summarises; None where that is unknown."""
        own = situation.limits.window if situation.limits else None
        window = self.terms.summary_window if self.terms.summary_model else own
        if window is None:
            return None
        taken = self.most_tokens + summary.FRAME_TOKENS + self.terms.count(beside)
        return max(1.0, (window - taken) * _SAFE_SHARE)


def _shows(edits: Edits, need: NeedSummary) -> bool:
    """Whether the view under these edits has everything that the summary is to be of, and what it continues."""
    cut = edits.cut
    if cut is None:
        return need.start == 0 and not need.previous
    return cut.stop == cut.summarised == need.start and cut.summary == need.previous
