"""Chunks of many events that differ in a text alone are looked through at once, and read as if they came one by one.

Rules. A stream is claimed to be read alike whole and event by event; how one event is read is claimed elsewhere.
"""

from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.wire.sse import Observer, UsageFilter

BEFORE: Final = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"'
BEHIND: Final = b'"},"finish_reason":null}]}\n\n'
STOPPED: Final = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10}}\n\n'


def event(text: bytes) -> bytes:
    return BEFORE + text + BEHIND


MANY: Final = [event(b"word %d " % number) for number in range(40)]


def read(kind: type[Observer], chunks: list[bytes]) -> tuple[object, ...]:
    watch = kind()
    relayed = b"".join([watch.feed(chunk) for chunk in chunks]) + watch.end()
    return relayed, watch.usage, watch.done, watch.finished, watch.error, watch.frames, watch.started


PIECES: Final = st.sampled_from(
    [
        b"a",
        b"\\n",
        b"\\",
        b"\\\\",
        b'\\"',
        b'"',
        b"\n",
        b"\r",
        b"\t",
        b'"},',
        b"usage",
        b"error",
        b"data:",
        b"\xc3",
    ]
)
ODD: Final = st.lists(PIECES, max_size=6).map(b"".join).map(event) | st.sampled_from(
    [STOPPED, USAGE, b": hi\n\n"]
)


@given(st.lists(st.tuples(st.integers(0, 40), ODD), max_size=4))
@example([(7, event(b'"},"finish_reason":"stop"},{"delta":{"content":"'))])
@example([(7, event(b'"}}],"usage":{"prompt_tokens":7},"choices":[{"delta":{"content":"'))])
@example([(7, event(b"ends with a backslash\\"))])
@example([(40, event(b"ends with two\\\\"))])
def test_what_stands_among_many_like_events_is_read_as_if_it_came_alone(odd: list[tuple[int, bytes]]) -> None:
    events = list(MANY)
    for place, each in odd:
        events.insert(place, each)
    for kind in (Observer, UsageFilter):
        assert read(kind, [events[0], b"".join(events[1:])]) == read(kind, events)


@pytest.mark.parametrize("behind", [b"", b',"usage":null'])
def test_of_each_of_many_like_events_that_tell_something_it_is_taken_in(behind: bytes) -> None:
    telling = b'data: {"choices":[{"delta":{"content":"%d"}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    plain = b'data: {"choices":[{"delta":{"content":"%d"}}]' + behind + b"}\n\n"
    for shape in (telling, plain):
        events = [shape % number for number in range(60)]
        assert read(Observer, [events[0], b"".join(events[1:])]) == read(Observer, events)
