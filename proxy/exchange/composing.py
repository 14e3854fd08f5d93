"""What is written into the edits when all of them are decided: what is carried of that which they remove.

Rules. It is written once, for edits that are new, and never again for those that a checkpoint holds.
"""

from collections.abc import Generator
from dataclasses import replace

from proxy.context import carried, recall
from proxy.context.edits import NOTHING, Edits
from proxy.exchange.case import Case, Draft
from proxy.exchange.commands import Outcome, Pause, with_pauses


def composed(case: Case, draft: Draft, edits: Edits) -> Generator[Pause, Outcome, Edits]:
    """These edits with all that is written into them."""
    situation = replace(case.situation, made=draft.made)
    if edits != (case.memory.edits or NOTHING):
        edits = yield from with_pauses(carried.writing(situation, edits))
    if situation.recall_tokens and situation.may_recall(edits):
        edits = yield from with_pauses(recall.finding(situation, edits))
    return edits
