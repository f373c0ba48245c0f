"""A certificate authority of the tests, and what it vouches for."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ipaddress
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# A function that adds to a certificate before it is signed.
Extend = Callable[[x509.CertificateBuilder], x509.CertificateBuilder]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Files (PEM) of a certificate and its key."""

    certificate: str
    key: str


@contextlib.contextmanager
def authority() -> Iterator[Authority]:
    """Create a certificate authority whose files are readable by servers of other users."""
    with tempfile.TemporaryDirectory(prefix="nova-ca-", dir="/tmp") as directory:
        pathlib.Path(directory).chmod(0o755)
        yield Authority(pathlib.Path(directory))


class Authority:
    """``file`` is its own certificate (PEM)."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name(f"authority {directory.name}")
        self.file = self._write("ca.pem", self._sign(self._name, self._key.public_key(), (), authority=True))

    def issue(self, name: str, addresses: Sequence[str] = ("127.0.0.1",), names: Sequence[str] = (),
              extend: Extend = lambda builder: builder) -> Pair:
        """A certificate for these addresses and DNS names, whose subject is ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                 serialization.NoEncryption())
        return Pair(self._write(f"{name}.pem", self._sign(
            _name(name), key.public_key(), addresses, names, extend=extend)),
                    self._write(f"{name}.key", text))

    def _write(self, name: str, content: bytes) -> str:
        path = self._directory / name
        path.write_bytes(content)
        path.chmod(0o644)
        return str(path)

    def _sign(self, subject: x509.Name, key: Any, addresses: Sequence[str], names: Sequence[str] = (),
              authority: bool = False, extend: Extend = lambda builder: builder) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
                   .not_valid_after(now + datetime.timedelta(hours=1))
                   .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True))
        if addresses or names:
            alternatives = [*(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
                            *map(x509.DNSName, names)]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return extend(builder).sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
