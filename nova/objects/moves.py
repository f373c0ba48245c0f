"""What two hypervisors tell one another, through the journal, when a guest goes from one host to the other."""

from __future__ import annotations

from nova.objects.base import Object
from nova.objects.network import VIF


class DiskFile(Object, kw_only=True):
    """A file of a guest. ``size``: its bytes as the guest's disk, ``length``: as a file.

    ``base`` is the name of the cached image that it stands on ("": on none).
    """

    name: str
    format: str = "qcow2"
    size: int = 0
    length: int = 0
    base: str = ""
    base_format: str = ""


class DiskSource(Object, kw_only=True):
    """Where the disks of a guest that was shut down for a cold move are to be had.

    ``token`` is written beside the disks: a host that reads it there sees the same files and needs no copy over the
    network. Otherwise all ``files`` (and ``bases``, the images they stand on) are served at ``address`` and ``port`` to
    whoever has ``key``. ``definition`` is the guest as its hypervisor had it: names and addresses of its devices last.
    """

    host: str
    token: str = ""
    address: str = ""
    port: int = 0
    key: str = ""
    files: list[DiskFile] = []
    bases: list[DiskFile] = []
    definition: str = ""

    def __repr__(self) -> str:
        """Without the key: this may get into a log."""
        return f"DiskSource(host={self.host!r}, address={self.address!r}, port={self.port}, files={len(self.files)})"

    __str__ = __repr__


class MigrationSource(Object, kw_only=True):
    """A running guest as its host describes it to the one that is to take it over.

    ``disks`` are those that change while it runs, ``served`` has all its other files. ``cpu`` is the guest's CPU as the
    hypervisor has it, ``token`` as in :class:`DiskSource`.
    """

    host: str
    token: str = ""
    disks: list[DiskFile] = []
    served: DiskSource | None = None
    cpu: str = ""
    machine: str = ""
    hypervisor_version: int = 0
    memory_mb: int = 0
    # Of the guest; "": that of the destination.
    architecture: str = ""
    power_state: int = 0


class MigrationTarget(Object, kw_only=True):
    """What the destination of a live migration made ready.

    ``shared``: both hosts see the same disks, so that memory is all that goes over the network; else the disks named
    in ``copied`` go, too (``incremental``: without the images they stand on, which the destination has). ``address``
    is where its hypervisor is, and takes memory and disks (``uri`` is for sources of the last release). ``definition``
    tells how the guest looks there, ``network_info`` how its interfaces are bound there.
    """

    host: str
    uri: str = ""
    address: str = ""
    shared: bool = False
    copied: list[str] = []
    incremental: bool = False
    definition: str = ""
    network_info: list[VIF] = []


class MigrationProgress(Object, kw_only=True):
    """How far a live migration is, in bytes; ``post_copy``: the guest runs on the destination already."""

    memory_total: int = 0
    memory_processed: int = 0
    memory_remaining: int = 0
    disk_total: int = 0
    disk_processed: int = 0
    disk_remaining: int = 0
    post_copy: bool = False

    @property
    def percent(self) -> int:
        """0 to 100; memory that changes again and again does not make it fall below 0."""
        total = self.memory_total + self.disk_total
        left = self.memory_remaining + self.disk_remaining
        return max(0, min(100, 100 * (total - left) // total)) if total else 0
