"""Certificate authorities, certificates and keys of a local cluster. The keys are elliptic-curve keys: created fast."""

import datetime
import pathlib
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova.common import files, plain_ip
from nova.common.errors import Invalid
from nova.federator.api import times

_DAYS = 3650
_PRIVATE = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


class Authority:
    """A certificate authority, stored as DIRECTORY/NAME.crt and NAME.key.

    Created if NAME.crt is missing, the file that is written last. Raises Invalid if the files do not match: clients
    trust the authority, so a damaged one is not replaced.
    """

    def __init__(self, directory: pathlib.Path, name: str, subject: str) -> None:
        self.directory, self.path = directory, directory / f"{name}.crt"
        if self.path.exists():
            self._key, self.certificate = self._load(directory / f"{name}.key")
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        self.certificate = (
            self._builder(subject_name, subject_name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(True, False, True, False, False, True, True, False, False), critical=True)
            .sign(self._key, hashes.SHA256()))
        files.replace(directory / f"{name}.key", self._key.private_bytes(*_PRIVATE))
        files.replace(self.path, self.pem)

    def _load(self, path: pathlib.Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(self.path.read_bytes())
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise Invalid(f"{self.path} or {path} is unreadable: {error}."
                          " Restore both, or remove the cluster.") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise Invalid(f"{path} is not the key of {self.path}. Restore both, or remove the cluster.")
        return key, certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, common_name: str, organization: str = "", hosts: Iterable[str] = (),
              client: bool = True) -> tuple[bytes, bytes]:
        """Issue a certificate, store it as NAME.crt and NAME.key, and return both (PEM).

        ``hosts``: names and addresses of a server, for which the certificate is valid. ``client``: valid for a client.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        alternatives = [_alternative(host) for host in hosts]
        usages = [*([ExtendedKeyUsageOID.SERVER_AUTH] if alternatives else ()),
                  *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else ())]
        builder = (self._builder(x509.Name(subject), self.certificate.subject, key)
                   .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                   .add_extension(x509.ExtendedKeyUsage(usages), critical=False))
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(*_PRIVATE)
        files.replace(self.directory / f"{name}.key", private)
        files.replace(self.directory / f"{name}.crt", certificate)
        return certificate, private

    def _builder(self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey,
                 ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
                .serial_number(x509.random_serial_number()).not_valid_before(now - times.CLOCK_ERROR)
                .not_valid_after(now + datetime.timedelta(days=_DAYS)))


def token_keys(directory: pathlib.Path) -> None:
    """Create the keys sa.key and sa.pub, which sign tokens of service accounts, unless both exist."""
    if (directory / "sa.key").is_file() and (directory / "sa.pub").is_file():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    files.replace(directory / "sa.key", key.private_bytes(*_PRIVATE))
    files.replace(directory / "sa.pub", key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(plain_ip.address(host))
    except ValueError:
        return x509.DNSName(host)
