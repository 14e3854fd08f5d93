"""The floor: the least that a relay in aiohttp does. `python -m benchmarks.speed.floor PORT UPSTREAM_PORT`."""

import asyncio
import sys

import uvloop
from aiohttp import ClientSession, TCPConnector, web

HOP_BY_HOP = {"host", "connection", "transfer-encoding"}


async def relay(port: int, upstream: int) -> None:
    """Serve on a port of the loopback interface until the process ends."""
    async with ClientSession(connector=TCPConnector(limit=0), auto_decompress=False) as client:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            url = f"http://127.0.0.1:{upstream}{request.path_qs}"
            fields = {
                name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
            }
            body = b"".join([piece async for piece in request.content.iter_any()])
            async with client.request(request.method, url, headers=fields, data=body) as reply:
                answer = web.StreamResponse(status=reply.status)
                answer.headers.extend((n, v) for n, v in reply.headers.items() if n.lower() not in HOP_BY_HOP)
                await answer.prepare(request)
                async for chunk in reply.content.iter_any():
                    await answer.write(chunk)
                await answer.write_eof()
                return answer

        server = web.Server(handle, access_log=None, auto_decompress=False)
        await (await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)).serve_forever()


if __name__ == "__main__":
    uvloop.run(relay(int(sys.argv[1]), int(sys.argv[2])))
