"""Numbers with their units, switches and addresses, as a file has them."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import Address, is_loopback
from proxy.context.policy import Mode
from tests.config_files import UPSTREAM, model, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("128k", 128_000),
        ("128K", 128_000),
        ("128Ki", 131_072),
        ("1M", 1_000_000),
        ("1Mi", 1_048_576),
        ("1.5k", 1500),
        ("200_000", 200_000),
        ('"4096"', 4096),
        ("4 k", 4000),
        ("010", 10),
    ],
)
def test_tokens_may_be_written_with_a_suffix(folder: Path, text: str, tokens: int) -> None:
    assert read(folder, model(f"reserve_output: {text}")).policy_for("x").reserve_output == tokens


DURATIONS: Final = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86_400}
SIZES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "kB": 1000,
    "KiB": 1024,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}


@settings(deadline=None)
@given(st.integers(1, 3650), st.sampled_from(sorted(DURATIONS)))
def test_a_duration_is_seconds_whatever_its_unit(folder: Path, number: int, unit: str) -> None:
    text = f"{UPSTREAM}side_calls: {{deadline: {number}{unit}}}"
    assert read(folder, text).side_calls.deadline == pytest.approx(number * DURATIONS[unit], rel=1e-12)


@settings(deadline=None)
@given(st.integers(1, 100_000), st.sampled_from(sorted(SIZES)))
def test_a_size_is_bytes_whatever_its_unit(folder: Path, number: int, unit: str) -> None:
    assert read(folder, f"{UPSTREAM}max_body: {number}{unit}").max_body == number * SIZES[unit]


@pytest.mark.parametrize(("text", "seconds"), [("0.25", 0.25), ("1.5m", 90), ("500ms", 0.5), ("20 s", 20)])
def test_a_duration_may_have_a_fraction(folder: Path, text: str, seconds: float) -> None:
    assert read(folder, f"{UPSTREAM}side_calls: {{deadline: {text}}}").side_calls.deadline == seconds


@pytest.mark.parametrize("word", ["off", "Off", "no", "false", "FALSE", "'false'"])
def test_every_yaml_word_for_no_is_taken(folder: Path, word: str) -> None:
    assert read(folder, model(f"clamp_max_tokens: {word}")).policy_for("x").clamp_max_tokens is False


def test_the_mode_off_is_a_word_and_not_yaml_s_false(folder: Path) -> None:
    assert read(folder, model("mode: off")).policy_for("x").mode is Mode.OFF


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("192.168.1.5", False),
        ("localhost.example.com", False),
        ("myhost", False),
    ],
)
def test_b134_only_a_loopback_address_is_called_one(host: str, expected: bool) -> None:
    assert is_loopback(Address(host, 80)) is expected
