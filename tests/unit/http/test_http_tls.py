"""The API over TLS: large bodies, silent clients, key updates, protocol versions and client certificates."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ipaddress
import pathlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from nova import exception
from nova.api import service
from nova.conf import CONF, register
from nova.http import tls

BIG = b"x" * 8_000_000


def certificate(directory: pathlib.Path, name: str) -> str:
    """Write a PEM file with a self-signed certificate for 127.0.0.1 and its key. Return the path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256()))
    path = directory / f"{name}.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return str(path)


class Served:
    """A server with a single thread that echoes bodies of POST requests and sends 8 MB for a GET."""

    def __init__(self, certificate: str) -> None:
        self.schemes: list[str] = []
        self.socket = service.listen("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]
        self.server = service.serve(self.socket, self._answer, 1)
        self.server.prepare()
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()
        self.trusting = ssl.create_default_context(cafile=certificate)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.schemes.append(environ["wsgi.url_scheme"])
        body = BIG if environ["REQUEST_METHOD"] == "GET" else environ["wsgi.input"].read()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.trusting)

    def end(self) -> None:
        self.server.stop()
        self._thread.join(60)


class KeyUpdates:
    """A TLS 1.3 client that encrypts its records itself, with the traffic secret of the handshake."""

    def __init__(self, port: int, trusting: ssl.SSLContext, keys: pathlib.Path) -> None:
        trusting.keylog_filename = str(keys)
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trusting.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self._out.read())
                self._in.write(self.socket.recv(65536))
        self.socket.sendall(self._out.read())
        name, _bits, size = self._tls.cipher() or ("", "", 0)
        self._hash: hashes.HashAlgorithm = hashes.SHA384() if name.endswith("384") else hashes.SHA256()
        self._size = size // 8
        [line] = [line for line in keys.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
        self._secret, self._number = bytes.fromhex(line.split()[2]), 0

    def take(self) -> bytes:
        """Return a KeyUpdate record and switch to the next key."""
        record = self.sealed(b"\x16", b"\x18\0\0\x01\x00")
        self._secret, self._number = self._derived(b"traffic upd", len(self._secret)), 0
        return record

    def sealed(self, kind: bytes, content: bytes) -> bytes:
        start = int.from_bytes(self._derived(b"iv", 12), "big")
        head = b"\x17\x03\x03" + struct.pack("!H", len(content) + 17)
        nonce = (start ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + AESGCM(self._derived(b"key", self._size)).encrypt(nonce, content + kind, head)

    def answer(self) -> bytes:
        while True:
            try:
                return self._tls.read(65536)
            except ssl.SSLWantReadError:
                self._in.write(self.socket.recv(65536))

    def _derived(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack("!HB", size, len(label)) + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)


@pytest.fixture
def own(tmp_path: pathlib.Path) -> str:
    return certificate(tmp_path, "server")


@pytest.fixture
def serve(own: str) -> Iterator[Callable[[], Served]]:
    register(CONF)
    CONF.set_override("tls_cert_file", own, group="api")
    made: list[Served] = []

    def one() -> Served:
        made.append(Served(own))
        return made[-1]

    yield one
    for served in made:
        served.end()
    CONF.clear_override("tls_cert_file", group="api")


def ask(connection: http.client.HTTPConnection, method: str, body: Any = None) -> bytes:
    connection.request(method, "/", body)
    return connection.getresponse().read()


def test_large_requests_and_responses_share_a_tls_connection(serve: Callable[[], Served]) -> None:
    served = serve()
    connection = served.connect()
    for _ in range(2):
        assert ask(connection, "POST", b"y" * 100_000) == b"y" * 100_000
        assert ask(connection, "POST", iter([b"a" * 40_000, b"b" * 40_000])) == b"a" * 40_000 + b"b" * 40_000
        assert ask(connection, "GET") == BIG
    connection.close()
    assert set(served.schemes) == {"https"}


def test_pipelined_requests_over_tls_are_all_answered(serve: Callable[[], Served]) -> None:
    served = serve()
    with served.trusting.wrap_socket(socket.create_connection(("127.0.0.1", served.port), 30),
                                     server_hostname="127.0.0.1") as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b"1" * 20000
                       + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nend")
        found = b""
        while got := client.recv(65536):
            found += got
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert found.endswith(b"end")


def test_clients_without_a_tls_handshake_do_not_block_other_clients(serve: Callable[[], Served]) -> None:
    served = serve()
    silent = [socket.create_connection(("127.0.0.1", served.port), 30) for _ in range(20)]
    silent[0].sendall(b"\x16\x03\x01")
    silent[1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    slow = served.connect()
    slow.request("GET", "/")  # the response stays unread
    assert ask(served.connect(), "POST", b"fine") == b"fine"
    with contextlib.suppress(ConnectionResetError):
        assert not silent[1].recv(1000).startswith(b"HTTP"), "a plain HTTP request got a response"
    for client in silent:
        client.close()
    assert slow.getresponse().read() == BIG
    slow.close()


def test_client_that_floods_tls_key_updates_does_not_block_the_server(
        serve: Callable[[], Served], tmp_path: pathlib.Path) -> None:
    """KeyUpdate records precede authentication and use the thread that serves all connections."""
    served = serve()
    client = KeyUpdates(served.port, served.trusting, tmp_path / "keys")
    with client.socket:
        with contextlib.suppress(OSError):
            client.socket.sendall(b"".join(client.take() for _ in range(20_000)))
        with contextlib.suppress(ConnectionResetError):
            while client.socket.recv(65536):
                pass
    assert ask(served.connect(), "POST", b"fine") == b"fine"


def test_tls_key_updates_between_requests_are_accepted(serve: Callable[[], Served], tmp_path: pathlib.Path) -> None:
    served = serve()
    client = KeyUpdates(served.port, served.trusting, tmp_path / "keys")
    with client.socket:
        request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
        for _ in range(100):
            client.socket.sendall(client.take() + client.sealed(b"\x17", request) + client.take()
                                  + client.sealed(b"\x17", b"fine"))
            assert b"fine" in client.answer()


def test_idle_connection_is_closed_without_a_response(serve: Callable[[], Served],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request is idle, as without TLS: its client must not receive 408."""
    monkeypatch.setattr("nova.http.connection.IDLE", 0.2)
    served = serve()
    with served.trusting.wrap_socket(socket.create_connection(("127.0.0.1", served.port), 40),
                                     server_hostname="127.0.0.1") as client:
        assert client.recv(1000) == b""


def test_tls_versions_before_1_2_are_refused(serve: Callable[[], Served]) -> None:
    assert tls.context("api").minimum_version == ssl.TLSVersion.TLSv1_2
    served = serve()
    served.trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        served.connect().connect()


def test_tls_client_ca_file_requires_a_client_certificate(serve: Callable[[], Served], tmp_path: pathlib.Path) -> None:
    theirs, others = certificate(tmp_path, "client"), certificate(tmp_path, "stranger")
    CONF.set_override("tls_client_ca_file", theirs, group="api")
    try:
        served = serve()
    finally:
        CONF.clear_override("tls_client_ca_file", group="api")
    with pytest.raises(OSError):
        ask(served.connect(), "POST", b"no certificate")
    served.trusting.load_cert_chain(others)
    with pytest.raises(OSError):
        ask(served.connect(), "POST", b"a stranger's")
    served.trusting.load_cert_chain(theirs)
    assert ask(served.connect(), "POST", b"fine") == b"fine"
    assert len(served.schemes) == 1


@pytest.mark.parametrize(("options", "reason"), [
    ({"tls_cert_file": "bad.pem"}, r"\[api\]tls_cert_file .*bad.pem cannot be used"),
    ({"tls_cert_file": "missing.pem"}, "missing.pem cannot be used: .*No such file"),
    ({"tls_cert_file": "server.pem", "tls_key_file": "other.pem"}, "with tls_key_file .*other.pem cannot be used"),
    ({"tls_cert_file": "server.pem", "tls_client_ca_file": "bad.pem"}, r"\[api\]tls_client_ca_file .*bad.pem cannot"),
    ({"tls_client_ca_file": "server.pem"}, "need a tls_cert_file"),
    ({"tls_key_file": "server.pem"}, "need a tls_cert_file")])
def test_unusable_tls_files_are_refused_with_option_and_path(
        tmp_path: pathlib.Path, options: dict[str, str], reason: str) -> None:
    register(CONF)
    certificate(tmp_path, "server")
    certificate(tmp_path, "other")
    (tmp_path / "bad.pem").write_text("nothing")
    for name, file in options.items():
        CONF.set_override(name, str(tmp_path / file), group="api")
    try:
        with pytest.raises(exception.InvalidInput, match=reason):
            tls.context("api")
    finally:
        for name in options:
            CONF.clear_override(name, group="api")
