"""The shapes in which servers and gateways wrap a message."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

Envelope = Callable[[str], bytes]


def _json(build: Callable[[str], Any], **options: Any) -> Envelope:
    return lambda text: json.dumps(build(text), **options).encode()


def _openai(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}}


def _flat(text: str) -> dict[str, Any]:
    return {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400}


def _raw(text: str) -> dict[str, Any]:
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": text}}}


def _litellm(text: str) -> dict[str, Any]:
    message = f"litellm.BadRequestError: OpenAIException - {text}. Received Model Group=x\nFallbacks=None"
    return {"error": {"message": message, "type": None, "param": None, "code": "400"}}


def _details(text: str) -> dict[str, Any]:
    inner = json.dumps({"error": {"message": text, "type": "BadRequest"}, "request_id": "r"})
    return _raw(
        json.dumps({"error": {"message": "Backend request failed with status 400", "details": inner}})
    )


# Escapes as other languages write them: Go all of <, > and &, PHP the slash, some everything.
def _escaped(text: str) -> bytes:
    return b'{"error":{"message":"%s"}}' % "".join(f"\\u{ord(each):04x}" for each in text).encode()


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode()


def _cut_raw(text: str) -> bytes:
    return _bytes(_raw(json.dumps(_openai(text)))).partition(b', \\"type')[0]


def _go(text: str) -> bytes:
    return json.dumps(_openai(text)).replace("<", "\\u003c").replace(">", "\\u003e").encode()


ENVELOPES: Final[Mapping[str, Envelope]] = MappingProxyType(
    {
        "nested": _json(_openai),
        "nested, spaced out": _json(_openai, indent=4),
        "nested, not ASCII": _json(_openai, ensure_ascii=False),
        "flat": _json(_flat),
        "error as a string": _json(lambda text: {"error": text, "error_type": "validation"}),
        "error as a string beside a code": _json(lambda text: {"code": "invalid argument", "error": text}),
        "detail": _json(lambda text: {"detail": text}),
        "a list of details": _json(
            lambda text: {"detail": [{"type": "value_error", "loc": ["body"], "msg": text}]}
        ),
        "message alone": _json(lambda text: {"message": text}),
        "capital letters": _json(lambda text: {"Error": {"Message": text}}),
        "an array": _json(
            lambda text: [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]
        ),
        "a bare JSON string": _json(lambda text: text),
        "Anthropic's": _json(lambda text: {"type": "error", "error": {"type": "a", "message": text}}),
        "OpenRouter's raw": _json(lambda text: _raw(json.dumps(_openai(text)))),
        "OpenRouter's raw, as text": _json(_raw),
        "JSON in JSON in JSON": _json(_details),
        "LiteLLM's prose": _json(_litellm),
        "LiteLLM's prose around JSON": _json(lambda text: _litellm(json.dumps(_openai(text)))),
        "prose around a printed dict": _json(lambda text: {"error": f"Error code: 400 - {_openai(text)}"}),
        "Vercel's": _json(lambda text: {"error_type": "a", "error_message": json.dumps(_openai(text))}),
        "plain text": lambda text: text.encode(),
        "plain text around it": lambda text: f"  400 Bad Request: {text}\r\n".encode(),
        "an event of a stream": lambda text: (
            b"id:1\nevent:error\n:HTTP_STATUS/400\ndata:%s\n\n" % _bytes(_flat(text))
        ),
        "an event with CRLF": lambda text: (
            b"event: error\r\ndata: " + json.dumps(_openai(text)).encode() + b"\r\n\r\n"
        ),
        "a byte order mark": lambda text: b"\xef\xbb\xbf" + json.dumps(_openai(text)).encode(),
        "blank lines before": lambda text: b"\n\n\n" + json.dumps(_openai(text)).encode() + b"\n",
        "cut off behind the message": lambda text: (
            json.dumps(_openai(text)).encode().partition(b', "type"')[0]
        ),
        "cut off, in a string": _cut_raw,
        "bytes that are not UTF-8": lambda text: (
            b'{"at": "\xff\xfe\xe9", ' + json.dumps(_openai(text)).encode()[1:]
        ),
        "every sign escaped": _escaped,
        "Go's escapes": _go,
        "the request repeated behind it": _json(
            lambda text: {**_flat(text), "body": [{"content": "x" * 900_000}]}
        ),
    }
)
