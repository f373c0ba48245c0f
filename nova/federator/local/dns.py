"""DNS server of a whole cluster: names of Services, of pods behind headless Services, and their reverse names.

Each query causes a request to the API server, without a cache. Names outside of the cluster do not exist.
"""

import argparse
import asyncio
import ipaddress
import logging
import pathlib
import signal
import struct
from collections.abc import Iterator
from typing import Any, cast

from nova.federator.kube import config
from nova.federator.kube.client import Api, ApiError

LOG = logging.getLogger(__name__)
_DOMAIN = ".svc.cluster.local"
_REVERSE = ".in-addr.arpa"
_A, _PTR, _ANY = 1, 12, 255
_FAILURE, _NO_SUCH_NAME = 2, 3  # response codes
_TTL = 1  # seconds for which clients may cache an answer
_MOST = 25  # answers that fit into a packet of 512 bytes; further ones are left out


class NameServer(asyncio.DatagramProtocol):
    """Answers queries over UDP."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        task = asyncio.ensure_future(self._answer(data, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, address: tuple[str, int]) -> None:
        try:
            name, kind, question = _parse(data)
        except (IndexError, UnicodeDecodeError, struct.error):
            return
        code, records = 0, None
        try:
            records = await self.resolve(name)
        except ApiError as error:
            LOG.warning("Cannot resolve DNS name %s from the API server, the query fails: %s", name, error)
            code = _FAILURE
        if records is None:
            code = code or _NO_SUCH_NAME
        answers = [record for record in records or () if kind in (record[0], _ANY)][:_MOST]
        header = struct.pack(">HHHHHH", struct.unpack_from(">H", data)[0], 0x8580 | code, 1, len(answers), 0, 0)
        body = b"".join(struct.pack(">HHHIH", 0xC00C, record, 1, _TTL, len(content)) + content
                        for record, content in answers)
        self._transport.sendto(header + question + body, address)

    async def resolve(self, name: str) -> list[tuple[int, bytes]] | None:
        """Return the records of a name as (type, content), or None if the name does not exist. Raises ApiError."""
        if name.endswith(_REVERSE):
            address = ".".join(reversed(name.removesuffix(_REVERSE).split(".")))
            page = await self.api.list("/api/v1/endpoints")
            services = [(endpoints["metadata"], entry) for endpoints in page["items"] for entry in _addresses(endpoints)
                        if entry["ip"] == address and entry.get("hostname")]
            return [(_PTR, _encode(f"{entry['hostname']}.{service['name']}.{service['namespace']}{_DOMAIN}"))
                    for service, entry in services] or None
        labels = name.removesuffix(_DOMAIN).split(".")
        if not name.endswith(_DOMAIN) or not 2 <= len(labels) <= 3:
            return None
        *hosts, service, namespace = labels
        stored = await self.api.find(f"/api/v1/namespaces/{namespace}/services/{service}")
        if stored is None:
            return None
        if stored["spec"].get("clusterIP") != "None":
            return None if hosts else [(_A, _packed(stored["spec"]["clusterIP"]))]
        endpoints = await self.api.find(f"/api/v1/namespaces/{namespace}/endpoints/{service}") or {}
        ready = [entry["ip"] for entry in _addresses(endpoints) if not hosts or entry.get("hostname") == hosts[0]]
        return None if hosts and not ready else [(_A, _packed(address)) for address in ready]


def _addresses(endpoints: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for subset in endpoints.get("subsets") or ():
        yield from subset.get("addresses") or ()


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def _parse(data: bytes) -> tuple[str, int, bytes]:
    """Return the name and the type of the first question of a packet, and the question itself."""
    labels, position = [], 12
    while length := data[position]:
        labels.append(data[position + 1:position + 1 + length].decode("ascii").lower())
        position += 1 + length
    kind, _class = struct.unpack_from(">HH", data, position + 1)
    return ".".join(labels), kind, data[12:position + 5]


def _encode(name: str) -> bytes:
    return b"".join(bytes((len(label),)) + label.encode() for label in name.split(".")) + b"\0"


async def _main(path: pathlib.Path, address: str) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    async with Api(config.load([path]), agent="nova-dns") as api:
        await loop.create_datagram_endpoint(lambda: NameServer(api), local_addr=(address, 53))
        await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer DNS queries for the Services of a cluster.")
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    parser.add_argument("--address", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_main(options.kubeconfig, options.address))
