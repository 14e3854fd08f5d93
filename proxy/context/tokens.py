"""Sizes of messages, tools and whole requests, in tokens of our own estimate.

Rules. No encoder is known here: it is handed in. Every number is raw, that is uncalibrated, and an estimate.
All that the model reads of a message is counted, and base64 is never counted as text. Every message and every
JSON document has a size: nothing here raises, however odd or deep they are.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import cast

from proxy.context import pictures, rawjson
from proxy.context.conversation import Kind, Media, Message, Part, part_of

Count = Callable[[str], int]
"""Text -> tokens. Total over every `str`, lone surrogates included."""

PER_MESSAGE = 3
PER_NAME = 1
REPLY_PRIMING = 3
"""Tokens around a message, its name, and the answer: openai-cookbook, How_to_count_tokens_with_tiktoken. With
them 97 % of 410 recorded requests without tools and images are met exactly; reasoning models take 1 less."""

PER_CALL = 5
"""Tokens around a tool call and its result. The call's name counts twice, because the result is headed by it;
a result's own name counts nothing then. Chosen on recorded requests like the constants of tools, see
`extras_size`. Parallel calls whose results have many line feeds cost up to 7 % more, being escaped."""


class Category(StrEnum):
    """What a message is counted as; an assistant message with calls is a TOOL_CALL."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    OTHER = "other"


_CATEGORIES = MappingProxyType(
    {
        Kind.SYSTEM: Category.SYSTEM,
        Kind.USER: Category.USER,
        Kind.ASSISTANT: Category.ASSISTANT,
        Kind.RESULT: Category.TOOL_RESULT,
        Kind.OTHER: Category.OTHER,
    }
)


@dataclass(frozen=True, slots=True)
class Size:
    """The raw estimate of one message, in tokens.

    tokens     the whole message: overhead, role, text, name, calls, reasoning, refusal, media
    content    the part of `tokens` that is the message's text, and goes when the text is replaced
    category   what the message is counted as
    has_media  it holds images, audio or files, whose cost is a guess that must not teach the calibration
    media      the tokens of each of its media, in their order; they go when the whole content is replaced
    """

    tokens: int
    content: int
    category: Category
    has_media: bool = False
    media: tuple[int, ...] = ()


def message_size(message: Message, count: Count, model: str) -> Size:
    """The size of one message for this model; total over odd messages."""
    content = count(message.text)
    tokens = PER_MESSAGE + count(message.role) + content
    if message.name and not (message.is_result and message.role != "user"):
        tokens += PER_NAME + count(message.name)
    tokens += sum(count(text) for text in (message.reasoning, message.refusal) if text)
    tokens += sum(PER_CALL + 2 * count(call.name) + count(call.arguments) for call in message.calls)
    media = tuple(_media_tokens(message, count, model)) if message.media else ()
    pictured = any(each.kind in pictures.KINDS for each in message.media)
    return Size(tokens + sum(media), content, category(message), pictured, media)


def category(message: Message) -> Category:
    """What a message is counted as."""
    if message.is_assistant and message.calls:
        return Category.TOOL_CALL
    return _CATEGORIES[message.kind]


def request_size(sizes: Sequence[Size], extras: int) -> int:
    """The raw estimate of a prompt, in tokens: messages, extras (`extras_size`) and the answer's opening."""
    return sum([size.tokens for size in sizes]) + extras + REPLY_PRIMING


_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{400,}={0,2}")


def _media_tokens(message: Message, count: Count, model: str) -> Iterator[int]:
    """Tokens of each of a message's media; of kinds that are not known, a nested result say, what can be read."""
    unknown = [] if all(map(_is_known, message.media)) else _media_parts(message.raw)
    for place, media in enumerate(message.media):
        if _is_known(media):
            yield pictures.media_tokens(media, model)
        else:
            yield sum(map(count, _strings(unknown[place]))) if place < len(unknown) else 0


def _is_known(media: Media) -> bool:
    return media.kind in pictures.KINDS


def _media_parts(raw: bytes) -> list[object]:
    """The parts of a message that `Message.media` lists, in the same order."""
    try:
        content = _fields(rawjson.value(raw)).get("content")
    except rawjson.NotJSON:
        return []
    return [part for part in content if part_of(part) is Part.MEDIA] if isinstance(content, list) else []


def _strings(value: object) -> Iterator[str]:
    """All texts in a JSON value but those that are encoded bytes. No recursion: nesting may be hostile."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text) if not text.startswith("data:") and not _BASE64.fullmatch(text):
                yield text
            case dict(fields):
                waiting.extend(fields.values())
            case list(items):
                waiting.extend(items)


# --- tools and the other parts of a request -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ToolStyle:
    """How a family of models is told of its tools.

    typescript  as TypeScript declarations, else as the JSON that the client sent
    once        tokens of the text around them, once a request
    factor      tokens for each counted one
    """

    typescript: bool
    once: int
    factor: float = 1.0


# Pattern over the bare name -> style; the first match counts. OpenAI's and Claude's are fitted to recorded
# usage, the others to prompts rendered with the models' own templates and tokenizers (the default is Qwen's
# and DeepSeek's).
_STYLES = (
    (re.compile(r"gpt-oss"), _ToolStyle(typescript=True, once=72)),
    (re.compile(r"gpt-[5-9]"), _ToolStyle(typescript=True, once=90)),
    (re.compile(r"gpt-?[34]|chatgpt|o\d"), _ToolStyle(typescript=True, once=6)),
    (re.compile(r"claude"), _ToolStyle(typescript=False, once=380, factor=1.3)),
    (re.compile(r"(?:meta-)?llama"), _ToolStyle(typescript=False, once=170)),
    (
        re.compile(r"mistral|ministral|magistral|mixtral|codestral|devstral|pixtral|gemma"),
        _ToolStyle(False, once=10),
    ),
)
_DEFAULT_STYLE = _ToolStyle(typescript=False, once=80)

PER_FORCED_CALL = 7
PER_SCHEMA = 12
"""Tokens around the name of a call that `tool_choice` forces, and around the schema of `response_format`."""


def extras_size(extras: Sequence[bytes], count: Count, model: str) -> int:
    """Tokens of raw `tools`, `functions`, `response_format`, `tool_choice` ..., told apart by their shape.

    OpenAI's models read tools as TypeScript declarations (the form that openai/harmony writes), others as
    JSON. Source: 207 recorded requests with tools to gpt-3.5 ... gpt-5 and o3. The form was found by reading
    them, the constants were chosen on one half (by a hash of the id); on the other half whole prompts are off
    by 0.8 % on average, 3.8 % at the 95th percentile. The cookbook's formula is off by 4.8 % and 21 %,
    compact JSON by 11 % and 30 %.
    """
    return sum(_extra_size(raw, count, model) for raw in extras)


def _extra_size(raw: bytes, count: Count, model: str) -> int:
    try:
        match rawjson.value(raw):
            case list(tools):
                return _tools_size(tools, count, model)
            case {"json_schema": dict(schema)}:
                return _schema_size(schema, count)
            case {"function": {"name": str(name)}} | {"name": str(name)}:
                return PER_FORCED_CALL + count(name)
            case dict(other) if set(other) - {"type"}:
                return count(rawjson.encode(other).decode())
            case _:
                return 0
    except (rawjson.NotJSON, RecursionError):
        return count(raw.decode("utf-8", "replace"))


def _tools_size(tools: list[object], count: Count, model: str) -> int:
    if not tools:
        return 0
    name = pictures.bare_name(model)
    style = next((style for pattern, style in _STYLES if pattern.match(name)), _DEFAULT_STYLE)
    # Templates write JSON with a space behind each comma and colon, as Python's `json` does.
    text = _declarations(tools) if style.typescript else json.dumps(tools, ensure_ascii=False)
    return style.once + round(count(text) * style.factor)


def _schema_size(schema: dict[str, object], count: Count) -> int:
    """OpenAI shows the schema of an answer as JSON, without the titles of its members."""
    names = [count(text) for key in ("name", "description") if isinstance(text := schema.get(key), str)]
    shown = _without_titles(schema.get("schema"), top=True, named=False)
    return PER_SCHEMA + sum(names) + count(rawjson.encode(shown).decode())


def _without_titles(schema: object, *, top: bool, named: bool) -> object:
    """`named`: the keys of this object are the names of members or definitions, not keywords."""
    if isinstance(schema, list):
        return [_without_titles(item, top=False, named=False) for item in schema]
    if not isinstance(schema, dict):
        return schema
    hidden = () if named else ("additionalProperties",) if top else ("additionalProperties", "title")
    return {
        key: _without_titles(
            value, top=False, named=not named and key in ("properties", "$defs", "definitions")
        )
        for key, value in schema.items()
        if key not in hidden
    }


# --- JSON schemas as TypeScript -----------------------------------------------------------------------------

_DEEPEST = 32
_MOST_COPIES = 3


def _declarations(tools: Sequence[object]) -> str:
    """The declarations of these tools; what is no function stands as its JSON."""
    lines = ["namespace functions {", ""]
    for tool in tools:
        fields = _fields(tool)
        function = _fields(fields.get("function")) or _fields(fields.get("custom")) or fields
        name = function.get("name")
        if not isinstance(name, str):
            lines.append(rawjson.encode(tool).decode())
            continue
        schema = _fields(function.get("parameters") or function.get("input_schema"))
        takes = f"_: {_TypeScript(schema).type_of(schema)}" if _fields(schema.get("properties")) else ""
        lines += [*_comment(function.get("description")), f"type {name} = ({takes}) => any;", ""]
    return "\n".join([*lines, "} // namespace functions"])


def _comment(text: object) -> list[str]:
    """Every line of a description, without its indentation."""
    return (
        [f"// {line.strip()}".rstrip() for line in text.split("\n")] if isinstance(text, str) and text else []
    )


class _TypeScript:
    """One schema in TypeScript's notation. References are written out, each a few times at most."""

    def __init__(self, root: dict[str, object]) -> None:
        self._definitions = {
            f"#/{place}/{name}": schema
            for place in ("$defs", "definitions")
            for name, schema in _fields(root.get(place)).items()
        }
        self._copies: Counter[str] = Counter()

    def type_of(self, value: object, depth: int = 0) -> str:
        """The type that a schema describes; `any` for what is no schema, and below the deepest level."""
        schema = _fields(value)
        if depth > _DEEPEST:
            return "any"
        for read in (self._reference, self._choice, self._object, self._array):
            if (text := read(schema, depth + 1)) is not None:
                return text
        kind = schema.get("type")
        if not isinstance(kind, str):
            return "any"
        return "number" if kind == "integer" else kind

    def _reference(self, schema: dict[str, object], depth: int) -> str | None:
        target = schema.get("$ref")
        if not isinstance(target, str):
            return None
        self._copies[target] += 1
        return self.type_of(
            self._definitions.get(target) if self._copies[target] <= _MOST_COPIES else {}, depth
        )

    def _choice(self, schema: dict[str, object], depth: int) -> str | None:
        """Alternatives: values, schemas, or a list of types that share all else.

        Described alternatives stand on lines of their own; a list of types then repeats the description.
        """
        kinds = schema.get("type")
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if not isinstance(options, list) and isinstance(kinds, list):
            options = [{**schema, "type": kind} for kind in kinds if isinstance(kind, str)]
        if isinstance(options, list):
            types = [self.type_of(option, depth) for option in options]
            notes = [_fields(option).get("description") for option in options]
            if not any(isinstance(note, str) for note in notes):
                return " | ".join(types)
            lines = [f" | {text} // {note or ''}" for text, note in zip(types, notes, strict=True)]
            return "\n" + "\n".join(lines) + "\n"
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        return (
            " | ".join(_literal(value) for value in values) if isinstance(values, list) and values else None
        )

    def _object(self, schema: dict[str, object], depth: int) -> str | None:
        if schema.get("type") != "object" and "properties" not in schema:
            return None
        required = schema.get("required")
        lines = ["{"]
        for name, value in _fields(schema.get("properties")).items():
            member = _fields(value)
            title, description = member.get("title"), _comment(member.get("description"))
            lines += [f"// {title}", *(["//"] if description else [])] if isinstance(title, str) else []
            optional = "" if isinstance(required, list) and name in required else "?"
            default = f" // default: {_literal(member['default'])}" if "default" in member else ""
            lines += [*description, f"{name}{optional}: {self.type_of(member, depth)},{default}"]
        return "\n".join([*lines, "}"])

    def _array(self, schema: dict[str, object], depth: int) -> str | None:
        if schema.get("type") != "array":
            return None
        items = self.type_of(schema.get("items"), depth)
        return f"Array<\n{items}\n>" if "\n" in items else f"{items}[]"


def _literal(value: object) -> str:
    return rawjson.encode(value).decode()


def _fields(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


# --- encodings and texts ------------------------------------------------------------------------------------

DEFAULT_ENCODING = "o200k_base"

# Pattern over the bare name -> encoding, the first match counts; tiktoken 0.14 `model.py`, and names that
# deployments give ("gpt-35-turbo", "gpt-41-mini", "gpt-4-1"). The first row stands before the second because
# gpt-4.1 begins like gpt-4 but is read otherwise.
_ENCODINGS = (
    (re.compile(r"gpt-?4(?:-?o|[.-]?[15](?!\d))"), "o200k_base"),
    (re.compile(r"gpt-?4(?=$|[-@:_])|gpt-?3\.?5"), "cl100k_base"),
)


def encoding_for(model: object) -> str:
    """The encoding to estimate a model's tokens with: `cl100k_base` where it is known, else `o200k_base`."""
    name = pictures.bare_name(model)
    return next((encoding for pattern, encoding in _ENCODINGS if pattern.match(name)), DEFAULT_ENCODING)


SLICE = 16_384
"""Characters that are encoded at once at most. Measured: whole texts and slices of 10 to 20 thousand
characters differ by less than one token in 100,000, a run of a million equal characters takes a third of the
time, and the native encoder, which fails on a million spaces, never sees a run long enough for that."""


def slices(text: str) -> Iterator[str]:
    """The text in pieces of at most `SLICE` characters, cut behind a line feed, else before a space, if any.

    The borders depend on the text alone; `"".join(slices(text)) == text`.
    """
    start = 0
    while len(text) - start > SLICE:
        stop = _border(text, start, start + SLICE)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _border(text: str, start: int, limit: int) -> int:
    """Where to cut: no token reaches over a line feed and a letter, nor over a letter and a space."""
    if (line_end := text.rfind("\n", limit - SLICE // 4, limit)) > start:
        return line_end + 1
    if (space := text.rfind(" ", limit - SLICE // 2, limit)) > start:
        return space
    # A pair of surrogates that a decoder left unjoined is one character to the encoder.
    return limit - 1 if "\ud800" <= text[limit - 1] <= "\udbff" else limit


def heuristic(text: str) -> int:
    """Tokens of a text without an encoding: a third of its UTF-8 bytes, rounded up. Rarely too few."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 3)
