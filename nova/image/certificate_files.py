"""Certificates of images in a directory: a back end of castellan ([key_manager]backend nova_files).

For clouds without Barbican, and for tests. Operators add the files, and all users may use the certificates."""

import os
import re
from typing import Any, NoReturn

from castellan.common.exception import ManagedObjectNotFoundError
from castellan.common.objects.x_509 import X509
from castellan.key_manager.key_manager import KeyManager
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nova.conf import CONF

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class CertificateFiles(KeyManager):
    """The files ``<id>.pem`` in [image]certificates, read-only."""

    def __init__(self, configuration: Any) -> None:
        """Ignore castellan's configuration: Nova's option names the directory."""

    def get(self, context: Any, managed_object_id: str, metadata_only: bool = False) -> X509:
        """Return a certificate. Raises ManagedObjectNotFoundError."""
        if not _ID.fullmatch(managed_object_id):
            raise ManagedObjectNotFoundError(uuid=managed_object_id)
        try:
            with open(os.path.join(CONF.image.certificates, f"{managed_object_id}.pem"), "rb") as file:
                certificate = x509.load_pem_x509_certificate(file.read())
        except FileNotFoundError as error:
            raise ManagedObjectNotFoundError(uuid=managed_object_id) from error
        return X509(certificate.public_bytes(Encoding.DER))

    def _only_read(self, *_args: Any, **_more: Any) -> NoReturn:
        raise NotImplementedError("certificate files are read-only")

    create_key = create_key_pair = store = delete = add_consumer = remove_consumer = _only_read
