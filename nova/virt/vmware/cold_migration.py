"""Moves of stopped guests within a cluster, or between clusters of one vCenter. The source gives the machine another
name and id; the destination clones the machine."""

import contextlib
import logging

from pyVmomi import vim

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskSource
from nova.operations.framework import guest_driver
from nova.virt.guest_locks import LOCK_TIMEOUT
from nova.virt.vmware import specs
from nova.virt.vmware.cluster import ASIDE, DISKS, GUEST, INCOMPLETE, SERVER
from nova.virt.vmware.guests import ON, Role
from nova.virt.vmware.machines import Facts, derived

LOG = logging.getLogger(__name__)

_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10


class ColdMigration(Role, guest_driver.ColdMigration):
    # --- source ------------------------------------------------------------------------------------
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        machine = self._machines.find(instance.uuid)
        if machine is not None:
            _check_growth(self._machines.facts(machine.ref), instance, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        uuid = instance.uuid
        self._guests.shut_down_if_present(uuid, timeout)
        with self._guests.locks.hold(uuid):
            machine = self._machines.find(uuid)
            if machine is not None and machine.kind == GUEST:
                self._machines.destroy_derived(uuid, ASIDE)  # of an earlier move; not removed at its end
            if self._machines.find(uuid, ASIDE) is None:
                if machine is None or machine.kind not in (GUEST, DISKS):
                    raise exception.GuestNotFound(instance_uuid=uuid)
                self._guests.retire(machine)
                self._guests.cluster.reconfigure(machine.ref, vim.vm.ConfigSpec(
                    name=f"{uuid}-{ASIDE}", instanceUuid=derived(uuid, ASIDE), managedBy=specs.owner(ASIDE),
                    extraConfig=[specs.option(SERVER, uuid)]))
        return DiskSource(host=self._guests.name, token=self._guests.vcenter.uuid)

    def confirm(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            self._machines.destroy_derived(instance.uuid, ASIDE)

    def revert(self, instance: Instance, former: str = "") -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            aside = self._machines.find(uuid, ASIDE)
            if aside is None:
                machine = self._machines.find(uuid)
                if machine is not None and machine.kind == DISKS:  # open_disks() was interrupted
                    self._guests.define_as(instance, machine.ref)
                return
            if self._guests.cluster.machine(uuid, anywhere=True) is not None:
                LOG.warning("[instance: %s] The guest exists: not restoring the virtual machine that an earlier move "
                            "renamed", uuid)
                return
            # Send a single request: if this process is killed, the machine must be either still renamed or a guest.
            self._guests.define_as(instance, aside.ref, restored=True)

    # --- destination -------------------------------------------------------------------------------
    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        uuid, cluster = instance.uuid, self._guests.cluster
        specs.check(instance)
        if source.token != self._guests.vcenter.uuid:
            raise exception.MigrationError(reason=f"host {source.host} does not belong to the vCenter of host "
                                                  f"{self._guests.name}")
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT):
            machine = self._machines.find(uuid)
            if machine is not None and machine.kind != INCOMPLETE:
                return
            if machine is not None:
                self._machines.destroy(machine.ref)
            aside = cluster.machine(derived(uuid, ASIDE), anywhere=True)
            if aside is None:
                raise exception.MigrationError(reason="vCenter lacks the renamed virtual machine of the source host")
            location = vim.vm.RelocateSpec(pool=cluster.pool, datastore=cluster.roomiest().ref,
                                           diskMoveType="moveAllDiskBackingsAndDisallowSharing")
            spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False, config=vim.vm.ConfigSpec(
                instanceUuid=uuid, managedBy=specs.owner(INCOMPLETE)))
            ref = self._guests.vcenter.wait(aside.ref.CloneVM_Task(cluster.folder, uuid, spec))
            try:
                self._machines.copy_config_drive(ref)
                cluster.reconfigure(ref, vim.vm.ConfigSpec(managedBy=specs.owner(DISKS)))
            except BaseException:
                with contextlib.suppress(exception.NovaException):
                    self._machines.destroy(ref)
                raise

    def finish(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            machine = self._machines.find(instance.uuid)
            if machine is None or machine.kind not in (GUEST, DISKS):
                raise exception.GuestNotFound(instance_uuid=instance.uuid)
            if machine.power == ON:
                return  # nothing to do: an earlier attempt has finished the move
            facts = self._machines.facts(machine.ref)
            _check_growth(facts, instance, instance.flavor)
            changes, slots = [], facts.slots
            for name, size in _wanted(instance, instance.flavor).items():
                device = slots.device(name)
                if device is not None and device.capacityInKB < size // _KIB:
                    device.capacityInKB = size // _KIB
                    device.capacityInBytes = size
                    changes.append(vim.vm.device.VirtualDeviceSpec(operation="edit", device=device))
            swap, wanted = slots.device("swap"), local_disks.swap_mb(instance.block_devices, instance.flavor) * _MIB
            if swap is not None and swap.capacityInKB != wanted // _KIB:
                changes += slots.remove("swap", destroy=True)
            changes += self._machines.blank_disks(instance, slots, facts.directory)
            if changes:
                self._machines.change_disks(machine.ref, changes, slots)
            self._guests.define_as(instance, machine.ref)


def _wanted(instance: Instance, flavor: Flavor) -> dict[str, int]:
    """Return the sizes in bytes of the disks that must not shrink."""
    sizes = {f"ephemeral{number}": gib * _GIB for number, (gib, _format) in enumerate(
        local_disks.ephemerals(instance.block_devices, flavor))}
    return {**({"root": flavor.root_gb * _GIB} if flavor.root_gb else {}), **sizes}


def _check_growth(facts: Facts, instance: Instance, flavor: Flavor) -> None:
    """Raise ResizeError if a disk would have to shrink or disappear."""
    wanted = _wanted(instance, flavor)
    for name in specs.own_disks(facts.slots.slots):
        have = facts.slots.device(name).capacityInKB * _KIB
        if name.startswith("ephemeral") and name not in wanted:
            raise exception.ResizeError(reason=f"the flavor {flavor.name} has fewer ephemeral disks than the server")
        if name in wanted and wanted[name] < have:
            raise exception.ResizeError(
                reason=f"the {name} disk of {have / _GIB:g} GiB cannot shrink to {wanted[name] / _GIB:g} GiB")
