"""Virtual hardware of real guests: guests get the requested devices, and hosts report what their QEMU supports."""

from __future__ import annotations

import collections
import os
import pathlib
import subprocess
import types
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.requirements.hardware_values import BANDWIDTH_LIMITS, CHOICES
from nova.objects.requirements.requested_resources import requested_resources
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.xml.guest_platforms import FOREIGN
from tests.integration.guest_shell import GuestShell
from tests.integration.libvirt_fixtures import (
    PrivateLibvirt,
    kernel_disks,
    needs_libvirt,
    server,
    small_disks,
    wait_for_console,
)

pytestmark = needs_libvirt
LOGIN = b"login:"

# Writes the string after it to the serial port and boots the next device (INT 18h), as the "boot from local disk" entry
# of an installer does.
_NEXT_DEVICE = bytes.fromhex("fc0e1f e80000 5e 83c611 ac 84c0 7406 baf803 ee ebf5 cd18")
_HELLO = b"from the CD to the local disk\r\n"


def boot(driver: Any, instance: Any, disks: BootFiles, paused: bool = False) -> None:
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks, paused)


def domain(daemon: PrivateLibvirt, instance: Any) -> ET.Element:
    return ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid))


@pytest.fixture(name="installer")
def installer_fixture(state: pathlib.Path) -> pathlib.Path:
    """Create an ISO image that boots the next device."""
    tree = state / "iso"
    tree.mkdir()
    (tree / "boot.bin").write_bytes((_NEXT_DEVICE + _HELLO + b"\0").ljust(2048, b"\0"))
    image = state / "installer.iso"
    subprocess.run(["genisoimage", "-quiet", "-o", str(image), "-b", "boot.bin", "-no-emul-boot", "-boot-load-size",
                    "4", str(tree)], check=True, timeout=60)
    image.chmod(0o644)
    return image


def test_installer_image_boots_the_next_volume(driver: Any, guest_image: pathlib.Path, installer: pathlib.Path,
                                               state: pathlib.Path, libvirt_daemon: PrivateLibvirt) -> None:
    volume = state / "volume.qcow2"
    subprocess.run(["cp", str(guest_image / "nova-guest.qcow2"), str(volume)], check=True, timeout=60)
    connection = VolumeConnection(volume_id="v", path=str(volume), serial="v", format="qcow2")
    instance = server(disk_format="iso", block_devices=[
        BlockDevice(source="volume", destination="volume", volume_id="v", boot_index=1, connection=connection)])
    boot(driver, instance, BootFiles(root=str(installer), root_format="raw"))
    log = wait_for_console(driver, instance, LOGIN)
    assert _HELLO.strip() in log, "the CD was not booted first"
    orders = {disk.get("device"): disk.find("boot").get("order")
              for disk in domain(libvirt_daemon, instance).findall("devices/disk")}
    assert orders == {"cdrom": "1", "disk": "2"}


def test_i686_image_starts_a_32_bit_guest(driver: Any, guest_image: pathlib.Path,
                                          libvirt_daemon: PrivateLibvirt) -> None:
    # The image has a 64-bit kernel, which reports the detected CPU early.
    instance = server({"hw_architecture": "i386", "os_command_line": "earlyprintk=serial,ttyS0"})
    assert set(requested_resources(instance.flavor, instance.image).required) <= set(
        driver.nodes()[0].provider.traits)
    boot(driver, instance, kernel_disks(guest_image))
    root = domain(libvirt_daemon, instance)
    assert root.find("os/type").get("arch") == "i686"
    assert os.path.basename(root.findtext("devices/emulator")) == "qemu-system-i386"
    wait_for_console(driver, instance, b"requires an x86-64 CPU, but only detected an i686 CPU")


def test_architecture_without_qemu_has_no_trait_and_is_refused(driver: Any, guest_image: pathlib.Path) -> None:
    node, instance = driver.nodes()[0], server({"hw_architecture": "sh4"})
    assert "CUSTOM_COMPUTE_ARCH_SH4" in requested_resources(instance.flavor, instance.image).required
    assert "CUSTOM_COMPUTE_ARCH_SH4" not in node.provider.traits
    assert all(architecture in FOREIGN for architecture, _kind, _mode in node.supported_instances)
    for properties in ({"hw_architecture": "sh4"}, {"hw_vm_mode": "xen"}, {"img_hv_type": "vmware"}):
        with pytest.raises(exception.InvalidInput, match=next(iter(properties))):
            driver.guests.config(server(properties))


def test_guest_with_packed_rings_and_hidden_hypervisor_runs(driver: Any, guest_image: pathlib.Path,
                                                            libvirt_daemon: PrivateLibvirt) -> None:
    instance = server({"hw_virtio_packed_ring": "true", "img_hide_hypervisor_id": "true", "hw_input_bus": "virtio"})
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    root = domain(libvirt_daemon, instance)
    assert root.find("devices/disk/driver").get("packed") == "on"
    assert {item.get("type") for item in root.findall("devices/input[@bus='virtio']")} == {"tablet", "keyboard"}
    host = types.SimpleNamespace(virsh=lambda *words: libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, *words))
    with GuestShell(host, instance.uuid) as shell:  # type: ignore[arg-type]
        assert "hypervisor" not in shell.run("grep ^flags /proc/cpuinfo").split()
        # feature 34 of virtio devices: packed rings
        assert shell.run("cut -c35 /sys/block/vda/device/features").strip() == "1"


def test_bandwidth_trait_matches_support_of_interface_limits(driver: Any, guest_image: pathlib.Path,
                                                             libvirt_daemon: PrivateLibvirt) -> None:
    libvirt_daemon.run("ip", "link", "add", "br-rates", "type", "bridge")
    vif = VIF(id="v", network_id="n", label="l", mac="fa:16:3e:11:22:55", bridge="br-rates", devname="tap-rates")
    instance = server({}, {"quota:vif_inbound_average": "1000", "quota:vif_outbound_average": "1000"},
                      network_info=[vif])
    if BANDWIDTH_LIMITS in driver.nodes()[0].provider.traits:
        boot(driver, instance, small_disks(guest_image), paused=True)
        assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    else:
        with pytest.raises(Exception, match="tc"):
            boot(driver, instance, small_disks(guest_image), paused=True)
    libvirt_daemon.run("ip", "link", "del", "br-rates")


# Further properties that a property needs to take effect. Rescue properties have separate tests.
_BESIDE = {"hw_scsi_model": {"hw_disk_bus": "scsi"}}


@pytest.mark.slow
def test_guest_starts_with_every_supported_property_value(driver: Any, guest_image: pathlib.Path,
                                                          libvirt_daemon: PrivateLibvirt) -> None:
    """Over a hundred guests, each started paused."""
    have = set(driver.nodes()[0].provider.traits)
    covered = collections.Counter()
    libvirt_daemon.run("ip", "link", "add", "br-values", "type", "bridge")
    failed = []
    machines = [(("hw_machine_type", value), {}) for value in ("pc", "q35", "pc-q35-7.2", "pc-i440fx-7.2", "virt")]
    values = [((choice.name, value), _BESIDE.get(choice.name, {})) for choice in CHOICES for value in choice.values
              if not choice.name.startswith("hw_rescue")]
    for (name, value), beside in [*machines, *values]:
        number = sum(covered.values())
        vif = VIF(id="v", network_id="n", label="l", mac=f"fa:16:3e:33:{number >> 8:02x}:{number & 255:02x}",
                  bridge="br-values", devname=f"tap-v{number}")
        instance = server({name: value, **beside}, network_info=[vif])
        try:
            asked = requested_resources(instance.flavor, instance.image)
        except exception.InvalidInput:
            covered["refused"] += 1
            continue
        if set(asked.required) - have or asked.resources.keys() - {"VCPU", "MEMORY_MB", "DISK_GB"}:
            covered["kept away"] += 1
            continue
        try:
            boot(driver, instance, small_disks(guest_image), paused=True)
            covered["started"] += 1
        except exception.InvalidInput as error:
            covered["kept away" if name in ("hw_vm_mode", "img_hv_type") else "failed"] += 1
            if name not in ("hw_vm_mode", "img_hv_type"):
                failed.append(f"{name}={value}: {error}")
        except Exception as error:
            failed.append(f"{name}={value}: {error}")
        driver.guests.destroy(instance)
    libvirt_daemon.run("ip", "link", "del", "br-values")
    print(dict(covered))
    assert failed == []
    assert covered["started"] > 50
