"""Certificates and signed images for tests."""

from __future__ import annotations

import base64
import datetime
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from nova.objects.base import utcnow
from tests.certificates import Extend

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def certificate(key: Key, name: str, issuer: Key | None = None, issuer_name: str = "", authority: bool = False,
                days: int = 1, extend: Extend = lambda builder: builder) -> x509.Certificate:
    """Return a certificate of ``key``, valid for ``days`` (negative: expired), signed by ``issuer`` (None: itself)."""
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    begun = utcnow() - datetime.timedelta(days=10)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=False, content_commitment=False,
                          key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                          decipher_only=False)
    return extend(
        x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer_name or name))
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(begun).not_valid_after(utcnow() + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)).sign(issuer or key, hashes.SHA256())


def put(place: pathlib.Path, name: str, made: x509.Certificate) -> str:
    """Write a certificate with this id to the directory of certificates."""
    place.mkdir(exist_ok=True)
    (place / f"{name}.pem").write_bytes(made.public_bytes(Encoding.PEM))
    return name


def signed(data: bytes, key: Key, certificate_id: str) -> dict[str, str]:
    """Return the signature properties of an image with these data."""
    if isinstance(key, rsa.RSAPrivateKey):
        kind = "RSA-PSS"
        scheme = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
        signature = key.sign(data, scheme, hashes.SHA256())
    else:
        kind, signature = "ECC_SECP384R1", key.sign(data, ec.ECDSA(hashes.SHA256()))
    return {"img_signature": base64.b64encode(signature).decode(), "img_signature_hash_method": "SHA-256",
            "img_signature_key_type": kind, "img_signature_certificate_uuid": certificate_id}
