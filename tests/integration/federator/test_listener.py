"""Ports of the scheduler: clients that send slowly, much, often or malformed data cost it neither time nor files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from nova.common.errors import Invalid
from nova.federator.local.pki import Authority
from nova.federator.service import listener
from nova.federator.service.metrics import serve_metrics

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: nova\r\n\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(listener, "_LIFETIME", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def metrics(port: int, computed: list[float]) -> AsyncIterator[None]:
    def collect() -> Iterator[Metric]:
        computed.append(time.monotonic())
        yield GaugeMetricFamily("nova_federator_test", "A test.", value=1)
    async with serve_metrics(f"127.0.0.1:{port}", collect):
        yield


async def exchange(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a request, and return the response until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            with contextlib.suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()


def test_idle_and_slow_connections_are_few_and_end(port: int) -> None:
    async def run() -> None:
        async with metrics(port, []):
            before = len(os.listdir("/proc/self/fd"))
            clients = [await asyncio.open_connection("127.0.0.1", port) for _number in range(3 * listener._CONNECTIONS)]
            for number, (_reader, writer) in enumerate(clients):
                writer.write(REQUEST[:number % 30])
            await asyncio.sleep(0.3)
            opened = len(os.listdir("/proc/self/fd")) - before - len(clients)
            assert opened <= listener._CONNECTIONS
            await asyncio.sleep(listener._LIFETIME + listener._PAUSE)
            for _reader, writer in clients:
                writer.close()
            assert (await exchange(port, REQUEST)).startswith(b"HTTP/1.1 200")
    asyncio.run(run())


def test_handshakes_that_do_not_end_count_as_connections(port: int, tmp_path: pathlib.Path) -> None:
    authority = Authority(tmp_path, "ca", "test")
    authority.issue("server", "nova", hosts=["127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))

    async def run() -> None:
        async with listener.serve(f"127.0.0.1:{port}", "--alerts-address", [], tls):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _number in range(listener._CONNECTIONS)]
            await asyncio.sleep(0.1)
            assert await exchange(port, REQUEST, client) == b""
            await asyncio.sleep(listener._LIFETIME + listener._PAUSE)
            assert (await exchange(port, REQUEST, client)).startswith(b"HTTP/1.1 404")
            for _reader, writer in clients:
                writer.close()
    asyncio.run(run())


@pytest.mark.parametrize(("request_", "status"), [
    (b"\0\xff" * 500 + b"\r\n\r\n", b"400"), (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", b"400"),
    (b"POST /metrics HTTP/1.1\r\nHost: nova\r\nContent-Length: 9999999999\r\n\r\n" + bytes(1 << 20), b"405"),
    (b"GET /metrics HTTP/1.1\r\nHost: nova\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (b"GET /none HTTP/1.1\r\nHost: nova\r\n\r\n", b"404"), (REQUEST, b"200")])
def test_malformed_and_huge_requests_are_refused(port: int, request_: bytes, status: bytes) -> None:
    async def run() -> None:
        async with metrics(port, []):
            began = time.monotonic()
            response = await exchange(port, request_)
            assert time.monotonic() - began < 2 * listener._LIFETIME
            # A response is lost if the server closes the connection before it has read the whole request.
            assert response[9:12] == status or (not response and len(request_) > 1 << 16)
            assert (await exchange(port, REQUEST)).startswith(b"HTTP/1.1 200")
    asyncio.run(run())


def test_frequent_requests_are_limited_and_computed_once_per_second(port: int) -> None:
    computed: list[float] = []

    async def run() -> None:
        served = 0

        async def client() -> None:
            nonlocal served
            while time.monotonic() < end:
                response = await exchange(port, REQUEST)
                served += bool(response)
        async with metrics(port, computed):
            end = time.monotonic() + 1.5
            await asyncio.gather(*(client() for _number in range(64)))
        assert 0 < served <= listener._CONNECTIONS * (1.5 / listener._PAUSE + 1)
        assert len(computed) <= 3
    asyncio.run(run())


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:80/metrics", "[::1"])
def test_an_address_without_port_is_refused(address: str) -> None:
    async def run() -> None:
        async with serve_metrics(address, lambda: iter(())):
            pass
    with pytest.raises(Invalid, match="is not HOST:PORT"):
        asyncio.run(run())
