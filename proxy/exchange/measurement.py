"""What a request measures, and what would be done to it: the course of a real one up to its sending.

Rules. Nothing is asked of the upstream, saved or learned. Planning is that of a real request; a summary that it would
need a side call for is taken to be as long as one may be, so the tokens afterwards are an upper bound then. Indices
count from the start of `messages`, after the repair of their order if there is one.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from proxy.context import view
from proxy.context.edits import Edits
from proxy.context.planner import Plan
from proxy.context.situation import NeedSizes, NeedSummary, Situation
from proxy.context.steps import Steps
from proxy.context.tokens import REPLY_PRIMING
from proxy.exchange import decision
from proxy.exchange.case import Case, Draft, sound
from proxy.exchange.commands import (
    LookUp,
    Measure,
    Measured,
    Memory,
    Outcome,
    Pause,
    Question,
    SideCallFailed,
    Summarised,
    expect,
    with_pauses,
)
from proxy.exchange.composing import composed
from proxy.exchange.verdict import Terms
from proxy.wire.chat import ChatRequest

Measuring = Generator[Question | Pause, Outcome, "Measurement"]


@dataclass(frozen=True, slots=True)
class Item:
    """One message of the history: `turn` counts from 1 by the user's messages, 0 before the first."""

    index: int
    turn: int
    category: str
    tokens: int


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """One edit of `messages[first:last + 1]`, in raw tokens; `is_new` is False for one that a checkpoint holds."""

    action: str
    first: int
    last: int
    tokens_before: int
    tokens_after: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """What would be sent, in predicted tokens.

    reason      why history would be edited or not; `Decision` lists the words
    side_calls  summaries that the upstream would be asked for; with one `tokens_after` is an upper bound
    actions     as the header says it
    """

    reason: str
    tokens_before: int
    tokens_after: int
    fits: bool
    side_calls: int
    actions: str
    checkpoint: str | None
    edits: tuple[PlannedEdit, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Sizes in tokens.

    request_tokens    what the upstream is expected to count
    estimated_tokens  our own uncorrected count: system_tokens + tool_tokens + the sum of the items
    tool_tokens       tools, functions and response format
    last_reported     the upstream's count of this conversation's last prompt
    """

    model: str
    window: int | None
    window_source: str
    threshold_tokens: int | None
    target_tokens: int | None
    reserve_tokens: int | None
    request_tokens: int
    estimated_tokens: int
    system_tokens: int
    tool_tokens: int
    is_usage_based: bool
    calibrated: bool
    last_reported: int | None
    items: tuple[Item, ...]
    plan: Planned


def measure(request: ChatRequest, terms: Terms) -> Measuring:
    """The measurement of one request."""
    known = yield from sound(request, terms)
    look = LookUp(request.model, known.chain, (), known.opening, known.who)
    memory = expect(Memory, (yield look))
    messages = known.conversation.messages
    sizes = expect(Measured, (yield Measure(request.model, messages, request.extras)))
    case = Case(known, terms, memory, sizes, terms.told)
    planned = yield from _planned(case)
    return _measurement(case, planned)


def _planned(case: Case) -> Generator[Question | Pause, Outcome, Planned]:
    draft = case.begun()
    while not isinstance(step := (yield from with_pauses(case.planning(draft))), Plan):
        if isinstance(step, NeedSizes):
            ask = Measure(case.request.model, step.messages)
            draft = draft.sized(step, expect(Measured, (yield ask)))
        else:
            draft = yield from with_pauses(_supposed(case, draft, step))
    edits = yield from composed(case, draft, step.edits)
    seen = yield from with_pauses(view.applying(case.sound.conversation, edits))
    sizes = expect(Measured, (yield Measure(case.request.model, seen.messages)))
    verdict = case.rewritten(case.verdict(draft, case.memory.checkpoint_id, edits), sizes.sizes)
    tokens = verdict.forwarded or 0
    situation = case.drafted(draft)
    return Planned(
        reason=decision.reason(case, situation, edits),
        tokens_before=verdict.original or 0,
        tokens_after=tokens,
        fits=case.budget is None or tokens <= case.budget.tokens,
        side_calls=sum(call.outcome == "used" for call in draft.side_calls),
        actions=case.changes(seen, verdict).actions(edits),
        checkpoint=verdict.checkpoint_id,
        edits=tuple(_edits(case, situation, edits)),
    )


def _supposed(case: Case, draft: Draft, need: NeedSummary) -> Steps[Draft]:
    """With a summary as long as one may be, if a side call may be made at all."""
    if not case.may_ask(draft):
        return case.told(draft, need, SideCallFailed("not_asked"))
    order, _ = yield from case.ordering(need, draft)
    return case.told(draft, need, Summarised(order.key, "word " * case.orders.most_tokens, None))


def _edits(case: Case, situation: Situation, edits: Edits) -> Iterator[PlannedEdit]:
    offset, before = len(case.sound.conversation.head), [size.tokens for size in situation.sizes]
    each = situation.message_tokens(edits)
    # One block stands for all that a cut takes away; its tokens are told once, with the first part.
    held = situation.lead_tokens(edits.cut, each) if edits.cut else 0
    for place in decision.cut_off(case, edits):
        taken = sum(before[place.first - offset : place.last - offset + 1])
        yield PlannedEdit(place.action, place.first, place.last, taken, held, place.is_new)
        held = 0
    for place in decision.edited(case, edits):
        index = place.first - offset
        yield PlannedEdit(place.action, place.first, place.last, before[index], each[index], place.is_new)


def _measurement(case: Case, planned: Planned) -> Measurement:
    conversation, sizes = case.sound.conversation, case.measured.sizes
    head = len(conversation.head)
    starts = set(conversation.turn_starts)
    items, turn = [], 0
    for index, size in enumerate(sizes[head:]):
        turn += index in starts
        items.append(Item(head + index, turn, str(size.category), size.tokens))
    system = sum(size.tokens for size in sizes[:head]) + REPLY_PRIMING
    raw = system + case.measured.extras + sum(item.tokens for item in items)
    known = case.budget
    return Measurement(
        model=case.request.model,
        window=case.window.tokens if case.window else None,
        window_source=case.window.source if case.window else "unknown",
        threshold_tokens=known.trigger if known else None,
        target_tokens=known.target if known else None,
        reserve_tokens=known.reserve if known else None,
        request_tokens=case.tokens(raw),
        estimated_tokens=raw,
        system_tokens=system,
        tool_tokens=case.measured.extras,
        is_usage_based=case.expected.uncut is not None,
        calibrated=case.memory.calibration.samples > 0 or case.expected.uncut is not None,
        last_reported=round(case.anchor.reported) if case.anchor and case.anchor.raw else None,
        items=tuple(items),
        plan=planned,
    )
