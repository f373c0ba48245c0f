"""A receiver of alerts in the webhook format of Alertmanager: stores each firing alert as a ReceivedAlert."""

import asyncio
import hashlib
import hmac
import logging
import pathlib
import re
import ssl
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from nova.common.errors import Invalid, os_error_text
from nova.federator.api import times
from nova.federator.controllers.recovery import ALERTS, API_VERSION, RESOLVED
from nova.federator.kube.client import Api, ApiError
from nova.federator.service.listener import serve, split_address

LOG = logging.getLogger(__name__)
_BODY = 1 << 20  # bytes of a request
_STORED = 10_000  # alerts in the control plane above which no more are accepted
_RELOAD = 30.0  # seconds between two reads of the certificate
_Time = Annotated[str, msgspec.Meta(max_length=64)]


class _Alert(msgspec.Struct, frozen=True):
    """An alert of a request. ``startsAt`` distinguishes it from an earlier alert with the same labels."""

    labels: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=1000)]
    status: Literal["firing", "resolved"] = "firing"
    startsAt: _Time = ""
    endsAt: _Time = ""

    @property
    def name(self) -> str:
        """Return the name of the ReceivedAlert: equal for repetitions of an alert, which must not start plans again."""
        content = msgspec.json.encode((self.labels, self.startsAt), order="sorted")
        readable = re.sub(r"[^a-z0-9]+", "-", self.labels.get("alertname", "").lower())[:40].strip("-")
        return f"{readable or 'alert'}-{hashlib.sha256(content).hexdigest()[:16]}"


class _Notification(msgspec.Struct, frozen=True):
    alerts: Annotated[list[_Alert], msgspec.Meta(max_length=1000)]


_DECODER = msgspec.json.Decoder(_Notification)


class AlertReceiver:
    """An HTTP server with the path /alerts. ``token_file``: read for each request, so that it can be replaced.

    Responses: 200 if all alerts are stored; 400, 401 or 413 if the client must not repeat the request; 503 if it must.
    """

    def __init__(self, api: Api, address: str, token_file: pathlib.Path | None, certificate: pathlib.Path | None = None,
                 key: pathlib.Path | None = None) -> None:
        if token_file is None:
            raise Invalid("--alerts-address needs --alerts-token-file.")
        split_address(address, "--alerts-address")
        self.api, self.address, self.token_file, self.tls = api, address, token_file, None
        self.certificate, self.key = certificate, key
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                self.tls.load_cert_chain(certificate, key)
            except OSError as error:
                raise Invalid(f"--alerts-cert: {os_error_text(error)}.") from None

    async def run(self, reload_interval: float = _RELOAD) -> None:
        """Serve until cancelled. Raises Invalid if the address cannot be used."""
        routes = [web.post("/alerts", self._receive), web.get("/healthz", self._health)]
        async with serve(self.address, "--alerts-address", routes, self.tls, _BODY):
            LOG.info("Receiving alerts at %s", self.address)
            while True:
                await asyncio.sleep(reload_interval)
                self._reload()

    def _reload(self) -> None:
        """Reload the certificate and key files for new connections."""
        if self.tls and self.certificate:
            try:  # a certificate and a key that do not match must not change the context in use
                for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.tls):
                    context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                LOG.error("Cannot load the changed TLS certificate of the alert receiver, using the previous one: %s",
                          os_error_text(error))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _receive(self, request: web.Request) -> web.Response:
        try:
            token = self.token_file.read_bytes().strip()
        except OSError as error:
            LOG.error("Refusing alerts: cannot read the file of --alerts-token-file: %s", os_error_text(error))
            token = b""
        if not token:
            return _answer(503, "no token is configured")
        scheme, _space, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(presented.strip().encode(errors="replace"), token):
            return _answer(401, "a valid bearer token is required", {"WWW-Authenticate": "Bearer"})
        try:
            notification = _DECODER.decode(await request.read())
        except (msgspec.MsgspecError, RecursionError) as error:
            return _answer(400, str(error)[:300])
        except web.HTTPRequestEntityTooLarge:
            return _answer(413, f"the request has more than {_BODY} bytes")
        try:
            created = await self._store(notification.alerts)
        except ApiError as error:
            LOG.warning("Cannot store alerts, Alertmanager sends them again unless they are invalid: %s", error)
            return _answer(400 if error.status in (400, 422) else 503, error.message[:300])
        return web.json_response({"received": len(notification.alerts), "created": created})

    async def _store(self, alerts: list[_Alert]) -> int:
        """Create the objects of firing alerts, and mark those of resolved ones. Return the number of new objects."""
        created = 0
        page = await self.api.get(ALERTS, limit="1")
        if int(page["metadata"].get("remainingItemCount") or 0) >= _STORED:
            raise ApiError(f"the control plane has more than {_STORED} alerts: delete processed ReceivedAlerts", 503)
        refused: ApiError | None = None
        for alert in alerts:
            try:
                if alert.status == "firing":
                    created += await self.api.ensure(ALERTS, {
                        "apiVersion": API_VERSION, "kind": "ReceivedAlert", "metadata": {"name": alert.name},
                        "spec": {"labels": alert.labels}})
                else:
                    resolved = {"metadata": {"annotations": {RESOLVED: times.now()}}}
                    await self.api.patch(f"{ALERTS}/{alert.name}", resolved)
            except ApiError as error:
                if error.status in (400, 422):  # an invalid alert must not prevent that other alerts are stored
                    refused = error
                elif not (error.missing and alert.status == "resolved"):
                    raise
        if refused:
            raise refused
        return created


def _answer(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"error": message}
    return web.json_response(body, status=status, headers=headers)
