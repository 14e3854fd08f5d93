"""The demonstration's upstream: a strict chat-completions server with a small window and no model behind it.

Rules. It serves on 127.0.0.1 alone. It refuses by `rules` what the real servers refuse, counts for itself, and answers
from `standin`. Every chat request is logged with its body before it is answered; the log is the caller's to read.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from proxy.demo.counting import Count, Fields, fields_of
from proxy.demo.refusals import NOT_JSON
from proxy.demo.replies import Message, chunks, completion, model_list, sse, usage, usage_chunk
from proxy.demo.rules import Accepted, Memory, Refusal, Temper, judge, remembering
from proxy.demo.standin import reply

_MOST_BYTES = 1 << 30
"""A demonstration of long histories is not the place for aiohttp's limit of 1 MiB a body."""

_GRACE = 1.0
"""Seconds that answers under way have when the server stops."""


@dataclass(frozen=True, slots=True)
class Served:
    """One chat request. `body`: as received, decompressed; `prompt_tokens`: None when it was refused."""

    body: bytes
    status: int
    prompt_tokens: int | None


class DemoUpstream:
    """`async with DemoUpstream(window=6000, count=...) as upstream:` serves at `upstream.base_url`.

    window       tokens, prompt and answer together
    count        tokens of a text
    steps        tool calls in one turn before the stand-in answers in text
    models       what `GET /v1/models` lists
    tells_window whether it lists them with `max_model_len`
    """

    def __init__(
        self,
        *,
        window: int,
        count: Count,
        temper: Temper = Temper.OPENAI,
        steps: int = 12,
        models: Sequence[str] = ("demo-model",),
        tells_window: bool = False,
        port: int = 0,
    ) -> None:
        self.window, self.temper, self.steps = window, temper, steps
        self.models, self.tells_window = models, tells_window
        self.port = port
        self.log: list[Served] = []
        self._count = remembering(count)
        self._memory = Memory()
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list_models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response(model_list(self.models, self.window if self.tells_window else None))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = _decoded(raw)
        verdict = NOT_JSON if body is None else self._judge(body)
        match verdict:
            case Refusal():
                self.log.append(Served(raw, verdict.status, None))
                return web.json_response(verdict.body, status=verdict.status)
            case Accepted():
                self.log.append(Served(raw, 200, verdict.prompt_tokens))
                return await self._answer(request, body or {}, verdict.prompt_tokens)

    def _judge(self, body: Fields) -> Accepted | Refusal:
        return judge(body, window=self.window, count=self._count, temper=self.temper, memory=self._memory)

    async def _answer(self, request: web.Request, body: Fields, prompt_tokens: int) -> web.StreamResponse:
        message, is_cut = reply(body, steps=self.steps, count=self._count)
        spent = usage(prompt_tokens, self._spoken(message))
        finish = "length" if is_cut else None
        model = str(body.get("model"))
        if not body.get("stream"):
            return web.json_response(completion(message, usage=spent, model=model, finish=finish))
        events = chunks(message, model=model, finish=finish)
        if fields_of(body.get("stream_options")).get("include_usage"):
            events = [*({**event, "usage": None} for event in events), usage_chunk(spent, model=model)]
        return await _stream(request, sse(events))

    def _spoken(self, message: Message) -> int:
        calls = message.get("tool_calls")
        return self._count(str(message.get("content") or "")) + (
            self._count(json.dumps(calls)) if calls else 0
        )


async def _stream(request: web.Request, events: Sequence[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with contextlib.suppress(ConnectionError):  # whoever left needs no answer
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
    return response


def _decoded(raw: bytes) -> Fields | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
