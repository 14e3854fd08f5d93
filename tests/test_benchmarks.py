"""The benchmark of prompt reuse on conversations so small that its numbers can be worked out by hand.

Rules. The upstream counts a word as a token, so that a message of six words is 3 + 1 + 6 = 10 tokens and a prompt of n
such messages 3 + 10 n. At a window of 100 the budget is 100 - 25 - 3 = 72 tokens.
"""

import json
from pathlib import Path

import pytest

from benchmarks.fact_survival import Kept, Probe, Probed, is_there
from benchmarks.fact_survival import cells_of as fact_cells_of
from benchmarks.fact_survival import main as survival
from benchmarks.prefix_reuse import (
    Bench,
    KeepLast,
    Managed,
    Meter,
    Prompt,
    Spec,
    SummariseAnew,
    Tally,
    cells_of,
    common,
    main,
)
from benchmarks.recorded import Half, Scales
from proxy.context import rawjson
from tests.replay import Recording

WINDOW = 100
WORDS = 6
WORD_CHARACTERS = 40
"""Of the 100 characters of a line that a summary keeps, such words leave two and a part of the third."""


def words(text: str) -> int:
    return len(text.split())


def said(index: int) -> dict[str, str]:
    """A message of ten tokens that is like no other; users and assistants take turns."""
    text = " ".join(f"m{index}w{word}".ljust(WORD_CHARACTERS, "x") for word in range(WORDS))
    return {"role": "assistant" if index % 2 else "user", "content": text}


def recording(messages: int) -> Recording:
    raws = tuple(rawjson.encode(said(index)) for index in range(messages))
    return Recording("made-up", raws, None, tuple(range(1, messages, 2)))


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(words)


@pytest.fixture(scope="module")
def tallies(bench: Bench) -> dict[str, Tally]:
    """Requests of 1, 3, ... 15 messages: 3 + 10 n tokens, of which those of 11, 13 and 15 are over the window."""
    specs = [Spec("ours", Managed), Spec("keep-last", KeepLast), Spec("summarise", SummariseAnew)]
    return {name: tally for (_, name), tally in cells_of((recording(16), WINDOW), specs, bench).items()}


def test_a_prompt_that_extends_the_one_before_reads_what_is_new_and_no_more() -> None:
    meter = Meter(Scales(words))
    raws = recording(5).raws
    first = meter.served(Prompt(raws[:1], 0, None), raws[:1])
    second = meter.served(Prompt(raws[:3], 0, None), raws[:3])
    assert (first.read, first.new, first.extending) == (13, 10, 0), (
        "nothing was cached, the prompt's frame included"
    )
    assert (second.read, second.new, second.extending, second.forwarded) == (20, 20, 1, 33)


def test_what_stands_behind_the_first_changed_message_is_read_again() -> None:
    meter = Meter(Scales(words))
    raws = recording(7).raws
    block = rawjson.encode({"role": "user", "content": "a summary of two"})
    system = rawjson.encode({"role": "system", "content": "be brief"})
    meter.served(Prompt((system, *raws[:5]), 1, None), (system, *raws[:5]))
    cut = meter.served(Prompt((system, raws[0], block, *raws[3:7]), 1, None), (system, *raws[:7]))
    assert (cut.read, cut.new, cut.extending) == (8 + 40, 20, 0)
    assert cut.reread == pytest.approx(2.4)
    assert cut.forwarded == 3 + 6 + 10 + 8 + 40


def test_a_changed_head_or_other_tools_leave_nothing_of_the_cache() -> None:
    raws = recording(3).raws
    heads = [rawjson.encode({"role": "system", "content": text}) for text in ("now 10:00", "now 10:01")]
    clock = Meter(Scales(words))
    clock.served(Prompt((heads[0], *raws[:1]), 1, None), (heads[0], *raws[:1]))
    turn = clock.served(Prompt((heads[1], *raws), 1, None), (heads[1], *raws))
    assert (turn.read, turn.new, turn.extending) == (3 + 6 + 30, 20, 0)
    tools = Meter(Scales(words))
    tools.served(Prompt(raws[:1], 0, None), raws[:1])
    assert tools.served(Prompt(raws, 0, b'[{"type":"function"}]'), raws).read == 3 + 30 + 1


def test_keep_last_reads_all_eight_messages_that_fit_again_at_each_turn(tallies: dict[str, Tally]) -> None:
    tally = tallies["keep-last"]
    assert (tally.requests, tally.over_window, tally.served, tally.refused) == (8, 3, 3, 0)
    assert (tally.read, tally.new, tally.extends) == (3 * 80, 3 * 20, 0.0)
    assert tally.reread == pytest.approx(4.0)
    assert tally.forwarded == 3 * 83
    assert tally.side_calls == 0


def test_summarising_every_time_asks_at_every_turn_over_the_budget(tallies: dict[str, Tally]) -> None:
    """Three messages fit half the budget; the block has 3 words of its own and 3 of each of 8, 10 and 12 lines."""
    tally = tallies["summarise"]
    blocks = [4 + 3 + 3 * lines for lines in (8, 10, 12)]
    assert tally.side_calls == len([9, 11, 13, 15])
    assert tally.side_share == pytest.approx(4 / 3)
    assert (tally.read, tally.new, tally.extends) == (sum(blocks) + 3 * 30, 60, 0.0)
    assert tally.reread == pytest.approx(201 / 60)
    # Input: all that is left out, never more than the window, and 600 for the order; output: the summary.
    assert tally.side_tokens == 4 * WINDOW + sum(3 + 3 * lines for lines in (6, 8, 10, 12))


def test_the_exchange_is_measured_by_the_same_rule(tallies: dict[str, Tally]) -> None:
    tally = tallies["ours"]
    assert (tally.requests, tally.over_window, tally.served, tally.refused) == (8, 3, 3, 0)
    assert tally.new == 3 * 20
    assert tally.forwarded <= 3 * WINDOW
    assert tally.side_calls == 0, "so small a window has no room for a summary"


def test_a_conversation_within_one_and_a_half_windows_is_not_taken(bench: Bench) -> None:
    assert cells_of((recording(14), WINDOW), [Spec("keep-last", KeepLast)], bench) == {}


def test_a_request_that_had_to_be_refused_is_told_from_one_that_had_not(bench: Bench) -> None:
    """Of sixteen messages the fifteenth is alone longer than the window: that request fits in no way."""
    huge = rawjson.encode({"role": "user", "content": "word " * 200})
    small = recording(16)
    raws = (*small.raws[:14], huge, small.raws[15])
    cells = cells_of((Recording("huge", raws, None, small.replies), WINDOW), [Spec("last", KeepLast)], bench)
    tally = cells[WINDOW, "last"]
    assert (tally.refused, tally.needless, tally.served) == (1, 0, 2)
    assert tally.refusals == ["huge request 8: head, tools and newest round alone are 207 of 100 tokens"]


def test_the_common_beginning_ends_at_the_first_difference_or_the_shorter_end() -> None:
    assert common([b"a", b"b"], [b"a", b"c", b"d"]) == 1
    assert common([b"a"], [b"a", b"c"]) == 1
    assert common([], [b"a"]) == 0


def test_each_conversation_belongs_to_exactly_one_half() -> None:
    ids = [f"talk-{number}" for number in range(50)]
    assert all(Half.A.holds(each) != Half.B.holds(each) and Half.ALL.holds(each) for each in ids)
    assert 10 < sum(Half.A.holds(each) for each in ids) < 40


def test_the_program_prints_a_row_for_each_method_and_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.dumps({"id": "made-up", "messages": [said(index) for index in range(16)]})
    (tmp_path / "conversations.jsonl").write_text(line, encoding="utf-8")
    main([str(tmp_path), "--windows", "400", "--compact-to", "0.3", "0.5"])
    rows = capsys.readouterr().out.splitlines()[1:5]
    for row, name in zip(
        rows, ("transom, compact_to 0.3", "transom, compact_to 0.5", "keep-last", "summarise"), strict=True
    ):
        assert row.split()[0] == "400"
        assert name in row


# --- what survives ----------------------------------------------------------------------------------------------------


def remembering(messages: int) -> Recording:
    """The same conversation, whose first message names a value that the last reply uses."""
    plain = recording(messages)
    first = rawjson.encode({"role": "user", "content": "remember HAT139 and src/app/main.py for me please"})
    return Recording("remembering", (first, *plain.raws[1:]), None, plain.replies)


def survived(method: str, *probes: Probe) -> Kept:
    spec = {"last": Spec("last", KeepLast), "ours": Spec("ours", Managed)}[method]
    task = Probed(remembering(60), probes, 300)
    return fact_cells_of(task, [spec], Bench(words))[300, method]


def test_a_value_that_is_needed_again_is_there_or_not_by_what_is_forwarded() -> None:
    probes = (Probe(59, ("HAT139",)), Probe(59, ("m56w1",)))
    kept = survived("last", *probes)
    assert (kept.probes, kept.kept) == (2, 1), "the newest stays, the oldest has gone"
    assert survived("ours", *probes).kept == 2, "the first user message is carried"


def test_a_probe_at_a_request_that_fits_the_window_says_nothing() -> None:
    assert survived("last", Probe(5, ("HAT139",))).probes == 0


def test_a_question_needs_all_words_of_its_answer() -> None:
    asked = Probe(60, ("m58w1", "HAT139"), "Which one?")
    kept = survived("last", asked)
    assert (kept.questions, kept.answered) == (1, 0)


def test_a_path_is_there_also_where_one_line_names_directory_and_file() -> None:
    assert is_there("src/app/main.py", "  src/app/ cli.py (read), main.py (edited)")
    assert not is_there("src/app/main.py", "  src/app/ cli.py, domain.py\nmain.py")
    assert not is_there("HAT139", "hat140")


def test_the_program_of_survival_prints_a_row_for_each_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.dumps({"id": "made-up", "messages": [said(index) for index in range(30)]})
    (tmp_path / "conversations.jsonl").write_text(line, encoding="utf-8")
    probe = {"conv_id": "made-up", "used_msg": 29, "value": "m1w1"}
    (tmp_path / "reuse_probes.jsonl").write_text(json.dumps(probe), encoding="utf-8")
    (tmp_path / "qa_probes.jsonl").write_text("", encoding="utf-8")
    survival([str(tmp_path), "--windows", "800", "--only", "keep-last", "ladder, carry"])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["800", "800"]
