"""What a running proxy takes over of another configuration, and what it leaves to a restart."""

from pathlib import Path

import pytest

from proxy.config import Config, Flags, load
from proxy.config.changes import between, files_of, restart_names
from tests.config_files import UPSTREAM, read
from tests.peers.certificates import pem_files

URL = "http://127.0.0.1:8080/v1"
RUNNING = load(None, Flags(upstream=URL), {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_same_configuration_changes_nothing(folder: Path) -> None:
    change = between(RUNNING, read(folder, UPSTREAM))
    assert (change.config, change.applied, change.needs_restart) == (RUNNING, (), ())


def test_what_can_change_is_taken_over_and_named_without_its_value(folder: Path) -> None:
    text = f"{UPSTREAM}max_body: 1KiB\nauth: {{tokens: [swordfish]}}\nmodels: [{{match: '*', window: 8k}}]\n"
    wanted = read(folder, text)
    change = between(RUNNING, wanted)
    assert change.config == wanted
    assert change.applied == ("max_body", "auth.tokens", "models")
    assert change.needs_restart == ()
    assert "swordfish" not in repr(change)


def test_what_only_a_restart_can_change_stays_as_it_is_and_is_named(folder: Path) -> None:
    text = (
        f"{UPSTREAM}listen: 127.0.0.1:1\nstore: sqlite:///a.db\nlog: {{level: debug, format: json}}\n"
        "admin: {listen: 127.0.0.1:2, hosts: [a.b]}\ncheckpoints: {max_age: 1h}\n"
    )
    change = between(RUNNING, read(folder, text))
    assert change.needs_restart == (
        "listen",
        "store",
        "admin.listen",
        "log.level",
        "log.format",
        "checkpoints.max_age",
    )
    assert change.applied == ("admin.hosts",)
    kept = change.config
    assert (kept.listen, kept.store, kept.log) == (RUNNING.listen, RUNNING.store, RUNNING.log)
    assert (kept.admin.listen, kept.admin.hosts) == (None, ("a.b",))
    assert kept.checkpoints == RUNNING.checkpoints


def test_the_options_that_need_a_restart_are_those_that_are_opened_once() -> None:
    assert set(restart_names()) == {
        "listen",
        "store",
        "workers",
        "admin.listen",
        "log.level",
        "log.format",
        "telemetry.otlp_endpoint",
        "telemetry.service_name",
        "checkpoints.max_entries",
        "checkpoints.max_bytes",
        "checkpoints.max_age",
    }


def test_the_files_that_are_looked_at_are_those_of_tokens_and_certificates(folder: Path) -> None:
    files = pem_files(folder)
    tokens = folder / "tokens.txt"
    tokens.write_text("one\n", encoding="utf-8")
    text = f"upstream: {{base_url: 'https://a/v1', tls: {{ca_file: {files.ca}}}}}\nauth: {{tokens_file: {tokens}}}\n"
    config: Config = read(folder, text)
    assert files_of(config) == (str(tokens), str(files.ca))
    assert files_of(RUNNING) == ()
