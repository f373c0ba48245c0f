"""Registration of an agent: a key pair and a certificate of its own, requested with a bootstrap token and kept in a
Secret of the workload cluster."""

import asyncio
import base64
import binascii
import datetime
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nova.common.errors import Invalid, Refused, ReportedError
from nova.federator.api.names import AGENT_USER, AGENTS_GROUP, AUTHORITIES, NAME_LABEL, SIGNER, TRUSTED
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.config import Kubeconfig, decode

LOG = logging.getLogger(__name__)
_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_SECRET = "nova-agent-credentials"  # noqa: S105
_TRUSTED_FILE, _BOOTSTRAP_FILE = "ca.crt", "replaced-ca.crt"  # keys of the Secret
_SERVER_FILE = "kubeconfig"  # in the Secret: a kubeconfig with the address of the control plane, without credentials
_WAIT = 300.0  # seconds in which the control plane must sign a certificate request
_RENEW_AT = 2 / 3  # fraction of its validity after which a certificate is renewed


class Credentials:
    """The credentials of an agent in the control plane, stored in the workload cluster. ``bootstrap``: returns the
    present bootstrap credentials, which users can replace while the agent runs; raises Invalid if there are none."""

    def __init__(self, member: Api, namespace: str, cluster: str, bootstrap: Callable[[], Kubeconfig]) -> None:
        self.member, self.cluster, self.namespace, self._bootstrap = member, cluster, namespace, bootstrap
        self._used: Kubeconfig | None = None
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self.secret = f"{self._collection}/{_SECRET}"  # path of the Secret in the API
        self._bootstrap_ca = b""

    async def obtain(self, ignore_stored: bool = False) -> Kubeconfig:
        """Return the stored credentials, or join with the bootstrap credentials and store the signed certificate.
        Raises Refused if the control plane denies the request, ApiError if it does not decide within _WAIT, Invalid if
        there are neither complete stored credentials nor usable bootstrap credentials."""
        secret = await self.member.find(self.secret)
        stored = None if ignore_stored else self._stored(secret)
        try:
            self._used = self._bootstrap()
        except ReportedError as error:
            if stored is None or (address := _stored_address(secret)) is None:
                raise
            LOG.warning("Cluster %s: cannot use the bootstrap credentials, continuing with the stored certificate: %s",
                        self.cluster, error.message)
            self._used, bootstrap = None, address
            self._bootstrap_ca = _content(secret, _BOOTSTRAP_FILE) or address.ca
        else:
            self._bootstrap_ca = self._used.ca
            bootstrap = _with_stored_authorities(self._used, secret)
        if stored is not None:
            key, certificate = stored
            return msgspec.structs.replace(bootstrap, token="", certificate=certificate, key=key)
        return await self._request(bootstrap)

    def replaced(self) -> bool:
        """Return True if the bootstrap credentials have changed since their last use."""
        try:
            return self._bootstrap() != self._used
        except ReportedError:
            return False

    async def renew(self, current: Kubeconfig) -> Kubeconfig:
        """Return new credentials, requested with the present ones. Raises the errors of :meth:`obtain`."""
        return await self._request(current)

    async def refresh(self, current: Kubeconfig, nova: Api) -> Kubeconfig:
        """Return ``current``, or new credentials if the certificate is due for renewal, the control plane publishes
        other trusted authorities, or another authority signs certificates of agents now. Raises the errors of
        :meth:`obtain`, and ApiError or Invalid if the published authorities did not sign the server's certificate."""
        published = await self._published(nova)
        trusted, issuer = (str(published.get(name) or "").encode() for name in ("ca.crt", "issuer.crt"))
        if trusted and trusted != current.ca:
            changed = msgspec.structs.replace(current, ca=trusted)
            async with Api(changed, agent="nova-agent") as checked:  # fails if the server's own authority is missing
                await self._published(checked)
            await self.member.patch(self.secret, {"data": _encoded({
                _TRUSTED_FILE: trusted, _BOOTSTRAP_FILE: self._bootstrap_ca, _SERVER_FILE: _address(changed)})})
            LOG.info("Cluster %s: stored the new CA certificates of the federation control plane", self.cluster)
            return await self.renew(changed)
        due = remaining(current.certificate) <= 1.0
        return await self.renew(current) if due or (issuer and not _issued_by(current.certificate, issuer)) else current

    async def _published(self, nova: Api) -> Mapping[str, Any]:
        try:
            stored = await nova.get(f"/api/v1/namespaces/kube-public/configmaps/{AUTHORITIES}")
        except ApiError as error:
            if error.status in (403, 404):  # certificates were never renewed
                return {}
            raise
        return stored.get("data") or {}

    def _stored(self, secret: Object | None) -> tuple[bytes, bytes] | None:
        if secret is None:
            return None
        try:
            data = secret.get("data") or {}
            key, certificate = base64.b64decode(data["tls.key"]), base64.b64decode(data["tls.crt"])
            name = x509.load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (KeyError, ValueError, binascii.Error):
            LOG.warning("Cannot read the key and certificate in Secret %s/%s, joining again", self.namespace, _SECRET)
            return None
        if not name or name[0].value != f"{AGENT_USER}{self.cluster}" or remaining(certificate) <= 0:
            LOG.warning("The certificate in Secret %s/%s expired or is for another cluster, joining again",
                        self.namespace, _SECRET)
            return None
        return key, certificate

    async def _request(self, login: Kubeconfig) -> Kubeconfig:
        private = ec.generate_private_key(ec.SECP256R1())
        key = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                    serialization.NoEncryption())
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, AGENTS_GROUP),
                             x509.NameAttribute(NameOID.COMMON_NAME, f"{AGENT_USER}{self.cluster}")])
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private, hashes.SHA256())
        pem = request.public_bytes(serialization.Encoding.PEM)
        LOG.info("Cluster %s: requesting a client certificate from %s", self.cluster, login.server)
        async with Api(login, agent="nova-agent") as nova:
            created = await nova.create(_REQUESTS, {
                "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                "metadata": {"generateName": f"nova-agent-{self.cluster[:200]}-",
                             "annotations": {TRUSTED: hashlib.sha256(login.ca).hexdigest()[:20]}},
                "spec": {"request": base64.b64encode(pem).decode(), "signerName": SIGNER, "usages": ["client auth"]}})
            certificate = await self._wait(nova, str(created["metadata"]["name"]), private.public_key())
        await self._store(key, certificate, login)
        return msgspec.structs.replace(login, token="", certificate=certificate, key=key)

    async def _wait(self, nova: Api, name: str, public: ec.EllipticCurvePublicKey) -> bytes:
        deadline, delay = time.monotonic() + _WAIT, 0.1
        while time.monotonic() < deadline:
            try:
                request = await nova.get(f"{_REQUESTS}/{name}")
            except ApiError as error:
                if 400 <= error.status < 500 and error.status != 429:
                    raise
                LOG.info("Cannot read certificate request %s, retrying: %s", name, error)
                request = {}
            status = request.get("status") or {}
            for condition in status.get("conditions") or ():
                if condition.get("type") in ("Denied", "Failed"):
                    raise Refused(f"The control plane refused the agent: {condition.get('message')}")
            if status.get("certificate"):
                return self._checked(status["certificate"], public)
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, 2.0)  # at most 2 s: a one-time token is deleted soon after the request is signed
        raise ApiError(f"The control plane did not sign the request {name} within {_WAIT:.0f} s:"
                       " is nova-scheduler running?")

    def _checked(self, encoded: str, public: ec.EllipticCurvePublicKey) -> bytes:
        """Return a signed certificate. Raises Invalid if the certificate is for another key."""
        try:
            certificate = base64.b64decode(encoded)
            if x509.load_pem_x509_certificate(certificate).public_key() != public:
                raise ValueError("it is for another key")
        except ValueError as error:
            raise Invalid(f"The control plane signed an unusable certificate for {self.cluster}: {error}") from None
        return certificate

    async def _store(self, key: bytes, certificate: bytes, login: Kubeconfig) -> None:
        data = _encoded({"tls.key": key, "tls.crt": certificate, _SERVER_FILE: _address(login)})
        body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
                "metadata": {"name": _SECRET, "namespace": self.namespace}}
        try:
            await self.member.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": self.namespace, "labels": {NAME_LABEL: self.namespace}}})
        except ApiError as error:
            if error.status not in (403, 409):  # 409: the namespace exists; 403: the installation creates it
                raise
        if not await self.member.ensure(self._collection, body):
            await self.member.patch(self.secret, {"data": data})


def _stored_address(secret: Object | None) -> Kubeconfig | None:
    """Return the address of the control plane that was stored with the certificate, or None."""
    try:
        return decode(_content(secret, _SERVER_FILE), f"The field {_SERVER_FILE} of the Secret {_SECRET}")
    except Invalid:
        return None


def _address(login: Kubeconfig) -> bytes:
    """Return a kubeconfig with the address and the authorities of a login, without its credentials."""
    address = Kubeconfig(server=login.server, ca=login.ca, tls_server_name=login.tls_server_name)
    return address.render("nova-agent").encode()


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in data.items()}


def _content(secret: Object | None, name: str) -> bytes:
    """Return a field of a Secret; empty if it is missing or damaged."""
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(name) or "")
    except ValueError:
        return b""


def _with_stored_authorities(bootstrap: Kubeconfig, secret: Object | None) -> Kubeconfig:
    """Replace the authorities of the bootstrap kubeconfig by the published ones in the Secret. If a user has changed
    the bootstrap kubeconfig since these were stored, it is returned unchanged."""
    trusted, replaced = _content(secret, _TRUSTED_FILE), _content(secret, _BOOTSTRAP_FILE)
    return msgspec.structs.replace(bootstrap, ca=trusted) if trusted and replaced == bootstrap.ca else bootstrap


def remaining(certificate: bytes) -> float:
    """Return the seconds until a certificate must be renewed; 0 or less if it has expired. Raises Invalid."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise Invalid(f"The certificate is unreadable: {error}") from None
    start, end = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)  # certificates are valid by the wall clock
    if now >= end:
        return 0.0
    return max(1.0, (start + (end - start) * _RENEW_AT - now).total_seconds())


def _issued_by(certificate: bytes, authority: bytes) -> bool:
    """Return True if ``authority`` signed the certificate; True also if ``authority`` is no certificate: ignore it."""
    try:
        issuer = x509.load_pem_x509_certificate(authority)
    except ValueError:
        return True
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
