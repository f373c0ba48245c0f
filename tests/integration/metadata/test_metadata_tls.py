"""The metadata service behind Neutron's agent over TLS (options auth_ca_cert and nova_client_* of the agent)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from nova import bus
from nova.api.guest_metadata.server import Server
from nova.api.guest_metadata.service import MetadataService, listen
from nova.conf import CONF, register
from nova.http import tls
from nova.rpcapi import CONDUCTOR
from nova.rpcapi.by_hosts import Guests
from nova.rpcapi.servers import Servers
from tests.certificates import Authority, Pair
from tests.integration.cluster import command_of, environment
from tests.integration.processes import Process, eventually, free_port
from tests.unit.metadata.test_trees import make

SECRET = "shared"
INSTANCE = make()


class Conductor:
    def get(self, ctx, uuid, project_id=None, deleted=False):  # type: ignore[no-untyped-def]
        assert uuid == INSTANCE.uuid
        return INSTANCE

    def __getattr__(self, name: str) -> Any:
        return lambda ctx, **_kwargs: None


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@contextlib.contextmanager
def options(**values: object) -> Iterator[None]:
    register(CONF)
    for name, value in values.items():
        CONF.set_override(name, value, group="metadata")
    try:
        yield
    finally:
        for name in values:
            CONF.clear_override(name, group="metadata")


@pytest.fixture
def service(authority: Authority) -> Iterator[int]:
    """Start the service with required client certificates for proxies and return its port."""
    server = authority.issue("metadata")
    with options(listen="127.0.0.1", port=free_port(), namespaces=False, metadata_proxy_shared_secret=SECRET,
                 tls_cert_file=server.certificate, tls_key_file=server.key, tls_client_ca_file=authority.file):
        transport = bus.transport.messaging.get_rpc_transport(CONF, url="fake://")
        conductor = Conductor()
        answering = bus.serve(transport, CONDUCTOR, "host", [(Guests, conductor), (Servers, conductor)])
        running = MetadataService(transport, secure=tls.context("metadata"))
        running.start()
        yield CONF.metadata.port
        running.stop()
        answering.stop()
        answering.wait()


def ask(port: int, ca: str, client: Pair | None = None, scheme: str = "https",
        path: str = "/openstack/latest/meta_data.json") -> requests.Response:
    """Send a request as Neutron's metadata agent does and return the response."""
    uuid = INSTANCE.uuid
    headers = {"X-Instance-ID": uuid, "X-Tenant-ID": "p1", "X-Forwarded-For": "10.0.0.5",
               "X-Instance-ID-Signature": hmac.new(SECRET.encode(), uuid.encode(), hashlib.sha256).hexdigest()}
    return requests.get(f"{scheme}://127.0.0.1:{port}{path}", headers=headers, verify=ca, timeout=10,
                        cert=(client.certificate, client.key) if client else None)


def test_proxy_with_a_valid_certificate_is_answered_over_tls(service: int, authority: Authority) -> None:
    answer = ask(service, authority.file, authority.issue("agent"))
    assert (answer.status_code, answer.json()["uuid"]) == (200, INSTANCE.uuid)


def test_proxy_without_a_valid_certificate_is_refused(service: int, authority: Authority,
                                                      tmp_path: pathlib.Path) -> None:
    others = Authority(tmp_path)
    for client in (None, others.issue("agent")):
        with pytest.raises(requests.ConnectionError):  # in TLS 1.3, only requests after the handshake fail
            ask(service, authority.file, client)
    with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(service, others.file, authority.issue("agent"))
    with pytest.raises(requests.ConnectionError):
        ask(service, authority.file, scheme="http")
    assert ask(service, authority.file, authority.issue("agent")).status_code == 200


def test_connections_without_tls_handshake_are_closed(service: int, authority: Authority,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [socket.create_connection(("127.0.0.1", service), 30) for _ in range(20)]
    assert ask(service, authority.file, authority.issue("agent")).status_code == 200
    began = time.monotonic()
    for client in silent:
        assert client.recv(1) == b""
        client.close()
    assert time.monotonic() - began < 30


def test_plain_and_tls_ports_are_served_together(authority: Authority) -> None:
    def application(environ, start):  # type: ignore[no-untyped-def]
        body = environ["wsgi.url_scheme"].encode()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    pair = authority.issue("both")
    server = Server(application, threads=1)
    server.start()
    plain, secure = listen(("127.0.0.1", 0)), listen(("127.0.0.1", 0))
    ports = plain.getsockname()[1], secure.getsockname()[1]
    with options(tls_cert_file=pair.certificate, tls_key_file=pair.key):
        server.add("guests", plain, {"nova.network_id": "n1"})
        server.add("proxies", secure, trusted=True, secure=tls.context("metadata"))
    assert requests.get(f"http://127.0.0.1:{ports[0]}/", timeout=10).text == "http"
    assert ask(ports[1], authority.file).text == "https"
    server.stop(timeout=1)


def configuration(directory: pathlib.Path, **options: object) -> list[str]:
    config = directory / "nova.conf"
    config.write_text(f"[DEFAULT]\ntransport_url = kombu+memory://\nstate_path = {directory}\n"
                      "[metadata]\nuser = nobody\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
    return [*command_of("metadata"), "--config-file", str(config)]


def test_metadata_started_as_root_reads_a_private_key_file(authority: Authority, tmp_path: pathlib.Path) -> None:
    """The worker has dropped root privileges before it serves requests."""
    pair, port = authority.issue("roots"), free_port()
    os.chmod(pair.key, 0o600)
    made = Process("metadata", configuration(tmp_path, port=port, tls_cert_file=pair.certificate,
                                             tls_key_file=pair.key), tmp_path / "log", env=environment())
    made.start()
    try:
        eventually(lambda: b"(TLS)" in made.log.read_bytes(), 60, "the service listens")
        assert ask(port, authority.file, path="/").status_code == 200
    finally:
        made.kill()


def test_unusable_tls_files_end_the_service_with_a_clear_error(tmp_path: pathlib.Path) -> None:
    command = configuration(tmp_path, tls_cert_file=tmp_path / "missing.pem")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/",
                          env={**os.environ, **environment()})
    assert done.returncode == 1
    assert f"[metadata]tls_cert_file {tmp_path}/missing.pem cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
