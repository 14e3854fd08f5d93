"""The benchmark of speed, so small that it takes seconds: that it runs, and what it makes of its figures.

Rules. No figure is judged, for a busy machine has others. What the machine lacks is told and skipped.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.speed import __main__ as program
from benchmarks.speed import idle, long, machine, small, streams
from benchmarks.speed.options import Options
from benchmarks.speed.processes import Absent
from benchmarks.speed.subjects import litellm_program
from benchmarks.speed.tables import Target, over_rounds, percentile, ratio, table
from benchmarks.speed.talks import grown, made_up, recorded
from tests.needs import lacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processor time is read as Linux tells it")

TINY = Options(
    rounds=1,
    without=("litellm",),
    connections=2,
    seconds=1,
    warming=0,
    sizes=(0.02, 0.04),
    streams=3,
    interval=0.01,
    pacing=0.1,
    chunks=2000,
    idle=3,
    remembered=3,
)
NEEDS = {"nginx": "nginx-light", "wrk": "wrk"}


@pytest.fixture(scope="module")
def _programs() -> None:
    """The programs that stand beside ours, without which a table would lack rows."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    for name, package in NEEDS.items():
        if shutil.which(name, path=path) is None:
            lacks(f"there is no {name}", f"apt-get install {package}")


def rows(text: str) -> dict[str, list[list[str]]]:
    """The cells of all lines of tables, by the first cell."""
    found: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.setdefault(cells[0], []).append(cells)
    return found


# --- each part, run ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_programs")
def test_small_chats_are_answered_by_every_subject_and_none_fails() -> None:
    found = rows(small.run(TINY))
    assert {"direct", "nginx", "floor", "manage", "observe", "off"} <= found.keys()
    served = {name: cells for name, (cells, *_) in found.items() if name and not name.startswith("-")}
    assert all(cells[-1] == "0" for cells in served.values()), "a failed request is counted, not served"
    assert all(int(cells[1].replace(",", "")) > 0 for cells in served.values())


@pytest.mark.usefixtures("_programs")
def test_long_conversations_are_timed_at_each_size_beside_a_bare_count() -> None:
    text = long.run(TINY)
    names = [cells[1] for size in ("0.02", "0.04") for cells in rows(text)[size]]
    assert names == 2 * ["direct", "nginx", "floor", "transom", "transom-over", "tiktoken"]
    assert "not measured" not in text


@pytest.mark.usefixtures("_programs")
def test_streams_arrive_whole_through_every_subject() -> None:
    found = rows(streams.run(TINY))
    assert [len(found[name]) for name in ("direct", "nginx", "floor", "transom")] == [3, 3, 3, 3]


@pytest.mark.usefixtures("_programs")
def test_memory_is_told_of_an_idle_stream_and_of_a_conversation() -> None:
    found = rows(idle.run(TINY))
    assert [len(found[name]) for name in ("nginx", "floor", "transom")] == [1, 1, 3]


def test_a_part_that_cannot_run_is_named_with_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program.main(["--unpinned", "--only", "small", "--without", "litellm"])
    said = capsys.readouterr().out
    assert "small is left out: wrk is not installed (Debian: apt-get install wrk)" in said
    assert said.startswith("Machine: ")


def test_litellm_that_cannot_be_installed_is_left_out_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="cannot be installed"):
        litellm_program(tmp_path / "venv", requirement="litellm @ file:///nowhere/litellm.whl")
    assert not (tmp_path / "venv").exists(), "the next run tries again"


# --- what is made of figures ------------------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_a_round() -> None:
    """In the second round the machine was ten times slower, for both."""
    assert over_rounds([200.0, 10.0, 100.0], [100.0, 5.0, 50.0], ratio) == 2.0
    assert over_rounds([1.0], [], ratio) is None
    assert ratio(1.0, -0.1) is None


def test_a_percentile_is_a_value_that_occurs() -> None:
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert percentile([7.0], 0.5) == 7.0


def test_a_target_says_what_was_found_and_judges_nothing_that_is_missing() -> None:
    target = Target("ours is quick", 0.71, least=0.7)
    assert str(target) == "met: ours is quick; it is 0.71"
    assert str(replace(target, found=0.69)).startswith("missed: ")
    assert str(replace(target, found=None)) == "not measured: ours is quick"


def test_a_table_is_markdown() -> None:
    assert table(("", "x"), [("a", "1"), ("longer", "2,000")]).splitlines() == [
        "|        |     x |",
        "| ------ | ----: |",
        "| a      |     1 |",
        "| longer | 2,000 |",
    ]


def test_subjects_take_turns_at_being_the_first() -> None:
    assert ["".join(TINY.in_turn("abc", number)) for number in range(4)] == ["abc", "bca", "cab", "abc"]


def test_what_wrk_says_becomes_answers_a_second_and_processor_time_for_each() -> None:
    said = '{"requests":100,"microseconds":2000000,"p50":1500.0,"p99":9000.0,"failed":20}'
    taken = small.sample(f"Running 2s test\n{said}\n", cpu=0.05)
    assert (taken.rate, taken.p50, taken.p99, taken.failed) == (40.0, 1.5, 9.0, 20)
    assert taken.cpu == pytest.approx(500.0)
    nothing = small.sample('{"requests":0,"microseconds":1000000,"p50":0.0,"p99":0.0,"failed":0}', cpu=0.5)
    assert (nothing.rate, nothing.cpu) == (0.0, None), "what answered nothing has no price"
    assert over_rounds([nothing.cpu, 40.0], [20.0, 20.0], ratio) == 2.0


def test_events_are_found_however_a_relay_frames_them() -> None:
    body = b'data: {"content":"12 "}\n\ndata: {"content":"34 "}\n\n'
    for size in range(1, len(body) + 1):
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        raw = (
            b"HTTP/1.1 200 OK\r\n\r\n"
            + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)
            + b"0\r\n\r\n"
        )
        found, frames = streams.unframed(raw)
        assert found == body
        assert [raw[in_raw - 1] for _, in_raw in frames] == [piece[-1] for piece in pieces]


def test_this_program_leaves_a_core_to_the_subjects() -> None:
    before = os.sched_getaffinity(0)
    try:
        core = machine.pinned()
        assert core is None or os.sched_getaffinity(0) == before - {core}
        assert (core is None) == (len(before) < 2)
    finally:
        os.sched_setaffinity(0, before)


# --- the conversations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [20_000, 100_000])
def test_a_conversation_grows_by_whole_turns_behind_what_was_sent(size: int) -> None:
    bodies = [json.loads(body)["messages"] for body in grown(made_up, size, 3).under("m", "t")]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(bodies))
    assert [message["role"] for message in bodies[1][len(bodies[0]) :]] == ["assistant", "tool"]
    assert size <= len(grown(made_up, size, 0).bodies[0]) < size * 1.4


def test_conversations_with_different_tags_share_no_message() -> None:
    talk = grown(made_up, 20_000, 2)
    seen = [
        {json.dumps(message) for message in json.loads(talk.under("m", tag)[-1])["messages"]}
        for tag in ("001t", "002t")
    ]
    assert not seen[0] & seen[1]


def test_recorded_messages_are_taken_in_rounds_that_are_whole(tmp_path: Path) -> None:
    def call(name: str) -> dict[str, object]:
        return {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}}

    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "read both"},
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "assistant", "content": None, "tool_calls": [call("c")]},
        {"role": "user", "content": [{"type": "text", "text": "a picture"}]},
    ]
    (tmp_path / "conversations.jsonl").write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    groups = list(islice(recorded(tmp_path)("t"), 3))
    assert [[message["role"] for message in group] for group in groups] == [
        ["user"],
        ["assistant", "tool", "tool"],
        ["user"],
    ]
    assert groups[2][0]["content"] != groups[0][0]["content"], "the second time it is another message"
