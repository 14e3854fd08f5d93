"""The Redis store against a real server: round trips, ends, credentials, TLS, and what can befall a server."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from proxy.errors import StoreUnavailable
from proxy.stores import Bounds, open_store
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import PREFIX, RedisStore
from proxy.stores.shielded import Shielded
from tests.conftest import ROOT
from tests.stores import redis_server as servers
from tests.stores.bench import AGE, WIDE, Clock, Heard, let_time_pass_in_redis
from tests.stores.redis_server import RedisServer


@asynccontextmanager
async def opened(url: str, *, age: float = AGE, clock: Clock | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, max_age=age, clock=clock or Clock())
    yield store
    await store.close()


class Replica:
    """A process's own store on a server, behind its shield, that tries again every few milliseconds."""

    def __init__(self, server: RedisServer) -> None:
        self.heard = Heard()
        memory = MemoryStore(Clock(), max_entries=100, max_age=AGE)
        behind = RedisStore(server.url, max_age=AGE)
        self.store = Shielded(behind, memory, self.heard, mirrors=True, most=100, retry=0.02)

    async def back(self, times: int = 1) -> None:
        await self.heard.until("store_back", times)


@asynccontextmanager
async def replica(server: RedisServer) -> AsyncIterator[Replica]:
    made = Replica(server)
    yield made
    await made.store.close()


@pytest.fixture
async def probe(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """Another client of the test's own server."""
    async with Redis.from_url(redis_server.url) as client:
        yield client


# --------------------------------------------------------------------------------------------- what is in the server


async def test_every_key_is_prefixed_and_has_its_end(redis_server: RedisServer, probe: Redis) -> None:
    async with opened(redis_server.url, age=500) as store:
        await store.claim("claimed", b"1")
        await store.write({"written": b"2", "calibration:0f": b"3"})
    keys = sorted(await probe.keys())
    assert keys == [b"transom:calibration:0f", b"transom:claimed", b"transom:written"]
    for key in keys:
        assert 490_000 < await probe.pttl(key) <= 500_000
    assert await probe.get("transom:written") == b"2"


async def test_keys_of_others_are_left_alone(redis_server: RedisServer, probe: Redis) -> None:
    await probe.set("a", b"theirs")
    async with opened(redis_server.url) as store:
        assert await store.read(["a"]) == [None]
        await store.write({"a": b"ours"})
        await store.forget(["a"])
    assert await probe.get("a") == b"theirs"


async def test_the_database_of_the_url_is_the_one_that_is_used(redis_server: RedisServer) -> None:
    url = redis_server.url.removesuffix("/0")
    async with opened(f"{url}/3") as three, opened(f"{url}/0") as zero, opened(url) as default:
        await three.write({"a": b"3"})
        await zero.write({"a": b"0"})
        assert await three.read(["a"]) == [b"3"]
        assert await default.read(["a"]) == [b"0"]


async def test_an_end_is_put_off_not_more_often_than_every_tenth_of_an_age(
    redis_server: RedisServer, probe: Redis
) -> None:
    clock = Clock()
    async with opened(redis_server.url, clock=clock) as store:
        await store.claim("a", b"1")
        for part, left in ((0.09, 0.91), (0.02, 1.0), (0.09, 0.91), (0.02, 1.0)):
            clock.advance(AGE * part)
            await let_time_pass_in_redis(redis_server.url, AGE * part)
            await store.read(["a", "b"])
            assert await probe.pttl(f"{PREFIX}a") == pytest.approx(left * AGE * 1000, abs=2000)


async def test_the_end_of_what_another_put_there_is_put_off_by_the_next_call_whatever_it_is(
    redis_server: RedisServer, probe: Redis
) -> None:
    async with opened(redis_server.url) as one, opened(redis_server.url) as other:
        await one.write({"a": b"1", "b": b"2"})
        await let_time_pass_in_redis(redis_server.url, AGE / 2)
        assert await other.read(["a"]) == [b"1"]
        assert await other.claim("b", b"3") == b"2"
        await other.read(["c"])
    for key in ("a", "b"):
        assert await probe.pttl(f"{PREFIX}{key}") > 0.99 * AGE * 1000


# -------------------------------------------------------------------------------------------------------- round trips


class Relay:
    """Stands between client and server, and counts how often the client speaks after the server has spoken."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._last = ""
        self.turns = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with listener:
            yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pass_on(reader, to_server, "client"))
            both.create_task(self._pass_on(from_server, writer, "server"))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str) -> None:
        while data := await reader.read(65536):
            self.turns += who == "client" != self._last
            self._last = who
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_each_call_is_one_round_trip_with_everything_that_is_to_be_put_off(
    redis_server: RedisServer,
) -> None:
    relay, clock = Relay(redis_server.port), Clock()
    async with relay.listening() as url, opened(url, clock=clock) as store:
        await store.read(["opens the connection"])
        calls: list[Any] = [
            store.write({"a": b"1", "b": b"x" * 2000}),
            store.read(["a", "b", "c"]),
            store.claim("c", b"3"),
            store.claim("c", b"4"),
            store.forget(["a", "absent"]),
        ]
        for call in calls:
            before = relay.turns
            await call
            assert relay.turns == before + 1
        clock.advance(AGE / 5)
        before = relay.turns
        assert await store.read(["a", "b", "c"]) == [None, b"x" * 2000, b"3"]
        assert relay.turns == before + 1


# -------------------------------------------------------------------------------------------- credentials and TLS


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    with servers.running(tmp_path, "--requirepass", "sword@fish/1") as server:
        yield server


async def test_a_password_is_sent_with_its_percent_signs_resolved(guarded: RedisServer) -> None:
    for user in ("", "default"):
        async with opened(f"redis://{user}:sword%40fish%2F1@127.0.0.1:{guarded.port}/1") as store:
            assert await store.claim("a", b"1") == b"1"


@pytest.mark.parametrize("user", ["", ":marlinspike@", "swordfish:marlinspike@"])
async def test_a_wrong_password_is_an_outage_that_tells_no_password(guarded: RedisServer, user: str) -> None:
    heard = Heard()
    url = f"redis://{user}127.0.0.1:{guarded.port}/0"
    async with open_store(url, WIDE, heard) as store:
        assert not store.shared()
        assert await store.store.claim("a", b"1") == b"1"
        with pytest.raises(StoreUnavailable) as caught:
            await store.store.write({"a": b"2"})
    [(name, facts)] = heard.events
    assert name == "store_down"
    assert facts["reason"].startswith(f"Redis at 127.0.0.1:{guarded.port} does not serve: Authentication")
    for told in (str(heard.events), repr(caught.value), repr(store), repr(vars(store.store))):
        assert "marlinspike" not in told
        assert "swordfish" not in told


@pytest.fixture
def secured(tmp_path: Path) -> Any:
    """A server that speaks TLS alone, and `tmp_path / "cert.pem"`, by which it is known."""
    openssl = servers.program("openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", "/CN=transom", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    names = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    names += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with servers.running(tmp_path, "--tls-port", *names) as server:
        yield server


async def test_rediss_speaks_tls_with_a_server_whose_certificate_is_known(
    secured: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with opened(f"rediss://127.0.0.1:{secured.port}/0") as store:
        assert await store.claim("a", b"1") == b"1"
        assert await store.read(["a"]) == [b"1"]


async def test_rediss_trusts_no_certificate_that_is_unknown(secured: RedisServer) -> None:
    async with opened(f"rediss://127.0.0.1:{secured.port}/0") as store:
        with pytest.raises(StoreUnavailable, match="SSLCertVerificationError"):
            await store.claim("a", b"1")


# ------------------------------------------------------------------------------------------------------------ outages


async def test_nobody_listens_and_the_proxy_starts_all_the_same() -> None:
    heard = Heard()
    async with open_store("redis://127.0.0.1:9/0", WIDE, heard) as store:
        assert heard.names == ["store_down"]
        assert not store.shared()
        assert await store.store.claim("a", b"1") == b"1"
        assert await store.store.read(["a"]) == [b"1"]


async def test_a_server_that_is_killed_leaves_the_process_with_what_it_has_and_takes_it_in_again(
    redis_server: RedisServer,
) -> None:
    async with replica(redis_server) as one:
        await one.store.claim("before", b"1")
        redis_server.kill()
        assert await one.store.read(["before", "other"]) == [b"1", None]
        assert one.heard.names == ["store_down"]
        assert await one.store.claim("during", b"2") == b"2"
        assert await one.store.read(["before", "during"]) == [b"1", b"2"]
        redis_server.start()
        await one.back()
        assert one.store.available
        # The server keeps nothing on disk: it has what was claimed from it since.
        assert await one.store.read(["before", "during"]) == [None, b"2"]
    assert one.heard.names == ["store_down", "store_back"]


async def test_a_server_that_is_restarted_between_two_calls_is_found_again_without_an_outage(
    redis_server: RedisServer,
) -> None:
    async with replica(redis_server) as one:
        await asyncio.gather(*(one.store.claim(f"{number}", b"1") for number in range(8)))
        redis_server.kill()
        redis_server.start()
        assert await one.store.claim("a", b"1") == b"1"
        await asyncio.gather(*(one.store.claim(f"{number}", b"1") for number in range(8)))
    assert one.heard.names == []


@pytest.mark.parametrize("is_established", [True, False])
@pytest.mark.parametrize("stands_still", [True, False])
async def test_a_server_that_is_silent_is_told_as_a_timeout_by_a_fresh_connection_and_an_old_one(
    redis_server: RedisServer, probe: Redis, stands_still: bool, is_established: bool
) -> None:
    async with opened(redis_server.url) as store:
        if is_established:
            await store.write({"a": b"1"})
        if stands_still:
            redis_server.pause()
        else:
            await probe.client_pause(600_000)
        with pytest.raises(StoreUnavailable, match=r"does not serve: TimeoutError$"):
            await store.read(["a"])


async def test_a_server_that_is_silent_before_it_speaks_tls_is_told_as_a_timeout(
    secured: RedisServer,
) -> None:
    secured.pause()
    async with opened(f"rediss://127.0.0.1:{secured.port}/0") as store:
        with pytest.raises(StoreUnavailable, match=r"does not serve: TimeoutError$"):
            await store.read(["a"])


async def test_replicas_that_outlive_their_server_agree_on_the_new_one(redis_server: RedisServer) -> None:
    keys = [f"{number}" for number in range(20)]
    async with replica(redis_server) as one, replica(redis_server) as other:
        redis_server.kill()
        for name, each in ((b"one", one), (b"other", other)):
            assert [await each.store.claim(key, name) for key in keys] == [name] * 20
        redis_server.start()
        await one.back()
        await other.back()
        agreed = await one.store.read(keys)
        assert set(agreed) <= {b"one", b"other"}
        assert await other.store.read(keys) == agreed


async def test_a_server_without_room_is_down_until_it_has_some(
    redis_server: RedisServer, probe: Redis
) -> None:
    async with replica(redis_server) as one:
        await one.store.claim("before", b"1")
        await probe.config_set("maxmemory", "1")
        assert await one.store.claim("a", b"1") == b"1"
        assert "OutOfMemory" in one.heard.events[0][1]["reason"]
        await probe.config_set("maxmemory", "0")
        await one.back()
        assert await one.store.read(["before", "a"]) == [b"1", b"1"]


async def test_a_call_that_is_cancelled_leaves_no_answer_behind_for_the_next(
    redis_server: RedisServer,
) -> None:
    async with opened(redis_server.url) as store:
        await store.write({"a": b"1", "b": b"2"})
        for delay in range(20):
            call = asyncio.create_task(store.read(["a"]))
            for _ in range(delay):
                await asyncio.to_thread(lambda: None)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await store.read(["b"]) == [b"2"]


async def test_hundreds_of_calls_at_once_share_a_bounded_number_of_connections(
    redis_server: RedisServer, probe: Redis
) -> None:
    async with opened(redis_server.url) as store:
        claims = [store.claim(f"{number}", b"%d" % number) for number in range(200)]
        assert await asyncio.gather(*claims) == [b"%d" % number for number in range(200)]
        assert int((await probe.info("clients"))["connected_clients"]) <= 70


# ------------------------------------------------------------------------------------------------ without the client

WITHOUT = """
import asyncio, sys
sys.modules["redis"] = None
from proxy.errors import ConfigError
from proxy.stores import Bounds, open_store

async def run():
    async with open_store("memory", Bounds(9, 9, 9), print) as opened:
        print(await opened.store.claim("a", b"1"))
    async with open_store("redis://h/0", Bounds(9, 9, 9), print):
        pass

try:
    asyncio.run(run())
except ConfigError as error:
    print(error.message)
"""


def test_without_the_client_all_else_works_and_a_redis_store_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    claimed, told = done.stdout.splitlines()
    assert claimed == "b'1'"
    assert told.endswith("pip install redis")


def test_bounds_of_zero_age_are_still_an_age_that_redis_takes() -> None:
    assert RedisStore("redis://h", max_age=Bounds(1, 1, 0.0001).max_age)._end == 1
