"""A stream is read while it is relayed, and neither the reading nor the relaying depends on how it was cut.

Rules. What is claimed of a stream is claimed of every chunking of it: whole, byte by byte, split in two at
each position, and with more behind it. The reference goes another way, line by line over the whole stream.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.wire.sse import Observer, UsageFilter
from proxy.wire.usage import Usage, read_usage

BOM = b"\xef\xbb\xbf"
ROLE = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
TEXT = b'{"choices":[{"index":0,"delta":{"content":"Hi \\"usage\\" [DONE] error"},"finish_reason":null}]}'
NULLS = b'{"choices":[{"delta":{"content":"a"},"finish_reason": null}],"usage":null,"error": null}'
STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
BOTH = b'{"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}'
USAGE = b'{"id":"c","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}'
LITELLM = b'{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":19,"completion_tokens":10}}'
ERROR = b'{"error":{"message":"prompt too long","code":400}}'

USAGE_READ = Usage(19, 10)


def data(*payloads: bytes, end: bytes = b"\n") -> bytes:
    return b"".join(b"data: " + payload + end + end for payload in payloads)


DONE = data(b"[DONE]")


# ------------------------------------------------------------------------------------------- every chunking


def chunkings(stream: bytes) -> Iterator[list[bytes]]:
    """Whole, byte by byte, in two at each position, and in two with the borders' neighbours apart."""
    yield [stream]
    yield [stream[at : at + 1] for at in range(len(stream))]
    for at in range(1, len(stream)):
        yield [stream[:at], stream[at:]]
        yield [stream[: at - 1], stream[at - 1 : at], b"", stream[at : at + 1], stream[at + 1 :]]


Facts = tuple[Usage | None, bool, bool, bytes | None, int, bool]


def facts(watch: Observer) -> Facts:
    return watch.usage, watch.done, watch.finished, watch.error, watch.frames, watch.started


def run(watch: Observer, chunks: Sequence[bytes]) -> tuple[bytes, Facts]:
    relayed = b"".join([watch.feed(chunk) for chunk in chunks]) + watch.end()
    return relayed, facts(watch)


def observe(stream: bytes) -> Observer:
    """An observer that has seen the stream; every chunking of it was seen alike and relayed untouched."""
    whole = Observer()
    run(whole, [stream])
    for chunks in chunkings(stream):
        assert run(Observer(), chunks) == (stream, facts(whole))
    return whole


def strip(stream: bytes) -> bytes:
    """What a filter leaves of the stream; every chunking leaves the same and tells what an observer tells."""
    seen = run(Observer(), [stream])[1]
    left = run(UsageFilter(), [stream])[0]
    for chunks in chunkings(stream):
        assert run(UsageFilter(), chunks) == (left, seen)
    return left


# -------------------------------------------------------------------------------------------- the reference


@dataclass
class Reference:
    """What the stream says, found by going through all its lines."""

    stream: bytes
    relayed: bytes = b""
    usage: Usage | None = None
    done: bool = False
    finished: bool = False
    error: bytes | None = None
    frames: int = 0
    started: bool = False
    event: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        body = self.stream.removeprefix(BOM)
        self.relayed = self.stream[: len(self.stream) - len(body)]
        for line in re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", body):
            blank = line in (b"\r\n", b"\r", b"\n")
            if not self.event and (blank or line.startswith(b":")):
                self.relayed += line
            else:
                self.event.append(line)
                if blank:
                    self.close()
        if self.event:
            self.close()

    def close(self) -> None:
        removed = self.read([line.rstrip(b"\r\n") for line in self.event])
        self.relayed += b"".join(line for line in self.event if not removed or line.startswith(b":"))
        self.event = []

    def read(self, lines: list[bytes]) -> bool:
        values: dict[bytes, list[bytes]] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            values.setdefault(name, []).append(value[1:] if value[:1] == b" " else value)
        if failure := values.get(b"error", [b""])[-1]:
            self.error = self.error or failure
            self.started = True
        if b"data" not in values:
            return False
        payload = b"\n".join(values[b"data"])
        self.frames += 1
        try:
            frame = json.loads(payload)
        except ValueError:
            self.done = self.done or payload[:6] == b"[DONE]"
            self.started = self.started or bool(payload.strip())
            return False
        if not isinstance(frame, dict):
            self.started = True
            return False
        return self.learn(frame, payload)

    def learn(self, frame: dict[str, object], payload: bytes) -> bool:
        if frame.get("error"):
            self.error = self.error or payload
        choices = frame.get("choices")
        listed = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
        self.finished = self.finished or any(each.get("finish_reason") for each in listed)
        told = any(each.get("finish_reason") or set(each["delta"]) - {"role"} for each in listed)
        empty = any(each.get("delta") == {"role": "assistant", "content": ""} for each in listed)
        self.started = self.started or bool(frame.get("error")) or choices is None or (told and not empty)
        self.usage = read_usage(frame.get("usage")) or self.usage
        bare = choices in ([], [{"index": 0, "delta": {}}])
        return bare and frame.get("usage") is not None and not frame.get("error")

    def facts(self) -> Facts:
        return self.usage, self.done, self.finished, self.error, self.frames, self.started


PAYLOADS = [
    ROLE,
    TEXT,
    NULLS,
    STOP,
    BOTH,
    USAGE,
]
PAYLOADS += [ERROR, LITELLM, b"[DONE]", b"{}", b'{"choices":null}', b'{"choices":[]}']
PAYLOADS += [b"[]", b"null", b"{bad", b"", b" ", b'{"choices":[],\n"usage":{"prompt_tokens":7}}']
FIELDS = [
    b"event: message",
    b"id: 7",
    b"retry: 10",
    b": keep-alive",
    b":",
    b"data",
    b"datax: 1",
    b"error: {}",
    b"x",
]
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
BLANK_LINES = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\n", b"\n\r\n", b"\n\r", b"\r\r\n"]


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """An event with its blank line: data over one or more lines among other fields, line ends mixed."""
    lines = draw(st.lists(st.sampled_from(FIELDS), max_size=2))
    payload = draw(st.sampled_from(PAYLOADS))
    name = draw(st.sampled_from([b"data: ", b"data:"]))
    lines += [name + part for part in payload.split(b"\n")]
    lines += draw(st.lists(st.sampled_from(FIELDS), max_size=1))
    return b"".join(line + draw(ENDS) for line in [*lines, b""])


TIDY = st.sampled_from([data(payload) for payload in PAYLOADS if payload.strip()])
STREAMS = st.builds(
    lambda mark, parts, rest: mark + b"".join(parts) + rest,
    st.sampled_from([b"", BOM]),
    st.lists(events() | TIDY | st.sampled_from([b"\n", b"\r\n", b": ping\n", b":\r\n\r\n"]), max_size=7),
    st.sampled_from([b"", b"data: " + USAGE, b"data: " + USAGE + b"\n", b'data: {"choices":[{"del', b"\r"]),
)
TOKENS = [b"\r", b"\n", b"data:", b"data: ", b":", b" ", b"error:", b"[DONE]", BOM, USAGE, TEXT, b"x", b"{"]
SOUP = st.lists(st.sampled_from(TOKENS) | st.binary(max_size=3), max_size=30).map(b"".join)


def cut(stream: bytes, positions: Sequence[int]) -> list[bytes]:
    """The stream in chunks; every other cut is behind a blank line, as servers write."""
    blank = [found.end() for found in re.finditer(rb"\n\n|\r\n\r\n?|\r\r", stream)] or [0]
    cuts = [blank[at // 2 % len(blank)] if at % 2 else at // 2 % (len(stream) + 1) for at in positions]
    return [stream[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(stream)])]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)


@given(STREAMS | SOUP, CUTS)
@example(data(USAGE, end=b"\r") + b"\n" + DONE, [])
@example(b"\n\n" + data(USAGE) + b"\n" + DONE, [])
def test_b85_an_observer_relays_what_it_got_and_reads_what_is_there(stream: bytes, cuts: list[int]) -> None:
    assert run(Observer(), cut(stream, cuts)) == (stream, Reference(stream).facts())


@given(STREAMS | SOUP, CUTS)
@example(data(USAGE, end=b"\r") + b"\n" + DONE, [])
@example(b"data: " + USAGE + b"\r: why\r\r\n" + DONE, [])
def test_b83_a_filter_relays_all_but_the_usage_only_events(stream: bytes, cuts: list[int]) -> None:
    reference = Reference(stream)
    assert run(UsageFilter(), cut(stream, cuts)) == (reference.relayed, reference.facts())


@given(STREAMS | SOUP, CUTS, st.integers(min_value=0, max_value=150))
@example(b"id: 7\ndata: x\n\n", [14], 5)
def test_b87_the_bound_of_an_event_acts_the_same_in_every_chunking(
    stream: bytes, cuts: list[int], bound: int
) -> None:
    for kind in (Observer, UsageFilter):
        watch = kind(bound)
        relayed = b""
        for chunk in cut(stream, cuts):
            relayed += watch.feed(chunk)
            assert watch.held_bytes <= max(bound, len(BOM) - 1)
        assert (relayed + watch.end(), facts(watch)) == run(kind(bound), [stream])


@given(STREAMS | SOUP, CUTS)
def test_a_filter_holds_back_nothing_but_the_unfinished_event(stream: bytes, cuts: list[int]) -> None:
    watch = UsageFilter()
    got = given_back = 0
    for chunk in cut(stream, cuts):
        given_back += len(watch.feed(chunk))
        got += len(chunk)
        finished = stream[: got - watch.held_bytes]
        assert given_back == len(Reference(finished).relayed)


@given(st.binary(max_size=200), CUTS)
def test_b86_no_bytes_raise_or_change(noise: bytes, cuts: list[int]) -> None:
    assert run(Observer(), cut(noise, cuts))[0] == noise
    assert run(UsageFilter(), cut(noise, cuts))[0] == noise


# -------------------------------------------------------------------------------------------------- grammar


@pytest.mark.parametrize(
    "event",
    [
        *(b"data: " + USAGE + end for end in BLANK_LINES),
        b"data:" + USAGE + b"\n\n",
        b"data: " + USAGE.replace(b",", b",\ndata: ") + b"\n\n",
        b"data:" + USAGE.replace(b",", b",\r\ndata:") + b"\r\n\r\n",
        b"event: message\nid: 7\nretry: 10\ndata: " + USAGE + b"\n\n",
        b"data: " + USAGE + b"\nevent: message\n\n",
        b"data: " + USAGE + b"\n",
        b"data: " + USAGE,
    ],
)
@pytest.mark.parametrize("before", [b"", BOM, data(TEXT, end=b"\r\n"), data(TEXT, end=b"\r")])
def test_b81_usage_is_found_in_every_form_of_an_event(before: bytes, event: bytes) -> None:
    assert observe(before + event).usage == USAGE_READ
    assert strip(before + event) == before


def test_b81_a_byte_order_mark_counts_at_the_start_only() -> None:
    assert observe(BOM + data(USAGE)).frames == 1
    assert observe(data(TEXT) + BOM + data(USAGE)).frames == 1


def test_b81_a_second_space_belongs_to_the_data() -> None:
    assert observe(b"data:  [DONE]\n\n").done is False


def test_b81_two_values_on_two_data_lines_are_not_one_value() -> None:
    first, second = b"data: " + USAGE + b"\n", b"data: " + USAGE
    assert observe(first + second + b"\n\n").usage is None
    assert run(Observer(), [data(TEXT), first + second, b"\n\n"])[1][0] is None


def test_b82_comments_are_relayed_and_not_read() -> None:
    stream = (
        b": OPENROUTER PROCESSING\n\n:data: " + ERROR + b"\n\n" + data(TEXT) + b":keepalive\n" + data(USAGE)
    )
    watch = observe(stream)
    assert (watch.frames, watch.error, watch.usage) == (2, None, USAGE_READ)
    assert strip(stream) == stream.removesuffix(data(USAGE))


def test_b82_comment_lines_inside_a_removed_event_stay() -> None:
    assert (
        strip(b": before\ndata: " + USAGE + b"\n: within\nid: 4\n\n" + DONE) == b": before\n: within\n" + DONE
    )


def test_b82_a_comment_is_released_before_its_line_ends() -> None:
    watch = UsageFilter()
    assert watch.feed(b": keep") == b": keep"
    assert watch.feed(b"-alive\n") == b"-alive\n"
    assert watch.feed(b"\n") == b"\n"
    assert watch.held_bytes == 0


def test_fields_that_only_begin_like_data_are_no_data() -> None:
    watch = observe(b"datax: " + USAGE + b"\n\n data: " + USAGE + b"\n\nDATA: " + USAGE + b"\n\n")
    assert (watch.frames, watch.usage) == (0, None)


# ---------------------------------------------------------------------------------------------------- usage


def test_b52_of_running_usages_the_last_counts() -> None:
    chunk = b'{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":100,"completion_tokens":%d}}'
    stream = data(*(chunk % count for count in range(10))) + data(NULLS) + DONE
    watch = Observer()
    for event in stream.splitlines(keepends=True):
        watch.feed(event)
    assert watch.usage == Usage(100, 9)
    assert watch.frames == 12
    assert run(UsageFilter(), [stream])[0] == stream


@pytest.mark.parametrize(
    "frame",
    [
        b'{"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10}}',
        b'{"usage":{"prompt_tokens":19,"completion_tokens":10}}',
        b'{"choices":[{"index":0,"delta":{},"usage":{"prompt_tokens":19,"completion_tokens":10}}]}',
        b'{"choices":[{"delta":{}}],"x_groq":{"usage":{"prompt_tokens":19,"completion_tokens":10}}}',
        b'{"usage":null,"choices":[],"x_groq":{"usage":{"prompt_tokens":19,"completion_tokens":10}}}',
        b'{"usage":{},"choices":[{"usage":{"prompt_tokens":19,"completion_tokens":10}}]}',
        b'{ "usage" :\t{"prompt_tokens" : 19, "completion_tokens": 10}, "object": "chat" }',
        b'{"usage":{"prompt_tokens":19,"completion_tokens":10},"x":"\\ud83d"}',
        b'{"usage":{"prompt_tokens":19,"completion_tokens":10},"choices":[{"logprob":-Infinity}]}',
        b'{"usage":{"prompt_tokens":19,"completion_tokens":10,"note":"\xff"}}',
    ],
)
@pytest.mark.parametrize("before", [b"", data(TEXT)])
def test_usage_is_found_in_all_its_places(before: bytes, frame: bytes) -> None:
    assert observe(before + data(frame)).usage == USAGE_READ


@pytest.mark.parametrize(
    "usage",
    [b"null", b"{}", b"[]", b"7", b'"7"', b'{"total_tokens":5}']
    + [
        b'{"prompt_tokens":%s}' % count
        for count in (b"0", b'"12"', b"NaN", b"-1", b"1e12", b"1e999", b"1" * 5000)
    ],
)
def test_b53_malformed_usage_does_not_replace_what_was_read(usage: bytes) -> None:
    stream = data(BOTH, b'{"choices":[{"delta":{"content":"c"}}],"usage":' + usage + b"}") + DONE
    for chunks in ([stream], [stream[:200], stream[200:]], stream.splitlines(keepends=True)):
        assert run(Observer(), chunks) == (stream, (Usage(9, 4), True, False, None, 3, True))
        assert run(UsageFilter(), chunks)[0] == stream


def test_b54_cached_tokens_beside_the_prompt_reach_the_learner() -> None:
    frame = b'{"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":3,"cache_read_input_tokens":950}}'
    usage = observe(data(frame)).usage
    assert usage == Usage(50, 3, cache_read_tokens=950)
    assert usage.prompt_readings == (50, 1000)


# ----------------------------------------------------------------------------------------------- the filter


@pytest.mark.parametrize("only", [USAGE, LITELLM])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_b83_the_usage_only_event_goes_and_the_rest_stays(end: bytes, only: bytes) -> None:
    before, after = data(ROLE, TEXT, STOP, end=end), data(b"[DONE]", end=end)
    assert strip(before + data(only, end=end) + after) == before + after


@pytest.mark.parametrize(
    "frame",
    [
        BOTH,
        NULLS,
        LITELLM.replace(b"{}", b'{},"finish_reason":"stop"'),
        LITELLM.replace(b"{}", b'{"role":"assistant"}'),
        b'{"choices":[],"usage":null}',
        b'{"choices":[]}',
        b'{"choices":null,"usage":{"prompt_tokens":7}}',
        b'{"usage":{"prompt_tokens":7}}',
        b'{"choices":[],"usage":{"prompt_tokens":7},"error":{"message":"late"}}',
        b'{"choices":[],"x_groq":{"usage":{"prompt_tokens":7}}}',
        b'[{"choices":[],"usage":{"prompt_tokens":7}}]',
        b'{"choices":[],"usage":{"prompt_tokens":7}',
    ],
)
def test_b83_what_is_more_or_less_than_a_usage_only_event_stays(frame: bytes) -> None:
    stream = data(TEXT, frame) + DONE
    assert strip(stream) == stream


@pytest.mark.parametrize("usage", [b"{}", b"[]", b"0", b'{"prompt_tokens":0}', b'{"prompt_tokens":NaN}'])
def test_b83_a_usage_only_event_goes_even_if_its_usage_cannot_be_believed(usage: bytes) -> None:
    assert strip(data(TEXT, b'{"choices":[],"usage":' + usage + b"}") + DONE) == data(TEXT) + DONE


def test_b83_the_line_feed_of_the_blank_line_goes_with_the_event_when_it_comes_alone() -> None:
    for chunks in ([b"data: " + USAGE + b"\r\n\r"], [b"data: " + USAGE + b"\r\n", b"\r"]):
        watch = UsageFilter()
        watch.feed(data(TEXT))
        assert [watch.feed(chunk) for chunk in [*chunks, b"\n", DONE]][-3:] == [b"", b"", DONE]


def test_b83_several_usage_only_events_all_go() -> None:
    assert strip(data(USAGE, TEXT, USAGE, USAGE) + DONE) == data(TEXT) + DONE


def test_a_filter_returns_whole_events_at_once_and_the_very_chunk_if_nothing_was_held() -> None:
    watch = UsageFilter()
    watch.feed(data(TEXT))
    chunk = data(NULLS)
    assert watch.feed(chunk) is chunk
    assert watch.feed(data(TEXT) + b"data: {") == data(TEXT)
    assert watch.held_bytes == len(b"data: {")
    assert watch.feed(b"}\n") == b""
    assert watch.feed(b"\nda") == b"data: {}\n\n"
    assert watch.end() == b"da"


# ---------------------------------------------------------------------------------------------- odd streams


ODD_CHOICES = [
    b"[]",
    b"null",
    b"7",
    b"[null,7,[],{}]",
    b'[{"delta":null}]',
    b'[{"delta":7,"finish_reason":{}}]',
]
ODD_FRAMES = [b"{}", b"[]", b"null", b"{bad", b"\xff\xfe", b'{"x_groq":7,"error_type":[],"usage":"usage"}']
ODD_FRAMES += [b'{"choices":%s}' % choices for choices in ODD_CHOICES]
DEEP_FRAMES = [b'{"usage":' + b"[" * 100_000, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]


@pytest.mark.parametrize("payload", ODD_FRAMES + DEEP_FRAMES)
def test_b86_odd_frames_pass_and_are_only_counted(payload: bytes) -> None:
    stream = data(TEXT, payload, TEXT) + DONE
    for chunks in ([stream], stream.splitlines(keepends=True), [data(TEXT), data(payload), data(TEXT), DONE]):
        assert run(Observer(), chunks) == (stream, (None, True, False, None, 4, True))
        assert run(UsageFilter(), chunks)[0] == stream


ERROR_EVENTS = [data(ERROR), b"event: error\ndata: " + ERROR + b"\n\n"]
ERROR_EVENTS += [b"error: " + ERROR + b"\n\n", b"error:" + ERROR + b"\r\n\r\n"]


@pytest.mark.parametrize("event", ERROR_EVENTS)
@pytest.mark.parametrize("before", [b"", data(ROLE), data(TEXT)])
def test_b86_the_first_error_is_kept_as_it_came(before: bytes, event: bytes) -> None:
    watch = observe(before + event + data(b'{"error":"another"}') + b"error: more\n\n" + DONE)
    assert watch.error == ERROR
    assert (watch.started, watch.done) == (True, True)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"error":"a string"}',
        b'{"error":{"object":"error","message":"too long","code":400}}',
        b'{"id":"g","choices":[{"delta":{},"finish_reason":"error"}],"error":{"code":502,"message":"m"}}',
        b'{"choices":[],"x_groq":{"id":"r","error":"over capacity"}}',
        b'{"error_type":"too_long","error_message":"{}"}',
        b'{"choices":[],"usage":{"prompt_tokens":7},"error":true}',
    ],
)
def test_errors_are_known_by_every_shape_they_come_in(frame: bytes) -> None:
    assert observe(data(TEXT, frame)).error == frame


@pytest.mark.parametrize("error", [b"null", b"{}", b'""', b"false", b'null,"error_type":"x"'])
def test_an_empty_error_is_none(error: bytes) -> None:
    frame = b'{"choices":[],"error":' + error + b"}"
    assert observe(data(frame, TEXT, frame)).error is None


def test_finished_needs_a_reason() -> None:
    assert not observe(data(TEXT, b'{"choices":[{"delta":{"content":"a"},"finish_reason":""}]}')).finished
    assert observe(data(TEXT, STOP, TEXT)).finished
    assert observe(data(TEXT, b'{"choices":[{"delta":{}},{"delta":{},"finish_reason" : "length"}]}')).finished


@pytest.mark.parametrize(
    "beginning",
    [
        *(b"", b": ping\n\n", b"\n\n", b"event: open\n\n", b"data: \n\n", b"data: {"),
        *(data(ROLE), data(ROLE, ROLE) + b": ping\n\n", data(b'{"choices":[{"delta":null}]}')),
        data(b'{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}'),
        data(b'{"choices":[{"delta":{"role":"assistant","content":null,"refusal":null}}]}'),
    ],
)
def test_an_answer_has_not_started_before_it_says_something(beginning: bytes) -> None:
    watch = Observer()
    watch.feed(beginning)
    assert not watch.started
    rest = beginning.rpartition(b"\n\n")[2] and b"}\n\n"
    watch.feed(rest + data(TEXT))
    assert watch.started


@pytest.mark.parametrize(
    "first",
    [
        *(TEXT, STOP, ERROR, b"[DONE]", b"{bad", b"{}", b'{"choices":[7]}', b'{"choices":[{"text":"a"}]}'),
        b'{"choices":[{"delta":{"role":"assistant","tool_calls":[{"index":0}]}}]}',
        b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}',
    ],
)
def test_an_answer_has_started_with_its_first_word_call_error_or_end(first: bytes) -> None:
    assert observe(data(ROLE, first)).started


# ---------------------------------------------------------------------------------------------- long events


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


@pytest.mark.parametrize("size", [1000, 65_536, 6_000_000])
def test_b87_an_event_of_five_million_bytes_passes_and_the_usage_after_it_is_read(size: int) -> None:
    image = data(b'{"choices":[{"delta":{"content":"' + b"A" * 5_000_000 + b'"}}]}')
    stream = image + data(USAGE) + DONE
    seen = (USAGE_READ, True, False, None, 3, True)
    assert run(Observer(), pieces(stream, size)) == (stream, seen)
    assert run(UsageFilter(), pieces(stream, size)) == (image + DONE, seen)


def test_b87_an_event_beyond_the_bound_passes_unread_as_it_comes() -> None:
    bound, size = 100_000, 1000
    watch = UsageFilter(bound)
    long = data(USAGE[:-1] + b',"x":"' + b"A" * 1_000_000 + b'"}')
    stream = long + data(USAGE) + DONE
    got = given_back = 0
    for chunk in pieces(stream, size):
        got += len(chunk)
        given_back += len(watch.feed(chunk))
        assert watch.held_bytes <= bound
        if bound < got <= len(long):
            assert given_back == got
    assert given_back == len(long + DONE)
    assert facts(watch) == (USAGE_READ, True, False, None, 3, True)


def test_b87_the_bound_is_to_the_byte() -> None:
    event, first = data(USAGE), data(b"1")
    for kind in (Observer, UsageFilter):
        for chunks in chunkings(event):
            assert run(kind(len(event)), [first, *chunks])[1][0] == USAGE_READ
            relayed, (usage, *_) = run(kind(len(event) - 1), [first, *chunks])
            assert (relayed, usage) == (first + event, None)


# ------------------------------------------------------------------------------------------- broken streams


def test_b90_a_stream_that_ends_between_events_is_not_done() -> None:
    stream = data(ROLE, TEXT, TEXT)
    watch = observe(stream)
    assert (watch.done, watch.finished, watch.usage, watch.frames) == (False, False, None, 3)
    assert strip(stream) == stream


@pytest.mark.parametrize(
    "broken", [b'data: {"id":"c","cho', b"data: " + USAGE[:-1], b"data: [DO", b"dat", b": pi"]
)
def test_b90_a_stream_that_ends_in_mid_event_is_relayed_to_the_last_byte(broken: bytes) -> None:
    stream = data(ROLE, TEXT) + broken
    watch = observe(stream)
    assert (watch.done, watch.usage, watch.error) == (False, None, None)
    assert strip(stream) == stream


def test_b90_ending_twice_returns_nothing_twice() -> None:
    watch = UsageFilter()
    watch.feed(b"data: {")
    assert (watch.end(), watch.end()) == (b"data: {", b"")
    assert watch.frames == 1
