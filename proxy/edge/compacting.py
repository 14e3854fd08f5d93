"""Compacts one request for whoever asks, with the code that serves.

Rules. Of an exchange's commands only those are performed here that a compaction has: its questions, and the side call.
That goes to the chat endpoint of the configured upstream, with the credential of whoever asks.
"""

from msgspec import structs

from proxy.edge.measuring import answered
from proxy.edge.performer import Surroundings
from proxy.edge.sidecalls import Origin
from proxy.exchange import (
    Ask,
    Command,
    Compaction,
    Count,
    Counted,
    Discover,
    Discovered,
    LookUp,
    Measure,
    Outcome,
    Pause,
)
from proxy.exchange.compaction import Compacting
from proxy.wire import chat


async def compacted(course: Compacting, around: Surroundings, origin: Origin, who: str) -> Compaction:
    """Drive the course of a compaction to its end. `who` names tenant and model."""
    origin = structs.replace(origin, path=chat.CHAT_PATH, query="")
    try:
        command = next(course)
        while True:
            command = course.send(await _perform(command, around, origin, who))
    except StopIteration as end:
        found: Compaction = end.value
        return found
    finally:
        course.close()


async def _perform(command: Command, around: Surroundings, origin: Origin, who: str) -> Outcome:
    match command:
        case LookUp() | Measure() | Pause():
            return await answered(command, around.memories, around.tokenizer)
        case Discover(model=model):
            return Discovered(await around.discovery.window(who, model, origin))
        case Count(model=model, body=body):
            return Counted(await around.counts.count(who, model, body, origin))
        case Ask():
            return await around.summaries.get(command, who, origin)
        case _:
            raise TypeError(f"a compaction asked for {type(command).__name__}")
