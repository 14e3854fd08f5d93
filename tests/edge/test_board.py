"""The memory that processes share, and the numbers that they tell each other over it."""

from collections.abc import Callable

from proxy.context.policy import Mode
from proxy.edge.board import LONGEST, Board
from proxy.edge.metrics import Finished, Metrics
from tests.edge import exposition


def test_a_place_holds_the_newest_text_and_others_stay_as_they_are() -> None:
    board = Board(3)
    assert [board.read(place) for place in range(3)] == [b""] * 3
    for text in (b"one", b"", b"another one", b"x" * LONGEST):
        board.write(1, text)
        assert [board.read(place) for place in range(3)] == [b"", text, b""]


def test_a_text_that_is_too_long_leaves_the_one_before() -> None:
    board = Board(1)
    board.write(0, b"one")
    board.write(0, b"x" * (LONGEST + 1))
    assert board.read(0) == b"one"


def finished(outcome: str = "") -> Finished:
    return Finished(Mode.MANAGE, 200, True, outcome, "", 1.0)


def sharing(board: Board, place: int, later: list[Callable[[], None]]) -> Metrics:
    metrics = Metrics()
    metrics.share(board, place, lambda seconds, tell: later.append(tell))
    return metrics


def served(metrics: Metrics, times: int, outcome: str = "") -> None:
    for _ in range(times):
        metrics.begun()
        metrics.note(finished(outcome))


def test_each_process_tells_the_sum_of_all() -> None:
    board, later = Board(2), list[Callable[[], None]]()
    one, two = sharing(board, 0, later), sharing(board, 1, later)
    served(one, 3)
    served(two, 4)
    two.begun()
    assert len(later) == 2, "one telling for all that is counted until then"
    for tell in later:
        tell()
    for metrics in (one, two):
        scrape = exposition.read(metrics.exposed().decode())
        assert scrape.value("transom_requests_total") == 7
        assert scrape.value("transom_request_duration_seconds_count") == 7
        assert scrape.value("transom_request_duration_seconds_sum") == 7.0
        assert scrape.value("transom_request_duration_seconds_bucket", le="1.0") == 7
        assert scrape.value("transom_requests_in_flight") == 1
        assert scrape.value("transom_store_up") == 1


def test_a_store_that_one_process_cannot_reach_is_told_by_all() -> None:
    board, later = Board(2), list[Callable[[], None]]()
    one, two = sharing(board, 0, later), sharing(board, 1, later)
    two.watch_store(lambda: False)
    two.exposed()
    assert exposition.read(one.exposed().decode()).value("transom_store_up") == 0


def test_who_takes_the_place_of_another_goes_on_from_its_counts_and_labels() -> None:
    board, later = Board(1), list[Callable[[], None]]()
    for generation in range(3):
        metrics = sharing(board, 0, later)
        for number in range(50):
            served(metrics, 1, outcome=f"word-{generation}-{number}")
        metrics.begun()
        metrics.exposed()
    scrape = exposition.read(sharing(board, 0, later).exposed().decode())
    assert scrape.value("transom_requests_total") == 150
    assert len(scrape.series("transom_requests_total", "outcome")) <= 61
    assert scrape.value("transom_requests_in_flight") == 0


def test_what_was_told_once_never_falls() -> None:
    board, later = Board(2), list[Callable[[], None]]()
    one, two = sharing(board, 0, later), sharing(board, 1, later)
    served(two, 5)
    assert exposition.read(two.exposed().decode()).value("transom_requests_total") == 5
    del two
    assert exposition.read(one.exposed().decode()).value("transom_requests_total") == 5
