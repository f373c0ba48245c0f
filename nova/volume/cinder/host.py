"""Cinder volumes on a host, connected by os-brick according to their connection_info.

Cinder's developers maintain os-brick for this purpose. It is imported when this back end is selected, and runs with the
rights of this process."""

import importlib
import os
import re
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.objects.volumes.volume import ConnectionInfo, VolumeConnection, VolumeKey, VolumeRemoval
from nova.volume.base import Fetch, HostVolumes

_FORMATS = ("raw", "qcow2")
# Suffix of the file to which a guest writes after a snapshot: the id of the snapshot. The volume's name is before it.
_SNAPSHOT = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# Maximum length of a chain of backing files, which the hypervisor limits.
_MAX_FILES = 200
# Limits of a volume type that the hypervisor enforces: rates, their peaks, and the bytes that count as one operation.
_RATES = tuple(f"{which}_{what}_sec" for which in ("read", "write", "total") for what in ("bytes", "iops"))
_LIMITS = frozenset({*_RATES, *(f"{rate}_max" for rate in _RATES), "size_iops_sec"})


class CinderVolumes(HostVolumes):
    """The volume back end "cinder" on hosts: files on NFS, and RBD images and disks of vCenter, to which the hypervisor
    connects itself."""

    def start(self) -> None:
        """Raise InvalidInput if os-brick is not installed."""
        self._brick()

    def connector(self, host: str) -> dict[str, Any]:
        properties: dict[str, Any] = self._brick().get_connector_properties(None, CONF.my_ip, False, False, host=host)
        return properties

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        kind, volume = str(info.get("driver_volume_type")), str(info.get("volume_id") or info.get("name"))
        if info.get("encrypted") and key is None:
            # A guest that writes without encryption would destroy the volume.
            raise exception.VolumeUnusable(volume_id=volume, reason="the encrypted volume was attached without its "
                                                                   "key; detach and attach the volume again")
        connection = VolumeConnection(volume_id=volume, serial=volume, read_only=info.get("access_mode") == "ro",
                                      shareable=bool(info.get("multiattach")), key=key)
        try:
            connection.limits = {name: int(value) for name, value in (info.get("qos_specs") or {}).items()
                                 if name in _LIMITS}
            if kind == "rbd":
                connection.protocol, connection.path = "rbd", str(info["name"])
                connection.hosts = list(zip(map(str, info["hosts"]), map(str, info["ports"]), strict=True))
                connection.discard = bool(info.get("discard"))
                if info.get("auth_enabled"):
                    connection.auth_user, connection.secret_uuid = str(info["auth_username"]), str(info["secret_uuid"])
                return connection
            if kind == "vmdk":
                # The id of the machine in vCenter that has the disk.
                connection.protocol, connection.path = "vmdk", str(info["volume"])
                return connection
            if kind == "nfs":
                return self._nfs(connection, info)
        except (KeyError, TypeError, ValueError) as error:
            raise exception.VolumeUnusable(
                volume_id=volume, reason=f"invalid connection_info from the volume service: {error}") from error
        raise exception.VolumeUnusable(volume_id=volume, reason=f"volumes of type {kind} are not supported")

    def _nfs(self, connection: VolumeConnection, info: ConnectionInfo) -> VolumeConnection:
        disk_format, name = info.get("format") or "raw", str(info["name"])
        if disk_format not in _FORMATS or "/" in name:
            raise ValueError(f"invalid name {name!r} or format {disk_format!r}")
        from os_brick import exception as brick
        from oslo_concurrency import processutils

        try:
            path = self._files(info).connect_volume(info)["path"]
        except (brick.BrickException, processutils.ProcessExecutionError, OSError) as error:
            raise exception.VolumeUnusable(volume_id=connection.volume_id, reason=str(error)) from error
        try:
            if connection.key is not None:
                # The format that Cinder reports for an encrypted volume is not that of its file.
                _check_file(path)
                disk_format = self.tools.encrypted_format(path)
            connection.protocol, connection.path, connection.format = "file", path, disk_format
            connection.below = self._backing_files(path, disk_format)
            if connection.shareable and disk_format != "raw":
                raise exception.InvalidDiskInfo(
                    reason=f"multiattach volumes must be raw files, but it is in the format {disk_format}")
            if connection.key is not None and connection.below:
                raise exception.InvalidDiskInfo(reason="encrypted volumes with snapshots are not supported")
        except exception.InvalidDiskInfo as error:
            raise exception.VolumeUnusable(volume_id=connection.volume_id, reason=error.kwargs["reason"]) from error
        except OSError as error:
            raise exception.VolumeUnusable(volume_id=connection.volume_id, reason=(
                f"its file cannot be read: {error.strerror}")) from error
        return connection

    def _backing_files(self, path: str, disk_format: str) -> list[tuple[str, str]]:
        """Return paths and formats of the backing files of a volume's newest file: one for each snapshot. The files are
        not trusted, since other users of the NFS share may have written them: all must belong to the volume, and their
        formats are not probed."""
        folder, name = os.path.split(path)
        volume = _SNAPSHOT.sub("", name)
        files: list[tuple[str, str]] = []
        seen = {name}
        while True:
            _check_file(path)
            backing = self.tools.backing_file(path, disk_format)
            if backing is None:
                return files
            name, file_format = backing
            if (_SNAPSHOT.sub("", name) != volume or name in seen or file_format not in _FORMATS
                    or len(files) == _MAX_FILES):
                raise exception.InvalidDiskInfo(reason="a backing file does not belong to the volume")
            seen.add(name)
            path, disk_format = os.path.join(folder, name), file_format
            files.append((path, disk_format))

    def disconnect(self, info: ConnectionInfo) -> None:
        """Do nothing: the hypervisor closes images, and an NFS share stays mounted for other volumes."""

    def remove(self, removal: VolumeRemoval) -> None:
        """Do nothing: Cinder deletes its volumes."""

    def _files(self, info: ConnectionInfo) -> Any:
        return self._brick().InitiatorConnector.factory(
            "NFS", None, conn=info, nfs_mount_point_base=CONF.libvirt.nfs_mount_point_base,
            nfs_mount_options=CONF.libvirt.nfs_mount_options)

    @staticmethod
    def _brick() -> Any:
        try:
            privileged: Any = importlib.import_module("os_brick.privileged")
            connector = importlib.import_module("os_brick.initiator.connector")
        except ImportError as error:
            raise exception.InvalidInput(reason=f"[volume]driver cinder requires os-brick on hosts: {error}") from error
        # No privsep daemon, since this process already has the rights.
        privileged.default.set_client_mode(False)
        return connector


def _check_file(path: str) -> None:
    if not os.path.isfile(path) or os.path.islink(path):
        raise exception.InvalidDiskInfo(reason=f"{os.path.basename(path)} is not a regular file")
