"""Rescue and unrescue of real guests (QEMU, emulated CPU)."""

from __future__ import annotations

import os
import pathlib
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.operations.framework.guest_driver import BootFiles
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
_STABLE = {"hw_rescue_device": "disk", "hw_rescue_bus": "scsi"}


def names(instance: Any) -> set[str]:
    return set(os.listdir(os.path.join(CONF.instances_path, instance.uuid)))


def disks_of(libvirt_daemon: PrivateLibvirt, instance: Any) -> dict[str, str]:
    """Return the file of each disk of the guest by device name."""
    text = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "dumpxml", instance.uuid)
    return {item.find("target").get("dev"): os.path.basename(item.find("source").get("file"))  # type: ignore[union-attr]
            for item in ET.fromstring(text).findall("devices/disk")}


@pytest.mark.parametrize(("properties", "expected"), [
    pytest.param({}, {"vda": "disk.rescue", "vdb": "disk", "vdc": "disk.eph0"}, id="first", marks=pytest.mark.slow),
    pytest.param(_STABLE, {"vda": "disk", "vdb": "disk.eph0", "sda": "disk.rescue"}, id="stable")])
def test_guest_is_rescued_and_unrescued(driver: Any, guest_image: pathlib.Path, libvirt_daemon: PrivateLibvirt,
                                        properties: dict[str, str], expected: dict[str, str]) -> None:
    instance = server(flavor={"ephemeral_gb": 1})
    driver.disks.prepare(instance, kernel_disks(guest_image))
    driver.guests.spawn(instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    own, before = names(instance), disks_of(libvirt_daemon, instance)
    assert before == {"vda": "disk", "vdb": "disk.eph0"}
    whole = BootFiles(root=str(guest_image / "nova-guest.qcow2"), root_format="qcow2")
    image = Image(id="r", disk_format="qcow2", properties=properties)
    driver.rescue.begin(instance, image, whole, timeout=60)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    assert disks_of(libvirt_daemon, instance) == expected
    wait_for_console(driver, instance, LOGIN, 2)
    assert driver.disks.used_images() == [str(guest_image / "nova-guest.qcow2"), str(guest_image / "rootfs.img")]
    driver.rescue.begin(instance, image, whole)  # a repeated order
    assert disks_of(libvirt_daemon, instance) == expected

    for _ in range(2):
        driver.rescue.end(instance)
        assert driver.guests.power_state(instance.uuid) == states.SHUTDOWN
        assert (names(instance), disks_of(libvirt_daemon, instance)) == (own, before)
    driver.power.on(instance)
    wait_for_console(driver, instance, LOGIN, 3)


def test_hard_reboot_and_delete_remove_rescue_disks(driver: Any, guest_image: pathlib.Path,
                                                    libvirt_daemon: PrivateLibvirt) -> None:
    instance, disks = server(), small_disks(guest_image)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    own = names(instance)
    driver.rescue.begin(instance, Image(id="r", disk_format="qcow2"), disks)
    assert "kernel.rescue" in names(instance)
    driver.power.reboot(instance, hard=True)
    assert (names(instance), disks_of(libvirt_daemon, instance)) == (own, {"vda": "disk"})
    driver.rescue.begin(instance, Image(id="r", disk_format="qcow2"), disks)
    driver.guests.destroy(instance)
    assert os.listdir(CONF.instances_path) == []


def test_refused_rescue_leaves_the_guest_unchanged(driver: Any, guest_image: pathlib.Path,
                                                   libvirt_daemon: PrivateLibvirt) -> None:
    instance, disks = server(), small_disks(guest_image)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    for properties in ({"hw_rescue_device": "floppy"}, {"hw_rescue_bus": "pigeon"}, {"hw_disk_bus": "pigeon"}):
        with pytest.raises(exception.InvalidInput):
            driver.rescue.begin(instance, Image(id="r", disk_format="qcow2", properties=properties), disks)
    with pytest.raises(exception.InvalidDiskInfo):
        driver.rescue.begin(instance, Image(id="r", disk_format="qcow2"), BootFiles(root="/nowhere"))
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    driver.rescue.end(instance)
    driver.power.reboot(instance, hard=True)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    assert disks_of(libvirt_daemon, instance) == {"vda": "disk"}
