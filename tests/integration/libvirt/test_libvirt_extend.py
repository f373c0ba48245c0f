"""Extension of volumes attached to real guests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import msgspec
import pytest

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeEncryption
from nova.virt.images import qemuimg
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt.test_libvirt_encrypted import PASSPHRASE, boot, configured, device, formatted  # noqa: F401
from tests.integration.libvirt_fixtures import PrivateLibvirt, needs_libvirt, server, wait_for_console

pytestmark = needs_libvirt

_GIB = 1 << 30
_LOOK = """#!/bin/sh
( while :; do echo "it has $(cat /sys/block/vdb/size) sectors" > /dev/ttyS0; sleep 2; done ) &
"""


def sees(driver: LibvirtDriver, instance: Instance, size: int) -> None:
    wait_for_console(driver, instance, b"it has %d sectors" % (size // 512))


def has(daemon: PrivateLibvirt, instance: Instance) -> int:
    """Return the capacity of the guest's disk in bytes, as reported by libvirt."""
    told = daemon.run("virsh", "-c", daemon.uri, "domblkinfo", instance.uuid, "vdb")
    return int(next(line.split()[1] for line in told.splitlines() if line.startswith("Capacity")))


def size_of(path: pathlib.Path, disk_format: str) -> int:
    told = subprocess.run(["qemu-img", "info", "-U", "--output", "json", "-f", disk_format, str(path)], check=True,
                          timeout=60, capture_output=True)
    return int(json.loads(told.stdout)["virtual-size"])


def made(path: pathlib.Path, disk_format: str) -> BlockDevice:
    qemuimg.create(str(path), disk_format, _GIB)
    volume = device(path, key=None)
    return msgspec.structs.replace(volume, connection=msgspec.structs.replace(volume.connection, format=disk_format))


@pytest.mark.parametrize("disk_format", ["raw", pytest.param("qcow2", marks=pytest.mark.slow)])
def test_running_guest_sees_the_new_size_of_an_extended_volume(
        driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path, libvirt_daemon: PrivateLibvirt,
        disk_format: str) -> None:
    volume = made(state / "volume", disk_format)
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance, _LOOK)
    sees(driver, instance, _GIB)
    for _ in range(2):
        assert not driver.volumes.is_extended(instance, volume, 3)
        assert driver.volumes.extend(instance, volume, 2)
        assert driver.volumes.is_extended(instance, volume, 2)
    sees(driver, instance, 2 * _GIB)
    assert size_of(state / "volume", disk_format) == 2 * _GIB
    assert driver.volumes.extend(instance, volume, 1), "extending to a smaller size must succeed"
    assert has(libvirt_daemon, instance) == 2 * _GIB, "the volume shrank"


def test_paused_guest_sees_a_volume_extended_by_the_service(driver: LibvirtDriver, guest_image: pathlib.Path,
                                                            state: pathlib.Path) -> None:
    volume = made(state / "volume", "raw")
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance, _LOOK)
    sees(driver, instance, _GIB)
    driver.power.pause(instance)
    os.truncate(state / "volume", 2 * _GIB)
    assert driver.volumes.extend(instance, volume, 2)
    driver.power.unpause(instance)
    sees(driver, instance, 2 * _GIB)


@pytest.mark.parametrize("inside", [pytest.param(True, id="header in the volume"), pytest.param(
    False, id="detached header", marks=pytest.mark.slow)])
def test_encrypted_volume_is_extended_with_its_header_size(driver: LibvirtDriver, guest_image: pathlib.Path,
                                                           state: pathlib.Path, inside: bool) -> None:
    path = formatted(state / "volume", size=_GIB)
    header = path.stat().st_size - _GIB
    if inside:
        path.unlink()
        formatted(path, size=_GIB - header)
        assert path.stat().st_size == _GIB
    volume = device(path, PASSPHRASE)
    volume.encryption = VolumeEncryption(key_id="x", encrypted_passphrase="")
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance, _LOOK)
    sees(driver, instance, _GIB - header * inside)
    away = msgspec.structs.replace(volume, connection=None)
    for _ in range(2):
        assert driver.volumes.extend(instance, away, 3)
        assert driver.volumes.is_extended(instance, away, 3)
    sees(driver, instance, 3 * _GIB - header * inside)
    assert path.stat().st_size == 3 * _GIB + header * (not inside)


@pytest.mark.slow
def test_encrypted_volume_of_an_unexpected_size_is_not_extended(driver: LibvirtDriver, guest_image: pathlib.Path,
                                                                state: pathlib.Path) -> None:
    path = formatted(state / "volume", size=512 << 20)
    volume, before = device(path, PASSPHRASE), path.stat().st_size
    volume.encryption = VolumeEncryption(key_id="x", encrypted_passphrase="")
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance, _LOOK)
    with pytest.raises(exception.VolumeExtendFailed, match="536870912 bytes"):
        driver.volumes.extend(instance, volume, 2)
    assert not driver.volumes.is_extended(instance, volume, 2)
    assert path.stat().st_size == before


@pytest.mark.slow
def test_stopped_guest_sees_an_extended_volume_at_its_next_start(driver: LibvirtDriver, guest_image: pathlib.Path,
                                                                 state: pathlib.Path) -> None:
    volume = made(state / "volume", "raw")
    instance = server(block_devices=[volume])
    assert not driver.volumes.extend(instance, volume, 2), "the volume of a missing guest was extended"
    boot(driver, guest_image, state, instance, _LOOK)
    stranger = msgspec.structs.replace(volume, volume_id="stranger", connection=None)
    with pytest.raises(exception.VolumeExtendFailed, match="does not have the volume"):
        driver.volumes.extend(instance, stranger, 2)
    assert not driver.volumes.is_extended(instance, stranger, 2)
    driver.power.off(instance)
    assert not driver.volumes.extend(instance, volume, 2)
    assert not driver.volumes.is_extended(instance, volume, 2)
    assert size_of(state / "volume", "raw") == _GIB, "the driver extended a volume of a stopped guest"
    os.truncate(state / "volume", 2 * _GIB)
    driver.power.on(instance)
    sees(driver, instance, 2 * _GIB)


def test_refused_volume_extension_is_reported_and_changes_nothing(
        driver: LibvirtDriver, guest_image: pathlib.Path, state: pathlib.Path, libvirt_daemon: PrivateLibvirt) -> None:
    volume = made(state / "volume", "qcow2")
    instance = server(block_devices=[volume])
    boot(driver, guest_image, state, instance, _LOOK)
    with pytest.raises(exception.VolumeExtendFailed, match="was not extended"):
        driver.volumes.extend(instance, volume, (1 << 33) - 1)  # larger than any file
    assert has(libvirt_daemon, instance) == size_of(state / "volume", "qcow2") == _GIB
