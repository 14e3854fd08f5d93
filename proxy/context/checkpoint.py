"""Where a checkpoint is found: a chain of digests over the history.

Rules. A digest covers what reaches the model and nothing that clients vary between two requests (key order, cache
markers, a string or one text part). The system head is outside the chain: agents put clocks there. The name of a prefix
is the same on every machine and after every restart.
"""

from collections.abc import Sequence

from proxy.context.conversation import Message, digest_of


def seed(tenant: str, upstream: str, model: str) -> bytes:
    """Where a chain begins: no two tenants, upstreams or models ever share one."""
    return digest_of(tenant, upstream, model)


def chain(history: Sequence[Message], start: bytes) -> tuple[str, ...]:
    """`chain[i]` names the prefix `history[:i + 1]`, as 32 hexadecimal digits."""
    link = start
    names: list[str] = []
    for message in history:
        link, name = message.link(link)
        names.append(name)
    return tuple(names)
