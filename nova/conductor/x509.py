"""Creation of X.509 root certificates, client certificates and certificate revocation lists (CRLs), all as PEM.

Keys are NIST P-256, which every TLS library supports. A conductor generates the key within its transaction, in less
than a millisecond of CPU time; an RSA 2048 key would take tens of milliseconds."""

import datetime
from collections.abc import Iterable
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova import exception

# The validity of a certificate begins so long before its creation, for verifiers whose clock is slow.
_CLOCK_SKEW = datetime.timedelta(minutes=5)
# Maximum length in bytes of a common name and of an organizational unit (RFC 5280, appendix A.1).
_NAME_MAX = 64


def new_root(project_id: str, now: datetime.datetime, not_after: datetime.datetime) -> tuple[str, str]:
    """Return a self-signed root certificate and its private key. Raises InvalidInput for an unusable project id."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Successive roots of a project need different names, as verifiers search the issuer by its name.
    serial = x509.random_serial_number()
    name = _name(f"Nova root {serial:040x}", project_id)
    builder = _builder(name, name, key.public_key(), key.public_key(), serial, now, not_after)
    made = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True) \
        .add_extension(_usage(signs=False), critical=True).sign(key, hashes.SHA256())
    return _pem(made), _private_pem(key)


def new_client(root: str, root_key: str, project_id: str, user_id: str, now: datetime.datetime,
               not_after: datetime.datetime) -> tuple[str, str, str]:
    """Return the serial number (40 hexadecimal digits), the certificate for client authentication as a user of the
    project, and its private key. Raises InvalidInput for an unusable user or project id."""
    issuer, issuer_key = x509.load_pem_x509_certificate(root.encode()), _load(root_key)
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    subject = _name(user_id, project_id)
    identity = f"urn:nova:project:{quote(project_id, safe='')}:user:{quote(user_id, safe='')}"
    builder = _builder(subject, issuer.subject, key.public_key(), issuer_key.public_key(), serial, now, not_after)
    made = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True) \
        .add_extension(_usage(signs=True), critical=True) \
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False) \
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]), critical=False) \
        .sign(issuer_key, hashes.SHA256())
    return f"{serial:040x}", _pem(made), _private_pem(key)


def new_crl(root: str, root_key: str, revoked: Iterable[tuple[str, datetime.datetime]], now: datetime.datetime,
            next_update: datetime.datetime) -> str:
    """Return the CRL of a root. ``revoked``: serial number and time of each revoked certificate."""
    issuer, key = x509.load_pem_x509_certificate(root.encode()), _load(root_key)
    # A newer CRL must have a higher number: the time in milliseconds.
    number = int(now.timestamp() * 1000)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(now) \
        .next_update(next_update).add_extension(x509.CRLNumber(number), critical=False) \
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    for serial, at in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(at).build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey,
             signer: ec.EllipticCurvePublicKey, serial: int, now: datetime.datetime,
             not_after: datetime.datetime) -> x509.CertificateBuilder:
    return x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public) \
        .serial_number(serial).not_valid_before(now - _CLOCK_SKEW).not_valid_after(not_after) \
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False) \
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)


def _usage(signs: bool) -> x509.KeyUsage:
    """Return the key usage of a client (``signs``: digital signatures) or of a root (certificates and CRLs)."""
    return x509.KeyUsage(
        digital_signature=signs, key_cert_sign=not signs, crl_sign=not signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False)


def _name(common: str, project_id: str) -> x509.Name:
    """Return the name with the project as its organizational unit. Raises InvalidInput. An id is never truncated: two
    users must not get the same name."""
    for field, value in (("user id", common), ("project id", project_id)):
        if not value.isprintable() or not 0 < len(value.encode()) <= _NAME_MAX:
            raise exception.InvalidInput(
                reason=f"a certificate cannot contain the {field} {value!a}: it must consist of printable characters "
                       f"with 1 to {_NAME_MAX} bytes (UTF-8)")
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Nova"),
                      x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, project_id),
                      x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _load(key: str) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key.encode(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return loaded


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption()).decode()
