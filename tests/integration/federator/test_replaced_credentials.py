"""Credentials in files of a running process, as kubelets replace them in pods: Secrets and service accounts."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from nova.common.errors import Invalid
from nova.federator.kube import client
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig, load
from nova.federator.local.pki import Authority
from nova.federator.service.listener import serve


class Pod:
    """The files of a pod: a kubeconfig that refers to certificates beside it. The server accepts an authority only."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(f"""
            clusters:
            - name: nova
              cluster: {{server: "https://127.0.0.1:{self.port}", certificate-authority: ca.crt}}
            users: [{{name: pod, user: {{client-certificate: pod.crt, client-key: pod.key, tokenFile: token}}}}]
            contexts: [{{name: nova, context: {{cluster: nova, user: pod}}}}]
            current-context: nova""")
        (directory / "token").write_text("first")

    def issue(self) -> ssl.SSLContext:
        """Replace the files by those of a new authority, and return the settings of a server with its certificate."""
        for file in self.directory.glob("*.crt"):
            file.unlink()
        for file in self.directory.glob("*.key"):
            file.unlink()
        authority = Authority(self.directory, "ca", "test")
        authority.issue("server", "nova", hosts=["127.0.0.1"])
        authority.issue("pod", "pod")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.directory / "ca.crt"))
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(self.directory / "server.crt", self.directory / "server.key")
        return tls

    def load(self) -> Kubeconfig:
        return load([self.kubeconfig])

    @contextlib.asynccontextmanager
    async def server(self, tls: ssl.SSLContext) -> AsyncIterator[None]:
        """Serve the token of each request."""
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"token": request.headers["Authorization"]})
        async with serve(f"127.0.0.1:{self.port}", "server", [web.get("/token", answer)], tls):
            yield


@pytest.fixture
def pod(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    monkeypatch.setattr(client, "_RELOAD", 0.0)
    return Pod(tmp_path)


def test_replaced_authorities_certificates_and_tokens_are_used(pod: Pod) -> None:
    """The views of a client, which duties use, follow."""
    async def run() -> None:
        first = pod.issue()
        async with Api(pod.load(), reload=pod.load) as api:
            view = api.limited(lambda: 100.0)
            async with pod.server(first):
                assert await api.get("/token") == {"token": "Bearer first"}
            (pod.directory / "token").write_text("second")
            async with pod.server(pod.issue()):
                for each in (view, api, view):
                    assert await each.get("/token") == {"token": "Bearer second"}
    asyncio.run(run())


def test_files_that_cannot_be_used_do_not_replace_working_ones(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    """Missing, empty and damaged files, a directory, and a key of another certificate; each is reported once."""
    async def run() -> None:
        tls = pod.issue()
        async with Api(pod.load(), reload=pod.load) as api, pod.server(tls):
            for name in ("ca.crt", "pod.crt", "pod.key", "kubeconfig"):
                file, other = pod.directory / name, (pod.directory / "server.key").read_bytes()
                content = file.read_bytes()
                for damage in (b"", b"\xff\0", content[:len(content) // 2], other):
                    file.write_bytes(damage)
                    assert await api.get("/token") == {"token": "Bearer first"}, (name, damage)
                file.unlink()
                assert await api.get("/token") == {"token": "Bearer first"}, name
                assert await api.get("/token") == {"token": "Bearer first"}, name
                assert caplog.text.count(f"Cannot read {file}: No such file") == 1
                file.mkdir()
                assert await api.get("/token") == {"token": "Bearer first"}, name
                file.rmdir()
                file.write_bytes(content)
            (pod.directory / "token").write_text("second")
            assert await api.get("/token") == {"token": "Bearer second"}
    asyncio.run(run())


def test_an_expired_server_and_a_foreign_authority_are_named(pod: Pod) -> None:
    async def run() -> None:
        first = pod.issue()
        config = pod.load()
        second = pod.issue()
        async with pod.server(second), Api(config) as api:
            with pytest.raises(ApiError, match="certificate verify failed"):
                await api.get("/token")
        async with pod.server(first), Api(pod.load()) as api:
            with pytest.raises(ApiError, match="certificate verify failed"):
                await api.get("/token")
    asyncio.run(run())


def test_an_encrypted_key_is_refused_without_a_question(pod: Pod) -> None:
    """OpenSSL asks for the password at the terminal, and the process waits."""
    pod.issue()
    key = serialization.load_pem_private_key((pod.directory / "pod.key").read_bytes(), None)
    (pod.directory / "pod.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(Invalid, match="The certificates of https://"):
        pod.load().tls()
