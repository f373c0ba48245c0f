"""Connections to novad: a socket of this machine, TLS, or TCP on loopback with signed calls."""

import contextlib
import hmac
import logging
import os
import pathlib
import socket
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import text_format

from nova.common.plain_ip import on_loopback
from nova.novad import signing
from nova.novad.api import novad_pb2 as pb

LOG = logging.getLogger(__name__)

DEFAULT = "tcp://127.0.0.1:18080"
# Metadata key of errors raised by novad itself, with the class of the error; connection errors do not have it.
ANSWERED = "novad-answered"
# Files of a novad with the default data_dir: the socket that local clients try first, and the generated secret.
_SOCKET = pathlib.Path("/var/lib/novad/novad.sock")
_SECRET_FILE = pathlib.Path("/var/lib/novad/shared-secret")
_CONNECT = 5.0  # seconds to connect to a local socket
_PEER = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED
_TIMEOUT = 30.0  # Timeout in seconds of a call without a stream.
_OUTCOME = 5.0  # Seconds until the outcome of a finished call is logged.


def was_lost(error: Any) -> bool:
    """Return True if the connection was lost and the result is unknown. gRPC sometimes reports UNKNOWN for streams."""
    return ANSWERED not in dict(error.trailing_metadata() or ()) and (error.code() == grpc.StatusCode.UNAVAILABLE or (
        error.code() == grpc.StatusCode.UNKNOWN and "Stream removed" in (error.details() or "")))


class Unreachable(Exception):
    """The address is invalid, or a file for the login cannot be read."""


class Client:
    """A connection to ``address``:

    - unix:///PATH: a socket of root or of this user, which needs no secret;
    - tcp://HOST:PORT on loopback: calls are signed (:mod:`nova.novad.signing`);
    - tls://HOST:PORT: with the authority (and, where novad requires it, the certificate and key) that NOVA_CACERT,
      NOVA_CERT and NOVA_KEY name; the secret travels.

    With the default address novad's local socket is tried first. Raises Unreachable.
    """

    def __init__(self, address: str | None = None, secret: str | None = None,
                 environ: Mapping[str, str] | None = None, channel: Sequence[tuple[str, int | str]] = ()) -> None:
        environ = os.environ if environ is None else environ
        self.address = address or environ.get("NOVA_ADDR") or DEFAULT
        scheme, _colon, where = self.address.rpartition("://")
        if (scheme not in ("tcp", "tls") or ":" not in where) and (scheme != "unix" or not where.startswith("/")):
            raise Unreachable(f"{self.address} is not an address: use tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
        if scheme == "tcp" and not on_loopback(where.rpartition(":")[0]):
            raise Unreachable(f"{self.address}: use tls://{where}: without TLS the secret is sent on loopback only")
        local = pathlib.Path(where) if scheme == "unix" else _SOCKET if self.address == DEFAULT else None
        if local is not None and (why := _unusable(local)):
            if scheme == "unix":
                raise Unreachable(f"{self.address}: {why}")
            local = None
        given = secret or environ.get("NOVA_SHARED_SECRET") or ""
        with contextlib.suppress(OSError):
            given = given or _SECRET_FILE.read_text().strip()
        defaults = {"grpc.keepalive_time_ms": 60000, "grpc.enable_retries": 0, "grpc.enable_http_proxy": 0}
        options = [*(defaults | dict(channel)).items()]
        self._metadata = [("authorization", f"Bearer {given}")] if scheme == "tls" and given else []
        if scheme == "tls":
            self._channel = grpc.secure_channel(where, _credentials(environ), options)
        else:
            self._channel = grpc.insecure_channel(where if local is None else f"unix:{local}", options)
        self._call_log = _CallLog(self.address) if LOG.isEnabledFor(logging.DEBUG) else None
        if self._call_log:
            self._channel = grpc.intercept_channel(self._channel, self._call_log)
        # Outermost interceptor: calls that it refuses are never sent and have no outcome.
        if scheme == "tcp" and local is None and given:
            self._channel = grpc.intercept_channel(self._channel, _Signer(self._channel, self.address, given))
        self.platform, self.services, self.logs, self.backups, self.secrets, self.daemon, self.updates, self.nodes = (
            stub(self._channel, service) for service in (
                "Platform", "Services", "Logs", "Backups", "SecretStore", "Daemon", "Updates", "Nodes"))

    def ask(self, method: Any, request: Any, timeout: float = _TIMEOUT) -> Any:
        """Return the response to a call. Raises grpc.RpcError."""
        return method(request, metadata=self._metadata, timeout=timeout)

    def follow(self, method: Any, request: Any, timeout: float | None = None) -> Iterator[Any]:
        """Yield the messages of a stream, at most ``timeout`` seconds long. Raises grpc.RpcError."""
        stream = method(request, metadata=self._metadata, timeout=timeout)
        try:
            yield from stream
        finally:
            stream.cancel()
            if self._call_log:
                self._call_log.wait(stream)

    def close(self) -> None:
        self._channel.close()


def stub(channel: grpc.Channel, service: str) -> SimpleNamespace:
    """Return an object with a function for each call of a service in novad.proto."""
    described = pb.DESCRIPTOR.services_by_name[service]
    return SimpleNamespace(**{
        method.name: (channel.unary_stream if method.server_streaming else channel.unary_unary)(
            f"/{described.full_name}/{method.name}", getattr(pb, method.input_type.name).SerializeToString,
            getattr(pb, method.output_type.name).FromString) for method in described.methods})


class _CallLog(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Logs calls, their requests and outcomes. Metadata and node assignments are left out: they contain secrets."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._outcomes: weakref.WeakKeyDictionary[Any, threading.Event] = weakref.WeakKeyDictionary()

    def wait(self, call: Any) -> None:
        """Wait until the outcome of a call is logged: gRPC reports the end of a stream in a thread of its own."""
        if call in self._outcomes:
            self._outcomes[call].wait(_OUTCOME)

    def _logged(self, continuation: Any, details: Any, request: Any) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        text = "..." if isinstance(request, pb.ShareRequest) else text_format.MessageToString(request, as_one_line=True)
        LOG.debug("%s: %s {%s}", self._address, method, text)
        begun, logged = time.monotonic(), threading.Event()

        def log_outcome(ended: Any) -> None:
            try:
                LOG.debug("%s: %s: %s after %.3f s", self._address, method, ended.code().name, time.monotonic() - begun)
            finally:
                logged.set()

        call = continuation(details, request)
        self._outcomes[call] = logged
        call.add_done_callback(log_outcome)
        return call

    intercept_unary_unary = intercept_unary_stream = _logged


class _Unproven(grpc.RpcError):
    """The server at an address did not prove that it knows the shared secret. Nothing was sent to it."""

    code = staticmethod(lambda: grpc.StatusCode.UNAUTHENTICATED)
    trailing_metadata = staticmethod(tuple)

    def details(self) -> str:
        return (f"novad at {self.args[0]} does not prove that it knows the shared secret: either another secret is "
                "given here (--secret, $NOVA_SHARED_SECRET), or another program, or an older novad, listens there. "
                "No request was sent.")


class _Signer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Signs each call over ``channel`` after the server has proved that it knows the secret."""

    def __init__(self, channel: grpc.Channel, address: str, secret: str) -> None:
        self._address, self._secret = address, secret
        self._challenge = channel.unary_unary(
            signing.CHALLENGE, pb.Empty.SerializeToString, pb.ChallengeAnswer.FromString)

    def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        ours = signing.new_nonce()
        try:
            answer = self._challenge(pb.Empty(), metadata=[(signing.NONCE, ours)], timeout=details.timeout or _TIMEOUT)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED):
                raise _Unproven(self._address) from None
            raise
        if not hmac.compare_digest(answer.proof.encode(), signing.proof(self._secret, ours, answer.nonce).encode()):
            raise _Unproven(self._address)
        signature = signing.signature(self._secret, details.method, ours, answer.nonce, request.SerializeToString())
        # gRPC takes the other details from the original ones.
        signed = SimpleNamespace(metadata=[*(details.metadata or ()), (signing.SIGNATURE, signature)])
        return continuation(signed, request)

    intercept_unary_unary = intercept_unary_stream = _call


def _unusable(path: pathlib.Path) -> str:
    """Return the reason why a socket must not be used, or "" if root or this user listens on it."""
    trusted = (0, os.geteuid())
    try:
        status, above = path.lstat(), path.parent.stat()
        if not stat.S_ISSOCK(status.st_mode):
            return "it is not a socket"
        if status.st_uid not in trusted or above.st_uid not in trusted or above.st_mode & 0o022:
            return "the socket, or its directory, belongs to another account"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_CONNECT)
            sock.connect(str(path))
            listener = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    except OSError as error:
        return error.strerror or str(error)
    return "" if listener in trusted else "a process of another account listens there"


def _credentials(environ: Mapping[str, str]) -> grpc.ChannelCredentials:
    def read(name: str) -> bytes | None:
        try:
            return pathlib.Path(environ[name]).read_bytes() if environ.get(name) else None
        except OSError as error:
            raise Unreachable(f"{name}: {error}") from None

    return grpc.ssl_channel_credentials(read("NOVA_CACERT"), read("NOVA_KEY"), read("NOVA_CERT"))
