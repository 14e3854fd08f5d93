"""The client's own request for a summary of its conversation, by which agents compact their history themselves.

Rules. It is known by the words of the newest message, a user's. What is taken for one is only served otherwise and
loses nothing by it, so a person who asks a chat for its summary is served in the same way. Only the beginning and the
end of a message are looked at: in between stands what is to be summarised, or a page that speaks of summaries.
"""

import re
from typing import Final

from proxy.context.conversation import Conversation

_LOOKED_AT: Final = 600
"""Characters at either end."""

_KNOWN: Final = (
    r"context checkpoint compaction",  # Codex, and those that took it over from there
    r"(?:prompt|summary) for continuing our conversation",  # opencode
    r"<state_snapshot>",  # Gemini CLI, Qwen Code
    r"structured context (?:checkpoint )?summary",  # pi
    r"context limit was reached",  # goose
    r"rapidly running out of context",  # Cline
    r"is not to be done now but to be remembered",  # another proxy like this one, which asks behind the prompt
    r"transcript is this conversation up to here",  # the same in its user's own words
)
"""What the compaction prompts of agents have in them and little else has, as their sources showed it in 2026."""

_TALK: Final = r"(?:conversation|chat|dialog(?:ue)?|discussion|session)"
_WHICH: Final = rf"(?:(?:this|our|the)\s+(?:\w+\s+){{0,2}}{_TALK}|everything\s+(?:above|so far))\b"
_NEAR: Final = r"[^.!?\n]{0,60}?\b"
_GOES_ON: Final = r"(?:so|above|now|into|to|and|for|in|by|with|while|but|before|as|down|please)\b"
_ENDS: Final = rf"(?:\s+history)?(?!\s+(?!{_GOES_ON})\w)"
"""No other noun follows: a session's cookie and the input of a chat are made smaller in other ways."""

_PLAIN: Final = (
    rf"\bsummar(?:y|i[sz]e)\b{_NEAR}{_WHICH}",  # Roo Code, Kilo Code, Crush: a detailed summary of our conversation
    rf"\b(?:compact|condense|compress)\s+{_WHICH}{_ENDS}",
    r"\bfasse?\s+(?:das|dieses|unser(?:es?)?)\s+(?:\w+\s+){0,2}(?:Gespräch|Unterhaltung|Chat)\b",
)
_ASKS: Final = re.compile("|".join((*_KNOWN, *_PLAIN)), re.IGNORECASE)


def is_asked_for(conversation: Conversation) -> bool:
    """Whether the newest message asks for a summary of what comes before it."""
    newest = conversation.history[-1] if conversation.history else None
    if newest is None or not newest.is_user or newest.is_result:
        return False
    text = newest.text
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return _ASKS.search(text) is not None
