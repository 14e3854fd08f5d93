"""Several upstreams in a configuration: what is read, which rule holds where, and what is shown of them."""

from pathlib import Path

import pytest
import yaml

from proxy.config import Config, Secret, Upstream, describe
from proxy.config.values import DEFAULT, NamedUpstream
from tests.config_files import UPSTREAM, URL, read

SEVERAL = f"""{UPSTREAM}
upstreams:
  - name: openai
    base_url: https://openai.example/v1
    api_key: ${{KEY}}
    slots: 8
  - name: lab
    base_url: http://10.0.0.2:8080/v1
models:
  - match: "gpt-*"
    upstream: openai
    window: 400k
  - match: "*"
    upstream: default
    window: 32k
  - match: "gpt-*"
    window: 8k
  - match: "*"
    upstream: lab
    window: 16k
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return read(tmp_path, SEVERAL, environ={"KEY": "swordfish"})


def test_each_has_its_own_options_and_those_that_are_left_out_have_their_defaults(config: Config) -> None:
    openai = Upstream("https://openai.example/v1", Secret("swordfish"), slots=8)
    lab = Upstream("http://10.0.0.2:8080/v1")
    assert config.upstreams == (NamedUpstream("openai", openai), NamedUpstream("lab", lab))
    assert dict(config.servers) == {DEFAULT: Upstream(URL), "openai": openai, "lab": lab}


@pytest.mark.parametrize(
    ("model", "named", "upstream", "window"),
    [
        ("gpt-5", None, "openai", 400_000),
        ("qwen", None, DEFAULT, 32_000),
        ("", None, DEFAULT, 32_000),
        ("gpt-5", "openai", "openai", 400_000),
        ("gpt-5", "lab", None, 8_000),
        ("qwen", "lab", "lab", 16_000),
        ("qwen", "openai", None, None),
    ],
)
def test_the_first_rule_holds_that_matches_the_model_and_is_not_another_servers(
    config: Config, model: str, named: str | None, upstream: str | None, window: int | None
) -> None:
    rule = config.rule_for(model, named)
    assert (rule.upstream, rule.policy.window) == (upstream, window)


def test_the_resolved_view_holds_all_of_them_with_keys_hidden_and_reads_back(
    tmp_path: Path, config: Config
) -> None:
    text = describe(config)
    assert "swordfish" not in text
    shown = yaml.safe_load(text)
    assert [each["name"] for each in shown["upstreams"]] == ["openai", "lab"]
    assert [rule["upstream"] for rule in shown["models"]] == ["openai", "default", None, "lab", None]
    again = read(tmp_path, text.replace("(set, hidden)", "swordfish"))
    assert again == config


def test_a_key_or_a_model_for_summaries_is_not_another_servers_unless_all_are_written_in_one_place(
    tmp_path: Path,
) -> None:
    text = f"{SEVERAL}side_calls: {{api_key: swordfish, model: small, attempts: 3}}\n"
    calls = read(tmp_path, text, environ={"KEY": "a"})
    assert (calls.side_calls_of(DEFAULT).api_key, calls.side_calls_of(DEFAULT).model) == (
        Secret("swordfish"),
        "small",
    )
    other = calls.side_calls_of("openai")
    assert (other.api_key, other.model, other.attempts) == (None, None, 3)
    elsewhere = read(
        tmp_path, text.replace("{api_key", "{base_url: 'http://s/v1', api_key"), environ={"KEY": "a"}
    )
    assert elsewhere.side_calls_of("openai") == elsewhere.side_calls
