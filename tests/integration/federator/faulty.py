"""An API server that misbehaves: a proxy that answers some requests wrongly, late or not at all."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import ssl
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from tests.integration.federator.clusters import Cluster

_SHARE = 0.12  # of requests that get a fault
_LINES = 8  # events of a watch, on average, before it gets a fault
_DELAY = 1.5  # seconds of a late answer
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host"}
ANSWERS = ("refused", "unavailable", "unreadable", "conflict", "late", "lost", "truncated")
WATCHES = ("expired", "cut", "broken line", "older version", "twice")


class FaultyServer:
    """A proxy in front of the API server of a cluster. Without ``faults`` it changes nothing.

    Clients with a certificate act upstream as the user that it names, so their rights stay as they are. ``address``: of
    another API server of the cluster.
    """

    def __init__(self, cluster: Cluster, seed: int, address: str = "") -> None:
        self.cluster, self.faults, self._address = cluster, False, address or cluster.config.server
        self.counts: collections.Counter[str] = collections.Counter()
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        self.url = f"https://127.0.0.1:{port}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    async def _start(self) -> int:
        pki = self.cluster.local.pki
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        context.verify_mode = ssl.CERT_OPTIONAL
        config = self.cluster.config
        self._admin = ClientSession(connector=TCPConnector(ssl=config.tls() or False, limit=0))
        bare = msgspec.structs.replace(config, certificate=b"", key=b"")
        self._anonymous = ClientSession(connector=TCPConnector(ssl=bare.tls() or False, limit=0))
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._admin.close()
        await self._anonymous.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        session = self._anonymous if "Authorization" in headers else self._admin
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        if certificate and session is self._admin:
            subject = collections.defaultdict(list)
            for (name, value), in certificate["subject"]:
                subject[name].append(value)
            headers["Impersonate-User"] = subject["commonName"][0]
            if groups := subject["organizationName"]:
                headers["Impersonate-Group"] = groups[0]
        watch = request.query.get("watch") == "1"
        fault = self._draw(("expired", "refused", "unavailable") if watch else ANSWERS)
        if fault == "late":
            await asyncio.sleep(_DELAY)
        elif fault in ("refused", "unavailable", "unreadable", "conflict", "expired"):
            return self._refuse(fault)
        async with session.request(request.method, f"{self._address}{request.raw_path}", headers=headers,
                                   data=await request.read(), timeout=ClientTimeout(total=None)) as upstream:
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}
            if watch and upstream.status == 200:
                response = web.StreamResponse(status=200, headers=kept)
                await response.prepare(request)
                await self._stream(request, response, upstream.content)
                return response
            body = await upstream.read()
            if fault == "lost":
                request.transport.abort()
            if fault == "truncated" and len(body) > 1:
                response = web.StreamResponse(status=upstream.status,
                                              headers={**kept, "Content-Length": str(len(body))})
                await response.prepare(request)
                await response.write(body[:len(body) // 2])
                request.transport.abort()
                return response
            return web.Response(status=upstream.status, headers=kept, body=body)

    def _draw(self, faults: tuple[str, ...], share: float = _SHARE) -> str:
        """Return a fault, or mostly an empty text."""
        if not self.faults or self._random.random() > share:
            return ""
        fault = self._random.choice(faults)
        self.counts[fault] += 1
        return fault

    def _refuse(self, fault: str) -> web.Response:
        if fault == "unavailable":
            return web.Response(status=503, body=b"<html>Service Unavailable</html>", content_type="text/html")
        if fault == "unreadable":
            return web.Response(status=200, body=b'{"metadata": {"name": "x', content_type="application/json")
        code, reason = {"refused": (429, "TooManyRequests"), "conflict": (409, "Conflict"),
                        "expired": (410, "Expired")}[fault]
        headers = {"Retry-After": "1"} if code == 429 else {}
        return web.json_response(_status(code, reason), status=code, headers=headers)

    async def _stream(self, request: web.BaseRequest, response: web.StreamResponse, content: Any) -> None:
        """Copy the events of a watch. Some watches end early, or with wrong events."""
        earlier: list[bytes] = []
        while line := await content.readline():
            fault = self._draw(WATCHES, 1 / _LINES)
            if fault == "expired":
                line = json.dumps({"type": "ERROR", "object": _status(410, "Expired")}).encode() + b"\n"
            elif fault == "broken line":
                line = line[:len(line) // 2] + b"\n"
            elif fault == "older version" and earlier:
                await response.write(self._random.choice(earlier))
            elif fault == "twice":
                await response.write(line)
            if fault == "cut":
                await response.write(line[:len(line) // 2])
                assert request.transport is not None
                request.transport.abort()
                return
            await response.write(line)
            earlier = [*earlier[-20:], line]


def _status(code: int, reason: str) -> Mapping[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": "the proxy of the test refuses"}
