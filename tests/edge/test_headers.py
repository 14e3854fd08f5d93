"""Fields and URLs on their way through: what ends at this hop, what is added, how two URLs become one."""

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from proxy.edge import headers
from proxy.edge.headers import Base, Fields, Heads, Names

CLIENT = (
    (b"Host", b"proxy:8787"),
    (b"User-Agent", b"agent/1"),
    (b"X-Thing", b"a"),
    (b"Connection", b"keep-alive, X-Private"),
    (b"X-Private", b"1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"TE", b"trailers"),
    (b"Trailer", b"Expires"),
    (b"Upgrade", b"h2c"),
    (b"Proxy-Authorization", b"Basic x"),
    (b"Proxy-Connection", b"keep-alive"),
    (b"Expect", b"100-continue"),
    (b"X-Context-Mode", b"off"),
    (b"x-thing", b"b"),
    (b"Content-Length", b"12"),
)


def test_fields_that_end_at_this_hop_are_not_passed_on_and_all_others_keep_case_order_and_repetition() -> (
    None
):
    assert headers.for_upstream(CLIENT) == [
        (b"User-Agent", b"agent/1"),
        (b"X-Thing", b"a"),
        (b"x-thing", b"b"),
        (b"Content-Length", b"12"),
    ]


def test_the_length_of_a_changed_body_takes_the_place_of_the_clients() -> None:
    raw = ((b"content-length", b"12"), (b"X-A", b"1"))
    assert headers.for_upstream(raw, length=7) == [(b"content-length", b"7"), (b"X-A", b"1")]
    assert headers.for_upstream(((b"X-A", b"1"),), length=7) == [(b"X-A", b"1"), (b"Content-Length", b"7")]


def test_a_whole_body_that_came_in_chunks_goes_on_with_a_length() -> None:
    raw = ((b"Transfer-Encoding", b"chunked"),)
    assert headers.for_upstream(raw, length=7) == [(b"Content-Length", b"7")]


def test_a_length_that_contradicts_chunks_is_not_passed_on() -> None:
    raw = ((b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked"))
    assert headers.for_upstream(raw) == []


def test_an_answer_without_encoding_is_asked_for_in_place_of_what_the_client_accepts() -> None:
    raw = ((b"Accept-Encoding", b"gzip, br"), (b"accept-encoding", b"zstd"), (b"X-A", b"1"))
    assert headers.for_upstream(raw, unencoded=True) == [(b"Accept-Encoding", b"identity"), (b"X-A", b"1")]
    assert headers.for_upstream((), unencoded=True) == [(b"Accept-Encoding", b"identity")]


@pytest.mark.parametrize("name", [b"Authorization", b"api-key", b"X-Api-Key", b"x-goog-api-key"])
def test_b134_the_configured_key_is_used_only_where_the_client_sent_none(name: bytes) -> None:
    own = headers.for_upstream(((name, b"client"),), key="configured")
    assert own == [(name, b"client")]
    assert headers.for_upstream((), key="configured") == [(b"Authorization", b"Bearer configured")]
    assert headers.for_upstream(()) == []


def test_b28_a_side_call_carries_the_credential_and_the_account_and_nothing_else_of_the_clients() -> None:
    raw = (
        (b"Host", b"proxy"),
        (b"api-key", b"A"),
        (b"OpenAI-Organization", b"org"),
        (b"Content-Type", b"text/x"),
        (b"Cookie", b"session=1"),
        (b"X-Custom", b"1"),
    )
    assert headers.for_side_call(raw, key="configured") == [
        (b"api-key", b"A"),
        (b"OpenAI-Organization", b"org"),
    ]
    assert headers.for_side_call((), key="configured") == [(b"Authorization", b"Bearer configured")]


def test_credentials_of_two_tenants_differ_and_their_absence_is_empty() -> None:
    assert headers.credential(((b"X-A", b"1"),)) == b""
    assert headers.credential(((b"Authorization", b"A"),)) != headers.credential(((b"Authorization", b"B"),))
    assert headers.credential(((b"authorization", b"A"),)) == headers.credential(((b"Authorization", b"A"),))


def test_an_answers_fields_keep_their_order_and_their_repetition() -> None:
    raw = (
        (b"Set-Cookie", b"a=1"),
        (b"X-RateLimit-Remaining", b"9"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close"),
        (b"Set-Cookie", b"b=2"),
        (b"Proxy-Status", b"edge"),
        (b"Content-Length", b"5"),
        (b"X-Odd", b"caf\xe9"),
    )
    assert headers.for_client(raw) == (
        b"Set-Cookie: a=1\r\nX-RateLimit-Remaining: 9\r\nSet-Cookie: b=2\r\nProxy-Status: edge\r\n"
        b"Content-Length: 5\r\nX-Odd: caf\xe9\r\n"
    )


def test_a_field_of_ours_replaces_the_upstreams_and_a_wrong_length_goes() -> None:
    raw = ((b"X-Context-Actions", b"theirs"), (b"x-context-window", b"7"), (b"Content-Length", b"5"))
    assert headers.for_client(raw, [("x-context-actions", "none")], keep_length=False) == (
        b"x-context-actions: none\r\n"
    )


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((), ()),
        ((b"",), ()),
        ((b" Identity ",), ()),
        ((b"GZip",), (b"gzip",)),
        ((b"gzip,br ,\tzstd",), (b"gzip", b"br", b"zstd")),
        ((b"identity", b"x-gzip"), (b"x-gzip",)),
        ((b"deflate, identity,,", b"br"), (b"deflate", b"br")),
    ],
)
def test_content_codings_are_read_from_all_fields_of_that_name(
    values: tuple[bytes, ...], names: tuple[bytes, ...]
) -> None:
    raw = [(b"content-Encoding", value) for value in values]
    assert headers.codings([(b"X-A", b"gzip"), *raw]) == names


def test_a_body_that_is_no_longer_encoded_goes_without_the_field() -> None:
    raw = ((b"CONTENT-ENCODING", b"gzip"), (b"X-A", b"1"), (b"content-encoding", b"br"))
    assert headers.for_upstream(raw, length=7, decoded=True) == [(b"X-A", b"1"), (b"Content-Length", b"7")]
    assert len(headers.for_upstream(raw, length=7)) == 4


@pytest.mark.parametrize("many", [1, 500])
def test_heads_with_the_same_names_go_on_each_as_its_own_values_say(many: int) -> None:
    beside = [(b"X-Some-Name-%d" % number, b"1") for number in range(many)]

    def head(connection: bytes, length: bytes, value: bytes) -> Fields:
        return [
            (b"Connection", connection),
            (b"Content-Length", length),
            *beside,
            (b"X-A", value),
            (b"x-a", b"2"),
        ]

    heads = Heads()
    for connection, goes_on in [(b"close", True), (b"X-A, close", False), (b"keep-alive", True)]:
        for length, value in [(b"1", b"a"), (b"22", b"b")]:
            raw = heads.of(head(connection, length, value))
            named = [(b"X-A", value), (b"x-a", b"2")] if goes_on else []
            assert headers.for_upstream(raw) == [(b"Content-Length", length), *beside, *named]
            assert headers.for_upstream(raw, length=7)[0] == (b"Content-Length", b"7")
            assert headers.for_client(raw, keep_length=False) == headers.lines([*beside, *named])
            assert (headers.find(raw, b"x-a"), headers.every(raw, b"x-a")) == (value, [value, b"2"])


def test_what_is_worked_out_of_names_is_worked_out_once_also_after_many_odd_ones() -> None:
    worked_out: list[object] = []

    def rule(names: Names, how: object) -> list[bool]:
        worked_out.append(how)
        return [True] * len(names.lower)

    names = Names(b"Connection:X-A")
    for way in [*range(100), *["usual"] * 5]:
        assert names.passing(rule, way) == [True, True]
    assert worked_out == [*range(100), "usual"]


CHAT = "/chat/completions"
AZURE = "/openai/deployments/d/chat/completions?api-version=2024-10-21"

JOINED = [
    ("http://h", "/v1" + CHAT, "http://h/v1" + CHAT),
    ("http://h/", CHAT, "http://h" + CHAT),
    ("http://h", "/", "http://h/"),
    ("http://h:81/v1", CHAT, "http://h:81/v1" + CHAT),
    ("http://h/v1", "/v1" + CHAT, "http://h/v1" + CHAT),
    ("http://h/v1/", "/v1" + CHAT, "http://h/v1" + CHAT),
    ("http://h/v1//", "/v1" + CHAT, "http://h/v1" + CHAT),
    ("http://h/v1", "/v1", "http://h/v1"),
    ("http://h/v1", "/v1/", "http://h/v1/"),
    ("http://h/v1", "/", "http://h/v1"),
    ("http://h/v1", "/v10/models", "http://h/v1/v10/models"),
    ("http://h/v1", "/v1/v1/models", "http://h/v1/v1/models"),
    ("http://h/api/v1", "/v1/models", "http://h/api/v1/models"),
    ("http://h/api/v1", "/api/v1/models", "http://h/api/v1/models"),
    ("http://h/api/paas/v4", "/v1" + CHAT, "http://h/api/paas/v4" + CHAT),
    ("http://h/v1beta/openai/", "/v1" + CHAT, "http://h/v1beta/openai" + CHAT),
    ("http://h", AZURE, "http://h" + AZURE),
    ("http://h/openai", AZURE, "http://h" + AZURE),
    ("http://h/v1", "/v1/models?api-version=x&q=a%2Fb+c", "http://h/v1/models?api-version=x&q=a%2Fb+c"),
    ("http://h/v1?api-version=1", "/v1/models?x=y", "http://h/v1/models?api-version=1&x=y"),
    ("http://h/v1?a=1&b=2", "/v1/models?a=2", "http://h/v1/models?b=2&a=2"),
    ("http://h/v1?a=1", "/v1/models", "http://h/v1/models?a=1"),
    ("http://h/v1", "/v1/files/a%2Fb%20c/%E2%82%AC", "http://h/v1/files/a%2Fb%20c/%E2%82%AC"),
    ("http://h/v1", "/v1//models/../x;p=1", "http://h/v1//models/../x;p=1"),
    ("http://h/v1", "http://elsewhere/v1/models?a=1", "http://h/v1/models?a=1"),
    ("http+unix://%2Fs.sock/v1", "/v1/models?a=1", "http://localhost/v1/models?a=1"),
    ("http+unix://%2Fs.sock", "http+unix://%2Felse.sock/v1/models", "http://localhost/v1/models"),
    ("http://h/v1", "//elsewhere/v1/models", "http://h/v1//elsewhere/v1/models"),
    ("http://h/v1", "/v1/models#part", "http://h/v1/models"),
    ("https://h/v1", "*", "https://h/v1"),
]


@pytest.mark.parametrize(("base", "target", "url"), JOINED)
def test_b100_base_url_and_target_become_the_url_of_the_table(base: str, target: str, url: str) -> None:
    assert headers.join(Base.of(base), *headers.split_target(target)) == url


BASES = st.sampled_from(["http://h", "http://h/", "https://h:1/v1", "http://[::1]/api/v1", "http://h/v1?a=1"])
TARGETS = st.lists(
    st.sampled_from(
        ["/", "//", "\\", "@", ":", "?", "#", "*", ".", "..", "%2F", "http://", "evil.example", "v1"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    max_size=8,
).map("".join)


@given(BASES, TARGETS)
@example("http://h", "@evil.example/v1")
@example("http://h", "evil.example")
@example("http://h", "*")
def test_no_target_leads_to_another_host(base: str, target: str) -> None:
    wanted, joined = urlsplit(base), headers.join(Base.of(base), *headers.split_target(target))
    assert (
        joined.startswith(f"{wanted.scheme}://{wanted.netloc}/")
        or joined == f"{wanted.scheme}://{wanted.netloc}"
    )
    assert URL(joined, encoded=True).host == wanted.hostname
    assert URL(joined, encoded=True).port == (wanted.port or URL(base).port)


@pytest.mark.parametrize("url", ["", "h/v1", "/v1", "http:/h"])
def test_a_base_that_is_no_absolute_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Base.of(url)


@pytest.mark.parametrize(
    ("fields", "was_cut"),
    [
        ({"x-context-tokens": "5", "x-context-original-tokens": "9"}, True),
        ({"x-context-tokens": "5", "x-context-original-tokens": "5"}, False),
        ({"x-context-tokens": "5"}, False),
        ({"x-context-original-tokens": "5"}, False),
        ({}, False),
    ],
)
def test_a_prompt_was_cut_behind_where_both_of_its_numbers_are_told_and_differ(
    fields: dict[str, str], was_cut: bool
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    assert headers.was_cut_behind(raw) is was_cut
