"""One request with everything that is known of it: what to plan from, what to save, change and say.

Rules. Everything here is a function of the request, its terms and what the edge has answered so far; nothing is asked
for from here. The client's numbers and the upstream's are calibrated tokens, those of a situation raw ones.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from msgspec import Struct, structs

from proxy.context import budget, calibration, checkpoint, own_summary, pins, planner, rawjson, summary, view
from proxy.context.budget import Budget, Window
from proxy.context.calibration import Anchor, Expected, Prompt, Report
from proxy.context.conversation import Conversation, Message
from proxy.context.edits import NOTHING, Edits, encode
from proxy.context.planner import Plan
from proxy.context.policy import CacheKey, Count, Mode
from proxy.context.repair import repair
from proxy.context.situation import Limits, NeedSizes, NeedSummary, Situation
from proxy.context.steps import Steps
from proxy.context.tokens import Size, request_size
from proxy.exchange.changes import CACHE_KEY, Changes
from proxy.exchange.commands import (
    NO_WINDOW,
    PAUSE,
    Learn,
    Measured,
    Memory,
    Order,
    Outcome,
    Pause,
    SideCallFailed,
    Summarised,
)
from proxy.exchange.orders import MOST_CALLS, Orders
from proxy.exchange.verdict import SideCall, Terms, Verdict
from proxy.wire import chat
from proxy.wire.chat import ChatRequest


@dataclass(frozen=True, slots=True)
class Draft:
    """What is there so far: summaries by the prefix that they cover, sizes of what edits made, side calls."""

    summaries: Mapping[int, str | None] = field(default_factory=dict)
    made: Mapping[bytes, Size] = field(default_factory=dict)
    side_calls: tuple[SideCall, ...] = ()

    def sized(self, need: NeedSizes, measured: Measured) -> "Draft":
        """With the sizes that were needed."""
        sizes = {message.raw: size for message, size in zip(need.messages, measured.sizes, strict=True)}
        return replace(self, made={**self.made, **sizes})


class Sound(Struct, frozen=True, dict=True):
    """A request whose history upstreams accept in its order.

    `chain` names the prefixes of the history, `opening` is the name of its first round (empty without a history), `who`
    that of tenant, upstream and model. `repaired` counts the messages that it took.
    """

    request: ChatRequest
    conversation: Conversation
    chain: tuple[str, ...]
    opening: str
    who: str
    repaired: int = 0

    @cached_property
    def asks_for_summary(self) -> bool:
        """Whether the client itself asks for a summary of this conversation."""
        return own_summary.is_asked_for(self.conversation)

    @cached_property
    def mark(self) -> str:
        """Digest of what the count depends on beside the messages."""
        parts = (*self.request.extras, b"", *self.request.reasoning)
        return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


MOST_RECOVERIES = 2
"""Times that one request is planned again after a refusal."""

PEEK_FROM = 0.5
PEEK_FROM_TOKENS = 2000
"""Share of the window, and tokens where none is known, over which a stream may turn out to be a refusal."""

FAR_BELOW = 0.5
"""Share of the estimate; natural text was never counted at less than 0.75 of it."""

WORTH_SUMMARIES = 4
"""So many times the size of a summary is what one that is prepared takes in beside the one that it goes on from."""

LEAST_CUT = 1024
"""Tokens; a smaller window is not believed for a report that stood still: some servers report constants."""

MISCOUNTED = 1.05
MISCOUNTED_BY = 50
"""A report of more than so many times a count and so many tokens is that of another prompt: with the tools, say, or
with a prompt of the host's own. A lower one tells nothing: it may be the prompt that was cut."""

NEAR = 0.1
NEAR_AT_FIRST = 0.3
"""Share of the trigger within which `count: auto` asks the upstream: in a conversation whose last count is known, and
in one that is new."""

LINKS_AT_ONCE = 1024
"""Messages that are chained without a pause; each takes some three microseconds when it is new."""

MOST_ANCHORS = 4
"""Conversations with one beginning whose counts are kept."""


def sound(request: ChatRequest, terms: Terms) -> Generator[Pause, Outcome, Sound]:
    """The request as it will be planned, and the names of its history's prefixes."""
    conversation, repaired = request.conversation, 0
    if terms.policy.repair and terms.mode is Mode.MANAGE:
        conversation, repaired = repair(conversation, terms.policy.orphans)
    seed = checkpoint.seed(terms.tenant, terms.upstream, request.model)
    history = conversation.history
    if len(history) <= LINKS_AT_ONCE:
        names = checkpoint.chain(history, seed)
    else:
        names = yield from _chained(history, seed)
    stop = conversation.first_stop
    return Sound(request, conversation, names, names[stop - 1] if stop else "", seed.hex(), repaired)


def _chained(history: Sequence[Message], seed: bytes) -> Generator[Pause, Outcome, tuple[str, ...]]:
    """The names of a long history's prefixes."""
    names: list[str] = []
    for start in range(0, len(history), LINKS_AT_ONCE):
        yield PAUSE
        link = bytes.fromhex(names[-1]) if names else seed
        names += checkpoint.chain(history[start : start + LINKS_AT_ONCE], link)
    return tuple(names)


def _remembering(count: Callable[[str], int]) -> Callable[[str], int]:
    """The same count; the few texts of our own making are counted again and again while a request is planned."""
    known: dict[str, int] = {}

    def remembered(text: str) -> int:
        if text not in known:
            known[text] = count(text)
        return known[text]

    return remembered


@dataclass(frozen=True)
class Case:
    """Decides for one request, in raw and calibrated tokens."""

    sound: Sound
    terms: Terms
    memory: Memory
    measured: Measured
    discovered: Window | None = None
    """What the upstream tells of the model's window; asked only where none is configured."""
    counted: tuple[int, int] | None = None
    """Raw tokens of a prompt, and what the upstream counted of it before it was sent."""
    uncounted: "Case | None" = None
    """The same case without that count."""

    @property
    def request(self) -> ChatRequest:
        return self.sound.request

    @property
    def chain(self) -> tuple[str, ...]:
        return self.sound.chain

    @cached_property
    def anchor(self) -> Anchor | None:
        """The newest count of this very conversation, made with the same tools and settings."""
        marked = (each for each in self.memory.anchors if each.mark == self.sound.mark)
        mine = (each for each in marked if each.tip in self.chain)
        return max(mine, key=lambda each: self.chain.index(each.tip), default=None)

    @property
    def begun_anchor(self) -> Anchor:
        """The anchor as it goes on with this request, before anything is counted of it."""
        return structs.replace(self.anchor or Anchor("", self.sound.mark), tip=self.chain[-1])

    @cached_property
    def prompt(self) -> Prompt:
        """The request as its client made it."""
        sizes, extras = self.measured.sizes, self.measured.extras
        stays, turns = len(self.sound.conversation.head), self.sound.conversation.turn_starts
        if len(turns) == 1:  # the one request of an agent's run, which every cut leaves where it is
            stays += turns[0] + 1
        return Prompt(request_size(sizes, extras), request_size(sizes[:stays], extras))

    @cached_property
    def expected(self) -> Expected:
        """What the upstream will count."""
        policy = self.terms.policy.calibration
        return calibration.expect(self.memory.calibration, self.anchor, policy, self.prompt)

    @cached_property
    def window(self) -> Window | None:
        """The window to go by; None while nobody knows."""
        return budget.believed(self.terms.policy.window, self.discovered, self.memory.window)

    @property
    def stated(self) -> int:
        """The window that configuration or upstream state, in tokens; 0 where neither does."""
        return self.terms.policy.window or (self.discovered.tokens if self.discovered else 0)

    @cached_property
    def budget(self) -> Budget | None:
        """None while the window is unknown."""
        policy = self.terms.policy
        return budget.work_out(
            self.window.tokens if self.window else None,
            self.request.output_limit,
            reserve_output=policy.reserve_output,
            margin=policy.margin,
            caution=self._caution(),
            compact_at=policy.compact_at,
            compact_to=policy.compact_to,
        )

    def _caution(self) -> float:
        if self.terms.policy.calibration.is_off:
            return 0.0
        return budget.caution(
            knows_model=self.memory.calibration.samples > 0,
            knows_conversation=self.expected.uncut is not None,
        )

    @cached_property
    def limits(self) -> Limits | None:
        """The budget in raw tokens: the trigger of a prompt that grew, all else of one that will have been cut."""
        known = self.budget
        if known is None:
            return None
        grown, cut = self.expected.grown.raw, self.expected.cut.raw
        return Limits(
            window=cut(known.window),
            ceiling=cut(known.ceiling),
            budget=cut(known.tokens),
            trigger=grown(known.trigger),
            # The share of our tokens: what an upstream adds to every prompt is no history that could be cut.
            target=int(cut(known.tokens) * self.terms.policy.compact_to),
        )

    @cached_property
    def situation(self) -> Situation:
        """What the planner sees before anything more is known."""
        conversation, policy = self.sound.conversation, self.terms.policy
        head = len(conversation.head)
        return Situation(
            conversation=conversation,
            sizes=self.measured.sizes[head:],
            fixed=request_size(self.measured.sizes[:head], self.measured.extras),
            policy=policy,
            limits=self.limits,
            count=_remembering(self.terms.count),
            pinned=pins.pinned(conversation, policy),
        )

    @cached_property
    def orders(self) -> Orders:
        window = self.budget.window if self.budget else None
        return Orders(self.request, self.terms, window, self._cache_key())

    # --- the upstream's own count ---------------------------------------------------------------------------------

    @property
    def may_be_counted(self) -> bool:
        """Whether the policy lets the upstream be asked for its count at all."""
        return self.terms.policy.count is not Count.LOCAL and bool(self.chain)

    def is_worth_counting(self, raw: int) -> bool:
        """Whether the upstream is asked about a prompt of so many raw tokens."""
        match self.terms.policy.count:
            case Count.LOCAL:
                return False
            case Count.UPSTREAM:
                return True
            case Count.AUTO:
                near = NEAR if self.expected.uncut is not None else NEAR_AT_FIRST
                trigger = self.budget.trigger if self.budget else 0
                return abs(self.tokens(raw) - trigger) <= near * trigger

    def body_of(self, seen: Conversation) -> bytes:
        """The client's body with these messages."""
        if seen is self.request.conversation:
            return self.request.body
        return chat.with_members(self.request, {"messages": chat.messages_member(seen)})

    def with_count(self, raw: int, tokens: int | None) -> "Case":
        """The same with what the upstream counted of a prompt of so many raw tokens."""
        if tokens is None:
            return self
        report, policy = Report(raw, tokens, self.prompt), self.terms.policy.calibration
        mine = calibration.counted(self.memory.calibration, self.begun_anchor, report, policy)
        others = tuple(each for each in self.memory.anchors if each is not self.anchor)
        memory = replace(self.memory, anchors=(mine, *others))
        return replace(self, memory=memory, counted=(raw, tokens), uncounted=self)

    def anchor_refused(self, raw: int, tokens: int) -> Anchor:
        """The anchor after a refusal that told the exact count of so many raw tokens."""
        report, policy = Report(raw, tokens, self.prompt), self.terms.policy.calibration
        return calibration.refused(self.memory.calibration, self.begun_anchor, report, policy)

    def is_miscounted(self, raw: int | None, reported: float | None) -> bool:
        """Whether the upstream itself reports more for a prompt than it counted of that very prompt before."""
        if self.counted is None or reported is None:
            return False
        counted_raw, counted = self.counted
        return raw == counted_raw and reported > MISCOUNTED * counted + MISCOUNTED_BY

    # --- planning ---------------------------------------------------------------------------------------------

    def begun(self) -> Draft:
        """What the stores hold: summaries by the length of the prefix that they cover."""
        if not self.memory.summaries:
            return Draft()
        stored = self.memory.summaries
        places = enumerate(self.chain, start=1)
        return Draft({stop: self.orders.bounded(stored[key]) for stop, key in places if key in stored})

    def bounded(self, draft: Draft) -> Draft:
        """The draft with its summaries within what this case's window allows."""
        bound = self.orders.bounded
        return replace(draft, summaries={k: text and bound(text) for k, text in draft.summaries.items()})

    def planning(self, draft: Draft) -> Steps[Plan | NeedSummary | NeedSizes]:
        """The next step of the ladder; nothing at all unless the mode is to manage."""
        if self.terms.mode is not Mode.MANAGE:
            return Plan(NOTHING, self.situation.tokens(NOTHING))
        return (yield from planner.planning(self.drafted(draft), self.memory.edits or NOTHING))

    def drafted(self, draft: Draft) -> Situation:
        """What the planner sees with what is there so far."""
        return replace(self.situation, summaries=draft.summaries, made=draft.made)

    def removed(self, draft: Draft, edits: Edits, verdict: Verdict) -> int | None:
        """Raw tokens that these edits take away beside those that were found; None where they are the same."""
        if not edits or edits == self.memory.edits or verdict.raw is None:
            return None
        return max(0, self.drafted(draft).tokens(self.memory.edits or NOTHING) - verdict.raw)

    def frame(self, edits: Edits) -> str:
        """Digest of all that a prompt is made of beside the history: the system head, tools and settings, edits."""
        head = (message.raw for message in self.sound.conversation.head)
        parts = (self.sound.mark.encode(), encode(edits) if edits else b"", *head)
        return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()

    def told(self, draft: Draft, need: NeedSummary, outcome: Outcome) -> Draft:
        """What is there after one more side call. A need that was not met at all is not asked for again; where a
        summary of less came, one that was under way, the rest may be."""
        match outcome:
            case Summarised(key=key, text=text, usage=usage):
                found = {self.chain.index(key) + 1: self.orders.bounded(text)}
                told = SideCall("used", usage)
            case SideCallFailed(reason=reason, usage=usage):
                found = {}
                told = SideCall(reason, usage)
            case _:
                raise TypeError(f"the edge answered {type(outcome).__name__} to a side call")
        unmet = {} if any(stop > need.start for stop in found) else {need.stop: None}
        summaries = {**unmet, **draft.summaries, **found}
        return replace(draft, summaries=summaries, side_calls=(*draft.side_calls, told))

    def key_for(self, edits: Edits) -> str:
        """The name of a prefix that these edits depend on no more of, and that is newer than the checkpoint's.

        Deeper edits may depend on the same prefix as those they replace; a newer name keeps the two apart, and is what
        the next request finds first.
        """
        found = self.memory.checkpoint_id
        newer = self.chain.index(found) + 2 if found in self.chain else 1
        return self.chain[min(max(self._answered(edits), newer), len(self.chain)) - 1]

    def _answered(self, edits: Edits) -> int:
        """Length of the shortest prefix in which all that is edited has been answered.

        A client may go back to where an edited message was the newest, which stays whole then.
        """
        history = self.sound.conversation.history
        edited = edits.last_edited
        if edited is None:
            return edits.speaks_about
        answers = (index for index in range(edited + 1, len(history)) if history[index].is_assistant)
        return max(edits.speaks_about, next(answers, len(history) - 1) + 1)

    def may_ask(self, draft: Draft) -> bool:
        """Whether one more side call is made for this request."""
        return self.memory.may_ask and len(draft.side_calls) < MOST_CALLS

    def ordering(self, need: NeedSummary, draft: Draft) -> Steps[tuple[Order, frozenset[str]]]:
        """The side call that this need is answered by, and the prefixes whose summaries would do as well."""
        return self._ordering(need, draft, self.memory.edits or NOTHING)

    def _ordering(self, need: NeedSummary, draft: Draft, edits: Edits) -> Steps[tuple[Order, frozenset[str]]]:
        left = max(1, MOST_CALLS - len(draft.side_calls))
        order = yield from self.orders.ordering(need, self.drafted(draft), self.chain, edits, left)
        start = max(need.start, self.memory.edits.start if self.memory.edits else 0)
        # Of what was dropped meanwhile a first part ends before all that is still in view.
        return order, frozenset((*order.keys, *self.chain[start : self.situation.protected_from]))

    def ahead(self, edits: Edits, draft: Draft) -> Steps[tuple[Order, frozenset[str]] | None]:
        """The summary that the trigger will need, once the view has come near it; None when none is to be prepared."""
        share, limits = self.terms.policy.summary.prepare_at, self.limits
        if not share or limits is None or self.terms.mode is not Mode.MANAGE or not self.memory.may_ask:
            return None
        if self.sound.asks_for_summary:
            return None  # whoever compacts goes on with another history
        situation = replace(self.situation, summaries=self.begun().summaries, made=draft.made)
        if (yield from situation.making(edits)):
            return None  # another replica's edits won, and nobody needed their sizes
        tokens = situation.tokens(edits)
        if not limits.budget * share < tokens <= limits.trigger:
            return None
        # Planned for the day of the trigger: what is appended until then must fit the target too.
        later = replace(situation, to_come=limits.trigger + 1 - tokens)
        step = yield from planner.planning(later, edits)
        if not isinstance(step, NeedSummary) or not _is_worth(step, situation, edits):
            return None
        return (yield from self._ordering(step, Draft(made=draft.made), edits))

    # --- what is said and changed -------------------------------------------------------------------------------

    def verdict(self, draft: Draft, checkpoint_id: str | None, edits: Edits) -> Verdict:
        """The verdict as it stands when nothing is rewritten."""
        raw = request_size(self.measured.sizes, self.measured.extras)
        covered = edits.cut.summarised if edits.cut else 0
        return Verdict(
            self.request.model,
            self.terms.mode,
            window=self.window.tokens if self.window else None,
            window_source=self.window.source if self.window else "",
            trigger=self.budget.trigger if self.budget else None,
            original=self.tokens(raw),
            forwarded=self.tokens(raw),
            raw=raw,
            usage_based=self.expected.uncut is not None,
            side_calls=draft.side_calls,
            checkpoint_id=checkpoint_id,
            summary_id=self.chain[covered - 1] if covered else None,
            pins=len(self.situation.pinned),
            pins_kept=sum(view.keeps(self.sound.conversation, edits, i) for i in self.situation.pinned),
            factor=self.memory.calibration.line(self.terms.policy.calibration).slope,
            frame=self.frame(edits),
        )

    def rewritten(self, verdict: Verdict, sizes: Sequence[Size]) -> Verdict:
        """The verdict with the sizes of the view."""
        raw = request_size(sizes, self.measured.extras)
        return structs.replace(verdict, raw=raw, forwarded=self.tokens(raw))

    def tokens(self, raw: int) -> int:
        """What the upstream is expected to count of so many raw tokens."""
        return round(self.expected.tokens(raw))

    def followed(self, verdict: Verdict) -> Anchor | None:
        """This conversation's anchor after the answer; None where that told no count, or one that says nothing of the
        text: the cost of pictures is a guess."""
        if verdict.raw is None or verdict.reported is None or not self.chain:
            return None
        if any(size.has_media for size in self.measured.sizes):
            return None
        report, policy = Report(verdict.raw, verdict.reported, self.prompt), self.terms.policy.calibration
        return calibration.follow(self.memory.calibration, self.begun_anchor, report, policy)

    def seems_cut(self, verdict: Verdict, after: Anchor) -> bool:
        """Whether this answer's count is that of a server which silently cut the prompt; `after` is the anchor then."""
        if verdict.reported is None or verdict.raw is None:
            return False
        least = FAR_BELOW * min(verdict.raw, verdict.forwarded or 0)
        is_long = verdict.raw >= self.terms.policy.calibration.min_tokens
        return (is_long and verdict.reported < least) or after.seems_cut

    def _stands_still(self, verdict: Verdict) -> bool:
        if self.anchor is None or verdict.raw is None or verdict.reported is None:
            return False
        return calibration.stands_still(self.anchor, verdict.raw, verdict.reported)

    def lesson(self, verdict: Verdict, after: Anchor) -> Learn | None:
        """What the answer taught, which makes `after` the anchor.

        None of one to the client's own request for a summary: the counts of a conversation go on from its last turn.
        """
        if verdict.reported is None or self.sound.asks_for_summary:
            return None
        is_still = self._stands_still(verdict)
        others = tuple(each for each in self.memory.anchors if each is not self.anchor)
        return Learn(
            self.request.model,
            raw_tokens=None if is_still else verdict.raw,
            reported_tokens=None if is_still else verdict.reported,
            opening=self.sound.opening,
            anchors=(after, *others)[:MOST_ANCHORS],
            who=self.sound.who,
            window=self._proved(after, verdict.reported),
        )

    def _proved(self, anchor: Anchor, served: int) -> Window | None:
        """What the answer proves of the window; None where it is nothing new."""
        if self.memory.window is not None and served > self.memory.window.tokens:
            return NO_WINDOW  # a prompt larger than what was proved has just been served
        cut = anchor.cut_to
        if cut is None or cut < LEAST_CUT or (self.window is not None and cut >= self.window.tokens):
            return None
        return Window(cut, budget.SILENT_CUT)

    def reason(self, verdict: Verdict) -> str:
        """Why the prompt is larger than it should be; a fixed word for the log, empty when all is well."""
        if self.budget is None or (verdict.forwarded or 0) <= self.budget.tokens:
            return ""
        if self.terms.mode is not Mode.MANAGE:
            return "observed_only"
        fixed = self.expected.cut.tokens(self.situation.fixed)
        return "head_and_tools_over_budget" if fixed > self.budget.tokens else "over_budget"

    def peeks(self, verdict: Verdict, attempt: int) -> bool:
        """Whether a stream's beginning is worth waiting for: the prompt is long, and could be sent once more."""
        least = self.window.tokens * PEEK_FROM if self.window else PEEK_FROM_TOKENS
        could_be = self.terms.mode is Mode.MANAGE and self.request.stream and attempt <= MOST_RECOVERIES
        return could_be and verdict.forwarded is not None and verdict.forwarded > least

    def changes(self, seen: Conversation, verdict: Verdict, recovered: int = 0) -> Changes:
        """All that is changed in the body."""
        if self.terms.mode is not Mode.MANAGE:
            return Changes({})
        members = {}
        announced = [f"repair={self.sound.repaired}"] if self.sound.repaired else []
        announced += [f"recover={recovered}"] if recovered else []
        if seen is not self.request.conversation:
            members["messages"] = chat.messages_member(seen)
        if limit := self._lowered_limit(verdict):
            members[self.request.output_limit_name] = str(limit).encode()
            announced.append(f"max_tokens={limit}")
        if key := self._cache_key():
            members[CACHE_KEY] = rawjson.encode(key)
            announced.append(CACHE_KEY)
        spliced = Changes.splicing(self.request, self.terms.policy, refuses_usage=self.memory.refuses_usage)
        announced += spliced.announced
        return Changes({**members, **spliced.members}, tuple(announced), spliced.strip_usage)

    def _cache_key(self) -> str | None:
        """The same for all requests of a conversation: made of its tenant, model and first round."""
        wanted = self.terms.policy.prompt_cache_key is CacheKey.AUTO and not self.request.has_cache_key
        return self.sound.opening or None if wanted else None

    def _lowered_limit(self, verdict: Verdict) -> int | None:
        """The output limit that fits beside the prompt, where the client's own does not."""
        asked = self.request.output_limit
        if not self.terms.policy.clamp_max_tokens or self.budget is None or asked is None:
            return None
        room = self.budget.answer_room(verdict.forwarded or 0)
        return room if budget.LEAST_ANSWER <= room < asked else None


def _is_worth(need: NeedSummary, situation: Situation, edits: Edits) -> bool:
    """Whether a summary may be written ahead of what this need adds to the one before.

    Where no cut reaches the target, the one that was prepared never goes far enough; to go on from it at every turn
    would have the same sentences written anew each time, each time for one more message.
    """
    if need.start <= (edits.cut.summarised if edits.cut else 0) or situation.limits is None:
        return True
    most = summary.most_tokens(situation.policy.summary.max_tokens, situation.limits.window)
    return sum(situation.message_tokens(edits)[need.start : need.stop]) >= WORTH_SUMMARIES * most
