"""What a refusal of the main call teaches, so that the request can be planned again and sent once more.

Rules. Only a refusal on account of the prompt's length teaches anything, and only what its upstream says: its window,
and what it counted. Where it says neither, the prompt is taken to be a good deal too long, for this request alone. A
window above the one that is known is not believed; one far below it, or below what this conversation has been served,
serves this request and is not remembered.
"""

from dataclasses import dataclass, replace

from proxy.context.budget import REFUSAL, Window
from proxy.context.calibration import Anchor
from proxy.context.policy import Mode
from proxy.exchange.case import Case
from proxy.exchange.commands import Learn, Memory, Refused
from proxy.exchange.verdict import Verdict
from proxy.wire import dialects
from proxy.wire.dialects import Exactness, Overflow

LEAST_WINDOW = 256
"""Tokens; a smaller window is no window."""

PROOF_FROM = 1 / 8
"""Share of the stated window below which a told one is used for the request, and not remembered: upstreams quote
what users wrote, and users write about windows."""

SAID_NOTHING = 0.8
"""Share of a refused prompt's estimate that is tried where the upstream tells no number."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is known after a refusal, and what of it is worth remembering."""

    memory: Memory
    lesson: Learn | None


def recovery(case: Case, verdict: Verdict, answer: Refused) -> Recovery | None:
    """How to go on after this refusal; None where it is to be relayed as it is."""
    if case.terms.mode is not Mode.MANAGE:
        return None
    overflow = dialects.classify_event(answer.body) if answer.status < 400 else _judged(answer, verdict)
    if overflow is None or verdict.raw is None or verdict.forwarded is None:
        return None
    window, anchor = _window(case, overflow), _anchor(case, overflow, verdict.raw)
    if window is None and anchor is None:
        guessed = int(verdict.forwarded * SAID_NOTHING)
        says_numbers = overflow.window or overflow.prompt
        known = case.window.tokens if case.window else guessed
        if says_numbers or guessed < LEAST_WINDOW or known < guessed:
            return None
        return Recovery(replace(case.memory, window=Window(guessed, REFUSAL)), None)
    memory = case.memory
    if window is not None:
        memory = replace(memory, window=Window(window, REFUSAL))
    if anchor is not None:
        memory = replace(memory, anchors=(anchor, *memory.anchors))
    # Below what was served it is a server's that came back with a smaller one, or no window at all.
    served = case.anchor.reported if case.anchor else 0
    is_proof = window is not None and window >= max(case.stated * PROOF_FROM, served)
    proved = memory.window if is_proof else None
    is_miscounted = case.is_miscounted(verdict.raw, anchor.reported if anchor else None)
    lesson = Learn(case.request.model, who=case.sound.who, window=proved, miscounts=is_miscounted)
    return Recovery(memory, lesson if is_proof or is_miscounted else None)


def _judged(answer: Refused, verdict: Verdict) -> Overflow | None:
    found = dialects.classify(answer.status, answer.body)
    is_near = (verdict.forwarded or 0) > NEAR * (verdict.window or 0) > 0
    if found is None and is_near and dialects.says_nothing(answer.status, answer.body):
        return Overflow("wordless")
    return found


NEAR = 0.9
"""Share of the window from which on a refusal without a word is taken for one of the prompt's length."""


def _window(case: Case, overflow: Overflow) -> int | None:
    """A window that is news: smaller than the one that is known, and than what was refused."""
    told = overflow.window
    if told is None or told < LEAST_WINDOW:
        return None
    if case.window is not None and told >= case.window.tokens:
        return None
    contradicts = overflow.prompt is not None and overflow.completion is None and overflow.prompt <= told
    return None if contradicts else told


def _anchor(case: Case, overflow: Overflow, raw: int) -> Anchor | None:
    """The upstream's own count of the prompt, where it is exact and tells more than the estimate did."""
    counted = overflow.prompt
    if counted is None or overflow.prompt_is is not Exactness.EXACT or not case.chain or raw <= 0:
        return None
    within = (
        case.terms.policy.calibration.lowest <= counted / raw <= 2 * case.terms.policy.calibration.highest
    )
    if not within or counted == case.tokens(raw):
        return None
    return case.anchor_refused(raw, counted)
