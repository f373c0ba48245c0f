"""Shares that hosts mount at ``[share]pool``/<server>/<share>. Each server has its own mount, so that mounts need no
reference counts."""

import contextlib
import logging
import os
import re
import subprocess
from typing import Any

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.volumes.share import ADDRESS, NFS, ShareMapping
from nova.share.base import HostShares

LOG = logging.getLogger(__name__)

# server:/path, where the server may be an IPv6 address between brackets.
_EXPORT = re.compile(r"[A-Za-z0-9\[][^\s\x00]*:/[^\s\x00]*")
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # escapes in mountinfo of characters that separate fields


class MountedShares(HostShares):
    """Shares with the protocol NFS, mounted below ``directory`` (default: [share]pool)."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or str(CONF.share.pool)

    def connector(self, host: str) -> dict[str, Any]:
        return {ADDRESS: str(CONF.my_shared_fs_storage_ip)}

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        if mapping.protocol != NFS:
            raise exception.ShareUnusable(share_id=mapping.share_id,
                                          reason=f"hosts do not support the protocol {mapping.protocol}")
        if not _EXPORT.fullmatch(mapping.export_location):
            raise exception.ShareUnusable(share_id=mapping.share_id, reason="its export location is malformed")
        path = self.path(instance_uuid, mapping.share_id)
        if path in mounted():
            return path
        try:
            files.private_directory(self.directory)
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=error.strerror or "error") from error
        options = ["-o", CONF.share.nfs_mount_options] if CONF.share.nfs_mount_options else []
        failed = _run("mount", "-t", "nfs", *options, "--", mapping.export_location, path)
        if failed and path not in mounted():
            self._remove_empty(path)
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=f"it was not mounted: {failed}")
        LOG.info("[instance: %s] Mounted share %s", instance_uuid, mapping.share_id)
        return path

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        self._disconnect(instance_uuid, mapping.share_id)

    def disconnect_guest(self, instance_uuid: str) -> None:
        if is_canonical(instance_uuid):
            folder = os.path.join(os.path.realpath(self.directory), instance_uuid)
            for path in sorted(path for path in mounted() if os.path.dirname(path) == folder):
                self._disconnect(instance_uuid, os.path.basename(path))

    def _disconnect(self, instance_uuid: str, share_id: str) -> None:
        path = self.path(instance_uuid, share_id)
        if path in mounted():
            failed = _run("umount", "--", path)
            if failed:
                # The NFS server may be down, or a process of the former guest may still have files open.
                LOG.warning("[instance: %s] Cannot unmount share %s, so the kernel unmounts it later (umount -l): %s",
                            instance_uuid, share_id, failed)
                failed = _run("umount", "-l", "--", path)
            if failed:
                raise exception.ShareUnusable(share_id=share_id, reason=f"it was not unmounted: {failed}")
            LOG.info("[instance: %s] Unmounted share %s", instance_uuid, share_id)
        self._remove_empty(path)

    def path(self, instance_uuid: str, share_id: str) -> str:
        if not (is_canonical(instance_uuid) and is_canonical(share_id)):
            raise exception.ShareUnusable(share_id=share_id, reason="the id of the share or the server is not a UUID")
        return os.path.join(os.path.realpath(self.directory), instance_uuid, share_id)

    @staticmethod
    def _remove_empty(path: str) -> None:
        """Remove the mount point, and the directory of the server if it is empty."""
        for directory in (path, os.path.dirname(path)):
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def mounted() -> set[str]:
    """Return all mount points. Does not access the mounted file systems: this would block if a server is down."""
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return {_ESCAPED.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4]) for line in file}


def _run(*command: str) -> str:
    """Run a command and return its error message, or "" if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CONF.share.mount_timeout,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"{command[0]} took more than {CONF.share.mount_timeout} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return "" if done.returncode == 0 else (
        done.stderr.strip()[-300:] or f"{command[0]} exited with status {done.returncode}")
