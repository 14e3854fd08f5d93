"""Work in steps, with a turn for everybody else between two of them."""

import asyncio
from typing import TypeVar

from proxy.context.steps import Steps

T = TypeVar("T")


async def in_turns(work: Steps[T]) -> T:
    """What comes of the work. What takes one step never waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done
        await asyncio.sleep(0)
