"""How an upstream is asked for its own count of a request: what to ask, with which body, and where the number stands.

Rules. Nothing here asks: a caller does, and hands in the decoded answer, which may be any JSON value; nothing raises.
A body is put together from the raw parts of the very request that is to be forwarded, so that what is counted is what
will be sent. Where the endpoint would not see all that shapes the prompt there is no body, since a count of something
else misleads. A number is a count only if it is whole, above nothing, and no more than a window can hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.context import rawjson
from proxy.context.rawjson import NotJSON
from proxy.wire.chat import EXTRAS, REASONING
from proxy.wire.dialects.discovery import MOST_WINDOW, Ask, Base

SHAPING: Final = frozenset(
    {
        *EXTRAS,
        *REASONING,
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "continue_final_message",
        "documents",
    }
)
"""Members beside `messages` that may change the prompt, with one server or another."""

TOKENIZE: Final = Ask(Base.ROOT, "/tokenize", method="POST")
"""vLLM's endpoint, and SGLang's after its model."""

TOKENIZED: Final = (
    "model",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    # Of these vLLM reads none, there and in a chat; SGLang does there what it does in a chat.
    "reasoning",
    "thinking",
    "enable_thinking",
)
"""What that endpoint takes with both, so that it does not matter which of them answers."""

_PLAIN: Final = frozenset(
    {("response_format", b'{"type":"text"}'), ("tool_choice", b'"auto"'), ("tools", b"[]")}
)
"""Values that say what is so without them, as many clients send them."""

_STREAMING: Final = frozenset({"stream", "stream_options"})
_WRITTEN: Final = ("text", "refusal")
"""Types of parts whose tokens a tokenizer alone can tell."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A row: the answer to `ask` has the count at `member`, a dotted path; `[]` at its end counts a list's elements.

    `takes`: the members that go along; none named means that the endpoint reads a request by the same code as the chat
    does, and gets all of it. `messages_as`: how it calls the messages. `is_exact`: whether the count is that of the
    chat's own `usage`; else it is by the server's tokenizer, and a few tokens off.
    """

    ask: Ask
    member: str
    evidence: str = field(compare=False)
    takes: tuple[str, ...] = ()
    messages_as: str = "messages"
    is_exact: bool = True

    @property
    def name(self) -> str:
        """The key of its answer: `POST /tokenize` below the root."""
        return self.ask.name

    def body_for(self, forwarded: bytes) -> bytes | None:
        """The body to post for this chat body; None where its tokens cannot be told here."""
        try:
            fields = {k: raw for k, raw in rawjson.members(forwarded).items() if not _is_idle(k, raw)}
            messages = rawjson.value(fields.get("messages", b"null"))
        except NotJSON:
            return None
        unseen = SHAPING.intersection(fields).difference(self.takes) if self.takes else ()
        if unseen or not _is_written(messages):
            return None
        kept = {k: raw for k, raw in fields.items() if not self.takes or k in self.takes}
        return rawjson.replace(b"{}", self._renamed(kept))

    def read(self, answer: object) -> int | None:
        """The tokens of the prompt that a decoded answer tells."""
        value = answer
        for key in self.member.removesuffix("[]").split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if self.member.endswith("[]"):
            value = len(value) if isinstance(value, list) else None
        return _tokens(value)

    def _renamed(self, kept: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {self.messages_as if key == "messages" else key: raw for key, raw in kept.items()}


def _is_idle(key: str, raw: bytes) -> bool:
    """Whether a member is as good as absent to the prompt."""
    return key in _STREAMING or raw == b"null" or (key, b"".join(raw.split())) in _PLAIN


def _is_written(messages: object) -> bool:
    """Whether all there is in the messages is text; pictures, sound and files are not, nor is what nobody knows."""
    return isinstance(messages, list) and all(
        isinstance(message, dict)
        and message.get("audio") is None
        and _is_written_content(message.get("content"))
        for message in messages
    )


def _is_written_content(content: object) -> bool:
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") in _WRITTEN) for part in content
    )


def _tokens(value: object) -> int | None:
    """A believable number of tokens; gateways in a language with one kind of number may write 12 as 12.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 < value <= MOST_WINDOW or value != int(value):  # NaN fails the first test.
        return None
    return int(value)
