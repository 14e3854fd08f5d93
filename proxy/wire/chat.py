"""The chat-completions API: what a request says to us, and how a changed one is put together.

Rules. A request is read for what we need and never written back from that reading: a changed body is the client's own
bytes with the changed members exchanged. What cannot be read as a chat request raises `NotManaged` and is forwarded as
it is, because judging bad requests is the upstream's business. A side call carries parameters of its own alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from proxy.context import rawjson
from proxy.context.conversation import Conversation, read_message
from proxy.context.rawjson import NotJSON, Places
from proxy.context.reader import NOTHING_KNOWN, Reader
from proxy.context.steps import AT_ONCE, Steps, at_once
from proxy.context.summary import Order
from proxy.wire.usage import Usage, read_usage

CHAT_PATH: Final = "/chat/completions"
GENERATING_PATHS: Final = (
    "/responses",
    "/messages",
    "/completions",
    "/generate",
    "/api/chat",
    "/api/generate",
)
"""Endpoints that generate text from a history or prompt and are not managed: said once in the log."""

EXTRAS: Final = ("tools", "functions", "tool_choice", "function_call", "response_format")
"""Members beside `messages` that take room in the prompt."""

REASONING: Final = ("reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs")
"""Members that change how much of the history a template shows the model, and what it adds."""

OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""Names of the output limit; the first that a request has is the one that counts."""

NEEDS_COMPLETION_LIMIT: Final = ("o1", "o3", "o4", "gpt-5", "gpt-6")
"""Models (behind a provider's prefix) that refuse `max_tokens`: OpenAI's reasoning models."""


MOST_VALUES: Final = 2_000_000
MOST_MEMBERS: Final = 10_000
MOST_MESSAGES: Final = 100_000
"""Of a body that is looked into. What is larger is no chat, and would hold up everybody else's."""


class NotManaged(Exception):
    """The body is none that we can manage; `reason` is a short fixed word for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChatRequest(msgspec.Struct, frozen=True):
    """One chat request. `output_limit` is in tokens; `output_limit_name` the member that says so, or empty."""

    body: bytes
    places: Places
    model: str
    conversation: Conversation
    extras: tuple[bytes, ...]
    reasoning: tuple[bytes, ...]
    stream: bool
    wants_usage: bool
    stream_options: bytes
    output_limit: int | None
    output_limit_name: str
    has_cache_key: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The first choice of a complete answer, as far as a side call needs it."""

    text: str
    has_calls: bool
    finish_reason: str
    usage: Usage | None


def is_chat_path(path: str) -> bool:
    """Whether a POST to this path (without query) is a chat request."""
    return path.rstrip("/").endswith(CHAT_PATH)


def is_generating_path(path: str) -> bool:
    """Whether a POST to this path generates text though we do not manage it."""
    plain = path.rstrip("/")
    return not is_chat_path(plain) and plain.endswith(GENERATING_PATHS)


def model_in(body: bytes) -> str:
    """The model that a body of whatever endpoint names; empty where it names none, or names it twice."""
    try:
        named = [span for span in rawjson.spans(body, MOST_MEMBERS) if span.key == "model"]
    except NotJSON:
        return ""
    return _name(body[named[0].start : named[0].stop]) if len(named) == 1 else ""


def with_messages(text: bytes, model: str = "") -> bytes:
    """A request with these messages where the text is a list of them; else the text. Raises `NotJSON`."""
    if not text.lstrip().startswith(b"[") or not rawjson.elements(text):
        return text
    return rawjson.object_of({"model": rawjson.encode(model), "messages": text.strip()})


def read(body: bytes, reader: Reader) -> ChatRequest:
    """The request in a body, read without a pause. Raises `NotManaged`."""
    return at_once(reading(body, reader))


def reading(body: bytes, reader: Reader) -> Steps[ChatRequest]:
    """The request in a body. Raises `NotManaged`."""
    try:
        is_short = len(body) <= reader.short
        known = NOTHING_KNOWN if is_short else reader.recognise(body)
        rest = body[: known.start] + body[known.stop :] if known.entries else body
        is_large = len(rest) > AT_ONCE
        if is_large:  # what is smaller has fewer values than bytes
            if rawjson.has_more_values(rest, MOST_VALUES):
                raise rawjson.TooManyValues("too many values in all")
            yield
        fields = _fields(rest)
        if is_large:
            yield
        messages = rawjson.elements(fields["messages"])
        if is_large:
            yield
        if len(known.entries) + len(messages) > MOST_MESSAGES:
            raise rawjson.TooManyValues("too many messages")
        head = known.head
        if not head and not is_short:
            head = body[: rawjson.start_of("messages", body, fields) + 1]
        conversation = yield from reader.reading(messages, known, head)
        places = Places(body, tuple(fields), known.start, known.stop)
        return _request(body, places, fields, conversation)
    except rawjson.TooManyValues as cause:
        raise NotManaged("too_many_values") from cause
    except NotJSON as cause:
        raise NotManaged("not_json") from cause


def _fields(body: bytes) -> dict[str, bytes]:
    """The members of a body that is a chat request as far as can be told without looking into them."""
    fields = rawjson.distinct(body, MOST_MEMBERS)
    if fields is None:
        # Parsers differ in which of two equal keys they take; we would judge another request than the upstream.
        raise NotManaged("repeated_key")
    if not fields.get("messages", b"").startswith(b"["):
        raise NotManaged("no_messages")
    if not body.isascii() and not all(
        map(rawjson.is_text, [fields[key] for key in fields if key != "messages"])
    ):
        raise NotJSON("no UTF-8")  # of the messages each is decoded
    return fields


def _request(
    body: bytes, places: Places, fields: Mapping[str, bytes], conversation: Conversation
) -> ChatRequest:
    options = fields.get("stream_options", b"")
    limit_name, limit = _output_limit(fields)
    return ChatRequest(
        body=body,
        places=places,
        model=_name(fields.get("model", b"null")),
        conversation=conversation,
        extras=tuple(filter(None, map(fields.get, EXTRAS))),  # no raw value is empty
        reasoning=tuple(filter(None, map(fields.get, REASONING))),
        stream=fields.get("stream") == b"true",
        wants_usage=bool(options) and _wants_usage(options),
        stream_options=options,
        output_limit=limit,
        output_limit_name=limit_name,
        has_cache_key="prompt_cache_key" in fields,
    )


def _output_limit(fields: Mapping[str, bytes]) -> tuple[str, int | None]:
    """The member that limits the output and the tokens that it says; an empty name where none says any."""
    for name in OUTPUT_LIMITS:
        if name in fields and (limit := _tokens(fields[name])) is not None:
            return name, limit
    return "", None


def _name(raw: bytes) -> str:
    """A model's name as it can be written: what UTF-8 cannot carry is no model's, and goes on in the body alone."""
    name = rawjson.value(raw)
    if not isinstance(name, str):
        return ""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def _tokens(raw: bytes) -> int | None:
    number = rawjson.value(raw)
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _wants_usage(options: bytes) -> bool:
    return options.startswith(b"{") and rawjson.members(options).get("include_usage") == b"true"


# --- changing ---------------------------------------------------------------------------------------------


def with_members(request: ChatRequest, changed: Mapping[str, bytes]) -> bytes:
    """The client's bytes with these members exchanged or added; the very bytes when there are none."""
    return request.places.exchanged(changed) if changed else request.body


def messages_member(view: Conversation) -> bytes:
    """The raw `messages` of a view."""
    return rawjson.array([message.raw for message in view.messages])


def usage_member(request: ChatRequest) -> bytes:
    """`stream_options` with `include_usage: true`; every other option of the client's stays."""
    own = request.stream_options if request.stream_options.startswith(b"{") else b"{}"
    return rawjson.replace(own, {"include_usage": b"true"})


REFUSING: Final = (400, 404, 422, 500, 501)
NAMES_USAGE: Final = re.compile(rb"stream[_ ]?options|include[_ ]?usage", re.IGNORECASE)
NAMES_A_FIELD: Final = re.compile(
    rb"extra_forbidden|extra (?:fields|inputs)|(?:unrecogni[sz]ed|unknown|unsupported|unexpected|additional)[\w ]{0,20}"
    rb"(?:field|argument|parameter|propert|key)",
    re.IGNORECASE,
)


def refuses_usage(status: int, body: bytes) -> bool:
    """Whether this refusal may be about the option that we spliced in, so that one try without it is worth it.

    It names the member, in one spelling or another; or it is a validator's 400 or 422 about some field it does not
    know. The latter costs one more call where the client sent an odd field itself, and changes nothing then.
    """
    if status in (400, 422) and NAMES_A_FIELD.search(body):
        return True
    return status in REFUSING and NAMES_USAGE.search(body) is not None


# --- side calls -------------------------------------------------------------------------------------------


def side_call(
    order: Order,
    *,
    model: str,
    max_tokens: int,
    limit_name: str,
    reasoning_effort: str = "",
    stream: bool = False,
) -> bytes:
    """The body of a side call: two messages, the output limit, the configured effort; nothing else of the client's."""
    messages: Sequence[Mapping[str, str]] = (
        {"role": "system", "content": order.system},
        {"role": "user", "content": order.user},
    )
    name = limit_name or _limit_name(model)
    effort = {"reasoning_effort": reasoning_effort} if reasoning_effort else {}
    named = {"model": model} if model else {}  # some servers have one model and ask for no name
    streamed: dict[str, object] = {"stream": stream}
    if stream:
        streamed["stream_options"] = {"include_usage": True}
    return rawjson.encode({**named, "messages": messages, name: max_tokens, **streamed, **effort})


PROMPT_MEMBERS: Final = frozenset(
    {
        "model",
        "tools",
        "functions",
        "parallel_tool_calls",
        *REASONING,
        "chat_template",
        "documents",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_prompt",
        "cache_salt",
        "id_slot",
        "user",
        "safety_identifier",
        "service_tier",
        "provider",
    }
)
"""Members of a main call, beside its messages, by which a prompt is made and its place in a cache is found."""

_FORBIDDING: Final = (("tools", "tool_choice"), ("functions", "function_call"))
_NO_TOOLS: Final = (b"null", b"[]")
"""Beside these a choice of tools is refused."""


def suffix_call(
    request: ChatRequest, messages: Sequence[bytes], *, max_tokens: int, stream: bool, cache_key: str | None
) -> bytes:
    """The body of a side call that begins like a main call: its prompt is these messages, with the request's tools,
    none of which may be called. `cache_key` is what the main call is given where it has none of its own.
    """
    places = (place for place in request.places.found if place.key in PROMPT_MEMBERS)
    members = {place.key: request.body[place.start : place.stop] for place in places}
    members |= {name: b'"none"' for of, name in _FORBIDDING if members.get(of, b"null") not in _NO_TOOLS}
    if cache_key:
        members["prompt_cache_key"] = rawjson.encode(cache_key)
    members |= {"messages": rawjson.array(messages), "stream": rawjson.encode(stream)}
    if stream:
        members["stream_options"] = b'{"include_usage":true}'
    name = request.output_limit_name or _limit_name(request.model)
    return rawjson.object_of({**members, name: rawjson.encode(max_tokens)})


def without_forbidding(side_call: bytes) -> bytes:
    """A side call for an upstream that does not let tools be forbidden."""
    for _, name in _FORBIDDING:
        side_call = rawjson.remove(side_call, name)
    return side_call


def refuses_forbidding(status: int, body: bytes) -> bool:
    """Whether a refusal is about the choice of tools."""
    return status in REFUSING and any(name.encode() in body for _, name in _FORBIDDING)


SHAPE_REFUSALS: Final = frozenset({400, 422, 500})
"""Statuses of servers whose chat template does not take the messages; llama.cpp says 500."""


def refuses_system(status: int, body: bytes) -> bool:
    """Whether a refusal may be on account of a system message, which chat templates such as Gemma 2 lack."""
    return status in SHAPE_REFUSALS and b"system" in body.lower()


def without_system(side_call: bytes) -> bytes:
    """A side call whose system text stands at the head of its user message."""
    messages = rawjson.value(rawjson.members(side_call)["messages"])
    texts = [str(cast(dict[str, object], message)["content"]) for message in cast(list[object], messages)]
    merged = [{"role": "user", "content": "\n\n".join(texts)}]
    return rawjson.replace(side_call, {"messages": rawjson.encode(merged)})


def without_usage(side_call: bytes) -> bytes:
    """A side call for an upstream that refuses `stream_options`."""
    return rawjson.remove(side_call, "stream_options")


def _limit_name(model: str) -> str:
    plain = model.rsplit("/", 1)[-1]
    return OUTPUT_LIMITS[0] if plain.startswith(NEEDS_COMPLETION_LIMIT) else OUTPUT_LIMITS[1]


def read_answer(body: bytes) -> Answer | None:
    """The first choice of an answer; None when the body is no chat completion."""
    try:
        fields = rawjson.value(body)
    except NotJSON:
        return None
    return _first_choice(fields, "message")


def read_stream(body: bytes) -> Answer | None:
    """The same of a whole stream, whose pieces are put together; None where an event is an error or no JSON."""
    text, has_calls, finish, usage = "", False, "", None
    found = [event for event in map(_event_data, _EVENT_END.split(body)) if event and event != b"[DONE]"]
    for data in found:
        try:
            fields = rawjson.value(data)
        except NotJSON:
            return None
        if not isinstance(fields, dict) or fields.get("error"):
            return None
        usage = read_usage(fields.get("usage")) or usage
        if (piece := _first_choice(fields, "delta")) is not None:
            text, has_calls = text + piece.text, has_calls or piece.has_calls
            finish = piece.finish_reason or finish
    return Answer(text, has_calls, finish, usage) if found else None


_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def _event_data(event: bytes) -> bytes:
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)


def _first_choice(fields: object, name: str) -> Answer | None:
    choices = fields.get("choices") if isinstance(fields, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    choice = cast(dict[str, object], choices[0])
    message, finish = choice.get(name), choice.get("finish_reason")
    reading = read_message(rawjson.encode(message))
    usage = read_usage(cast(dict[str, object], fields).get("usage"))
    return Answer(reading.text, bool(reading.calls), finish if isinstance(finish, str) else "", usage)


def usage_of(body: bytes) -> Usage | None:
    """The usage of a complete answer, whatever else the body is."""
    try:
        return read_usage(_DOCUMENT.decode(body).usage)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        fields = rawjson.value(body)
    except NotJSON:
        return None
    return read_usage(cast(dict[str, object], fields).get("usage")) if isinstance(fields, dict) else None


class _Document(msgspec.Struct):
    """The one member of an answer that is looked at, any JSON value."""

    usage: object = None


_DOCUMENT: Final = msgspec.json.Decoder(_Document)


def error_body(message: str, kind: str, code: str) -> bytes:
    """An error of our own, in OpenAI's shape."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return rawjson.encode({"error": error})
