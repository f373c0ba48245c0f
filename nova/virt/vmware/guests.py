"""The guests of a cluster, and the base class of the driver's roles."""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.common import files as small_files
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_locks import LOCK_TIMEOUT, GuestLocks
from nova.virt.vmware import diagnostics, errors, specs
from nova.virt.vmware.cluster import ASIDE, COPY, DISKS, GUEST, INCOMPLETE, Cluster, Machine
from nova.virt.vmware.machines import Facts, Machines
from nova.virt.vmware.session import VCenter, options

LOG = logging.getLogger(__name__)

POWER_STATES = {"poweredOn": states.RUNNING, "poweredOff": states.SHUTDOWN, "suspended": states.POWER_SUSPENDED}
ON, SUSPENDED = "poweredOn", "suspended"
# Key in extraConfig of guests that were started with paused=True: powered off until Power.unpause.
HELD = "nova.held"
_VNC_PORT = "RemoteDisplay.vnc.port"
_POLL = 0.5


class Guests(guest_driver.Guests):
    """The guests of a cluster. ``name``: name of the compute service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.vcenter = VCenter()
        self.cluster = Cluster(self.vcenter)
        self.machines = Machines(self.cluster, name)
        self.locks = GuestLocks()
        self._ports_lock = threading.Lock()
        self._reserved_ports: set[int] = set()

    # --- queries -----------------------------------------------------------------------------------
    def machine(self, uuid: str) -> Machine:
        """Return the machine of a guest. Raises GuestNotFound."""
        machine = self.cluster.machine(uuid)
        if machine is None or machine.kind != GUEST:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return machine

    def all(self) -> list[GuestStatus]:
        return [GuestStatus(uuid=machine.uuid, power_state=POWER_STATES.get(machine.power, states.NOSTATE))
                for machine in self.cluster.machines() if machine.kind == GUEST]

    def power_state(self, uuid: str) -> int:
        return POWER_STATES.get(self.machine(uuid).power, states.NOSTATE)

    def traces(self) -> set[str]:
        return self.cluster.servers()

    def diagnostics(self, instance: Instance) -> Diagnostics:
        machine = self.machine(instance.uuid)
        return diagnostics.collect(self.vcenter.get(machine.ref, *diagnostics.PATHS), self.machines.facts(machine.ref),
                                   POWER_STATES.get(machine.power, states.NOSTATE), instance)

    # --- lifecycle ---------------------------------------------------------------------------------
    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        self.start(instance, paused=paused)

    def start(self, instance: Instance, fresh: bool = False, paused: bool = False) -> None:
        """Start the machine of the server, as a guest, with its current definition. ``fresh``: power-cycle it in any
        state. ``paused``: leave it powered off until Power.unpause. Raises GuestNotFound if there is no machine."""
        specs.check(instance)
        with self.locks.hold(instance.uuid, LOCK_TIMEOUT if fresh else None):
            machine = self.cluster.machine(instance.uuid)
            if machine is None or machine.kind not in (GUEST, DISKS):
                raise exception.GuestNotFound(instance_uuid=instance.uuid)
            if machine.kind == GUEST and machine.power == ON and not fresh:
                return
            if fresh and machine.power != "poweredOff":
                self.machines.power_off(machine.ref)
            if fresh or machine.power != SUSPENDED:
                self.define_as(instance, machine.ref, held=paused)
            if not paused:
                self.locks.check()
                self.machines.power_on(machine.ref)
                LOG.info("[instance: %s] Started the guest in cluster %s", instance.uuid, CONF.vmware.cluster_name)

    def define_as(self, instance: Instance, ref: Any, held: bool = False, restored: bool = False) -> None:
        """Make the stopped machine a guest with the size, interfaces and volumes of the server. ``held``: see HELD.
        ``restored``: also give the renamed machine its name and id again. The caller holds the guest's lock."""
        self.locks.check()
        facts = self.machines.facts(ref)
        spec = specs.sized(instance)
        spec.managedBy = specs.owner(GUEST)
        if restored:
            spec.name = spec.instanceUuid = instance.uuid
        spec.deviceChange = self._interfaces(instance, facts) + self._volumes(instance, facts)
        spec.extraConfig += [facts.slots.stored(), specs.option(HELD, "true" if held else "")]
        with self._vnc_port(facts) as port:
            spec.extraConfig += specs.vnc(port) if port else []
            self.cluster.reconfigure(ref, spec)

    def _interfaces(self, instance: Instance, facts: Facts) -> list[Any]:
        wanted = {vif.mac.lower(): vif for vif in instance.network_info}
        removed = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
                   for mac, device in facts.nics.items() if mac not in wanted]
        missing = [vif for mac, vif in wanted.items() if mac not in facts.nics]
        return removed + [specs.nic(instance, vif.mac, self.cluster.network(vif), number)
                          for number, vif in enumerate(missing)]

    def _volumes(self, instance: Instance, facts: Facts) -> list[Any]:
        slots = facts.slots
        wanted = {str(device.volume_id): device for device in instance.volumes}
        removed = set(slots.slots) - set(specs.own_disks(slots.slots)) - set(wanted)
        changes = [change for name in sorted(removed) for change in slots.remove(name)]
        # The root volume gets the first free slot, since the guest boots from the disk in the first slot.
        for name, device in sorted(wanted.items(), key=lambda item: item[1].boot_index != 0):
            if name not in slots.slots and device.connection is not None:
                changes.append(slots.add(name, self.volume_backing(device)))
        return changes

    def volume_backing(self, device: BlockDevice) -> Any:
        """Return the backing of a volume: the file of the only disk of its machine in vCenter, which Cinder created.
        Raises VolumeUnusable."""
        connection = device.connection
        reason = ""
        if connection is None or connection.protocol != "vmdk":
            reason = "only volumes of the type vmdk are supported"
        elif connection.key is not None or connection.shareable or connection.read_only:
            reason = "encrypted, multi-attached and read-only volumes are not supported"
        if connection is None or reason:
            raise exception.VolumeUnusable(volume_id=device.volume_id, reason=reason)
        machine = self.vcenter.reference(vim.VirtualMachine, connection.path)
        result = self.vcenter.properties([machine], ["config.hardware.device"]).get(machine) or {}
        disks: list[Any] = [item for item in result.get("config.hardware.device") or ()
                 if isinstance(item, vim.vm.device.VirtualDisk)]
        if len(disks) != 1:
            raise exception.VolumeUnusable(volume_id=device.volume_id, reason="vCenter has no disk of the volume")
        return specs.file_backing(disks[0].backing.fileName)

    @contextlib.contextmanager
    def _vnc_port(self, facts: Facts) -> Iterator[int]:
        """Yield the VNC port of a machine; 0 if [vnc]enabled is false. No other machine gets the port meanwhile."""
        present = int(facts.extra.get(_VNC_PORT) or 0)
        if not CONF.vnc.enabled or present:
            yield present if CONF.vnc.enabled else 0
            return
        with self._ports_lock:
            listed = self.vcenter.contained(self.cluster.pool, vim.VirtualMachine, ["config.extraConfig"])
            taken = {options(values["config.extraConfig"]).get(_VNC_PORT) for values in listed.values()}
            first = int(CONF.vmware.vnc_port)
            port = next((port for port in range(first, first + CONF.vmware.vnc_port_total)
                         if str(port) not in taken and port not in self._reserved_ports), 0)
            if not port:
                raise exception.NovaException("All VNC ports of the cluster ([vmware]vnc_port_total) are in use.")
            self._reserved_ports.add(port)
        try:
            yield port
        finally:
            with self._ports_lock:
                self._reserved_ports.discard(port)

    def stop(self, uuid: str) -> None:
        with contextlib.suppress(exception.GuestNotFound):
            self.power_off(uuid)

    def power_off(self, uuid: str, timeout: float | None = None) -> None:
        """Power off the guest without a shutdown request. ``timeout``: see GuestLocks.hold. Raises GuestNotFound."""
        with self.locks.hold(uuid, timeout):
            self.machines.power_off(self.machine(uuid).ref)

    def shut_down(self, uuid: str, timeout: float) -> bool:
        """Request a shutdown of the guest and wait ``timeout`` seconds, without the guest's lock. Return True if the
        guest is off. A guest without VMware Tools cannot receive the request. Raises GuestNotFound."""
        machine = self.machine(uuid)
        if machine.power != ON:
            return machine.power != SUSPENDED
        if timeout <= 0 or not self.has_tools(machine.ref):
            return False
        try:
            machine.ref.ShutdownGuest()
        except errors.VCenterFault as error:
            LOG.info("[instance: %s] The guest does not accept a request to shut down: %s", uuid, error)
            return False
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.machine(uuid).power != ON:
                return True
            time.sleep(_POLL)
        return False

    def shut_down_if_present(self, uuid: str, timeout: float) -> None:
        with contextlib.suppress(exception.GuestNotFound):
            self.shut_down(uuid, timeout)

    def has_tools(self, ref: Any) -> bool:
        """Return True if VMware Tools run in the guest."""
        status = self.vcenter.get(ref, "guest.toolsRunningStatus")["guest.toolsRunningStatus"]
        return bool(status == "guestToolsRunning")

    # --- removal -----------------------------------------------------------------------------------
    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        self._remove(instance.uuid, keep_disks)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        self._remove(uuid, keep_disks)
        if not keep_disks:
            self.machines.destroy_derived(uuid, ASIDE)

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        with self.locks.hold(uuid, LOCK_TIMEOUT):
            machine = self.cluster.machine(uuid)
            if machine is not None and not keep_disks:
                self.machines.destroy(machine.ref)
            elif machine is not None and machine.kind == GUEST:
                self.retire(machine)
            self.machines.destroy_derived(uuid, COPY, INCOMPLETE)
            if not keep_disks:
                shutil.rmtree(local_directory(uuid), ignore_errors=True)
                small_files.remove(console_log(uuid))

    def retire(self, machine: Machine) -> None:
        """Stop a guest, and turn it into a machine with only its own disks. The caller holds the guest's lock."""
        self.machines.power_off(machine.ref)
        self.machines.detach_foreign_disks(machine.ref)
        self.cluster.reconfigure(machine.ref, vim.vm.ConfigSpec(managedBy=specs.owner(DISKS)))


def local_directory(uuid: str) -> str:
    """Return the directory of the server on this machine: for its config drive, and images during an export."""
    return os.path.join(CONF.instances_path, uuid)


def console_log(uuid: str) -> str:
    """Return the file in which the virtual serial port concentrator stores the console log."""
    return os.path.join(CONF.vmware.serial_log_dir, uuid.replace("-", ""))


class Role:
    """A role of the driver, which acts on the guests of its cluster."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._machines = guests.machines

    @contextlib.contextmanager
    def _held(self, uuid: str) -> Iterator[Machine]:
        """Hold the lock of the guest; yield its machine. Raises GuestNotFound."""
        with self._guests.locks.hold(uuid):
            yield self._guests.machine(uuid)
