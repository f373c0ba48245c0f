"""File-backed volumes with snapshots under real guests: the guest always has a consistent backing chain."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import threading
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.compute.disk_tools import QemuTools
from nova.conf import CONF
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.images import qemuimg
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt_fixtures import PrivateLibvirt, needs_libvirt, server, small_disks

pytestmark = needs_libvirt

NEVER = threading.Event()
_SIZE = 64 << 20
_WRITTEN = 16


class Share:
    """The files of a volume as a volume service creates them, with backing files named without a directory."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.mkdir()
        qemuimg.create(str(path / "volume"), "qcow2", _SIZE)

    def device(self, *names: str) -> BlockDevice:
        """Return the volume connected with these files, the newest first."""
        first, *below = (str(self.path / name) for name in names)
        connection = VolumeConnection(volume_id="volume", serial="volume", path=first, format="qcow2",
                                      below=[(path, "qcow2") for path in below])
        return BlockDevice(source="volume", destination="volume", volume_id="volume", connection=connection)

    def grow(self, *below: str) -> BlockDevice:
        name = f"volume.{len(below)}"
        path = str(self.path / name)
        qemuimg.create_overlay(path, str(self.path / below[0]), "qcow2", _SIZE)
        qemuimg.rebase(path, below[0], "qcow2")
        return self.device(name, *below)

    def named(self, name: str) -> Any:
        """Return the backing file named in a file."""
        return QemuTools().backing_file(str(self.path / name), "qcow2")

    def write(self, name: str, offset: int, pattern: int) -> None:
        """Write a pattern at this MiB to an unused file: more data than a job copies before it checks its bandwidth
        limit."""
        _qemu_io(self.path / name, f"write -P {pattern} {offset}M {_WRITTEN}M")

    def has(self, name: str, offset: int, pattern: int) -> None:
        _qemu_io(self.path / name, f"read -P {pattern} {offset}M {_WRITTEN}M")

    def is_whole(self) -> None:
        """Check the data written before, between and (by slowly()) during the merges of files."""
        for position, pattern in enumerate((0xaa, 0xbb, 0xcc)):
            self.has("volume.2", position * _WRITTEN, pattern)
        subprocess.run(["qemu-img", "check", "-f", "qcow2", str(self.path / "volume.2")], check=True, timeout=60,
                       capture_output=True)


def _qemu_io(path: pathlib.Path, command: str) -> None:
    done = subprocess.run(["qemu-io", "-f", "qcow2", "-c", command, str(path)], check=True, timeout=60,
                          capture_output=True, text=True)
    assert "Pattern verification failed" not in done.stdout, done.stdout


@pytest.fixture(name="share")
def share_fixture(state: pathlib.Path) -> Share:
    made = Share(state / "share")
    made.write("volume", 0, 0xaa)
    return made


@pytest.fixture(name="instance")
def instance_fixture(driver: LibvirtDriver, guest_image: pathlib.Path, share: Share) -> Any:
    made = server(block_devices=[share.device("volume")])
    disks = small_disks(guest_image)
    driver.disks.prepare(made, disks)
    driver.guests.spawn(made, disks)
    return made


def defined(daemon: PrivateLibvirt, instance: Any) -> str:
    """Return the volume file in the persistent definition of the guest."""
    root = ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid, "--inactive"))
    disk, = (disk for disk in root.findall("devices/disk") if disk.find("target").get("dev") == "vdb")
    return os.path.basename(disk.find("source").get("file"))


def writes(daemon: PrivateLibvirt, instance: Any, offset: int, pattern: int) -> None:
    """Write to the volume through the guest's device."""
    root = ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid))
    alias, = (disk.find("alias").get("name") for disk in root.findall("devices/disk")
              if disk.find("target").get("dev") == "vdb")
    for command in (f"write -P {pattern} {offset}M {_WRITTEN}M", "flush"):
        told = daemon.run("virsh", "-c", daemon.uri, "qemu-monitor-command", instance.uuid, "--hmp",
                          f'qemu-io -d /machine/peripheral/{alias}/virtio-backend "{command}"')
        assert not told.strip(), told


def slowly(daemon: PrivateLibvirt, instance: Any, share: Share, way: str) -> tuple[str | None, str | None]:
    """Start the driver's block job slowly, for minutes; return the ``top`` and ``base`` arguments of the merge."""
    def path(name: str) -> str:
        return str(share.path / name)

    told, command = {
        "commit": (("volume.1", "volume"), ("blockcommit", "--top", path("volume.1"), "--base", path("volume"))),
        "rebase": (("volume", None), ("blockpull", "--base", path("volume"))),
        "pull": ((None, None), ("blockpull",))}[way]
    verb, *options = command
    daemon.run("virsh", "-c", daemon.uri, verb, instance.uuid, "vdb", *options, "--bandwidth", "1024", "--bytes",
               *(["--keep-relative"] if way != "pull" else []))
    assert "No current block job" not in job(daemon, instance)
    writes(daemon, instance, 2 * _WRITTEN, 0xcc)
    return told


def job(daemon: PrivateLibvirt, instance: Any) -> str:
    return daemon.run("virsh", "-c", daemon.uri, "blockjob", instance.uuid, "vdb", "--info")


_LEFT = {"commit": ["volume.2", "volume"], "rebase": ["volume.2", "volume"], "pull": ["volume.2"]}


def three(driver: LibvirtDriver, instance: Any, share: Share, daemon: PrivateLibvirt | None = None) -> BlockDevice:
    for below in (("volume",), ("volume.1", "volume")):
        new = share.grow(*below)
        driver.volume_files.snapshot(instance, new)
        if daemon is not None and len(below) == 1:
            writes(daemon, instance, _WRITTEN, 0xbb)
    assert driver.volume_files.names(instance, new) == ["volume.2", "volume.1", "volume"]
    return new


def test_volume_snapshot_switches_the_guest_to_a_new_file(driver: LibvirtDriver, instance: Any, share: Share,
                                                          libvirt_daemon: PrivateLibvirt) -> None:
    new = share.grow("volume")
    assert driver.volume_files.names(instance, new) == ["volume"]
    for _again in range(2):
        driver.volume_files.snapshot(instance, new)
        assert driver.volume_files.names(instance, new) == ["volume.1", "volume"]
    assert defined(libvirt_daemon, instance) == "volume.1"
    libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "destroy", instance.uuid)
    assert driver.volume_files.names(instance, new)[:1] == ["volume.1"]
    driver.power.on(instance)
    instance.block_devices = [new]
    driver.power.reboot(instance, hard=True)
    assert driver.volume_files.names(instance, new) == ["volume.1", "volume"]
    assert share.named("volume.1") == ("volume", "qcow2")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("top", "base", "left"), [
    ("volume.1", "volume", ["volume.2", "volume"]), ("volume", None, ["volume.2", "volume"]),
    (None, None, ["volume.2"])])
def test_merge_of_volume_files_keeps_relative_backing_names(
        driver: LibvirtDriver, instance: Any, share: Share, libvirt_daemon: PrivateLibvirt, top: str | None,
        base: str | None, left: list[str], restarted: bool) -> None:
    device = three(driver, instance, share)
    if restarted:  # with the backing chain from Nova, not the chain detected by libvirt
        instance.block_devices = [device]
        driver.power.reboot(instance, hard=True)
    for _again in range(2):
        driver.volume_files.merge(instance, device, top, base, NEVER)
        assert driver.volume_files.names(instance, device) == left
        assert driver.volume_files.cancel(instance, device, top, base)
    assert defined(libvirt_daemon, instance) == "volume.2"
    driver.guests.destroy(instance)
    assert share.named("volume.2") == (("volume", "qcow2") if len(left) > 1 else None)
    share.has("volume.2", 0, 0xaa)


def test_block_job_is_cancelled_or_resumed(driver: LibvirtDriver, instance: Any, share: Share,
                                           libvirt_daemon: PrivateLibvirt) -> None:
    device, cancelled = three(driver, instance, share), threading.Event()

    def virsh(*command: str) -> str:
        return libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, *command)

    def begin() -> None:
        virsh("blockpull", instance.uuid, "vdb", "--bandwidth", "1024", "--bytes")

    begin()
    assert not driver.volume_files.cancel(instance, device, None, None)
    assert "No current block job" in virsh("blockjob", instance.uuid, "vdb", "--info")
    begin()
    cancelled.set()
    with pytest.raises(exception.VolumeSnapshotFailed, match="cancelled"):
        driver.volume_files.merge(instance, device, None, None, cancelled)
    assert driver.volume_files.names(instance, device) == ["volume.2", "volume.1", "volume"]
    begin()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        goes_on = pool.submit(driver.volume_files.merge, instance, device, None, None, NEVER)
        virsh("blockjob", instance.uuid, "vdb", "--bandwidth", "0")
        goes_on.result(60)
    assert driver.volume_files.names(instance, device) == ["volume.2"]


@pytest.mark.parametrize("way", list(_LEFT))
def test_merge_completes_after_libvirtd_was_killed(driver: LibvirtDriver, instance: Any, share: Share,
                                                   libvirt_daemon: PrivateLibvirt, way: str) -> None:
    device = three(driver, instance, share, libvirt_daemon)
    top, base = slowly(libvirt_daemon, instance, share, way)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        goes_on = pool.submit(driver.volume_files.merge, instance, device, top, base, NEVER)
        libvirt_daemon.kill_daemon()
        libvirt_daemon.start_daemon()
        assert "No current block job" not in job(libvirt_daemon, instance), "QEMU did not continue the job"
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "blockjob", instance.uuid, "vdb", "--bandwidth", "0")
        goes_on.result(60)
    assert driver.volume_files.names(instance, device) == _LEFT[way]
    assert defined(libvirt_daemon, instance) == "volume.2"
    driver.guests.destroy(instance)
    share.is_whole()


@pytest.mark.parametrize("way", list(_LEFT))
def test_merge_can_be_repeated_after_the_guest_was_killed(driver: LibvirtDriver, instance: Any, share: Share,
                                                          libvirt_daemon: PrivateLibvirt, way: str) -> None:
    device = three(driver, instance, share, libvirt_daemon)
    top, base = slowly(libvirt_daemon, instance, share, way)
    name = instance.name_by(CONF.instance_name_template)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        fails = pool.submit(driver.volume_files.merge, instance, device, top, base, NEVER)
        os.kill(int(libvirt_daemon.run("cat", f"/run/libvirt/qemu/{name}.pid")), signal.SIGKILL)
        with pytest.raises((exception.GuestNotRunning, exception.VolumeSnapshotFailed)):
            fails.result(60)
    assert not driver.volume_files.cancel(instance, device, top, base)
    instance.block_devices = [device]
    driver.power.reboot(instance, hard=True)
    assert driver.volume_files.names(instance, device) == ["volume.2", "volume.1", "volume"]
    driver.volume_files.merge(instance, device, top, base, NEVER)
    assert driver.volume_files.names(instance, device) == _LEFT[way]
    driver.guests.destroy(instance)
    share.is_whole()


def test_invalid_volume_snapshots_and_merges_are_refused(driver: LibvirtDriver, instance: Any, share: Share,
                                                         libvirt_daemon: PrivateLibvirt) -> None:
    new = share.grow("volume")
    for wrong in (share.device("volume.1", "other"), msgspec.structs.replace(new, connection=msgspec.structs.replace(
            new.connection, protocol="rbd")), msgspec.structs.replace(new, serial="stranger")):
        with pytest.raises(exception.VolumeSnapshotFailed):
            driver.volume_files.snapshot(instance, wrong)
    (share.path / "volume.1").unlink()
    with pytest.raises(exception.VolumeSnapshotFailed, match=r"volume\.1"):
        driver.volume_files.snapshot(instance, new)
    assert driver.volume_files.names(instance, new) == ["volume"]
    with pytest.raises(exception.VolumeSnapshotFailed, match="the guest lacks"):
        driver.volume_files.merge(instance, new, "volume.1", "volume.0", NEVER)
    libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "destroy", instance.uuid)
    with pytest.raises(exception.GuestNotRunning):
        driver.volume_files.snapshot(instance, share.grow("volume"))
    nobody = server()
    assert driver.volume_files.names(nobody, new) == []
    assert not driver.volume_files.cancel(nobody, new, None, None)
    with pytest.raises(exception.GuestNotFound):
        driver.volume_files.snapshot(nobody, new)
