"""Old pictures become a statement of what stood there.

Rules. Two occasions: there are more than `images.keep`, or size demands it. The limit moves in batches of half its
length, so that the prompt stays append-only between two moves. Over the trigger the oldest go first and only as many
as the target needs; those of the newest round and of the newest user message stay. Where the model sees no pictures at
all, every one goes, whatever the size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from proxy.context import view
from proxy.context.edits import Blanked, Edits
from proxy.context.pictures import IMAGE_KINDS
from proxy.context.situation import Situation


@dataclass(frozen=True, slots=True)
class Place:
    """A picture: the message, and its place in `Message.media`."""

    index: int
    media: int


def limit(situation: Situation, edits: Edits) -> Edits:
    """No more pictures than configured, and none where the model sees none."""
    policy = situation.policy
    everywhere = list(_places(situation))
    if not policy.vision:
        return _without(edits, everywhere)
    over = len(everywhere) - policy.images.keep
    if over <= 0:
        return edits
    batch = max(1, policy.images.keep // 2)
    newest = next(reversed(situation.conversation.turn_starts), None)
    # Of the newest user message no more go than must.
    gone = [
        *everywhere[:over],
        *(p for p in everywhere[over : -(-over // batch) * batch] if p.index != newest),
    ]
    return _without(edits, gone)


def plan(situation: Situation, edits: Edits) -> Edits:
    """Fewer pictures, until the view is within the target or only the newest are left."""
    if situation.limits is None:
        return edits
    excess = situation.tokens(edits) - situation.limits.target
    gone = []
    blank = {Place(each.index, media) for each in edits.blanked for media in each.media}
    for place in _old(situation, edits):
        if excess <= 0:
            break
        saving = _saving(situation, place)
        if place not in blank and saving > 0:
            gone.append(place)
            excess -= saving
    return _without(edits, gone)


def _places(situation: Situation) -> Iterator[Place]:
    """All pictures of the history, oldest first."""
    history = situation.conversation.history
    for index in [index for index, message in enumerate(history) if message.media]:
        for number, media in enumerate(history[index].media):
            if media.kind in IMAGE_KINDS:
                yield Place(index, number)


def _old(situation: Situation, edits: Edits) -> Iterator[Place]:
    """The pictures that size may take: neither in the newest round nor in the newest user message, nor cut off."""
    newest = next(reversed(situation.conversation.turn_starts), None)
    stop = situation.protected_from
    for place in _places(situation):
        if edits.start <= place.index < stop and place.index != newest:
            yield place


def _saving(situation: Situation, place: Place) -> int:
    media = situation.conversation.history[place.index].media[place.media]
    return situation.sizes[place.index].media[place.media] - situation.count(view.placeholder(media))


def _without(edits: Edits, places: Iterable[Place]) -> Edits:
    blank = {each.index: set(each.media) for each in edits.blanked}
    for place in places:
        blank.setdefault(place.index, set()).add(place.media)
    blanked = tuple(Blanked(index, tuple(sorted(media))) for index, media in sorted(blank.items()))
    return replace(edits, blanked=blanked) if blanked != edits.blanked else edits
