"""Every option: its name, kind, unit, what it does, and why one would change it.

Rules. An option has one row, here or in `model_options`; its default is that of the field of the same name in the
section's dataclass. The file, the command line, `describe` and the checks of config.example.yaml all go by this table,
so a row is all that a new option needs. Sentences are for the person who edits the file: they stand there word for
word.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from proxy.config import kinds, tls
from proxy.config.access import ADMIN, AUTH
from proxy.config.forms import Each, Option, Section
from proxy.config.model_options import MODELS
from proxy.config.presets import PRESETS
from proxy.config.prompt_file import PROMPT_FILE
from proxy.config.values import (
    DEFAULT,
    Checkpoints,
    Config,
    Discovery,
    LogFormat,
    LogLevel,
    LogOptions,
    NamedUpstream,
    SideCallLimits,
    SideCalls,
    Telemetry,
    Tenant,
    Tls,
    Upstream,
)

TLS: Final = Section(
    "tls",
    Tls,
    "How https connections to it are secured.",
    (
        Option(
            "ca_file",
            kinds.FILE,
            "Certificates of the authorities that are trusted, in place of the system's own; a PEM file.",
            "Set it for a server whose certificate a private authority has signed.",
        ),
        Option(
            "cert_file",
            kinds.FILE,
            "The certificate that the proxy shows to the server; a PEM file, in which its key may stand too.",
            "Set it for a server that asks for client certificates.",
        ),
        Option(
            "key_file",
            kinds.FILE,
            "The private key of cert_file, without a password; a PEM file.",
            "Set it where the key stands in a file of its own.",
        ),
        Option(
            "verify",
            kinds.SWITCH,
            "Whether the server's certificate is verified.",
            "Set it to false for a short trial alone: anyone on the way could read keys and chats.",
        ),
    ),
    check=tls.problem,
)

UPSTREAM: Final = Section(
    "upstream",
    Upstream,
    "The server with the model behind.",
    (
        Option(
            "base_url",
            kinds.URL,
            "Address of its API, up to and including /v1. Behind a Unix socket: http+unix://%2Frun%2Fllama.sock/v1,"
            " with %2F for each / of the socket's path.",
            "Set it to your own server or provider.",
        ),
        Option(
            "api_key",
            kinds.SECRET,
            "Credential for requests that come without one; a client's own always wins. Empty means none. No other"
            " upstream is ever sent it; and one that a rule chose, rather than the path, is never sent a client's.",
            "Set it when clients shall not hold the key themselves.",
        ),
        Option(
            "connect_timeout",
            kinds.DURATION,
            "How long a connection to it may take to open.",
            "Raise it for a slow network.",
        ),
        Option(
            "idle_timeout",
            kinds.DURATION,
            "How long it may stay silent, before the first byte of its answer or between two.",
            "Raise it for a model that reads long prompts slowly.",
        ),
        Option(
            "slots",
            kinds.whole(at_least=1),
            "How many requests it works on at the same time. Left out means 1 for a server on this machine. With 1 no"
            " summary is written in the background, which would keep the client waiting and cost its prompt cache.",
            "Set it when your local server has more, or a remote one has only 1.",
            unit="requests",
        ),
        Option(
            "trust_env",
            kinds.SWITCH,
            "Whether HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY of the environment hold, for side calls as well.",
            "Set it to true where the way out is through an HTTP proxy.",
        ),
        Option(
            "preset",
            kinds.one_of(PRESETS, "preset"),
            "The kind of server, which sets what its kind is known to need where a rule of models says nothing else;"
            " check shows what that is.",
            "Name it for a server out of the list; all others need nothing set.",
        ),
        TLS,
    ),
)


def _unusable_name(
    named: Mapping[str, Any], before: Sequence[Mapping[str, Any]], _: Mapping[str, Any]
) -> tuple[str, str] | None:
    name = named.get("name")
    if name == DEFAULT:
        return "name", f"is taken: {DEFAULT} names the section upstream"
    if name is not None and any(each.get("name") == name for each in before):
        return "name", "is the name of an earlier one; each needs its own"
    return None


UPSTREAMS: Final = Section(
    "upstreams",
    Upstream,
    "Further servers beside upstream, each with its own key and connections. Requests reach one by its name in front of"
    " the path, as in http://127.0.0.1:8787/openai/v1, or by the rule of their model. All else goes to upstream.",
    UPSTREAM.members,
    each=Each(
        NamedUpstream,
        (
            Option(
                "name",
                kinds.LABEL,
                "What paths and rules call it. A path that begins with it is this server's, without the name; its own"
                " rules alone and those without an upstream hold there.",
                "Take a short one that begins no path of the main server.",
            ),
        ),
        "options",
        _unusable_name,
    ),
    like="upstream",
)

TENANT: Final = Section(
    "tenant",
    Tenant,
    "Who shares what is remembered with whom: requests with the same credential.",
    (
        Option(
            "header",
            kinds.HEADER,
            "The request header that tells tenants apart. Empty means the credential itself.",
            "Set it where credentials rotate, to a header that your gateway sets and clients cannot.",
        ),
        Option(
            "secret",
            kinds.SECRET,
            "Key of the digest that stands for a tenant in a store. Empty means a digest without a key.",
            "Set it, alike on all replicas, where others can read the store.",
        ),
    ),
)

LOG: Final = Section(
    "log",
    LogOptions,
    "One event for each request: counts only, neither text nor keys.",
    (
        Option(
            "level",
            kinds.choice(LogLevel),
            "The least severe event that is written: debug, info, warning or error.",
            "Take warning to leave out the event of each request.",
            needs_restart=True,
        ),
        Option(
            "format",
            kinds.choice(LogFormat),
            "console for people, json for machines, auto for console on a terminal and json elsewhere.",
            "Take json where a collector reads a terminal.",
            needs_restart=True,
        ),
    ),
)


TELEMETRY: Final = Section(
    "telemetry",
    Telemetry,
    "Traces of requests by OpenTelemetry, for which the package's extra otel has to be installed: counts and fixed"
    " words, neither text nor keys.",
    (
        Option(
            "otlp_endpoint",
            kinds.COLLECTOR,
            "Base URL of the collector that gets them, by OTLP over HTTP. Left out,"
            " OTEL_EXPORTER_OTLP_ENDPOINT of the environment holds, and without that there are no traces.",
            "Set it to see where the time of a request goes, among the spans of your other services.",
            needs_restart=True,
        ),
        Option(
            "service_name",
            kinds.NAME,
            "The name under which they appear; OTEL_SERVICE_NAME of the environment holds where it is left out.",
            "Set it to tell several proxies apart.",
            needs_restart=True,
        ),
    ),
)


def _unused_tls(side_calls: Mapping[str, Any]) -> tuple[str, str] | None:
    if Tls(**side_calls.get("tls", {})) != Tls() and side_calls.get("base_url") is None:
        return "tls", "is of no use without a base_url here; upstream.tls holds for the main calls' server"
    return None


PER_HOUR: Final = Section(
    "per_hour",
    SideCallLimits,
    "The most that side calls take in an hour; beyond it requests go on with the next step. Each worker"
    " counts for itself. Left out, there is no limit.",
    (
        Option(
            "calls",
            kinds.whole(at_least=1),
            "Side calls of everybody together; what is tried again counts once.",
            "Set it where an account is limited to so many requests.",
            unit="calls",
        ),
        Option(
            "tokens",
            kinds.whole(at_least=1),
            "Tokens of everybody together, read and written.",
            "Set it where tokens are dear.",
            unit="tokens",
        ),
        Option(
            "tenant_calls",
            kinds.whole(at_least=1),
            "Side calls of one tenant.",
            "Set it so that none takes the share of the others.",
            unit="calls",
        ),
        Option(
            "tenant_tokens",
            kinds.whole(at_least=1),
            "Tokens of one tenant, read and written.",
            "Set it so that none spends the share of the others.",
            unit="tokens",
        ),
    ),
)

SIDE_CALLS: Final = Section(
    "side_calls",
    SideCalls,
    "The proxy's own requests for a summary. What is left out is as in the main call. Without a base_url here, api_key"
    " and model hold for upstream alone, and not for upstreams.",
    (
        Option(
            "deadline",
            kinds.DURATION,
            "How long a request waits for its summary, all attempts together; then it goes on without. Left out means"
            " 2m where a server on this machine writes it, and 30s elsewhere.",
            "Raise it for a slow model, lower it for impatient clients.",
        ),
        Option(
            "attempts",
            kinds.whole(at_least=1),
            "How often a summary is tried within the deadline.",
            "Lower it where calls are dear.",
            unit="tries",
        ),
        Option(
            "base_url",
            kinds.URL,
            "Another server that writes the summaries; it is never sent a client's credential.",
            "Set it to spare the main server.",
        ),
        Option(
            "api_key",
            kinds.SECRET,
            "Credential of side calls. Empty means the main call's own, or none when there is a base_url here.",
            "Set it when summaries are paid from another account.",
        ),
        Option(
            "model",
            kinds.NAME,
            "The model that writes the summaries.",
            "Set it to a cheaper or faster one.",
        ),
        Option(
            "reasoning_effort",
            kinds.NAME,
            "Sent with side calls as it is; left out, nothing is sent.",
            "Set it low for a model that thinks too long over a summary.",
        ),
        Option(
            "stream",
            kinds.SWITCH,
            "Whether the summary is asked for as a stream, which no gateway takes for an idle connection.",
            "Set it to false for a server that cannot stream.",
        ),
        Option(
            "stall",
            kinds.DURATION,
            "How long such a stream may be silent once it has begun; then the call is tried again.",
            "Raise it for a server that pauses between words.",
        ),
        Option(
            "prompt_file",
            PROMPT_FILE,
            "A file with the instructions to the model that writes the summaries, in place of the built-in ones; in it"
            " {words} becomes their length, {update} what is said of an earlier one. A model's summary.prompt goes"
            " first.",
            "Set it when your field needs other things remembered.",
        ),
        PER_HOUR,
        TLS,
    ),
    check=_unused_tls,
)

DISCOVERY: Final = Section(
    "discovery",
    Discovery,
    "Windows that are not configured are asked of the upstream: its list of models first, then what else its kind of"
    " server answers.",
    (
        Option(
            "enabled",
            kinds.SWITCH,
            "Whether the upstream is asked. If not, an unknown window is learned from the first refusal.",
            "Set it to false for an upstream that counts or forbids other requests than chats.",
        ),
        Option(
            "wait",
            kinds.DURATION,
            "The longest that a request waits for an answer; it then goes on with the window unknown, and the next one"
            " finds it.",
            "Raise it for an upstream that is far away or slow to answer.",
        ),
        Option(
            "refresh",
            kinds.DURATION,
            "After how long a window that was found is asked for anew, in the background.",
            "Lower it where models are loaded with changing windows.",
        ),
        Option(
            "annotate",
            kinds.SWITCH,
            "Adds to each entry of the upstream's list of models the window that the proxy goes by, as"
            " context_length.",
            "Set it to true for clients that read the window from the list.",
        ),
    ),
)

CHECKPOINTS: Final = Section(
    "checkpoints",
    Checkpoints,
    "Bounds of what is remembered. A checkpoint is a few KB; one that is gone is worked out again.",
    (
        Option(
            "max_entries",
            kinds.whole(at_least=1),
            "The most checkpoints that a memory or sqlite store keeps; the longest unused go first. With redis it"
            " bounds the copy that each process keeps for when the server is down.",
            "Raise it for many conversations at once.",
            unit="checkpoints",
            needs_restart=True,
        ),
        Option(
            "max_bytes",
            kinds.SIZE,
            "The most bytes of checkpoints, in the same places. What a redis server holds is bounded by its maxmemory.",
            "Raise it for summaries that are long.",
            needs_restart=True,
        ),
        Option(
            "max_age",
            kinds.DURATION,
            "How long a checkpoint is kept after its last use, in every store.",
            "Lower it when nothing may be remembered for long.",
            needs_restart=True,
        ),
    ),
)

ROOT: Final = Section(
    "",
    Config,
    "",
    (
        Option(
            "listen",
            kinds.ADDRESS,
            'HOST:PORT where the proxy listens; IPv6 needs quotes: "[::1]:8787". Or unix:/run/transom.sock, a Unix'
            " socket; its file is open to its owner, and to its group where the umask lets the group write.",
            "Widen it to let other machines in, and set auth.tokens: without them all who reach it can use"
            " upstream.api_key.",
            needs_restart=True,
        ),
        UPSTREAM,
        UPSTREAMS,
        Option(
            "store",
            kinds.STORE,
            "Where checkpoints are kept: memory (until the process ends), sqlite:///transom.db (a file, kept across"
            " restarts and shared by the processes of one machine; a path from the root has four slashes, as in"
            " sqlite:////var/lib/transom.db), redis://user:password@host:6379/0 (Redis or Valkey, shared by all"
            " replicas) or rediss:// (the same over TLS).",
            "Take sqlite to survive restarts, redis for replicas.",
            needs_restart=True,
        ),
        Option(
            "workers",
            kinds.whole_or_auto(),
            "How many processes serve at the address, each on a core of its own; auto is one for each core. What they"
            " remember they share through the store, which has to be sqlite or redis where there are several.",
            "Raise it where one process has no processor time left.",
            unit="processes",
            needs_restart=True,
        ),
        Option(
            "max_body",
            kinds.SIZE,
            "The largest request body; a larger one is answered with 413, and a compressed one that would decode"
            " to more is forwarded unmanaged.",
            "Lower it where memory is short.",
        ),
        Option(
            "client_idle_timeout",
            kinds.DURATION,
            "How long a client may stay silent in the middle of its request's body; then it is answered with 408.",
            "Raise it for clients that send live audio with long pauses.",
        ),
        Option(
            "manage_deadline",
            kinds.DURATION,
            "How long looking up and measuring one request may take; then it goes on as the client sent it, marked"
            " bypass=deadline. Waiting for a summary and for the upstream does not count.",
            "Raise it for a slow machine and very long histories, lower it for impatient clients.",
        ),
        Option(
            "ready_needs_upstream",
            kinds.SWITCH,
            "Whether GET /-/readyz answers 503 while the upstream does not answer, for which its list of models is"
            " asked once every few seconds at most.",
            "Set it to true where a balancer can send requests to a proxy before another server.",
        ),
        Option(
            "capture",
            kinds.SWITCH,
            "Whether the newest requests are kept with their text, in memory alone, so that the page at /-/ can show"
            " each as it came beside what was forwarded. At most 50 of them, and 32 MiB.",
            "Set it to true to see what a compaction did to a conversation.",
        ),
        AUTH,
        ADMIN,
        TENANT,
        LOG,
        TELEMETRY,
        SIDE_CALLS,
        DISCOVERY,
        CHECKPOINTS,
        MODELS,
    ),
)

FLAGS: Final = MappingProxyType(
    {"listen": "listen", "upstream": "upstream.base_url", "store": "store", "window": "models[].window"}
)
"""Command-line flags, and the option that each sets; a flag for models sets it in every rule."""

VARIABLES: Final = MappingProxyType(
    {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "telemetry.otlp_endpoint",
        "OTEL_SERVICE_NAME": "telemetry.service_name",
    }
)
"""Variables of the environment that others have named, and the option that each sets where nobody else does."""


def walk(
    section: Section = ROOT, prefix: str = "", *, echoes: bool = True
) -> Iterator[tuple[str, Section, Option]]:
    """Every option with its dotted name (`models[].elide.keep`) and its section, in the order of the table.

    `echoes`: also those of a section that is like another one.
    """
    for entry in section.entries:
        match entry:
            case Option():
                yield f"{prefix}{entry.name}", section, entry
            case Section(like="") | Section(each=None):
                yield from walk(entry, f"{prefix}{entry.key}.", echoes=echoes)
            case Section(each=Each() as each):
                if echoes:
                    yield from walk(entry, f"{prefix}{entry.key}.")
                else:
                    yield from (
                        (f"{prefix}{entry.key}.{option.name}", entry, option) for option in each.options
                    )
