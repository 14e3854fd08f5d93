"""Calls to an upstream by themselves, without a client before them."""

import asyncio

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from proxy.edge.connections import Timeouts
from proxy.edge.upstream import Upload, Upstream
from proxy.errors import UpstreamBroke
from tests.peers.upstream import Answer, Cut, Framing, ScriptedUpstream, json_answer

JSON = (("Content-Type", "application/json"),)


@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.LENGTH])
async def test_b90_what_came_before_a_break_can_be_read_after_it(framing: Framing) -> None:
    broken = Answer(200, JSON, (b"123", b"456", Cut.CLOSE, b"never"), framing)
    async with ScriptedUpstream([broken, json_answer({})]) as upstream, Upstream(Timeouts()) as calls:
        reply = await calls.call("GET", upstream.url, (), None)
        await upstream.drained()
        # By the time of another answer the end of the first one has been noticed.
        (await calls.call("GET", upstream.url, (), None)).close()
        assert reply.ready() == b""
        assert await reply.chunk() == b"123456"
        for _ in range(2):
            with pytest.raises(UpstreamBroke):
                await reply.chunk()
        reply.close()


async def test_calls_are_made_only_while_it_is_open() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Upstream(Timeouts()).call("GET", "http://127.0.0.1:9", (), None)


def body_of(*pieces: bytes, ends: bool = True) -> StreamReader:
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    for piece in pieces:
        content.feed_data(piece)
    if ends:
        content.feed_eof()
    return content


@pytest.mark.parametrize("pieces", [(), (b"all",), (b"all ", b"of ", b"it")])
async def test_b103_an_upload_that_is_had_at_once_can_be_had_again(pieces: tuple[bytes, ...]) -> None:
    upload, whole = Upload(body_of(*pieces), 1.0), b"".join(pieces)
    assert [upload.at_once(), upload.at_once()] == [whole, whole]
    assert b"".join([piece async for piece in upload.pieces()]) == whole
    assert (upload.size, upload.can_repeat) == (len(whole), True)


async def test_an_upload_that_still_comes_or_is_long_or_has_broken_off_goes_up_piece_by_piece() -> None:
    broken = body_of(b"some", ends=False)
    broken.set_exception(ConnectionResetError())
    for content in (body_of(b"some", ends=False), body_of(b"x" * 16_385), broken):
        assert Upload(content, 1.0).at_once() is None
