"""HTTP in and out: takes requests, drives the exchange of each that is managed, streams all others through.

Rules. Nothing is decided here about a conversation. Every path and method is served; what is ours lies under `/-/`.
A request that is not managed is never buffered, and one that is goes on with the client's very bytes when anything of
ours fails, or takes too long, before an answer began: the one blind `except` is here and nowhere else. When the client
leaves, everything that was done for it ends.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

from aiohttp import hdrs, web
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from proxy.config import Config, Tenant
from proxy.context.budget import Window
from proxy.context.policy import Mode, ModelPolicy
from proxy.context.rawjson import NotJSON
from proxy.context.reader import Reader
from proxy.context.tokens import encoding_for
from proxy.edge import admin, encodings, headers, tunnel
from proxy.edge.afterwards import Afterwards
from proxy.edge.compacting import compacted
from proxy.edge.connections import Ends
from proxy.edge.downstream import ClientGone, Downstream, relay
from proxy.edge.encodings import Received, Undecodable
from proxy.edge.gate import Admitted, Door, Gate
from proxy.edge.measuring import measured
from proxy.edge.metrics import Metrics
from proxy.edge.performer import Measures, Overdue, Performer, Remembers, in_time
from proxy.edge.routes import Routes, Site
from proxy.edge.sidecalls import Origin
from proxy.edge.turns import in_turns
from proxy.edge.upstream import Body, Reply, Upload, next_piece
from proxy.edge.visit import Teller, Visit
from proxy.edge.windows import MODEL_CHARACTERS, Annotator, Windows
from proxy.errors import (
    BadBody,
    BodyTooLarge,
    ClientStalled,
    LoopDetected,
    NoChatRequest,
    StoreUnavailable,
    TransomError,
)
from proxy.exchange import Compaction, Measurement, Terms, compact, manage, measure
from proxy.wire import chat, model_list
from proxy.wire.chat import ChatRequest, NotManaged

LAST_SECOND: Final = 1.0
"""Seconds for what is left after the grace time, which is nothing but what ignores its cancellation."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the composition root hands over.

    `memories` gives those of the upstream of this name, `store_answers` says whether the store does, now.
    `worker` is which one this process is, of how many, `ends` where its own calls come from, `afterwards` has done what
    can wait.
    """

    tokenizer: Measures
    memories: Callable[[str], Remembers]
    log: FilteringBoundLogger
    metrics: Metrics
    store_answers: Callable[[], bool]
    worker: tuple[int, int] = (1, 1)
    ends: Ends = field(default_factory=Ends)
    afterwards: Afterwards = field(default_factory=Afterwards)


_BACK: Final = (
    "This request has come back to the proxy that sent it on: upstream.base_url in its configuration leads to the"
    " proxy's own address. Set it to the server with the model behind."
)


class Server:
    """Answers requests by one configuration.

    Where no rule of the configuration manages anything, no body is read before it goes on.
    """

    def __init__(
        self, config: Config, sites: Mapping[str, Site], log: FilteringBoundLogger, reader: Reader
    ) -> None:
        self._config = config
        self._sites = sites
        self._routes = Routes(config, sites)
        self._around = around = self._routes.default.around
        self._log = log
        self._reader = reader
        self._gate = Gate(config, Door.CLIENTS if config.admin.listen else Door.ALL)
        self._own_gate = Gate(config, Door.OWN)
        self._running: set[asyncio.Task[object]] = set()
        self._stopping = False
        self._windows = {
            name: Windows(config, log.bind(upstream=name) if len(sites) > 1 else log, name) for name in sites
        }
        self._teller = Teller(log, around, self._windows)
        self._tracing = around.tracing
        self._explains = log.is_enabled_for(logging.DEBUG)
        self._unmanaged: set[str] = set()
        self._tenants = Tenants(config.tenant)
        self._heads = headers.Heads()
        self._usual_terms = lru_cache(maxsize=4096)(self._made_terms)

    def handle(self, request: web.BaseRequest) -> Awaitable[Downstream]:
        """Answer one request; the library calls this for each, one after the other on a connection."""
        return self._handle(request, self._gate)

    def handle_own(self, request: web.BaseRequest) -> Awaitable[Downstream]:
        """The same at the address that is for our own endpoints."""
        return self._handle(request, self._own_gate)

    async def _handle(self, request: web.BaseRequest, gate: Gate) -> Downstream:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        visit = self._visit(request, gate)
        self._teller.begun(visit)
        try:
            await self._answer(visit)
        except ClientGone:
            visit.reason = "client_gone"
        except asyncio.CancelledError:
            visit.reason = "stopped" if self._stopping else "client_gone"
            raise
        finally:
            self._running.discard(task)
            self._teller.ended(visit)
        return visit.client

    def stop(self) -> None:
        """Let each answer from now on be the last one of its connection."""
        self._stopping = True

    async def drain(self, grace: float) -> None:
        """Let running requests end, for so many seconds; then end them."""
        clock = self._around.clock
        end = clock() + grace
        await asyncio.sleep(0)  # what has just been accepted begins
        while self._running and (left := end - clock()) > 0:
            await asyncio.wait(set(self._running), timeout=left)
        late = set(self._running)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=LAST_SECOND)

    async def finished(self) -> None:
        """Wait until no request runs here."""
        while self._running:
            await asyncio.wait(set(self._running))

    def _visit(self, request: web.BaseRequest, gate: Gate) -> Visit:
        path, query = headers.split_target(request.raw_path)
        raw = self._heads.of(request.raw_headers)
        client = Downstream(request, headers.request_id(raw) or os.urandom(8).hex())
        if self._stopping:
            client.close_after()
        site, named, path = self._routes.by_path(path)
        origin, began = Origin(raw, path, query), self._around.stopwatch()
        return Visit(request, gate, client, origin, began, site, named, mode=self._asked_mode(raw, named))

    def _asked_mode(self, raw: headers.RawHeaders, named: str | None) -> Mode | None:
        asked = headers.find(raw, headers.MODE_HEADER)
        if asked is None:
            return self._routes.mode(named)
        try:
            return Mode(asked.decode("latin-1").strip().lower())
        except ValueError:
            self._log.warning("mode_header_ignored", allowed=[str(mode) for mode in Mode])
            return None

    async def _answer(self, visit: Visit) -> None:
        try:
            self._admit(visit)
            try:
                await self._course(visit)
            except Exception as fault:  # the one door
                if _is_an_answer(fault):
                    raise
                await self._fail_open(visit, self._blame(visit, fault))
            finally:
                if visit.performer is not None:
                    visit.performer.close()
                    visit.spent |= visit.performer.spent
        except TransomError as error:
            visit.reason = error.code
            if isinstance(error, ClientStalled):
                visit.client.close_after()
            await visit.client.refuse(error)

    def _admit(self, visit: Visit) -> None:
        """Outside of the one door: where this fails, nobody comes in."""
        request, origin = visit.request, visit.origin
        try:
            if self._around.ends.brought(request.transport) and not admin.is_own(request.path):
                raise LoopDetected(_BACK)  # before tokens, which were taken out when it was sent
            visit.admitted = visit.gate.admit(visit.method, request.raw_path, origin.fields)
        except TransomError:
            if request.body_exists:
                visit.client.close_after()  # the body is of no interest
            raise
        if visit.admitted.fields is not origin.fields:
            fields = self._heads.of(visit.admitted.fields)
            visit.admitted = structs.replace(visit.admitted, fields=fields)
            visit.origin = structs.replace(origin, fields=fields)

    def _blame(self, visit: Visit, fault: Exception) -> str:
        """The word for a fault of ours, which is logged."""
        doing = visit.performer.doing if visit.performer else "internal_error"
        named = {"request_id": visit.client.request_id, "doing": doing}
        if isinstance(fault, Overdue):
            self._log.warning("manage_deadline_passed", **named)
            return "deadline"
        self._log.error("internal_error", **named, exc_info=fault)
        return doing

    def _course(self, visit: Visit) -> Coroutine[Any, Any, None]:
        """What is to be done with it, to be awaited."""
        path, method = visit.origin.path, visit.method
        if admin.is_own(path):
            return self._answer_ourselves(visit)
        if method == hdrs.METH_CONNECT:
            return self._cannot(visit, "This is no proxy for tunnels.")
        if not headers.is_framed_plainly(visit.origin.fields):
            return self._cannot(visit, "This body is in a transfer coding other than chunked.")
        if method == hdrs.METH_POST and chat.is_chat_path(path) and visit.mode is not Mode.OFF:
            return self._manage(visit)
        if tunnel.is_asked_for(visit.request):
            return self._tunnel(visit)
        return self._pass_unmanaged(visit)

    async def _answer_ourselves(self, visit: Visit) -> None:
        path, holder = visit.origin.path, visit.admitted.holder
        self._around.afterwards.settle()
        around = replace(self._around, ledger=self._around.ledger.of(holder))
        chat_body = partial(self._measurement, visit), partial(self._compaction, visit)
        summaries = tuple(site.around.summaries for site in self._sites.values())
        asked = admin.Asked(path, holder, around, summaries, *chat_body)
        await admin.answer(visit.method, asked, visit.client)

    async def _pass_unmanaged(self, visit: Visit) -> None:
        self._note_unmanaged(visit)
        await self._pass(visit, await self._upload(visit))

    async def _cannot(self, visit: Visit, why: str) -> None:
        visit.client.close_after()
        await visit.client.say(501, chat.error_body(why, "invalid_request_error", "not_implemented"))

    async def _measurement(self, visit: Visit) -> Measurement:
        """What this chat request measures; nothing is sent for that. Raises NoChatRequest and BodyTooLarge."""
        request, terms = await self._handed_in(visit)
        around = visit.site.around
        return await measured(measure(request, terms), around.memories, around.tokenizer)

    async def _compaction(self, visit: Visit) -> Compaction:
        """This chat request's messages with a summary in them. Raises NoChatRequest and BodyTooLarge."""
        request, terms = await self._handed_in(visit)
        who = f"{terms.tenant}:{request.model}"
        return await compacted(compact(request, terms), visit.site.around, visit.origin, who)

    async def _handed_in(self, visit: Visit) -> tuple[ChatRequest, Terms]:
        """The chat request, or list of messages, that an endpoint of ours is asked about, and what holds for it.

        Raises NoChatRequest and BodyTooLarge.
        """
        try:
            _, request = await self._read(visit, await self._whole_body(visit), chat.with_messages)
        except (Undecodable, NotManaged, NotJSON) as odd:
            reason = "not_json" if isinstance(odd, NotJSON) else odd.reason
            raise NoChatRequest(
                f"This body is no chat request ({reason}): send what you would send to /chat/completions, or the list"
                " of its messages."
            ) from odd
        return request, self._terms(visit, request.model, self._turn(visit, request.model))

    # --- managed ----------------------------------------------------------------------------------------------

    async def _read(
        self, visit: Visit, body: bytes, form: Callable[[bytes], bytes] = bytes
    ) -> tuple[Received, ChatRequest]:
        """The body as it can be read, and the request in it; `form` makes one of what was sent.

        Raises Undecodable and NotManaged.
        """
        codings = headers.codings(visit.origin.fields)
        received = Received(body, body)
        if codings:
            received = await encodings.received(body, codings, self._config.max_body)
        return received, await in_turns(chat.reading(form(received.plain), self._reader))

    async def _manage(self, visit: Visit) -> None:
        visit.body = body = await self._whole_body(visit)
        began, until = self._around.stopwatch(), self._around.clock() + self._around.deadline
        try:
            received, request = await in_time(self._read(visit, body), until)
        except (Undecodable, NotManaged) as odd:
            visit.bypass = odd.reason
            await self._choose(visit, body)
            await self._pass(visit, body)
            return
        visit.model, visit.plain = request.model, received.plain
        policy = self._turn(visit, request.model)
        visit.mode = mode = visit.mode or policy.mode
        if mode is Mode.OFF:
            await self._pass(visit, body)
            return
        terms = self._terms(visit, request.model, policy)
        who = f"{terms.tenant}:{request.model}"
        around = visit.site.around
        performer = Performer(around, visit.origin, received, visit.client, policy.calibration, who)
        visit.performer = performer
        course = manage(request, terms)
        if self._tracing is not None:
            course = self._tracing.followed(course)
        with around.summaries.main_call():
            verdict = await performer.run(course, began)
        visit.upstream_status = verdict.status
        if not verdict.complete:
            visit.reason = "upstream_broke"
        visit.outcome, visit.tenant = verdict, terms.tenant

    def _turn(self, visit: Visit, model: str) -> ModelPolicy:
        """Turn to the upstream of this model, where the path names none; what holds for it there."""
        rule = self._routes.rule(model, visit.named)
        if visit.named is None and (site := self._routes.by_rule(rule)) is not visit.site:
            visit.site = site
            own = self._heads.of(headers.without_credentials(visit.origin.fields))
            visit.origin = structs.replace(visit.origin, fields=own)
        return rule.policy_at(visit.site.name)

    async def _choose(self, visit: Visit, body: bytes) -> None:
        """The same for a body that is not managed, as far as it can be read."""
        if visit.named is not None or not self._routes.needs_model:
            return
        plain = b""
        with suppress(Undecodable):
            codings = headers.codings(visit.origin.fields)
            plain = (await encodings.received(body, codings, self._config.max_body)).plain
        self._turn(visit, chat.model_in(plain))

    def _terms(self, visit: Visit, model: str, policy: ModelPolicy) -> Terms:
        tenant = self._tenants.of(visit.admitted)
        told = None if policy.window else visit.site.around.discovery.known(f"{tenant}:{model}")
        terms = self._usual_terms if len(model) <= MODEL_CHARACTERS else self._made_terms
        return terms(model, visit.named, visit.site, visit.mode, tenant, told)

    def _made_terms(
        self, model: str, named: str | None, site: Site, mode: Mode | None, tenant: str, told: Window | None
    ) -> Terms:
        """What holds for a model at a site; it is the same for all of a tenant's requests."""
        policy = self._routes.rule(model, named).policy_at(site.name)
        side_calls = site.side_calls
        summary_model = side_calls.model or ""
        summary_policy = self._config.policy_for(summary_model, site.name) if summary_model else None
        return Terms(
            policy=policy,
            mode=mode or policy.mode,
            upstream=site.options.base_url,
            tenant=tenant,
            count=partial(self._around.tokenizer.count, encoding=encoding_for(model)),
            told=told,
            summary_model=summary_model,
            summary_prompt=side_calls.prompt,
            streams=side_calls.stream,
            shares_cache=side_calls.shares_cache,
            summary_window=summary_policy.window if summary_policy else None,
            reasoning_effort=side_calls.reasoning_effort or "",
            explains=self._explains,
        )

    async def _fail_open(self, visit: Visit, why: str) -> None:
        """After a fault of ours: the client's own request goes on as it came, if that is still possible.

        Where the upstream has refused a prompt already, its refusal is the answer.
        """
        client = visit.client
        if client.complete:
            return
        if client.started:
            visit.reason = why
            client.break_off()
        elif visit.body is not None:
            visit.bypass, visit.actions = why, f"bypass={why}"
            added = (("x-context-actions", visit.actions),)
            if not visit.model:
                await self._choose(visit, visit.body)
            if not (visit.performer and await visit.performer.fall_back(added)):
                await self._pass(visit, visit.body, added)
        else:
            visit.reason = why
            await client.refuse(TransomError("The proxy failed on this request; its log says where."))

    # --- passed through ---------------------------------------------------------------------------------------

    async def _pass(self, visit: Visit, body: Body, added: tuple[tuple[str, str], ...] = ()) -> None:
        around, origin = visit.site.around, visit.origin
        length = len(body) if isinstance(body, bytes) else None
        annotates, key = self._annotates(visit), self._key_for(visit)
        fields = headers.for_upstream(origin.fields, length=length, unencoded=annotates, key=key)
        url = headers.join(around.base, origin.path, origin.query)
        began = around.stopwatch()
        call = around.upstream.call(visit.method, url, fields, body)
        try:
            reply = await (call if self._tracing is None else self._tracing.called(call))
        except TransomError as cause:
            if isinstance(visit.request.content.exception(), web.RequestPayloadError):
                raise _bad_body(visit) from cause
            raise
        finally:
            visit.spent["send"] = around.stopwatch() - began
        visit.upstream_status = reply.status
        try:
            rewrites = annotates and reply.status == 200 and not headers.is_encoded(reply.headers)
            tap = self._annotator(visit) if rewrites else None
            relaying = relay(reply, visit.client, added=added, tap=tap, rewrites=rewrites)
            if not await (relaying if self._tracing is None else self._tracing.relayed(relaying)):
                visit.reason = "upstream_broke"
        finally:
            reply.close()

    def _annotates(self, visit: Visit) -> bool:
        is_list = visit.method == hdrs.METH_GET and model_list.is_model_list(visit.origin.path)
        return is_list and self._config.discovery.annotate and visit.mode is not Mode.OFF

    def _annotator(self, visit: Visit) -> Annotator:
        self._around.afterwards.settle()  # windows that requests before this one went by
        return self._windows[visit.site.name].annotator(self._tenants.of(visit.admitted))

    def _key_for(self, visit: Visit) -> str:
        return visit.site.around.key if visit.admitted.may_use_key else ""

    async def _tunnel(self, visit: Visit) -> None:
        """A request for a WebSocket: where the upstream answers with 101, bytes both ways until one end closes."""
        around, origin = visit.site.around, visit.origin
        visit.client.close_after()  # what the client sends behind such a request is never taken for another one
        fields = headers.for_upgrade(origin.fields, key=self._key_for(visit))
        reply = await around.upstream.upgrade(headers.join(around.base, origin.path, origin.query), fields)
        visit.upstream_status = reply.status
        try:
            if reply.status == 101:
                await self._carry(visit, reply)
            elif not await relay(reply, visit.client):
                visit.reason = "upstream_broke"
        finally:
            reply.close()

    async def _carry(self, visit: Visit, reply: Reply) -> None:
        await visit.client.switch(reply.reason, headers.for_switch(reply.headers))
        client, upstream = tunnel.end_of_client(visit.request), tunnel.end_of_upstream(reply)
        try:
            await tunnel.carry(client, upstream)
            visit.client.complete = True
        finally:
            visit.received_bytes, visit.client.sent_bytes = client.received, upstream.received

    def _note_unmanaged(self, visit: Visit) -> None:
        path = visit.origin.path
        if visit.method != hdrs.METH_POST or not chat.is_generating_path(path):
            return
        endpoint = path.rstrip("/").rpartition("/")[2]
        visit.bypass = "endpoint_not_managed"
        self._around.metrics.note_unmanaged(endpoint)
        if endpoint not in self._unmanaged:
            self._unmanaged.add(endpoint)
            self._log.warning("endpoint_not_managed", endpoint=endpoint)

    # --- bodies -----------------------------------------------------------------------------------------------

    async def _upload(self, visit: Visit) -> Body:
        """The body as it comes, or whole where only the model in it says where it goes."""
        request = visit.request
        if not request.body_exists:
            return None
        if visit.named is None and self._routes.needs_model and _may_name_model(visit):
            visit.body = body = await self._whole_body(visit)
            await self._choose(visit, body)
            return body
        await visit.client.let_body_come()
        visit.upload = Upload(request.content, self._config.client_idle_timeout)
        return visit.upload

    async def _whole_body(self, visit: Visit) -> bytes:
        """The body of a request, within the configured limit. Raises BodyTooLarge, and ClientGone."""
        request, limit = visit.request, self._config.max_body
        content = request.content
        if content.is_eof() and content.exception() is None:  # nearly always all of it is there
            visit.received_bytes = content.total_bytes
            if visit.received_bytes > limit:
                raise self._too_large(visit)
            return content.read_nowait()
        if (request.content_length or 0) > limit:
            raise self._too_large(visit)
        if request.body_exists:
            await visit.client.let_body_come()
        pieces: list[bytes] = []
        try:
            while piece := await next_piece(content, self._config.client_idle_timeout):
                visit.received_bytes += len(piece)
                if visit.received_bytes > limit:
                    raise self._too_large(visit)
                pieces.append(piece)
        except web.RequestPayloadError as cause:
            raise _bad_body(visit) from cause
        except ConnectionError as cause:
            visit.client.break_off()
            raise ClientGone from cause
        return b"".join(pieces)

    def _too_large(self, visit: Visit) -> BodyTooLarge:
        visit.client.close_after()  # the rest of the body is of no interest
        return BodyTooLarge(
            f"The body of this request is over the {self._config.max_body} bytes that this proxy takes;"
            " max_body in its configuration sets the limit."
        )


def _bad_body(visit: Visit) -> BadBody:
    visit.client.close_after()  # nobody can tell where it would end
    return BadBody("The body of this request breaks off: it cannot be read as HTTP/1.1.")


def _is_an_answer(fault: Exception) -> bool:
    """Whether the client is to be told of it, or is gone: anything else is a fault of our own."""
    return isinstance(fault, TransomError | ClientGone) and not isinstance(fault, StoreUnavailable)


def _may_name_model(visit: Visit) -> bool:
    kind = headers.find(visit.origin.fields, b"content-type")
    return visit.method == hdrs.METH_POST and (kind is None or b"json" in kind.lower())


class Tenants:
    """Tells tenants apart by a keyed digest: no two share anything, and no store ever holds a credential (B117)."""

    def __init__(self, options: Tenant) -> None:
        self._name = options.header.lower().encode("latin-1")
        secret = options.secret.reveal().encode()[:64] if options.secret else b""
        self._state = hashlib.blake2b(key=secret, digest_size=16, person=b"transom tenant")

    def of(self, admitted: Admitted) -> str:
        """The tenant of a request.

        The holder of a token comes first: what a client says beside it can only divide what is the holder's.
        """
        # Who sends no such header is told apart by the credential: never are all of them one tenant.
        fields, holder = admitted.fields, admitted.holder
        said = (headers.find(fields, self._name) if self._name else None) or headers.credential(fields)
        state = self._state.copy()
        state.update(holder.encode() + b"\n" + said if holder else said)
        return state.hexdigest()
