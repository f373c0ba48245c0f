"""A session over real sockets, with a host that reads nothing."""

import asyncio
import contextlib
import socket

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from nova.console import streams
from nova.console.session import Session
from nova.console.streams import BrowserStream
from nova.objects.servers.console import SERIAL, Console, ConsoleAddress


@pytest.mark.timeout(60)
def test_closed_browser_connection_ends_the_session_of_a_stalled_host():
    """A guest that does not read its serial port must not block the next client of the console."""
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            console = Console(
                instance_uuid="i", instance_host="h", console_type="serial", user_id="u", access_url_base="ws://x/",
                address=ConsoleAddress(host="127.0.0.1", port=listening.getsockname()[1]))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reached, over = asyncio.Event(), asyncio.Event()

            ended = asyncio.get_running_loop().create_future()

            async def to_host(to):
                host = await streams.connect(to.address.host, to.address.port, [])
                reached.set()
                return host

            async def session(websocket):
                session = Session("ident", console, SERIAL)
                ended.add_done_callback(lambda _ended: session.end(1000, "The test is over."))
                await session.run(BrowserStream(websocket), to_host, None)
                over.set()

            async with serve(session, "127.0.0.1", 0, ping_interval=1, ping_timeout=1, close_timeout=1,
                             max_queue=4) as server:
                port = server.sockets[0].getsockname()[1]
                browser = await connect(f"ws://127.0.0.1:{port}/", proxy=None, ping_interval=None, compression=None)
                await reached.wait()
                with contextlib.suppress(TimeoutError):
                    while True:  # Until all buffers are full.
                        async with asyncio.timeout(1):
                            await browser.send(b"x" * 60_000)
                browser.transport.abort()
                try:
                    async with asyncio.timeout(20):
                        await over.wait()
                finally:
                    ended.set_result(None)

    asyncio.run(run())
