"""Cold moves of real guests between two hosts: resize, cold migration and revert."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskSource
from tests.integration.libvirt.driver_pair import LabHost, boot, hosts_fixture, wait_for_text  # noqa: F401 (fixtures)
from tests.integration.libvirt_fixtures import needs_libvirt, server
from tests.integration.processes import eventually

pytestmark = needs_libvirt
Hosts = tuple[LabHost, LabHost]
ENDED = b"=== nova guest user-data ended: 0 ==="
NOTE = b"the note of the first boot"


def bigger(root_gb: int = 2) -> Flavor:
    return Flavor(flavorid="2", name="m1.more", memory_mb=192, vcpus=1, root_gb=root_gb, ephemeral_gb=1, swap=64)


def leave(host: LabHost, instance: Instance) -> DiskSource:
    source = host.driver.cold_migration.open_disks(instance, 60)
    again = host.driver.cold_migration.open_disks(instance, 60)
    assert (again.port, again.key, again.token) == (source.port, source.key, source.token)
    assert host.driver.guests.all() == []
    assert instance.uuid in host.driver.guests.traces()
    return source


def arrive(host: LabHost, instance: Instance, source: DiskSource) -> None:
    for verb in (lambda: host.driver.cold_migration.receive_disks(instance, source),
                 lambda: host.driver.cold_migration.finish(instance)):
        for _ in range(2):
            verb()
    assert host.driver.guests.power_state(instance.uuid) == states.SHUTDOWN
    host.driver.power.on(instance)


def test_guest_is_resized_on_another_host(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    boot(one, instance, guest_image)
    wait_for_text(one, instance, ENDED)
    one.driver.cold_migration.check_resize(instance, bigger())
    source = leave(one, instance)
    assert source.key not in " ".join(_command_lines(one)), "the key is visible in a command line"

    instance.flavor = bigger()
    arrive(two, instance, source)
    log = wait_for_text(two, instance, b"sectors ")
    assert NOTE in log, "the disk was not copied"
    assert b"sectors 4194304" in log, "the disk does not have 2 GiB"
    assert 150_000 < int(log.split(b"MemTotal:")[1].split()[0]) < 192 * 1024
    assert two.files() == {"_base", instance.uuid}
    for _ in range(2):
        one.driver.cold_migration.close_disks(instance)
        one.driver.cold_migration.confirm(instance)
    assert one.files() == {"_base"}
    assert one.processes("qemu-storage-daemon") == []
    assert one.driver.guests.traces() == set()
    two.driver.power.reboot(instance, hard=True)
    wait_for_text(two, instance, NOTE)


@pytest.mark.slow
def test_reverted_resize_restores_flavor_and_disk(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    boot(one, instance, guest_image)
    wait_for_text(one, instance, ENDED)
    before = instance.flavor
    source = leave(one, instance)
    instance.flavor = bigger()
    arrive(two, instance, source)
    wait_for_text(two, instance, b"sectors ")
    for _ in range(2):
        two.driver.guests.destroy(instance)
    instance.flavor = before
    for _ in range(2):
        one.driver.cold_migration.revert(instance)
    assert one.driver.guests.power_state(instance.uuid) == states.SHUTDOWN
    one.driver.power.on(instance)
    log = wait_for_text(one, instance, b"sectors ")
    assert NOTE in log
    assert b"sectors 2097152" in log
    assert two.files() <= {"_base"}
    assert one.processes("qemu-storage-daemon") == []


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["local storage", "shared storage"])
def test_resize_on_the_same_storage_does_not_copy_disks(hosts: Hosts, guest_image: pathlib.Path, shared: bool) -> None:
    one, two = hosts
    if shared:
        for host in hosts:
            host.start_driver(shared=True)
    else:
        two = one
    instance = server()
    boot(one, instance, guest_image)
    wait_for_text(one, instance, ENDED)
    source = leave(one, instance)
    one.driver.cold_migration.close_disks(instance)  # not needed, as no disk is copied
    instance.flavor = bigger()
    arrive(two, instance, source)
    log = wait_for_text(two, instance, b"sectors ")
    assert NOTE in log
    assert b"sectors 4194304" in log
    assert one.files(shared) == {"_base", instance.uuid, f"{instance.uuid}_resize"}
    if shared:
        # A late order.
        one.driver.guests.destroy(instance)
        assert two.driver.guests.power_state(instance.uuid) == states.RUNNING
    one.driver.cold_migration.confirm(instance)
    assert one.files(shared) == {"_base", instance.uuid}, "disks in use by another host were removed"
    two.driver.power.reboot(instance, hard=True)
    two.driver.guests.destroy(instance)
    assert one.files(shared) == {"_base"}


@pytest.mark.slow
def test_resize_on_shared_storage_is_reverted(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    for host in hosts:
        host.start_driver(shared=True)
    instance = server()
    boot(one, instance, guest_image)
    source = leave(one, instance)
    arrive(two, instance, source)
    two.driver.guests.destroy(instance)
    one.driver.cold_migration.revert(instance)
    two.driver.guests.destroy(instance)  # a repeated late order
    assert one.files(shared=True) == {"_base", instance.uuid}
    one.driver.power.on(instance)
    assert one.driver.guests.power_state(instance.uuid) == states.RUNNING


@pytest.mark.slow
def test_disks_set_aside_by_a_failed_host_are_restored_by_another_host(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    two.driver.cold_migration.revert(instance)
    assert not two.driver.disks.exist(instance), "disks exist without shared storage"
    for host in hosts:
        host.start_driver(shared=True)
    boot(one, instance, guest_image)
    wait_for_text(one, instance, ENDED)
    leave(one, instance)
    one.stop_driver()
    assert not two.driver.disks.exist(instance)
    for _ in range(2):
        two.driver.cold_migration.revert(instance)
    assert two.driver.disks.exist(instance)
    two.driver.guests.destroy(instance, keep_disks=True)  # a failed evacuation, to be repeated
    assert two.driver.guests.all() == []
    assert two.files(shared=True) == {"_base", instance.uuid}
    boot(two, instance, guest_image)
    wait_for_text(two, instance, NOTE)
    one.start_driver(shared=True)
    one.driver.guests.remove_orphan(instance.uuid, keep_disks=True)
    one.driver.guests.destroy(instance)  # a late order
    assert two.driver.guests.power_state(instance.uuid) == states.RUNNING
    assert one.files(shared=True) == {"_base", instance.uuid}
    assert one.processes("qemu-storage-daemon") == []


@pytest.mark.slow
def test_disk_server_survives_compute_and_requires_its_key(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    boot(one, instance, guest_image)
    source = leave(one, instance)
    one.stop_driver()
    url = f"nbd://{source.address}:{source.port}/disk"
    with pytest.raises(subprocess.CalledProcessError):
        two.run("qemu-img", "info", url)
    wrong = DiskSource(host=source.host, token=source.token, address=source.address, port=source.port,
                       key="00" * 32, files=source.files, bases=source.bases)
    with pytest.raises(exception.MigrationError):
        two.driver.cold_migration.receive_disks(instance, wrong)
    two.driver.cold_migration.receive_disks(instance, source)

    one.start_driver()
    assert one.driver.cold_migration.open_disks(instance).key == source.key
    pid, = one.processes("qemu-storage-daemon")
    os.kill(pid, 9)
    eventually(lambda: pid not in one.processes("qemu-storage-daemon"), 30, "the daemon is dead")
    again = one.driver.cold_migration.open_disks(instance)
    assert again.key != source.key
    assert again.token == source.token
    one.driver.guests.remove_orphan(instance.uuid)
    assert one.driver.guests.traces() == set()
    assert one.processes("qemu-storage-daemon") == []


@pytest.mark.slow
def test_interrupted_disk_copy_is_resumed(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    boot(one, instance, guest_image)
    wait_for_text(one, instance, ENDED)
    source = leave(one, instance)
    place = pathlib.Path(two.state, "instances", instance.uuid)
    place.mkdir(parents=True)
    (place / "disk").write_bytes(b"of another time")
    two.driver.cold_migration.receive_disks(instance, source)
    whole = os.stat(place / "disk").st_ino
    (place / "kernel").unlink()
    (place / "kernel.part").write_bytes(b"half")
    two.driver.cold_migration.receive_disks(instance, source)
    assert os.stat(place / "disk").st_ino == whole, "a complete file was copied again"
    assert (place / "kernel").stat().st_size == (guest_image / "vmlinuz").stat().st_size
    assert not (place / "kernel.part").exists()
    two.driver.cold_migration.finish(instance)
    two.driver.power.on(instance)
    wait_for_text(two, instance, NOTE)


def test_disk_cannot_shrink(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, _two = hosts
    instance = server(flavor={"root_gb": 2})
    boot(one, instance, guest_image)
    with pytest.raises(exception.ResizeError, match="2 GiB cannot shrink to 1 GiB"):
        one.driver.cold_migration.check_resize(instance, bigger(1))
    assert one.driver.guests.power_state(instance.uuid) == states.RUNNING


def _command_lines(host: LabHost) -> list[str]:
    return [pathlib.Path(f"/proc/{pid}/cmdline").read_text() for pid in host.processes("qemu-storage-daemon")]


def test_cold_migration_without_a_guest_fails(hosts: Hosts) -> None:
    one, _two = hosts
    instance: Any = server()
    with pytest.raises(exception.GuestNotFound):
        one.driver.cold_migration.open_disks(instance)
    one.driver.cold_migration.close_disks(instance)
    one.driver.cold_migration.confirm(instance)
