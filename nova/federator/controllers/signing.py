"""Certificate requests of agents: checked against the requester, approved or denied, and signed with the control
plane's certificate authority."""

import base64
import datetime
import pathlib
from collections.abc import Mapping
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova.common.errors import Invalid, ReportedError, os_error_text
from nova.federator.api import times
from nova.federator.api.names import AGENT_USER, AGENTS_GROUP

DAYS = 365  # validity of an agent's certificate; agents renew at two thirds
_USAGES = {"client auth", "digital signature", "key encipherment"}
_REQUEST_LIMIT = 16 << 10  # maximum size of a request, in bytes


def requested_cluster(spec: Mapping[str, Any]) -> tuple[str, x509.CertificateSigningRequest]:
    """Return the cluster name of a certificate request, and the request. Raises Invalid for anything but the identity
    of an agent: other names, other groups, alternative names, other usages, weak keys."""
    try:
        data = base64.b64decode(spec.get("request") or "", validate=True)
        if len(data) > _REQUEST_LIMIT:
            raise Invalid("spec.request is too large.")
        request = x509.load_pem_x509_csr(data)
        if not request.is_signature_valid:
            raise Invalid("spec.request: the signature is invalid.")
        subject = [(attribute.oid, str(attribute.value)) for attribute in request.subject]
        extensions, key = list(request.extensions), request.public_key()
    except Invalid:
        raise
    except Exception as error:  # unsupported algorithms, duplicate extensions, ...: the library has many
        raise Invalid(f"spec.request is not a certificate request: {error}") from None
    names = [value for oid, value in subject if oid == NameOID.COMMON_NAME]
    groups = [value for oid, value in subject if oid == NameOID.ORGANIZATION_NAME]
    if len(subject) != 2 or groups != [AGENTS_GROUP] or len(names) != 1 or not names[0].startswith(AGENT_USER):
        raise Invalid(f"The subject must be CN={AGENT_USER}CLUSTER, O={AGENTS_GROUP}.")
    if extensions:
        raise Invalid("The request must have no extensions.")
    if not ((isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size >= 256)
            or (isinstance(key, rsa.RSAPublicKey) and 2048 <= key.key_size <= 8192)):
        raise Invalid("The key must be an elliptic-curve key of at least 256 bits or an RSA key of 2048 to 8192 bits.")
    usages = spec.get("usages")
    if not isinstance(usages, list) or "client auth" not in usages or not set(map(str, usages)) <= _USAGES:
        raise Invalid(f"spec.usages must have 'client auth' and nothing but {sorted(_USAGES)}.")
    return names[0].removeprefix(AGENT_USER), request


class Authority:
    """The certificate authority that signs agents' certificates. Raises Invalid if key and certificate do not match."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        try:
            self.certificate = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise Invalid(f"The certificate authority of the agents is unreadable: {error}") from None
        if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) \
                or private.public_key() != self.certificate.public_key():
            raise Invalid("The key of the certificate authority is not the key of its certificate.")
        self._key = private

    @classmethod
    def load(cls, certificate: pathlib.Path, key: pathlib.Path) -> Self:
        """Return the authority with the certificate and the key in two files. Raises Invalid."""
        try:
            return cls(certificate.read_bytes(), key.read_bytes())
        except OSError as error:
            raise Invalid(f"Cannot read {error.filename}: {os_error_text(error)}") from None

    def sign(self, request: x509.CertificateSigningRequest) -> bytes:
        """Return a certificate (PEM) with the subject and the key of a checked request. Raises ReportedError if the
        authority has expired."""
        now = datetime.datetime.now(datetime.UTC)
        if now >= self.certificate.not_valid_after_utc:
            raise ReportedError("The certificate authority of the agents has expired: run 'novactl certs renew'.")
        end = min(now + datetime.timedelta(days=DAYS), self.certificate.not_valid_after_utc)
        certificate = (
            x509.CertificateBuilder().subject_name(request.subject).issuer_name(self.certificate.subject)
            .public_key(request.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - times.CLOCK_ERROR).not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(True, False, True, False, False, False, False, False, False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256()))
        return certificate.public_bytes(serialization.Encoding.PEM)
