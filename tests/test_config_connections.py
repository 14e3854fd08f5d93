"""The configuration of connections: sockets on both sides.

Rules. Every test goes through `load` and a real file.
"""

from pathlib import Path

import pytest

from proxy.config import SocketFile, is_loopback
from proxy.config.values import is_on_this_machine
from tests.config_files import UPSTREAM, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@pytest.mark.parametrize("text", ["unix:/run/transom.sock", "unix:///run/transom.sock"])
def test_a_socket_to_listen_on_is_a_file_of_this_machine(folder: Path, text: str) -> None:
    listen = read(folder, f"{UPSTREAM}listen: '{text}'").listen
    assert listen == SocketFile("/run/transom.sock")
    assert str(listen) == "unix:/run/transom.sock"
    assert is_loopback(listen)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http+unix://%2Frun%2Fllama.sock/v1", True),
        ("http://127.0.0.1:8080/v1", True),
        ("http://[::1]:1/v1", True),
        ("https://api.example.com/v1", False),
        ("http://10.0.0.1/v1", False),
    ],
)
def test_a_server_of_this_machine_is_known_by_its_address(folder: Path, url: str, expected: bool) -> None:
    assert read(folder, f"upstream: {{base_url: '{url}'}}").upstream.base_url == url
    assert is_on_this_machine(url) is expected
