"""Mistral's own request validation as a judge: what `mistral-common` says before it makes a prompt.

Rules. A request goes the way that it goes in a server that uses the library: read from OpenAI's form, validated for
serving by the rules of a tokenizer's version, and normalised. The prompt is the texts of what comes out of that, in
their order; it is not tokenised. Version 3 counts
results, 11 matches them by id, and both want ids of nine signs; 13 takes any id.
"""

from dataclasses import dataclass
from typing import Any, Final

from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.normalize import get_normalizer
from mistral_common.protocol.instruct.request import ChatCompletionRequest, InstructRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import TokenizerVersion

from tests.templates.render import BREAKS, Fields, Refused

VERSIONS: Final = (TokenizerVersion.v3, TokenizerVersion.v11, TokenizerVersion.v13)


@dataclass(frozen=True)
class MistralRules:
    """The validation that comes with this version of the tokenizer."""

    version: TokenizerVersion

    @property
    def name(self) -> str:
        return f"mistral-common {self.version.value}"

    def judge(self, body: Fields) -> str | Refused:
        """The prompt's texts in their order, or why there are none."""
        validator = get_validator(self.version, ValidationMode.serving)
        try:
            request = validator.validate_request(_read(body))
            normalised = get_normalizer(self.version, None).from_chat_completion_request(request)
        except MistralCommonException as refusal:
            return Refused(refusal.message)
        except BREAKS as refusal:
            return Refused(str(refusal))
        return _text(normalised)


def _read(body: Fields) -> ChatCompletionRequest[Any]:
    messages = [dict(message) for message in body["messages"]]
    continues = bool(messages and messages[-1].get("prefix"))
    return ChatCompletionRequest.from_openai(
        messages, body.get("tools"), continue_final_message=continues, model=body.get("model")
    )


def _text(request: InstructRequest[Any, Any]) -> str:
    texts = [request.system_prompt or ""]
    for message in request.messages:
        content = message.content or ""
        texts += [content] if isinstance(content, str) else [getattr(part, "text", "") for part in content]
        texts += [
            f"{call.function.name} {call.function.arguments}"
            for call in getattr(message, "tool_calls", None) or []
        ]
    return "\n".join(texts)
