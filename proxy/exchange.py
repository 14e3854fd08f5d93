"""The course of one chat request, as a flat generator: it yields commands and is sent their outcomes.

Rules. Nothing here does anything: no I/O, no clock, no log; the edge performs each command and sends its outcome back,
so a test drives a whole exchange with values. The client's very bytes are what is sent unless there is an edit to
apply or one of the announced changes to make, and every change is in the verdict's actions. A body is sent again only
when it differs from the one that was refused.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from proxy.context import budget, checkpoint, planner, rawjson, summary
from proxy.context.budget import Budget
from proxy.context.calibration import UNCALIBRATED, Calibration
from proxy.context.checkpoint import Edits
from proxy.context.conversation import Conversation, Message
from proxy.context.planner import Plan
from proxy.context.policy import CacheKey, Mode, ModelPolicy, OnOverflow, UsageMode
from proxy.context.situation import Limits, NeedSummary, Situation
from proxy.context.tokens import Size, request_size
from proxy.errors import ContextOverflow
from proxy.wire import chat
from proxy.wire.chat import ChatRequest
from proxy.wire.usage import Usage

# --- commands and their outcomes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find the newest checkpoint on this chain, and what was learned of the model. Outcome: `Memory`."""

    model: str
    chain: tuple[str, ...]
    """Keys of ever longer prefixes of the history, shortest first."""

    digests: tuple[bytes, ...] = ()
    """One for each message of the history."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the stores know. `checkpoint_id` is the key under which `edits` were found.

    `summaries` maps keys of the chain to summaries of the prefixes that they name, written and not yet in force;
    `kept` are all keys of the chain under which anything is stored, shortest prefix first.
    `may_ask` is False where side calls have proved useless or cannot be shared.
    """

    edits: Edits | None = None
    checkpoint_id: str | None = None
    summaries: Mapping[str, str] = field(default_factory=dict)
    may_ask: bool = True
    calibration: Calibration = UNCALIBRATED
    refuses_usage: bool = False
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """Count messages, and raw JSON beside them, by the model's encoding. Outcome: `Measured`."""

    model: str
    messages: tuple[Message, ...]
    extras: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """Sizes of the messages in their order, and the tokens of all extras together."""

    sizes: tuple[Size, ...]
    extras: int


@dataclass(frozen=True, slots=True)
class Order:
    """A side call for the summary of the prefix that `key` names; an answer must be shorter than its source."""

    key: str
    body: bytes
    source_characters: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the side call made, or share one under way. Outcome: `Summarised` or `SideCallFailed`.

    A summary of any prefix that `welcome` names will do: it is of this very conversation and goes on from what is in
    force.
    """

    order: Order
    welcome: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the side call made in the background and its summary stored, for the day that it is needed. No outcome."""

    order: Order
    welcome: frozenset[str]


@dataclass(frozen=True, slots=True)
class Summarised:
    """A summary, judged and stored, of the prefix that `key` names. `usage` is that of a call of one's own."""

    key: str
    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class SideCallFailed:
    """No text was to be had; `reason` is a short fixed word."""

    reason: str
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Store edits under a key unless something is there. Outcome: the `Edits` that are there then.

    `replaces`: what is there is what these edits were planned from, and gives way to them.
    """

    key: str
    edits: Edits
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Make the main call. Outcome: `Accepted` or `Refused`."""

    body: bytes
    unencoded: bool
    """Ask for an answer without content-encoding, since an event has to be taken out of it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer's head has come and its body is waiting."""

    status: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An error answer (status 400 or above), read but not yet relayed; its body may be cut at the edge's limit."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Relay:
    """Relay the answer that is waiting. Outcome: `Relayed`."""

    headers: tuple[tuple[str, str], ...]
    strip_usage: bool


@dataclass(frozen=True, slots=True)
class Relayed:
    """The answer went out. `complete` is False when it broke off."""

    usage: Usage | None
    complete: bool


@dataclass(frozen=True, slots=True)
class Learn:
    """Remember of the model what its answer taught: a pair of token counts, or that it refuses `include_usage`."""

    model: str
    raw_tokens: int | None = None
    reported_tokens: int | None = None
    refuses_usage: bool = False


T = TypeVar("T")

Command = LookUp | Measure | Ask | Prepare | Save | Send | Relay | Learn
Outcome = Memory | Measured | Summarised | SideCallFailed | Edits | Accepted | Refused | Relayed | None


# --- what goes in and what comes out ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What is fixed for one request. `tenant` is a digest of the credential, `count` counts short texts."""

    policy: ModelPolicy
    mode: Mode
    upstream: str
    tenant: str
    count: Callable[[str], int]
    summary_model: str = ""
    summary_window: int | None = None
    reasoning_effort: str = ""


@dataclass(frozen=True, slots=True)
class SideCall:
    """One side call as the log tells it: `outcome` is `used` or why it was not."""

    outcome: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened: counts and fixed words alone, for the log, the headers and the metrics. Tokens throughout.

    original   calibrated estimate of the client's request     forwarded  the same of what was sent
    raw        uncalibrated estimate of what was sent
    `checkpoint_id` names the edits in force, `summary_id` the prefix that their summary covers.
    """

    model: str
    mode: Mode
    window: int | None = None
    trigger: int | None = None
    original: int | None = None
    forwarded: int | None = None
    raw: int | None = None
    factor: float = 1.0
    actions: str = "none"
    reason: str = ""
    checkpoint_id: str | None = None
    summary_id: str | None = None
    side_calls: tuple[SideCall, ...] = ()
    status: int | None = None
    usage: Usage | None = None
    complete: bool = False

    @property
    def reported(self) -> int | None:
        """The upstream's own count of the prompt; of several readings of its usage the one nearest our estimate."""
        readings = self.usage.prompt_readings if self.usage and self.complete else ()
        return min(readings, key=lambda tokens: abs(tokens - (self.forwarded or 0)), default=None)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The `x-context-*` headers; what is not known is absent."""
        values = {
            "x-context-window": self.window,
            "x-context-tokens": self.forwarded,
            "x-context-original-tokens": self.original,
            "x-context-actions": self.actions,
            "x-context-checkpoint": self.checkpoint_id or "none",
        }
        return tuple((name, str(value)) for name, value in values.items() if value is not None)


Exchange = Generator[Command, Outcome, Verdict]


def manage(request: ChatRequest, terms: Terms) -> Exchange:
    """The exchange of one chat request. Raises `ContextOverflow` where the policy is to refuse."""
    chain = _chain(request, terms)
    digests = tuple(message.digest for message in request.conversation.history)
    memory = _expect(Memory, (yield LookUp(request.model, chain, digests)))
    measured = _expect(
        Measured, (yield Measure(request.model, request.conversation.messages, request.extras))
    )
    case = _Case(request, terms, chain, memory, measured)

    draft = _Draft(case.ready())
    while isinstance(step := case.plan(draft), NeedSummary):
        outcome = (yield Ask(*case.order(step))) if memory.may_ask else SideCallFailed("not_asked")
        draft = case.told(draft, step, outcome)
    edits, checkpoint_id = step.edits, memory.checkpoint_id if step.edits else None
    if edits and edits != memory.edits:
        checkpoint_id = case.key_for(edits)
        replaces = checkpoint_id == memory.checkpoint_id
        edits = _expect(Edits, (yield Save(checkpoint_id, edits, replaces)))
    verdict = case.verdict(draft.side_calls, checkpoint_id)
    view = checkpoint.apply(request.conversation, edits)
    if edits:
        seen = _expect(Measured, (yield Measure(request.model, view.messages)))
        verdict = case.rewritten(verdict, edits, seen.sizes)
    changes = case.changes(view, verdict)
    verdict = replace(verdict, actions=changes.actions(edits), reason=case.reason(verdict))
    _refuse_overflow(verdict, terms)

    answer = yield Send(changes.applied_to(request.body), unencoded=changes.strip_usage)
    if isinstance(answer, Refused) and changes.strip_usage and chat.refuses_usage(answer.status, answer.body):
        changes = changes.without_usage()
        verdict = replace(verdict, actions=changes.actions(edits))
        answer = yield Send(changes.applied_to(request.body), unencoded=False)
        if isinstance(answer, Accepted):
            yield Learn(request.model, refuses_usage=True)
    relayed = _expect(Relayed, (yield Relay(verdict.headers(), changes.strip_usage)))
    verdict = replace(verdict, status=_status(answer), usage=relayed.usage, complete=relayed.complete)
    if verdict.reported is not None and not any(size.has_media for size in measured.sizes):
        yield Learn(request.model, raw_tokens=verdict.raw, reported_tokens=verdict.reported)
    if relayed.complete and (order := case.ahead(edits)):
        yield Prepare(*order)
    return verdict


@dataclass(frozen=True, slots=True)
class _Draft:
    """The summaries that there are so far, by the prefix that they cover, and the side calls that were made."""

    summaries: Mapping[int, str | None]
    side_calls: tuple[SideCall, ...] = ()


@dataclass(frozen=True, slots=True)
class _Changes:
    """The members of the body that change, and the announced changes beside the edits."""

    members: dict[str, bytes]
    announced: tuple[str, ...] = ()
    strip_usage: bool = False

    def applied_to(self, body: bytes) -> bytes:
        return chat.with_members(body, self.members)

    def without_usage(self) -> "_Changes":
        members = {name: raw for name, raw in self.members.items() if name != _STREAM_OPTIONS}
        return _Changes(members, tuple(name for name in self.announced if name != _USAGE), False)

    def actions(self, edits: Edits) -> str:
        done = (edits.actions(), *self.announced)
        return ",".join(action for action in done if action) or "none"


_STREAM_OPTIONS = "stream_options"
_USAGE = "include_usage"
_CACHE_KEY = "prompt_cache_key"


@dataclass(frozen=True)
class _Case:
    """One request with everything that is known of it; decides, in raw and calibrated tokens."""

    request: ChatRequest
    terms: Terms
    chain: tuple[str, ...]
    memory: Memory
    measured: Measured

    @cached_property
    def factor(self) -> float:
        return self.memory.calibration.factor(self.terms.policy.calibration)

    @cached_property
    def budget(self) -> Budget | None:
        policy = self.terms.policy
        return budget.work_out(
            policy.window,
            self.request.output_limit,
            reserve_output=policy.reserve_output,
            margin=policy.margin,
            compact_at=policy.compact_at,
            compact_to=policy.compact_to,
        )

    @cached_property
    def limits(self) -> Limits | None:
        """The budget in raw tokens."""
        if self.budget is None:
            return None
        tokens = (self.budget.window, self.budget.tokens, self.budget.trigger, self.budget.target)
        return Limits(*(int(number / self.factor) for number in tokens))

    @cached_property
    def situation(self) -> Situation:
        head = len(self.request.conversation.head)
        return Situation(
            conversation=self.request.conversation,
            sizes=self.measured.sizes[head:],
            fixed=request_size(self.measured.sizes[:head], self.measured.extras),
            policy=self.terms.policy,
            limits=self.limits,
            count=self.terms.count,
        )

    def plan(self, draft: _Draft) -> Plan | NeedSummary:
        """The next step of the ladder; nothing at all unless the mode is to manage."""
        if self.terms.mode is not Mode.MANAGE:
            return Plan(checkpoint.NOTHING, self.situation.tokens(checkpoint.NOTHING))
        situation = replace(self.situation, summaries=draft.summaries)
        return planner.plan(situation, self.memory.edits or checkpoint.NOTHING)

    def key_for(self, edits: Edits) -> str:
        """The name of a prefix that these edits depend on no more of, and that is newer than the checkpoint's.

        Deeper edits may depend on the same prefix as those they replace; a newer name keeps the two apart, and is what
        the next request finds first.
        """
        found = self.memory.checkpoint_id
        newer = self.chain.index(found) + 2 if found in self.chain else 1
        return self.chain[min(max(edits.speaks_about, newer), len(self.chain)) - 1]

    def ready(self) -> dict[int, str | None]:
        """The stored summaries, by the length of the prefix that they cover."""
        if not self.memory.summaries:
            return {}
        return {
            stop: self._bounded(self.memory.summaries[key])
            for stop, key in enumerate(self.chain, start=1)
            if key in self.memory.summaries
        }

    def told(self, draft: _Draft, need: NeedSummary, outcome: Outcome) -> _Draft:
        """What is there after one more side call. A need that was not met is not asked for again."""
        match outcome:
            case Summarised(key=key, text=text, usage=usage):
                found = {self.chain.index(key) + 1: self._bounded(text)}
                told = SideCall("used", usage)
            case SideCallFailed(reason=reason, usage=usage):
                found = {}
                told = SideCall(reason, usage)
            case _:
                raise TypeError(f"the edge answered {type(outcome).__name__} to a side call")
        return _Draft({need.stop: None, **draft.summaries, **found}, (*draft.side_calls, told))

    def _bounded(self, text: str) -> str:
        """The summary within its limit, whatever the model thought of that."""
        most, tokens = self._summary_tokens(), self.terms.count(text)
        return text if tokens <= most else summary.clip(text, len(text) * most // tokens)

    def ahead(self, edits: Edits) -> tuple[Order, frozenset[str]] | None:
        """The summary that the trigger will need, once the view has come near it; None when none is to be prepared."""
        share, limits = self.terms.policy.summary.prepare_at, self.limits
        if not share or limits is None or self.terms.mode is not Mode.MANAGE or not self.memory.may_ask:
            return None
        tokens = self.situation.tokens(edits)
        if not limits.budget * share < tokens <= limits.trigger:
            return None
        # Planned for the day of the trigger: what is appended until then must fit the target too.
        early = replace(self.situation, to_come=limits.trigger + 1 - tokens, summaries=self.ready())
        step = planner.plan(early, edits)
        return self.order(step) if isinstance(step, NeedSummary) else None

    def order(self, need: NeedSummary) -> tuple[Order, frozenset[str]]:
        """The side call that this need is answered by, and the prefixes whose summaries would do as well."""
        policy = self.terms.policy.summary
        source = self.request.conversation.history[need.start : need.stop]
        texts = summary.order(
            source,
            need.previous,
            prompt=policy.prompt,
            words=int(self._summary_tokens() * summary.WORDS_PER_TOKEN),
            item_characters=policy.item_characters,
            most_characters=self._most_characters(need),
        )
        name = "" if self.terms.summary_model else self.request.output_limit_name
        model = self.terms.summary_model or self.request.model
        body = chat.side_call(
            texts,
            model=model,
            max_tokens=self._summary_tokens(),
            limit_name=name,
            reasoning_effort=self.terms.reasoning_effort,
        )
        order = Order(self.chain[need.stop - 1], body, sum(map(_characters, source)) + len(need.previous))
        start = max(need.start, self.memory.edits.start if self.memory.edits else 0)
        return order, frozenset(self.chain[start : self.situation.protected_from])

    def _summary_tokens(self) -> int:
        """The most tokens that the summary may have, by the window that it will stand in."""
        window = self.budget.window if self.budget else None
        return summary.most_tokens(self.terms.policy.summary.max_tokens, window)

    def _most_characters(self, need: NeedSummary) -> int | None:
        """What the summary model's window holds, at the characters per token of the range itself."""
        window = self.limits.window if self.limits else None
        if self.terms.summary_model:
            window = self.terms.summary_window
        if window is None:
            return None
        tokens = sum(size.tokens for size in self.situation.sizes[need.start : need.stop])
        characters = sum(map(_characters, self.request.conversation.history[need.start : need.stop]))
        room = max(1, window - self._summary_tokens() - summary.OVERHEAD)
        return int(room * _SAFE_SHARE * characters / max(1, tokens))

    def verdict(self, side_calls: tuple[SideCall, ...], checkpoint_id: str | None) -> Verdict:
        """The verdict as it stands when nothing is rewritten."""
        raw = request_size(self.measured.sizes, self.measured.extras)
        return Verdict(
            self.request.model,
            self.terms.mode,
            window=self.budget.window if self.budget else None,
            trigger=self.budget.trigger if self.budget else None,
            original=round(raw * self.factor),
            forwarded=round(raw * self.factor),
            raw=raw,
            factor=self.factor,
            side_calls=side_calls,
            checkpoint_id=checkpoint_id,
        )

    def rewritten(self, verdict: Verdict, edits: Edits, sizes: Sequence[Size]) -> Verdict:
        """The verdict with the sizes of the view."""
        raw = request_size(sizes, self.measured.extras)
        covered = edits.cut.summarised if edits.cut else 0
        return replace(
            verdict,
            raw=raw,
            forwarded=round(raw * self.factor),
            summary_id=self.chain[covered - 1] if covered else None,
        )

    def reason(self, verdict: Verdict) -> str:
        """Why the prompt is larger than it should be; a fixed word for the log, empty when all is well."""
        if self.budget is None or (verdict.forwarded or 0) <= self.budget.tokens:
            return ""
        return "observed_only" if self.terms.mode is not Mode.MANAGE else "over_budget"

    def changes(self, view: Conversation, verdict: Verdict) -> _Changes:
        """All that is changed in the body."""
        if self.terms.mode is not Mode.MANAGE:
            return _Changes({})
        members = {}
        announced = []
        if view is not self.request.conversation:
            members["messages"] = chat.messages_member(view)
        if limit := self._lowered_limit(verdict):
            members[self.request.output_limit_name] = str(limit).encode()
            announced.append(f"max_tokens={limit}")
        if key := self._cache_key():
            members[_CACHE_KEY] = rawjson.encode(key)
            announced.append(_CACHE_KEY)
        splice = self._splices_usage()
        if splice:
            members[_STREAM_OPTIONS] = chat.usage_member(self.request)
            announced.append(_USAGE)
        return _Changes(members, tuple(announced), splice)

    def _cache_key(self) -> str | None:
        """The same for all requests of a conversation: made of its tenant, model and first round."""
        wanted = self.terms.policy.prompt_cache_key is CacheKey.AUTO and not self.request.has_cache_key
        rounds = self.request.conversation.rounds
        return self.chain[rounds[0].stop - 1] if wanted and rounds else None

    def _splices_usage(self) -> bool:
        request = self.request
        wanted = self.terms.policy.usage is UsageMode.INJECT and not self.memory.refuses_usage
        return wanted and request.stream and not request.wants_usage

    def _lowered_limit(self, verdict: Verdict) -> int | None:
        """The output limit that fits beside the prompt, where the client's own does not."""
        asked = self.request.output_limit
        if not self.terms.policy.clamp_max_tokens or self.budget is None or asked is None:
            return None
        room = self.budget.answer_room(verdict.forwarded or 0)
        return room if budget.LEAST_ANSWER <= room < asked else None


_SAFE_SHARE = 0.9
"""The side call's transcript adds labels to the texts, and its tokens are only estimated."""


def _chain(request: ChatRequest, terms: Terms) -> tuple[str, ...]:
    seed = checkpoint.seed(terms.tenant, terms.upstream, request.model)
    return checkpoint.chain(request.conversation.history, seed)


def _characters(message: Message) -> int:
    return len(message.text) + len(message.reasoning) + sum(len(call.arguments) for call in message.calls) + 1


def _refuse_overflow(verdict: Verdict, terms: Terms) -> None:
    refuses = terms.policy.on_overflow is OnOverflow.REFUSE and terms.mode is Mode.MANAGE
    if (
        not refuses
        or verdict.window is None
        or (verdict.forwarded or 0) <= verdict.window - budget.LEAST_ANSWER
    ):
        return
    raise ContextOverflow(
        f"This model's window is {verdict.window} tokens. However, the messages that must stay are estimated at "
        f"{verdict.forwarded} tokens after everything that may be left out has been left out. Shorten the system "
        "prompt, the tools or the newest messages."
    )


def _status(answer: Outcome) -> int | None:
    return answer.status if isinstance(answer, Accepted | Refused) else None


def _expect(kind: type[T], outcome: Outcome) -> T:
    """The outcome, which the edge must have sent for the command."""
    if not isinstance(outcome, kind):
        raise TypeError(f"the edge sent {type(outcome).__name__} where {kind.__name__} belongs")
    return outcome
