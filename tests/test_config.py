"""The configuration: what is read, what wins, and what stays hidden.

Rules. Every test goes through `load` or `describe`, and a real file where one is read. Made-up credentials are words
that occur nowhere else, so that a leak is found by looking for them.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import (
    Address,
    Checkpoints,
    Config,
    Flags,
    LogFormat,
    LogLevel,
    LogOptions,
    ModelRule,
    Secret,
    SideCalls,
    SocketFile,
    Tenant,
    Upstream,
    describe,
    load,
)
from proxy.config.values import StoreURL
from proxy.context.calibration import CalibrationPolicy
from proxy.context.policy import (
    CacheKey,
    CarryPolicy,
    DropPolicy,
    ElidePolicy,
    Mode,
    ModelPolicy,
    OnOverflow,
    RecallPolicy,
    SummaryMode,
    SummaryPolicy,
    UsageMode,
)
from proxy.errors import ConfigError
from tests.config_files import NO_FLAGS, UPSTREAM, URL, mistakes, model, only_mistake, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


# --- defaults, flags, file: what wins ---------------------------------------------------------------------------


def test_an_upstream_on_the_command_line_suffices_and_all_else_has_its_default() -> None:
    config = load(None, Flags(upstream=URL), {})
    assert config == Config(upstream=Upstream(URL))
    assert config.policy_for("any") == ModelPolicy()
    assert config.models == (ModelRule("*", ModelPolicy()),)


def test_without_file_and_upstream_the_flag_is_called_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, NO_FLAGS, {})
    assert caught.value.message.startswith("command line: --upstream: is missing")


def test_flags_win_over_the_file(folder: Path) -> None:
    text = f"listen: 127.0.0.1:1\n{UPSTREAM}models: [{{match: 'a*', window: 8k}}, {{match: b}}]\n"
    flags = Flags(upstream="https://other/v1/", listen="[::1]:0", window="32k", store="memory")
    config = read(folder, text, flags)
    assert config.listen == Address("::1", 0)
    assert config.upstream.base_url == "https://other/v1"
    assert [config.policy_for(model).window for model in ("a1", "b", "c", None)] == [32_000] * 4


def test_a_flag_stands_in_for_what_the_file_lacks(folder: Path) -> None:
    assert read(folder, "max_body: 1KiB\n", Flags(upstream=URL)).upstream == Upstream(URL)


def test_mistakes_in_flags_and_file_are_told_together(folder: Path) -> None:
    flags = Flags(upstream="ftp://x", listen="nowhere", window="-1", store="ftp://:swordfish@x/0")
    found = mistakes(folder, "max_body: many\n", flags)
    assert [(each.line, each.key) for each in found] == [
        (None, "--listen"),
        (None, "--upstream"),
        (None, "--store"),
        (None, "--window"),
        (1, "max_body"),
    ]
    assert "swordfish" not in str(found)


EVERYTHING: Final = f"""\
listen: localhost:9
{UPSTREAM}
store: memory
max_body: 64MiB
manage_deadline: 2m
capture: true
tenant: {{header: X-Tenant, secret: swordfish}}
log: {{level: debug, format: json}}
side_calls:
  deadline: 1500ms
  attempts: 3
  base_url: http://10.0.0.1/v1
  api_key: swordfish
  model: small
  reasoning_effort: low
checkpoints: {{max_entries: 5, max_bytes: 2MiB, max_age: 1h}}
models:
  - match: "*"
    window: 128Ki
    reserve_output: 1k
    margin: 0
    compact_at: 1
    compact_to: 0.25
    strategies: [summarize, elide]
    mode: off
    usage: passive
    clamp_max_tokens: no
    on_overflow: refuse
    prompt_cache_key: auto
    elide: {{keep: 0, marker: "Left out: {{tool}}"}}
    summary: {{mode: suffix, keep_recent: 0.5, keep_turns: 2, max_tokens: 99, item_characters: 100, prepare_at: 0.5,
      prompt: Sum up.}}
    drop: {{max_turns: 0, notice: ""}}
    carry: {{share: 0, tokens: 9, paths: [datei], commands: []}}
    recall: {{tokens: 500}}
    calibration: {{lowest: 1, highest: 1, min_tokens: 0}}
"""


def test_the_file_wins_over_the_defaults(folder: Path) -> None:
    policy = ModelPolicy(
        window=131_072,
        reserve_output=1000,
        margin=0.0,
        compact_at=1.0,
        compact_to=0.25,
        strategies=("summarize", "elide"),
        mode=Mode.OFF,
        usage=UsageMode.PASSIVE,
        clamp_max_tokens=False,
        on_overflow=OnOverflow.REFUSE,
        prompt_cache_key=CacheKey.AUTO,
        elide=ElidePolicy(0, "Left out: {tool}"),
        summary=SummaryPolicy(SummaryMode.SUFFIX, 0.5, 2, 99, 100, 0.5, "Sum up."),
        drop=DropPolicy(0, ""),
        carry=CarryPolicy(0.0, 9, ("datei",), ()),
        recall=RecallPolicy(500),
        calibration=CalibrationPolicy(1.0, 1.0, 0),
    )
    assert read(folder, EVERYTHING) == Config(
        listen=Address("localhost", 9),
        upstream=Upstream(URL),
        max_body=64 * 2**20,
        manage_deadline=120.0,
        capture=True,
        tenant=Tenant("X-Tenant", Secret("swordfish")),
        log=LogOptions(LogLevel.DEBUG, LogFormat.JSON),
        side_calls=SideCalls(1.5, 3, "http://10.0.0.1/v1", Secret("swordfish"), "small", "low"),
        checkpoints=Checkpoints(5, 3600.0, 2 * 2**20),
        models=(ModelRule("*", policy),),
    )


@pytest.mark.parametrize("nothing", ["", " ~", " null", " ${UNSET:-}"])
def test_a_key_without_a_value_has_its_default(folder: Path, nothing: str) -> None:
    text = f"{UPSTREAM}listen:{nothing}\nlog:\nmodels:\n  - match: '*'\n    window:{nothing}\n    elide:\n"
    assert read(folder, text) == load(None, Flags(upstream=URL), {})


def test_an_empty_file_lacks_the_upstream_alone(folder: Path) -> None:
    assert (only_mistake(folder, "# nothing\n").line, only_mistake(folder, "").key) == (
        1,
        "upstream.base_url",
    )


# --- which policy -----------------------------------------------------------------------------------------------

RULES: Final = f"""{UPSTREAM}
models:
  - match: "gpt-4*"
    window: 1
  - match: "gpt-*"
    window: 2
  - match: "[qQ]wen?/*"
    window: 3
"""


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o", 1),
        ("gpt-5", 2),
        ("GPT-5", None),
        ("qwen3/big", 3),
        ("Qwen3/a/b", 3),
        ("my gpt-4o", None),
        ("", None),
    ],
)
def test_the_first_pattern_that_matches_decides(folder: Path, model: str, window: int | None) -> None:
    assert read(folder, RULES).policy_for(model).window == window


@pytest.mark.parametrize("odd", [None, 7, True, "", [], {}, ["gpt-4o"], b"gpt-4o"])
def test_a_missing_or_odd_model_matches_only_the_star(folder: Path, odd: object) -> None:
    text = f"{UPSTREAM}models: [{{match: '**', window: 1}}, {{match: '*', window: 2}}]"
    assert read(folder, text).policy_for(odd).window == 2
    assert read(folder, text).policy_for("x").window == 1


def test_b63_a_configured_window_holds_for_a_model_with_a_famous_name(folder: Path) -> None:
    text = f"{UPSTREAM}models: [{{match: deepseek-v4-flash, window: 32768}}]"
    config = read(folder, text)
    assert config.policy_for("deepseek-v4-flash").window == 32_768
    assert config.policy_for("unheard-of").window is None


@pytest.mark.parametrize("unknown", ["0", "0k", "null", "'0'", "${UNSET:-}"])
def test_a_window_of_zero_is_unknown(folder: Path, unknown: str) -> None:
    assert read(folder, model(f"window: {unknown}")).policy_for("a").window is None


def test_a_window_of_zero_on_the_command_line_takes_back_that_of_the_file(folder: Path) -> None:
    assert read(folder, model("window: 8k"), Flags(window="0")).policy_for("a").window is None


def test_a_config_without_a_last_rule_falls_back_to_the_defaults() -> None:
    assert Config(upstream=Upstream(URL), models=()).policy_for("x") == ModelPolicy()


# --- the environment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "environ", "name"),
    [
        ("${MODEL}", {"MODEL": "a"}, "a"),
        ("x-${MODEL}-${SIZE:-7b}", {"MODEL": "a"}, "x-a-7b"),
        ("${MODEL:-b}", {"MODEL": ""}, "b"),
        ("'${MODEL:-a: b, c}'", {}, "a: b, c"),
        ("$$", {}, "$"),
        ("$${MODEL}", {"MODEL": "a"}, "${MODEL}"),
        ("a$5 b$", {}, "a$5 b$"),
        ("${MODEL:-$$5}", {}, "$5"),
        ("${MODEL}", {"MODEL": "$${X} ${Y} {a: b} # c"}, "$${X} ${Y} {a: b} # c"),
        ('"${MODEL}"', {"MODEL": 'a"b'}, 'a"b'),
        ("${M_2}", {"M_2": "  a  "}, "a"),
    ],
)
def test_references_are_resolved_as_text(
    folder: Path, text: str, environ: Mapping[str, str], name: str
) -> None:
    assert read(folder, f"{UPSTREAM}side_calls:\n  model: {text}\n", environ=environ).side_calls.model == name


def test_every_kind_of_value_may_come_from_the_environment(folder: Path) -> None:
    text = """\
listen: ${HOST}:${PORT:-80}
upstream: {base_url: "${URL}"}
models:
  - match: ${PATTERN}
    window: ${WINDOW}
    mode: ${MODE}
    clamp_max_tokens: ${CLAMP}
    strategies: ["${FIRST}", drop]
"""
    environ = {
        "HOST": "localhost",
        "URL": URL,
        "PATTERN": "a*",
        "WINDOW": "8k",
        "MODE": "off",
        "CLAMP": "off",
        "FIRST": "summarize",
    }
    config = read(folder, text, environ=environ)
    expected = ModelPolicy(
        window=8000, mode=Mode.OFF, clamp_max_tokens=False, strategies=("summarize", "drop")
    )
    assert config.listen == Address("localhost", 80)
    assert config.models[0] == ModelRule("a*", expected)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("${ABSENT}", "the environment variable ABSENT is not set; set it, or write ${ABSENT:-default}"),
        ("${ABSENT}${GONE}${ABSENT}", "the environment variables ABSENT, GONE are not set"),
        ("$ABSENT", "$ that starts no reference"),
        ("${ABSENT", "$ that starts no reference"),
        ("${}", "$ that starts no reference"),
        ("${A-B}", "$ that starts no reference"),
        ("${A:-${B:-c}}", "$ that starts no reference"),
        ('"\\ud800"', "half a character"),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_a_mistake(folder: Path, value: str, says: str) -> None:
    mistake = only_mistake(folder, f"{UPSTREAM}side_calls:\n  model: {value}\n")
    assert (mistake.line, mistake.key) == (3, "side_calls.model")
    assert says in mistake.problem


def test_a_required_value_that_comes_out_empty_is_missing(folder: Path) -> None:
    mistake = only_mistake(folder, "upstream:\n  base_url: ${URL:-}\n")
    assert (mistake.line, mistake.key) == (2, "upstream.base_url")


# --- credentials ------------------------------------------------------------------------------------------------

KEYS: Final = """\
upstream: {base_url: "http://h/v1", api_key: "${KEY}"}
side_calls: {api_key: " marlinspike "}
"""


def test_a_credential_is_read_and_shows_itself_nowhere(folder: Path) -> None:
    config = read(folder, KEYS, environ={"KEY": "swordfish\n"})
    assert config.upstream.api_key is not None
    assert config.upstream.api_key.reveal() == "swordfish"
    shown = [repr(config), str(config), f"{config}", describe(config), str(dataclasses.asdict(config))]
    shown += [f"{config.upstream.api_key}", f"{config.upstream.api_key!r:>40}"]
    for text in shown:
        assert "swordfish" not in text
        assert "marlinspike" not in text
    assert config.side_calls.api_key == Secret("marlinspike")


def test_credentials_are_equal_by_their_text_alone() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


@pytest.mark.parametrize("empty", ["", "''", "'  '", "${ABSENT:-}", "'${ABSENT:-}'", "null"])
def test_an_empty_credential_is_none(folder: Path, empty: str) -> None:
    text = f"upstream:\n  base_url: {URL}\n  api_key: {empty}\n"
    assert read(folder, text).upstream.api_key is None


@pytest.mark.parametrize("key", ["sword fish", "sword\\nfish", "swordfish\\u00e9", "(set, hidden)"])
def test_a_credential_that_cannot_be_one_is_refused_unseen(folder: Path, key: str) -> None:
    mistake = only_mistake(folder, f'upstream:\n  base_url: {URL}\n  api_key: "{key}"\n')
    assert (mistake.line, mistake.key) == (3, "upstream.api_key")
    assert mistake.problem.startswith("the value ")
    assert "fish" not in mistake.problem


@pytest.mark.parametrize(
    "place", ["listen: ${KEY}", "max_body: x${KEY}", "log: {level: '${KEY}'}", "store: ${KEY}"]
)
def test_what_came_from_the_environment_is_never_repeated(folder: Path, place: str) -> None:
    assert "swordfish" not in str(only_mistake(folder, f"{UPSTREAM}{place}", environ={"KEY": "swordfish"}))


def test_a_default_of_a_reference_is_never_repeated(folder: Path) -> None:
    assert "swordfish" not in str(only_mistake(folder, f"{UPSTREAM}max_body: ${{KEY:-swordfish}}"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:swordfish@h:6380/2", "redis://***@h:6380/2"),
        ("rediss://swordfish:marlinspike@h", "rediss://***@h"),
        ("redis://user:sword@fish@[::1]:1/0", "redis://***@[::1]:1/0"),
        ("redis://user:sword%40fish%2F@h/0", "redis://***@h/0"),
        ("redis://swordfish@h/0", "redis://***@h/0"),
    ],
)
def test_the_credentials_of_a_store_are_read_and_shown_nowhere(folder: Path, url: str, shown: str) -> None:
    config = read(folder, f"{UPSTREAM}store: ${{STORE}}\n", environ={"STORE": f" {url} "})
    assert config.store.reveal() == url
    assert yaml.safe_load(describe(config))["store"] == shown
    for text in (repr(config), f"{config.store}", describe(config), str(dataclasses.asdict(config))):
        assert "fish" not in text
        assert "marlinspike" not in text


@pytest.mark.parametrize(
    "url",
    [
        "memory",
        "sqlite:///transom.db",
        "sqlite:////var/lib/transom/a b@c.db",
        "redis://h",
        "redis://127.0.0.1:6379",
        "rediss://redis.example.com:6380/15",
    ],
)
def test_a_store_without_credentials_is_shown_as_it_is(folder: Path, url: str) -> None:
    config = read(folder, f"{UPSTREAM}store: {url}\n")
    assert config.store == StoreURL(url)
    assert yaml.safe_load(describe(config))["store"] == url
    assert read(folder, UPSTREAM, Flags(store=url)).store == StoreURL(url)


# --- the resolved view ------------------------------------------------------------------------------------------


def test_the_resolved_view_is_yaml_with_every_option_and_hidden_keys(folder: Path) -> None:
    shown = yaml.safe_load(describe(read(folder, KEYS, environ={"KEY": "swordfish"})))
    assert shown["upstream"]["api_key"] == "(set, hidden)"
    assert shown["listen"] == "127.0.0.1:8787"
    assert shown["upstream"]["connect_timeout"] == "10s"
    assert shown["max_body"] == "256MiB"
    assert shown["models"][0]["match"] == "*"
    assert shown["models"][0]["window"] is None
    assert shown["models"][0]["strategies"] == ["images", "elide", "summarize", "drop", "shorten"]
    assert " ".join(shown) == (
        "listen upstream upstreams store workers max_body client_idle_timeout manage_deadline ready_needs_upstream"
        " capture auth admin tenant log telemetry side_calls discovery checkpoints models"
    )


def test_the_resolved_view_names_what_holds_for_models_without_a_rule(folder: Path) -> None:
    shown = yaml.safe_load(describe(read(folder, f"{UPSTREAM}models: [{{match: a, window: 5}}]")))
    assert [(rule["match"], rule["window"]) for rule in shown["models"]] == [("a", 5), ("*", None)]


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(int(low * 10**9), int(high * 10**9)).map(lambda billionths: billionths / 10**9)


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAMES: Final = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
SECONDS: Final = st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
WORDS: Final = TEXTS.map(lambda text: f"Gone: {text.replace('{', '{{').replace('}', '}}')} ")

POLICIES: Final = st.builds(
    ModelPolicy,
    window=st.none() | st.integers(1, 10**12),
    reserve_output=st.integers(0, 10**7),
    margin=floats(0, 0.49),
    compact_at=floats(0.6, 1),
    compact_to=floats(1e-9, 0.5),
    strategies=st.permutations(["elide", "summarize", "drop"]).map(tuple),
    mode=st.sampled_from(Mode),
    usage=st.sampled_from(UsageMode),
    clamp_max_tokens=st.booleans(),
    on_overflow=st.sampled_from(OnOverflow),
    elide=st.builds(ElidePolicy, st.integers(0, 99), WORDS.map(lambda text: f"{text}{{tool}}")),
    summary=st.builds(
        SummaryPolicy,
        st.sampled_from(SummaryMode),
        floats(1e-9, 1),
        st.integers(0, 99),
        st.integers(16, 10**6),
        st.integers(100, 10**6),
        floats(0, 1),
        TEXTS,
    ),
    drop=st.builds(DropPolicy, st.none() | st.integers(0, 99), WORDS | st.just("")),
    carry=st.builds(CarryPolicy, floats(0, 0.5), st.integers(0, 10**6)),
    recall=st.builds(RecallPolicy, st.integers(0, 10**6)),
    calibration=st.builds(CalibrationPolicy, floats(1e-9, 1), floats(1, 999), st.integers(0, 10**6)),
)
STORES: Final = (
    "memory",
    "sqlite:///a b$.db",
    "sqlite:////var/lib/transom.db",
    "redis://[::1]:1/3",
    "rediss://h",
)
CONFIGS: Final = st.builds(
    Config,
    upstream=st.builds(Upstream, st.just(URL), connect_timeout=SECONDS, idle_timeout=SECONDS),
    listen=st.builds(
        Address, st.sampled_from(["localhost", "0.0.0.0", "::1", "fe80::1"]), st.integers(0, 65535)
    )
    | st.builds(SocketFile, st.sampled_from(["/run/transom.sock", "a b$.sock"])),
    max_body=st.integers(1, 10**15),
    manage_deadline=SECONDS,
    store=st.sampled_from(STORES).map(StoreURL),
    log=st.builds(LogOptions, st.sampled_from(LogLevel), st.sampled_from(LogFormat)),
    side_calls=st.builds(
        SideCalls,
        SECONDS,
        st.integers(1, 9),
        st.none() | st.just(f"{URL}/$x"),
        model=st.none() | NAMES,
        reasoning_effort=st.none() | NAMES,
    ),
    checkpoints=st.builds(Checkpoints, st.integers(1, 10**9), SECONDS, st.integers(1, 10**15)),
    models=st.lists(
        st.builds(ModelRule, NAMES.filter("*".__ne__), POLICIES),
        max_size=2,
        unique_by=lambda rule: rule.match,
    ).flatmap(lambda rules: POLICIES.map(lambda last: (*rules, ModelRule("*", last)))),
)


@settings(deadline=None, max_examples=40)
@given(CONFIGS)
def test_the_resolved_view_read_again_gives_the_same_configuration_and_the_same_text(
    folder: Path, config: Config
) -> None:
    text = describe(config)
    again = read(folder, text)
    assert again == config
    assert describe(again) == text
