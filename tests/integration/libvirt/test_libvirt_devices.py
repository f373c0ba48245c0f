"""Attach and detach volumes and interfaces of running and stopped guests."""

from __future__ import annotations

import os
import pathlib
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images import qemuimg
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


def boot(driver: Any, instance: Any, disks: BootFiles) -> None:
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)


@pytest.fixture(autouse=True)
def short_patience(state: pathlib.Path) -> Any:
    CONF.set_override("device_detach_attempts", 2, "libvirt")
    CONF.set_override("device_detach_timeout", 15, "libvirt")
    yield
    CONF.clear_override("device_detach_attempts", "libvirt")
    CONF.clear_override("device_detach_timeout", "libvirt")


@pytest.fixture(name="volume")
def volume_fixture(state: pathlib.Path) -> Any:
    """Return a function that creates connected volumes of 64 MiB."""
    def make(number: int, name: str | None = None, **fields: Any) -> BlockDevice:
        path = state / f"volume-{number}"
        if not path.exists():
            subprocess.run(["qemu-img", "create", "-q", "-f", "raw", str(path), "64M"], check=True, timeout=60)
        connection = VolumeConnection(volume_id=f"volume-{number}", path=str(path), serial=f"volume-{number}")
        return BlockDevice(source="volume", destination="volume", volume_id=f"volume-{number}", device_name=name,
                           connection=connection, **fields)

    return make


def domain(daemon: PrivateLibvirt, instance: Any, *options: str) -> ET.Element:
    return ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid, *options))


def disks_of(root: ET.Element) -> dict[str, str]:
    return {disk.find("target").get("dev"): os.path.basename(disk.find("source").get("file"))
            for disk in root.findall("devices/disk")}


def addresses(root: ET.Element) -> dict[str, str]:
    """Return the addresses of disks and interfaces by device name or MAC address."""
    found = {}
    for item in root.findall("devices/disk") + root.findall("devices/interface"):
        name = item.find("target").get("dev") if item.tag == "disk" else item.find("mac").get("address")
        found[name] = str(sorted(item.find("address").attrib.items()))
    return found


@pytest.mark.parametrize("machine", [pytest.param("pc", marks=pytest.mark.slow), "q35"])
def test_volumes_are_attached_and_detached_while_the_guest_runs(driver: Any, guest_image: pathlib.Path, volume: Any,
                                                                machine: str, libvirt_daemon: PrivateLibvirt) -> None:
    instance = server({"hw_machine_type": machine})
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    first, second = volume(1, "/dev/vdc"), volume(2)
    for _ in range(2):
        driver.volumes.attach(instance, first)
        driver.volumes.attach(instance, second)
    wait_for_console(driver, instance, b"131072 512-byte logical blocks", 2, seconds=60)
    running, defined = domain(libvirt_daemon, instance), domain(libvirt_daemon, instance, "--inactive")
    assert disks_of(running) == disks_of(defined) == {"vda": "disk", "vdc": "volume-1", "vdb": "volume-2"}
    assert addresses(running) == addresses(defined)

    instance.block_devices = [first, second]
    driver.power.reboot(instance, hard=True)
    assert addresses(domain(libvirt_daemon, instance)) == addresses(running), "addresses changed with a power cycle"
    wait_for_console(driver, instance, LOGIN, 2)

    for _ in range(2):
        driver.volumes.detach(instance, second)
    assert disks_of(domain(libvirt_daemon, instance)) == {"vda": "disk", "vdc": "volume-1"}
    assert disks_of(domain(libvirt_daemon, instance, "--inactive")) == {"vda": "disk", "vdc": "volume-1"}
    instance.block_devices = [BlockDevice(source="volume", destination="volume", volume_id="volume-1",
                                          device_name="/dev/vdc")]
    driver.power.reboot(instance, hard=True)
    after = addresses(domain(libvirt_daemon, instance))
    assert after == {name: where for name, where in addresses(running).items() if name in after}
    assert set(after) == {"vda", "vdc"}, "a reboot without the connection of the volume did not reuse the existing one"


def test_volume_with_a_snapshot_uses_the_given_backing_chain(
        driver: Any, guest_image: pathlib.Path, volume: Any, libvirt_daemon: PrivateLibvirt,
        state: pathlib.Path) -> None:
    """Clients of the share may change the backing file name in the header after it was checked."""
    device = volume(1, "/dev/vdb")
    first, newest = device.connection.path, str(state / "volume-1.snapshot")
    qemuimg.create_overlay(newest, first, "raw", 64 << 20)
    qemuimg.rebase(newest, "/nonexistent/secret", "raw")
    device.connection.path, device.connection.format, device.connection.below = newest, "qcow2", [(first, "raw")]
    instance = server()
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    driver.volumes.attach(instance, device)
    wait_for_console(driver, instance, b"131072 512-byte logical blocks", seconds=60)
    attached = domain(libvirt_daemon, instance).findall("devices/disk")[1]
    assert [source.get("file") for source in attached.iter("source")] == [newest, first]
    driver.volumes.detach(instance, device)
    assert disks_of(domain(libvirt_daemon, instance)) == {"vda": "disk"}


def test_volumes_are_attached_and_detached_while_the_guest_is_off(driver: Any, guest_image: pathlib.Path, volume: Any,
                                                                  libvirt_daemon: PrivateLibvirt) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    driver.power.off(instance)
    driver.volumes.attach(instance, volume(1))
    assert disks_of(domain(libvirt_daemon, instance)) == {"vda": "disk", "vdb": "volume-1"}
    driver.volumes.detach(instance, volume(1))
    assert disks_of(domain(libvirt_daemon, instance)) == {"vda": "disk"}
    assert driver.guests.power_state(instance.uuid) == states.SHUTDOWN


def test_interfaces_are_attached_and_detached(driver: Any, guest_image: pathlib.Path,
                                              libvirt_daemon: PrivateLibvirt) -> None:
    libvirt_daemon.run("ip", "link", "add", "br-plug", "type", "bridge")
    instance = server()
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    vif = VIF(id="v", network_id="n", label="l", mac="fa:16:3e:11:22:44", bridge="br-plug", devname="tapplug", mtu=1400)
    for _ in range(2):
        driver.interfaces.attach(instance, vif)
    assert "master br-plug" in libvirt_daemon.run("ip", "link", "show", "tapplug")
    before = addresses(domain(libvirt_daemon, instance))
    assert before == addresses(domain(libvirt_daemon, instance, "--inactive"))
    instance.network_info = [vif]
    driver.power.reboot(instance, hard=True)
    assert addresses(domain(libvirt_daemon, instance)) == before
    wait_for_console(driver, instance, LOGIN, 2)
    for _ in range(2):
        driver.interfaces.detach(instance, vif)
    assert "tapplug" not in libvirt_daemon.run("ip", "link")
    assert set(addresses(domain(libvirt_daemon, instance, "--inactive"))) == {"vda"}


def test_ignored_detach_request_raises_and_can_be_repeated(driver: Any, guest_image: pathlib.Path, volume: Any,
                                                           libvirt_daemon: PrivateLibvirt) -> None:
    CONF.set_override("device_detach_timeout", 1, "libvirt")
    instance = server(block_devices=[volume(1)])
    boot(driver, instance, kernel_disks(guest_image))
    driver.power.pause(instance)
    with pytest.raises(exception.DeviceDetachFailed, match=r"volume-1.*ignored 2 requests"):
        driver.volumes.detach(instance, volume(1))
    assert "vdb" in disks_of(domain(libvirt_daemon, instance, "--inactive")), "the device is undefined"
    driver.power.unpause(instance)
    CONF.set_override("device_detach_timeout", 60, "libvirt")
    driver.volumes.detach(instance, volume(1))
    assert disks_of(domain(libvirt_daemon, instance)) == {"vda": "disk"}


def test_attaching_an_unusable_volume_fails(driver: Any, guest_image: pathlib.Path, volume: Any,
                                            state: pathlib.Path) -> None:
    instance = server()
    with pytest.raises(exception.GuestNotFound):
        driver.volumes.attach(instance, volume(1))
    driver.volumes.detach(instance, volume(1))
    boot(driver, instance, small_disks(guest_image))
    missing = volume(9)
    (state / "volume-9").unlink()
    with pytest.raises(exception.NovaException, match="volume-9"):
        driver.volumes.attach(instance, missing)
    missing.connection = None
    with pytest.raises(exception.InvalidDiskInfo, match="not connected"):
        driver.volumes.attach(instance, missing)


def test_server_boots_from_a_volume(driver: Any, guest_image: pathlib.Path, state: pathlib.Path) -> None:
    path = state / "root.qcow2"
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", str(guest_image / "nova-guest.qcow2"),
                    str(path)], check=True, timeout=60)
    device = BlockDevice(source="volume", destination="volume", volume_id="root", boot_index=0, device_name="/dev/vda",
                         connection=VolumeConnection(volume_id="root", path=str(path), format="qcow2", serial="root"))
    instance = server(image=None, image_ref="", block_devices=[device])
    boot(driver, instance, BootFiles())
    wait_for_console(driver, instance, LOGIN)
    driver.guests.destroy(instance)
    assert path.exists()
