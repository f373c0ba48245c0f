"""Real guests with encrypted volumes: QEMU decrypts the data, and libvirt has the key only while it is needed."""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import pathlib
import subprocess
import tempfile
import threading
import uuid
import xml.etree.ElementTree as ET

import msgspec
import pytest

from nova import exception
from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection, VolumeKey
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt.driver_pair import LabHost, hosts_fixture, wait_for_text  # noqa: F401 (fixtures)
from tests.integration.libvirt.driver_pair import boot as boot_there
from tests.integration.libvirt_fixtures import (
    PrivateLibvirt,
    kernel_disks,
    needs_libvirt,
    server,
    wait_for_console,
)

pytestmark = needs_libvirt

NEVER = threading.Event()
PASSPHRASE = "5eed" * 16
# qemu-img measures the speed of key derivation, which fails at random on virtual machines.
_TRIES = 40
_QCOW2 = ".qcow2"
_both = pytest.mark.parametrize("suffix", ["", pytest.param(_QCOW2, marks=pytest.mark.slow)], ids=["luks", "qcow2"])
# Writes at the first boot, and reads at every boot.
WRITE = """#!/bin/sh
echo precious > /dev/vdb
echo 'echo "it read $(head -c 8 /dev/vdb)"' >> /etc/init.d/boot
sync
echo "it wrote $(head -c 8 /dev/vdb)"
"""


@pytest.fixture(autouse=True)
def configured(state: pathlib.Path) -> None:
    """Set the state_path in which guests are searched."""


def formatted(path: pathlib.Path, passphrase: str = PASSPHRASE, size: int = 32 << 20) -> pathlib.Path:
    """Format the volume as the volume service does: as LUKS or, for the suffix .qcow2, as qcow2 with LUKS."""
    if path.suffix == _QCOW2:
        _create(path, passphrase, size, "qcow2", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10")
        return path
    header = _header(passphrase)
    path.write_bytes(header)
    os.truncate(path, len(header) + size)
    return path


@functools.cache
def _header(passphrase: str) -> bytes:
    """Return the LUKS header of a volume of any size. qemu-img takes 2.4 CPU seconds to write one."""
    with tempfile.TemporaryDirectory() as directory:
        path, size = pathlib.Path(directory, "volume"), 1 << 20
        _create(path, passphrase, size, "luks", "key-secret=s,iter-time=10")
        return path.read_bytes()[:-size]


def _create(path: pathlib.Path, passphrase: str, size: int, kind: str, options: str) -> None:
    for _ in range(_TRIES):
        done = subprocess.run(["qemu-img", "create", "-q", "-f", kind, "--object", f"secret,id=s,data={passphrase}",
                               "-o", options, str(path), str(size)],
                              capture_output=True, text=True, timeout=60)
        if "accurate CPU usage" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def decrypted(path: pathlib.Path, passphrase: str = PASSPHRASE) -> bytes:
    flat = path.with_suffix(".flat")
    source = "driver=qcow2,encrypt." if path.suffix == _QCOW2 else "driver=luks,"
    subprocess.run(["qemu-img", "convert", "--object", f"secret,id=s,data={passphrase}", "--image-opts",
                    f"{source}key-secret=s,file.filename={path}", "-O", "raw", str(flat)], check=True, timeout=60)
    return flat.read_bytes()


def device(path: pathlib.Path, key: str | None = PASSPHRASE, name: str = "/dev/vdb") -> BlockDevice:
    volume = str(uuid.uuid5(uuid.NAMESPACE_OID, path.name))
    connection = VolumeConnection(volume_id=volume, path=str(path), serial=volume,
                                  format="qcow2" if path.suffix == _QCOW2 else "raw",
                                  key=VolumeKey(key_id=f"of {volume}", passphrase=key) if key else None)
    return BlockDevice(source="volume", destination="volume", volume_id=volume, device_name=name, connection=connection)


def away(volume: BlockDevice) -> BlockDevice:
    """Return the device without its key, as for a detach."""
    return msgspec.structs.replace(volume, connection=None)


def boot(driver: LibvirtDriver, image: pathlib.Path, state: pathlib.Path, instance: Instance,
         script: str = WRITE) -> None:
    instance.user_data = base64.b64encode(script.encode()).decode()
    drive = str(state / "drive.iso")
    config_drive.build(instance, drive, MetadataSettings())
    disks: BootFiles = dataclasses.replace(kernel_disks(image), config_drive=drive)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)


def secrets(daemon: PrivateLibvirt) -> list[str]:
    """Return the UUIDs of all secrets in libvirtd."""
    lines = daemon.run("virsh", "-c", daemon.uri, "secret-list").splitlines()[2:]
    return sorted(line.split()[0] for line in lines if line.strip())


def named(daemon: PrivateLibvirt, instance: Instance, *options: str) -> list[str]:
    """Return the UUIDs of the secrets in the guest's definition."""
    root = ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", "--security-info", instance.uuid, *options))
    return sorted(item.get("uuid", "") for item in root.findall("devices/disk/source/encryption/secret"))


@_both
def test_guest_reads_and_writes_an_encrypted_volume(
        driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path, libvirt_daemon: PrivateLibvirt,
        suffix: str) -> None:
    path = formatted(state / f"volume{suffix}")
    volume = device(path)
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance)
    wait_for_console(driver, instance, b"it wrote precious")
    known, = secrets(libvirt_daemon)
    assert named(libvirt_daemon, instance) == named(libvirt_daemon, instance, "--inactive") == [known]
    assert PASSPHRASE not in libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "dumpxml", "--security-info",
                                                instance.uuid)
    with pytest.raises(subprocess.CalledProcessError):
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "secret-get-value", known)
    driver.power.reboot(instance, hard=True)
    wait_for_console(driver, instance, b"it read precious")
    driver.power.off(instance)
    for _ in range(2):
        driver.volumes.detach(instance, away(volume))
    assert (secrets(libvirt_daemon), named(libvirt_daemon, instance)) == ([], [])
    assert b"precious" not in path.read_bytes()
    assert decrypted(path).startswith(b"precious")


def test_encrypted_volume_is_attached_and_detached_without_leftovers(
        driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path, libvirt_daemon: PrivateLibvirt) -> None:
    first, second = device(formatted(state / "one")), device(formatted(state / "two", "0dd" * 8), "0dd" * 8, "/dev/vdc")
    instance = server()
    boot(driver, guest_image, state, instance, "#!/bin/sh\necho is up\n")
    wait_for_console(driver, instance, b"login:")
    for volume in (first, second, first):
        driver.volumes.attach(instance, volume)
    assert len(secrets(libvirt_daemon)) == 2
    assert named(libvirt_daemon, instance) == named(libvirt_daemon, instance, "--inactive") == secrets(libvirt_daemon)
    # libvirtd loses secrets when it stops; starting the guest defines them again.
    libvirt_daemon.kill_daemon()
    libvirt_daemon.start_daemon()
    assert secrets(libvirt_daemon) == []
    instance.block_devices = [first, second]
    driver.power.reboot(instance, hard=True)
    assert named(libvirt_daemon, instance) == secrets(libvirt_daemon) != []
    wait_for_console(driver, instance, b"login:", 2)
    driver.power.suspend(instance)
    libvirt_daemon.kill_daemon()
    libvirt_daemon.start_daemon()
    driver.power.resume(instance)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    driver.volumes.detach(instance, away(first))
    assert named(libvirt_daemon, instance) == secrets(libvirt_daemon)
    assert len(secrets(libvirt_daemon)) == 1
    driver.guests.destroy(instance)
    driver.guests.destroy(instance)
    assert secrets(libvirt_daemon) == []


def test_wrong_volume_key_is_reported_and_removed(driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path,
                                                  libvirt_daemon: PrivateLibvirt) -> None:
    wrong = device(formatted(state / "volume"), "f00" * 8)
    instance = server()
    boot(driver, guest_image, state, instance)
    with pytest.raises(exception.DeviceAttachFailed) as told:
        driver.volumes.attach(instance, wrong)
    assert "f00f00" not in str(told.value)
    assert secrets(libvirt_daemon) == []


@_both
def test_encrypted_volume_is_swapped(driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path,
                                     libvirt_daemon: PrivateLibvirt, suffix: str) -> None:
    """An unencrypted volume and an encrypted one are replaced by encrypted ones; the old key is removed."""
    plain, new, other = state / "plain", formatted(state / f"new{suffix}"), formatted(
        state / f"other{suffix}", "0dd" * 8)
    subprocess.run(["qemu-img", "create", "-q", "-f", "raw", str(plain), "32M"], check=True, timeout=60)
    old = device(plain, None)
    instance = server(block_devices=[old])
    boot(driver, guest_image, state, instance)
    wait_for_console(driver, instance, b"it wrote precious")
    seen = []
    for path, key in ((new, PASSPHRASE), (other, "0dd" * 8)):
        by = device(path, key)
        now = msgspec.structs.replace(old.swapped(by, False), connection=by.connection)
        for _ in range(2):
            driver.volume_swaps.swap(instance, old, now, NEVER)
        assert named(libvirt_daemon, instance) == named(libvirt_daemon, instance, "--inactive") == secrets(
            libvirt_daemon)
        seen += secrets(libvirt_daemon)
        old = now
    assert len(set(seen)) == 2
    instance.block_devices = [old]
    driver.power.reboot(instance, hard=True)
    wait_for_console(driver, instance, b"it read precious")
    driver.guests.destroy(instance)
    assert secrets(libvirt_daemon) == []
    assert decrypted(other, "0dd" * 8).startswith(b"precious")


@pytest.mark.slow
def test_cold_migration_removes_the_key_and_revert_restores_it(
        driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path, libvirt_daemon: PrivateLibvirt) -> None:
    """The host has no key of the volume while the disks are open for a move."""
    volume = device(formatted(state / "volume"))
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance)
    wait_for_console(driver, instance, b"it wrote precious")
    driver.cold_migration.open_disks(instance)
    assert secrets(libvirt_daemon) == []
    driver.cold_migration.close_disks(instance)
    driver.cold_migration.revert(instance)
    driver.power.on(instance)
    wait_for_console(driver, instance, b"it read precious")


def test_live_migration_moves_the_volume_key(hosts: tuple[LabHost, LabHost], guest_image: pathlib.Path) -> None:
    one, two = hosts
    pool = pathlib.Path(one.place).parent / "pool"
    pool.mkdir(mode=0o755, exist_ok=True)
    path = pool / "encrypted"
    path.unlink(missing_ok=True)
    formatted(path)
    instance = server(block_devices=[device(path)])
    script = WRITE + '( while :; do echo "it has $(head -c 8 /dev/vdb)" > /dev/ttyS0; sleep 2; done ) &\n'
    boot_there(one, instance, guest_image, script)
    wait_for_text(one, instance, b"it has precious")
    source = one.driver.live_source.check(instance)
    target = two.driver.live_target.prepare(instance, source)
    assert len(secrets(two.libvirt)) == 1
    one.driver.live_migrate(instance, target)
    two.driver.live_target.finish(instance)
    one.driver.guests.destroy(instance, keep_disks=target.shared)
    assert secrets(one.libvirt) == []
    assert named(two.libvirt, instance) == named(two.libvirt, instance, "--inactive") == secrets(two.libvirt) != []
    wait_for_text(two, instance, b"it has precious")
    two.driver.guests.destroy(instance)
    assert secrets(two.libvirt) == []


def test_rolled_back_live_migration_removes_the_volume_key(hosts: tuple[LabHost, LabHost],
                                                           guest_image: pathlib.Path) -> None:
    one, two = hosts
    pool = pathlib.Path(one.place).parent / "pool"
    pool.mkdir(mode=0o755, exist_ok=True)
    path = pool / "stays"
    path.unlink(missing_ok=True)
    instance = server(block_devices=[device(formatted(path))])
    boot_there(one, instance, guest_image)
    target = two.driver.live_target.prepare(instance, one.driver.live_source.check(instance))
    assert len(secrets(two.libvirt)) == 1
    for _ in range(2):
        two.driver.live_target.rollback(instance, target)
    assert secrets(two.libvirt) == []
    assert len(secrets(one.libvirt)) == 1
    one.driver.guests.destroy(instance)
