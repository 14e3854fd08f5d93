"""The requests that a command is given: those of a file, and the terms on which they are looked at.

Rules. A file holds one request, a list of messages, or a request in each of its lines; what it holds beside that is a
mistake with its line. Who runs a command has no credential of a client's, and shares nothing with any.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

from proxy.config import Config
from proxy.config.values import DEFAULT
from proxy.context import rawjson
from proxy.context.rawjson import NotJSON
from proxy.context.reader import Reader
from proxy.context.tokens import encoding_for
from proxy.edge.performer import Measures
from proxy.errors import NoChatRequest
from proxy.exchange import Terms
from proxy.wire import chat
from proxy.wire.chat import ChatRequest, NotManaged


def requests_in(text: bytes, file: str, model: str) -> Iterator[tuple[str, bytes]]:
    """The requests in a file's text, each with its place. Raises NoChatRequest for what is none."""
    whole = text.strip()
    if not whole:
        raise NoChatRequest(
            f"{file} is empty: it needs a chat request, a list of messages, or a request in each line."
        )
    try:
        yield file, _as_request(whole, model)
    except NotJSON:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        if len(lines) == 1:
            raise NoChatRequest(f"{file}:{lines[0][0]}: this is no JSON.") from None
        for number, line in lines:
            try:
                yield f"{file}:{number}", _as_request(line.strip(), model)
            except NotJSON:
                raise NoChatRequest(f"{file}:{number}: this line is no JSON.") from None


def read_all(requests: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, ChatRequest]]:
    """The same as chat requests, each with its place. Raises NoChatRequest."""
    reader = Reader()
    for place, body in requests:
        try:
            yield place, chat.read(body, reader)
        except NotManaged as odd:
            raise NoChatRequest(f"{place}: this is no chat request ({odd.reason}).") from odd


def _as_request(text: bytes, model: str) -> bytes:
    """A request with these messages where the text is a list. Raises NotJSON."""
    request = chat.with_messages(text, model)
    rawjson.members(request)
    return request


def terms(request: ChatRequest, config: Config, tokenizer: Measures) -> Terms:
    """What is fixed for one request that comes with no credential."""
    policy = config.policy_for(request.model)
    name = upstream_of(request, config)
    calls = config.side_calls_of(name)
    summary_model = calls.model or ""
    return Terms(
        policy=policy,
        mode=policy.mode,
        upstream=config.servers[name].base_url,
        tenant=hashlib.blake2b(b"", digest_size=16).hexdigest(),
        count=partial(tokenizer.count, encoding=encoding_for(request.model)),
        summary_model=summary_model,
        summary_prompt=calls.prompt,
        streams=calls.stream,
        shares_cache=calls.shares_cache,
        summary_window=config.policy_for(summary_model, name).window if summary_model else None,
        reasoning_effort=calls.reasoning_effort or "",
    )


def upstream_of(request: ChatRequest, config: Config) -> str:
    """The name of the upstream that a request goes to, by its model."""
    return config.rule_for(request.model).upstream or DEFAULT
