"""Content codings undone: what comes out, what is given up, and how much is done before it is."""

import asyncio
import gzip
import traceback
import zlib
from collections.abc import Iterable, Sequence

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.edge import encodings
from proxy.edge.encodings import CORRUPT, TOO_LARGE, UNKNOWN, Bound, Decoder, Undecodable
from tests.peers import codings
from tests.peers.answers import slices

WIDE = Bound(1 << 30, 1 << 23, 1000)
HUGE = Bound(1 << 30, 1 << 30, 1)
TEXT = b"".join(b"The %d hares, each %d feet high. \xf0\x9f\x90\x87" % (n, n * n) for n in range(2000))
NAMES = ("gzip", "deflate", "br", "zstd")


def read(pieces: Iterable[bytes], names: Sequence[bytes], bound: Bound = WIDE) -> bytes:
    """What comes of a body that comes in these pieces. Raises Undecodable, also when its end is missing."""
    decoder = Decoder(names, bound)
    made = [made for piece in pieces for made in decoder.pieces(piece)]
    if not decoder.may_end:
        raise Undecodable(CORRUPT)
    return b"".join(made)


async def fault(data: bytes, names: Sequence[bytes], bound: Bound = WIDE) -> str:
    """Why this whole body cannot be read."""
    with pytest.raises(Undecodable) as raised:
        await encodings.decoded(data, names, bound)
    return raised.value.reason


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1_000_000])
@pytest.mark.parametrize("value", codings.VALUES)
def test_every_coding_is_read_however_its_bytes_are_cut(value: str, size: int) -> None:
    pieces = slices(codings.encode(value, TEXT), size)
    assert read(pieces, codings.names(value)) == TEXT


@pytest.mark.parametrize("value", codings.VALUES)
async def test_a_whole_body_is_read(value: str) -> None:
    for text in (b"", b"x", TEXT):
        assert await encodings.decoded(codings.encode(value, text), codings.names(value), WIDE) == text


@given(
    data=st.binary(max_size=300), cuts=st.lists(st.integers(1, 40), max_size=8), value=st.sampled_from(NAMES)
)
def test_any_bytes_come_out_as_they_were(data: bytes, cuts: list[int], value: str) -> None:
    assert read(slices(codings.encode(value, data), *cuts, 7), codings.names(value)) == data


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_deflate_is_read_in_both_forms_that_are_sent(size: int) -> None:
    for text in (TEXT, b"x", b""):
        assert read(slices(codings.bare_deflate(text), size), [b"deflate"]) == text
        assert read(slices(zlib.compress(text), size), [b"deflate"]) == text


@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_members_and_frames_that_follow_one_another_are_one_content(size: int) -> None:
    parts = [TEXT, b"", b"x", TEXT]
    members = b"".join(map(gzip.compress, parts))
    frames = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip".join(map(codings.zstd, parts))
    assert read(slices(members, size), [b"gzip"]) == b"".join(parts)
    assert read(slices(members + bytes(512), size), [b"gzip"]) == b"".join(parts)
    assert read(slices(frames, size), [b"zstd"]) == b"".join(parts)


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("garbage", [b"x", b"garbage behind it", bytes(range(256)) * 100])
async def test_what_follows_the_end_is_not_passed_over(value: str, garbage: bytes) -> None:
    encoded = codings.encode(value, TEXT)
    assert await fault(encoded + garbage, codings.names(value)) == CORRUPT
    with pytest.raises(Undecodable):
        read(slices(encoded + garbage, 1), codings.names(value))


@pytest.mark.parametrize("value", ["gzip", "deflate", "br", "br, gzip", "gzip, br"])
@pytest.mark.parametrize("left", [1, 2, 10, 1000])
async def test_a_body_without_its_end_is_none(value: str, left: int) -> None:
    assert await fault(codings.encode(value, TEXT)[:-left], codings.names(value)) == CORRUPT


async def test_of_zstd_all_comes_out_that_came_though_its_end_is_missing() -> None:
    encoded = codings.zstd(TEXT)
    assert await encodings.decoded(encoded[:-1], [b"zstd"], WIDE) == TEXT  # half a checksum is missing
    assert TEXT.startswith(await encodings.decoded(encoded[:-1000], [b"zstd"], WIDE))


@pytest.mark.parametrize("value", ["gzip", "deflate", "zstd"])
async def test_a_wrong_checksum_is_seen(value: str) -> None:
    encoded = bytearray(codings.encode(value, TEXT))
    encoded[-6 if value == "gzip" else -1] ^= 1
    assert await fault(bytes(encoded), codings.names(value)) == CORRUPT


@pytest.mark.parametrize("value", NAMES)
async def test_other_bytes_than_the_name_says_are_corrupt(value: str) -> None:
    for data in (b"\xff" * 100, b'{"messages": []}', bytes(100), bytes(range(1, 256))):
        assert await fault(data, codings.names(value)) == CORRUPT


@pytest.mark.parametrize("names", [[b"compress"], [b"gzip", b"aws-chunked"], [b"*"], [b"gzip"] * 4])
async def test_codings_that_are_not_known_and_too_many_are_not_tried(names: list[bytes]) -> None:
    assert await fault(b"\x1f\x8b", names) == UNKNOWN


async def test_an_empty_body_is_one_in_any_encoding() -> None:
    assert await encodings.decoded(b"", [b"compress"], WIDE) == b""


# ------------------------------------------------------------------------------------------------------------- bombs

ZEROS = bytes(1 << 26)
BOMBS = {
    "gzip": gzip.compress(ZEROS),
    "deflate": zlib.compress(ZEROS),
    "br": bytes(brotli.compress(ZEROS, quality=5, lgwin=24)),
    "zstd": codings.zstd(ZEROS),
    "gzip, gzip": gzip.compress(gzip.compress(ZEROS)),
    "zstd, br": codings.br(codings.zstd(ZEROS)),
    "br, gzip, zstd": codings.zstd(gzip.compress(codings.br(ZEROS))),
    # Nothing of it comes out in the end: zeros behind a member are passed over.
    "gzip, br": codings.br(gzip.compress(b"x") + ZEROS),
}


@pytest.mark.parametrize("value", BOMBS)
async def test_b92_a_bomb_is_given_up_before_much_has_been_made_of_it(value: str) -> None:
    tight = Bound(len(ZEROS), 1 << 22, 10)
    made: list[bytes] = []
    with pytest.raises(Undecodable, match=TOO_LARGE):
        made.extend(Decoder(codings.names(value), tight).pieces(BOMBS[value]))
    assert 0 < sum(map(len, made)) <= (1 << 22) + 10 * len(BOMBS[value])


@pytest.mark.parametrize("value", NAMES)
async def test_b92_the_bound_on_all_that_comes_out_is_exact(value: str) -> None:
    encoded = codings.encode(value, TEXT)
    assert await encodings.decoded(encoded, codings.names(value), Bound(len(TEXT), 1 << 20, 1)) == TEXT
    assert await fault(encoded, codings.names(value), Bound(len(TEXT) - 1, 1 << 20, 1)) == TOO_LARGE


async def test_what_was_made_of_a_bomb_is_not_held_by_its_fault() -> None:
    with pytest.raises(Undecodable) as raised:
        await encodings.decoded(BOMBS["zstd"], [b"zstd"], WIDE)
    fault = raised.value
    assert (fault.__cause__, fault.__context__) == (None, None)
    held = [value for frame, _ in traceback.walk_tb(fault.__traceback__) for value in frame.f_locals.values()]
    assert not [value for value in held if isinstance(value, bytearray | Decoder)]


async def test_members_that_hold_nothing_are_counted_as_work() -> None:
    for bound in (encodings.request_bound(1 << 30), encodings.answer_bound(1 << 30)):
        assert await fault(gzip.compress(b"") * 20_000, [b"gzip"], bound) == TOO_LARGE


async def test_a_zstd_body_that_wants_much_to_look_back_on_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    assert await fault(packer.compress(TEXT) + packer.flush(), [b"zstd"]) == CORRUPT


async def test_the_event_loop_has_its_turns_while_a_large_body_is_read() -> None:
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not reading.done():
            loop.call_soon(turn)

    reading = asyncio.ensure_future(encodings.decoded(gzip.compress(bytes(1 << 24)), [b"gzip"], HUGE))
    loop.call_soon(turn)
    assert await reading == bytes(1 << 24)
    assert turns > 10


async def test_of_what_is_cut_short_or_broken_the_beginning_is_read() -> None:
    whole = codings.encode("br", TEXT)
    assert await encodings.beginning(whole, [b"br"], 1 << 20) == TEXT
    assert TEXT.startswith(await encodings.beginning(whole[:-10], [b"br"], 1 << 20))
    assert len(await encodings.beginning(BOMBS["gzip"], [b"gzip"], 1 << 20)) == 1 << 20
    assert await encodings.beginning(b"no gzip", [b"gzip"], 100) == b"no gzip"
    assert await encodings.beginning(b"plain", [b"compress"], 100) == b"plain"
    assert await encodings.beginning(b"plain", [], 2) == b"plain"
