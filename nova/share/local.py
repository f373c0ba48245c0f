"""Embedded shares: ``[share]pool``/<uuid>, directories of the host.

Names are made of what conductors say and of nothing else; links are never followed.
"""

from __future__ import annotations

import logging
import os
import stat

from nova import exception
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.share import ShareMapping
from nova.share.base import HostShares

LOG = logging.getLogger(__name__)



class LocalShares(HostShares):
    """The pool in ``directory`` (default: as configured)."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or str(CONF.share.pool)

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        path = self.path(mapping.share_id)
        try:
            # What guests write there, and with which rights, is nobody's business who has an account on the host.
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            if not _is_directory(path):
                os.mkdir(path, mode=0o777)
                os.chmod(path, 0o777)  # noqa: S103 - whoever is a user inside the guest; the pool lets nobody else in
                LOG.info("Made the directory of share %s", mapping.share_id)
        except FileExistsError:
            pass  # another server was faster
        except OSError as error:
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=error.strerror or "error") from error
        if not _is_directory(path):
            raise exception.ShareUnusable(share_id=mapping.share_id, reason="what is there is no directory")
        return path

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        """A directory needs nothing."""

    def path(self, share_id: str) -> str:
        if not is_canonical(share_id):
            raise exception.ShareUnusable(share_id=share_id, reason="its id is no uuid")
        return os.path.join(self.directory, share_id)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
