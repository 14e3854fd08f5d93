"""Which requests ask for a summary of the conversation that they are in."""

import json

import pytest

from proxy.context import summary
from proxy.context.conversation import Conversation, read_message
from proxy.context.own_summary import is_asked_for

ASKING = [
    "Summarize the conversation so far, as described in the prompt instructions.",
    "Your task is to create a detailed summary of the conversation so far, paying close attention to the requests.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another model.",
    "Provide a detailed prompt for continuing our conversation above. Focus on what would be helpful.",
    "Provide a detailed summary of our conversation above.",
    "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
    "Please summarise everything above in five points.",
    "Can you give me a summary of this whole discussion?",
    "Compact our conversation, keep all file names.",
    "Compact this session now and keep the file names.",
    "Condense the chat history into one page.",
    "*Briefly* summarize this partial conversation about programming.",
    "Fasse unser bisheriges Gespräch zusammen.",
    "Instructions of a page or two. " * 90 + "Now write a summary of the conversation.",
]
NOT_ASKING = [
    "Write a title of at most five words for this conversation. Reply with the title alone.",
    "Summarize the file README.md for me.",
    "The session handling is broken. Write a summary of the causes into NOTES.md.",
    "What did we say about summaries?",
    "Add a compact chat window to the page.",
    "Condense the chat input padding in the style sheet.",
    "Please compact the chat history widget.",
    "Refactor the login: compress the session cookie.",
    "Compact the session store: remove rows that have expired.",
    "",
    "code " * 500 + "summarize the conversation so far" + " code" * 500,
]


def asked(*messages: dict[str, str]) -> bool:
    read = tuple(read_message(json.dumps(message).encode()) for message in messages)
    return is_asked_for(Conversation((), read))


BEFORE = ({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."})


@pytest.mark.parametrize("text", ASKING)
def test_b126_agents_and_people_ask_in_many_words(text: str) -> None:
    assert asked(*BEFORE, {"role": "user", "content": text})


@pytest.mark.parametrize("text", NOT_ASKING)
def test_b126_other_work_with_summaries_and_conversations_is_none(text: str) -> None:
    assert not asked(*BEFORE, {"role": "user", "content": text})


@pytest.mark.parametrize("role", ["assistant", "tool", "system"])
def test_only_a_user_asks(role: str) -> None:
    assert not asked(*BEFORE, {"role": role, "content": ASKING[0]})


def test_what_was_asked_before_is_no_request_of_now() -> None:
    assert not asked({"role": "user", "content": ASKING[0]}, *BEFORE, {"role": "user", "content": "And now?"})


def test_an_empty_history_asks_for_nothing() -> None:
    assert not is_asked_for(Conversation((), ()))


@pytest.mark.parametrize("prompt", ["", "Sum it all up in {words} words."])
@pytest.mark.parametrize("previous", ["", "What was said before."])
@pytest.mark.parametrize("behind", ["", "A question of some length. " * 90])
def test_b126_another_proxy_that_asks_behind_the_prompt_is_a_client_that_asks(
    prompt: str, previous: str, behind: str
) -> None:
    told = summary.suffix_instructions(prompt, 600, previous)
    assert asked(*BEFORE, {"role": "user", "content": f"{behind}\n\n{told}"})
