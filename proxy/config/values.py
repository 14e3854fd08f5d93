"""What the configuration resolves to: frozen values and their defaults.

Rules. Nothing here reads a file, an environment or a command line. An option's default stands in the dataclass that
holds the option and nowhere else; what is decided per model stands in `proxy.context.policy`. Durations are seconds,
sizes bytes. A credential is held in a `Secret`, which shows itself to nobody who does not ask by name.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.context.policy import ModelPolicy
from proxy.errors import ConfigError

HIDDEN: Final = "(set, hidden)"
"""What stands for a credential wherever one would be shown."""

HIDDEN_USER: Final = "***"
"""What stands for user and password in a URL that is shown."""

ANY_MODEL: Final = "*"
"""The pattern that also matches a request without a model, or with one that is no text."""


class LogLevel(StrEnum):
    """The least severe event that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How an event is written. AUTO: CONSOLE on a terminal, else JSON."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class Secret:
    """A credential. Its repr, str and format are always the same words; `reveal` gives the text.

    Not a dataclass on purpose: `dataclasses.asdict` and serialisers that know dataclasses would open it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The credential itself."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))


class StoreURL:
    """Where checkpoints are kept. Its repr, str and format have `***` for user and password; `reveal` gives the text.

    One of `memory`, `sqlite:///relative`, `sqlite:////absolute`, `redis://[user:password@]host[:port][/database]` and
    the same with `rediss`.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The URL itself."""
        return self._text

    def __repr__(self) -> str:
        scheme, slashes, rest = self._text.partition("://")
        if "@" not in rest or scheme == "sqlite":
            return self._text
        return f"{scheme}{slashes}{HIDDEN_USER}@{rest.rpartition('@')[2]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreURL) and self._text == other._text

    def __hash__(self) -> int:
        return hash((StoreURL, self._text))


IN_MEMORY: Final = StoreURL("memory")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. `host` is a name or an address without brackets; port 0 takes any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A Unix socket to listen on."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def is_loopback(listen: Address | SocketFile) -> bool:
    """Whether only this machine can reach the address. A name other than localhost is taken for reachable."""
    if isinstance(listen, SocketFile):
        return True
    if listen.host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(listen.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


UNIX_SCHEME: Final = "http+unix"
"""Of the URL of a server behind a Unix socket, whose path stands percent-encoded in the place of the host."""


def is_on_this_machine(base_url: str) -> bool:
    """Whether a server is one of this machine, as far as its address tells."""
    parts = urlsplit(base_url)
    return parts.scheme == UNIX_SCHEME or is_loopback(Address(parts.hostname or "", 0))


def is_same_address(base_url: str, listen: Address | SocketFile) -> bool:
    """Whether a server's address is the one to listen at, as far as the two tell."""
    parts = urlsplit(base_url)
    if isinstance(listen, SocketFile) or parts.scheme == UNIX_SCHEME:
        return isinstance(listen, SocketFile) and unquote(parts.netloc) == str(listen.path)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    is_here = is_loopback(Address(host, 0)) and (listen.host in ("0.0.0.0", "::") or is_loopback(listen))  # noqa: S104
    return port == listen.port and (host == listen.host.lower() or is_here)


@dataclass(frozen=True, slots=True)
class Tls:
    """Secure connections to a server, by PEM files.

    ca_file    authorities that are trusted; None = the system's
    cert_file  our own certificate, with its key or that in key_file; None = none
    verify     whether the server's certificate is verified
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are named."""
        return tuple(filter(None, (self.ca_file, self.cert_file, self.key_file)))


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server with the model behind.

    base_url         http, https or http+unix, without credentials, query, fragment and trailing slash
    api_key          used only when the client sends no credential
    connect_timeout  seconds for a connection to open
    idle_timeout     seconds of silence, before the first byte or between two
    slots            requests that it works on at the same time; None = 1 on this machine, else unknown
    trust_env        whether the environment's HTTP proxies are used, for side calls too
    preset           the kind of server; it has set what rules of models leave out
    """

    base_url: str
    api_key: Secret | None = None
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    slots: int | None = None
    trust_env: bool = False
    preset: str | None = None
    tls: Tls = Tls()


DEFAULT: Final = "default"
"""The name of the upstream that needs none."""


@dataclass(frozen=True, slots=True)
class NamedUpstream:
    """A further upstream, which paths and rules name."""

    name: str
    options: Upstream


@dataclass(frozen=True, slots=True)
class TokensFile:
    """A file of tokens, as it was when the configuration was read; it shows its path alone."""

    path: str
    tokens: tuple[Secret, ...]

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of instructions, as it was when the configuration was read; it shows its path alone."""

    path: str
    text: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may use the proxy: whoever holds one of these tokens, and everybody where there are none."""

    tokens: tuple[Secret, ...] = ()
    tokens_file: TokensFile | None = None

    @property
    def accepted(self) -> tuple[Secret, ...]:
        """All tokens, wherever they stand."""
        return self.tokens + (self.tokens_file.tokens if self.tokens_file else ())


@dataclass(frozen=True, slots=True)
class Admin:
    """The proxy's own endpoints under `/-/`.

    listen  an address of their own; None = where everything else is answered
    hosts   names, in lower case, under which a browser may ask for them, beside localhost and the listening hosts
    """

    listen: Address | SocketFile | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares a summary with whom: requests of the same credential, or of the same value of a header.

    header  its name; empty = the credential
    secret  key of the digest that stands for either wherever something is stored; replicas need the same one
    """

    header: str = ""
    secret: Secret | None = None


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is written about requests, and how."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Traces of requests. otlp_endpoint: the base URL of the collector that gets them; None = there are none."""

    otlp_endpoint: str | None = None
    service_name: str = "transom"


@dataclass(frozen=True, slots=True)
class SideCallLimits:
    """The most that side calls take in an hour, in all and for one tenant; None = no limit."""

    calls: int | None = None
    tokens: int | None = None
    tenant_calls: int | None = None
    tenant_tokens: int | None = None


PATIENCE_ELSEWHERE: Final = 30.0
PATIENCE_HERE: Final = 120.0
"""Seconds that a request waits for a summary. On two cores a small model reads 250 tokens a second at best, so that
thousands take longer than one would wait for a server elsewhere; and some clients give up after five minutes."""


@dataclass(frozen=True, slots=True)
class SideCalls:
    """The proxy's own requests for a summary. None = as the main call: its upstream, credential, model.

    deadline          seconds that a request waits for its summary, all attempts together; None = see `patience`
    attempts          tries within the deadline
    base_url, api_key with a base_url of its own a side call carries this api_key or none, never the client's
    reasoning_effort  sent as it is; None = not sent
    stream            whether a stream is asked for, which gateways do not take for idle
    stall             seconds that a stream may be silent once it has begun
    """

    deadline: float | None = None
    attempts: int = 2
    base_url: str | None = None
    api_key: Secret | None = None
    model: str | None = None
    reasoning_effort: str | None = None
    stream: bool = True
    stall: float = 15.0
    prompt_file: PromptFile | None = None
    per_hour: SideCallLimits = SideCallLimits()
    tls: Tls = Tls()

    def patience(self, main: str) -> float:
        """The deadline, where main calls go to this URL: unless one is given, longer for a server of this machine."""
        if self.deadline is not None:
            return self.deadline
        return PATIENCE_HERE if is_on_this_machine(self.base_url or main) else PATIENCE_ELSEWHERE

    @property
    def shares_cache(self) -> bool:
        """Whether side calls go to the server and the model of the main calls, which may hold their prompts."""
        return self.base_url is None and self.model is None

    @property
    def prompt(self) -> str:
        """The instructions in the file, empty where there is none."""
        return self.prompt_file.text if self.prompt_file else ""


@dataclass(frozen=True, slots=True)
class Discovery:
    """Asking the upstream for the windows that are not configured; times are seconds.

    wait      the longest that a request waits for an answer
    refresh   after which a window that was found is asked for anew
    annotate  whether the windows gone by are added to the upstream's list of models
    """

    enabled: bool = True
    wait: float = 1.0
    refresh: float = 600.0
    annotate: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Bounds of what is remembered: so many checkpoints, seconds since the last use of one, bytes of all of them."""

    max_entries: int = 10_000
    max_age: float = 7 * 86_400.0
    max_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ModelRule:
    """The policy of all models whose name matches a shell pattern, case-sensitively.

    upstream  the name of the one that they are asked of; None = the default, or the one that a path names
    others    the policy at an upstream where that is another, by the preset that it has
    """

    match: str
    policy: ModelPolicy
    upstream: str | None = None
    others: tuple[tuple[str, ModelPolicy], ...] = ()

    def policy_at(self, upstream: str) -> ModelPolicy:
        """What holds at the upstream of this name."""
        return dict(self.others).get(upstream, self.policy) if self.others else self.policy

    def matches(self, model: object) -> bool:
        """A name that is missing, empty or no text matches only `*`."""
        if self.match == ANY_MODEL:
            return True
        return isinstance(model, str) and bool(model) and fnmatchcase(model, self.match)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options, resolved.

    max_body             bytes of a request's body
    client_idle_timeout  seconds that a client may be silent in the middle of it
    manage_deadline      seconds of our own work on one request, before it goes on as it came
    capture              whether the text of requests of late is kept, in memory, for the page to show
    workers              processes that serve; 0 = one for each core
    models               ends in a rule that matches everything
    """

    upstream: Upstream
    upstreams: tuple[NamedUpstream, ...] = ()
    listen: Address | SocketFile = Address("127.0.0.1", 8787)
    store: StoreURL = IN_MEMORY
    workers: int = 1
    max_body: int = 256 * 2**20
    client_idle_timeout: float = 120.0
    manage_deadline: float = 15.0
    ready_needs_upstream: bool = False
    capture: bool = False
    auth: Auth = Auth()
    admin: Admin = Admin()
    tenant: Tenant = Tenant()
    log: LogOptions = LogOptions()
    telemetry: Telemetry = Telemetry()
    side_calls: SideCalls = SideCalls()
    checkpoints: Checkpoints = Checkpoints()
    discovery: Discovery = Discovery()
    models: tuple[ModelRule, ...] = (ModelRule(ANY_MODEL, ModelPolicy()),)

    @property
    def servers(self) -> Mapping[str, Upstream]:
        """All upstreams by name."""
        return {DEFAULT: self.upstream, **{each.name: each.options for each in self.upstreams}}

    def side_calls_of(self, upstream: str) -> SideCalls:
        """Those that are made for the requests of this one."""
        if upstream == DEFAULT or self.side_calls.base_url is not None:
            return self.side_calls
        # A key goes to the server that it is for, and a model is known to its own.
        return replace(self.side_calls, api_key=None, model=None)

    def rules_for(self, upstream: str | None) -> Iterator[ModelRule]:
        """Those that may hold for a request, in order; `upstream` where its path names one: no other's rule does."""
        for rule in self.models:
            if upstream is None or rule.upstream in (None, upstream):
                yield rule
                if rule.match == ANY_MODEL:
                    return

    def rule_for(self, model: object, upstream: str | None = None) -> ModelRule:
        """The first rule that matches a request's `model`; the defaults when none does."""
        matching = (rule for rule in self.rules_for(upstream) if rule.matches(model))
        return next(matching, ModelRule(ANY_MODEL, ModelPolicy()))

    def policy_for(self, model: object, upstream: str | None = None) -> ModelPolicy:
        """The policy of that rule."""
        rule = self.rule_for(model, upstream)
        return rule.policy_at(upstream or rule.upstream or DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line said, as it was typed; None = not said. A flag wins over the file."""

    upstream: str | None = None
    listen: str | None = None
    window: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, with its place. `line` counts from 1; None where the place is no file."""

    file: str
    line: int | None
    key: str
    problem: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.problem}"


class InvalidConfig(ConfigError):
    """The configuration holds these mistakes; the message is one line for each."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes
