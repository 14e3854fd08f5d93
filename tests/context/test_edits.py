"""Edits as values: stored, told, and taken over a new cut."""

from proxy.context.edits import NOTHING, Blanked, Cut, Edits, Rewrite, Shortened, SummaryRole, decode, encode

EDITS = Edits(
    Cut(4, "summary é", 3, "[1 left out]", (0, 2), SummaryRole.USER),
    (Rewrite(5, "[gone]", "elide"),),
    (Shortened(6, 400),),
    (Blanked(7, (0, 2)),),
)


def test_edits_survive_being_stored() -> None:
    assert decode(encode(EDITS)) == EDITS
    assert decode(b"{}") == NOTHING
    assert decode(b"\x00 not a checkpoint") is None


def test_what_was_done_is_told_by_counts() -> None:
    assert EDITS.actions() == "images=2,elide=1,summarize=3,drop=1,shorten=1"
    assert NOTHING.actions() == ""


def test_edits_speak_about_the_longest_prefix_that_one_of_them_needs() -> None:
    assert EDITS.speaks_about == 8
    assert Edits(Cut(4)).speaks_about == 5
    assert NOTHING.speaks_about == 0
