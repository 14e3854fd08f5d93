"""Content codings undone for reading: gzip, deflate, br and zstd, one upon another, of whole bodies and as they come.

Rules. What is decoded here is only read; what is relayed are the bytes as they came. Decoding goes piece by piece, so
that whoever drives it can give way between two of them. A body that grows beyond its bound is given up, however few
bytes it came in. Whatever is wrong with a body is one of three fixed words; nothing behind the end of the content is
passed over in silence.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Final, Protocol, cast

import brotli
import msgspec
import zstandard

UNKNOWN: Final = "encoding_unknown"
CORRUPT: Final = "encoding_corrupt"
TOO_LARGE: Final = "encoding_too_large"

MOST_CODINGS: Final = 3
"""Codings one upon another. Two are rare already, and each costs a buffer of some megabytes."""

_SLICE: Final = 64 * 1024
"""Bytes that are decoded at once. The codecs copy what they have not used yet, so a long slice would cost dearly."""

_PIECE: Final = 1024 * 1024
"""Bytes that a codec is asked for at once."""

_TURN: Final = 1024 * 1024
"""Bytes that are worked on before others have their turn on the event loop: some 3 ms."""

_STEP: Final = _SLICE
_MEMBER: Final = 16 * 1024
"""What a piece and a member of a gzip body count beside their bytes, since a body can be made of empty ones."""

_WINDOW: Final = 8 * 1024 * 1024
"""The most that a zstd body may ask for to look back on; RFC 9659 has encoders keep to it."""


class Undecodable(Exception):
    """The body cannot be read; `reason` is one of the three words above, for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a body may grow: to `most` bytes in all, and beyond `free` ones to `ratio` times what came."""

    most: int
    free: int
    ratio: int


def request_bound(most: int) -> Bound:
    """Real conversations shrink to a twelfth at best, and a decoded body is held in memory."""
    return Bound(most, free=4 * 1024 * 1024, ratio=100)


def answer_bound(most: int) -> Bound:
    """A stream of short events shrinks to a three-hundredth, and no more of it is held than an event."""
    return Bound(most, free=8 * 1024 * 1024, ratio=500)


class Received(msgspec.Struct, frozen=True):
    """A client's body: `raw` as it came and `plain` as it reads, one and the same where it is not encoded."""

    raw: bytes
    plain: bytes

    @property
    def is_encoded(self) -> bool:
        return self.raw is not self.plain


async def received(data: bytes, codings: Sequence[bytes], most: int) -> Received:
    """A request's body, decoded in a thread to at most so many bytes. Raises Undecodable."""
    return Received(data, await decoded(data, codings, request_bound(most)) if codings else data)


async def decoded(data: bytes, codings: Sequence[bytes], bound: Bound) -> bytes:
    """What a whole body reads, decoded in a thread. Raises Undecodable, also where its end is missing."""
    if not codings or not data:  # an empty body is one in any encoding
        return data
    try:
        return await _whole(data, Decoder(codings, bound))
    except Undecodable as fault:
        reason = fault.reason
    # A new one: the traceback of the other holds all that has been made, for as long as somebody holds it.
    raise Undecodable(reason)


async def _whole(data: bytes, decoder: "Decoder") -> bytes:
    made: list[bytes] = []
    await take_all(decoder.pieces(data), made.append)
    if not decoder.may_end:
        raise Undecodable(CORRUPT)
    return await asyncio.to_thread(b"".join, made)


async def beginning(data: bytes, codings: Sequence[bytes], most: int) -> bytes:
    """What a body reads that may be cut short or broken, up to so many bytes; as it came where nothing can be read."""
    if not codings:
        return data
    made: list[bytes] = []
    with suppress(Undecodable):  # what came before the fault says enough
        await take_all(Decoder(codings, answer_bound(most)).pieces(data), made.append)
    return b"".join(made) or data


def take_turn(pieces: Iterator[bytes], take: Callable[[bytes], object]) -> bool:
    """Work through pieces for some milliseconds; whether there may be more. Raises Undecodable."""
    worked = 0
    for piece in pieces:
        take(piece)
        worked += _STEP + len(piece)
        if worked >= _TURN:
            return True
    return False


async def take_all(pieces: Iterator[bytes], take: Callable[[bytes], object]) -> None:
    """Work through all pieces in a thread; whoever is cancelled stops it at the next one. Raises Undecodable."""
    # A body in one go, and not turn by turn: so no more bombs are held at a time than there are threads.
    is_wanted = True

    def work() -> None:
        for piece in pieces:
            take(piece)
            if not is_wanted:
                return

    try:
        await asyncio.to_thread(work)
    finally:
        is_wanted = False


class Decoder:
    """Decodes one body as it comes. `codings` are lower-case names in the order in which they were applied."""

    def __init__(self, codings: Sequence[bytes], bound: Bound) -> None:
        """Raises Undecodable for a coding that is not known, and for too many."""
        if len(codings) > MOST_CODINGS or not _CODECS.keys() >= set(codings):
            raise Undecodable(UNKNOWN)
        self._growth = _Growth(bound)
        self._codecs = [_CODECS[name](self._growth) for name in reversed(codings)]

    @property
    def may_end(self) -> bool:
        """Whether the content is complete with what has come. Of zstd that is not known, and taken for granted."""
        return all(codec.may_end for codec in self._codecs)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these next bytes decode to; a piece may be empty. To be worked through before the next call.

        Raises Undecodable, after which this body cannot be read on.
        """
        if not self._codecs:
            yield data
            return
        for part in _slices(data):
            self._growth.took(len(part))
            yield from self._through(part, 0)

    def _through(self, data: bytes, depth: int) -> Iterator[bytes]:
        if depth == len(self._codecs) or not data:
            yield data
            return
        for part in _slices(data):
            for piece in self._codecs[depth].pieces(part):
                yield from self._through(piece, depth + 1)


def _slices(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _SLICE] for start in range(0, len(data), _SLICE))


class _Growth:
    """Counts what all codecs of a body make, intermediate bytes included, and gives the body up in time."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._taken = 0
        self._made = 0
        self._members = 0

    def took(self, size: int) -> None:
        self._taken += size

    def counted(self, made: bytes) -> bytes:
        """The same bytes. Raises Undecodable."""
        self._made += len(made)
        work = self._made + self._members * _MEMBER
        if self._made > self._bound.most or work > self._bound.free + self._taken * self._bound.ratio:
            raise Undecodable(TOO_LARGE)
        return made

    def began_member(self) -> None:
        self._members += 1


class _Codec(Protocol):
    """Decodes one coding of one body."""

    @property
    def may_end(self) -> bool: ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What the next bytes, at most a slice, decode to. Raises Undecodable."""
        ...


class _Gzip:
    """RFC 1952: one member after the other, and perhaps zeros to fill up a block (as `tar` and `gzip` take them)."""

    def __init__(self, growth: _Growth) -> None:
        self._growth = growth
        self._member = zlib.decompressobj(_GZIP)
        self.may_end = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data := data.lstrip(b"\0") if self.may_end else data:
            self.may_end = False
            yield from _inflated(self._member, data, self._growth)
            data = self._member.unused_data
            if self._member.eof:
                self._growth.began_member()
                self._member = zlib.decompressobj(_GZIP)
                self.may_end = True


class _Deflate:
    """RFC 9110 means zlib's format by it; what some send is the bare one. Two bytes tell them apart."""

    def __init__(self, growth: _Growth) -> None:
        self._growth = growth
        self._head = b""
        self._inflate: zlib._Decompress | None = None

    @property
    def may_end(self) -> bool:
        return self._inflate is not None and self._inflate.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._head = data = self._head + data
            if len(data) < 2:
                return
            self._inflate = zlib.decompressobj(_ZLIB if _is_zlib(data) else _BARE)
        elif self._inflate.eof and data:
            raise Undecodable(CORRUPT)
        yield from _inflated(self._inflate, data, self._growth)
        if self._inflate.unused_data:
            raise Undecodable(CORRUPT)


_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB: Final = zlib.MAX_WBITS
_BARE: Final = -zlib.MAX_WBITS


def _is_zlib(data: bytes) -> bool:
    """RFC 1950 section 2.2. A bare stream that began so would be a stored block with rubbish in its padding."""
    return data[0] & 0x0F == 8 and (data[0] * 256 + data[1]) % 31 == 0


def _inflated(inflate: "zlib._Decompress", data: bytes, growth: _Growth) -> Iterator[bytes]:
    """What these bytes decode to, up to the end of the member; what follows is in its `unused_data`."""
    while True:
        try:
            made = inflate.decompress(data, _PIECE)
        except zlib.error as cause:
            raise Undecodable(CORRUPT) from cause
        yield growth.counted(made)
        data = inflate.unconsumed_tail
        if inflate.eof or not (data or len(made) == _PIECE):
            return


class _Brotli:
    """RFC 7932. Large windows, which only the file format has, are refused by the library."""

    def __init__(self, growth: _Growth) -> None:
        self._growth = growth
        self._decompressor = brotli.Decompressor()

    @property
    def may_end(self) -> bool:
        return bool(self._decompressor.is_finished())

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                made = self._decompressor.process(data, output_buffer_limit=_PIECE)
            except brotli.error as cause:
                raise Undecodable(CORRUPT) from cause
            yield self._growth.counted(made)
            data = b""
            # It may say that it takes more data while it still holds some output back.
            if len(made) < _PIECE and self._decompressor.can_accept_more_data():
                return


class _Zstd:
    """RFC 8878: one frame after the other.

    The library's other ways either give out all that a slice decodes to, which may be a thousandfold memory, or cannot
    be fed as bytes come. This one writes what it makes piece by piece, and the bound can say no in between.
    """

    may_end = True

    def __init__(self, growth: _Growth) -> None:
        self._made = _Sink(growth)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._writer = decompressor.stream_writer(cast(IO[bytes], self._made))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            self._writer.write(data)
        except zstandard.ZstdError as cause:
            raise Undecodable(CORRUPT) from cause
        finally:
            yield self._made.taken()


class _Sink:
    """Where a zstd decoder writes to. It must not know the decoder, which as part of a ring would never be freed."""

    def __init__(self, growth: _Growth) -> None:
        self._growth = growth
        self._made = bytearray()

    def write(self, made: bytes) -> int:
        self._made += self._growth.counted(made)
        return len(made)

    def taken(self) -> bytes:
        """What was written since the last time."""
        made, self._made = bytes(self._made), bytearray()
        return made


_CODECS: Final[Mapping[bytes, Callable[[_Growth], _Codec]]] = MappingProxyType(
    {b"gzip": _Gzip, b"x-gzip": _Gzip, b"deflate": _Deflate, b"br": _Brotli, b"zstd": _Zstd}
)
"""`compress`, the last one that RFC 9110 names, nobody sends."""
