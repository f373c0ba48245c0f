"""Snapshots of real guests (QEMU, emulated CPU) that are running, paused, suspended or stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import threading
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from tests.integration.libvirt_fixtures import kernel_disks, needs_libvirt, server, small_disks, wait_for_console

pytestmark = needs_libvirt
NOBODY = threading.Event()
ONE = "11111111-2222-3333-4444-555555555555"
OTHER = "21111111-2222-3333-4444-555555555555"


def boot(driver: Any, image: pathlib.Path, properties: dict[str, str] | None = None) -> Any:
    instance, disks = server(properties, flavor={"swap": 16}, config_drive=True), small_disks(image)
    drive = pathlib.Path(CONF.instances_path, instance.uuid, "disk.config")
    drive.parent.mkdir(parents=True)
    drive.write_bytes(bytes(1 << 20))
    driver.disks.prepare(instance, dataclasses.replace(disks, config_drive=str(drive)))
    driver.guests.spawn(instance, disks)
    wait_for_console(driver, instance, b"login:")
    return instance


def file_of(instance: Any, name: str) -> str:
    return os.path.join(CONF.instances_path, instance.uuid, name)


def told_of(path: str) -> dict[str, Any]:
    told = subprocess.run(["qemu-img", "info", "-U", "--output=json", "-f", "qcow2", path], check=True,
                          capture_output=True, text=True).stdout
    return dict(json.loads(told))


def is_the_same_disk(path: str, disk: str) -> bool:
    return subprocess.run(["qemu-img", "compare", "-U", "-f", "qcow2", "-F", "qcow2", path, disk],
                          capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("doing", ["running", "paused", "suspended", "off"])
def test_snapshot_copies_the_disk_and_keeps_the_power_state(driver: Any, guest_image: pathlib.Path, doing: str) -> None:
    instance = boot(driver, guest_image)
    if doing != "running":
        {"paused": driver.power.pause, "suspended": driver.power.suspend, "off": driver.power.off}[doing](instance)
    before = driver.guests.power_state(instance.uuid)
    made = driver.snapshots.take(instance, ONE, NOBODY)
    assert driver.snapshots.take(instance, ONE, NOBODY) == made
    told = told_of(made.path)
    assert (made.format, told["virtual-size"], told.get("backing-filename")) == ("qcow2", 1 << 30, None)
    assert told["actual-size"] < 300 << 20, "unused blocks take space"
    if doing != "running":
        assert is_the_same_disk(made.path, file_of(instance, "disk"))
    assert driver.guests.power_state(instance.uuid) == before
    other = driver.snapshots.take(instance, OTHER, NOBODY)
    assert other.path != made.path, "a second snapshot reused the file"
    assert not os.path.exists(made.path)
    driver.snapshots.discard(instance)
    driver.snapshots.discard(instance)
    assert not os.path.exists(other.path)
    if doing == "suspended":
        driver.power.resume(instance)
        assert driver.consoles.output(instance).count(b"login:") == 1, "the guest booted instead of resuming"
    driver.guests.destroy(instance)
    assert not os.path.exists(file_of(instance, ""))


def test_snapshot_fails_when_a_required_quiesce_is_impossible(driver: Any, guest_image: pathlib.Path) -> None:
    instance = boot(driver, guest_image, {"os_require_quiesce": "yes"})
    with pytest.raises(exception.InstanceQuiesceFailed) as refused:
        driver.snapshots.take(instance, ONE, NOBODY)
    assert "guest_agent" in str(refused.value)
    asks = server({"os_require_quiesce": "yes", "hw_qemu_guest_agent": "yes"}, uuid=instance.uuid, id=instance.id)
    with pytest.raises(exception.InstanceQuiesceFailed):
        driver.snapshots.take(asks, ONE, NOBODY)
    driver.power.off(instance)
    assert driver.snapshots.take(instance, ONE, NOBODY).path == file_of(instance, f"snapshot-{ONE}"), "no quiesce"


def test_cancelled_snapshot_leaves_no_file(driver: Any, guest_image: pathlib.Path) -> None:
    instance = boot(driver, guest_image)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(exception.SnapshotFailed):
        driver.snapshots.take(instance, ONE, stopped)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    assert [name for name in os.listdir(file_of(instance, "")) if name.startswith("snapshot")] == []
    assert driver.snapshots.take(instance, ONE, NOBODY).format == "qcow2", "the next snapshot failed"


def test_snapshot_is_aborted_before_the_disk_is_full(driver: Any, guest_image: pathlib.Path) -> None:
    class Filling(threading.Event):
        """An event that simulates a disk which fills up between the start of the copy and the next check."""

        def is_set(self) -> bool:
            CONF.set_override("reserved_host_disk_mb", (shutil.disk_usage(CONF.instances_path).free >> 20) + 1024)
            return False

    instance = boot(driver, guest_image)
    try:
        for doing in ("running", "off"):
            with pytest.raises(exception.DiskFull):
                driver.snapshots.take(instance, ONE, Filling())
            assert [name for name in os.listdir(file_of(instance, "")) if name.startswith("snapshot")] == [], doing
            state = states.RUNNING if doing == "running" else states.SHUTDOWN
            assert driver.guests.power_state(instance.uuid) == state
            driver.power.off(instance)
    finally:
        CONF.clear_override("reserved_host_disk_mb")
    assert driver.snapshots.take(instance, ONE, NOBODY).format == "qcow2", "the next snapshot failed"


@pytest.mark.parametrize("alone", [pytest.param(False, marks=pytest.mark.slow), True],
                         ids=["another image", "shelving image"])
def test_guest_boots_from_a_snapshot(driver: Any, guest_image: pathlib.Path, alone: bool) -> None:
    """An unshelved server gets a disk without a backing file, because its shelved image is deleted afterwards."""
    instance = boot(driver, guest_image)
    path = str(pathlib.Path(CONF.state_path, "copy.qcow2"))
    shutil.copyfile(driver.snapshots.take(instance, ONE, NOBODY).path, path)
    driver.guests.destroy(instance)
    again = server(uuid=instance.uuid, id=instance.id)
    disks = dataclasses.replace(kernel_disks(guest_image), root=path, root_format="qcow2", alone=alone)
    driver.disks.prepare(again, disks)
    disk = file_of(again, "disk")
    if alone:
        assert is_the_same_disk(disk, path)
        os.unlink(path)
    driver.guests.spawn(again, disks)
    wait_for_console(driver, again, b"login:")
    assert told_of(disk).get("backing-filename") == (None if alone else path)
    assert [name for name in os.listdir(file_of(again, "")) if name.endswith(".part")] == []
