"""Requests that fit for certain: sent as they came before anything of them is counted.

Rules. No tokenizer makes more tokens than there are bytes, so a body whose bytes are few beside the window needs
neither a count nor a plan, and what it costs is its sending. Whatever could ask for more than that - a picture, a limit
that holds at any size, an output limit that may not fit, a history that has to be repaired - is none of these requests.
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


def may_be(known: Sound, terms: Terms) -> bool:
    """Whether this is such a request by what is stated of the window, before anything is looked up."""
    policy = terms.policy
    is_plain = policy.count is Count.LOCAL and policy.drop.max_turns is None and policy.vision
    is_plain = is_plain and policy.prompt_cache_key is CacheKey.OFF and not known.repaired
    stated = policy.window or (terms.told.tokens if terms.told else 0)
    return is_plain and _fits(known, stated) and not any(m.media for m in known.conversation.messages)


def window(known: Sound, terms: Terms, memory: Memory) -> Window | None:
    """The window that it fits for certain; None where it turns out to be none of these requests."""
    believed = budget.believed(terms.policy.window, terms.told, memory.window)
    line = memory.calibration.line(terms.policy.calibration)
    return believed if believed and _fits(known, believed.tokens, int(line.offset)) else None


def _fits(known: Sound, window: int, added: int = 0) -> bool:
    request = known.request
    return len(request.body) + added + (request.output_limit or 0) <= window * SHARE


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
