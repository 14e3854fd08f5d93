"""How an upstream is reached: by both families of addresses, by secure connections, and by proxies."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from proxy.config import Secret, SideCalls
from proxy.config import Upstream as UpstreamOptions
from proxy.config.values import Tls
from proxy.errors import ConfigError
from tests.edge.proxied import proxied
from tests.edge.test_lifetime import COMPACTED, LONG
from tests.peers import upstream as peers
from tests.peers.certificates import PemFiles, pem_files, serving
from tests.peers.client import RawClient
from tests.peers.forwarding import ForwardProxy
from tests.peers.switching import SwitchingUpstream
from tests.peers.upstream import Cut, ScriptedUpstream, json_answer, raw_answer

OK = json_answer({"ok": True})
CHAT = "/v1/chat/completions"
ANSWER = json_answer(peers.completion(peers.text_message("Hello."), usage=peers.usage(50, 5)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    return pem_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    """Files of an authority that the server has never heard of."""
    return pem_files(tmp_path_factory.mktemp("strange"))


def options(**fields: object) -> UpstreamOptions:
    return replace(UpstreamOptions(""), **fields)  # type: ignore[arg-type] # named by the tests


# --- addresses --------------------------------------------------------------------------------------------------


def addresses_of_localhost() -> set[str]:
    found = socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_b102_localhost_works_where_only_one_family_listens(host: str) -> None:
    if host not in addresses_of_localhost():
        pytest.skip(f"localhost is not {host} on this machine")
    async with (
        ScriptedUpstream([OK], at=host) as upstream,
        proxied(f"http://localhost:{upstream.port}/v1") as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200


async def test_b102_an_address_of_ipv6_is_called() -> None:
    async with (
        ScriptedUpstream([OK], at="::1") as upstream,
        proxied(upstream.base_url) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200
        assert upstream.requests[0].header("host") == f"[::1]:{upstream.port}"


# --- secure connections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [Tls(), Tls(verify=True)])
async def test_a_certificate_that_nobody_vouches_for_is_refused_by_default(files: PemFiles, tls: Tls) -> None:
    async with (
        ScriptedUpstream([OK], tls=serving(files)) as upstream,
        proxied(upstream.base_url, options=options(tls=tls)) as proxy,
        RawClient(proxy.url) as client,
    ):
        response = await client.request("GET", "/v1/models")
        assert (response.status, response.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert "certificate" in response.json()["error"]["message"]
        assert not upstream.requests
        assert not proxy.events("certificate_is_not_verified")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_authority_of_ones_own_is_trusted_when_it_is_configured(files: PemFiles, host: str) -> None:
    async with (
        ScriptedUpstream([OK, ANSWER], tls=serving(files)) as upstream,
        proxied(
            f"https://{host}:{upstream.port}/v1", options=options(tls=Tls(ca_file=str(files.ca)))
        ) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200
        assert (await client.post(CHAT, {"model": "m", "messages": []})).status == 200
        assert upstream.connections == 1


async def test_an_authority_takes_the_place_of_all_others(files: PemFiles, stranger: PemFiles) -> None:
    async with (
        ScriptedUpstream([OK], tls=serving(files)) as upstream,
        proxied(upstream.base_url, options=options(tls=Tls(ca_file=str(stranger.ca)))) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 502


async def test_a_certificate_for_another_name_is_refused(files: PemFiles) -> None:
    async with (
        ScriptedUpstream([OK], tls=serving(files)) as upstream,
        proxied(
            f"https://127.0.0.2:{upstream.port}/v1", options=options(tls=Tls(ca_file=str(files.ca)))
        ) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 502


async def test_what_is_not_verified_is_warned_about_at_the_start(files: PemFiles) -> None:
    async with (
        ScriptedUpstream([OK], tls=serving(files)) as upstream,
        proxied(upstream.base_url, options=options(tls=Tls(verify=False))) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200
        (warning,) = proxy.events("certificate_is_not_verified")
        assert (warning["level"], warning["server"], warning["url"]) == (
            "warning",
            "upstream",
            upstream.base_url,
        )


async def test_a_client_certificate_is_shown_to_a_server_that_asks_for_one(
    files: PemFiles, stranger: PemFiles
) -> None:
    trusted = Tls(ca_file=str(files.ca))
    shown = (
        (replace(trusted, cert_file=str(files.certificate), key_file=str(files.key)), 200),
        (replace(trusted, cert_file=str(files.both)), 200),
        (trusted, 502),
        (replace(trusted, cert_file=str(stranger.both)), 502),
    )
    async with ScriptedUpstream(otherwise=OK, tls=serving(files, asks_clients=True)) as upstream:
        for tls, status in shown:
            async with (
                proxied(upstream.base_url, options=options(tls=tls)) as proxy,
                RawClient(proxy.url) as client,
            ):
                assert (await client.request("GET", "/v1/models")).status == status


async def test_side_calls_have_their_own_security(files: PemFiles, stranger: PemFiles) -> None:
    summary = json_answer(peers.completion(peers.text_message("They talked."), usage=peers.usage(500, 20)))
    async with (
        ScriptedUpstream([ANSWER], tls=serving(files)) as upstream,
        ScriptedUpstream([summary], tls=serving(stranger)) as side,
        proxied(
            upstream.base_url,
            policy=COMPACTED,
            options=options(tls=Tls(ca_file=str(files.ca))),
            side_calls=SideCalls(base_url=side.base_url, tls=Tls(verify=False)),
        ) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.post(CHAT, LONG)).status == 200
        assert (side.request_count, upstream.request_count) == (1, 1)
        assert [event["server"] for event in proxy.events("certificate_is_not_verified")] == ["side_calls"]


async def websocket_over_tls(files: PemFiles) -> None:
    async with (
        SwitchingUpstream(tls=serving(files)) as upstream,
        proxied(upstream.url, options=options(tls=Tls(ca_file=str(files.ca)))) as proxy,
        RawClient(proxy.url) as client,
    ):
        await client.send(
            b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert (await client.read_head()).status == 101
        line = await upstream.line()
        await client.send(b"x" * 1_000_000)
        line.send(b"y" * 1_000_000)
        assert await line.read(1_000_000) == b"x" * 1_000_000
        assert await client.read_raw(1_000_000) == b"y" * 1_000_000
        await client.send(b"bye")
        await client.disconnect()
        assert await line.rest() == b"bye"


async def test_a_websocket_passes_over_a_secure_connection(files: PemFiles) -> None:
    await websocket_over_tls(files)


def test_a_websocket_passes_over_a_secure_connection_on_the_faster_loop(files: PemFiles) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(websocket_over_tls(files))


# --- proxies of the environment ---------------------------------------------------------------------------------


@pytest.fixture
def environ() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as environment:
        yield environment


async def test_b102_the_environment_is_asked_for_proxies_only_when_the_option_says_so(
    environ: pytest.MonkeyPatch,
) -> None:
    async with ScriptedUpstream([OK]) as upstream, ScriptedUpstream([OK]) as between:
        environ.setenv("HTTP_PROXY", between.url)
        for trusts, asked in ((False, upstream), (True, between)):
            async with (
                proxied(upstream.base_url, options=options(trust_env=trusts)) as proxy,
                RawClient(proxy.url) as client,
            ):
                assert (await client.request("GET", "/v1/models?a=%2F")).status == 200
                assert asked.request_count == 1
        assert between.requests[0].target == f"{upstream.base_url}/models?a=%2F"
        assert between.requests[0].header("host") == f"127.0.0.1:{upstream.port}"


@pytest.mark.parametrize(
    ("name", "value", "goes_direct"),
    [
        ("no_proxy", "127.0.0.1", True),
        ("NO_PROXY", "elsewhere.example, 127.0.0.1", True),
        ("NO_PROXY", "127.0.0.1:{port}", True),
        ("NO_PROXY", "*", True),
        ("NO_PROXY", "127.0.0.1:9", False),
        ("NO_PROXY", "elsewhere.example", False),
    ],
)
async def test_b102_no_proxy_is_respected(
    environ: pytest.MonkeyPatch, name: str, value: str, goes_direct: bool
) -> None:
    async with ScriptedUpstream(otherwise=OK) as upstream, ScriptedUpstream(otherwise=OK) as between:
        environ.setenv("ALL_PROXY", between.url.removeprefix("http://"))
        environ.setenv(name, value.format(port=upstream.port))
        async with (
            proxied(upstream.base_url, options=options(trust_env=True)) as proxy,
            RawClient(proxy.url) as client,
        ):
            assert (await client.request("GET", "/v1/models")).status == 200
        assert (upstream.request_count == 1) is goes_direct
        assert (between.request_count == 0) is goes_direct


async def test_b102_a_secure_upstream_is_reached_through_a_way_that_the_proxy_opens(
    environ: pytest.MonkeyPatch, files: PemFiles
) -> None:
    async with ScriptedUpstream([OK], tls=serving(files)) as upstream, ForwardProxy(upstream.port) as between:
        environ.setenv("HTTPS_PROXY", between.url("user:pass%40word"))
        async with (
            proxied(
                f"https://localhost:{upstream.port}/v1",
                options=options(trust_env=True, api_key=Secret("swordfish"), tls=Tls(ca_file=str(files.ca))),
            ) as proxy,
            RawClient(proxy.url) as client,
        ):
            assert (await client.request("GET", "/v1/models")).status == 200
            assert upstream.requests[0].header("authorization") == "Bearer swordfish"
            assert upstream.requests[0].header("proxy-authorization") is None
        (head,) = between.heads
        assert head.startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % upstream.port)
        assert b"Proxy-Authorization: Basic dXNlcjpwYXNzQHdvcmQ=\r\n" in head
        assert b"swordfish" not in head


async def test_b102_a_websocket_goes_through_that_way_as_well(
    environ: pytest.MonkeyPatch, files: PemFiles
) -> None:
    async with SwitchingUpstream(tls=serving(files)) as upstream, ForwardProxy(upstream.port) as between:
        environ.setenv("HTTPS_PROXY", between.url())
        async with (
            proxied(
                f"https://localhost:{upstream.port}/v1",
                options=options(trust_env=True, tls=Tls(ca_file=str(files.ca))),
            ) as proxy,
            RawClient(proxy.url) as client,
        ):
            await client.send(
                b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            )
            assert (await client.read_head()).status == 101
            line = await upstream.line()
            line.send(b"\x81\x05Hello")
            assert await client.read_raw(7) == b"\x81\x05Hello"
            await client.disconnect()
            assert await line.rest() == b""


async def test_b102_a_proxy_that_refuses_or_is_not_there_is_a_502_of_our_own(
    environ: pytest.MonkeyPatch, files: PemFiles
) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with ScriptedUpstream(tls=serving(files)) as upstream:
        async with ForwardProxy(upstream.port, answer=refusal) as between:
            gone = between.url()
            environ.setenv("HTTPS_PROXY", gone)
            trusting = options(trust_env=True, tls=Tls(ca_file=str(files.ca)))
            async with proxied(upstream.base_url, options=trusting) as proxy, RawClient(proxy.url) as client:
                refused = await client.request("GET", "/v1/models")
        async with proxied(upstream.base_url, options=trusting) as proxy, RawClient(proxy.url) as client:
            absent = await client.request("GET", "/v1/models")
    for response, says in ((refused, "did not open a way"), (absent, "cannot be reached")):
        assert (response.status, response.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert "The proxy before the upstream" in response.json()["error"]["message"]
        assert says in response.json()["error"]["message"]


async def test_b102_a_proxy_of_another_kind_is_refused_at_the_start(environ: pytest.MonkeyPatch) -> None:
    for url in ("socks5://user:swordfish@h:1", "https://h:1"):
        environ.setenv("HTTP_PROXY", url)
        with pytest.raises(ConfigError, match="NO_PROXY") as caught:
            async with proxied("http://h/v1", options=options(trust_env=True)):
                pass
        assert "swordfish" not in caught.value.message


async def test_a_netrc_adds_nothing_to_a_call(environ: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password swordfish\n")
    environ.setenv("NETRC", str(netrc))
    async with (
        ScriptedUpstream([OK]) as upstream,
        proxied(upstream.base_url, options=options(trust_env=True)) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert (await client.request("GET", "/v1/models")).status == 200
        assert upstream.requests[0].header("authorization") is None


async def test_a_stale_connection_over_tls_is_replaced_as_any_other(files: PemFiles) -> None:
    async with (
        ScriptedUpstream([OK, raw_answer(Cut.CLOSE), OK], tls=serving(files)) as upstream,
        proxied(upstream.base_url, options=options(tls=Tls(ca_file=str(files.ca)))) as proxy,
        RawClient(proxy.url) as client,
    ):
        assert [(await client.post("/v1/embeddings", {})).status for _ in range(2)] == [200, 200]
        assert upstream.request_count == 3
