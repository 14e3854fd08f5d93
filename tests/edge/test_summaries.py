"""Side calls are shared, outlive who asked for them, back off after failures, and are prepared in quiet moments."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from proxy.config import LogFormat, LogOptions
from proxy.context.policy import SummaryMode
from proxy.context.summary import Given
from proxy.edge import logs
from proxy.edge.sidecalls import Answered, Origin
from proxy.edge.summaries import Summaries, Waits
from proxy.exchange import Ask, Order, Prepare, SideCallFailed, Summarised
from proxy.wire.usage import Usage

ORIGIN = Origin((), "/v1/chat/completions", "")
KEYS = ("k1", "k2", "k3")


def ask(key: str = "k2", welcome: tuple[str, ...] = KEYS) -> Ask:
    return Ask(Order(key, b"{}", Given(1000)), frozenset(welcome))


def prepare(key: str = "k2", welcome: tuple[str, ...] = KEYS) -> Prepare:
    return Prepare(Order(key, b"{}", Given(1000)), frozenset(welcome))


@dataclass
class Model:
    """A scripted summary model: waits at its gate, then answers; every answer differs from every other."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    instead: Answered | SideCallFailed | None = None
    """What comes of an order behind the prompt, where that is something else."""

    after: float | None = None
    fault: Exception | None = None
    modes: list[str] = field(default_factory=list)
    asked: int = 0
    ended: int = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, body: bytes, origin: Origin, mode: SummaryMode) -> Answered | SideCallFailed:
        self.asked += 1
        self.modes.append(mode.value)
        number = self.asked
        self.called.set()
        try:
            await self.gate.wait()
        finally:
            self.ended += 1
        if self.fault is not None:
            raise self.fault
        if mode is SummaryMode.SUFFIX and self.instead is not None:
            return self.instead
        if self.fails:
            return SideCallFailed("status_500", Usage(7, None), self.after)
        return Answered(f"summary {number}", Usage(7, 3))


@dataclass
class Bench:
    """The owner of side calls, its model, what it stored and what it logged."""

    summaries: Summaries
    model: Model
    kept: dict[str, str]
    log: io.StringIO


@asynccontextmanager
async def bench(
    *, first_pause: float = 1000.0, prepares: bool = True, patience: float | None = None
) -> AsyncIterator[Bench]:
    kept: dict[str, str] = {}

    async def keep(key: str, text: str) -> None:
        kept[key] = text

    model, log = Model(), io.StringIO()
    summaries = Summaries(
        model,
        keep,
        logs.build(LogOptions(format=LogFormat.JSON), log),
        prepares=prepares,
        waits=Waits(first_pause, patience),
    )
    try:
        yield Bench(summaries, model, kept, log)
    finally:
        await summaries.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.wait([asyncio.ensure_future(_turn())])


async def _turn() -> None:
    """One turn of the loop."""


async def test_b109_ten_requests_at_once_share_one_side_call_and_its_text() -> None:
    async with bench() as made:
        waiting = [asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN)) for _ in range(10)]
        await made.model.called.wait()
        made.model.gate.set()
        outcomes = await asyncio.gather(*waiting)
        assert made.model.asked == 1
        assert {outcome.text for outcome in outcomes if isinstance(outcome, Summarised)} == {"summary 1"}
        assert [outcome.usage is not None for outcome in outcomes].count(True) == 1, "its cost is told once"
        assert made.kept == {"k2": "summary 1"}


async def test_a_longer_request_of_the_same_conversation_shares_a_call_for_an_earlier_prefix() -> None:
    async with bench() as made:
        made.model.gate.set()
        first = await made.summaries.get(ask("k1"), "who", ORIGIN)
        later = await made.summaries.get(ask("k3"), "who", ORIGIN)
        assert made.model.asked == 1
        assert isinstance(later, Summarised)
        assert isinstance(first, Summarised)
        assert (later.key, later.text) == ("k1", first.text)


async def test_b113_another_conversation_never_shares_it() -> None:
    async with bench() as made:
        made.model.gate.set()
        one = await made.summaries.get(ask(), "who", ORIGIN)
        two = await made.summaries.get(ask("other", ("other",)), "who", ORIGIN)
        assert isinstance(one, Summarised)
        assert isinstance(two, Summarised)
        assert one.text != two.text


async def test_b108_b109_a_waiter_that_leaves_does_not_end_the_call_and_its_retry_finds_the_result() -> None:
    async with bench() as made:
        leaver = asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN))
        stayer = asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN))
        await made.model.called.wait()
        for task in (leaver, stayer):
            task.cancel()
        await asyncio.wait([leaver, stayer])
        assert made.model.ended == 0
        made.model.gate.set()
        await until(lambda: bool(made.kept))
        outcome = await made.summaries.get(ask(), "who", ORIGIN)
        assert isinstance(outcome, Summarised)
        assert outcome.text == "summary 1"
        assert made.model.asked == 1


async def test_b108_who_has_waited_long_enough_goes_on_and_the_call_goes_on_too_and_is_kept() -> None:
    async with bench(patience=0.02) as made:
        assert await made.summaries.get(ask(), "who", ORIGIN) == SideCallFailed("timeout")
        assert made.model.ended == 0
        made.model.gate.set()
        await until(lambda: bool(made.kept))
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)
        assert made.model.asked == 1


async def test_b111_a_call_that_fails_in_a_way_nobody_foresaw_is_a_failure_and_blocks_nothing() -> None:
    async with bench() as made:
        made.model.gate.set()
        made.model.fault = ZeroDivisionError("marker-word")
        waiting = [asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN)) for _ in range(3)]
        assert set(await asyncio.gather(*waiting)) == {SideCallFailed("fault")}
        made.model.fault = None
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)
        assert json.loads(made.log.getvalue().splitlines()[0])["exception"] == "ZeroDivisionError"
        assert "marker-word" not in made.log.getvalue()


async def test_b110_b111_after_a_failure_that_tenants_model_is_left_alone_for_a_while_and_others_are_not() -> (
    None
):
    async with bench() as made:
        made.model.gate.set()
        made.model.fails = True
        assert await made.summaries.get(ask(), "who", ORIGIN) == SideCallFailed("status_500", Usage(7, None))
        assert await made.summaries.get(ask(), "who", ORIGIN) == SideCallFailed("held_back")
        made.model.fails = False
        assert isinstance(await made.summaries.get(ask(), "someone else", ORIGIN), Summarised)
        assert made.model.asked == 2


async def test_b110_when_the_pause_is_over_it_is_tried_again() -> None:
    async with bench(first_pause=0.0) as made:
        made.model.gate.set()
        made.model.fails = True
        await made.summaries.get(ask(), "who", ORIGIN)
        made.model.fails = False
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)


async def test_histories_that_begin_in_the_midst_of_earlier_ones_get_no_side_call_until_one_matches() -> None:
    messages = [bytes([number]) for number in range(9)]
    async with bench() as made:
        made.model.gate.set()
        for start in range(3):
            made.summaries.note_history("who", messages[start : start + 5], matched=False)
        assert await made.summaries.get(ask(), "who", ORIGIN) == SideCallFailed("held_back")
        made.summaries.note_history("who", messages, matched=True)
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)


async def test_new_conversations_one_after_the_other_are_no_sliding_client() -> None:
    async with bench() as made:
        made.model.gate.set()
        for number in range(9):
            made.summaries.note_history("who", [bytes([number]), bytes([100 + number])], matched=False)
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)


async def test_conversations_that_open_with_a_word_said_in_an_earlier_one_are_no_sliding_client() -> None:
    async with bench() as made:
        made.model.gate.set()
        made.summaries.note_history("who", [b"task", b"reply", b"continue", b"done"], matched=False)
        for number in range(5):
            made.summaries.note_history("who", [b"continue", bytes([number]), b"more"], matched=False)
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised)


async def test_a_call_under_way_is_shared_with_whoever_may_begin_none() -> None:
    messages = [bytes([number]) for number in range(9)]
    async with bench() as made:
        first = asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN))
        await made.model.called.wait()
        for start in range(3):
            made.summaries.note_history("who", messages[start : start + 5], matched=False)
        made.model.gate.set()
        second = await made.summaries.get(ask(), "who", ORIGIN)
        assert isinstance(second, Summarised)
        assert isinstance(await first, Summarised)


async def test_what_is_prepared_waits_until_no_main_call_is_under_way() -> None:
    async with bench() as made:
        made.model.gate.set()
        with made.summaries.main_call():
            made.summaries.prepare(prepare(), "who", ORIGIN)
            for _ in range(20):
                await asyncio.wait([asyncio.ensure_future(_turn())])
            assert made.model.asked == 0
        await until(lambda: bool(made.kept))
        assert made.kept == {"k2": "summary 1"}


async def test_a_request_that_needs_what_is_being_prepared_does_not_wait_for_quiet() -> None:
    async with bench() as made:
        made.model.gate.set()
        with made.summaries.main_call():
            made.summaries.prepare(prepare(), "who", ORIGIN)
            outcome = await made.summaries.get(ask(), "who", ORIGIN)
        assert isinstance(outcome, Summarised)
        assert made.model.asked == 1


async def test_a_conversation_is_prepared_for_once() -> None:
    async with bench() as made:
        for _ in range(5):
            made.summaries.prepare(prepare(), "who", ORIGIN)
        made.model.gate.set()
        await until(lambda: bool(made.kept))
        made.summaries.prepare(prepare("k3"), "who", ORIGIN)
        await asyncio.wait([asyncio.ensure_future(_turn())])
        assert made.model.asked == 1


async def test_nothing_is_prepared_where_that_is_off() -> None:
    async with bench(prepares=False) as made:
        made.summaries.prepare(prepare(), "who", ORIGIN)
        await asyncio.wait([asyncio.ensure_future(_turn())])
        assert made.model.asked == 0


async def test_closing_ends_what_still_runs() -> None:
    before = asyncio.all_tasks()
    async with bench() as made:
        waiter = asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN))
        made.summaries.prepare(prepare("other", ("other",)), "who", ORIGIN)
        await made.model.called.wait()
        await made.summaries.close()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    assert asyncio.all_tasks() == before


async def test_after_closing_no_side_call_is_begun() -> None:
    async with bench() as made:
        await made.summaries.close()
        assert await made.summaries.get(ask(), "who", ORIGIN) == SideCallFailed("held_back")
        made.summaries.prepare(prepare(), "who", ORIGIN)
        assert made.model.asked == 0


async def test_what_is_prepared_for_a_conversation_that_is_forgotten_is_not_stored() -> None:
    async with bench() as made:
        made.summaries.prepare(prepare(), "who", ORIGIN)
        await made.model.called.wait()
        made.summaries.forget(["k1", "k2"])
        made.model.gate.set()
        await until(lambda: made.model.ended == 1)
        assert made.kept == {}
        assert isinstance(await made.summaries.get(ask(), "who", ORIGIN), Summarised), (
            "it can be written anew"
        )


async def test_a_summary_that_a_request_waits_for_reaches_it_though_its_conversation_is_forgotten() -> None:
    async with bench() as made:
        waiter = asyncio.create_task(made.summaries.get(ask(), "who", ORIGIN))
        await made.model.called.wait()
        made.summaries.forget(["k2"])
        made.model.gate.set()
        assert isinstance(await waiter, Summarised)


async def test_b18_the_text_of_a_failure_is_stored_nowhere_and_its_usage_is_logged() -> None:
    async with bench() as made:
        made.model.gate.set()
        made.model.fails = True
        await made.summaries.get(ask(), "who", ORIGIN)
        assert made.kept == {}
        told = json.loads(made.log.getvalue())
        assert (told["outcome"], told["prompt_tokens"]) == ("status_500", 7)


async def test_an_upstream_that_asked_for_a_pause_is_left_alone_for_as_long() -> None:
    async with bench(first_pause=0.0) as made:
        made.model.gate.set()
        made.model.fails, made.model.after = True, 600.0
        await made.summaries.get(ask("k1"), "who", ORIGIN)
        assert await made.summaries.get(ask("k2"), "who", ORIGIN) == SideCallFailed("held_back")
        assert made.model.asked == 1


# --- behind the forwarded prompt ------------------------------------------------------------------------------


def ask_behind(key: str) -> Ask:
    """An order behind the prompt, with a transcript of an earlier prefix at hand."""
    transcript = Order("of a part", b"{}", Given(1000))
    order = Order(key, b"{}", Given(1000, in_sections=True), SummaryMode.SUFFIX, transcript)
    return Ask(order, frozenset({key}))


NO_SUMMARIES: dict[str, tuple[Answered | SideCallFailed, str]] = {
    "a_call_of_a_tool": (SideCallFailed("tool_call", Usage(9, 1)), "tool_call"),
    "a_form_that_the_upstream_refuses": (SideCallFailed("status_400"), "status_400"),
    "a_template_that_fails": (SideCallFailed("status_500"), "status_500"),
    "the_talk_gone_on_with": (Answered("Sure, the next file is this one.", Usage(9, 5)), "no_sections"),
}


@pytest.mark.parametrize("name", NO_SUMMARIES)
async def test_c_what_is_no_summary_behind_the_prompt_is_asked_of_a_transcript_instead(name: str) -> None:
    async with bench() as b:
        b.model.gate.set()
        b.model.instead, reason = NO_SUMMARIES[name]
        outcome = await b.summaries.get(ask_behind("k1"), "t:m", ORIGIN)
        first = b.model.instead.usage
        both = Usage(7 + 9, 3 + (first.completion_tokens or 0)) if first else Usage(7, 3)
        assert outcome == Summarised("of a part", "summary 2", both), "with what both calls cost"
        assert b.kept == {"of a part": "summary 2"}
        told = [json.loads(line) for line in b.log.getvalue().splitlines()]
        assert [(each["mode"], each["outcome"]) for each in told] == [
            ("suffix", reason),
            ("transcript", "used"),
        ]


@pytest.mark.parametrize("reason", ["timeout", "unreachable", "status_429", "status_401"])
async def test_b110_an_upstream_that_cannot_answer_now_is_not_asked_a_second_time(reason: str) -> None:
    async with bench() as b:
        b.model.gate.set()
        b.model.instead = SideCallFailed(reason)
        assert await b.summaries.get(ask_behind("k1"), "t:m", ORIGIN) == SideCallFailed(reason)
        assert b.model.modes == ["suffix"]


async def test_a_model_that_twice_wrote_none_behind_the_prompt_is_shown_transcripts_from_then_on() -> None:
    async with bench() as b:
        b.model.gate.set()
        b.model.instead = SideCallFailed("echo")
        for key in ("k1", "k2", "k3"):
            assert isinstance(await b.summaries.get(ask_behind(key), "t:m", ORIGIN), Summarised)
        assert b.model.modes == ["suffix", "transcript", "suffix", "transcript", "transcript"]
        await b.summaries.get(ask_behind("k4"), "t:another", ORIGIN)
        assert b.model.modes[5:] == ["suffix", "transcript"], "another model has failed at nothing"


async def test_a_good_summary_behind_the_prompt_is_taken_and_the_transcript_never_asked_of() -> None:
    async with bench() as b:
        b.model.gate.set()
        b.model.instead = Answered("Task: to mend the parser, as was asked", Usage(9, 5, 8))
        outcome = await b.summaries.get(ask_behind("k1"), "t:m", ORIGIN)
        assert outcome == Summarised("k1", "Task: to mend the parser, as was asked", Usage(9, 5, 8))
        assert b.model.modes == ["suffix"]
        assert json.loads(b.log.getvalue())["cached_tokens"] == 8


BEHIND = replace(ask("k1").order, mode=SummaryMode.SUFFIX, instead=ask("k3").order)
"""Behind the prompt there is room for less than in a transcript, which is of a longer prefix."""


async def test_b113_whoever_shares_a_call_and_has_less_history_than_its_transcript_is_of_gets_another() -> (
    None
):
    async with bench() as made:
        made.model.instead = Answered("", None)
        longer = asyncio.create_task(made.summaries.get(Ask(BEHIND, frozenset(KEYS)), "who", ORIGIN))
        await made.model.called.wait()
        shorter = [
            asyncio.create_task(made.summaries.get(ask("k1", ("k1", "k2")), "who", ORIGIN)) for _ in range(3)
        ]
        made.model.gate.set()
        theirs = await asyncio.gather(*shorter)
        assert (await longer, {each.key for each in theirs if isinstance(each, Summarised)}) == (
            Summarised("k3", "summary 2", Usage(7, 3)),
            {"k1"},
        )
        assert made.model.asked == 3, (
            "one behind the prompt, one of the transcript, one for all that are shorter"
        )


async def test_who_has_waited_long_enough_finds_a_transcripts_summary_that_could_not_be_stored() -> None:
    async def never(key: str, text: str) -> None:
        await asyncio.Event().wait()

    model = Model(instead=Answered("", None))
    model.gate.set()
    log = logs.build(LogOptions(format=LogFormat.JSON), io.StringIO())
    summaries = Summaries(model, never, log, waits=Waits(1000.0, 0.2))
    assert (await summaries.get(Ask(BEHIND, frozenset(KEYS)), "who", ORIGIN)) == Summarised(
        "k3", "summary 2", Usage(7, 3)
    )
    await summaries.close()


async def test_a_forgotten_conversations_summary_is_forgotten_whichever_way_it_was_asked_for() -> None:
    async with bench() as made:
        made.model.instead = Answered("", None)
        made.model.gate.set()
        made.summaries.prepare(Prepare(BEHIND, frozenset(KEYS)), "who", ORIGIN)
        await until(lambda: "k3" in made.kept)
        made.summaries.forget(BEHIND.keys)
        again = await made.summaries.get(ask("k3"), "who", ORIGIN)
        assert again == Summarised("k3", "summary 3", Usage(7, 3))
