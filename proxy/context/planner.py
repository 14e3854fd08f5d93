"""The ladder: from a measured conversation to the edits that make it fit.

Rules. Planning is a pure function of the situation; it either answers with edits or says what it still needs, a summary
or the sizes of what it made, and is then asked again with more facts. Steps are taken in the configured order, each as
far as the target needs, and a step that makes the view no smaller is not taken. What one step missed by less than half
the way to the trigger is not worth the next one's loss. At or below the trigger only the configured limits apply. A
view that is planned again needs no further edit.
"""

from dataclasses import dataclass

from proxy.context.edits import Edits
from proxy.context.situation import NeedSizes, NeedSummary, Situation
from proxy.context.steps import Steps
from proxy.context.strategies import LIMITS, STRATEGIES

LONG = 500
"""Messages of a history from which on there is a pause behind each stage; a stage is some passes over it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The edits to apply, and the raw tokens of the view that they give."""

    edits: Edits
    tokens: int


def planning(situation: Situation, edits: Edits) -> Steps[Plan | NeedSummary | NeedSizes]:
    """What to do to the conversation, beginning from the edits that already apply."""
    is_long = len(situation.sizes) > LONG
    for limit in (*LIMITS, None):
        if made := (yield from situation.making(edits)):
            return NeedSizes(made)
        edits = limit(situation, edits) if limit else edits
    tokens = situation.tokens(edits)
    if situation.limits is None or tokens <= situation.limits.trigger:
        return Plan(edits, tokens)
    yield from situation.conversation.finding_rounds()
    for name in situation.policy.strategies:
        if tokens <= situation.limits.halfway:
            break
        if is_long:
            yield
        step = yield from STRATEGIES[name](situation, edits)
        if isinstance(step, NeedSummary):
            return step
        if made := (yield from situation.making(step)):
            return NeedSizes(made)
        # What is written when planning has ended takes the room that is left: a step is judged without it.
        if situation.bare_tokens(step) < situation.bare_tokens(edits):
            edits, tokens = step, situation.tokens(step)
    return Plan(edits, tokens)
