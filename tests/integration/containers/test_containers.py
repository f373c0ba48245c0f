"""Containers (virt_type lxc) under a real libvirtd."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import unittest.mock
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.containers import roles
from nova.virt.libvirt.driver import ContainerDriver, LibvirtDriver
from tests.integration.containers.container_lab import (
    container_daemon,
    container_driver,
    loops_of,
    make_archive,
    make_file_system,
    make_partitioned,
    needs_containers,
)
from tests.integration.libvirt_fixtures import PrivateLibvirt, server, wait_for, wait_for_console
from tests.polling import poll

pytestmark = [needs_containers, pytest.mark.root]


@pytest.fixture(scope="module", name="daemon")
def daemon_fixture() -> Iterator[PrivateLibvirt]:
    with container_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="module", name="images")
def images_fixture(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a directory with root.tar, root.raw (a file system) and root.qcow2 (a partitioned disk)."""
    place = tmp_path_factory.mktemp("images")
    place.chmod(0o755)
    archive = make_archive(place / "root.tar")
    file_system = make_file_system(archive, place / "root.raw")
    disk = make_partitioned(file_system, place / "disk.raw")
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", disk, place / "root.qcow2"], check=True, timeout=60)
    (place / "root.qcow2").chmod(0o644)
    return place


@pytest.fixture(name="events")
def events_fixture() -> list[Any]:
    return []


@pytest.fixture(name="driver")
def driver_fixture(daemon: PrivateLibvirt, events: list[Any]) -> Iterator[Any]:
    with container_driver(daemon, events) as driver:
        assert type(driver) is ContainerDriver
        yield driver
        for guest in driver.guests.all():
            driver.guests.remove_orphan(guest.uuid)
        assert not loops_of(daemon.place)


def container(**fields: Any) -> Instance:
    made = server(**fields)
    return msgspec.structs.replace(made, image=msgspec.structs.replace(made.image, properties={}))


def boot(driver: Any, instance: Instance, images: pathlib.Path, image: str = "root.raw") -> None:
    files = BootFiles(root=str(images / image), root_format=image.rpartition(".")[2].replace("tar", "raw"))
    driver.disks.prepare(instance, files)
    driver.guests.spawn(instance, files)


def ready(driver: Any, instance: Instance, boots: int = 1) -> bytes:
    return wait_for_console(driver, instance, b"container ready: ", boots, 60)


@pytest.mark.parametrize("image", ["root.tar", "root.raw", "root.qcow2"])
def test_container_boots_from_an_image(driver: Any, images: pathlib.Path, image: str) -> None:
    instance = container(flavor={"root_gb": 1, "memory_mb": 64})
    boot(driver, instance, images, image)
    assert b", boot 1" in ready(driver, instance)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    assert loops_of(CONF.instances_path)
    driver.guests.destroy(instance)
    assert driver.guests.all() == []
    assert driver.guests.traces() == set()


def test_container_goes_through_its_power_states(driver: Any, images: pathlib.Path, events: list[Any]) -> None:
    instance = container()
    files = BootFiles(root=str(images / "root.raw"), root_format="raw")
    driver.disks.prepare(instance, files)
    driver.guests.spawn(instance, files, paused=True)
    assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    driver.power.unpause(instance)
    ready(driver, instance)
    driver.power.pause(instance)
    assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    driver.power.unpause(instance)
    driver.power.off(instance, timeout=30)  # busybox powers off by a signal
    assert driver.guests.power_state(instance.uuid) == states.SHUTDOWN
    driver.power.on(instance)
    ready(driver, instance, 2)
    driver.power.reboot(instance, hard=False, timeout=30)
    ready(driver, instance, 3)
    driver.power.pause(instance)
    driver.power.reboot(instance, hard=True)
    ready(driver, instance, 4)
    driver.power.off(instance)
    wait_for(lambda: [event.power_state for event in events if event.uuid == instance.uuid][-1:] == [states.SHUTDOWN],
             30, "the stop is reported")


class Shell:
    """The shell on a container's console, at the TCP port of the driver."""

    def __init__(self, driver: Any, instance: Instance) -> None:
        address = wait_for(lambda: driver.consoles.address(instance.uuid, "serial"), 10, "the console has a port")
        self._socket = socket.create_connection((address.host, address.port), timeout=20)
        self._file = self._socket.makefile("rwb")

    def run(self, command: str) -> str:
        """Return the output of a command."""
        # The terminal echoes the command, which does not contain the whole mark.
        self._file.write(f"{command}; echo E'N'D:$?\n".encode())
        self._file.flush()
        lines: list[str] = []
        while not lines or not lines[-1].startswith("END:"):
            lines.append(self._file.readline().decode().strip())
            assert lines[-1] or self._socket.fileno() >= 0
        return "\n".join(line for line in lines[:-1] if "E'N'D" not in line)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(name="serial")
def serial_fixture() -> Iterator[None]:
    register(CONF)
    CONF.set_override("enabled", True, "serial_console")
    yield
    CONF.clear_override("enabled", "serial_console")


def vif(number: int) -> VIF:
    identity = f"{uuid.uuid4()}"
    return VIF(id=identity, network_id=identity, label="net", mac=f"fa:16:3e:00:00:{number:02x}", bridge="br0",
               devname=f"tap{identity[:11]}")


def volume(path: pathlib.Path, size_mb: int) -> BlockDevice:
    with open(path, "wb") as file:
        file.truncate(size_mb << 20)
    return BlockDevice(source="volume", destination="volume", volume_id=str(uuid.uuid4()), device_name="/dev/vdb",
                       connection=VolumeConnection(volume_id="v", path=str(path)))


@pytest.mark.parametrize("kind", ["interface", "volume"])
def test_device_is_attached_to_a_container_that_has_just_started(driver: Any, images: pathlib.Path, kind: str) -> None:
    """libvirt learns the first process of a container some time after its start, and refuses devices before that."""
    instance = container(network_info=[vif(1)])
    boot(driver, instance, images)
    role, device = (driver.interfaces, vif(2)) if kind == "interface" else (
        driver.volumes, volume(pathlib.Path(CONF.state_path, "volume"), 16))
    for number in range(5):
        role.attach(instance, device)
        role.detach(instance, device)
        if number < 4:
            driver.power.reboot(instance, hard=True, timeout=0)


def test_container_has_interfaces_volumes_and_limits(serial: None, driver: Any, images: pathlib.Path,
                                                     daemon: PrivateLibvirt) -> None:
    first, second = vif(1), vif(2)
    instance = container(flavor={"memory_mb": 96, "vcpus": 2}, specs={"quota:cpu_shares": "512"}, network_info=[first])
    boot(driver, instance, images)
    ready(driver, instance)
    shell = Shell(driver, instance)
    assert first.mac in shell.run("ip link show eth0")
    driver.interfaces.attach(instance, second)
    assert second.mac in shell.run("ip link")
    disk = volume(pathlib.Path(CONF.state_path, "volume"), 16)
    for _ in range(2):
        driver.volumes.attach(instance, disk)
    shell.run("mke2fs -q /dev/vdb && mount /dev/vdb /mnt && echo kept > /mnt/file && sync")
    with pytest.raises(exception.DeviceDetachFailed, match="mounted"):
        driver.volumes.detach(instance, disk)
    assert driver.volumes.extend(instance, disk, 1)
    assert driver.volumes.is_extended(instance, disk, 1)
    stats = driver.guests.diagnostics(instance)
    assert (stats.values["state"], stats.values["driver"], stats.values["num_nics"]) == ("running", "libvirt", 2)
    assert stats.values["cpu_details"][0]["time"] > 0
    assert stats.values["memory_details"]["maximum"] == 96
    assert stats.values["nic_details"][0]["tx_octets"] is not None
    assert stats.flat[f"{first.devname}_rx"] >= 0
    name = instance.name_by("instance-%08x")
    limits = daemon.run("virsh", "-c", daemon.uri, "schedinfo", name)
    assert re.findall(r"(cpu_shares|vcpu_period|vcpu_quota) *: (\d+)", limits) == [
        ("cpu_shares", "512"), ("vcpu_period", "100000"), ("vcpu_quota", "200000")]
    assert re.search(rf"hard_limit *: {96 << 10}\n", daemon.run("virsh", "-c", daemon.uri, "memtune", name))
    shell.run("umount /mnt")
    shell.close()
    driver.power.off(instance)
    assert driver.consoles.output(instance, 3)
    with pytest.raises(exception.GuestNotRunning):
        driver.consoles.address(instance.uuid, "serial")

    instance = msgspec.structs.replace(instance, block_devices=[disk], network_info=[first, second])
    driver.power.on(instance)
    shell = Shell(driver, instance)
    assert "kept" in shell.run("mount /dev/vdb /mnt; cat /mnt/file; umount /mnt")
    for _ in range(2):
        driver.volumes.detach(instance, disk)
        driver.interfaces.detach(instance, second)
    assert "No such file" in shell.run("ls /dev/vdb")
    assert second.mac not in shell.run("ip link")
    shell.close()
    assert not loops_of(CONF.state_path + "/volume")


@pytest.mark.parametrize("running", [True, False])
def test_image_of_a_container_boots(driver: Any, images: pathlib.Path, running: bool) -> None:
    instance = container()
    boot(driver, instance, images, "root.tar")
    ready(driver, instance)
    if not running:
        driver.power.off(instance, 30)
    copy = driver.snapshots.take(instance, "image", threading.Event())
    assert copy.format == "qcow2"
    twin = container(flavor={"root_gb": 2})
    files = BootFiles(root=copy.path, root_format="qcow2")
    pathlib.Path(copy.path).chmod(0o644)
    driver.disks.prepare(twin, files)
    driver.guests.spawn(twin, files)
    assert b", boot 2" in ready(driver, twin)
    driver.snapshots.discard(instance)
    if running:  # its file system is not frozen any more
        driver.power.reboot(instance, hard=False, timeout=30)
        assert b", boot 2" in ready(driver, instance, 2)
    assert not [name for name in os.listdir(f"{CONF.instances_path}/{instance.uuid}") if name.startswith("snapshot")]


def test_container_is_resized_reverted_and_rebuilt(serial: None, driver: Any, images: pathlib.Path) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    larger = msgspec.structs.replace(instance, flavor=msgspec.structs.replace(instance.flavor, root_gb=2))
    with pytest.raises(exception.ResizeError):
        driver.cold_migration.check_resize(larger, msgspec.structs.replace(instance.flavor, root_gb=0.001))
    driver.cold_migration.check_resize(instance, larger.flavor)
    source = driver.cold_migration.open_disks(instance, 30)
    assert driver.guests.all() == []
    driver.cold_migration.receive_disks(larger, source)
    driver.cold_migration.finish(larger)
    driver.power.on(larger)
    ready(driver, larger)
    shell = Shell(driver, larger)
    assert shell.run("cat /etc/boots").strip() == "2"
    assert int(shell.run("df -m / | tail -n 1").split()[1]) > 1900
    shell.close()
    driver.guests.destroy(larger)
    driver.cold_migration.close_disks(instance)
    driver.cold_migration.revert(instance)
    driver.power.on(instance)
    assert b", boot 2" in ready(driver, instance, 2)

    driver.disks.replace(instance, BootFiles(root=str(images / "root.tar"), root_format="raw"), "token")
    driver.guests.spawn(instance, BootFiles())
    assert b", boot 1" in ready(driver, instance)


def first_process(daemon: PrivateLibvirt, instance: Any) -> int:
    """Return the process id, on the host, of the container's first process."""
    domain_id = daemon.run("virsh", "-c", daemon.uri, "domid", instance.uuid).strip()
    return int(pathlib.Path(f"/proc/{domain_id}/task/{domain_id}/children").read_text().split()[0])


def test_console_survives_restarts_of_libvirtd_and_reboots_from_inside(driver: Any, images: pathlib.Path,
                                                                       daemon: PrivateLibvirt) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    daemon.kill_daemon()
    daemon.start_daemon()
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    driver.power.pause(instance)
    driver.power.unpause(instance)
    # The signal is not sent by libvirtd, which may not know the first process after its restart on a busy machine.
    os.kill(first_process(daemon, instance), signal.SIGTERM)  # busybox reboots
    ready(driver, instance, 2)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING


def test_container_has_a_console_log_when_all_ports_are_in_use_and_after_a_failed_attempt(
        serial: None, driver: Any, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    instance = container()
    CONF.set_override("port_range", "10:10", "serial_console")
    files = BootFiles(root=str(images / "root.raw"), root_format="raw")
    driver.disks.prepare(instance, files)
    log = pathlib.Path(CONF.instances_path, instance.uuid, "console.log")
    log.symlink_to(tmp_path)  # cannot be opened
    try:
        driver.guests.spawn(instance, files)
        wait_for(lambda: driver._guests.consoles._thread.is_alive() and not poll(log.is_file, 3), 10, "an attempt")
        log.unlink()
        ready(driver, instance)
        assert driver.consoles.address(instance.uuid, "serial") is None
    finally:
        CONF.clear_override("port_range", "serial_console")


def test_console_has_a_limited_number_of_clients(serial: None, driver: Any, images: pathlib.Path) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    shell = Shell(driver, instance)
    address = driver.consoles.address(instance.uuid, "serial")
    others = [socket.create_connection((address.host, address.port), timeout=20) for _number in range(8)]
    assert others[-1].recv(1) == b"", "is disconnected"
    assert shell.run("echo $((3 * 5))") == "15"
    for other in others:
        other.close()
    shell.close()


def test_file_system_of_the_host_is_never_frozen(driver: Any, images: pathlib.Path, daemon: PrivateLibvirt) -> None:
    """The first process of a container may have ended, and its id been reused, before its root directory is opened."""
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    domain = unittest.mock.Mock(ID=lambda: os.getpid(), UUIDString=lambda: instance.uuid)
    with subprocess.Popen(["sleep", "60"]) as process:
        assert roles.open_root(domain) is None
        process.kill()
    root = driver._guests.on_domain_or(instance.uuid, roles.open_root, None)
    assert root is not None
    os.close(root)


def test_container_reads_its_config_drive(serial: None, driver: Any, images: pathlib.Path,
                                          tmp_path: pathlib.Path) -> None:
    instance = container()
    tree = tmp_path / "tree/openstack/latest"
    tree.mkdir(parents=True)
    (tree / "meta_data.json").write_text('{"uuid": "a container"}')
    subprocess.run(["genisoimage", "-quiet", "-V", "config-2", "-J", "-r", "-o", tmp_path / "drive", tmp_path / "tree"],
                   check=True, timeout=60)
    files = BootFiles(root=str(images / "root.raw"), root_format="raw", config_drive=str(tmp_path / "drive"))
    driver.disks.prepare(instance, files)
    driver.guests.spawn(instance, files)
    ready(driver, instance)
    shell = Shell(driver, instance)
    assert "a container" in shell.run("cat /config-drive/openstack/latest/meta_data.json; touch /config-drive/x")
    shell.close()


def test_container_without_interfaces_has_no_network_of_the_host(serial: None, driver: Any,
                                                                 images: pathlib.Path) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    shell = Shell(driver, instance)
    assert re.findall(r"^\d+: ([^:@]+)", shell.run("ip link"), re.MULTILINE) == ["lo"]
    late = vif(3)
    driver.interfaces.attach(instance, late)
    assert late.mac in shell.run("ip link")
    shell.close()


def test_unsupported_operations_are_refused_without_effect(driver: Any, images: pathlib.Path) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    assert not driver.capabilities & {"suspend", "live_migration", "rescue"}
    for verb in (lambda: driver.power.suspend(instance), lambda: driver.power.resume(instance),
                 lambda: driver.rescue.begin(instance, instance.image, BootFiles()),
                 lambda: driver.live_source.check(instance), lambda: driver.power.trigger_crash_dump(instance),
                 lambda: driver.guests.set_password(instance, "x"), lambda: driver.snapshots.quiesce(instance)):
        with pytest.raises(exception.NotImplementedHere):
            verb()
    assert driver.consoles.address(instance.uuid, "vnc") is None
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    node, = driver.nodes()
    assert node.hypervisor_type == "LXC"
    assert ("x86_64", "lxc", "exe") in node.supported_instances
    assert not [name for name in node.provider.traits if "STORAGE_BUS" in name or "RESCUE" in name]


@pytest.mark.parametrize(("content", "words"), [(b"neither" * 4096, "neither a file system"),
                                                (b"\x1f\x8b" + bytes(4096), "tar archive")])
def test_image_that_is_no_file_system_is_refused(driver: Any, tmp_path: pathlib.Path, content: bytes,
                                                 words: str) -> None:
    instance = container()
    (tmp_path / "image.raw").write_bytes(content)
    with pytest.raises(exception.InvalidDiskInfo, match=words):
        driver.disks.prepare(instance, BootFiles(root=str(tmp_path / "image.raw"), root_format="raw"))
    assert os.listdir(f"{CONF.instances_path}/{instance.uuid}") == ["owner"]


def test_driver_thaws_file_systems_that_its_predecessor_left_frozen(
        driver: Any, images: pathlib.Path, daemon: PrivateLibvirt) -> None:
    instance = container()
    boot(driver, instance, images)
    ready(driver, instance)
    root = f"/proc/{first_process(daemon, instance)}/root"
    subprocess.run(["fsfreeze", "--freeze", root], check=True, timeout=30)
    twin = LibvirtDriver(driver.host)
    twin.start(lambda _status: None)
    twin.stop()
    driver.power.reboot(instance, hard=False, timeout=30)
    assert b", boot 2" in ready(driver, instance, 2)


def test_container_that_cannot_start_names_the_reason(driver: Any, tmp_path: pathlib.Path) -> None:
    instance = container()
    subprocess.run(["mke2fs", "-q", "-t", "ext4", tmp_path / "empty.raw", "4M"], check=True, timeout=60)
    files = BootFiles(root=str(tmp_path / "empty.raw"), root_format="raw")
    driver.disks.prepare(instance, files)
    with pytest.raises(exception.InvalidInput, match="cannot start"):
        driver.guests.spawn(instance, files)
    driver.guests.destroy(instance)
    assert driver.guests.traces() == set()
