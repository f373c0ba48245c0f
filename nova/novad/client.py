"""How commands reach novad."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import text_format

from nova.novad.addresses import on_loopback
from nova.novad.api import novad_pb2 as pb
from nova.novad.api import novad_pb2_grpc as services

LOG = logging.getLogger(__name__)

DEFAULT = "tcp://127.0.0.1:18080"
# In the metadata behind an error of novad's own; behind one of the connection there is none.
ANSWERED = "novad-answered"
# Where a novad without secret_file keeps it: whoever may read that may do everything anyway.
_SECRET_FILE = pathlib.Path("/var/lib/novad/shared-secret")
_TIMEOUT = 30.0  # seconds of an answer that is no stream


def was_lost(error: Any) -> bool:
    """Whether the connection was, or there was none, so that nobody knows what novad did. Of a stream that was under
    way gRPC says UNKNOWN now and then."""
    return ANSWERED not in dict(error.trailing_metadata() or ()) and (
        error.code() == grpc.StatusCode.UNAVAILABLE
        or (error.code() == grpc.StatusCode.UNKNOWN and "Stream removed" in (error.details() or "")))


class Unreachable(Exception):
    """The address is no address, or a file of the login cannot be read."""


class Client:
    """``address``: tcp://HOST:PORT, or tls://HOST:PORT with the authority (and, where novad asks for it, the
    certificate and key) that NOVA_CACERT, NOVA_CERT and NOVA_KEY name."""

    def __init__(self, address: str | None = None, secret: str | None = None,
                 environ: Mapping[str, str] | None = None, channel: Sequence[tuple[str, int]] = ()) -> None:
        environ = os.environ if environ is None else environ
        self.address = address or environ.get("NOVA_ADDR") or DEFAULT
        scheme, _colon, where = self.address.rpartition("://")
        if scheme not in ("tcp", "tls") or ":" not in where:
            raise Unreachable(f"{self.address} is no address: tcp://HOST:PORT, or tls://HOST:PORT")
        if scheme == "tcp" and not on_loopback(where.rpartition(":")[0]):
            raise Unreachable(f"{self.address}: beyond loopback the secret travels with TLS only: tls://{where}")
        self._secret = secret or environ.get("NOVA_SHARED_SECRET") or _kept_secret()
        options = [("grpc.keepalive_time_ms", 60000), ("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0)]
        options = [*dict([*options, *channel]).items()]
        self._channel = grpc.insecure_channel(where, options) if scheme == "tcp" else \
            grpc.secure_channel(where, _credentials(environ), options)
        if LOG.isEnabledFor(logging.DEBUG):
            self._channel = grpc.intercept_channel(self._channel, _CallLog(self.address))
        self.platform = services.PlatformStub(self._channel)
        self.services = services.ServicesStub(self._channel)
        self.logs = services.LogsStub(self._channel)
        self.backups = services.BackupsStub(self._channel)
        self.secrets = services.SecretStoreStub(self._channel)
        self.daemon = services.DaemonStub(self._channel)
        self.updates = services.UpdatesStub(self._channel)
        self.nodes = services.NodesStub(self._channel)

    def ask(self, method: Any, request: Any, timeout: float = _TIMEOUT) -> Any:
        """The answer. Raises grpc.RpcError."""
        return method(request, metadata=self._metadata(), timeout=timeout)

    def follow(self, method: Any, request: Any) -> Iterator[Any]:
        """What a stream tells, to its end. Raises grpc.RpcError."""
        stream = method(request, metadata=self._metadata())
        with contextlib.closing(_Cancelling(stream)):
            yield from stream

    def close(self) -> None:
        self._channel.close()

    def _metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._secret}")] if self._secret else []


class _CallLog(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Logs calls, their requests and outcomes. Metadata and node assignments are left out: they contain secrets."""

    def __init__(self, address: str) -> None:
        self._address = address

    def _logged(self, continuation: Any, details: Any, request: Any) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        text = "..." if isinstance(request, pb.ShareRequest) else text_format.MessageToString(request, as_one_line=True)
        LOG.debug("%s: %s {%s}", self._address, method, text)
        begun = time.monotonic()
        call = continuation(details, request)
        call.add_done_callback(lambda ended: LOG.debug("%s: %s: %s after %.3f s", self._address, method,
                                                       ended.code().name, time.monotonic() - begun))
        return call

    intercept_unary_unary = intercept_unary_stream = _logged


class _Cancelling:
    """Ends a stream that nobody reads any more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def close(self) -> None:
        self._stream.cancel()


def _kept_secret() -> str:
    try:
        return _SECRET_FILE.read_text().strip()
    except OSError:
        return ""


def _credentials(environ: Mapping[str, str]) -> grpc.ChannelCredentials:
    def read(name: str) -> bytes | None:
        try:
            return pathlib.Path(environ[name]).read_bytes() if environ.get(name) else None
        except OSError as error:
            raise Unreachable(f"{name}: {error}") from None

    return grpc.ssl_channel_credentials(read("NOVA_CACERT"), read("NOVA_KEY"), read("NOVA_CERT"))
