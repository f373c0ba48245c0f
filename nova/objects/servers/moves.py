"""Data that the hypervisors of source and destination exchange through the journal during a move."""

import datetime
from typing import Any

import msgspec

from nova.objects.base import Object
from nova.objects.networks.network import VIF, RuleSet
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeKey


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
    destination. ``network_info``: the interfaces as bound to the destination.
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


class StepOrder(Object, kw_only=True):
    """An order to run a step, with all data that the host needs, so that the host sends no further requests. The order
    is valid for ``lease`` seconds from ``issued_at`` (database clock). A host confirms an older order, or one that was
    sent to a previous process, before it runs the step."""

    action: Action
    step: str
    attempt: int
    undo: bool = False
    instance: Instance
    # Filter rules of the instance; set for steps that plug interfaces.
    rules: RuleSet = msgspec.field(default_factory=RuleSet)
    # Keys of the instance's encrypted volumes; set for steps that connect volumes.
    volume_keys: list[VolumeKey] = []
    issued_at: datetime.datetime | None = None
    lease: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """Return the sort key of the order: the newer of two orders for an instance has the greater rank, whatever
        their order of arrival."""
        return self.action.id, self.attempt


class StepReport(Object, kw_only=True):
    """A report of the end of a step or, if not ``final``, of the beginning of the next step on the same host.
    ``changes``: instance columns; ``results``: data fields for later steps."""

    action_uuid: str
    step: str
    attempt: int
    undo: bool = False
    final: bool = True
    changes: dict[str, Any] = {}
    results: dict[str, Any] = {}
    failure: Any = None
    host: str = ""
