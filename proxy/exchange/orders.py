"""Orders for side calls: which texts are shown, and how long the answer may be.

Rules. A summary is asked for within a bound that the window it will stand in sets, and what it is asked of fits the
window of the model that writes it. An answer beyond its bound is clipped, whatever the model thought of that.
"""

from dataclasses import dataclass

from proxy.context import summary
from proxy.context.clip import clip
from proxy.context.conversation import Message
from proxy.context.situation import NeedSummary, Situation
from proxy.exchange.commands import Order
from proxy.exchange.verdict import Terms
from proxy.wire import chat
from proxy.wire.chat import ChatRequest

_SAFE_SHARE = 0.9
"""The side call's transcript adds labels to the texts, and its tokens are only estimated."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Makes the orders of one request. `window` is the budget's, None when it is not known."""

    request: ChatRequest
    terms: Terms
    window: int | None

    @property
    def most_tokens(self) -> int:
        """The most tokens that a summary may have."""
        return summary.most_tokens(self.terms.policy.summary.max_tokens, self.window)

    def bounded(self, text: str) -> str:
        """The summary within its bound."""
        most, tokens = self.most_tokens, self.terms.count(text)
        return text if tokens <= most else clip(text, len(text) * most // tokens)

    def order(self, need: NeedSummary, situation: Situation, key: str) -> Order:
        """The side call by which this need is met; `key` names the prefix that the summary will cover."""
        policy = self.terms.policy.summary
        source = situation.conversation.history[need.start : need.stop]
        texts = summary.order(
            source,
            need.previous,
            prompt=policy.prompt,
            words=int(self.most_tokens * summary.WORDS_PER_TOKEN),
            item_characters=policy.item_characters,
            most_characters=self._most_characters(need, situation),
        )
        body = chat.side_call(
            texts,
            model=self.terms.summary_model or self.request.model,
            max_tokens=self.most_tokens,
            limit_name="" if self.terms.summary_model else self.request.output_limit_name,
            reasoning_effort=self.terms.reasoning_effort,
        )
        return Order(key, body, sum(map(_characters, source)) + len(need.previous))

    def _most_characters(self, need: NeedSummary, situation: Situation) -> int | None:
        """What the summary model's window holds, at the characters per token of the range itself."""
        window = situation.limits.window if situation.limits else None
        if self.terms.summary_model:
            window = self.terms.summary_window
        if window is None:
            return None
        tokens = sum(size.tokens for size in situation.sizes[need.start : need.stop])
        characters = sum(map(_characters, situation.conversation.history[need.start : need.stop]))
        room = max(1, window - self.most_tokens - summary.OVERHEAD)
        return int(room * _SAFE_SHARE * characters / max(1, tokens))


def _characters(message: Message) -> int:
    return len(message.text) + len(message.reasoning) + sum(len(call.arguments) for call in message.calls) + 1
