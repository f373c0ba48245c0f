"""Verification of image signatures.

When a server is accepted, the conductor reads the certificate of the image from the key manager with the rights of the
caller and validates it against trusted certificates. The certificate is then sent with the image to the host, which
verifies the data. Imported only if [glance]verify_glance_signatures is true, since it requires cursive."""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cursive import certificate_utils, signature_utils
from cursive.exception import SignatureVerificationError

from nova import exception, key_manager
from nova.context import RequestContext
from nova.image import transfer
from nova.objects.images.image import Image

LOG = logging.getLogger(__name__)

# Exceptions of the library for malformed or unsupported certificates and keys.
_MALFORMED = (ValueError, NotImplementedError, x509.InvalidVersion, UnsupportedAlgorithm)


def certificate_of(ctx: RequestContext, image: Image, trusted: Sequence[str]) -> str:
    """Return the certificate (PEM) that the properties of a signed image name, after validating it. ``trusted``: ids of
    trusted certificates that the caller may read; if empty, the certificate is not validated. Raises ImageUnacceptable,
    ImageBackendUnavailable."""
    if not signature_utils.should_create_verifier(image.properties):
        raise _refuse(image, "it is not signed")
    certificate = _get(ctx, image, image.properties[signature_utils.CERT_UUID])
    if trusted:
        _check(image, certificate, {ident: _get(ctx, image, ident) for ident in trusted})
    _verifier(image, certificate)
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def verify(image: Image, path: str) -> None:
    """Raise ImageUnacceptable unless the signature of the file matches ``image.certificate``."""
    verifier = _verifier(image, x509.load_pem_x509_certificate(image.certificate.encode("ascii")))
    for chunk in transfer.read(path):
        verifier.update(chunk)
    try:
        verifier.verify()
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError) as error:
        raise _refuse(image, "its signature does not match its data") from error


def fingerprint(image: Image) -> str:
    """Return an identifier of a verified image, which changes with its certificate and its signature."""
    signature = image.properties.get(signature_utils.SIGNATURE, "")
    return hashlib.sha256(f"{image.certificate}\n{signature}".encode()).hexdigest()[:32]


def _verifier(image: Image, certificate: x509.Certificate) -> Any:
    """Return a verifier with the methods update(data) and verify()."""
    properties = image.properties
    try:
        kind = signature_utils.SignatureKeyType.lookup(properties[signature_utils.KEY_TYPE])
        method = signature_utils.get_hash_method(properties[signature_utils.HASH_METHOD])
        signature = signature_utils.get_signature(properties[signature_utils.SIGNATURE])
        key = certificate.public_key()
    except (SignatureVerificationError, KeyError, *_MALFORMED) as error:
        raise _refuse(image, f"its signature cannot be read ({error})") from error
    verifier = kind.create_verifier(signature, method, key) if isinstance(key, kind.public_key_type) else None
    if verifier is None:
        raise _refuse(image, "its signature is empty, or does not match the key type of its certificate")
    return verifier


def _get(ctx: RequestContext, image: Image, ident: str) -> x509.Certificate:
    try:
        certificate: x509.Certificate = signature_utils.get_certificate(key_manager.castellan_context(ctx), ident)
    except (SignatureVerificationError, AttributeError, *_MALFORMED) as error:
        # cursive raises the same exception if the key manager does not respond and if it denies access.
        if key_manager.is_unavailable(error.__context__):
            raise exception.ImageBackendUnavailable(reason="the key manager is unavailable") from error
        # AttributeError: the secret is not a certificate.
        raise _refuse(image, f"certificate {ident} cannot be read") from error
    except Exception as error:  # each back end of castellan raises its own exceptions
        LOG.error("Cannot read certificate %s from the key manager, the request fails: %s", ident, error)
        raise exception.ImageBackendUnavailable(reason="the key manager is unavailable") from error
    return certificate


def _check(image: Image, certificate: x509.Certificate, trusted: dict[str, x509.Certificate]) -> None:
    try:
        if not _has_issuer_loop(certificate, list(trusted.values())):
            chain = certificate_utils.CertificateVerificationContext(list(trusted.items()))
            chain.update(certificate)
            chain.verify()
            return
    except Exception as error:  # certificates of tenants may cause any exception
        LOG.info("The certificate of image %s is not valid, the request is rejected: %s", image.id, error)
    raise _refuse(image, "its certificate is not issued by a trusted certificate, or is expired")


def _has_issuer_loop(certificate: x509.Certificate, trusted: list[x509.Certificate]) -> bool:
    """Return True if the chain of issuers has a loop, in which cursive would never terminate."""
    seen: list[x509.Certificate] = []
    while certificate not in seen:
        seen.append(certificate)
        issuer = next((other for other in trusted if certificate_utils.is_issuer(other, certificate)), None)
        if issuer is None or issuer == certificate:
            return False
        certificate = issuer
    return True


def _refuse(image: Image, reason: str) -> exception.ImageUnacceptable:
    return exception.ImageUnacceptable(image_id=image.id, reason=reason)
