"""The host's side of a session, over real sockets: hosts that take nothing, and names of which nobody answers."""

import asyncio
import select
import socket
import threading

from nova.console import streams
from nova.console.streams import connect


def test_the_connection_of_a_host_that_does_not_read_is_closed(monkeypatch):
    """A guest that does not read its serial port: QEMU lets nobody else in before this connection has ended."""
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


def test_names_that_do_not_resolve_do_not_block_addresses(monkeypatch):
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
