"""An instance: everything that is always read together sits together, on one row."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

from nova.conf import CONF
from nova.objects import states
from nova.objects.action import Action
from nova.objects.base import Object
from nova.objects.flavor import Flavor
from nova.objects.image import Image
from nova.objects.network import VIF, FilterRule, NetworkRequest, Reservation


class Fault(Object, kw_only=True):
    code: int
    message: str
    details: str = ""
    created: datetime.datetime


class BlockDevice(Object, kw_only=True):
    """A disk of a server, as asked for. ``source``: image, blank (ephemeral, swap), volume or snapshot."""

    source: str
    destination: str = "local"
    boot_index: int | None = None
    device_name: str | None = None
    image_id: str | None = None
    volume_id: str | None = None
    size_gb: int | None = None
    guest_format: str | None = None
    disk_bus: str | None = None
    device_type: str | None = None
    delete_on_termination: bool = True
    tag: str | None = None


class Key(Object, kw_only=True):
    """The public key given to the guest (a copy: the key pair may be deleted later)."""

    name: str
    type: str = "ssh"
    public_key: str


class Personality(Object, kw_only=True):
    """A file to inject; ``contents`` is base64 text."""

    path: str
    contents: str


class Instance(Object, kw_only=True):
    id: int = 0
    uuid: str
    project_id: str
    user_id: str
    display_name: str
    display_description: str | None = None
    hostname: str
    vm_state: str = states.BUILDING
    task_state: str | None = None
    power_state: int = states.NOSTATE
    progress: int = 0
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    pinned_availability_zone: str | None = None
    flavor: Flavor
    image: Image | None = None
    image_ref: str = ""
    kernel_id: str = ""
    ramdisk_id: str = ""
    key: Key | None = None
    user_data: str | None = None
    metadata: dict[str, str] = {}
    system_metadata: dict[str, str] = {}
    tags: list[str] = []
    security_groups: list[str] = []
    requested_networks: list[NetworkRequest] | None = None
    network_info: list[VIF] = []
    block_devices: list[BlockDevice] = []
    personality: list[Personality] = []
    config_drive: bool = False
    disk_config: str = "MANUAL"
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    launch_index: int = 0
    reservation_id: str = ""
    root_device_name: str = "/dev/vda"
    locked_by: str | None = None
    locked_reason: str | None = None
    admin_pass: str | None = None
    trusted_certs: list[str] | None = None
    scheduler_hints: dict[str, Any] = {}
    server_group: str | None = None
    fault: Fault | None = None
    # The action that holds the instance (its operation is in task_state), if any.
    action_uuid: str | None = None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None
    launched_at: datetime.datetime | None = None
    terminated_at: datetime.datetime | None = None
    deleted: bool = False

    @property
    def locked(self) -> bool:
        return self.locked_by is not None

    @property
    def status(self) -> str:
        return states.STATUS[states.DELETED]["default"] if self.deleted else states.status(
            self.vm_state, self.task_state)

    @property
    def host_id(self) -> str:
        """An id of the host that differs per project; "" without a host."""
        if not self.host:
            return ""
        return hashlib.sha224((self.project_id + self.host).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of the domain on the hypervisor."""
        template = CONF.instance_name_template if "instance_name_template" in CONF else "instance-%08x"
        return template % {"uuid": self.uuid, "id": self.id} if "%(" in template else template % self.id

    @property
    def volume_backed(self) -> bool:
        return any(disk.boot_index == 0 and disk.destination == "volume" for disk in self.block_devices)


class InstanceChanges(Object, kw_only=True):
    """What a step's report may change of an instance; UNSET fields stay as they are.

    A mapping of column name to plain value; kept open because every operation has its own few.
    """

    values: dict[str, Any] = {}


class ServerQuery(Object, kw_only=True):
    """A page of servers. ``filters`` values: a string, a list of strings (any of), a bool or None.

    Exact filters and regular expressions as the API names them; times are
    ISO 8601 strings in UTC. ``project_id`` None lists every project.
    """

    project_id: str | None = None
    filters: dict[str, Any] = {}
    deleted: bool | None = False
    changes_since: datetime.datetime | None = None
    changes_before: datetime.datetime | None = None
    # (column, asc or desc) pairs; [] is newest first
    sort: list[tuple[str, str]] = []
    limit: int | None = None
    marker: str | None = None
    # Rows without the wide JSON columns that a plain list does not show.
    brief: bool = False


class ServerCreate(Object, kw_only=True):
    """An accepted-looking create request, parsed; the conductor checks what needs the database.

    ``networks`` None means: as the project has it (auto); [] means none.
    ``forced``: zone:host:node, skips the filters; ``host`` and ``hypervisor_hostname`` (2.74) do not.
    """

    name: str
    flavor_id: str
    image: Image | None = None
    description: str | None = None
    hostname: str | None = None
    metadata: dict[str, str] = {}
    tags: list[str] = []
    networks: list[NetworkRequest] | None = None
    security_groups: list[str] = []
    key_name: str | None = None
    user_data: str | None = None
    config_drive: bool = False
    disk_config: str = "AUTO"
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    availability_zone: str | None = None
    forced_host: str | None = None
    forced_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    block_devices: list[BlockDevice] = []
    personality: list[Personality] = []
    scheduler_hints: dict[str, Any] = {}
    trusted_certs: list[str] | None = None
    admin_pass: str | None = None
    # The uuid of the first server; the others' follow from it. A request that is delivered twice makes them once.
    first_uuid: str = ""
    # May a flavor of zero disk be used with an image? (policy servers:create:zero_disk_flavor)
    zero_disk_allowed: bool = False
    min_count: int = 1
    max_count: int = 1


class ServerCreated(Object, kw_only=True):
    """Who was promised: the uuids in launch order and their common reservation."""

    uuids: list[str]
    reservation_id: str


class StepOrder(Object, kw_only=True):
    """"Run this step now": all that the host needs, so that it asks nobody."""

    action: Action
    step: str
    attempt: int
    undo: bool = False
    instance: Instance
    # Filled for steps that plug interfaces: the DHCP reservations and filter rules of the instance.
    rules: list[FilterRule] = []
    reservations: dict[str, list[Reservation]] = {}

    @property
    def rank(self) -> tuple[int, int]:
        """Of two orders for one instance the newer has the greater rank, in whatever order they arrive."""
        return self.action.id, self.attempt


class StepReport(Object, kw_only=True):
    """A step's end (or, with ``final`` false, the beginning of the next one on the same host).

    ``changes`` are instance columns, ``results`` go into the action's payload for later steps.
    """

    action_uuid: str
    step: str
    attempt: int
    undo: bool = False
    final: bool = True
    changes: dict[str, Any] = {}
    results: dict[str, Any] = {}
    failure: Any = None
    host: str = ""
