"""The guests of one virtual host: a few bytes per guest in memory, and optionally an append-only file.

Designed for 100,000 guests."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice, Instance
from nova.virt.fake.log import AppendOnlyFile
from nova.virt.volume_files import files_of


class FlavorSize(msgspec.Struct, frozen=True, array_like=True):
    """The current flavor of a guest."""

    flavor: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    root_gb: int = 0


class Guest(msgspec.Struct, omit_defaults=True):
    """The state of a guest. ``booted``: times of its boots in seconds. ``volumes``: device names and volume ids.
    ``interfaces``: MAC addresses; ``cpus`` and ``devices`` (addresses): dedicated resources of the host. ``rescued``:
    id of the rescue image. ``incoming``: a migration is moving the guest to this host; ``went``: a migration has moved
    it to another host; such guests are not listed. ``swapped``: attachment ids of volumes swapped since the definition.
    ``files``: volume id and file names of file-based volumes. ``sizes``: volume ids and sizes in GiB of volumes
    extended while the guest ran. ``shares``: tags and host directories."""

    power_state: int
    name: str = ""
    booted: tuple[int, ...] = ()
    size: FlavorSize = FlavorSize()
    volumes: tuple[tuple[str, str], ...] = ()
    interfaces: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    incoming: bool = False
    went: bool = False
    rescued: str = ""
    swapped: tuple[str, ...] = ()
    files: tuple[tuple[str, ...], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    shares: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.size = _shared(self.size)

    @property
    def on(self) -> bool:
        """Return True if the guest runs on this host."""
        return self.power_state in (states.RUNNING, states.POWER_PAUSED) and not self.incoming and not self.went

    def define(self, instance: Instance, name: str) -> None:
        """Renew the definition. Keep the device names and file names of volumes for which ``instance`` has none."""
        self.name, self.rescued, self.swapped, self.sizes = name, "", (), ()
        flavor = instance.flavor
        self.size = _shared(FlavorSize(flavor.name, flavor.vcpus, flavor.memory_mb, flavor.root_gb))
        here = {volume: device for device, volume in self.volumes}
        self.volumes = tuple((device.device_name or here.get(device.volume_id, ""), device.volume_id)
                             for device in instance.block_devices if device.is_volume and device.volume_id)
        current = {item[0]: item for item in self.files}
        self.files = tuple(
            (device.volume_id or "", *names) if (names := files_of(device)) else current[device.volume_id or ""]
            for device in instance.block_devices if files_of(device) or device.volume_id in current)
        self.interfaces = tuple(vif.mac for vif in instance.network_info)
        self.shares = tuple((mapping.tag, mapping.path) for mapping in instance.usable_shares if mapping.path)
        cells = instance.numa_topology.cells if instance.numa_topology else []
        self.cpus = tuple(sorted(cpu for cell in cells for cpu in cell.pinning.values()))
        self.devices = tuple(sorted(device.device.address for device in instance.pci_devices or ()))

    def files_of(self, device: BlockDevice) -> tuple[str, ...]:
        """Return the file names of a volume, newest first; () if the guest has no such volume, or it is not a file."""
        return next((item[1:] for item in self.files if item[0] == device.volume_id), ())


class GuestStore:
    """Guests by uuid. Thread-safe. ``path``: file that stores the guests (None: memory). ``changed``: called after each
    change of a guest with its uuid, and True if the guest runs; must not block. ``names``: template of guest names."""

    def __init__(self, path: str | None, changed: Callable[[str, bool], None] = lambda _uuid, _on: None,
                 names: str = "instance-%08x") -> None:
        self._changed, self._names = changed, names
        self._guests: dict[str, Guest] = {}
        self._lock = threading.Lock()
        self._file = AppendOnlyFile(path, Guest)

    def open(self) -> None:
        """Load the guests of a previous process. A repeated call does nothing."""
        with self._lock:
            self._file.load_into(self._guests)

    def get(self, uuid: str) -> Guest:
        """Return the guest. Raises GuestNotFound."""
        guest = self._guests.get(uuid)
        if guest is None:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return guest

    def find(self, uuid: str) -> Guest | None:
        return self._guests.get(uuid)

    def boot(self, instance: Instance, power_state: int = states.RUNNING) -> None:
        """Create or update the guest with this definition, and start it (``power_state``: running or paused)."""
        before = self._guests.get(instance.uuid)
        booted = (*(before.booted[-9:] if before else ()), int(time.time()))
        self.define(instance, power_state, incoming=False, went=False, booted=booted)

    def define(self, instance: Instance, power_state: int, **changes: Any) -> None:
        """Create or update the guest with this definition and power state."""
        with self._lock:
            guest = self._guests.setdefault(instance.uuid, Guest(power_state))
            guest.define(instance, instance.name_by(self._names))
            guest.power_state = power_state
            for name, value in changes.items():
                setattr(guest, name, value)
            self._note(instance.uuid, guest)

    def change(self, uuid: str, **changes: Any) -> None:
        """Change attributes of the guest. Raises GuestNotFound."""
        with self._lock:
            guest = self.get(uuid)
            for name, value in changes.items():
                setattr(guest, name, value)
            self._note(uuid, guest)

    def set_files(self, uuid: str, volume: str, names: Sequence[str]) -> None:
        """Store the file names of a volume of the guest. Raises GuestNotFound."""
        with self._lock:
            guest = self.get(uuid)
            others = tuple(item for item in guest.files if item[0] != volume)
            guest.files = (*others, (volume, *names)) if names else others
            self._note(uuid, guest)

    def add(self, uuid: str, power_state: int) -> None:
        """Add a guest without a definition, as if it had survived a restart of this process."""
        with self._lock:
            guest = self._guests[uuid] = Guest(power_state)
            self._note(uuid, guest)

    def remove(self, uuid: str) -> None:
        """Remove the guest, if it exists."""
        with self._lock:
            if self._guests.pop(uuid, None) is not None:
                self._note(uuid, None)

    def power_states(self) -> list[tuple[str, int]]:
        """Return the power states of all guests, except those that migrate to this host or have left it."""
        with self._lock:
            return [(uuid, guest.power_state) for uuid, guest in self._guests.items()
                    if not guest.incoming and not guest.went]

    def incoming(self) -> list[str]:
        """Return the uuids of the guests that migrations are moving to this host."""
        with self._lock:
            return [uuid for uuid, guest in self._guests.items() if guest.incoming]

    def _note(self, uuid: str, guest: Guest | None) -> None:
        self._changed(uuid, guest is not None and guest.on)
        self._file.note(uuid, guest, self._guests)


@functools.lru_cache(maxsize=1000)
def _shared(size: FlavorSize) -> FlavorSize:
    """Return one object for all guests of a flavor."""
    return size
