"""What a forwarded prompt is made of, in tokens: for those who look at it.

Rules. The parts are shares of the expected count and add up to it exactly; nothing is decided by them. What an upstream
adds to every prompt is spread over them, since nobody knows where it stands.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from proxy.context.edits import Edits
from proxy.context.situation import Situation
from proxy.context.tokens import Size
from proxy.exchange.commands import Measured
from proxy.exchange.verdict import Parts, Verdict


def parts(
    situation: Situation, measured: Measured, edits: Edits, verdict: Verdict, seen: Sequence[Size]
) -> Parts | None:
    """The parts of this prompt; None where it was not counted. `seen`: the sizes of the messages as forwarded."""
    if verdict.raw is None or verdict.forwarded is None:
        return None
    named = (edits.rewrites, edits.shortened, edits.blanked)
    edited = {each.index for kind in named for each in kind if each.index >= edits.start}
    whole = len(situation.sizes)  # what is kept of the history stands at the end, message for message
    known = (
        situation.fixed - measured.extras,
        measured.extras,
        situation.block_tokens(edits.cut) if edits.cut else 0,
        sum(seen[index - whole].tokens for index in edited),
    )
    raw = (*known, max(0, verdict.raw - sum(known)))
    return Parts(*_shared_out(verdict.forwarded, raw))


def _shared_out(whole: int, raw: tuple[int, ...]) -> tuple[int, ...]:
    """The whole in the same proportions, without a rest."""
    sums = [0, *accumulate(raw)]
    marks = [round(whole * each / max(1, sums[-1])) for each in sums]
    return tuple(stop - start for start, stop in pairwise(marks))
