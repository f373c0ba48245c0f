"""Data that the hypervisors of source and destination exchange through the journal during a move."""

from nova.objects.base import Object
from nova.objects.networks.network import VIF


class DiskFile(Object, kw_only=True):
    """A disk file of a guest. ``size``: bytes of the virtual disk; ``length``: bytes of the file. ``base``: name of the
    cached base image ("": none)."""

    name: str
    format: str = "qcow2"
    size: int = 0
    length: int = 0
    base: str = ""
    base_format: str = ""


class DiskSource(Object, kw_only=True):
    """The disks of a guest that is shut down for a cold migration, served by the source. ``token`` is stored beside the
    disks: a host that can read it there shares the storage and needs no copy. Otherwise all ``files`` and their base
    images ``bases`` are served at ``address`` and ``port`` to clients with ``key``. ``definition``: the domain XML,
    which preserves names and addresses of devices."""

    host: str
    token: str = ""
    address: str = ""
    port: int = 0
    key: str = ""
    files: list[DiskFile] = []
    bases: list[DiskFile] = []
    definition: str = ""

    def __repr__(self) -> str:
        """Return the text for logs, without the secret key."""
        return f"DiskSource(host={self.host!r}, address={self.address!r}, port={self.port}, files={len(self.files)})"

    __str__ = __repr__


class MigrationSource(Object, kw_only=True):
    """A running guest as described by the source of a live migration. ``disks``: files that change while the guest
    runs; ``served``: all other files. ``cpu``: CPU definition of the guest. ``token``: see :class:`DiskSource`."""

    host: str
    token: str = ""
    disks: list[DiskFile] = []
    served: DiskSource | None = None
    cpu: str = ""
    machine: str = ""
    hypervisor_version: int = 0
    memory_mb: int = 0
    # CPU architecture of the guest; "": that of the destination.
    architecture: str = ""
    power_state: int = 0


class MigrationTarget(Object, kw_only=True):
    """The preparation of the destination of a live migration.

    ``shared``: both hosts access the same disks, so that only memory is copied. Else the disks in ``copied`` are
    copied, too (``incremental``: without base images, which the destination has already). ``address``: address of the
    destination's hypervisor (``uri``: for sources of the previous release). ``definition``: the domain XML for the
    destination. ``network_info``: the interfaces as bound to the destination."""

    host: str
    uri: str = ""
    address: str = ""
    shared: bool = False
    copied: list[str] = []
    incremental: bool = False
    definition: str = ""
    network_info: list[VIF] = []


class MigrationProgress(Object, kw_only=True):
    """Progress of a live migration in bytes. ``post_copy``: the guest already runs on the destination."""

    memory_total: int = 0
    memory_processed: int = 0
    memory_remaining: int = 0
    disk_total: int = 0
    disk_processed: int = 0
    disk_remaining: int = 0
    post_copy: bool = False

    @property
    def percent(self) -> int:
        """Return the progress from 0 to 100. Memory that is dirtied repeatedly does not make it negative."""
        total = self.memory_total + self.disk_total
        left = self.memory_remaining + self.disk_remaining
        return max(0, min(100, 100 * (total - left) // total)) if total else 0
