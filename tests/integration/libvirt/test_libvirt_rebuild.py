"""Replacement of the disks of real guests (QEMU, emulated CPU) in a rebuild."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.operations.framework.guest_driver import BootFiles
from tests.integration.libvirt_fixtures import kernel_disks, needs_libvirt, server, small_disks, wait_for_console

pytestmark = needs_libvirt
LOGIN = b"login:"


def files(instance: Any) -> dict[str, int]:
    """Return the inodes of the guest's files by name."""
    place = os.path.join(CONF.instances_path, instance.uuid)
    return {name: os.stat(os.path.join(place, name)).st_ino for name in os.listdir(place)}


@pytest.mark.parametrize("keep", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rebuild_replaces_disks_and_optionally_keeps_ephemerals(driver: Any, guest_image: pathlib.Path,
                                                                keep: bool) -> None:
    instance = server(flavor={"ephemeral_gb": 1, "swap": 16})
    driver.disks.prepare(instance, kernel_disks(guest_image))
    driver.guests.spawn(instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    before = files(instance)
    assert {"disk", "disk.eph0", "disk.swap", "kernel", "ramdisk"} <= before.keys()

    again = msgspec.structs.replace(instance, image_ref="j", image=Image(
        id="j", disk_format="qcow2", properties={"hw_machine_type": "q35", "hw_disk_bus": "scsi"}))
    whole = BootFiles(root=str(guest_image / "nova-guest.qcow2"), root_format="qcow2")
    driver.disks.replace(again, whole, "first", keep_ephemerals=keep, timeout=60)
    after = files(again)
    assert driver.guests.all() == []
    assert {"disk", "disk.eph0", "disk.swap"} <= after.keys()
    assert not {"kernel", "ramdisk", "console.log"} & after.keys()
    assert not [name for name in after if name.endswith(".part")]
    assert (after["disk"] != before["disk"], after["disk.eph0"] == before["disk.eph0"]) == (True, keep)
    driver.guests.spawn(again, whole)
    wait_for_console(driver, again, LOGIN)

    running = files(again)
    driver.disks.replace(again, whole, "first", keep_ephemerals=keep)  # a repeated order
    assert (driver.guests.power_state(again.uuid), files(again)) == (states.RUNNING, running)
    driver.disks.replace(again, whole, "second", keep_ephemerals=keep)
    assert files(again)["disk"] != running["disk"]
    driver.guests.destroy(again)
    assert os.listdir(CONF.instances_path) == []


def test_refused_rebuild_keeps_disks_and_guest(driver: Any, guest_image: pathlib.Path) -> None:
    instance, disks = server(), small_disks(guest_image)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    before = files(instance)
    odd = msgspec.structs.replace(instance, image=Image(id="j", properties={"hw_disk_bus": "carrier-pigeon"}))
    with pytest.raises(exception.InvalidInput):
        driver.disks.replace(odd, disks, "first")
    with pytest.raises(exception.InvalidDiskInfo):
        driver.disks.replace(instance, BootFiles(root="/nowhere"), "first")
    assert (files(instance), driver.guests.power_state(instance.uuid)) == (before, states.RUNNING)
    driver.power.reboot(instance, hard=True)
    wait_for_console(driver, instance, LOGIN)


def test_rebuild_succeeds_without_disks_or_with_disks_set_aside(driver: Any, guest_image: pathlib.Path) -> None:
    """Disks may be missing, or renamed by a move that could not restore them."""
    instance, disks = server(), small_disks(guest_image)
    driver.disks.replace(instance, disks, "first")
    driver.guests.spawn(instance, disks)
    driver.cold_migration.open_disks(instance)
    driver.disks.replace(instance, disks, "second")
    assert os.listdir(CONF.instances_path) == [instance.uuid]
    driver.guests.spawn(instance, disks)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
