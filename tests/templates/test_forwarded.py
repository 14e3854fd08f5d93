"""What is forwarded is accepted by the published chat templates wherever the client's own request was.

Rules. Whether a judge takes a request is asked of the client's request first, and what was forwarded must then be
taken too, and must say as much: the head and the newest message stand in the prompt wherever they stood before.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from proxy.context.policy import DropPolicy, ElidePolicy, ModelPolicy, SummaryPolicy
from proxy.context.strategies import NAMES as STRATEGY_NAMES
from proxy.wire import chat
from tests.context import histories
from tests.templates.forwarding import Forwarded, forwarded
from tests.templates.judges import NAMES, judge_named
from tests.templates.random_talks import bodies, damaged, mark, sound, whole
from tests.templates.render import Judge, Refused
from tests.templates.talks import SHAPES, SYSTEM_TEXT, requests


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy, and whether the side calls of its run fail."""

    policy: ModelPolicy
    fails: bool = False


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "default ladder": Setting(ModelPolicy(window=1200, reserve_output=100)),
        "tiny window": Setting(ModelPolicy(window=700, reserve_output=100)),
        "no summary to be had": Setting(ModelPolicy(window=900, reserve_output=100), fails=True),
        "sliding window": Setting(
            ModelPolicy(window=1000, reserve_output=100, strategies=("drop",), drop=DropPolicy(max_turns=3))
        ),
    }
)

CALLS: Final = frozenset(name for name in SHAPES if "agent" in name or "turns" in name)
INTERPOSED: Final = frozenset({"agent with reminders in rounds", "agent with words in rounds"})
LEFT_OUT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "Qwen 3.5": frozenset({"chat under two heads", "reminders", "agent with reminders in rounds"}),
        "Gemma 2": frozenset(SHAPES) - {"chat without a head"},
        "Gemma 3": CALLS | {"chat under two heads", "pairs of questions", "reminders"},
        "Llama 3.1": frozenset({"agent with parallel calls", "turns with tools"}),
        "Mistral 7B v0.3": INTERPOSED
        | {"chat under two heads", "pairs of questions", "interrupted agent", "reminders"},
        "Mistral Small 3.2": INTERPOSED
        | {"chat under two heads", "pairs of questions", "interrupted agent", "reminders"},
        "Mistral Large 3": INTERPOSED | {"reminders"},
        "mistral-common v3": INTERPOSED | {"agent that talks", "reminders"},
        "mistral-common v13": INTERPOSED | {"reminders"},
    }
)
"""What a judge does not take of any client."""

JUDGES: Final = [name for name in NAMES if name not in ("Llama 2", "mistral-common v11")]
"""All but those whose rules are those of Gemma 3 and, ids aside, of version 13."""

STRICT: Final = [name for name in JUDGES if name in LEFT_OUT or name == "gpt-oss"]
"""Those that refuse for the order of messages at all."""

ALTERNATING: Final = ("Gemma 2", "Gemma 3", "Mistral 7B v0.3", "Mistral Small 3.2")

TAKEN: Final = [(name, shape) for name in JUDGES for shape in SHAPES if shape not in LEFT_OUT.get(name, ())]
NOT_TAKEN: Final = [(name, shape) for name in JUDGES for shape in SHAPES if shape in LEFT_OUT.get(name, ())]


@functools.cache
def run(shape: str, setting: str) -> tuple[Forwarded, ...]:
    """What becomes of a shape's requests."""
    chosen = SETTINGS[setting]
    return tuple(forwarded(requests(shape), chosen.policy, fails=chosen.fails))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_cut_several_times_in_a_row(shape: str, setting: str) -> None:
    exchanges = run(shape, setting)
    sizes = [len(each.body["messages"]) - len(each.original["messages"]) for each in exchanges]
    assert sum(later < earlier for earlier, later in pairwise(sizes)) >= 3


@pytest.mark.parametrize(("name", "shape"), TAKEN)
def test_what_is_forwarded_of_a_long_conversation_is_accepted_as_the_conversation_is(
    name: str, shape: str
) -> None:
    judge = judge_named(name)
    prompts = [_accepted(judge, body) for body in requests(shape)]
    for setting in SETTINGS:
        for prompt, each in zip(prompts, run(shape, setting), strict=True):
            if each.is_changed:
                newest = each.original["messages"][-1]["content"]
                _says_as_much(prompt, _accepted(judge, each.body), SYSTEM_TEXT, newest)


@pytest.mark.parametrize(("name", "shape"), NOT_TAKEN)
def test_what_is_left_out_above_is_refused_of_the_client_too(name: str, shape: str) -> None:
    judge = judge_named(name)
    assert any(isinstance(judge.judge(body), Refused) for body in requests(shape))


@pytest.mark.parametrize("name", JUDGES)
def test_the_side_call_for_a_summary_is_accepted_at_least_without_its_system_message(name: str) -> None:
    judge = judge_named(name)
    shapes = [shape for taken_by, shape in TAKEN if taken_by == name]
    made = [call for shape in shapes for each in run(shape, "default ladder") for call in each.side_calls]
    assert made
    for call in made:
        refused = judge.judge(call)
        if isinstance(refused, Refused):
            assert chat.refuses_system(400, str(refused).encode())
            again = json.loads(chat.without_system(json.dumps(call).encode()))
            assert isinstance(judge.judge(again), str)


def _accepted(judge: Judge, body: Mapping[str, Any]) -> str:
    prompt = judge.judge(body)
    assert isinstance(prompt, str), (judge.name, prompt, [_outline(message) for message in body["messages"]])
    return prompt


def _outline(message: Mapping[str, Any]) -> str:
    return f"{message.get('role')} {str(message.get('content'))[:30]} {len(message.get('tool_calls') or ())}"


def _says_as_much(before: str, after: str, *texts: str) -> None:
    """Each text is in the prompt if it was."""
    assert [text for text in texts if text in before and text not in after] == []


# --- random conversations -----------------------------------------------------------------------------------

POLICIES: Final = st.builds(
    lambda window, strategies, turns, keep, prepare_at: ModelPolicy(
        window=window,
        reserve_output=window // 8,
        strategies=tuple(strategies),
        drop=DropPolicy(max_turns=turns),
        elide=ElidePolicy(keep=keep),
        summary=SummaryPolicy(prepare_at=prepare_at),
    ),
    window=st.sampled_from([150, 300, 600, 1200]),
    strategies=st.permutations(sorted(STRATEGY_NAMES)),
    turns=st.sampled_from([None, None, 0, 1, 2]),
    keep=st.integers(0, 2),
    prepare_at=st.sampled_from([0, 0.5]),
)


QUICKLY: Final = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""To make a failing case smaller takes minutes, and longer than a test may."""


@QUICKLY
@given(talk=sound(), policy=POLICIES, fails=st.booleans())
def test_what_is_forwarded_of_sound_turns_is_accepted_wherever_they_are(
    talk: list[histories.Raw], policy: ModelPolicy, fails: bool
) -> None:
    _judge_all(STRICT, talk, policy, fails)


@QUICKLY
@given(talk=whole(), policy=POLICIES, fails=st.booleans())
def test_what_is_forwarded_of_any_whole_conversation_is_accepted_wherever_that_is(
    talk: list[histories.Raw], policy: ModelPolicy, fails: bool
) -> None:
    _judge_all(STRICT, talk, policy, fails)


@QUICKLY
@given(talk=damaged(), policy=POLICIES, fails=st.booleans())
def test_what_is_forwarded_of_a_damaged_conversation_is_accepted_wherever_that_is(
    talk: list[histories.Raw], policy: ModelPolicy, fails: bool
) -> None:
    """Damage is mended for upstreams that look at pairs of calls and results.

    A template that overlooks unpaired ones, and demands alternation, may take the damage and refuse what was mended.
    """
    _judge_all([name for name in STRICT if name not in ALTERNATING], talk, policy, fails)


def _judge_all(names: Sequence[str], talk: Sequence[histories.Raw], policy: ModelPolicy, fails: bool) -> None:
    """The newest two requests that were changed, of all that lead to the conversation."""
    changed = [each for each in forwarded(bodies(talk), policy, fails=fails) if each.is_changed]
    for judge in map(judge_named, names):
        for each in changed[-2:]:
            prompt = judge.judge(each.original)
            if isinstance(prompt, str):
                newest = mark(len(each.original["messages"]) - 1)
                _says_as_much(prompt, _accepted(judge, each.body), SYSTEM_TEXT, newest)
