"""Redis servers and SQLite files for the tests of the stores."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.stores.redis_server import RedisServer, running
from tests.stores.sqlite_files import Files


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed and paused at will."""
    with running(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def lasting_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that all tests of a run share; each clears it first and leaves it as it is."""
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    """SQLite stores in one folder; they are closed when the test ends."""
    made = Files(tmp_path)
    yield made
    await made.close()
