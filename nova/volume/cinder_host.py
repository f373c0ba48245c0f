"""Cinder's volumes on a host: os-brick brings them here, as connection_info says.

The library is well kept by those who write Cinder's drivers, knows what storage needs, and is what Cinder expects on
the other side; it is imported when this back end is chosen, and runs with the rights of this process.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.objects.volume import ConnectionInfo, VolumeConnection, VolumeKey, VolumeRemoval
from nova.volume.base import Fetch, HostVolumes

LOG = logging.getLogger(__name__)

_FORMATS = ("raw", "qcow2")
# The file of a volume is called by the volume; the one that is written after a snapshot has the snapshot's id, too.
_SNAPSHOT = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# As many as the hypervisor takes.
_MOST_FILES = 200
# Limits of a volume type that the hypervisor enforces: rates, their peaks, and the bytes that count as one operation.
_RATES = tuple(f"{which}_{what}_sec" for which in ("read", "write", "total") for what in ("bytes", "iops"))
_LIMITS = frozenset({*_RATES, *(f"{rate}_max" for rate in _RATES), "size_iops_sec"})


class CinderVolumes(HostVolumes):
    """``[volume]driver`` cinder, on hosts: files on NFS, and images of RBD, which the hypervisor reaches by itself."""

    def start(self) -> None:
        """Raises InvalidInput when os-brick is not installed."""
        self._brick()

    def connector(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = self._brick().get_connector_properties(None, CONF.my_ip, False, False, host=host)
        return found

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        kind, volume = str(info.get("driver_volume_type")), str(info.get("volume_id") or info.get("name"))
        if info.get("encrypted") and key is None:
            # What a guest wrote past the encryption would be the end of the volume.
            raise exception.VolumeUnusable(volume_id=volume, reason="it is encrypted, which was not known when the "
                                                                   "server got it; attach it anew")
        made = VolumeConnection(
            volume_id=volume, serial=volume, read_only=info.get("access_mode") == "ro",
            shareable=bool(info.get("multiattach")), key=key)
        try:
            made.limits = _limits(info)
            if kind == "rbd":
                return _rbd(made, info)
            if kind == "nfs":
                return self._nfs(made, info)
        except (KeyError, TypeError, ValueError) as error:
            raise exception.VolumeUnusable(volume_id=volume,
                                           reason=f"the volume service does not tell its {error}") from error
        raise exception.VolumeUnusable(volume_id=volume, reason=f"volumes of the kind {kind} are not supported")

    def _nfs(self, made: VolumeConnection, info: ConnectionInfo) -> VolumeConnection:
        disk_format, name = info.get("format") or "raw", str(info["name"])
        if disk_format not in _FORMATS or "/" in name:
            raise ValueError("name and format")
        try:
            path = self._files(info).connect_volume(info)["path"]
        except self._error as error:
            raise exception.VolumeUnusable(volume_id=made.volume_id, reason=str(error)) from error
        try:
            if made.key is not None:
                # Of an encrypted volume Cinder tells the format that others are made in.
                _check_file(path)
                disk_format = self.tools.encrypted_format(path)
            made.protocol, made.path, made.format = "file", path, disk_format
            made.below = self._below(path, disk_format)
            if made.shareable and disk_format != "raw":
                raise exception.InvalidDiskInfo(
                    reason=f"several servers may have it, and a file in {disk_format} is written by one alone")
            if made.key is not None and made.below:
                raise exception.InvalidDiskInfo(reason="it is encrypted, and a file with snapshots is not decrypted")
        except exception.InvalidDiskInfo as error:
            raise exception.VolumeUnusable(volume_id=made.volume_id, reason=error.kwargs["reason"]) from error
        except OSError as error:
            raise exception.VolumeUnusable(volume_id=made.volume_id, reason=(
                f"its file cannot be read: {error.strerror}")) from error
        return made

    def _below(self, path: str, disk_format: str) -> list[tuple[str, str]]:
        """The files of a volume below its newest one, with their formats: it has one more for each of its snapshots.

        Whoever has the share may have written them: none leads out of the volume, and none is probed for its format.
        """
        place, name = os.path.split(path)
        volume = _SNAPSHOT.sub("", name)
        found: list[tuple[str, str]] = []
        seen = {name}
        while True:
            _check_file(path)
            below = self.tools.below(path, disk_format)
            if below is None:
                return found
            name, told = below
            if _SNAPSHOT.sub("", name) != volume or name in seen or told not in _FORMATS or len(found) == _MOST_FILES:
                raise exception.InvalidDiskInfo(reason="it refers to a file that is not its own")
            seen.add(name)
            path, disk_format = os.path.join(place, name), told
            found.append((path, disk_format))

    def disconnect(self, info: ConnectionInfo) -> None:
        """The hypervisor lets go of an image by itself; a share stays mounted for the next volume."""

    def remove(self, removal: VolumeRemoval) -> None:
        """Cinder removes what is its own."""

    # --- the library -----------------------------------------------------------------------------------
    def _files(self, info: ConnectionInfo) -> Any:
        return self._brick().InitiatorConnector.factory(
            "NFS", None, conn=info, nfs_mount_point_base=CONF.libvirt.nfs_mount_point_base,
            nfs_mount_options=CONF.libvirt.nfs_mount_options)

    @property
    def _error(self) -> tuple[type[Exception], ...]:
        from os_brick import exception as brick
        from oslo_concurrency import processutils

        return brick.BrickException, processutils.ProcessExecutionError, OSError

    @staticmethod
    def _brick() -> Any:
        try:
            privileged: Any = importlib.import_module("os_brick.privileged")
            connector = importlib.import_module("os_brick.initiator.connector")
        except ImportError as error:
            raise exception.InvalidInput(reason=f"[volume]driver cinder needs os-brick on hosts: {error}") from error
        # No daemon of its own: this process has the rights already that it would ask for.
        privileged.default.set_client_mode(False)
        return connector


def _check_file(path: str) -> None:
    if not os.path.isfile(path) or os.path.islink(path):
        raise exception.InvalidDiskInfo(reason=f"{os.path.basename(path)} is no file")


def _limits(info: ConnectionInfo) -> dict[str, int]:
    return {name: int(value) for name, value in (info.get("qos_specs") or {}).items() if name in _LIMITS}


def _rbd(made: VolumeConnection, info: ConnectionInfo) -> VolumeConnection:
    made.protocol, made.path = "rbd", str(info["name"])
    made.hosts = list(zip(map(str, info["hosts"]), map(str, info["ports"]), strict=True))
    made.discard = bool(info.get("discard"))
    if info.get("auth_enabled"):
        made.auth_user, made.secret_uuid = str(info["auth_username"]), str(info["secret_uuid"])
    return made
