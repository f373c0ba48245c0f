"""Embedded shares: directories ``[share]pool``/<uuid> of the host. Directory names contain only the uuid from the
conductor; links are never followed."""

import logging
import os
import stat

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.volumes.share import ShareMapping
from nova.share.base import HostShares

LOG = logging.getLogger(__name__)


class LocalShares(HostShares):
    """The shares in ``directory`` (default: [share]pool)."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or str(CONF.share.pool)

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        path = self.path(mapping.share_id)
        try:
            files.private_directory(self.directory)
            if not _is_directory(path):
                os.mkdir(path, mode=0o777)
                os.chmod(path, 0o777)  # noqa: S103 - for all users in the guest; the pool excludes users of the host
                LOG.info("Created the directory of share %s", mapping.share_id)
        except FileExistsError:
            pass  # another server has created the directory meanwhile: use it
        except OSError as error:
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=error.strerror or "error") from error
        if not _is_directory(path):
            raise exception.ShareUnusable(share_id=mapping.share_id, reason="the share's path is not a directory")
        return path

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        """Do nothing: directories need no disconnection."""

    def path(self, share_id: str) -> str:
        if not is_canonical(share_id):
            raise exception.ShareUnusable(share_id=share_id, reason="its id is not a UUID")
        return os.path.join(self.directory, share_id)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
