"""What a configuration file is refused for, and where.

Rules. A mistake is tested by its whole place, line and key, and by what it says. One mistake in a file is told once and
nothing else with it. The word swordfish stands for a credential and is in no message.
"""

from pathlib import Path
from typing import Final

import pytest

from proxy.config import InvalidConfig, load
from proxy.errors import ConfigError
from tests.config_files import NAME, NO_FLAGS, UPSTREAM, model, only_mistake, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


def test_five_mistakes_are_told_at_once_each_with_its_line(folder: Path) -> None:
    text = """\
listen: 8787
upstream:
  base_url: http://user:swordfish@host/v1
  conect_timeout: 10s
models:
  - match: "*"
    compact_at: 85
    strategies:
      - elide
      - sumarize
"""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    lines = caught.value.message.splitlines()
    path = folder / NAME
    assert [line.rpartition(f"{path}:")[2].split(": ")[:2] for line in lines] == [
        ["1", "listen"],
        ["3", "upstream.base_url"],
        ["4", "upstream.conect_timeout"],
        ["7", "models[0].compact_at"],
        ["10", "models[0].strategies[1]"],
    ]
    assert "did you mean connect_timeout?" in lines[2]
    assert "85 % is written 0.85" in lines[3]
    assert "did you mean summarize?" in lines[4]
    assert "swordfish" not in caught.value.message


SEVERAL: Final = f"{UPSTREAM}upstreams:\n  - {{name: openai, base_url: 'https://o/v1'}}\n"
MISTAKES: Final = (
    # unknown, misplaced, repeated
    (f"{UPSTREAM}lisen: a", 2, "lisen", "unknown key; did you mean listen?"),
    (f"{UPSTREAM}zzz: 1", 2, "zzz", "known here are listen, upstream, upstreams, store"),
    (f"{UPSTREAM}window: 1", 2, "window", "did you mean models[].window?"),
    (f"api_key: a\n{UPSTREAM}", 1, "api_key", "did you mean upstream.api_key or side_calls.api_key?"),
    (f"{UPSTREAM}store: memory\n\nstore: memory", 4, "store", "given twice, first on line 2"),
    (model("elide: {keep: 1, 'keep': 2}"), 4, "models[0].elide.keep", "given twice, first on line 4"),
    (f"{UPSTREAM}upstream: {{}}", 2, "upstream", "given twice, first on line 1"),
    (f"{UPSTREAM}? [a]\n: b", 2, "(file)", "no plain text"),
    (f"{UPSTREAM}log: {{<<: {{level: info}}}}", 2, "log.'<<'", "merge keys"),
    (f'{UPSTREAM}"a\\nb": 1', 2, "'a\\nb'", "unknown key"),
    # several upstreams
    (f"{SEVERAL}models:\n  - match: a\n    upstream: opnai", 6, "models[0].upstream", "did you mean openai?"),
    (
        f"{SEVERAL}models:\n  - {{match: a, upstream: x}}",
        5,
        "models[0].upstream",
        "known are default, openai",
    ),
    (f"{SEVERAL}  - {{name: openai, base_url: 'http://h'}}", 4, "upstreams[1].name", "of an earlier one"),
    (
        f"{SEVERAL}  - {{name: default, base_url: 'http://h'}}",
        4,
        "upstreams[1].name",
        "names the section upstream",
    ),
    (f"{SEVERAL}  - {{name: v1, base_url: 'http://h'}}", 4, "upstreams[1].name", "no version like v1"),
    (f"{SEVERAL}  - {{name: A/b, base_url: 'http://h'}}", 4, "upstreams[1].name", "no name of an upstream"),
    (f"{SEVERAL}  - {{base_url: 'http://h'}}", 4, "upstreams[1].name", "is missing. What paths"),
    (f"{SEVERAL}  - {{name: b}}", 4, "upstreams[1].base_url", "is missing"),
    (f"{UPSTREAM}upstreams: {{openai: 1}}", 2, "upstreams", 'each element begins with - name: "..."'),
    (f"{SEVERAL}models: [{{match: '*'}}, {{match: a, upstream: openai}}]", 4, "models[1].match", "rule 0"),
    # what was meant by a misspelt key is not called missing as well
    ("upstream:\n  base-url: http://h/v1", 2, "upstream.base-url", "did you mean base_url?"),
    ("upstrem: {}", 1, "upstrem", "did you mean upstream?"),
    ("base_url: http://h/v1", 1, "base_url", "did you mean upstream.base_url or side_calls.base_url?"),
    # missing
    ("store: memory\nupstream:\n  api_key: a", 2, "upstream.base_url", "is missing"),
    ("upstream:\n  api_key:\n  base_url:", 3, "upstream.base_url", "is missing"),
    (f"{UPSTREAM}models:\n  - match: a\n  - window: 1", 4, "models[1].match", "is missing"),
    # shapes
    ("- listen", 1, "(file)", "must hold keys of its own"),
    ("listen", 1, "(file)", "must hold keys of its own"),
    (f"{UPSTREAM}log: info", 2, "log", "must hold keys of its own: level, format"),
    ("upstream:\n  - base_url", 1, "upstream", "must hold keys of its own"),
    (f"{UPSTREAM}models: {{match: a}}", 2, "models", "must be a list"),
    (f"{UPSTREAM}models:\n  - gpt", 3, "models[0]", "must hold keys of its own"),
    (f"{UPSTREAM}listen: [a]", 2, "listen", "must be a single value"),
    (f"{UPSTREAM}listen: {{a: b}}", 2, "listen", "must be a single value"),
    (model("strategies: elide"), 4, "models[0].strategies", "must be a list"),
    (model("strategies: [[elide]]"), 4, "models[0].strategies[0]", "must be a single value"),
    (f"{UPSTREAM}listen: !!python/name:os.system 'a:1'", 2, "listen", "tag"),
    (f"{UPSTREAM}log: !!python/dict {{}}", 2, "log", "must hold keys of its own"),
    (model("strategies: !odd [elide]"), 4, "models[0].strategies", "must be a list"),
    # numbers
    (model("window: -1"), 4, "models[0].window", "'-1' is not a whole number"),
    (model("window: 128kk"), 4, "models[0].window", "not a whole number"),
    (model("window: 1.5"), 4, "models[0].window", "not a whole number"),
    (model("window: 1e6"), 4, "models[0].window", "not a whole number"),
    (model("window: 1:30"), 4, "models[0].window", "'1:30' is not a whole number"),
    (model("window: true"), 4, "models[0].window", "'true' is not a whole number"),
    (model("window: 999999999999999M"), 4, "models[0].window", "too large"),
    (model(f"window: {'9' * 5000}"), 4, "models[0].window", "not a whole number"),
    (model("summary: {max_tokens: 15}"), 4, "models[0].summary.max_tokens", "the least is 16"),
    (f"{UPSTREAM}side_calls: {{attempts: 0}}", 2, "side_calls.attempts", "the least is 1"),
    (model("compact_at: 1.01"), 4, "models[0].compact_at", "more than 0 and at most 1"),
    (model("compact_to: 0"), 4, "models[0].compact_to", "more than 0 and at most 1"),
    (model("compact_to: .nan"), 4, "models[0].compact_to", "not a decimal number"),
    (model("compact_to: 50%"), 4, "models[0].compact_to", "not a decimal number"),
    (model("margin: 0.5"), 4, "models[0].margin", "less than 0.5"),
    (model("summary: {keep_recent: 2}"), 4, "models[0].summary.keep_recent", "at most 1"),
    (model("calibration: {lowest: 2}"), 4, "models[0].calibration.lowest", "at most 1"),
    (model("calibration: {highest: 0.5}"), 4, "models[0].calibration.highest", "at least 1"),
    # durations and sizes
    (f"{UPSTREAM}side_calls: {{deadline: soon}}", 2, "side_calls.deadline", "'soon' is not a duration"),
    (f"{UPSTREAM}side_calls: {{deadline: 0}}", 2, "side_calls.deadline", "from 1ms"),
    (f"{UPSTREAM}side_calls: {{deadline: 0.5ms}}", 2, "side_calls.deadline", "whole number of milliseconds"),
    (f"{UPSTREAM}side_calls: {{deadline: 99999d}}", 2, "side_calls.deadline", "to 3650d"),
    (f"{UPSTREAM}max_body: 64M", 2, "max_body", "'64M' is not a size"),
    (f"{UPSTREAM}max_body: 0", 2, "max_body", "the least is 1"),
    (f"{UPSTREAM}max_body: 0.5B", 2, "max_body", "is not a size"),
    # words
    (model("mode: manag"), 4, "models[0].mode", "none of manage, observe, off; did you mean manage?"),
    (model("usage: maybe"), 4, "models[0].usage", "none of inject, passive"),
    (model("on_overflow: 400"), 4, "models[0].on_overflow", "none of forward, refuse"),
    (model("clamp_max_tokens: 2"), 4, "models[0].clamp_max_tokens", "neither true nor false"),
    (f"{UPSTREAM}log: {{level: loud}}", 2, "log.level", "none of debug, info, warning, error"),
    (
        model("strategies: [elide, magic]"),
        4,
        "models[0].strategies[1]",
        "'magic' is no strategy of this version",
    ),
    (model("strategies: [elide, drop, elide]"), 4, "models[0].strategies[2]", "twice"),
    (f"{UPSTREAM}models: [{{match: ''}}]", 2, "models[0].match", "is no name"),
    (f'{UPSTREAM}side_calls: {{model: "a\\nb"}}', 2, "side_calls.model", "is no name"),
    # stores
    *(
        (f"{UPSTREAM}store: '{url}'", 2, "store", says)
        for url, says in (
            ("Memory", "write memory, sqlite:///transom.db"),
            ("memory://", "is no store of this version"),
            ("postgres://swordfish@h/0", "is no store of this version"),
            ("redis:h", "is no store of this version"),
            ("transom.db", "sqlite:////var/lib/transom/transom.db"),
            ("sqlite://transom.db", "has no third slash"),
            ("sqlite:///", "names no file"),
            ("sqlite:////var/lib/", "names no file"),
            ("sqlite:///:memory:", "write memory"),
            ("sqlite:///~/transom.db", "${HOME}"),
            ("sqlite:///a.db?mode=ro", "takes no options"),
            ("redis://", "redis://host:6379/0"),
            ("redis:///0", "redis://host:6379/0"),
            ("redis://h:0", "no address of a server"),
            ("redis://h:99999", "no address of a server"),
            ("redis://[::1/0", "no address of a server"),
            ("redis://h h/0", "no address of a server"),
            ("redis://h/mine", "number of a database"),
            ("redis://h/0/", "number of a database"),
            ("redis://h/0?password=swordfish", "takes no options"),
            ("rediss://:sword#fish@h/0", "%23"),
            ("redis://:sword/fish@h/0", "is %2F"),
            ("redis://user:12/swordfish@h/0", "number of a database"),
            ("redis://***@h/0", "stands for hidden credentials"),
        )
    ),
    # places
    *(
        (f"{UPSTREAM}listen: '{address}'", 2, "listen", "HOST:PORT")
        for address in ("8787", ":8787", "*:8787", "::1:8787", "[::1]", "a b:1", "http://h:1", "h:99999999")
    ),
    *(
        (f"{UPSTREAM}listen: '{address}'", 2, "listen", "write for example unix:/run/transom.sock")
        for address in ("unix:", "unix:/run/", "unix://run/a.sock", "unix:~/a.sock", "unix:/a\tb")
    ),
    (f"{UPSTREAM}listen: h:65536", 2, "listen", "above 65535"),
    (f"{UPSTREAM}listen: 256.0.0.1:80", 2, "listen", "no IP address"),
    (f"{UPSTREAM}listen: '[1::2::3]:80'", 2, "listen", "no IP address"),
    *(
        (f"upstream: {{base_url: '{url}'}}", 1, "upstream.base_url", says)
        for url, says in (
            ("127.0.0.1:8080/v1", "no URL"),
            ("ftp://host/v1", "no URL"),
            ("http:///v1", "no URL"),
            ("http://h:0/v1", "no URL"),
            ("http://h:99999/v1", "no URL"),
            ("http://[::1/v1", "no URL"),
            ("http://a b/v1", "no URL"),
            ("unix:/run/a.sock", "http+unix://%2Frun%2Fllama.sock/v1"),
            ("unix:///run/a.sock", "%2F for each /"),
            ("http+unix:///run/a.sock/v1", "%2F for each /"),
            ("http+unix://run/v1", "the socket's whole path"),
            ("http+unix://run%2Fa.sock/v1", "the socket's whole path"),
            ("http+unix://%2Frun%2F/v1", "the socket's whole path"),
            ("http+unix://%2Frun%00/v1", "the socket's whole path"),
            ("https+unix://%2Fa.sock/v1", "no URL"),
            ("http+unix://swordfish@%2Fa.sock/v1", "user or a password"),
            ("http+unix://%2Fa.sock/v1/chat/completions", "up to and including /v1"),
            ("http://swordfish@h/v1", "user or a password"),
            ("http://h/v1?key=swordfish", "query"),
            ("http://h/v1#swordfish", "fragment"),
            ("http://h/v1/chat/completions/", "up to and including /v1"),
        )
    ),
    # templates
    (model("elide: {marker: 'gone: {name}'}"), 4, "models[0].elide.marker", "{tool}, {characters}, {lines}"),
    (model("elide: {marker: 'gone: {}'}"), 4, "models[0].elide.marker", "not known"),
    (model("elide: {marker: 'gone: {tool.x}'}"), 4, "models[0].elide.marker", "not known"),
    (model("elide: {marker: 'gone: {tool!r}'}"), 4, "models[0].elide.marker", "not known"),
    (model("elide: {marker: 'gone: {lines:>9}'}"), 4, "models[0].elide.marker", "not known"),
    (model("elide: {marker: 'gone: {tool'}"), 4, "models[0].elide.marker", "brace"),
    (model("elide: {marker: '{tool}'}"), 4, "models[0].elide.marker", "words of its own"),
    (model("elide: {marker: ''}"), 4, "models[0].elide.marker", "words of its own"),
    (model(f"elide: {{marker: {'x' * 501}}}"), 4, "models[0].elide.marker", "the most is 500"),
    (model("drop: {notice: 'gone: {turns}'}"), 4, "models[0].drop.notice", "fields are {messages}"),
    # values together
    (
        model("compact_to: 1"),
        4,
        "models[0].compact_to",
        "compact_to is 1.0, compact_at is 1.0 by default",
    ),
    (model("compact_at: 0.3"), 4, "models[0].compact_at", "compact_to is 0.36 by default"),
    (model("compact_at: 0.5\n    compact_to: 0.5"), 5, "models[0].compact_to", "compact_to < compact_at"),
    (f"{UPSTREAM}models:\n  - match: '*'\n  - match: a", 4, "models[1].match", "never applies"),
    (f"{UPSTREAM}models:\n  - match: a\n  - match: a", 4, "models[1].match", "never applies"),
    # broken files
    ("a: b\n\tc: d", 2, "(file)", "broken YAML"),
    ("listen: [::1]:8787", 1, "(file)", "does a value need quotes?"),
    ("a: [", 1, "(file)", "broken YAML"),
    ("a: *swordfish", 1, "(file)", "undefined alias"),
    ("a: !swordfish!b c", 1, "(file)", "undefined tag handle"),
    ('a: 1\nb: "\\U99999999"', 2, "(file)", "out of range"),
    ("a: 1\nb: \x01", 2, "(file)", "control character"),
    ("a: 1\n---\nb: 1", 2, "(file)", "another document"),
    ("[" * 1000, 1, "(file)", "nested too deeply"),
    (b"a: 1\nb: \xff", 2, "(file)", "not UTF-8"),
)


@pytest.mark.parametrize(("text", "line", "key", "says"), MISTAKES)
def test_a_mistake_is_told_with_its_place(
    folder: Path, text: str | bytes, line: int, key: str, says: str
) -> None:
    mistake = only_mistake(folder, text)
    assert (mistake.line, mistake.key) == (line, key)
    assert says in mistake.problem
    assert "swordfish" not in str(mistake)
    assert str(mistake).splitlines() == [f"{folder / NAME}:{line}: {key}: {mistake.problem}"]


def test_a_wrong_value_is_not_also_blamed_for_the_order(folder: Path) -> None:
    text = model("compact_at: none\n    compact_to: 0.9")
    assert only_mistake(folder, text).key == "models[0].compact_at"


def test_a_file_that_cannot_be_read_is_a_mistake(folder: Path) -> None:
    for path, says in ((folder / "absent.yaml", "No such file"), (folder, "directory")):
        with pytest.raises(InvalidConfig) as caught:
            load(path, NO_FLAGS, {})
        assert f"{path}:1: (file): cannot be read: " in caught.value.message
        assert says in caught.value.message


def test_a_list_that_holds_itself_is_refused_not_followed(folder: Path) -> None:
    assert only_mistake(folder, f"{UPSTREAM}models: &a\n  - *a").key == "models[0]"


def test_anchors_and_a_byte_order_mark_are_taken(folder: Path) -> None:
    text = f"\ufeff{UPSTREAM}log: {{level: &word warning}}\nside_calls: {{model: *word}}\n"
    assert read(folder, text).side_calls.model == "warning"


def test_a_long_value_is_clipped_and_stays_on_one_line(folder: Path) -> None:
    mistake = only_mistake(folder, f'{UPSTREAM}max_body: "{"x" * 200}\\n"')
    assert "x" * 60 + "..." in mistake.problem
    assert "x" * 61 not in mistake.problem
    assert "\n" not in str(mistake)


@pytest.mark.parametrize(
    ("listen", "base_url"),
    [
        ("127.0.0.1:8787", "http://127.0.0.1:8787/v1"),
        ("127.0.0.1:8787", "http://localhost:8787/v1"),
        ("0.0.0.0:8787", "http://127.0.0.1:8787/v1"),
        ("proxy.example:80", "http://proxy.example/v1"),
        ("unix:/run/transom.sock", "http+unix://%2Frun%2Ftransom.sock/v1"),
    ],
)
def test_an_upstream_that_is_the_proxy_itself_is_a_mistake(folder: Path, listen: str, base_url: str) -> None:
    with pytest.raises(InvalidConfig) as told:
        read(folder, f'listen: "{listen}"\nupstream: {{base_url: "{base_url}"}}\n')
    assert "where the proxy itself listens" in str(told.value)
    assert "upstream.base_url" in str(told.value)


def test_another_port_or_another_machine_is_another_server(folder: Path) -> None:
    for base_url in ("http://127.0.0.1:8788/v1", "http://192.0.2.1:8787/v1", "https://127.0.0.1/v1"):
        config = read(folder, f'listen: "0.0.0.0:8787"\nupstream: {{base_url: "{base_url}"}}\n')
        assert config.upstream.base_url == base_url
