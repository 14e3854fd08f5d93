"""The learned correction: what it believes, what it does not, and that it cannot run away."""

import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context import calibration
from proxy.context.calibration import (
    UNCALIBRATED,
    Anchor,
    Calibration,
    CalibrationPolicy,
    Line,
    Prompt,
    Report,
    expect,
    follow,
    learn,
)

POLICY = CalibrationPolicy()


def after(samples: Sequence[tuple[float, float]]) -> Calibration:
    known = UNCALIBRATED
    for raw, reported in samples:
        known = learn(known, raw, reported, POLICY)
    return known


def factor(known: Calibration, raw: float = 10_000) -> float:
    """Expected tokens for each of ours, of a prompt of so many."""
    return known.line(POLICY).tokens(raw) / raw


def test_before_the_first_answer_the_factor_is_one() -> None:
    assert factor(UNCALIBRATED) == 1.0


def test_b55_a_constant_ratio_is_learned_and_stays() -> None:
    assert factor(after([(10_000, 15_000)] * 50)) == pytest.approx(1.5)


@given(st.lists(st.tuples(st.floats(2_000, 100_000), st.floats(0.9, 1.1)), min_size=5, max_size=40))
def test_b55_noise_of_a_tenth_stays_within_a_tenth(samples: list[tuple[float, float]]) -> None:
    known = after([(raw, raw * 1.5 * noise) for raw, noise in samples])
    usual = sum(raw for raw, _ in samples) / len(samples)
    assert factor(known, usual) == pytest.approx(1.5, rel=0.1001)


def test_b55_a_small_first_prompt_teaches_nothing() -> None:

    assert learn(UNCALIBRATED, 20, 600, POLICY) is UNCALIBRATED


@pytest.mark.parametrize("reported", [None, 0, -1, math.nan, math.inf, True])
@pytest.mark.parametrize("raw", [5000, None, 0, -3])
def test_b53_what_is_no_positive_number_teaches_nothing(raw: float | None, reported: float | None) -> None:
    assert learn(UNCALIBRATED, raw, reported, POLICY) is UNCALIBRATED


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e12)), max_size=30))
def test_the_factor_never_leaves_its_bounds(samples: list[tuple[float, float]]) -> None:
    assert POLICY.lowest <= factor(after(samples)) <= POLICY.highest


def test_b51_a_server_that_silently_cuts_the_prompt_teaches_nothing() -> None:
    assert factor(after([(5508, 2050)])) == 1.0
    assert factor(after([(n * 1000, 2050) for n in range(4, 40)])) == 1.0
    good = [(10_000, 11_000)] * 10
    cut = after(good + [(n * 1000, 4096) for n in range(10, 40)])
    assert factor(cut) == pytest.approx(1.1)


@pytest.mark.parametrize("reported", [1, 50, 99_000_000])
def test_b54_one_absurd_answer_changes_nothing(reported: int) -> None:
    assert factor(after([(5508, reported)])) == 1.0
    assert factor(after([(10_000, 11_000)] * 3 + [(10_000, reported)])) == pytest.approx(1.1)


def test_what_lies_beyond_the_bounds_is_never_believed() -> None:
    assert factor(after([(5000, 50)] * 20)) == 1.0


@pytest.mark.parametrize("ratio", [0.3, 0.5, 2.5, 3.5])
def test_b49_an_unusual_ratio_that_lasts_is_believed_within_three_answers(ratio: float) -> None:
    assert factor(after([(10_000, 10_000 * ratio)] * 3)) == pytest.approx(ratio)


def test_a_large_prompt_counts_for_more_than_a_small_one() -> None:
    assert factor(after([(100_000, 120_000), (2_000, 4_000)]), 100_000) < 1.25


def test_a_lasting_change_is_followed_within_twenty_answers() -> None:
    known = after([(10_000, 10_000)] * 30 + [(10_000, 25_000)] * 20)
    assert factor(known) == pytest.approx(2.5, rel=0.1)


# --- conversations ----------------------------------------------------------------------------------------


def counted(samples: Sequence[tuple[float, float]], known: Calibration = UNCALIBRATED) -> Anchor:
    """One conversation's anchor after these counts, the model learning beside it."""
    anchor = Anchor("tip", "mark")
    for raw, reported in samples:
        anchor = follow(known, anchor, Report(raw, reported), POLICY)
        known = learn(known, raw, reported, POLICY)
    return anchor


def test_a_prompt_that_grew_is_expected_from_the_last_count_and_the_slope_of_late() -> None:
    model = after([(10_000, 10_000)] * 20)
    anchor = counted([(raw, 3_000 + 1.2 * raw) for raw in range(4_000, 20_000, 1_000)], model)
    expected = expect(model, anchor, POLICY)
    assert expected.tokens(19_500) == pytest.approx(3_000 + 1.2 * 19_500, rel=0.002)


def test_tokens_that_an_upstream_adds_to_every_prompt_are_told_from_their_slope() -> None:
    model = after([(raw, 3_000 + 1.1 * raw) for raw in (1_500, 20_000, 4_000, 9_000, 2_500, 15_000)])
    assert model.line(POLICY).offset == pytest.approx(3_000, rel=0.05)
    anchor = counted([(raw, 3_000 + 1.1 * raw) for raw in (10_000, 12_000, 20_000)], model)
    assert expect(model, anchor, POLICY).tokens(6_000) == pytest.approx(3_000 + 1.1 * 6_000, rel=0.03), "cut"


@pytest.mark.parametrize("reported", [0, -1, math.nan, True])
def test_b53_what_is_no_count_leaves_the_anchor_as_it_is(reported: float) -> None:
    anchor = counted([(5_000, 6_000)])
    assert follow(UNCALIBRATED, anchor, Report(6_000, reported), POLICY) is anchor


def test_b51_a_server_that_silently_cuts_the_prompt_moves_no_anchor() -> None:
    model = after([(10_000, 11_000)] * 10)
    anchor = counted(
        [(20_000, 22_000), (21_000, 8_192), (22_000, 8_192), (23_000, 8_192), (24_000, 8_192)], model
    )
    assert (anchor.raw, anchor.reported) == (20_000, 22_000)


def test_b49_a_conversation_of_digits_among_others_is_believed_after_three_counts() -> None:
    model = after([(10_000, 10_000)] * 20)
    digits = [(2_000, 6_000), (3_000, 9_000), (4_000, 12_000)]
    assert counted(digits[:2], model).raw == 0
    assert expect(model, counted(digits, model), POLICY).tokens(5_000) == pytest.approx(15_000, rel=0.03)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e12)), max_size=30), st.floats(1, 1e9))
def test_b55_slopes_of_conversations_never_leave_their_bounds(
    samples: list[tuple[float, float]], raw: float
) -> None:
    expected = expect(UNCALIBRATED, counted(samples), POLICY)
    for line in (expected.grown, expected.cut):
        assert POLICY.lowest <= (line.slope if isinstance(line, Line) else line.rate) <= POLICY.highest
    assert math.isfinite(expected.tokens(raw))
    assert expected.tokens(raw) >= 0


def test_b51_a_constant_report_moves_no_anchor_however_small_the_steps_are() -> None:
    anchor = counted([(1_500 + 220 * turn, min(1_500 + 220 * turn, 4_096)) for turn in range(60)])
    assert (anchor.raw, anchor.reported) == (4_140, 4_096), "the first that stood still, by a little"
    assert expect(UNCALIBRATED, anchor, POLICY).tokens(12_000) == pytest.approx(12_000, rel=0.1)


def wobbling(window: int, steps: int) -> list[tuple[float, float]]:
    """A server that drops whole old messages until the rest fits: reports go up and down below its window."""
    gaps = (0, 250, 40, 700, 120, 1_000, 10)
    prompts = [1_500 + 300 * turn for turn in range(steps)]
    return [(each, each if each <= window else window - gaps[turn % 7]) for turn, each in enumerate(prompts)]


def test_b51_reports_that_go_up_and_down_below_a_window_seem_cut_and_move_nothing() -> None:
    anchor = counted(wobbling(4_096, 30))
    assert anchor.seems_cut
    assert anchor.cut_to is not None
    assert 3_900 <= anchor.cut_to <= 4_096
    assert expect(UNCALIBRATED, anchor, POLICY).tokens(12_000) == pytest.approx(12_000, rel=0.1)


def test_b51_a_conversation_that_is_far_too_long_from_the_first_seems_cut_but_tells_no_window() -> None:
    anchor = counted([(20_000 + 500 * turn, 2_050 - 13 * turn) for turn in range(16)])
    assert anchor.seems_cut
    assert anchor.cut_to is None
    assert anchor.raw == 0, "nothing of it was believed"


def test_b51_a_few_reports_that_stand_still_say_nothing_yet() -> None:
    anchor = counted([(5_000, 5_000), (5_400, 5_010), (5_800, 5_020), (6_200, 5_000)])
    assert (anchor.still, anchor.seems_cut) == (2, False)
    assert not counted([(5_000, 5_000), (5_800, 5_020), (6_200, 5_000), (6_600, 6_600)]).still


def conversation(rng: random.Random, appended: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Forty prompts of a conversation that grows, each with what was appended for it, in raw tokens."""
    raw = new = rng.uniform(1_500, 12_000)
    for _ in range(40):
        yield raw, new
        new = rng.choice(appended) * rng.uniform(0.6, 1.4)
        raw += new


@pytest.mark.parametrize("appended", [(150, 400, 800), (150, 300, 800, 2_500, 4_000)])
@pytest.mark.parametrize("seed", range(20))
def test_b51_a_server_that_counts_oddly_does_not_seem_to_cut(seed: int, appended: Sequence[float]) -> None:
    """Several providers behind one name, counts that are estimates, another tokenizer from some day on."""
    rng = random.Random(seed)  # noqa: S311 - a host, not a secret
    said = list(conversation(rng, appended))
    slopes = rng.uniform(0.75, 1.3), rng.uniform(0.75, 1.3)
    changed = rng.randrange(2, 38)
    for reports in (
        [raw * rng.uniform(0.95, 1.05) for raw, _ in said],
        [raw * rng.choice(slopes) for raw, _ in said],
        [raw * (1.2 if turn < changed else 0.85) for turn, (raw, _) in enumerate(said)],
        [new for _, new in said],
    ):
        anchor = Anchor("tip", "mark")
        for (raw, _), reported in zip(said, reports, strict=True):
            anchor = follow(UNCALIBRATED, anchor, Report(raw, reported), POLICY)
            assert not anchor.seems_cut


@pytest.mark.parametrize("seed", range(20))
def test_b51_a_server_that_drops_old_messages_is_found_out_before_long(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a host, not a secret
    sizes, anchor = [2_000.0], Anchor("tip", "mark")
    while not anchor.seems_cut:
        sizes.append(rng.choice((150, 400, 800)) * rng.uniform(0.6, 1.4))
        kept = list(sizes)
        while sum(kept) > 8_192:
            del kept[1]
        anchor = follow(UNCALIBRATED, anchor, Report(sum(sizes), sum(kept)), POLICY)
    assert sum(sizes) < 2 * 8_192
    assert anchor.cut_to is not None
    assert 7_300 <= anchor.cut_to <= 8_192


def test_b54_reports_that_leave_out_what_was_read_from_a_cache_do_not_seem_cut() -> None:
    anchor = counted([(8_000, 8_000), *[(8_000 + 600 * turn, 600) for turn in range(1, 20)]])
    assert not anchor.seems_cut


def test_a_prompt_that_we_cut_and_that_grows_again_with_lighter_text_does_not_seem_cut() -> None:
    heavy = [(1_000.0 * turn, 1_400.0 * turn) for turn in range(2, 12)]
    light = [(4_000.0 + 500 * turn, 3_200.0 + 400 * turn) for turn in range(30)]
    assert not counted([*heavy, *light]).still


@given(
    st.lists(st.tuples(st.floats(100, 3_000), st.floats(0.7, 3.0)), min_size=2, max_size=40),
    st.floats(1_000, 20_000),
)
def test_whatever_text_is_appended_a_server_that_counts_all_of_it_never_seems_to_cut(
    appended: list[tuple[float, float]], first: float
) -> None:
    samples = [(first, first)]
    for raw, slope in appended:
        samples.append((samples[-1][0] + raw, samples[-1][1] + raw * slope))
    assert not counted(samples).still


def test_an_exact_count_before_the_sending_is_what_is_expected() -> None:
    anchor = calibration.counted(UNCALIBRATED, Anchor("tip", "mark"), Report(8_000, 11_000), POLICY)
    expected = expect(UNCALIBRATED, anchor, POLICY)
    assert expected.tokens(8_000) == pytest.approx(11_000)
    grown = calibration.counted(UNCALIBRATED, anchor, Report(10_000, 14_000), POLICY)
    assert expect(UNCALIBRATED, grown, POLICY).grown.slope > 1.2, "what was appended tells its own slope"


@pytest.mark.parametrize(("raw", "tokens"), [(8_000, 100), (8_000, 80_000), (0, 50)])
def test_an_exact_count_beyond_the_bounds_is_not_believed(raw: int, tokens: int) -> None:
    anchor = Anchor("tip", "mark")
    assert calibration.counted(UNCALIBRATED, anchor, Report(raw, tokens), POLICY) is anchor


# --- conversations that are cut ---------------------------------------------------------------------------


def talk(parts: Sequence[tuple[float, float]], known: Calibration = UNCALIBRATED) -> tuple[Anchor, float]:
    """The anchor of a conversation that grew by these raw tokens, each part counted at its own rate; and the whole."""
    anchor, whole, true = Anchor("tip", "mark"), 0.0, 0.0
    for raw, rate in parts:
        whole, true = whole + raw, true + raw * rate
        anchor = follow(known, anchor, Report(whole, true, Prompt(whole, parts[0][0])), POLICY)
    return anchor, whole


def test_each_part_of_a_prompt_that_was_cut_is_taken_at_what_it_was_counted_at() -> None:
    model = after([(10_000, 10_000)] * 20)
    anchor, whole = talk([(4_000, 1.0), (3_000, 1.1), (5_000, 1.4)], model)
    expected = expect(model, anchor, POLICY, Prompt(whole, front=4_000))
    assert expected.tokens(4_000 + 5_000) == pytest.approx(4_000 + 5_000 * 1.4, rel=0.001)
    assert expected.tokens(4_000 + 2_000) == pytest.approx(4_000 + 2_000 * 1.4, rel=0.001)
    assert expected.tokens(4_000) == pytest.approx(4_000, rel=0.001), "all but the beginning"
    assert expected.tokens(whole) == pytest.approx(anchor.reported), "nothing was cut"


def test_what_was_appended_is_no_sign_that_nothing_was_cut() -> None:
    model = after([(10_000, 10_000)] * 20)
    anchor, whole = talk([(4_000, 1.0), (3_000, 1.0), (5_000, 1.6)], model)
    expected = expect(model, anchor, POLICY, Prompt(whole + 9_000, front=4_000))
    assert expected.is_cut(whole), "as large as before, but of other messages"
    assert not expected.is_cut(whole + 9_000)


def test_a_prompt_that_is_sent_cut_moves_nothing_of_what_was_counted_before() -> None:
    model = after([(10_000, 10_000)] * 20)
    anchor, whole = talk([(4_000, 1.0), (3_000, 1.5), (3_000, 1.0)], model)
    prompt = Prompt(whole + 2_000, front=4_000)
    cut = follow(model, anchor, Report(6_000, 6_000, prompt), POLICY)
    assert cut.trail[: len(anchor.trail)] == anchor.trail
    assert cut.trail[-1][0] == whole + 2_000
    assert cut.trail[-1][1] == pytest.approx(anchor.reported + 2_000, rel=0.03)
    grown = follow(model, cut, Report(7_000, 7_500, Prompt(whole + 3_000, front=4_000)), POLICY)
    assert grown.trail[-1][1] - grown.trail[-2][1] == pytest.approx(1_500), "counted again"


def test_what_an_upstream_adds_to_every_prompt_stays_with_one_that_was_cut() -> None:
    model = after([(raw, 3_000 + 1.1 * raw) for raw in (1_500, 20_000, 4_000, 9_000, 2_500, 15_000)])
    anchor = Anchor("tip", "mark")
    for raw in (10_000, 12_000, 20_000):
        anchor = follow(model, anchor, Report(raw, 3_000 + 1.1 * raw, Prompt(raw, front=1_000)), POLICY)
    expected = expect(model, anchor, POLICY, Prompt(20_000, front=1_000))
    assert expected.tokens(6_000) == pytest.approx(3_000 + 1.1 * 6_000, rel=0.01)


def test_a_small_first_prompt_says_little_of_what_a_large_second_one_costs() -> None:
    model = after([(raw, 3_000 + raw) for raw in (1_500, 20_000, 4_000, 9_000, 2_500, 15_000)])
    anchor = follow(model, Anchor("tip", "mark"), Report(190, 3_095, Prompt(190)), POLICY)
    expected = expect(model, anchor, POLICY, Prompt(26_000, front=190))
    assert expected.tokens(26_000) == pytest.approx(29_000, rel=0.1)


def test_a_conversation_of_which_only_the_end_was_ever_sent_is_expected_by_its_rate() -> None:
    prompt = Prompt(50_000, front=1_000)
    anchor = follow(UNCALIBRATED, Anchor("tip", "mark"), Report(5_000, 6_000, prompt), POLICY)
    assert expect(UNCALIBRATED, anchor, POLICY, prompt).tokens(4_000) == pytest.approx(4_800, rel=0.1)


def test_a_conversation_that_was_refused_goes_on_from_the_count_that_the_refusal_told() -> None:
    anchor, whole = talk([(4_000, 1.0), (4_000, 1.0)])
    prompt = Prompt(whole + 4_000, front=4_000)
    refused = calibration.refused(UNCALIBRATED, anchor, Report(whole + 4_000, 20_000, prompt), POLICY)
    expected = expect(UNCALIBRATED, refused, POLICY, prompt)
    assert expected.tokens(whole + 4_000) == pytest.approx(20_000)
    assert expected.tokens(6_000) == pytest.approx(4_000 + 2_000 * 3), (
        "what was appended costs thrice as much"
    )


def test_what_parts_were_counted_at_is_given_up_where_a_refusal_tells_far_more() -> None:
    anchor, whole = talk([(4_000, 1.0), (4_000, 1.0)])
    prompt = Prompt(whole + 100, front=4_000)
    refused = calibration.refused(UNCALIBRATED, anchor, Report(whole + 100, 16_000, prompt), POLICY)
    assert not refused.trail
    assert expect(UNCALIBRATED, refused, POLICY, prompt).tokens(4_000) == pytest.approx(8_000, rel=0.1)


def test_an_anchor_without_a_trail_is_expected_by_its_rate_and_begins_one() -> None:
    old = Anchor("tip", "mark", raw=10_000, reported=12_000)
    assert expect(UNCALIBRATED, old, POLICY, Prompt(11_000)).tokens(5_000) == pytest.approx(6_000, rel=0.05)
    assert follow(UNCALIBRATED, old, Report(11_000, 13_200), POLICY).trail == ((11_000, 13_200),)


def test_an_odd_answer_that_another_version_remembered_without_its_numbers_is_none() -> None:
    anchor = Anchor("", "", raw=2_000, reported=2_000, odd=2)
    told = calibration.follow(UNCALIBRATED, anchor, Report(3_000, 30_000), POLICY)
    assert (told.odd, told.odd_reported) == (1, 30_000)
    known = calibration.learn(Calibration(odd=2), 3_000, 30_000, POLICY)
    assert (known.odd, known.odd_reported) == (1, 30_000)


PARTS = st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e3)), min_size=1, max_size=20)


@given(PARTS, st.integers(0, 10**6), st.integers(0, 2 * 10**6))
def test_a_longer_prompt_is_never_expected_to_cost_less(
    parts: list[tuple[float, float]], front: float, raw: float
) -> None:
    anchor, whole = talk(parts)
    expected = expect(UNCALIBRATED, anchor, POLICY, Prompt(whole, front))
    tokens = expected.cut.tokens(raw)
    assert math.isfinite(tokens)
    assert 0 <= tokens <= expected.cut.tokens(raw + 1_000) + 1e-6
    if tokens > 1:
        assert expected.cut.raw(tokens) <= raw + 1
