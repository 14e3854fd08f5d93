"""Requests that fit for certain: sent as they came before anything of them is counted.

Rules. No tokenizer makes more tokens than there are bytes, so a body whose bytes are few beside the window needs
neither a count nor a plan, and what it costs is its sending. Whatever could ask for more than that - a picture, a limit
that holds at any size, an output limit that may not fit, a history that has to be repaired or has been cut before - is
none of these requests.
"""

from proxy.context import budget
from proxy.context.budget import Window
from proxy.context.edits import NOTHING
from proxy.context.policy import CacheKey, Count, Mode
from proxy.exchange.case import Sound
from proxy.exchange.changes import Changes
from proxy.exchange.commands import Memory
from proxy.exchange.verdict import Terms, Verdict

SHARE = 0.5
"""Of the window that bytes and output limit may take together; the rest is more than upstreams are known to add."""


def window(known: Sound, terms: Terms, memory: Memory) -> Window | None:
    """The window that it fits for certain, and without a cut; None where it is none of these requests."""
    policy = terms.policy
    is_plain = policy.count is Count.LOCAL and policy.drop.max_turns is None and policy.vision
    is_plain = is_plain and policy.prompt_cache_key is CacheKey.OFF and not known.repaired
    is_stated = bool(policy.window or terms.told)  # else the upstream is asked first
    believed = budget.believed(policy.window, terms.told, memory.window)
    if believed is None or not (is_plain and is_stated) or memory.edits:
        return None
    if not _fits(known, terms, memory, believed):
        return None
    for message in known.conversation.messages:
        if message.media:
            return None
    return believed


def _fits(known: Sound, terms: Terms, memory: Memory, window: Window) -> bool:
    """Whether the bytes, as if each were a token, are below the trigger and fit with all that comes to them."""
    policy, request = terms.policy, known.request
    room = budget.work_out(
        window.tokens,
        request.output_limit,
        reserve_output=policy.reserve_output,
        margin=policy.margin,
        caution=budget.NEW_UPSTREAM,
        compact_at=policy.compact_at,
        compact_to=policy.compact_to,
    )
    most = len(request.body) + int(memory.calibration.offset(policy.calibration))
    is_below = room is not None and most <= room.trigger
    return is_below and most + (request.output_limit or 0) <= window.tokens * SHARE


def verdict(known: Sound, terms: Terms, window: Window, changes: Changes) -> Verdict:
    """What is known of it when it is sent."""
    actions = changes.actions(NOTHING)
    return Verdict(known.request.model, terms.mode, window.tokens, window.source, actions=actions)


def changes(known: Sound, terms: Terms, memory: Memory) -> Changes:
    """All that is changed in the body."""
    if terms.mode is not Mode.MANAGE:
        return Changes({})
    return Changes.splicing(known.request, terms.policy, refuses_usage=memory.refuses_usage)


def teaches(known: Sound, terms: Terms, verdict: Verdict) -> bool:
    """Whether its answer is worth counting it for."""
    told = verdict.reported or 0
    return told > 0 and max(told, len(known.request.body)) >= terms.policy.calibration.min_tokens
