"""Calls to an upstream by themselves, without a client before them."""

import pytest

from proxy.edge.connections import Timeouts
from proxy.edge.upstream import Upstream
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
