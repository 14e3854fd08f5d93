"""The configuration of connections: sockets on both sides, certificates, and the way out.

Rules. Every test goes through `load` and a real file. What a mistake says never holds what a file holds.
"""

from pathlib import Path

import pytest

from proxy.config import SocketFile, is_loopback
from proxy.config.values import Tls, is_on_this_machine
from tests.config_files import UPSTREAM, URL, only_mistake, read
from tests.peers.certificates import PemFiles, pem_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    return pem_files(tmp_path_factory.mktemp("certificates"))


def test_b102_a_host_stays_as_it_is_written(folder: Path) -> None:
    for url in ("http://localhost:11434/v1", "https://api.example.com", "http://[::1]:1/openai/v1"):
        assert read(folder, f"upstream: {{base_url: '{url}/'}}").upstream.base_url == url


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


@pytest.mark.parametrize(
    ("main", "given", "seconds"),
    [
        ("http://127.0.0.1:8080/v1", "{}", 120),
        ("http+unix://%2Frun%2Fllama.sock/v1", "{}", 120),
        ("https://api.example.com/v1", "{}", 30),
        ("https://api.example.com/v1", "{base_url: 'http://localhost:8081/v1'}", 120),
        ("http://127.0.0.1:8080/v1", "{base_url: 'https://api.example.com/v1'}", 30),
        ("http://127.0.0.1:8080/v1", "{deadline: 7s}", 7),
        ("https://api.example.com/v1", "{deadline: 3m}", 180),
    ],
)
def test_b26_a_summary_is_waited_for_longer_where_a_server_of_this_machine_writes_it_unless_it_is_said_how_long(
    folder: Path, main: str, given: str, seconds: float
) -> None:
    config = read(folder, f"upstream: {{base_url: '{main}'}}\nside_calls: {given}")
    assert config.side_calls.patience(config.upstream.base_url) == seconds


def test_b102_the_environments_proxies_are_trusted_only_on_demand(folder: Path) -> None:
    assert not read(folder, UPSTREAM).upstream.trust_env
    assert read(folder, f"upstream: {{base_url: '{URL}', trust_env: true}}").upstream.trust_env


# --- certificates -----------------------------------------------------------------------------------------------


def with_tls(*lines: str) -> str:
    """A file whose `tls` stands on line 3, and its options on those that follow."""
    return "\n".join(["upstream:", f"  base_url: {URL}", "  tls:", *(f"    {line}" for line in lines)])


def test_certificates_are_verified_unless_it_is_switched_off(folder: Path) -> None:
    assert read(folder, UPSTREAM).upstream.tls == Tls(verify=True)
    assert not read(folder, with_tls("verify: false")).upstream.tls.verify


def test_files_of_certificates_are_read_from_where_they_are(folder: Path, files: PemFiles) -> None:
    text = with_tls(f"ca_file: {files.ca}", f"cert_file: {files.certificate}", "key_file: ${KEY}")
    assert read(folder, text, environ={"KEY": str(files.key)}).upstream.tls == Tls(
        str(files.ca), str(files.certificate), str(files.key)
    )
    assert read(folder, with_tls(f"cert_file: {files.both}")).upstream.tls.cert_file == str(files.both)


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_a_file_that_is_not_there_is_a_mistake_on_its_line(folder: Path, name: str) -> None:
    mistake = only_mistake(folder, with_tls("verify: true", f"{name}: {folder}/missing.pem"))
    assert (mistake.line, mistake.key) == (5, f"upstream.tls.{name}")
    assert mistake.problem == "cannot be read: No such file or directory"


def test_a_folder_is_no_file(folder: Path) -> None:
    assert "cannot be read" in only_mistake(folder, with_tls(f"ca_file: {folder}")).problem


def test_a_file_that_holds_something_else_is_a_mistake(folder: Path, files: PemFiles) -> None:
    junk = folder / "junk.pem"
    junk.write_text("swordfish")
    for lines, key, says in (
        ([f"ca_file: {junk}"], "ca_file", "BEGIN CERTIFICATE"),
        ([f"ca_file: {files.key}"], "ca_file", "BEGIN CERTIFICATE"),
        ([f"cert_file: {junk}"], "cert_file", "BEGIN CERTIFICATE"),
        ([f"cert_file: {files.certificate}"], "cert_file", "no private key"),
        ([f"cert_file: {files.certificate}", f"key_file: {junk}"], "key_file", "no private key"),
        ([f"key_file: {files.key}"], "key_file", "without the certificate in cert_file"),
        (["ca_file: ~/ca.pem"], "ca_file", "${HOME}"),
    ):
        mistake = only_mistake(folder, with_tls(*lines))
        assert (mistake.line, mistake.key) == (3 + len(lines), f"upstream.tls.{key}")
        assert says in mistake.problem
        assert "swordfish" not in str(mistake)


def test_a_key_of_another_certificate_is_a_mistake(folder: Path, files: PemFiles) -> None:
    other = pem_files(folder, "other")
    mistake = only_mistake(folder, with_tls(f"cert_file: {files.certificate}", f"key_file: {other.key}"))
    assert (mistake.line, mistake.key) == (5, "upstream.tls.key_file")
    assert "not the one of the certificate" in mistake.problem


def test_nobody_is_asked_for_the_password_of_a_key(folder: Path, files: PemFiles) -> None:
    key = folder / "locked.pem"
    key.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-128-CBC,00000000000000000000000000000000\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
    )
    mistake = only_mistake(folder, with_tls(f"cert_file: {files.certificate}", f"key_file: {key}"))
    assert (mistake.key, "password" in mistake.problem) == ("upstream.tls.key_file", True)


def test_side_calls_have_certificates_of_their_own_only_with_a_server_of_their_own(folder: Path) -> None:
    mistake = only_mistake(folder, f"{UPSTREAM}side_calls:\n  tls: {{verify: false}}")
    assert (mistake.line, mistake.key) == (3, "side_calls.tls")
    assert "upstream.tls" in mistake.problem
    text = f"{UPSTREAM}side_calls:\n  base_url: {URL}\n  tls: {{verify: false}}"
    config = read(folder, text)
    assert (config.side_calls.tls.verify, config.upstream.tls.verify) == (False, True)
