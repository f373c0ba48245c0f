"""The interface of a volume back end on a host. To whom volumes belong is the conductor's to say.

All verbs are idempotent and are told everything: what the back end's other half said of the connection.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from nova import exception
from nova.objects.image import Image
from nova.objects.volume import ConnectionInfo, VolumeConnection, VolumeKey, VolumeRemoval

# The path and format (raw or qcow2) of an image, fetched and checked by this host, that is a disk of at most so many
# bytes.
Fetch = Callable[[Image, int], tuple[str, str]]


class DiskTools(Protocol):
    """How files are made that a hypervisor takes for disks. Raises DiskFull, InvalidDiskInfo."""

    def create(self, path: str, disk_format: str, size: int) -> None:
        """A new, empty, sparse disk of ``size`` bytes."""

    def copy(self, source: str, source_format: str, path: str, disk_format: str) -> None:
        """A new disk with the content of ``source``, sparse and of its size."""

    def grow(self, path: str, disk_format: str, size: int) -> None:
        """Make a disk ``size`` bytes large."""

    def size(self, path: str, disk_format: str) -> int:
        """The bytes that a guest sees of a disk that is one file; that of others is refused."""

    def below(self, path: str, disk_format: str) -> tuple[str, str | None] | None:
        """The name and the format (None: it is not told) of the file that a disk says it stands on; None: on none.

        What it names is not looked at. A disk whose data are in another file is refused.
        """

    def encrypted_format(self, path: str) -> str:
        """The format of a file that has to be encrypted with LUKS: raw, or qcow2 with LUKS inside.

        No guest writes where this looks, since what a guest writes is behind the header and encrypted.
        """


class HostVolumes(abc.ABC):
    """What nova-compute asks of the volumes on its own host."""

    def __init__(self, tools: DiskTools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def start(self) -> None:
        """The service started: make the place of the volumes ready."""

    def connector(self, host: str) -> dict[str, Any]:
        """What the other half is to know of this machine (the service ``host``) to make volumes reachable here."""
        return {}

    @abc.abstractmethod
    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        """Make the volume usable on this host. Raises VolumeUnusable, DiskFull, ImageUnacceptable.

        Without ``fetch`` (virtual hosts have no images) a volume of an image is empty. ``key``: of one that is
        encrypted, for the hypervisor.
        """

    @abc.abstractmethod
    def disconnect(self, info: ConnectionInfo) -> None:
        """Undo what connect did; the data stay. Not connected: fine."""

    @abc.abstractmethod
    def remove(self, removal: VolumeRemoval) -> None:
        """Remove data of a volume; none: fine."""


class NoVolumes(HostVolumes):
    """A host without volumes: servers with some cannot be here."""

    def __init__(self, tools: DiskTools | None = None) -> None:
        """It makes no disks."""

    def start(self) -> None: ...

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        raise exception.VolumeUnusable(volume_id=str(info.get("volume_id")), reason="it has no place for volumes")

    def disconnect(self, info: ConnectionInfo) -> None: ...

    def remove(self, removal: VolumeRemoval) -> None: ...
