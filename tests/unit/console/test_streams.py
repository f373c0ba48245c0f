"""The host's side of a session, over real sockets: hosts that take nothing, and names of which nobody answers."""

import asyncio
import select
import socket
import threading

from nova.console import streams
from nova.console.streams import connect


def test_a_host_that_takes_nothing_does_not_keep_its_connection(monkeypatch):
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
            look = select.poll()
            look.register(qemu, select.POLLRDHUP)
            assert await asyncio.to_thread(look.poll, 10_000), "it is still there"
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(run())


def test_names_of_which_nobody_answers_hold_up_no_address(monkeypatch):
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
                for found in await asyncio.gather(*names, return_exceptions=True):
                    found.close()

    asyncio.run(run())
