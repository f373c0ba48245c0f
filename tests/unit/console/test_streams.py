"""The host side of a session, over real sockets: hosts that read nothing, and names that do not resolve."""

import asyncio
import select
import socket
import threading

from nova.console import streams
from nova.console.streams import connect


def test_connection_to_a_stalled_host_is_closed(monkeypatch):
    """A guest does not read its serial port, and QEMU accepts no other client before this connection ends."""
    monkeypatch.setattr(streams, "LINGER", 0.2, raising=False)

    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            host = await connect("127.0.0.1", listening.getsockname()[1], [])
            qemu, _address = listening.accept()
        writing = asyncio.create_task(host.write(b"x" * 16_000_000))
        await asyncio.sleep(0)
        host.close()
        with qemu:
            poller = select.poll()
            poller.register(qemu, select.POLLRDHUP)
            assert await asyncio.to_thread(poller.poll, 10_000), "the connection is still open"
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(run())


def test_unresolvable_names_do_not_block_addresses(monkeypatch):
    answers, real = threading.Event(), socket.getaddrinfo

    def resolve(host, *others, **options):
        answers.wait(60)
        return real("127.0.0.1", *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            names = [asyncio.create_task(connect("nobody.example", port, [])) for _time in range(50)]
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(20):
                    (await connect("127.0.0.1", port, [])).close()
            finally:
                answers.set()
                for stream in await asyncio.gather(*names, return_exceptions=True):
                    stream.close()

    asyncio.run(run())
