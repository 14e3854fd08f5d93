"""A strict chat-completions server as a test's upstream: refuses what the real ones refuse, and counts for itself.

Rules. It judges every request by `proxy.demo.rules`, side calls too, and answers from handed-in functions. What it was
asked is recorded before it is answered, main calls and side calls apart. Equal requests get equal answers, the
summaries excepted: those differ at every call, so that a race that two of them enter leaves a trace.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec

from proxy.demo.refusals import NOT_JSON, REFUSED_STREAM_OPTIONS
from proxy.demo.replies import Message, chunks, completion, model_list, text_message, usage, usage_chunk
from proxy.demo.rules import Accepted, Count, Fields, Memory, Refusal, Temper, judge
from tests.peers.answers import Answer, json_answer, sse_answer
from tests.peers.scripted import Reply, Request, ScriptedUpstream
from tests.peers.tokens import o200k


class UsagePlacement(Enum):
    """Where a stream tells its usage; all but SEPARATE tell it unasked.

    SEPARATE  a chunk without choices before `[DONE]`, only when `include_usage` asks for it: OpenAI
    FINISH    on the chunk with the finish reason: Mistral, transformers
    EVERY     running totals on every chunk: vLLM's continuous usage
    CHOICE    within `choices[0]` of the last chunk: Moonshot
    NEVER     nowhere, and not in whole answers either: llama-cpp-python's streams
    """

    SEPARATE = "separate"
    FINISH = "finish"
    EVERY = "every"
    CHOICE = "choice"
    NEVER = "never"


def chat_answer(
    body: Fields, message: Message, *, prompt_tokens: int, placement: UsagePlacement = UsagePlacement.SEPARATE
) -> Answer:
    """The answer with this message, streamed or whole as the request asks, with usage as the placement says."""
    model = str(body.get("model"))
    spent = usage(prompt_tokens, _spoken(message))
    if not body.get("stream"):
        told = None if placement is UsagePlacement.NEVER else spent
        return json_answer(completion(message, usage=told, model=model))
    stream: list[dict[str, Any]] = chunks(message, model=model)
    match placement:
        case UsagePlacement.SEPARATE if (body.get("stream_options") or {}).get("include_usage"):
            stream = [*({**each, "usage": None} for each in stream), usage_chunk(spent, model=model)]
        case UsagePlacement.FINISH:
            stream[-1]["usage"] = spent
        case UsagePlacement.EVERY:
            stream = [{**each, "usage": usage(prompt_tokens, sent)} for sent, each in enumerate(stream)]
        case UsagePlacement.CHOICE:
            stream[-1]["choices"] = [{**stream[-1]["choices"][0], "usage": spent}]
        case UsagePlacement.SEPARATE | UsagePlacement.NEVER:
            pass
    return sse_answer(stream)


def _spoken(message: Message) -> int:
    """Tokens of an answer: its text and its calls."""
    return o200k(str(message.get("content") or "")) + o200k(json.dumps(message.get("tool_calls") or ""))


def decoded(body: bytes) -> dict[str, Any] | None:
    """The JSON object in these bytes; None when there is none. Lone surrogates are read as `json` reads them."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def marked(text: str) -> Callable[[Fields], bool]:
    """Tells side calls: no tools, and the first message is a system message that holds this text."""

    def is_side_call(body: Fields) -> bool:
        first: Fields = next(iter(body.get("messages") or []), {})
        return not body.get("tools") and first.get("role") == "system" and text in str(first.get("content"))

    return is_side_call


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A chat request as it arrived, decoded, and what came of it; no verdict where `side_failures` answered."""

    request: Request
    body: dict[str, Any]
    verdict: Accepted | Refusal | None
    is_side_call: bool


@dataclass(kw_only=True, eq=False, repr=False)
class StrictUpstream(ScriptedUpstream):
    """A chat-completions server with a window, which refuses what real ones refuse and answers without end.

    window          tokens, by `count` (o200k) and the arithmetic of `proxy.demo.counting`
    factor, hidden  the true count is the measured one times `factor` plus `hidden` tokens
    reply           makes the assistant message for a main call; by default a numbered sentence
    summarise       makes the answer to a side call; by default another text at every call, so that races show
    is_side_call    tells side calls from main calls; see `marked`. By default none is one
    side_failures   answers for the first side calls, before any is judged
    side_gate       side calls are not answered until it is set
    placement       where usage is told
    refuses_stream_options   400 on any request that has the field
    models, tells_window     what `GET /v1/models` lists, and whether with `max_model_len`
    first           a script of answers that come before all else, whatever is asked
    keep            so many of the newest requests and calls are kept, None = all

    All of these but the count may be changed while it runs.
    """

    window: int
    temper: Temper = Temper.OPENAI
    count: Count = o200k
    factor: float = 1.0
    hidden: int = 0
    reply: Callable[[Fields], Message] | None = None
    summarise: Callable[[Fields], Answer] | None = None
    is_side_call: Callable[[Fields], bool] | None = None
    side_failures: list[Answer] = field(default_factory=list)
    side_gate: asyncio.Event | None = None
    placement: UsagePlacement = UsagePlacement.SEPARATE
    refuses_stream_options: bool = False
    models: Sequence[str] = ("demo-model",)
    tells_window: bool = False
    first: Sequence[Reply] = ()
    keep: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.first, otherwise=self._serve, keep=self.keep)
        self.calls: list[Call] = []
        self._memory = Memory()
        self._main_count = 0
        self._side_count = 0

    @property
    def main_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.is_side_call]

    @property
    def side_calls(self) -> list[Call]:
        return [call for call in self.calls if call.is_side_call]

    @property
    def main_bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.main_calls]

    @property
    def side_bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.side_calls]

    @property
    def refusals(self) -> list[Refusal]:
        return [call.verdict for call in self.calls if isinstance(call.verdict, Refusal)]

    def _serve(self, request: Request) -> Answer:
        match request.method, request.path.rsplit("/", 2)[-2:]:
            case "POST", ["chat", "completions"]:
                return self._chat(request)
            case "GET", [*_, "models"]:
                return json_answer(model_list(self.models, self.window if self.tells_window else None))
            case _:
                said = f"Invalid URL ({request.method} {request.path})"
                error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
                return json_answer({"error": error}, status=404)

    def _chat(self, request: Request) -> Answer:
        body = decoded(request.body)
        if body is None:
            return json_answer(NOT_JSON.body, status=NOT_JSON.status)
        is_side_call = self.is_side_call is not None and self.is_side_call(body)
        if is_side_call and self.side_failures:
            self._record(Call(request, body, None, True))
            return self._gated(self.side_failures.pop(0))
        verdict = self._judge(body)
        self._record(Call(request, body, verdict, is_side_call))
        match verdict:
            case Refusal():
                return json_answer(verdict.body, status=verdict.status)
            case Accepted() if is_side_call:
                return self._gated(self._summary(body, verdict.prompt_tokens))
            case Accepted():
                self._main_count += 1
                made = self.reply(body) if self.reply else text_message(f"Reply {self._main_count}.")
                return self._say(body, made, verdict.prompt_tokens)

    def _judge(self, body: Fields) -> Accepted | Refusal:
        if self.refuses_stream_options and "stream_options" in body:
            return REFUSED_STREAM_OPTIONS
        return judge(
            body,
            window=self.window,
            count=self.count,
            temper=self.temper,
            factor=self.factor,
            hidden=self.hidden,
            memory=self._memory,
        )

    def _summary(self, body: Fields, prompt_tokens: int) -> Answer:
        self._side_count += 1
        if self.summarise is not None:
            return self.summarise(body)
        asked = re.findall(r"[^\W_]{4,}", str(body["messages"][-1]["content"]).partition("====\n")[2])
        about = next(iter(asked), "")
        text = f"Summary {self._side_count}: the task stands as it was asked, and the work goes on. {about}"
        return self._say(body, text_message(text), prompt_tokens)

    def _say(self, body: Fields, message: Message, prompt_tokens: int) -> Answer:
        return chat_answer(body, message, prompt_tokens=prompt_tokens, placement=self.placement)

    def _gated(self, answer: Answer) -> Answer:
        return replace(answer, before=self.side_gate) if self.side_gate is not None else answer

    def _record(self, call: Call) -> None:
        self.calls.append(call)
        if self.keep is not None:
            del self.calls[: -self.keep or None]
