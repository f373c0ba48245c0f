"""Shares that hosts mount: ``[share]pool``/<server>/<share>, each server's by itself, so that nobody counts users."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.share import ADDRESS, NFS, ShareMapping
from nova.share.base import HostShares

LOG = logging.getLogger(__name__)

# server:/path, where the server may be an IPv6 address between brackets.
_EXPORT = re.compile(r"[A-Za-z0-9\[][^\s\x00]*:/[^\s\x00]*")
_MOUNTS = "/proc/self/mountinfo"
# How mountinfo writes what separates its fields.
_ESCAPED = re.compile(r"\\([0-7]{3})")


class MountedShares(HostShares):
    """Shares of the protocol NFS. ``directory``: below which they are mounted (default: as configured)."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or str(CONF.share.pool)

    def connector(self, host: str) -> dict[str, Any]:
        return {ADDRESS: str(CONF.my_shared_fs_storage_ip)}

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        if mapping.protocol != NFS:
            raise exception.ShareUnusable(share_id=mapping.share_id,
                                          reason=f"hosts do not mount the protocol {mapping.protocol}")
        if not _EXPORT.fullmatch(mapping.export_location):
            raise exception.ShareUnusable(share_id=mapping.share_id, reason="its export location makes no sense")
        path = self.path(instance_uuid, mapping.share_id)
        if path in mounted():
            return path
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=error.strerror or "error") from error
        options = ["-o", CONF.share.nfs_mount_options] if CONF.share.nfs_mount_options else []
        failed = _run("mount", "-t", "nfs", *options, "--", mapping.export_location, path)
        if failed and path not in mounted():
            self._tidy(path)
            raise exception.ShareUnusable(share_id=mapping.share_id, reason=f"it was not mounted: {failed}")
        LOG.info("[instance: %s] Share %s is mounted", instance_uuid, mapping.share_id)
        return path

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        self._disconnect(instance_uuid, mapping.share_id)

    def disconnect_guest(self, instance_uuid: str) -> None:
        if is_canonical(instance_uuid):
            place = os.path.join(os.path.realpath(self.directory), instance_uuid)
            for path in sorted(each for each in mounted() if os.path.dirname(each) == place):
                self._disconnect(instance_uuid, os.path.basename(path))

    def _disconnect(self, instance_uuid: str, share_id: str) -> None:
        path = self.path(instance_uuid, share_id)
        if path in mounted():
            failed = _run("umount", "--", path)
            if failed:
                # Its server may be away, or a process of the guest that was have it open for a moment more.
                LOG.warning("[instance: %s] Share %s is unmounted as soon as nobody uses it: %s", instance_uuid,
                            share_id, failed)
                failed = _run("umount", "-l", "--", path)
            if failed:
                raise exception.ShareUnusable(share_id=share_id, reason=f"it was not unmounted: {failed}")
            LOG.info("[instance: %s] Share %s is unmounted", instance_uuid, share_id)
        self._tidy(path)

    def path(self, instance_uuid: str, share_id: str) -> str:
        for each in (instance_uuid, share_id):
            if not is_canonical(each):
                raise exception.ShareUnusable(share_id=share_id, reason="an id is no uuid")
        return os.path.join(os.path.realpath(self.directory), instance_uuid, share_id)

    @staticmethod
    def _tidy(path: str) -> None:
        """An empty directory goes, and the server's with the last one."""
        for each in (path, os.path.dirname(path)):
            with contextlib.suppress(OSError):
                os.rmdir(each)


def mounted() -> set[str]:
    """Where something is mounted. Asks no file system: one whose server is away would not answer."""
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in file}


def _run(*command: str) -> str:
    """What went wrong; "": nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CONF.share.mount_timeout,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"{command[0]} took more than {CONF.share.mount_timeout} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"{command[0]} ended with {done.returncode}"
