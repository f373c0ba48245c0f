"""Volume swaps of real guests: after any interruption the guest has one of the two volumes with all data."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt_fixtures import PrivateLibvirt, kernel_disks, needs_libvirt, server

pytestmark = needs_libvirt

NEVER = threading.Event()
# MiB
_SIZE = 64

Make = Callable[..., BlockDevice]


@pytest.fixture(name="volume")
def volume_fixture(state: pathlib.Path) -> Make:
    """Return a function that creates connected volumes, filled with random data if ``fill``."""
    def make(name: str, fill: bool = False, disk_format: str = "raw", size: int = _SIZE, **fields: Any) -> BlockDevice:
        path = state / name
        subprocess.run(["qemu-img", "create", "-q", "-f", disk_format, str(path), f"{size}M"], check=True, timeout=60)
        if fill:
            path.write_bytes(os.urandom(1 << 20) * size)
        connection = VolumeConnection(volume_id=name, path=str(path), format=disk_format, serial=name)
        return BlockDevice(source="volume", destination="volume", volume_id=name, connection=connection, **fields)

    return make


def running(driver: LibvirtDriver, guest_image: pathlib.Path, *volumes: BlockDevice) -> Any:
    instance = server(block_devices=list(volumes))
    disks = kernel_disks(guest_image)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    return instance


def place(daemon: PrivateLibvirt, instance: Any, *options: str) -> tuple[str, str]:
    """Return file and serial number of the disk vdb in the running or (--inactive) persistent definition."""
    root = ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid, *options))
    disk, = (disk for disk in root.findall("devices/disk") if disk.find("target").get("dev") == "vdb")
    return os.path.basename(disk.find("source").get("file")), disk.findtext("serial")


def begin_slowly(daemon: PrivateLibvirt, instance: Any, new: BlockDevice) -> None:
    """Start a copy that takes a minute."""
    daemon.run("virsh", "-c", daemon.uri, "blockcopy", instance.uuid, "vdb", new.connection.path, "--raw",
               "--reuse-external", "--transient-job", "--bandwidth", "1")


def jobs(daemon: PrivateLibvirt, instance: Any) -> str:
    return daemon.run("virsh", "-c", daemon.uri, "blockjob", instance.uuid, "vdb", "--info")


def content(state: pathlib.Path, name: str, disk_format: str = "raw") -> bytes:
    flat = state / f"{name}.flat"
    subprocess.run(["qemu-img", "convert", "-f", disk_format, "-O", "raw", str(state / name), str(flat)], check=True,
                   timeout=60)
    return flat.read_bytes()


@pytest.mark.parametrize("disk_format", ["raw", pytest.param("qcow2", marks=pytest.mark.slow)])
def test_volume_swap_keeps_data_and_serial_number(
        driver: LibvirtDriver, guest_image: pathlib.Path, volume: Make, state: pathlib.Path,
        libvirt_daemon: PrivateLibvirt, disk_format: str) -> None:
    old, other = volume("old", fill=True), volume("new", disk_format=disk_format)
    instance = running(driver, guest_image, old)
    new = msgspec.structs.replace(old.swapped(other, False), connection=other.connection)
    for _ in range(2):
        driver.volume_swaps.swap(instance, old, new, NEVER)
    assert place(libvirt_daemon, instance) == place(libvirt_daemon, instance, "--inactive") == ("new", "old")
    assert driver.volume_swaps.cancel(instance, new), "a completed swap cannot be cancelled"
    instance.block_devices = [new]
    driver.power.reboot(instance, hard=True)
    assert place(libvirt_daemon, instance) == ("new", "old"), "the swap was lost with a power cycle"
    driver.volumes.detach(instance, msgspec.structs.replace(new, connection=None))
    driver.guests.destroy(instance)
    assert content(state, "new", disk_format) == content(state, "old")


def test_volume_swap_to_a_volume_of_another_size_fails(driver: LibvirtDriver, guest_image: pathlib.Path, volume: Make,
                                                       libvirt_daemon: PrivateLibvirt) -> None:
    """QEMU ends such a copy by itself."""
    old, other = volume("old"), volume("new", size=2 * _SIZE)
    instance = running(driver, guest_image, old)
    with pytest.raises(exception.VolumeSwapFailed, match="was aborted"):
        driver.volume_swaps.swap(instance, old, msgspec.structs.replace(
            old.swapped(other, False), connection=other.connection), NEVER)
    assert place(libvirt_daemon, instance) == place(libvirt_daemon, instance, "--inactive") == ("old", "old")


@pytest.mark.parametrize("paused", [False, True])
def test_cancelled_volume_swap_keeps_the_old_volume(driver: LibvirtDriver, guest_image: pathlib.Path, volume: Make,
                                                    libvirt_daemon: PrivateLibvirt, paused: bool) -> None:
    old, other = volume("old", fill=True), volume("new")
    instance = running(driver, guest_image, old)
    if paused:
        driver.power.pause(instance)
    new = msgspec.structs.replace(old.swapped(other, False), connection=other.connection)
    cancelled = threading.Event()
    begin_slowly(libvirt_daemon, instance, new)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running_swap = pool.submit(driver.volume_swaps.swap, instance, old, new, cancelled)
        assert "No current block job" not in jobs(libvirt_daemon, instance)
        cancelled.set()
        with pytest.raises(exception.VolumeSwapFailed, match="cancelled"):
            running_swap.result(30)
    assert "No current block job" in jobs(libvirt_daemon, instance)
    assert place(libvirt_daemon, instance) == place(libvirt_daemon, instance, "--inactive") == ("old", "old")
    driver.volume_swaps.swap(instance, old, new, NEVER)
    assert place(libvirt_daemon, instance) == ("new", "old"), "a second swap failed"


def test_volume_copy_of_a_dead_process_is_resumed_or_cancelled(driver: LibvirtDriver, guest_image: pathlib.Path,
                                                               volume: Make, libvirt_daemon: PrivateLibvirt) -> None:
    old, other = volume("old", fill=True), volume("new")
    instance = running(driver, guest_image, old)
    new = msgspec.structs.replace(old.swapped(other, False), connection=other.connection)
    for end in ("cancel", "go on"):
        begin_slowly(libvirt_daemon, instance, new)
        if end == "cancel":
            assert not driver.volume_swaps.cancel(instance, new)
            assert "No current block job" in jobs(libvirt_daemon, instance)
            assert place(libvirt_daemon, instance) == ("old", "old")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running_swap = pool.submit(driver.volume_swaps.swap, instance, old, new, NEVER)
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "blockjob", instance.uuid, "vdb", "--bandwidth", "0")
        running_swap.result(60)
    assert place(libvirt_daemon, instance) == ("new", "old")


def test_volume_swap_fails_when_the_guest_stops(driver: LibvirtDriver, guest_image: pathlib.Path, volume: Make,
                                                libvirt_daemon: PrivateLibvirt) -> None:
    old, other = volume("old", fill=True), volume("new")
    instance = running(driver, guest_image, old)
    new = msgspec.structs.replace(old.swapped(other, False), connection=other.connection)
    begin_slowly(libvirt_daemon, instance, new)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running_swap = pool.submit(driver.volume_swaps.swap, instance, old, new, NEVER)
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "destroy", instance.uuid)
        # QEMU ends the copy before itself; a check in between sees only the ended copy.
        with pytest.raises((exception.GuestNotRunning, exception.VolumeSwapFailed)):
            running_swap.result(30)
    assert place(libvirt_daemon, instance, "--inactive") == ("old", "old")
    with pytest.raises(exception.GuestNotRunning):
        driver.volume_swaps.swap(instance, old, new, NEVER)
    assert not driver.volume_swaps.cancel(instance, new)


def test_volume_swap_without_guest_or_volume_fails(driver: LibvirtDriver, guest_image: pathlib.Path, volume: Make,
                                                   state: pathlib.Path, libvirt_daemon: PrivateLibvirt) -> None:
    old, other, strange = volume("old"), volume("new"), volume("strange")
    new = msgspec.structs.replace(old.swapped(other, False), connection=other.connection)
    assert not driver.volume_swaps.cancel(server(), new), "the swap of a missing guest was cancelled"
    with pytest.raises(exception.GuestNotFound):
        driver.volume_swaps.swap(server(), old, new, NEVER)
    instance = running(driver, guest_image, old)
    with pytest.raises(exception.VolumeSwapFailed, match="does not have the volume"):
        driver.volume_swaps.swap(instance, strange, msgspec.structs.replace(
            strange.swapped(other, False), connection=other.connection), NEVER)
    (state / "new").unlink()
    with pytest.raises(exception.VolumeSwapFailed, match="new"):
        driver.volume_swaps.swap(instance, old, new, NEVER)
    assert place(libvirt_daemon, instance) == ("old", "old")
    with pytest.raises(exception.InvalidDiskInfo, match="not connected"):
        driver.volume_swaps.swap(instance, old, msgspec.structs.replace(new, connection=None), NEVER)
