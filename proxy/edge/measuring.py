"""Measures one request for whoever asks, with the code that serves, and calls nobody for it.

Rules. Only questions of an exchange are performed here, and those of them alone that the process itself can answer.
"""

import asyncio
from typing import assert_never

from proxy.edge.performer import Measures, Remembers
from proxy.exchange import (
    Count,
    Counted,
    Discover,
    Discovered,
    LookUp,
    Measure,
    Measured,
    Measurement,
    Outcome,
    Pause,
    Question,
)
from proxy.exchange.measurement import Measuring


async def measured(course: Measuring, memories: Remembers, tokenizer: Measures) -> Measurement:
    """Drive the course of a measurement to its end."""
    try:
        question = next(course)
        while True:
            question = course.send(await answered(question, memories, tokenizer))
    except StopIteration as end:
        found: Measurement = end.value
        return found
    finally:
        course.close()


async def answered(question: Question | Pause, memories: Remembers, tokenizer: Measures) -> Outcome:
    """What the process itself can answer."""
    match question:
        case LookUp(model=model, chain=chain, opening=opening, who=who):
            return await memories.recall(model, chain, opening, who)
        case Measure(model=model, messages=messages, extras=extras):
            return Measured(*await tokenizer.sizes(messages, extras, model))
        case Discover():
            return Discovered(None)
        case Count():
            return Counted(None)
        case Pause():
            await asyncio.sleep(0)
            return None
        case _:
            assert_never(question)
