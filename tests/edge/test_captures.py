"""The text of requests is kept only where it is wanted, within bounds, and for its own holder."""

import json

from proxy.edge.captures import Captures

BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 100}]}).encode()
SHORTER = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()


async def test_a_request_is_opened_by_its_holder_alone() -> None:
    captures = Captures()
    name = captures.keep("ada", BODY, SHORTER)
    pairs = await captures.opened("ada", name)
    assert pairs is not None
    assert [str(pair.edit) for pair in pairs] == ["changed"]
    assert await captures.opened("bob", name) is None
    assert await captures.opened("ada", "nothing") is None


async def test_the_oldest_go_first_by_number_and_by_bytes() -> None:
    for captures in (Captures(most=2), Captures(most_bytes=2 * len(BODY))):
        names = [captures.keep("", BODY, BODY) for _ in range(3)]
        assert [await captures.opened("", name) is not None for name in names] == [False, True, True]


async def test_what_is_larger_than_all_that_may_be_kept_pushes_nothing_out() -> None:
    captures = Captures(most_bytes=len(BODY))
    name = captures.keep("", BODY, BODY)
    assert captures.keep("", BODY, SHORTER) == ""
    assert await captures.opened("", name) is not None


def test_where_nothing_is_to_be_kept_nothing_is() -> None:
    assert Captures(most_bytes=0).keep("", BODY, BODY) == ""


async def test_what_is_kept_goes_when_nothing_is_to_be_kept_any_more() -> None:
    captures = Captures()
    name = captures.keep("", BODY, BODY)
    captures.bound(0)
    assert await captures.opened("", name) is None
    assert captures.keep("", BODY, BODY) == ""
