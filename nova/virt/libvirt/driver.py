"""The libvirt driver: QEMU guests, emulated (qemu) or virtualized (kvm).

A guest is a domain with the server's uuid and name and Nova's metadata element, and a directory with its files. Both
are created again from the description of the server at every start."""

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.virt.driver import Driver, EventHandler, HostCpu
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.events import EventReporter
from nova.virt.libvirt.files import directories
from nova.virt.libvirt.guests import Guests
from nova.virt.libvirt.host import Host
from nova.virt.libvirt.hotplug import Interfaces
from nova.virt.libvirt.live_source import LiveMigrationSource
from nova.virt.libvirt.live_target import LiveMigrationTarget
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.roles import Consoles, Disks, Power, Rescue
from nova.virt.libvirt.snapshots import Snapshots
from nova.virt.libvirt.volumes import VolumeFiles, Volumes, VolumeSwaps

_URIS = {"kvm": "qemu:///system", "qemu": "qemu:///system", "lxc": "lxc:///"}


class LibvirtDriver(Driver):
    """Actions on one guest are serialized. Exceptions: no action waits for a guest that shuts down slowly, and a delete
    or hard reboot does not wait for an action that hangs."""

    capabilities = frozenset({"console_output", "diagnostics", "pause", "suspend", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot"})

    def __init__(self, host: str) -> None:
        self._host = Host(CONF.libvirt.connection_uri or _URIS[CONF.libvirt.virt_type])
        self._guests = guests = Guests(host, self._host)
        snapshots = Snapshots(guests)
        super().__init__(host=host, guests=guests, disks=Disks(guests), power=Power(guests), consoles=Consoles(guests),
                         rescue=Rescue(guests), snapshots=snapshots, volumes=Volumes(guests),
                         volume_swaps=VolumeSwaps(guests), volume_files=VolumeFiles(guests, snapshots),
                         interfaces=Interfaces(guests), cold_migration=ColdMigration(guests),
                         live_source=LiveMigrationSource(guests), live_target=LiveMigrationTarget(guests))
        self._events: EventReporter | None = None

    def start(self, on_event: EventHandler) -> None:
        if CONF.libvirt.virt_type == "lxc":
            raise exception.NotSupported("[libvirt]virt_type lxc is not supported yet.")
        directories.make_instances_path()
        self._host.start()
        self._guests.learn()
        self._events = EventReporter(self._guests.actual_power_state, self._guests.all, on_event)
        self._events.start()
        self._host.on_lifecycle = self._events.changed
        self._host.on_connected = self._reconnected
        self._host.on_unreachable = lambda error: self.on_unreachable(error)

    def stop(self) -> None:
        self._host.on_lifecycle = self._host.on_connected = self._host.on_unreachable = None
        if self._events is not None:
            self._events.stop()
        self._host.stop()

    def nodes(self) -> list[ComputeNode]:
        capabilities = self._guests.capabilities
        return [self._host.call(lambda connection: inventory.take(connection, self.host, capabilities))]

    def host_cpu(self) -> HostCpu:
        return self._host.call(inventory.cpu)

    def _reconnected(self) -> None:
        """Refresh cached state after a reconnect: libvirt may have been upgraded, and events may have been missed."""
        self._guests.forget_capabilities()
        if self._events is not None:
            self._events.reconnected()
