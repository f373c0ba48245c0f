"""Signatures of images: whose certificate an image is signed with, and whether its data are what was signed.

The certificate is looked for with the caller's own rights when a server is accepted ([key_manager] says where), has to
come from one that is trusted, and travels with the image: the host that downloads the data needs nothing else.
Imported only where [glance]verify_glance_signatures is on, since it needs cursive.
"""

from __future__ import annotations

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
from nova.objects.image import Image

LOG = logging.getLogger(__name__)

# What the library raises for certificates and keys that are malformed or that it does not support.
_MALFORMED = (ValueError, NotImplementedError, x509.InvalidVersion, UnsupportedAlgorithm)


def certificate_of(ctx: RequestContext, image: Image, trusted: Sequence[str]) -> str:
    """The certificate (PEM) with which an image says that it is signed, and which comes from a trusted one.

    ``trusted``: ids of certificates that the caller can see; without any the certificate is believed.
    Raises ImageUnacceptable, ImageBackendUnavailable.
    """
    if not signature_utils.should_create_verifier(image.properties):
        raise _refuse(image, "it is not signed")
    certificate = _get(ctx, image, image.properties[signature_utils.CERT_UUID])
    if trusted:
        _check(image, certificate, {ident: _get(ctx, image, ident) for ident in trusted})
    _verifier(image, certificate)
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def verify(image: Image, path: str) -> None:
    """Whether the file has the data that were signed with ``image.certificate``. Raises ImageUnacceptable."""
    verifier = _verifier(image, x509.load_pem_x509_certificate(image.certificate.encode("ascii")))
    for chunk in transfer.read(path):
        verifier.update(chunk)
    try:
        verifier.verify()
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError) as error:
        raise _refuse(image, "its signature does not match its data") from error


def fingerprint(image: Image) -> str:
    """What tells the verified image from one that nobody verified, or by another signature."""
    signature = image.properties.get(signature_utils.SIGNATURE, "")
    return hashlib.sha256(f"{image.certificate}\n{signature}".encode()).hexdigest()[:32]


def _verifier(image: Image, certificate: x509.Certificate) -> Any:
    """Takes the data (update), and says in the end whether they were signed (verify)."""
    properties = image.properties
    try:
        kind = signature_utils.SignatureKeyType.lookup(properties[signature_utils.KEY_TYPE])
        method = signature_utils.get_hash_method(properties[signature_utils.HASH_METHOD])
        signature = signature_utils.get_signature(properties[signature_utils.SIGNATURE])
        key = certificate.public_key()
    except (SignatureVerificationError, KeyError, *_MALFORMED) as error:
        raise _refuse(image, f"its signature cannot be read ({error})") from error
    made = kind.create_verifier(signature, method, key) if isinstance(key, kind.public_key_type) else None
    if made is None:
        raise _refuse(image, "its signature is empty, or not made with its certificate's type of key")
    return made


def _get(ctx: RequestContext, image: Image, ident: str) -> x509.Certificate:
    try:
        found: x509.Certificate = signature_utils.get_certificate(key_manager.castellan_context(ctx), ident)
    except (SignatureVerificationError, AttributeError, *_MALFORMED) as error:
        # (cursive tells of one that did not answer as of a certificate that it does not give)
        if key_manager.is_unavailable(error.__context__):
            raise exception.ImageBackendUnavailable(reason="the certificates of images cannot be asked for") from error
        # (what is no certificate has none of its attributes)
        raise _refuse(image, f"certificate {ident} cannot be had") from error
    except Exception as error:  # each back end of castellan has its own
        LOG.error("Certificate %s could not be asked for: %s", ident, error)
        raise exception.ImageBackendUnavailable(reason="the certificates of images cannot be asked for") from error
    return found


def _check(image: Image, certificate: x509.Certificate, trusted: dict[str, x509.Certificate]) -> None:
    try:
        if not _goes_round(certificate, list(trusted.values())):
            chain = certificate_utils.CertificateVerificationContext(list(trusted.items()))
            chain.update(certificate)
            chain.verify()
            return
    except Exception as error:  # whatever it stumbled over: they are made by tenants
        LOG.info("The certificate of image %s was not verified: %s", image.id, error)
    raise _refuse(image, "its certificate does not come from one that is trusted, or is out of date")


def _goes_round(certificate: x509.Certificate, trusted: list[x509.Certificate]) -> bool:
    """Whether who looks for the issuer of the issuer and so on, as cursive does, would never come to an end."""
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
