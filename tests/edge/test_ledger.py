"""What operators see of conversations: one row each, recognised as they grow, and never any content."""

from msgspec import structs

from proxy.context.policy import Mode
from proxy.edge.ledger import MOST, Beginning, Ledger, Repeats
from proxy.exchange import Verdict

VERDICT = Verdict("m", Mode.MANAGE, window=1000, original=900, forwarded=400, actions="elide=2")


class Clock:
    """Tells what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def chain(*names: str) -> tuple[str, ...]:
    return names


def test_a_growing_conversation_is_one_row_with_its_first_id() -> None:
    ledger = Ledger(Clock())
    ledger.note(chain("a"), VERDICT)
    ledger.note(chain("a", "b", "c"), structs.replace(VERDICT, original=950))
    (row,) = ledger.listed()
    assert (row["id"], row["requests"], row["messages"], row["original_tokens"]) == ("a", 2, 3, 950)


def test_conversations_that_part_are_two_rows_the_newest_first() -> None:
    ledger = Ledger(Clock())
    ledger.note(chain("a", "b"), VERDICT)
    ledger.note(chain("x", "y"), VERDICT)
    assert [row["id"] for row in ledger.listed()] == ["y", "b"]


def test_compactions_are_counted_and_their_age_is_told() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.note(chain("a"), structs.replace(VERDICT, checkpoint_id="k1"))
    clock.now = 5.0
    ledger.note(chain("a", "b"), structs.replace(VERDICT, checkpoint_id="k1"))
    (row,) = ledger.listed()
    assert (row["compactions"], row["checkpoint"], row["checkpoint_age_seconds"]) == (1, "k1", 5.0)
    ledger.note(chain("a", "b", "c"), structs.replace(VERDICT, checkpoint_id="k2"))
    (row,) = ledger.listed()
    assert (row["compactions"], row["checkpoint_age_seconds"]) == (2, 0.0)


def test_forgetting_gives_the_keys_of_all_checkpoints_and_strikes_the_row() -> None:
    ledger = Ledger(Clock())
    ledger.note(chain("a"), structs.replace(VERDICT, checkpoint_id="k1"))
    ledger.note(chain("a", "b"), structs.replace(VERDICT, checkpoint_id="k2"))
    assert ledger.keys_of("a") == ["k1", "k2"]
    ledger.strike("a")
    assert ledger.keys_of("a") is None
    assert ledger.listed() == []


def test_what_was_stored_before_this_process_began_is_forgotten_too() -> None:
    ledger = Ledger(Clock())
    ledger.note(chain("a", "b"), structs.replace(VERDICT, checkpoint_id="k2"), ("k1", "k2", ""))
    assert ledger.keys_of("b") == ["k1", "k2"]


def test_two_rows_with_one_id_are_forgotten_together() -> None:
    ledger = Ledger(Clock())
    ledger.note(chain("a"), structs.replace(VERDICT, checkpoint_id="k1"))
    ledger.note(chain("a", "b"), structs.replace(VERDICT, checkpoint_id="k2"))
    ledger.note(chain("a"), VERDICT, ("k1",))
    assert ledger.keys_of("a") == ["k1", "k2"]
    ledger.strike("a")
    assert ledger.listed() == []


def test_the_list_is_bounded() -> None:
    ledger = Ledger(Clock())
    for number in range(MOST + 10):
        ledger.note(chain(f"n{number}"), VERDICT)
    assert len(ledger.listed()) == MOST
    assert ledger.listed()[-1]["id"] == "n10"


def test_a_request_without_history_is_no_conversation() -> None:
    ledger = Ledger(Clock())
    ledger.note((), VERDICT)
    assert ledger.listed() == []


ANSWERED = structs.replace(VERDICT, forwarded=400, frame="f1", status=200)


def repeats(*verdicts: Verdict) -> list[Beginning | None]:
    """How the prompts of one growing conversation begin."""
    ledger, chains = Ledger(Clock()), [tuple(f"k{i}" for i in range(n + 1)) for n in range(len(verdicts))]
    return [ledger.note(chain, verdict) for chain, verdict in zip(chains, verdicts, strict=True)]


def test_a_prompt_extends_the_last_one_that_was_answered_where_all_else_is_the_same() -> None:
    told = repeats(
        ANSWERED,
        structs.replace(ANSWERED, forwarded=500),
        structs.replace(ANSWERED, forwarded=600, status=500),
        structs.replace(ANSWERED, forwarded=700, frame="f2"),
        structs.replace(ANSWERED, forwarded=300, frame="f2"),
    )
    assert told == [
        Beginning(Repeats.FIRST),
        Beginning(Repeats.EXTENDED, 400),
        Beginning(Repeats.EXTENDED, 500),
        Beginning(Repeats.CHANGED),
        Beginning(Repeats.EXTENDED, 300),
    ]


def test_nothing_is_told_of_a_prompt_that_was_not_counted() -> None:
    uncounted = structs.replace(ANSWERED, forwarded=None, frame="")
    told = repeats(uncounted, ANSWERED, uncounted, structs.replace(ANSWERED, forwarded=500))
    assert told == [None, Beginning(Repeats.FIRST), None, Beginning(Repeats.EXTENDED, 400)]
