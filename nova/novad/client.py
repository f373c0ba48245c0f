"""Connections to novad: a socket of this machine, TLS, or TCP on loopback with signed calls."""

import contextlib
import hmac
import logging
import os
import pathlib
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

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
_PEER = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED
_TIMEOUT = 30.0  # Timeout in seconds of a call without a stream.


def was_lost(error: Any) -> bool:
    """Return True if the connection was lost and the result is unknown. gRPC sometimes reports UNKNOWN for streams."""
    return ANSWERED not in dict(error.trailing_metadata() or ()) and (error.code() == grpc.StatusCode.UNAVAILABLE or (
        error.code() == grpc.StatusCode.UNKNOWN and "Stream removed" in (error.details() or "")))


class Unreachable(Exception):
    """The address is invalid, or a file for the login cannot be read."""


class Call(NamedTuple):
    """A call of novad.proto: its name in gRPC, and the function that makes it."""

    path: str
    make: Any


class Client:
    """A connection to ``address``:

    - unix:///PATH: a socket of root or of this user, which needs no secret;
    - tcp://HOST:PORT on loopback: calls are signed (:mod:`nova.novad.signing`);
    - tls://HOST:PORT: the secret is sent. NOVA_CACERT names the file of the CA certificate, NOVA_CERT and NOVA_KEY the
      files of the client certificate and its key, if novad requires one.

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
            raise Unreachable(f"{self.address}: use tls://{where}: without TLS, only addresses on loopback are used")
        local = pathlib.Path(where) if scheme == "unix" else _SOCKET if self.address == DEFAULT else None
        if local is not None and (why := _unusable(local)):
            if scheme == "unix":
                raise Unreachable(f"{self.address}: {why}")
            local = None
        given = secret or environ.get("NOVA_SHARED_SECRET") or ""
        with contextlib.suppress(OSError):
            given = given or _SECRET_FILE.read_text().strip()
        defaults = {"grpc.keepalive_time_ms": 60000, "grpc.enable_retries": 0, "grpc.enable_http_proxy": 0,
                    "grpc.max_receive_message_length": 64 << 20}  # A control node sends the data of all its nodes.
        options = [*(defaults | dict(channel)).items()]
        self._metadata = [("authorization", f"Bearer {given}")] if scheme == "tls" and given else []
        self._secret = given if scheme == "tcp" and local is None else ""  # Calls are signed with this secret.
        if scheme == "tls":
            self._channel = grpc.secure_channel(where, _credentials(environ), options)
        else:
            self._channel = grpc.insecure_channel(where if local is None else f"unix:{local}", options)
        self._challenge = _calls(self._channel, "Login").Challenge
        self.platform, self.services, self.logs, self.backups, self.secrets, self.daemon, self.updates, self.nodes = (
            _calls(self._channel, service) for service in (
                "Platform", "Services", "Logs", "Backups", "SecretStore", "Daemon", "Updates", "Nodes"))

    def ask(self, call: Call, request: Any, timeout: float = _TIMEOUT) -> Any:
        """Return the response to a call. Raises grpc.RpcError."""
        metadata = self._login(call, request, timeout)
        with self._logged(call, request):
            return call.make(request, metadata=metadata, timeout=timeout)

    def follow(self, call: Call, request: Any, timeout: float | None = None) -> Iterator[Any]:
        """Yield the messages of a stream, at most ``timeout`` seconds long. Raises grpc.RpcError."""
        metadata = self._login(call, request, timeout or _TIMEOUT)
        with self._logged(call, request):
            stream = call.make(request, metadata=metadata, timeout=timeout)
            try:
                yield from stream
            finally:
                stream.cancel()

    def _login(self, call: Call, request: Any, timeout: float) -> list[tuple[str, str]]:
        """Return the metadata of a call. A signature is made after the server has proved that it knows the secret."""
        if not self._secret:
            return self._metadata
        ours = signing.new_nonce()
        try:
            with self._logged(self._challenge, pb.Empty()):
                answer = self._challenge.make(pb.Empty(), metadata=[(signing.NONCE, ours)], timeout=timeout)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED):
                raise _Unproven(self.address) from None
            raise
        if not hmac.compare_digest(answer.proof.encode(), signing.proof(self._secret, ours, answer.nonce).encode()):
            raise _Unproven(self.address)
        return [(signing.SIGNATURE, signing.signature(
            self._secret, call.path, ours, answer.nonce, request.SerializeToString()))]

    @contextlib.contextmanager
    def _logged(self, call: Call, request: Any) -> Iterator[None]:
        """Log a call and its outcome. Metadata and node assignments are left out: they contain secrets."""
        if not LOG.isEnabledFor(logging.DEBUG):
            yield
            return
        text = "..." if isinstance(request, pb.ShareRequest) else text_format.MessageToString(request, as_one_line=True)
        LOG.debug("%s: %s {%s}", self.address, call.path, text)
        begun, outcome = time.monotonic(), grpc.StatusCode.OK
        try:
            yield
        except BaseException as error:
            outcome = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
            raise
        finally:
            LOG.debug("%s: %s: %s after %.3f s", self.address, call.path, outcome.name, time.monotonic() - begun)

    def close(self) -> None:
        self._channel.close()


def _calls(channel: grpc.Channel, service: str) -> SimpleNamespace:
    """Return the calls of a service in novad.proto by name."""
    calls = {}
    for method in pb.DESCRIPTOR.services_by_name[service].methods:
        path = f"/{method.containing_service.full_name}/{method.name}"
        made = channel.unary_stream if method.server_streaming else channel.unary_unary
        calls[method.name] = Call(path, made(path, getattr(pb, method.input_type.name).SerializeToString,
                                             getattr(pb, method.output_type.name).FromString))
    return SimpleNamespace(**calls)


class _Unproven(grpc.RpcError):
    """The server at an address did not prove that it knows the shared secret. Nothing was sent to it."""

    code = staticmethod(lambda: grpc.StatusCode.UNAUTHENTICATED)
    trailing_metadata = staticmethod(tuple)

    def details(self) -> str:
        return (f"novad at {self.args[0]} does not prove that it knows the shared secret: either another secret is "
                "given here (--secret, $NOVA_SHARED_SECRET), or another program, or an older novad, listens there. "
                "No request was sent.")


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
            sock.settimeout(5.0)
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
