"""The libvirt driver: QEMU guests, emulated (qemu) or virtualized (kvm), and containers (lxc).

A guest is a domain with the server's uuid and name and Nova's metadata element, and a directory with its files. Every
start creates the domain and missing files again from the description of the server."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers.guest import GuestStatus
from nova.virt.driver import Driver, EventHandler, HostCpu
from nova.virt.guest_files import directories
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.containers import roles as container_roles
from nova.virt.libvirt.containers.guests import Containers
from nova.virt.libvirt.devices import Interfaces, VolumeFiles, Volumes, VolumeSwaps
from nova.virt.libvirt.guests import Guests
from nova.virt.libvirt.host import Host
from nova.virt.libvirt.live_migration import LiveMigrationSource, LiveMigrationTarget
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.roles import BasicPower, Consoles, Disks, Power, Rescue
from nova.virt.libvirt.snapshots import Snapshots

LOG = logging.getLogger(__name__)

_URIS = {"kvm": "qemu:///system", "qemu": "qemu:///system", "lxc": "lxc:///"}


class LibvirtDriver(Driver):
    """The driver of one host. Actions on one guest are serialized, with two exceptions: no action waits for a guest
    that shuts down slowly, and a delete or hard reboot does not wait for an action that hangs."""

    capabilities = frozenset({"console_output", "diagnostics", "pause", "suspend", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot", "vtpm"})

    def __new__(cls, *_arguments: object, **_keywords: object) -> "LibvirtDriver":
        return super().__new__(ContainerDriver if CONF.libvirt.virt_type == "lxc" else cls)

    def __init__(self, host: str) -> None:
        self._host = Host(CONF.libvirt.connection_uri or _URIS[CONF.libvirt.virt_type])
        self._guests = guests = self._guests_of(host)
        super().__init__(host=host, **self._roles())
        self._events = EventReporter(guests.actual_power_state, guests.all)

    def _guests_of(self, host: str) -> Guests:
        return Guests(host, self._host)

    def _roles(self) -> dict[str, Any]:
        """Return the roles of the driver by name."""
        guests = self._guests
        snapshots = Snapshots(guests)
        return {"guests": guests, "disks": Disks(guests), "power": Power(guests), "consoles": Consoles(guests),
                "rescue": Rescue(guests), "snapshots": snapshots, "volumes": Volumes(guests),
                "volume_swaps": VolumeSwaps(guests), "volume_files": VolumeFiles(guests, snapshots),
                "interfaces": Interfaces(guests), "cold_migration": ColdMigration(guests),
                "live_source": LiveMigrationSource(guests), "live_target": LiveMigrationTarget(guests)}

    def start(self, on_event: EventHandler) -> None:
        directories.make_instances_path()
        self._host.start()
        self._guests.learn()
        self._events.start(on_event)
        self._host.on_lifecycle = self._events.changed
        self._host.on_connected = self._reconnected
        self._host.on_unreachable = lambda error: self.on_unreachable(error)

    def stop(self) -> None:
        self._host.on_lifecycle = self._host.on_connected = self._host.on_unreachable = None
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
        self._events.reconnected()


class ContainerDriver(LibvirtDriver):
    """The driver of containers (virt_type lxc). Containers do not support suspend, live migration, rescue and
    graphical consoles."""

    capabilities = frozenset({"console_output", "diagnostics", "pause", "attach_volume", "attach_interface", "move",
                              "snapshot"})

    def _guests_of(self, host: str) -> Guests:
        self._containers = Containers(host, self._host)
        return self._containers

    def _roles(self) -> dict[str, Any]:
        guests = self._containers
        return {"guests": guests, "disks": Disks(guests), "power": BasicPower(guests),
                "consoles": container_roles.Consoles(guests), "snapshots": container_roles.Snapshots(guests),
                "volumes": container_roles.Volumes(guests), "interfaces": container_roles.Interfaces(guests),
                "cold_migration": container_roles.ColdMigration(guests)}

    def start(self, on_event: EventHandler) -> None:
        super().start(on_event)
        LOG.warning("Containers share the kernel of this host, which also mounts the file systems of images: root in a "
                    "container is root of the host. Accept trusted projects and images only.")
        container_roles.thaw_all(self._containers)
        self._containers.consoles.start()

    def stop(self) -> None:
        self._containers.consoles.stop()
        super().stop()


class EventReporter:
    """A thread that converts libvirt's lifecycle events to reports of power states. An event contains only the uuid of
    the guest. The power state is read when the event is handled, so the reported state is current. After a reconnect,
    all guests are checked; those whose state differs from the previous report are reported. ``power_state(uuid)``
    returns the state of a guest (raises GuestNotFound: missing, or not a guest of Nova), ``list_guests()`` all."""

    def __init__(self, power_state: Callable[[str], int], list_guests: Callable[[], list[GuestStatus]]) -> None:
        self._power_state, self._list_guests = power_state, list_guests
        self._report: EventHandler = lambda _guest: None
        self._reported_states: dict[str, int] = {}
        # A uuid: the guest changed; None: any guest may have changed; _END: stop.
        self._changes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="libvirt-guests", daemon=True)

    _END = ""

    def start(self, report: EventHandler) -> None:
        """Record the current power states and start the thread that passes changes to ``report``."""
        self._report = report
        self._reported_states = {guest.uuid: guest.power_state for guest in self._list_guests()}
        self._thread.start()

    def stop(self) -> None:
        self._changes.put(self._END)
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def changed(self, uuid: str) -> None:
        """Queue a change of a domain, also of one that is not Nova's. Never blocks, since libvirt's thread calls it."""
        self._changes.put(uuid)

    def reconnected(self) -> None:
        """Queue a check of all guests, since events may have been missed."""
        self._changes.put(None)

    def _run(self) -> None:
        while True:
            uuid = self._changes.get()
            if uuid == self._END:
                return
            try:
                if uuid is None:
                    self._compare()
                else:
                    self._check(uuid)
            except exception.HypervisorUnavailable:
                LOG.info("libvirt is unavailable: the power states of all guests are checked after the reconnect")
            except Exception:
                LOG.exception("Cannot report a change of guest %s; the periodic comparison reports it", uuid or "(any)")

    def _check(self, uuid: str) -> None:
        try:
            self._note(GuestStatus(uuid=uuid, power_state=self._power_state(uuid)))
        except exception.GuestNotFound:
            self._reported_states.pop(uuid, None)

    def _compare(self) -> None:
        guests = self._list_guests()
        for removed in self._reported_states.keys() - {guest.uuid for guest in guests}:
            del self._reported_states[removed]
        for guest in guests:
            self._note(guest)

    def _note(self, guest: GuestStatus) -> None:
        if self._reported_states.get(guest.uuid) == guest.power_state:
            return
        self._reported_states[guest.uuid] = guest.power_state
        LOG.debug("Guest %s is now in power state %s", guest.uuid, guest.power_state)
        self._report(guest)
