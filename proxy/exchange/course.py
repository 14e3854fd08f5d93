"""The course of one chat request, as a flat generator: it yields commands and is sent their outcomes.

Rules. Nothing here does anything: no I/O, no clock, no log; the edge performs each command and sends its outcome back,
so a test drives a whole exchange with values. The client's very bytes are what is sent unless there is an edit to
apply or one of the announced changes to make, and every change is in the verdict's actions. A body is sent again only
when it differs from the one that was refused.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from operator import attrgetter

from msgspec import structs

from proxy.context import budget, view
from proxy.context.budget import Window
from proxy.context.edits import NOTHING, Edits
from proxy.context.planner import Plan
from proxy.context.policy import Mode, OnOverflow
from proxy.context.situation import NeedSizes, NeedSummary
from proxy.context.tokens import request_size
from proxy.errors import ContextOverflow
from proxy.exchange import small
from proxy.exchange.case import MOST_RECOVERIES, Case, Draft, Sound, sound
from proxy.exchange.changes import Changes
from proxy.exchange.commands import (
    MOST_DIGESTS,
    Accepted,
    Ask,
    Command,
    Count,
    Counted,
    Discover,
    Discovered,
    Learn,
    LookUp,
    Measure,
    Measured,
    Memory,
    Outcome,
    Prepare,
    Refused,
    Relay,
    Relayed,
    Save,
    Send,
    SideCallFailed,
    expect,
    with_pauses,
)
from proxy.exchange.composing import composed
from proxy.exchange.decision import decision
from proxy.exchange.parts import parts
from proxy.exchange.recovery import recovery
from proxy.exchange.sparing import is_spared, spared
from proxy.exchange.verdict import Terms, Verdict
from proxy.wire import chat
from proxy.wire.chat import ChatRequest

Exchange = Generator[Command, Outcome, Verdict]


def manage(request: ChatRequest, terms: Terms) -> Exchange:
    """The exchange of one chat request. Raises `ContextOverflow` where the policy is to refuse."""
    known = yield from sound(request, terms)
    memory = expect(Memory, (yield looking_up(known)))
    window = small.window(known, terms, memory)
    if window is None:
        return (yield from _conducted((yield from all_known(known, terms, memory))))
    changes = small.changes(known, terms, memory)
    done = yield from _sent_at_once(known, terms, memory, window, changes)
    if isinstance(done, Verdict):
        return done
    case = yield from all_known(known, terms, memory)
    return (yield from _conducted(case, (changes.applied_to(request), done)))


def looking_up(known: Sound) -> LookUp:
    """What asks the stores for all that they hold of it."""
    digests = tuple(map(_DIGEST, known.conversation.history[:MOST_DIGESTS]))
    return LookUp(known.request.model, known.chain, digests, known.opening, known.who)


_DIGEST = attrgetter("digest")


def _sent_at_once(
    known: Sound, terms: Terms, memory: Memory, window: Window, changes: Changes
) -> Generator[Command, Outcome, Verdict | Refused]:
    """A request that fits for certain: sent, relayed, and only then counted.

    What it is refused with is handed back, for whoever counts and plans.
    """
    verdict = small.verdict(known, terms, window, changes)
    answer = yield Send(changes.applied_to(known.request), verdict, changes.strip_usage)
    if isinstance(answer, Refused):
        return answer
    relayed = expect(Relayed, (yield Relay(verdict.headers(), changes.strip_usage)))
    verdict = structs.replace(verdict, status=_status(answer), usage=relayed.usage, complete=relayed.complete)
    if small.teaches(known, terms, verdict):
        case = yield from all_known(known, terms, memory)
        return (yield from _counted_afterwards(case, verdict))
    return verdict


def _counted_afterwards(case: Case, verdict: Verdict) -> Generator[Command, Outcome, Verdict]:
    counted = case.verdict(Draft(), None, NOTHING)
    verdict = structs.replace(
        counted,
        parts=parts(case.situation, case.measured, NOTHING, counted, case.measured.sizes),
        actions=verdict.actions,
        status=verdict.status,
        usage=verdict.usage,
        complete=verdict.complete,
    )
    return (yield from _learned(case, verdict))


def _conducted(case: Case, refused: tuple[bytes, Refused] | None = None) -> Exchange:
    """Planned and sent, again where a refusal teaches something; `refused` is a body that was, and with what."""
    request = case.request
    going = yield from _prepared(case, case.begun(), 0)
    answer: Outcome = refused[1] if refused and refused[0] == going.body else None
    # What was refused otherwise was another prompt: it says nothing of this one.
    for recovered in range(1 if answer or not refused else 2, MOST_RECOVERIES + 2):
        peeks = case.peeks(going.verdict, recovered)
        if answer is None:
            answer = yield Send(going.body, going.verdict, going.changes.strip_usage, peeks)
        if isinstance(answer, Refused) and _minds_usage(going, answer):
            going = going.without_usage(request)
            case = replace(case, memory=replace(case.memory, refuses_usage=True))
            answer = yield Send(going.body, going.verdict, unencoded=False, peeks=peeks)
            if isinstance(answer, Accepted):
                yield Learn(request.model, refuses_usage=True)
        more = recovery(case, going.verdict, answer) if isinstance(answer, Refused) else None
        if more is None:
            break
        if more.lesson:
            yield more.lesson
        if recovered > MOST_RECOVERIES:
            break
        case = replace(case, memory=_with_saved(case, more.memory, going))
        other = yield from _prepared(case, case.bounded(going.draft), recovered)
        if other.body == going.body:
            break  # what was learned changes nothing: the refusal stands
        going, answer = other.after(going), None

    relayed = expect(Relayed, (yield Relay(going.verdict.headers(), going.changes.strip_usage)))
    verdict = structs.replace(
        going.verdict, status=_status(answer), usage=relayed.usage, complete=relayed.complete
    )
    verdict = yield from _learned(case, verdict)
    if relayed.complete and (order := (yield from with_pauses(case.ahead(going.edits, going.draft)))):
        yield Prepare(*order)
    return verdict


def _learned(case: Case, verdict: Verdict) -> Generator[Command, Outcome, Verdict]:
    """The verdict with what the answer's count tells, which is learned."""
    if case.uncounted and case.is_miscounted(verdict.raw, verdict.reported):
        yield Learn(case.request.model, miscounts=True)
        case = case.uncounted
    after = case.followed(verdict)
    if after is None:
        return verdict
    verdict = structs.replace(verdict, seems_cut=case.seems_cut(verdict, after))
    if lesson := case.lesson(verdict, after):
        yield lesson
    return verdict


def all_known(known: Sound, terms: Terms, memory: Memory) -> Generator[Command, Outcome, Case]:
    """All that is there to decide from: what the stores hold, the window, the sizes."""
    model = known.request.model
    window = None
    if not terms.policy.window:
        window = expect(Discovered, (yield Discover(model))).window
    ask = Measure(model, known.conversation.messages, known.request.extras)
    case = Case(known, terms, memory, expect(Measured, (yield ask)), window)
    return (yield from _counted(case)) if case.may_be_counted else case


def _counted(case: Case) -> Generator[Command, Outcome, Case]:
    """The case with the upstream's own count of what would be sent if nothing more were cut."""
    seen = yield from with_pauses(view.applying(case.sound.conversation, case.memory.edits or NOTHING))
    measured = expect(Measured, (yield Measure(case.request.model, seen.messages)))
    raw = request_size(measured.sizes, case.measured.extras)
    if not case.is_worth_counting(raw):
        return case
    counted = expect(Counted, (yield Count(case.request.model, case.body_of(seen))))
    return case.with_count(raw, counted.tokens)


@dataclass(frozen=True, slots=True)
class _Going:
    """A main call as it will be made, and what it was made of."""

    draft: Draft
    edits: Edits
    checkpoint_id: str | None
    verdict: Verdict
    changes: Changes
    body: bytes

    def after(self, refused: "_Going") -> "_Going":
        """The same, with what had been taken away before this was planned."""
        taken = [each for each in (refused.verdict.removed, self.verdict.removed) if each is not None]
        return replace(self, verdict=structs.replace(self.verdict, removed=sum(taken) if taken else None))

    def without_usage(self, request: ChatRequest) -> "_Going":
        """The same for an upstream that refuses `stream_options`."""
        changes = self.changes.without_usage()
        verdict = structs.replace(self.verdict, actions=changes.actions(self.edits))
        return replace(self, changes=changes, verdict=verdict, body=changes.applied_to(request))


def _with_saved(case: Case, memory: Memory, going: _Going) -> Memory:
    """What was just saved is what is there now; the next plan goes on from it and takes its place.

    Of a request for a summary nothing was: it begins again at what earlier cuts left.
    """
    if case.sound.asks_for_summary:
        return memory
    return replace(memory, edits=going.edits, checkpoint_id=going.checkpoint_id)


def _minds_usage(going: _Going, answer: Refused) -> bool:
    return going.changes.strip_usage and chat.refuses_usage(answer.status, answer.body)


def _prepared(case: Case, draft: Draft, recovered: int) -> Generator[Command, Outcome, _Going]:
    """Planned, saved, applied and measured. Raises `ContextOverflow` where the policy is to refuse."""
    draft, edits, checkpoint_id = yield from _planned(case, draft)
    verdict = case.verdict(draft, checkpoint_id, edits)
    seen = yield from with_pauses(view.applying(case.sound.conversation, edits))
    sizes = case.measured.sizes
    if edits:
        sizes = expect(Measured, (yield Measure(case.request.model, seen.messages))).sizes
        verdict = case.rewritten(verdict, sizes)
    changes = case.changes(seen, verdict, recovered)
    reason = case.reason(verdict)
    verdict = structs.replace(
        verdict,
        actions=changes.actions(edits),
        reason=reason,
        recovered=recovered,
        removed=case.removed(draft, edits, verdict),
        decision=decision(case, case.drafted(draft), edits) if case.terms.explains else None,
        parts=parts(case.situation, case.measured, edits, verdict, sizes),
    )
    _refuse_overflow(verdict, case.terms)
    return _Going(draft, edits, checkpoint_id, verdict, changes, changes.applied_to(case.request))


def met(case: Case, draft: Draft, need: NeedSummary | NeedSizes) -> Generator[Command, Outcome, Draft]:
    """The draft with what was needed, or with why it was not to be had."""
    if isinstance(need, NeedSizes):
        sizes = expect(Measured, (yield Measure(case.request.model, need.messages)))
        return draft.sized(need, sizes)
    if not case.may_ask(draft):
        return case.told(draft, need, SideCallFailed("not_asked"))
    order = yield from with_pauses(case.ordering(need, draft))
    return case.told(draft, need, (yield Ask(*order)))


def _planned(case: Case, draft: Draft) -> Generator[Command, Outcome, tuple[Draft, Edits, str | None]]:
    """The edits that apply, planned and saved, and the name of their checkpoint."""
    if is_spared(case) and (found := (yield from spared(case, draft))):
        draft, edits = found
        return draft, edits, case.memory.checkpoint_id if edits and edits == case.memory.edits else None
    while not isinstance(step := (yield from with_pauses(case.planning(draft))), Plan):
        draft = yield from met(case, draft, step)
    edits = yield from composed(case, draft, step.edits)
    checkpoint_id = case.memory.checkpoint_id if edits else None
    if edits and edits != case.memory.edits:
        if case.sound.asks_for_summary:
            return draft, edits, None
        checkpoint_id = case.key_for(edits)
        replaces = checkpoint_id == case.memory.checkpoint_id
        edits = expect(Edits, (yield Save(checkpoint_id, edits, replaces)))
    return draft, edits, checkpoint_id


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
