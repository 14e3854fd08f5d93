"""Presets by kind of server: what they set, what they leave alone, and that it is shown."""

from pathlib import Path

import pytest

from proxy.config import describe
from proxy.config.options import walk
from proxy.config.presets import PRESETS
from proxy.context.policy import CacheKey, Count, ModelPolicy, UsageMode
from tests.config_files import read

PRESET = "upstream: {{base_url: 'http://h/v1', preset: {}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_options_that_there_are_to_what_is_not_their_default_and_says_why(
    folder: Path, name: str
) -> None:
    known = {full.removeprefix("models[].") for full, _, _ in walk() if full.startswith("models[].")}
    options = PRESETS[name].options
    assert options
    assert set(options) <= known
    assert PRESETS[name].evidence.endswith(".")
    policy = read(folder, PRESET.format(name)).policy_for("any")
    assert policy != ModelPolicy()
    assert all(getattr(policy, option) == value for option, value in options.items())


def test_what_a_rule_says_itself_holds_over_the_preset(folder: Path) -> None:
    rules = "models: [{match: a, count: local}, {match: '*', window: 8k}]\n"
    config = read(folder, PRESET.format("llama.cpp") + rules)
    assert config.policy_for("a").count is Count.LOCAL
    assert config.policy_for("b") == ModelPolicy(window=8000, count=Count.AUTO)


SEVERAL = """\
upstream: {base_url: 'http://h/v1', preset: llama.cpp}
upstreams:
  - {name: openai, base_url: 'https://o/v1', preset: openai}
  - {name: mistral, base_url: 'https://m/v1', preset: mistral}
  - {name: other, base_url: 'https://x/v1'}
models:
  - {match: "gpt-*", upstream: openai}
  - {match: "*", window: 8k, usage: inject}
"""


def test_a_preset_holds_at_its_own_server_alone(folder: Path) -> None:
    config = read(folder, SEVERAL)
    keys = {name: config.policy_for("gpt-5", name) for name in (None, "openai", "mistral", "other")}
    assert keys[None] == keys["openai"] == ModelPolicy(prompt_cache_key=CacheKey.AUTO)
    here = ModelPolicy(window=8000)
    assert config.policy_for("m") == ModelPolicy(window=8000, count=Count.AUTO)
    assert (keys["mistral"], keys["other"]) == (here, here), "usage was given, and count is another's"
    assert config.policy_for("m", "mistral").usage is UsageMode.INJECT


def test_what_presets_set_is_shown_and_reads_back(folder: Path) -> None:
    config = read(folder, SEVERAL)
    text = describe(config)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line.partition(", where")[0] for line in comments] == [
        "# The preset llama.cpp of upstream sets count: auto",
        "# The preset openai of the upstream openai sets prompt_cache_key: auto",
        "# The preset mistral of the upstream mistral sets usage: passive",
    ]
    assert read(folder, text) == config
    assert "  count: auto\n" in describe(read(folder, PRESET.format("llama.cpp")))
