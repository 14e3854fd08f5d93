"""The hand-written rules of the strict upstream against the real judges that they stand for.

Rules. A temper may be stricter than the real thing, since tests with it then prove more; where it is more lenient a
test with it proves nothing, so that must not be. What is left out of the comparison, and why, is told in `_comparable`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.rules import Accepted, Temper, judge
from tests.context.histories import Raw
from tests.templates.judges import judge_named
from tests.templates.random_talks import bodies, damaged, sound
from tests.templates.render import Refused

STAND_FOR: Final[Mapping[Temper, Sequence[str]]] = MappingProxyType(
    {
        Temper.TEMPLATE: ["Qwen 3.5", "Mistral 7B v0.3", "Mistral Small 3.2"],
        Temper.MISTRAL: ["mistral-common v13"],
        Temper.MISTRAL_NINE: ["mistral-common v11", "mistral-common v13"],
    }
)

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})


@pytest.mark.parametrize("temper", STAND_FOR)
@given(talk=st.one_of(sound(), damaged()))
def test_what_a_temper_accepts_is_accepted_by_the_judges_it_stands_for(
    temper: Temper, talk: list[Raw]
) -> None:
    for body in bodies(talk):
        if _comparable(body["messages"]) and _accepts(temper, body):
            for name in STAND_FOR[temper]:
                said = judge_named(name).judge(body)
                assert not isinstance(said, Refused), (name, said, body)


def _accepts(temper: Temper, body: Mapping[str, Any]) -> bool:
    return isinstance(judge(body, window=1 << 40, count=len, temper=temper), Accepted)


def _comparable(messages: Sequence[Raw]) -> bool:
    """The order of whole messages is compared, and not their shape, at which MISTRAL looks less than a server does.

    TEMPLATE takes unknown roles for the assistant's. Mistral's own validation passes over the first message of all, and
    so refuses the result of a call that stands there.
    """
    return messages[0].get("role") != "assistant" and all(map(_is_whole, messages))


def _is_whole(message: Raw) -> bool:
    content, calls = message.get("content"), message.get("tool_calls")
    parts = isinstance(content, list) and [part.get("type") for part in content]
    spoken = isinstance(content, str) or (parts and set(parts) == {"text"})
    called = message.get("role") == "assistant" and bool(calls)
    answers = message.get("role") != "tool" or message.get("tool_call_id")
    return (
        message.get("role") in ROLES
        and bool((spoken or called) and answers)
        and all(map(_is_call, calls or []))
    )


def _is_call(call: Raw) -> bool:
    return bool(call.get("id")) and bool(call.get("function"))
