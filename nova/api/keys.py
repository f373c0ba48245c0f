"""Generation and fingerprints of key pairs: SSH keys and X.509 certificates."""

import base64
import binascii
import contextlib
import datetime
import hashlib
import re

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from nova import exception
from nova.objects.accounts.keypair import X509
from nova.objects.base import utcnow

_BITS = 2048
_YEARS = datetime.timedelta(days=3650)
# Object identifier of the user principal name, by which Windows maps a client certificate to an account.
_UPN = x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")
# Key types of OpenSSH, including those that the library cannot load (hardware tokens).
_SSH_KIND = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+")


def fingerprint(kind: str, public: str) -> str:
    """Return the fingerprint (hexadecimal): MD5 of an SSH key, SHA-1 of a certificate. Raises InvalidKeypair."""
    try:
        if kind == X509:
            certificate = x509.load_pem_x509_certificate(public.encode())
            return certificate.fingerprint(hashes.SHA1()).hex(":")  # noqa: S303 (it only identifies)
        return hashlib.md5(_ssh_blob(public), usedforsecurity=False).digest().hex(":")
    except (ValueError, NotImplementedError, x509.InvalidVersion, exceptions.UnsupportedAlgorithm):
        raise exception.InvalidKeypair(reason="failed to generate fingerprint") from None


def _ssh_blob(public: str) -> bytes:
    words = public.split(None, 2)
    if len(words) < 2 or not _SSH_KIND.fullmatch(words[0]):
        raise ValueError("not an OpenSSH public key")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error as error:
        raise ValueError("the data of the key are not base64") from error
    name = words[0].encode()
    if not blob.startswith(len(name).to_bytes(4, "big") + name):
        raise ValueError("the key types before and inside the base64 data differ")
    with contextlib.suppress(exceptions.UnsupportedAlgorithm):
        serialization.load_ssh_public_key(f"{words[0]} {words[1]}".encode())
    return blob


def generate(kind: str, user_id: str) -> tuple[str, str]:
    """Return a new pair for a user: the public key, an OpenSSH line or a PEM certificate, and the private key (PEM)."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    public = _certificate(key, user_id) if kind == X509 else _ssh_line(key)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8 if kind == X509 else serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption())
    return public, private.decode()


def _ssh_line(key: rsa.RSAPrivateKey) -> str:
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{line.decode()} Generated-by-Nova"


def _certificate(key: rsa.RSAPrivateKey, user_id: str) -> str:
    """Return a self-signed certificate for client authentication (WinRM) as ``user_id``."""
    # The common name of a certificate has 1 to 64 bytes.
    common = user_id.encode()[:64].decode(errors="ignore")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)] if common else [])
    principal = f"{user_id}@localhost".encode()
    now = utcnow()
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + _YEARS)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.OtherName(_UPN, _utf8_string(principal))]), critical=False)
        .sign(key, hashes.SHA256()))
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _utf8_string(text: bytes) -> bytes:
    """Return ``text`` as a UTF8String in DER, which requires the shortest form of the length."""
    size = len(text)
    number = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return b"\x0c" + (bytes([size]) if size < 128 else bytes([0x80 | len(number)]) + number) + text
