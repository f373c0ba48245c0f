"""The interface of a volume back end on a host. The conductor assigns volumes to servers.

All methods are idempotent. Their arguments include the connection info from the conductor's part of the back end."""

import abc
from collections.abc import Callable
from typing import Any, Protocol

from nova import exception
from nova.objects.images.image import Image
from nova.objects.volumes.volume import ConnectionInfo, VolumeConnection, VolumeKey, VolumeRemoval

# Fetches and checks an image of at most the given size in bytes, and returns its path and format (raw or qcow2).
Fetch = Callable[[Image, int], tuple[str, str]]


class DiskTools(Protocol):
    """Operations on disk image files of the hypervisor. All methods raise DiskFull, InvalidDiskInfo."""

    def create(self, path: str, disk_format: str, size: int) -> None:
        """Create an empty, sparse disk of ``size`` bytes."""

    def copy(self, source: str, source_format: str, path: str, disk_format: str) -> None:
        """Create a sparse disk with the content and size of ``source``."""

    def grow(self, path: str, disk_format: str, size: int) -> None:
        """Extend a disk to ``size`` bytes."""

    def size(self, path: str, disk_format: str) -> int:
        """Return the virtual size in bytes of a disk. A disk of several files is rejected with InvalidDiskInfo."""

    def backing_file(self, path: str, disk_format: str) -> tuple[str, str | None] | None:
        """Return name and format (None: unspecified) of the backing file of a disk, or None if it has none. The backing
        file itself is not opened. A disk with an external data file is rejected with InvalidDiskInfo."""

    def encrypted_format(self, path: str) -> str:
        """Return the format of a LUKS-encrypted file: raw (a plain LUKS container) or qcow2 with LUKS inside. Only the
        header is probed, which a guest cannot write."""


class HostVolumes(abc.ABC):
    """The volumes of a host, as used by nova-compute."""

    def __init__(self, tools: DiskTools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def start(self) -> None:
        """Prepare the host for volumes, when the service starts."""

    def connector(self, host: str) -> dict[str, Any]:
        """Return properties of this machine (service ``host``) that the volume service needs for connections."""
        return {}

    @abc.abstractmethod
    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        """Connect a volume to this host. Raises VolumeUnusable, DiskFull, ImageUnacceptable. ``fetch``: None on hosts
        of the fake driver, where volumes with an image are empty. ``key``: the encryption key of the volume, for the
        hypervisor."""

    @abc.abstractmethod
    def disconnect(self, info: ConnectionInfo) -> None:
        """Disconnect a volume, keeping its data. Succeeds if the volume is not connected."""

    @abc.abstractmethod
    def remove(self, removal: VolumeRemoval) -> None:
        """Delete data of a volume. Succeeds if there are none."""


class NoVolumes(HostVolumes):
    """A host without volumes, which cannot have servers with volumes."""

    def __init__(self, tools: DiskTools | None = None) -> None:
        """Ignore the tools, since no disks are created."""

    def start(self) -> None: ...

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        raise exception.VolumeUnusable(volume_id=str(info.get("volume_id")), reason="the host does not support volumes")

    def disconnect(self, info: ConnectionInfo) -> None: ...

    def remove(self, removal: VolumeRemoval) -> None: ...
