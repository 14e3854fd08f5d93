"""The options that say who may come in: what is taken, what is a mistake, and that no token is ever shown."""

from pathlib import Path

import pytest
import yaml

from proxy.config import Address, Flags, Secret, describe, is_loopback, load
from proxy.config.values import Admin, Auth
from tests.config_files import NAME, UPSTREAM, URL, mistakes, only_mistake, read

AUTH = f"{UPSTREAM}auth:\n"
TOKEN = "swordfish"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def tokens_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "tokens.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def reveal(auth: Auth) -> list[str]:
    return [token.reveal() for token in auth.accepted]


def test_without_the_section_and_with_an_empty_one_everybody_may_come_in(folder: Path) -> None:
    for text in (UPSTREAM, AUTH, f"{AUTH}  tokens:\n  tokens_file:\n", f"{AUTH}  tokens: []\n"):
        assert read(folder, text).auth == Auth()
    assert Auth().accepted == ()


def test_tokens_come_from_the_environment_and_from_a_file(folder: Path) -> None:
    path = tokens_file(folder, "\ufeff# for the team\n\n  two  \r\nthree\n#four\n")
    text = f"{AUTH}  tokens:\n    - ${{TOKEN}}\n    - 1234\n  tokens_file: {path}\n"
    config = read(folder, text, environ={"TOKEN": TOKEN})
    assert config.auth.tokens == (Secret(TOKEN), Secret("1234"))
    assert reveal(config.auth) == [TOKEN, "1234", "two", "three"]


def test_no_token_is_shown_by_the_resolved_view_or_by_a_value(folder: Path) -> None:
    path = tokens_file(folder, f"{TOKEN}\n")
    config = read(folder, f"{AUTH}  tokens: [{TOKEN}1, {TOKEN}2]\n  tokens_file: {path}\n")
    shown = yaml.safe_load(describe(config))["auth"]
    assert shown == {"tokens": ["(set, hidden)", "(set, hidden)"], "tokens_file": str(path)}
    assert TOKEN not in repr(config)


EMPTY = ["    - ${TOKEN:-}\n", '    - "${TOKEN:-}"\n', '    - ""\n', "    -\n", "    - ~\n", '    - "  "\n']


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("other", ["", "    - other\n"])
def test_an_empty_token_is_a_mistake_and_never_no_token_at_all(folder: Path, empty: str, other: str) -> None:
    mistake = only_mistake(folder, f"{AUTH}  tokens:\n{empty}{other}")
    assert str(mistake).startswith(f"{folder / NAME}:4: auth.tokens[0]: the value is empty")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (f"[{TOKEN}, {TOKEN}]", "'(set, hidden)' is in the list twice"),
        (TOKEN, "must be a list"),
        (f"{{{TOKEN}: x}}", "must be a list"),
        ("[sword fish]", "characters that no credential may have"),
        ("[schwärdfish]", "characters that no credential may have"),
        ("['(set, hidden)']", "stands for a hidden credential"),
    ],
)
def test_what_is_no_list_of_tokens_is_told_without_showing_it(folder: Path, value: str, problem: str) -> None:
    mistake = only_mistake(folder, f"{AUTH}  tokens: {value}\n")
    assert problem in mistake.problem
    assert "fish" not in str(mistake)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no token"),
        ("\n# nothing yet\n", "holds no token"),
        ("one\nsword fish\n", "has on line 2 what holds characters"),
        ("schwärdfish\n", "has on line 1 what holds characters"),
        (b"\xff\xfe\x00", "is no file of text"),
    ],
)
def test_a_file_without_a_good_token_is_a_mistake(folder: Path, text: str | bytes, problem: str) -> None:
    mistake = only_mistake(folder, f"{AUTH}  tokens_file: {tokens_file(folder, text)}\n")
    assert problem in mistake.problem
    assert "fish" not in mistake.problem


def test_a_file_that_cannot_be_read_is_a_mistake(folder: Path) -> None:
    gone = only_mistake(folder, f"{AUTH}  tokens_file: {folder / 'nowhere.txt'}\n")
    assert gone.problem.endswith("cannot be read: No such file or directory")
    assert "Is a directory" in only_mistake(folder, f"{AUTH}  tokens_file: {folder}\n").problem
    assert only_mistake(folder, f'{AUTH}  tokens_file: "a\\0b"\n').problem.endswith("save it as UTF-8")


def test_the_endpoints_of_our_own_have_an_address_and_names(folder: Path) -> None:
    text = f'{UPSTREAM}admin:\n  listen: "[::1]:8788"\n  hosts: [Proxy.LAN, transom.]\n'
    assert read(folder, text).admin == Admin(Address("::1", 8788), ("proxy.lan", "transom"))
    assert read(folder, UPSTREAM).admin == Admin()


@pytest.mark.parametrize(
    "host", ["http://proxy.lan", "proxy.lan:8787", "*", "a..b", "two words", '""', "[::1]"]
)
def test_a_name_of_a_host_is_one_without_scheme_and_port(folder: Path, host: str) -> None:
    found = mistakes(folder, f"{UPSTREAM}admin:\n  hosts:\n    - '{host}'\n")
    assert ["is no name of a host" in each.problem for each in found] == [True]


def test_b134_the_default_address_is_reachable_from_this_machine_alone() -> None:
    config = load(None, Flags(upstream=URL), {})
    assert str(config.listen) == "127.0.0.1:8787"
    assert is_loopback(config.listen)
    assert config.upstream.api_key is None


def test_a_file_of_instructions_is_read_with_the_configuration(folder: Path) -> None:
    (file := folder / "prompt.txt").write_text("\ufeffSum up.\n", encoding="utf-8")
    text = f"{UPSTREAM}side_calls:\n  prompt_file: "
    assert read(folder, f"{text}{file}\n").side_calls.prompt == "Sum up."
    file.write_text(" \n", encoding="utf-8")
    assert "is empty" in only_mistake(folder, f"{text}{file}\n").problem
    assert "cannot be read" in only_mistake(folder, f"{text}{file}.txt\n").problem
