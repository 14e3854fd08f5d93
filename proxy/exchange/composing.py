"""What is written into the edits when all of them are decided: what is carried of that which they remove.

Rules. It is written once, for edits that are new, and never again for those that a checkpoint holds. Reading a long
history takes its time, so it is the edge that has it done.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

from proxy.context import carried, recall
from proxy.context.edits import NOTHING, Edits
from proxy.exchange.case import Case, Draft
from proxy.exchange.commands import Compose, Outcome, expect


def composed(case: Case, draft: Draft, edits: Edits) -> Generator[Compose, Outcome, Edits]:
    """These edits with all that is written into them."""
    before = case.memory.edits or NOTHING
    situation = replace(case.situation, made=draft.made)
    characters = sum(len(message.raw) for message in situation.conversation.history)
    if edits != before and situation.carry_tokens:
        make = partial(carried.written, situation, before, edits)
        edits = expect(Edits, (yield Compose(make, characters)))
    if situation.recall_tokens and situation.may_recall(edits):
        edits = expect(Edits, (yield Compose(partial(recall.found, situation, edits), characters)))
    return edits
