"""Streams into pods over WebSockets: commands that run in a container, and connections to its ports."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import aiohttp

from nova.common.errors import ReportedError
from nova.federator.kube.client import Api, ApiError

_CHUNK = 1 << 18  # bytes of a message
_INPUT, _OUTPUT, _ERRORS, _STATUS = range(4)  # channels of a command; the first two are also those of a port


async def execute(api: Api, pod: str, container: str, command: Sequence[str], data: bytes = b"") -> None:
    """Run a command in a container until it ends. ``pod``: its path. ``data``: its input, which stays open afterwards.
    Raises ReportedError with the output of a command that failed, ApiError."""
    query = [("container", container), ("stdin", "1"), ("stdout", "1"), ("stderr", "1")]
    query += [("command", word) for word in command]
    output, result = b"", ""
    async with api.socket(f"{pod}/exec", query) as socket:
        for start in range(0, len(data), _CHUNK):
            await socket.send_bytes(bytes((_INPUT,)) + data[start:start + _CHUNK])
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            if message.data[0] == _STATUS:
                result = message.data[1:].decode(errors="replace")
            elif message.data[0] in (_OUTPUT, _ERRORS):
                output = (output + message.data[1:])[-2000:]
    if not result:
        raise ApiError(f"The connection to {pod} broke before '{command[0]}' ended.")
    if json.loads(result).get("status") != "Success":
        raise ReportedError(f"'{command[0]}' in {pod} failed: {output.decode(errors='replace').strip() or result}")


@contextlib.asynccontextmanager
async def forward(api: Api, pod: str, port: int) -> AsyncIterator[int]:
    """Forward a port of this machine, which is yielded, to a port of a pod. ``pod``: its path."""
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ReportedError):
            async with api.socket(f"{pod}/portforward", [("ports", str(port))]) as socket, asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(send(reader, socket))
                greeted = set()
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        break
                    channel = message.data[0]
                    if channel in greeted and channel == _INPUT:
                        writer.write(message.data[1:])
                        await writer.drain()
                    elif channel in greeted:
                        break  # an error of the connection
                    greeted.add(channel)  # the first message of a channel contains the port
                sender.cancel()
        writer.close()

    async def send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await socket.send_bytes(bytes((_INPUT,)) + data)
            await socket.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
