"""Chat templates as judges: what a template makes of a request, or the words in which it refuses.

Rules. A request is rendered as transformers renders it, in a sandbox and with nothing in it that changes from day to
day, after what servers do to every request first: arguments of calls become objects, parts that are all text one text,
`developer` becomes `system`. How a template wants calls is found out as llama.cpp does: one is rendered in each form,
and the first form in which it is seen is the one. Judging is total: a template that breaks is a template that refuses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Fields = Mapping[str, Any]
"""A decoded JSON object."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is refused, in the judge's own words."""

    reason: str


class Judge(Protocol):
    """Whoever says whether a request would be served."""

    @property
    def name(self) -> str: ...

    def judge(self, body: Fields) -> str | Refused:
        """The prompt that the decoded request becomes, or why it becomes none."""


BREAKS: Final = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What rendering raises when a template is given what it was not written for; `raise_exception` is the first."""

TODAY: Final = datetime(2025, 1, 2, tzinfo=UTC)

_TOKENS: Final = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass(frozen=True, slots=True)
class Form:
    """How a template is given what servers may give in more than one way.

    objects     the arguments of calls are decoded
    nulls       content that is null stays so, and becomes no empty text
    developers  the role `developer` stays
    parts       pictures may stand among the parts of a content; a server for text alone refuses them
    """

    objects: bool = True
    nulls: bool = False
    developers: bool = False
    parts: bool = False


_FORMS: Final = (Form(), Form(nulls=True), Form(objects=False), Form(objects=False, nulls=True))

_NEEDLE: Final = "needle"
_CALLS: Final[Fields] = {
    "messages": [
        {"role": "user", "content": "Find it."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "abcdefgh1",
                    "type": "function",
                    "function": {"name": "find", "arguments": f'{{"a": "{_NEEDLE}"}}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "find", "content": "found"},
    ]
}
_PICTURES: Final[Fields] = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": _NEEDLE},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            ],
        }
    ]
}


@dataclass(frozen=True)
class Template:
    """A chat template; `name` is for people."""

    name: str
    compiled: jinja2.Template
    form: Form

    def judge(self, body: Fields) -> str | Refused:
        return _judged(self.compiled, self.form, body)


def template(name: str, source: str) -> Template:
    """The judge in a template's source. Raises `jinja2.TemplateSyntaxError`."""
    compiled = _environment().from_string(source)
    form = next((form for form in _FORMS if _NEEDLE in _prompt(compiled, form, _CALLS)), Form())
    pictured = _prompt(compiled, replace(form, parts=True), _PICTURES)
    # A template that knows of no parts writes the whole list down, as Python does.
    parts = _NEEDLE in pictured and "image_url" not in pictured
    return Template(name, compiled, replace(form, developers="developer" in source, parts=parts))


def _prompt(compiled: jinja2.Template, form: Form, body: Fields) -> str:
    said = _judged(compiled, form, body)
    return "" if isinstance(said, Refused) else said


def _judged(compiled: jinja2.Template, form: Form, body: Fields) -> str | Refused:
    try:
        messages = [_served(message, form) for message in body["messages"]]
        continues = bool(messages) and messages[-1]["role"] == "assistant"
        return compiled.render(
            messages=messages,
            tools=body.get("tools"),
            documents=None,
            add_generation_prompt=not continues,
            **_TOKENS,
        )
    except BREAKS as refusal:
        return Refused(str(refusal))


def _served(message: Fields, form: Form) -> dict[str, Any]:
    served = dict(message)
    content = message.get("content")
    if content is None and not form.nulls:
        served["content"] = ""
    elif isinstance(content, list) and all(part["type"] == "text" for part in content):
        served["content"] = "\n".join(part["text"] for part in content)
    elif isinstance(content, list) and not form.parts:
        raise ValueError("this model takes text alone")
    if message["role"] == "developer" and not form.developers:
        served["role"] = "system"
    if message.get("tool_calls"):
        served["tool_calls"] = [_served_call(call, form) for call in message["tool_calls"]]
    else:
        served.pop("tool_calls", None)
    return served


def _served_call(call: Fields, form: Form) -> Fields:
    if not form.objects:
        return call
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}}


# --- the environment ----------------------------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}` marks what a model said, for training; a prompt holds what stands between the marks."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = TODAY.strftime
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what is special in HTML; a prompt is none."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
