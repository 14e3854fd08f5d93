"""The book that clients read page by page, which is longer than the model's window.

Rules. The standard library alone: programs of other environments import this. Equal numbers give equal pages.
"""

PAGES = 40
TASK = f"Read the pages 1 to {PAGES} of the book one after the other, and tell me the word on the last one."
SYSTEM = "You are a patient reader. Read with the tool that you are given, and answer in one sentence."
ANSWER = "The word on the last page is heron."

_BIRDS = ("crane", "stork", "egret", "ibis", "bittern", "spoonbill", "avocet", "plover", "godwit")
_LINES = 24


def page(number: int) -> str:
    """A page of some 450 tokens."""
    lines = [f"Page {number} of {PAGES}."]
    for line in range(_LINES):
        bird, other = _BIRDS[(number + line) % len(_BIRDS)], _BIRDS[(number * line + 1) % len(_BIRDS)]
        lines.append(
            f"{number}.{line} On day {number * line} a {bird} stood in the reeds and a {other} did not."
        )
    return "\n".join([*lines, "The word is heron." if number == PAGES else "Go on."])
