"""Registration of agents: key pair, certificate request, stored credentials, renewal. Facts chapter 6, promise P8."""

from __future__ import annotations

import asyncio
import base64
import datetime
import functools
import pathlib
import signal
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nova.federator.api.names import AGENT_USER, AGENTS_GROUP, cluster_namespace
from nova.federator.client.tokens import bootstrap_config, create_token
from nova.federator.controllers.joining import Joining, prepare
from nova.federator.controllers.signing import Authority
from nova.federator.kube.client import Api
from tests.integration.federator.clusters import Cluster, until
from tests.integration.federator.federation import Process

SECRET = "nova-agent-credentials"


class Signer:
    """The part of the scheduler that signs certificates of agents, in a thread."""

    def __init__(self, nova: Cluster) -> None:
        self.nova = nova
        self.authority = functools.partial(Authority.load, nova.local.pki / "ca.crt", nova.local.pki / "ca.key")
        self._started, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._started.wait(30)

    async def _run(self) -> None:
        async with Api(self.nova.config) as api:
            joining = Joining(api, lambda: self.authority())
            self._end = asyncio.Event()
            tasks = [asyncio.create_task(loop) for loop in (joining.requests.run(), joining.run())]
            self._started.set()
            await self._end.wait()
            for task in tasks:
                task.cancel()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)


class Cell:
    """An agent of a cluster of its own name in a namespace of a member."""

    def __init__(self, nova: Cluster, member: Cluster, directory: pathlib.Path, name: str) -> None:
        self.nova, self.member, self.name, self.directory = nova, member, name, directory
        self.process: Process | None = None

    @property
    def bootstrap(self) -> pathlib.Path:
        return self.directory / "init"

    def write_bootstrap(self, token: str = "", ca: bytes = b"") -> None:
        """Write the bootstrap credentials, by default with a new token and the authority of the control plane."""
        async def create() -> str:
            async with Api(self.nova.config) as api:
                return await create_token(api, self.name)
        config = bootstrap_config(self.nova.config, token or asyncio.run(create()))
        self.bootstrap.write_text(msgspec.structs.replace(config, ca=ca or config.ca).render("init"))

    def start(self, token: str = "", write: bool = True) -> Process:
        if write:
            self.write_bootstrap(token)
        self.process = Process(self.directory / "agent.log", "agent", f"--cluster-name={self.name}",
                               f"--namespace={self.name}", f"--control-plane-kubeconfig={self.bootstrap}",
                               f"--kubeconfig={self.member.kubeconfig}")
        return self.process

    def secret(self) -> dict[str, Any]:
        output = self.member.kubectl("get", "secret", SECRET, "-n", self.name, "-o", "json", "--ignore-not-found")
        return msgspec.json.decode(output, type=dict[str, Any]) if output else {}

    def joined(self) -> bool:
        return bool(self.nova.kubectl("get", "lease", "heartbeat", "-n", cluster_namespace(self.name),
                                      "--ignore-not-found"))

    def epoch(self) -> int:
        """Return the number of agents that have held the Lease of the cluster."""
        lease = self.nova.get("lease", "heartbeat", "-n", cluster_namespace(self.name))
        return int(lease["spec"]["leaseTransitions"])

    def requests(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.nova.get("certificatesigningrequests")["items"]
                if item["metadata"]["name"].startswith(f"nova-agent-{self.name}-")}

    def store(self, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
        """Store credentials as an earlier agent."""
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                    serialization.NoEncryption())
        data = {"tls.key": base64.b64encode(private).decode(), "tls.crt": base64.b64encode(certificate).decode()}
        self.member.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}},
                          {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
                           "metadata": {"name": SECRET, "namespace": self.name}})

    def stop(self) -> None:
        if self.process:
            self.process.stop(signal.SIGKILL)
        self.member.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--wait=false")
        self.nova.kubectl("delete", "namespace", cluster_namespace(self.name), "--ignore-not-found", "--wait=false")
        self.nova.kubectl("delete", "clusters.cluster.elotl.co", self.name, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def signer(control_plane: Cluster) -> Iterator[Signer]:
    signer = Signer(control_plane)
    yield signer
    signer.stop()


@pytest.fixture
def cell(control_plane: Cluster, members: list[Cluster], tmp_path: pathlib.Path, request: pytest.FixtureRequest,
         ) -> Iterator[Cell]:
    name = f"join-{zlib.crc32(request.node.name.encode()):08x}"  # other tests' namespaces may still be ending
    cell = Cell(control_plane, members[0], tmp_path, name)
    yield cell
    cell.stop()


def certify(cell: Cell, minutes: float, authority: tuple[bytes, bytes] | None = None,
            ) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    """Return an agent's certificate, 60 minutes old and valid for some more minutes, and its key. ``authority``: the
    default is that of the control plane."""
    pki, key = cell.nova.local.pki, ec.generate_private_key(ec.SECP256R1())
    certificate, private = authority or ((pki / "ca.crt").read_bytes(), (pki / "ca.key").read_bytes())
    issuer = x509.load_pem_x509_certificate(certificate).subject
    now = datetime.datetime.now(datetime.UTC)
    signed = (x509.CertificateBuilder().issuer_name(issuer).public_key(key.public_key())
              .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, AGENTS_GROUP),
                                       x509.NameAttribute(NameOID.COMMON_NAME, f"{AGENT_USER}{cell.name}")]))
              .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=60))
              .not_valid_after(now + datetime.timedelta(minutes=minutes))
              .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
              .sign(serialization.load_pem_private_key(private, None), hashes.SHA256()))  # type: ignore[arg-type]
    return signed.public_bytes(serialization.Encoding.PEM), key


async def register(cell: Cell) -> None:
    """Create the Cluster, as if its agent had joined earlier."""
    async with Api(cell.nova.config) as api:
        await prepare(api, cell.name)


def foreign_authority() -> tuple[bytes, bytes]:
    """Return the certificate and the key of another control plane's authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes-ca")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
                   .not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256()))
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def test_an_agent_joins_once_and_continues_after_restarts(signer: Signer, cell: Cell) -> None:
    """Facts chapter 6: the bootstrap credential is exchanged for the agent's own, and is not used again."""
    process = cell.start()
    until(cell.joined)
    secret = cell.secret()
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == f"{AGENT_USER}{cell.name}"
    assert process.stop() == 0
    requests = cell.requests()
    lease = cell.nova.get("lease", "heartbeat", "-n", cluster_namespace(cell.name))
    cell.start(token="abcdef.0123456789abcdef")
    until(lambda: cell.nova.get("lease", "heartbeat", "-n", cluster_namespace(cell.name))["spec"]["leaseTransitions"]
          == lease["spec"]["leaseTransitions"] + 1)
    assert cell.secret() == secret
    assert cell.requests() == requests


def test_an_agent_renews_its_certificate_with_its_own_certificate(signer: Signer, cell: Cell) -> None:
    """Chapter 7, rotation: renewed after two thirds of its lifetime, without a bootstrap token and without a gap."""
    cell.start()
    until(cell.joined)
    assert cell.process is not None
    cell.process.stop()
    certificate, key = certify(cell, 10)
    cell.store(certificate, key)
    lease = cell.nova.get("lease", "heartbeat", "-n", cluster_namespace(cell.name))["spec"]
    process = cell.start(token="abcdef.0123456789abcdef")
    until(lambda: base64.b64decode(cell.secret()["data"]["tls.crt"]) != certificate)
    until(lambda: "renewed the certificate of the agent" in process.output())
    after = cell.nova.get("lease", "heartbeat", "-n", cluster_namespace(cell.name))["spec"]
    assert after["leaseTransitions"] == lease["leaseTransitions"] + 1
    until(lambda: cell.nova.get("lease", "heartbeat", "-n", cluster_namespace(cell.name))["spec"]["renewTime"]
          != after["renewTime"])
    assert "ERROR" not in process.output()


def test_credentials_of_another_control_plane_are_replaced(signer: Signer, cell: Cell) -> None:
    """Promise P11: after a new installation of the control plane an agent joins again by itself."""
    certificate, key = certify(cell, 600, foreign_authority())
    cell.store(certificate, key)
    process = cell.start()
    until(cell.joined)
    assert "refused the credentials of cluster" in process.output()
    assert base64.b64decode(cell.secret()["data"]["tls.crt"]) != certificate


def test_an_agent_that_ended_before_it_stored_its_certificate_joins_again(signer: Signer, cell: Cell) -> None:
    """Crash safety: the name of the cluster exists by then, and the token is a shared one."""
    asyncio.run(register(cell))

    async def create() -> str:
        async with Api(cell.nova.config) as api:
            return await create_token(api)
    cell.start(asyncio.run(create()))
    until(cell.joined)


def test_a_refused_agent_reports_why_and_stores_nothing(signer: Signer, cell: Cell) -> None:
    """Facts chapter 6: a second agent under a name that exists is refused with the installer's text."""
    cell.start()
    until(cell.joined)
    assert cell.process is not None
    cell.process.stop()
    cell.member.kubectl("delete", "secret", SECRET, "-n", cell.name)

    async def create() -> str:
        async with Api(cell.nova.config) as api:
            return await create_token(api)
    process = cell.start(asyncio.run(create()))
    until(lambda: "already exists in Nova, please choose another name" in process.output())
    assert cell.secret() == {}


@pytest.mark.parametrize("fault", ["missing", "unreadable", "foreign authority", "used token"])
def test_replaced_bootstrap_credentials_are_used_without_a_restart(signer: Signer, cell: Cell, fault: str) -> None:
    """Kubelets replace the files of a Secret in a running pod."""
    if fault == "unreadable":
        cell.bootstrap.write_text("apiVersion: v1\nclusters: [")
    elif fault != "missing":
        cell.write_bootstrap("abcdef.0123456789abcdef" if fault == "used token" else "",
                             foreign_authority()[0] if fault == "foreign authority" else b"")
    process = cell.start(write=False)
    reason = {"missing": "Cannot read", "unreadable": "is not YAML", "foreign authority": "certificate verify failed",
              "used token": "401"}[fault]
    until(lambda: "cannot join" in process.output() and reason in process.output())
    cell.write_bootstrap()
    until(cell.joined)
    assert process.stop() == 0


def test_an_agent_that_has_joined_needs_no_bootstrap_credentials(signer: Signer, cell: Cell) -> None:
    """Users may delete their Secret: an agent that cannot start would not stop fenced workloads."""
    cell.start()
    until(cell.joined)
    assert cell.process is not None
    cell.process.stop()
    before = cell.epoch()
    cell.bootstrap.unlink()
    process = cell.start(write=False)
    until(lambda: cell.epoch() == before + 1)
    assert "continuing with the stored certificate" in process.output()


def test_an_expired_certificate_is_replaced_with_new_bootstrap_credentials(signer: Signer, cell: Cell) -> None:
    """The authority of the control plane cannot sign until the certificate of a running agent has expired. Neither is
    the request denied, nor a token used up: they are used once the files of the authority are repaired."""
    working = signer.authority
    certificate, key = certify(cell, 0.75)
    cell.store(certificate, key)
    asyncio.run(register(cell))
    signer.authority = functools.partial(Authority.load, cell.directory / "none", cell.directory / "none")
    try:
        process = cell.start(token="abcdef.0123456789abcdef")
        until(lambda: f"novactl join-command {cell.name}" in process.output(), 120)
        cell.write_bootstrap()
        requests = until(cell.requests)
        until(lambda: cell.requests() - requests, 90)
        assert not any((item.get("status") or {}).get("conditions")
                       for item in cell.nova.get("certificatesigningrequests")["items"]
                       if item["metadata"]["name"] in cell.requests())
    finally:
        signer.authority = working
    until(lambda: "the agent logged in to the federation control plane again" in process.output())
    assert base64.b64decode(cell.secret()["data"]["tls.crt"]) != certificate
    epoch = cell.epoch()
    assert process.stop() == 0
    cell.start(write=False)
    until(lambda: cell.epoch() == epoch + 1)


def test_a_request_that_was_approved_by_an_ended_scheduler_is_signed(signer: Signer, cell: Cell) -> None:
    """Crash safety: the scheduler ends between the approval of a request and its signature."""
    working = signer.authority
    signer.authority = functools.partial(Authority.load, cell.directory / "none", cell.directory / "none")
    try:
        cell.start()
        (name,) = until(cell.requests)

        async def approve() -> None:
            async with Api(cell.nova.config) as api:
                path = f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}"
                request, now = await api.get(path), datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                request["status"] = {"conditions": [{
                    "type": "Approved", "status": "True", "reason": "NovaApproved", "message": "",
                    "lastUpdateTime": now, "lastTransitionTime": now}]}
                await api.replace(f"{path}/approval", request)
        asyncio.run(approve())
    finally:
        signer.authority = working
    until(cell.joined)
    assert cell.requests() == {name}
