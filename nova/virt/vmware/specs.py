"""Specifications of machines for vCenter, built from servers. Nothing here sends requests."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.conf import CONF
from nova.objects.requirements.hardware import hardware, required_traits
from nova.objects.requirements.properties import Properties, truth
from nova.objects.servers.instance import Instance
from nova.virt.vmware.cluster import EXTENSION

_device = vim.vm.device
TRAITS = frozenset({
    "COMPUTE_NODE", "OWNER_NOVA", "HW_ARCH_X86_64", "COMPUTE_ARCH_X86_64", "CUSTOM_COMPUTE_ARCH_I686",
    "COMPUTE_RESCUE_BFV", "COMPUTE_FIRMWARE_BIOS", "COMPUTE_FIRMWARE_UEFI", "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
    *(f"COMPUTE_STORAGE_BUS_{name}" for name in ("IDE", "SCSI")),
    *(f"COMPUTE_NET_VIF_MODEL_{name}" for name in ("E1000", "E1000E", "PCNET", "VMXNET", "VMXNET3")),
    *(f"CUSTOM_COMPUTE_SCSI_MODEL_{name}" for name in ("LSILOGIC", "LSISAS1068", "BUSLOGIC", "VMPVSCSI")),
    *(f"COMPUTE_IMAGE_TYPE_{name}" for name in ("AMI", "ISO", "QCOW2", "RAW", "VDI", "VHD", "VHDX", "VMDK"))})

# Value of vmware_adaptertype -> disk controller. _SCSI_MODELS: value of hw_scsi_model -> value of vmware_adaptertype.
_ADAPTERS = {"lsiLogic": _device.VirtualLsiLogicController, "busLogic": _device.VirtualBusLogicController,
             "lsiLogicsas": _device.VirtualLsiLogicSASController, "paraVirtual": _device.ParaVirtualSCSIController,
             "ide": None}
_SCSI_MODELS = {"lsilogic": "lsiLogic", "lsisas1068": "lsiLogicsas", "buslogic": "busLogic",
                "vmpvscsi": "paraVirtual"}
_NICS = {"e1000": _device.VirtualE1000, "e1000e": _device.VirtualE1000e, "pcnet": _device.VirtualPCNet32,
         "vmxnet": _device.VirtualVmxnet, "vmxnet3": _device.VirtualVmxnet3}
_LEGACY_NICS = {"VirtualE1000": "e1000", "VirtualE1000e": "e1000e", "VirtualPCNet32": "pcnet",
                "VirtualVmxnet": "vmxnet", "VirtualVmxnet3": "vmxnet3"}
_GUEST_IDS = frozenset(vim.vm.GuestOsDescriptor.GuestOsIdentifier.values)
# os_distro (without a version) -> guest id that all supported releases of vCenter have
_DISTRIBUTIONS = {"ubuntu": "ubuntu64Guest", "debian": "debian8_64Guest", "centos": "centos64Guest",
                  "rhel": "rhel7_64Guest", "sles": "sles12_64Guest", "fedora": "otherLinux64Guest",
                  "windows": "windows8Server64Guest", "freebsd": "freebsd64Guest"}
_BY_TYPE = {"linux": "otherLinux64Guest", "windows": "windows8Server64Guest"}
_LEVELS = ("low", "normal", "high", "custom")
# Extra specs of upstream's vmware driver that this driver refuses.
_REFUSED_SPECS = ("vmware:storage_policy", "quota:disk_io_limit", "quota:disk_io_reservation",
                  "quota:disk_io_shares_level", "quota:disk_io_shares_share", "quota:vif_limit",
                  "quota:vif_reservation", "quota:vif_shares_level", "quota:vif_shares_share")
# Key in extraConfig of the slots of the disks, see DiskSlots.
DISKS = "nova.disks"
# Temporary keys of new devices; vCenter replaces them.
_CONTROLLER, _FIRST_KEY, _CDROM = -101, -200, -150
SCSI_SLOTS, IDE_SLOTS = 16, 4
_RESERVED_UNIT = 7  # the unit number that the SCSI controller itself uses
_IDE_KEYS = (200, 201)  # keys of the two IDE controllers, which each machine has
_CDROM_SLOT = (201, 0)
_KIB = 1 << 10


# --- requests of images and flavors ------------------------------------------------------------------------
def check(instance: Instance) -> None:
    """Raise InvalidInput, which names the property, if the flavor or image requests an unsupported property."""
    existing = instance.launched_at is not None
    wanted = hardware(Properties.of(instance), existing=existing)
    missing = required_traits(instance.flavor, instance.image, existing=existing) - TRAITS
    refused = next((name for name in _REFUSED_SPECS if name in instance.flavor.extra_specs), "")
    for applies, reason in (
            (bool(instance.kernel_id), "the image has a kernel (kernel_id), and this hypervisor boots from disks only"),
            (wanted.vm_mode not in ("", "hvm"), f"hw_vm_mode={wanted.vm_mode} is not supported by this hypervisor"),
            (wanted.hypervisor not in ("", "vmware"),
             f"img_hv_type={wanted.hypervisor} is not supported by this hypervisor"),
            (wanted.architecture not in ("", "x86_64", "i686"),
             f"hw_architecture={wanted.architecture} is not supported by this hypervisor"),
            (bool(instance.pci_devices), "devices of the host cannot be assigned to guests by this hypervisor"),
            (bool(instance.usable_shares), "shares are not supported by this hypervisor"),
            (bool(refused), f"{refused} is not supported by this hypervisor"),
            (bool(missing), f"the flavor or image requires {', '.join(sorted(missing))}")):
        if applies:
            raise exception.InvalidInput(reason=reason)
    adapter(instance)
    nic_model(instance)
    guest_id(instance)
    is_linked(instance)
    allocation(instance, "cpu")
    allocation(instance, "memory")


def adapter(instance: Instance) -> str:
    """Return the type of the disk controller, one of _ADAPTERS. Raises InvalidInput."""
    image = Properties.of(instance).image
    value = image.get("vmware_adaptertype")
    if value is not None and value not in _ADAPTERS:
        raise exception.InvalidInput(reason=f"vmware_adaptertype={value} is not one of {', '.join(_ADAPTERS)}")
    if value is None and image.get("hw_disk_bus") == "ide":
        value = "ide"
    return value or _SCSI_MODELS.get(image.get("hw_scsi_model", ""), "lsiLogic")


def nic_model(instance: Instance) -> type:
    """Return the class of network cards. Raises InvalidInput."""
    value = Properties.of(instance).image.get("hw_vif_model") or "e1000"
    model = _NICS.get(_LEGACY_NICS.get(value, value))
    if model is None:
        raise exception.InvalidInput(reason=f"hw_vif_model={value} is not supported by this hypervisor")
    return model


def guest_id(instance: Instance) -> str:
    """Return vSphere's id of the guest's operating system: vmware_ostype, or os_distro if it is such an id, or the id
    for the names in os_distro and os_type. Raises InvalidInput for an unknown vmware_ostype."""
    wishes = Properties.of(instance)
    image = wishes.image
    value = image.get("vmware_ostype")
    if value is not None and value not in _GUEST_IDS:
        raise exception.InvalidInput(reason=f"vmware_ostype={value} is not an operating system of vSphere")
    distribution = image.get("os_distro", "")
    if value is None and distribution in _GUEST_IDS:
        value = distribution
    if value is not None:
        return value
    if hardware(wishes, existing=True).architecture == "i686":
        return "otherLinuxGuest" if image.get("os_type") == "linux" else "otherGuest"
    return _DISTRIBUTIONS.get(distribution.rstrip("0123456789.")) or _BY_TYPE.get(image.get("os_type", ""),
                                                                                   "otherGuest64")


def is_linked(instance: Instance) -> bool:
    """Return True if the root disk is a linked clone."""
    image = Properties.of(instance).image
    return truth("img_linked_clone", image.get("img_linked_clone", image.get("vmware_linked_clone")),
                 CONF.vmware.use_linked_clone)


def allocation(instance: Instance, kind: str) -> vim.ResourceAllocationInfo | None:
    """Return limit, reservation and shares of "cpu" (MHz) or "memory" (MiB) of the flavor, or None. Raises
    InvalidInput."""
    wishes = Properties.of(instance)
    limit, reservation = (wishes.spec_number(f"quota:{kind}_{name}") for name in ("limit", "reservation"))
    level, share = wishes.specs.get(f"quota:{kind}_shares_level"), wishes.spec_number(f"quota:{kind}_shares_share")
    if level is not None and level not in _LEVELS:
        raise exception.InvalidInput(reason=f"quota:{kind}_shares_level={level} is not one of {', '.join(_LEVELS)}")
    if level == "custom" and share is None:
        raise exception.InvalidInput(reason=f"quota:{kind}_shares_level=custom needs quota:{kind}_shares_share")
    if limit is None and reservation is None and level is None:
        return None
    shares = vim.SharesInfo(level=level, shares=share if level == "custom" else 0) if level else None
    return vim.ResourceAllocationInfo(limit=limit, reservation=reservation, shares=shares)


# --- machines ------------------------------------------------------------------------------------------------
def owner(kind: str) -> vim.ext.ManagedByInfo:
    return vim.ext.ManagedByInfo(extensionKey=EXTENSION, type=kind)


def new_machine(instance: Instance, datastore: str, kind: str) -> vim.vm.ConfigSpec:
    """Return the specification of a machine without disks and interfaces."""
    changes, kind_of_adapter = [], _ADAPTERS[adapter(instance)]
    if kind_of_adapter is not None:
        changes.append(_add(kind_of_adapter(key=_CONTROLLER, busNumber=0, sharedBus="noSharing")))
    if CONF.vmware.serial_port_service_uri:
        backing = _device.VirtualSerialPort.URIBackingInfo(
            serviceURI=CONF.vmware.serial_port_service_uri, direction="client",
            proxyURI=CONF.vmware.serial_port_proxy_uri)
        changes.append(_add(_device.VirtualSerialPort(key=_FIRST_KEY, backing=backing, yieldOnPoll=True)))
    spec = sized(instance)
    spec.name = spec.instanceUuid = instance.uuid
    spec.guestId, spec.version = guest_id(instance), instance.flavor.extra_specs.get("vmware:hw_version")
    spec.files = vim.vm.FileInfo(vmPathName=f"[{datastore}]")
    spec.managedBy, spec.deviceChange = owner(kind), changes
    wanted = hardware(Properties.of(instance), existing=True)
    if wanted.firmware == "uefi":
        spec.firmware = "efi"
    if wanted.secure_boot_wish == "required":
        spec.bootOptions = vim.vm.BootOptions(efiSecureBootEnabled=True)
    return spec


def sized(instance: Instance) -> vim.vm.ConfigSpec:
    """Return the part of the specification that depends on the flavor and the names of the server."""
    flavor = instance.flavor
    topology = hardware(Properties.of(instance), existing=True).topology
    lines = {"name": instance.display_name, "userid": instance.user_id, "projectid": instance.project_id,
             "imageid": instance.image_ref, "flavor:name": flavor.name, "flavor:vcpus": flavor.vcpus,
             "flavor:memory_mb": flavor.memory_mb, "flavor:root_gb": flavor.root_gb}
    return vim.vm.ConfigSpec(
        numCPUs=flavor.vcpus, memoryMB=flavor.memory_mb, numCoresPerSocket=topology.cores if topology else None,
        cpuAllocation=allocation(instance, "cpu"), memoryAllocation=allocation(instance, "memory"),
        annotation="\n".join(f"{name}:{value}" for name, value in lines.items()),
        extraConfig=[option("nvp.vm-uuid", instance.uuid)])


def option(key: str, value: str) -> vim.option.OptionValue:
    return vim.option.OptionValue(key=key, value=value)


def vnc(port: int) -> list[vim.option.OptionValue]:
    return [option("RemoteDisplay.vnc.enabled", "TRUE"), option("RemoteDisplay.vnc.port", str(port)),
            option("RemoteDisplay.vnc.keyMap", CONF.vmware.vnc_keymap)]


def _is_disk(device: Any) -> bool:
    return isinstance(device, _device.VirtualDisk)


# --- disks -----------------------------------------------------------------------------------------------------
class DiskSlots:
    """The slots of a machine's disks, by name ("root", "swap", "ephemeral0", "rescue" or a volume id). A slot is (key
    of the controller, unit). Stored in extraConfig, since file names cannot identify disks: snapshots change them."""

    def __init__(self, devices: Sequence[Any], extra_config: Mapping[str, str]) -> None:
        self.devices: dict[tuple[int, int], Any] = {
            (device.controllerKey, device.unitNumber): device for device in filter(_is_disk, devices)}
        stored = {name: tuple(slot) for name, slot in json.loads(extra_config.get(DISKS) or "{}").items()}
        # Ignore slots without a device: an operator has removed the disk in vCenter.
        self.slots: dict[str, tuple[int, int]] = {name: slot for name, slot in stored.items() if slot in self.devices}
        scsi = [device for device in devices if isinstance(device, _device.VirtualSCSIController)]
        taken = {(device.controllerKey, device.unitNumber) for device in devices}
        places = ([(scsi[0].key, unit) for unit in range(SCSI_SLOTS) if unit != _RESERVED_UNIT] if scsi else
                  [(key, unit) for key in _IDE_KEYS for unit in range(2) if (key, unit) != _CDROM_SLOT])
        self._free = [place for place in places if place not in taken]

    def device(self, name: str) -> Any:
        """Return the device of a disk, or None."""
        return self.devices.get(self.slots.get(name, (0, -1)))

    def add(self, name: str, backing: Any, size: int = 0, create: bool = False) -> vim.vm.device.VirtualDeviceSpec:
        """Return the change that adds a disk in the next free slot. ``create``: create the file, of ``size`` bytes.
        Raises DeviceAttachFailed if all slots are used."""
        if not self._free:
            raise exception.DeviceAttachFailed(device=f"disk {name}", reason="the guest has no free slot for a disk")
        controller, unit = self.slots[name] = self._free.pop(0)
        disk = _device.VirtualDisk(key=_FIRST_KEY - len(self.slots), controllerKey=controller, unitNumber=unit,
                                   backing=backing, capacityInKB=-(-size // _KIB))
        return _add(disk, "create" if create else None)

    def remove(self, name: str, destroy: bool = False) -> list[vim.vm.device.VirtualDeviceSpec]:
        """Return the change that removes a disk, empty if there is no such disk. ``destroy``: delete its files, too."""
        device = self.device(name)
        slot = self.slots.pop(name, None)
        if device is None or slot is None:
            return []
        self._free.insert(0, slot)
        return [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device,
                                                fileOperation="destroy" if destroy else None)]

    def reserve_first(self) -> None:
        """Keep the first free slot, from which the guest boots, free for the root volume of a later change."""
        self._free = self._free[1:]

    def stored(self) -> vim.option.OptionValue:
        return option(DISKS, json.dumps(self.slots))


def own_disks(names: Iterable[str]) -> list[str]:
    """Return the names of disks that are not volumes."""
    return [name for name in names if name in ("root", "swap", "rescue") or name.startswith("ephemeral")]


def file_backing(name: str, parent: str = "", thin: bool = True) -> Any:
    """Return the backing of a disk by a file. ``parent``: the file of which the disk is a linked clone."""
    flat = _device.VirtualDisk.FlatVer2BackingInfo
    above = flat(fileName=parent, diskMode="persistent") if parent else None
    return flat(fileName=name, diskMode="persistent", parent=above, thinProvisioned=None if parent else thin)


def cdrom(path: str, slot: tuple[int, int] | None = None) -> vim.vm.device.VirtualDeviceSpec:
    """Return the change that adds a CD-ROM with the file."""
    controller, unit = slot or _CDROM_SLOT
    return _add(_device.VirtualCdrom(
        key=_CDROM - bool(slot), controllerKey=controller, unitNumber=unit,
        backing=_device.VirtualCdrom.IsoBackingInfo(fileName=path),
        connectable=_device.VirtualDevice.ConnectInfo(startConnected=True, connected=True, allowGuestControl=True)))


def nic(instance: Instance, mac: str, backing: Any, number: int = 0) -> vim.vm.device.VirtualDeviceSpec:
    """Return the change that adds an interface."""
    return _add(nic_model(instance)(
        key=_FIRST_KEY - SCSI_SLOTS - 1 - number, addressType="manual", macAddress=mac, wakeOnLanEnabled=True,
        backing=backing, connectable=_device.VirtualDevice.ConnectInfo(startConnected=True, connected=True,
                                                                       allowGuestControl=True)))


def _add(device: Any, file_operation: str | None = None) -> vim.vm.device.VirtualDeviceSpec:
    return vim.vm.device.VirtualDeviceSpec(operation="add", device=device, fileOperation=file_operation)
