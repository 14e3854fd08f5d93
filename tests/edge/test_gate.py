"""Who is let in: holders of tokens, browsers that ask beforehand, and nobody's web page to our own endpoints."""

import pytest

from proxy.config import Address, Config, Secret
from proxy.config import Upstream as UpstreamOptions
from proxy.config.values import Admin, Auth
from proxy.edge.gate import Admitted, Door, Gate, lends_key
from proxy.edge.headers import RawHeaders
from proxy.errors import ForeignHost, ForeignPage, NotHere, TransomError, Unauthorized

CHAT = "/v1/chat/completions"
STATE = "/-/state"
ONE, TWO = "token-one", "token-two"
HOST = (b"Host", b"127.0.0.1:8787")


def gate(*tokens: str, door: Door = Door.ALL, listen: str = "127.0.0.1", admin: Admin | None = None) -> Gate:
    config = Config(
        upstream=UpstreamOptions("http://h/v1"),
        listen=Address(listen, 8787),
        auth=Auth(tuple(map(Secret, tokens))),
        admin=admin or Admin(),
    )
    return Gate(config, door)


def admit(where: Gate, *fields: tuple[bytes, bytes], target: str = CHAT, method: str = "POST") -> Admitted:
    return where.admit(method, target, (HOST, *fields))


# --- tokens -----------------------------------------------------------------------------------------------------


WITH_TOKEN = [
    (b"Authorization", b"Bearer token-one"),
    (b"authorization", b"bearer token-one"),
    (b"AUTHORIZATION", b"BEARER  \t token-one"),
    (b"Authorization", b"token-one"),
    (b"x-api-key", b"token-one"),
    (b"X-Api-Key", b"Bearer token-one"),
    (b"api-key", b"token-one"),
    (b"x-goog-api-key", b"token-one"),
    (b"x-transom-token", b"token-one"),
    (b"X-Transom-Token", b"Bearer token-one"),
]


@pytest.mark.parametrize("field", WITH_TOKEN)
def test_a_token_lets_in_wherever_clients_put_a_key_and_goes_no_further(field: tuple[bytes, bytes]) -> None:
    admitted = admit(gate(TWO, ONE), field)
    assert admitted.fields == (HOST,)
    assert admitted.may_use_key
    assert admitted.holder == admit(gate(ONE), WITH_TOKEN[0]).holder


WITHOUT_TOKEN: list[RawHeaders] = [
    (),
    ((b"Authorization", b""),),
    ((b"Authorization", b"Bearer"),),
    ((b"Authorization", b"Bearer token-on"),),
    ((b"Authorization", b"Bearer token-one2"),),
    ((b"Authorization", b"Bearer TOKEN-ONE"),),
    ((b"Authorization", b"Bearer token-one token-one"),),
    ((b"Authorization", b"Bearer Bearer token-one"),),
    ((b"Authorization", b"Basic token-one"),),
    ((b"Authorization", b"Bearer \xf0\x9f\x94\x91"),),
    ((b"Authorization", b"Bearer \xff\xfe"),),
    ((b"x-api-key", b""), (b"api-key", b"")),
    ((b"Proxy-Authorization", b"Bearer token-one"),),
    ((b"Cookie", b"token-one"),),
    ((b"x-transom-token", b"other"), (b"Authorization", b"Bearer token-one")),
    ((b"x-transom-token", b""), (b"Authorization", b"Bearer token-one")),
]


@pytest.mark.parametrize("fields", WITHOUT_TOKEN)
@pytest.mark.parametrize(
    "target", [CHAT, "/v1/models", STATE, "/", "/%2F-%2Fhealthz", "//-/healthz", "/-x", "*"]
)
def test_nobody_else_is_let_in(fields: RawHeaders, target: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        admit(gate(ONE), *fields, target=target)
    assert ONE not in refused.value.message


def test_without_tokens_everybody_is_let_in_with_all_that_they_send() -> None:
    fields = (b"Authorization", b"Bearer mine"), (b"x-transom-token", b"anything")
    assert admit(gate(), *fields) == Admitted((HOST, *fields))


def test_a_clients_own_key_passes_beside_a_token() -> None:
    own = (b"Authorization", b"Bearer own")
    assert admit(gate(ONE), own, (b"x-transom-token", b"token-one")).fields == (HOST, own)
    assert admit(gate(ONE), (b"api-key", b"token-one"), own).fields == (HOST, own)
    assert admit(gate(ONE), own, (b"authorization", b"Bearer token-one")).fields == (HOST, own)


def test_no_token_is_passed_on_whosever_it_is_and_however_often_it_comes() -> None:
    fields = (
        (b"x-transom-token", b"token-one"),
        (b"Authorization", b"Bearer token-two"),
        (b"api-key", b"token-two"),
    )
    admitted = admit(gate(ONE, TWO), *fields)
    assert admitted.fields == (HOST,)
    assert admitted.holder == admit(gate(ONE), WITH_TOKEN[0]).holder


def test_holders_of_different_tokens_are_told_apart_and_no_token_can_be_read_from_that() -> None:
    one = admit(gate(ONE, TWO), (b"api-key", b"token-one")).holder
    two = admit(gate(ONE, TWO), (b"api-key", b"token-two")).holder
    assert one != two
    assert ONE not in one


# --- what needs none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize("target", ["/-/healthz", "/-/readyz", "/-/healthz/", "/-/healthz?a=1"])
def test_probes_need_no_token_under_any_name_at_any_address(target: str, door: Door) -> None:
    where = gate(ONE, door=door)
    assert where.admit("GET", target, ((b"Host", b"pod.cluster.local"),)).holder == ""


def test_the_page_needs_no_token_and_is_shut_to_everything_else_that_our_endpoints_are_shut_to() -> None:
    assert admit(gate(ONE), target="/-/", method="GET").holder == ""
    with pytest.raises(ForeignPage):
        admit(gate(ONE), (b"Origin", b"http://evil.example"), target="/-/", method="GET")
    with pytest.raises(NotHere):
        admit(gate(ONE, door=Door.CLIENTS), target="/-/", method="GET")
    for other in ("/-/events", "/-/requests/1", "/-//", "/-/."):
        with pytest.raises(Unauthorized):
            admit(gate(ONE), target=other, method="GET")


PREFLIGHT = ((b"Origin", b"http://app.example"), (b"Access-Control-Request-Method", b"POST"))


def test_a_browser_that_asks_beforehand_is_let_through_and_never_with_the_key() -> None:
    admitted = admit(gate(ONE), *PREFLIGHT, method="OPTIONS")
    assert admitted.fields == (HOST, *PREFLIGHT)
    assert not admitted.may_use_key
    assert admit(gate(), *PREFLIGHT, method="OPTIONS").may_use_key


@pytest.mark.parametrize(
    ("method", "fields", "target"),
    [
        ("POST", PREFLIGHT, CHAT),
        ("OPTIONS", PREFLIGHT[:1], CHAT),
        ("OPTIONS", PREFLIGHT[1:], CHAT),
        ("OPTIONS", (*PREFLIGHT, (b"Content-Length", b"3")), CHAT),
        ("OPTIONS", (*PREFLIGHT, (b"Transfer-Encoding", b"chunked")), CHAT),
        ("OPTIONS", ((b"Origin", b"http://127.0.0.1:8787"), PREFLIGHT[1]), STATE),
    ],
)
def test_what_only_looks_like_that_is_not(method: str, fields: RawHeaders, target: str) -> None:
    with pytest.raises(Unauthorized):
        admit(gate(ONE), *fields, method=method, target=target)


# --- our own endpoints and web pages ----------------------------------------------------------------------------


OURS = [
    b"127.0.0.1:8787",
    b"127.0.0.1",
    b"10.1.2.3:80",
    b"[::1]:8787",
    b"[fd00::5]",
    b"localhost",
    b"LocalHost:8787",
    b"localhost.:8787",
    b"box.lan:8787",
    b"proxy.example",
    b"",
]
NOT_OURS = [
    b"evil.example",
    b"evil.example:8787",
    b"localhost.evil.example",
    b"127.0.0.1.evil.example",
    b"evil.localhost",
    b"127.1",
    b"2130706433",
    b"0x7f000001",
    b"[::1].evil.example",
    b"[evil.example]",
    b"user@127.0.0.1",
    b"127.0.0.1:8787:1",
    b"127.0.0.1, evil.example",
    b"127.0.0.1:port",
    b"loc\xe4lhost",
    b"\xff",
]


@pytest.mark.parametrize("host", OURS)
def test_our_own_endpoints_answer_to_addresses_localhost_and_names_that_are_listed(host: bytes) -> None:
    where = gate(listen="box.lan", admin=Admin(hosts=("proxy.example",)))
    assert where.admit("GET", STATE, ((b"Host", host),)) == Admitted(((b"Host", host),))
    assert where.admit("GET", STATE, ()) == Admitted(())


@pytest.mark.parametrize("host", NOT_OURS)
def test_our_own_endpoints_answer_to_no_other_name(host: bytes) -> None:
    for raw in (((b"hOST", host),), (HOST, (b"Host", host))):
        with pytest.raises(ForeignHost):
            gate(listen="0.0.0.0").admit("GET", STATE, raw)
    assert gate().admit("GET", CHAT, ((b"Host", host),)).may_use_key, "everything else is the upstream's"


@pytest.mark.parametrize(
    "target", ["http://evil.example/-/state", "http://evil@127.0.0.1/-/state", "HTTP://EVIL:1/-/state?x"]
)
def test_an_absolute_target_names_a_host_as_well(target: str) -> None:
    with pytest.raises(ForeignHost):
        admit(gate(), target=target)
    assert admit(gate(), target="http://127.0.0.1:8787/-/state").fields


FOREIGN: list[RawHeaders] = [
    ((b"Origin", b"http://evil.example"),),
    ((b"Origin", b"null"),),
    ((b"Origin", b""),),
    ((b"Origin", b"127.0.0.1:8787"),),
    ((b"Origin", b"http://127.0.0.1:3000"),),
    ((b"Origin", b"http://127.0.0.1:8787.evil.example"),),
    ((b"Origin", b"http://127.0.0.1:8787"), (b"Origin", b"http://evil.example")),
    ((b"Sec-Fetch-Site", b"cross-site"),),
    ((b"sec-fetch-site", b"Cross-Site "),),
    ((b"Origin", b"http://127.0.0.1:8787"), (b"Sec-Fetch-Site", b"cross-site")),
]
OWN_PAGE: list[RawHeaders] = [
    (),
    ((b"Origin", b"http://127.0.0.1:8787"),),
    ((b"Origin", b"HTTPS://127.0.0.1:8787"), (b"Sec-Fetch-Site", b"same-origin")),
    ((b"Sec-Fetch-Site", b"none"),),
    ((b"Sec-Fetch-Site", b"same-site"),),
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("fields", FOREIGN)
def test_web_pages_of_other_sites_neither_read_nor_change_what_is_ours(
    fields: RawHeaders, method: str
) -> None:
    for where in (gate(), gate(ONE)):
        with pytest.raises(ForeignPage):
            admit(where, *fields, (b"api-key", b"token-one"), method=method, target=STATE)
    assert admit(gate(), *fields, method=method).may_use_key, "everything else is the upstream's"


@pytest.mark.parametrize("fields", OWN_PAGE)
def test_a_page_of_our_own_may(fields: RawHeaders) -> None:
    assert admit(gate(), *fields, target=STATE).fields == (HOST, *fields)


SOCKET = ((b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"))


@pytest.mark.parametrize("fields", [each for each in FOREIGN if each[0][0] == b"Origin"])
def test_the_key_is_not_lent_to_a_websocket_of_another_sites_page(fields: RawHeaders) -> None:
    assert not admit(gate(), *SOCKET, *fields, method="GET").may_use_key
    rebound = ((b"Host", b"evil.example:8787"), (b"Origin", b"http://evil.example:8787"), *SOCKET)
    assert not gate().admit("GET", CHAT, rebound).may_use_key
    assert admit(gate(ONE), *SOCKET, *fields, (b"api-key", b"token-one"), method="GET").may_use_key


def test_it_is_lent_to_a_page_of_our_own_and_to_what_is_no_page() -> None:
    assert admit(gate(), *SOCKET, (b"Origin", b"http://127.0.0.1:8787"), method="GET").may_use_key
    assert gate().admit("GET", CHAT, ((b"Host", b"transom:8787"), *SOCKET)).may_use_key


# --- addresses --------------------------------------------------------------------------------------------------


def test_at_an_address_of_their_own_there_are_our_endpoints_and_nothing_else() -> None:
    admin = Admin(listen=Address("127.0.0.1", 8788))
    clients, own = gate(door=Door.CLIENTS, admin=admin), gate(door=Door.OWN, admin=admin)
    assert admit(clients).fields
    assert admit(own, target=STATE).fields
    for where, target in ((clients, STATE), (clients, "/-/"), (own, CHAT), (own, "/"), (own, "/-x")):
        with pytest.raises(NotHere):
            admit(where, target=target)


def test_who_has_no_token_does_not_learn_what_is_where() -> None:
    with pytest.raises(Unauthorized):
        admit(gate(ONE, door=Door.CLIENTS), target=STATE)


def test_every_refusal_has_a_status_a_code_and_a_sentence() -> None:
    kinds: tuple[type[TransomError], ...] = (Unauthorized, ForeignHost, ForeignPage, NotHere)
    assert [each.status for each in kinds] == [401, 421, 403, 404]
    assert len({each.code for each in kinds}) == len(kinds)


def test_b134_a_key_is_lent_to_the_network_where_no_token_is_asked_for() -> None:
    def lends(host: str, key: str | None, *tokens: str) -> bool:
        upstream = UpstreamOptions("http://h/v1", api_key=Secret(key) if key else None)
        auth = Auth(tuple(map(Secret, tokens)))
        return lends_key(Config(upstream=upstream, listen=Address(host, 8787), auth=auth))

    assert lends("0.0.0.0", "key")
    assert not lends("0.0.0.0", "key", ONE)
    assert not lends("0.0.0.0", None)
    assert not lends("127.0.0.1", "key")
