"""Specifications of machines for vCenter, built from servers."""

import msgspec
import pytest
from pyVmomi import vim

from nova import exception
from nova.conf import CONF, register
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance
from nova.virt.vmware import specs

DEVICE = vim.vm.device


@pytest.fixture(autouse=True)
def _options():
    register(CONF)


def server(specs_=None, **properties):
    disk_format = properties.pop("disk_format", "qcow2")
    return Instance(
        id=1, uuid="5e6c1a0e-0000-4000-8000-000000000001", project_id="p", user_id="u", display_name="web",
        hostname="web", created_at=utcnow(), image_ref="i",
        image=Image(id="i", disk_format=disk_format, properties=properties),
        flavor=Flavor(flavorid="1", name="small", memory_mb=512, vcpus=2, root_gb=1, extra_specs=specs_ or {}))


@pytest.mark.parametrize(("properties", "expected"), [
    ({}, "otherGuest64"),
    ({"os_type": "linux"}, "otherLinux64Guest"),
    ({"os_type": "windows"}, "windows8Server64Guest"),
    ({"os_distro": "ubuntu22.04"}, "ubuntu64Guest"),
    ({"os_distro": "debian9_64Guest"}, "debian9_64Guest"),
    ({"os_distro": "ubuntu", "vmware_ostype": "centos64Guest"}, "centos64Guest"),
    ({"os_distro": "ubuntu", "hw_architecture": "i686"}, "otherGuest"),
    ({"hw_architecture": "i686", "os_type": "linux"}, "otherLinuxGuest"),
])
def test_guest_id_follows_the_image(properties, expected):
    assert specs.new_machine(server(**properties), "ds", "instance").guestId == expected


@pytest.mark.parametrize(("properties", "expected", "slot"), [
    ({}, DEVICE.VirtualLsiLogicController, 0),
    ({"hw_scsi_model": "vmpvscsi"}, DEVICE.ParaVirtualSCSIController, 0),
    ({"hw_scsi_model": "lsisas1068"}, DEVICE.VirtualLsiLogicSASController, 0),
    ({"hw_scsi_model": "vmpvscsi", "vmware_adaptertype": "busLogic"}, DEVICE.VirtualBusLogicController, 0),
    ({"vmware_adaptertype": "ide"}, None, 200),
    ({"hw_disk_bus": "ide"}, None, 200),
])
def test_controller_of_disks_follows_the_image(properties, expected, slot):
    instance = server(**properties)
    controllers = [change.device for change in specs.new_machine(instance, "ds", "instance").deviceChange]
    assert [type(device) for device in controllers] == ([expected] if expected else [])
    for device in controllers:
        device.key = 0
    slots = specs.DiskSlots([*controllers, *(DEVICE.VirtualIDEController(key=key) for key in (200, 201))], {})
    change = slots.add("root", specs.file_backing("[ds] root.vmdk"), 1 << 30, create=True)
    assert (change.device.controllerKey, change.device.unitNumber, change.device.capacityInKB) == (slot, 0, 1 << 20)
    assert change.fileOperation == "create"


@pytest.mark.parametrize(("model", "expected"), [
    (None, DEVICE.VirtualE1000), ("vmxnet3", DEVICE.VirtualVmxnet3), ("e1000e", DEVICE.VirtualE1000e),
    ("pcnet", DEVICE.VirtualPCNet32), ("vmxnet", DEVICE.VirtualVmxnet)])
def test_model_of_network_cards_follows_the_image(model, expected):
    instance = server(**({"hw_vif_model": model} if model else {}))
    card = specs.nic(instance, "fa:16:3e:00:00:01", None).device
    assert type(card) is expected
    assert (card.macAddress, card.addressType) == ("fa:16:3e:00:00:01", "manual")


@pytest.mark.parametrize(("instance", "named"), [
    (server(hw_vif_model="virtio"), "VIRTIO"),
    (server(vmware_adaptertype="nvme"), "vmware_adaptertype"),
    (server(vmware_ostype="beos"), "vmware_ostype"),
    (server(hw_disk_bus="virtio"), "VIRTIO"),
    (server(hw_architecture="aarch64"), "hw_architecture"),
    (server(img_hv_type="kvm"), "img_hv_type"),
    (server(hw_vm_mode="xen"), "hw_vm_mode"),
    (server({"vmware:storage_policy": "gold"}), "vmware:storage_policy"),
    (server({"quota:vif_limit": "10"}), "quota:vif_limit"),
    (server({"quota:cpu_shares_level": "custom"}), "quota:cpu_shares_share"),
    (server({"quota:memory_shares_level": "best"}), "quota:memory_shares_level"),
    (server({"quota:cpu_limit": "much"}), "quota:cpu_limit"),
    (msgspec.structs.replace(server(), kernel_id="k"), "kernel_id"),
])
def test_unsupported_hardware_is_refused_by_name(instance, named):
    with pytest.raises(exception.InvalidInput, match=named):
        specs.check(instance)


def test_machine_has_the_size_and_the_limits_of_the_flavor():
    spec = specs.new_machine(server({
        "quota:cpu_limit": "1000", "quota:cpu_reservation": "500", "quota:memory_shares_level": "custom",
        "quota:memory_shares_share": "20", "vmware:hw_version": "vmx-13", "hw:cpu_cores": "2"},
        hw_firmware_type="uefi", os_secure_boot="required"), "ds", "instance")
    assert (spec.numCPUs, spec.memoryMB, spec.numCoresPerSocket, spec.version) == (2, 512, 2, "vmx-13")
    assert (spec.cpuAllocation.limit, spec.cpuAllocation.reservation, spec.cpuAllocation.shares) == (1000, 500, None)
    assert (spec.memoryAllocation.shares.level, spec.memoryAllocation.shares.shares) == ("custom", 20)
    assert (spec.firmware, spec.bootOptions.efiSecureBootEnabled) == ("efi", True)
    assert (spec.name, spec.instanceUuid) == ("5e6c1a0e-0000-4000-8000-000000000001",) * 2
    assert (spec.managedBy.extensionKey, spec.managedBy.type) == ("org.openstack.compute", "instance")
    assert "name:web" in spec.annotation.split("\n")
    plain = specs.new_machine(server(), "ds", "instance")
    assert (plain.cpuAllocation, plain.memoryAllocation, plain.firmware, plain.version) == (None, None, None, None)


def test_serial_port_is_connected_to_the_concentrator():
    CONF.set_override("serial_port_service_uri", "vspc", "vmware")
    CONF.set_override("serial_port_proxy_uri", "telnets://10.0.0.1:13370", "vmware")
    try:
        changes = specs.new_machine(server(), "ds", "instance").deviceChange
    finally:
        CONF.clear_override("serial_port_service_uri", "vmware")
        CONF.clear_override("serial_port_proxy_uri", "vmware")
    port, = (change.device for change in changes if isinstance(change.device, DEVICE.VirtualSerialPort))
    assert (port.backing.serviceURI, port.backing.proxyURI) == ("vspc", "telnets://10.0.0.1:13370")


def test_disk_slots_survive_and_skip_the_place_of_the_controller():
    controller = DEVICE.VirtualLsiLogicController(key=1000, busNumber=0)
    slots = specs.DiskSlots([controller], {})
    slots.reserve_first()
    changes = [slots.add(f"volume{number}", specs.file_backing("[ds] v.vmdk")) for number in range(14)]
    assert [change.device.unitNumber for change in changes] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]
    with pytest.raises(exception.DeviceAttachFailed):
        slots.add("another", specs.file_backing("[ds] v.vmdk"))
    again = specs.DiskSlots([controller, *(change.device for change in changes)], {specs.DISKS: slots.stored().value})
    assert again.slots == slots.slots
    removal, = again.remove("volume3")
    assert removal.device is changes[3].device
    assert (removal.operation, removal.fileOperation) == ("remove", None)
    assert again.remove("volume3") == []
    # The first place is free again for the next disk.
    assert again.add("root volume", specs.file_backing("[ds] r.vmdk")).device.unitNumber == 4


def test_disks_that_an_operator_removed_are_forgotten():
    controller = DEVICE.VirtualLsiLogicController(key=1000, busNumber=0)
    slots = specs.DiskSlots([controller], {specs.DISKS: '{"root": [1000, 0]}'})
    assert slots.slots == {}
    assert slots.device("root") is None
    assert slots.remove("root") == []


@pytest.mark.parametrize(("linked", "properties", "expected"), [
    (True, {}, True), (False, {}, False), (True, {"vmware_linked_clone": "false"}, False),
    (False, {"img_linked_clone": "yes"}, True)])
def test_image_overrides_the_kind_of_root_disks(linked, properties, expected):
    CONF.set_override("use_linked_clone", linked, "vmware")
    try:
        assert specs.is_linked(server(**properties)) is expected
    finally:
        CONF.clear_override("use_linked_clone", "vmware")
