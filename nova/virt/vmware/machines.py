"""Creation and removal of machines, and of their files on datastores."""

import contextlib
import dataclasses
import logging
import re
import uuid as uuidlib
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.objects.requirements import local_disks
from nova.objects.requirements.hardware import hardware
from nova.objects.requirements.properties import Properties
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.vmware import errors, specs
from nova.virt.vmware.cluster import DISKS, INCOMPLETE, SERVER, Cluster, Datastore, Machine
from nova.virt.vmware.images import ImageStore, root_size
from nova.virt.vmware.session import options

LOG = logging.getLogger(__name__)

_GIB, _MIB = 1 << 30, 1 << 20
# Key in extraConfig. Value: the token of the newest rebuild, see Disks.replace.
TOKEN = "nova.token"  # noqa: S105 - not a secret
# Name of the machine's snapshot that is exported as an image.
SNAPSHOT = "nova-image"
_CONFIG_DRIVE = "config.iso"
_SECOND_CDROM = (200, 1)


def derived(uuid: str, kind: str) -> str:
    """Return the instanceUuid of the server's additional machine of this kind, such as a clone."""
    return str(uuidlib.uuid5(uuidlib.UUID(uuid), kind))


@dataclasses.dataclass
class Facts:
    """Configuration of a machine. ``directory``: directory of the machine's files, as "[datastore] directory"."""

    devices: list[Any]
    extra: dict[str, str]
    directory: str
    slots: specs.DiskSlots

    @property
    def nics(self) -> dict[str, Any]:
        """Return the network cards by MAC address."""
        return {str(device.macAddress).lower(): device for device in self.devices
                if isinstance(device, vim.vm.device.VirtualEthernetCard)}


class Machines:
    """The machines of a cluster. ``host``: name of the compute service."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.cluster, self.vcenter = cluster, cluster.vcenter
        self.images = ImageStore(cluster, host)

    def facts(self, ref: Any) -> Facts:
        values = self.vcenter.get(ref, "config.hardware.device", "config.extraConfig", "config.files.vmPathName")
        extra, devices = options(values["config.extraConfig"]), list(values["config.hardware.device"] or ())
        directory = str(values["config.files.vmPathName"]).rpartition("/")[0]
        return Facts(devices=devices, extra=extra, directory=directory, slots=specs.DiskSlots(devices, extra))

    # --- creation ----------------------------------------------------------------------------------
    def create(self, instance: Instance, files: BootFiles, identity: str, token: str = "") -> Any:
        """Create a machine with the disks of the server. Raises FlavorDiskTooSmall, InvalidDiskInfo, DiskFull; after an
        error no machine is left."""
        iso = hardware(Properties.of(instance), existing=True).iso
        size = 0
        if files.root and not iso:
            size = root_size(files, instance.flavor.root_gb)
        elif iso:
            size = instance.flavor.root_gb * _GIB
        datastore = self.cluster.roomiest()
        image = ""
        if files.root:
            image = self.images.iso(datastore, files) if iso else self.images.disk(
                datastore, files, specs.adapter(instance), size)
        spec = specs.new_machine(instance, datastore.name, INCOMPLETE)
        spec.name = spec.instanceUuid = identity
        spec.extraConfig.append(specs.option(SERVER, instance.uuid))
        try:
            ref = self.vcenter.wait(self.cluster.folder.CreateVM_Task(spec, self.cluster.pool, None))
        except errors.VCenterFault as error:
            if error.is_a(vim.fault.InvalidDeviceSpec):
                reason = f"the hypervisor cannot run this server: {error.message}"
                raise exception.InvalidInput(reason=reason) from error
            raise
        try:
            self._add_disks(ref, instance, files, datastore, image, size, token)
        except BaseException:
            with contextlib.suppress(exception.NovaException):
                self.destroy(ref)
            raise
        return ref

    def _add_disks(self, ref: Any, instance: Instance, files: BootFiles, datastore: Datastore, image: str, size: int,
                   token: str) -> None:
        facts = self.facts(ref)
        slots, directory = facts.slots, facts.directory
        changes = []
        if image.endswith(".iso"):
            changes.append(specs.cdrom(image))
            image = ""
        if image and (files.alone or not specs.is_linked(instance)):
            own = f"{directory}/root.vmdk"
            self.vcenter.wait(self.vcenter.content.virtualDiskManager.CopyVirtualDisk_Task(
                image, self.cluster.datacenter, own, self.cluster.datacenter, None, False))
            changes.append(slots.add("root", specs.file_backing(own), size))
        elif image or size:
            changes.append(slots.add("root", specs.file_backing(f"[{datastore.name}]", image), size, create=True))
        else:
            slots.reserve_first()  # for the root volume
        changes += self.blank_disks(instance, slots, directory)
        if files.config_drive:
            changes.append(self._config_drive(files.config_drive, directory, bool(changes) and isinstance(
                changes[0].device, vim.vm.device.VirtualCdrom)))
        extra = [slots.stored(), *([specs.option(TOKEN, token)] if token else [])]
        self.cluster.reconfigure(ref, vim.vm.ConfigSpec(deviceChange=changes, extraConfig=extra,
                                                        managedBy=specs.owner(DISKS)))

    @staticmethod
    def blank_disks(instance: Instance, slots: specs.DiskSlots,
                    directory: str) -> list[vim.vm.device.VirtualDeviceSpec]:
        """Return the changes that add empty disks: the missing ephemeral disks and swap disk of the server."""
        wanted = {f"ephemeral{number}": gib * _GIB for number, (gib, _format) in enumerate(
            local_disks.ephemerals(instance.block_devices, instance.flavor))}
        if swap := local_disks.swap_mb(instance.block_devices, instance.flavor):
            wanted["swap"] = swap * _MIB
        return [slots.add(name, specs.file_backing(f"{directory}/{name}.vmdk"), size, create=True)
                for name, size in wanted.items() if name not in slots.slots]

    def _config_drive(self, path: str, directory: str, second: bool) -> vim.vm.device.VirtualDeviceSpec:
        match = re.fullmatch(r"\[(.+?)\] ?(.*)", directory)
        assert match is not None
        self.vcenter.upload(path, self.cluster.datacenter_path, match[1], f"{match[2]}/{_CONFIG_DRIVE}")
        return specs.cdrom(f"{directory}/{_CONFIG_DRIVE}", _SECOND_CDROM if second else None)

    def copy_config_drive(self, ref: Any) -> None:
        """Give a clone its own copy of the config drive; until then it uses the file of the original machine."""
        facts = self.facts(ref)
        for device in facts.devices:
            name = str(getattr(device.backing, "fileName", ""))
            if name.endswith(f"/{_CONFIG_DRIVE}") and name != f"{facts.directory}/{_CONFIG_DRIVE}":
                own = f"{facts.directory}/{_CONFIG_DRIVE}"
                self.vcenter.wait(self.vcenter.content.fileManager.CopyDatastoreFile_Task(
                    name, self.cluster.datacenter, own, self.cluster.datacenter, True))
                device.backing.fileName = own
                self.cluster.reconfigure(ref, vim.vm.ConfigSpec(deviceChange=[
                    vim.vm.device.VirtualDeviceSpec(operation="edit", device=device)]))

    # --- power and removal -------------------------------------------------------------------------
    def power_off(self, ref: Any) -> None:
        """Power the machine off. Succeeds if the machine is off."""
        try:
            self.vcenter.wait(ref.PowerOffVM_Task())
        except errors.VCenterFault as error:
            if not errors.is_power_state(error):
                raise

    def power_on(self, ref: Any) -> None:
        """Power the machine on, or resume it. Succeeds if the machine runs."""
        try:
            self.vcenter.wait(ref.PowerOnVM_Task(None))
        except errors.VCenterFault as error:
            if not errors.is_power_state(error):
                raise

    def change_disks(self, ref: Any, changes: list[Any], slots: specs.DiskSlots) -> None:
        """Change disks of a machine, and store the slots of all disks in its extraConfig."""
        self.cluster.reconfigure(ref, vim.vm.ConfigSpec(deviceChange=changes, extraConfig=[slots.stored()]))

    def remove_snapshots(self, ref: Any, name: str = "") -> bool:
        """Remove the snapshots of this name (default: all snapshots) of a machine; return True if there were any."""
        values = self.vcenter.get(ref, "snapshot")["snapshot"]
        waiting = list(values.rootSnapshotList) if values else []
        removed = False
        while waiting:
            tree = waiting.pop()
            waiting += tree.childSnapshotList or ()
            if name in ("", tree.name):
                self.vcenter.wait(tree.snapshot.RemoveSnapshot_Task(False))
                removed = True
        return removed

    def detach_foreign_disks(self, ref: Any) -> None:
        """Remove the volumes from a stopped machine, and keep their files. Removes snapshots first: a snapshot
        includes the volumes. Data since the snapshot would be lost, and the files deleted with the machine."""
        slots = self.facts(ref).slots
        if len(slots.devices) > len(specs.own_disks(slots.slots)) and self.remove_snapshots(ref):
            slots = self.facts(ref).slots
        names = specs.own_disks(slots.slots)
        own = {slots.slots[name] for name in names}
        changes = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
                   for slot, device in slots.devices.items() if slot not in own]
        if changes:
            slots.slots = {name: slots.slots[name] for name in names}
            self.change_disks(ref, changes, slots)

    def destroy(self, ref: Any) -> None:
        """Remove a machine and its files, but not its volumes. Succeeds if the machine does not exist."""
        try:
            self.power_off(ref)
            # Destroy_Task deletes the files of all disks of the machine.
            self.detach_foreign_disks(ref)
            directory = self.facts(ref).directory
            self.vcenter.wait(ref.Destroy_Task())
        except errors.VCenterFault as error:
            if not errors.is_missing(error):
                raise
            return
        try:
            self.vcenter.wait(self.vcenter.content.fileManager.DeleteDatastoreFile_Task(
                directory, self.cluster.datacenter))
        except errors.VCenterFault as error:
            if not error.is_a(vim.fault.FileNotFound):
                raise

    def destroy_derived(self, uuid: str, *kinds: str) -> None:
        """Remove the additional machines of these kinds of a server; see derived()."""
        for kind in kinds:
            machine = self.cluster.machine(derived(uuid, kind))
            if machine is not None:
                self.destroy(machine.ref)

    def find(self, uuid: str, kind: str = "") -> Machine | None:
        """Return the machine of a server, or (``kind``) its additional machine of this kind; None if missing."""
        return self.cluster.machine(derived(uuid, kind) if kind else uuid)
