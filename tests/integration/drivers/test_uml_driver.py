"""The User Mode Linux driver beyond the contract: users, isolation, disks, processes that end in unusual ways."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.conf import CONF
from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeConnection, VolumeKey
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.uml import definition, process, supervisor
from tests.integration.drivers.subject import wait_for
from tests.integration.drivers.uml_subject import UmlSubject

pytestmark = pytest.mark.skipif(bool(UmlSubject.missing()), reason=UmlSubject.missing() or "-")
# Tries to mount directories of the host, and permits root to log in on the console.
SCRIPT = """#!/bin/sh
sed -i "s|^root:[^:]*|root:$(grep ^nova: /etc/shadow | cut -d: -f2)|" /etc/shadow
for path in /etc ../../../../etc; do
    mount -t hostfs -o "$path" none /mnt && echo "HOST FILES: $path" || echo "no host files"
done
"""


class Shell:
    """The shell of root on the console of a guest."""

    def __init__(self, place: pathlib.Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(place / supervisor.CONSOLE_SOCKET))
        self._socket.settimeout(60)
        self.send("\n", b"login: ")
        self.send("root\n", b"Password: ")
        self.send("novaguest\n", b"# ")
        self._commands = 0
        self.run("stty -echo; PS1=")

    def send(self, text: str, until: bytes) -> bytes:
        self._socket.sendall(text.encode())
        output = b""
        while until not in output:
            data = self._socket.recv(4096)
            assert data, output
            output += data
        return output

    def run(self, command: str) -> str:
        self._commands += 1
        end = f"<{self._commands}>\r\n"
        output = self.send(f"{command}; echo '<'{self._commands}'>'\n", end.encode()).decode()
        return output.replace("\x1b[6n", "").removesuffix(end).strip()

    def close(self) -> None:
        """Log out, if the guest still runs."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b"exit\n")
        self._socket.close()


@pytest.fixture(name="uml", scope="module")
def uml_fixture(guest_image: pathlib.Path) -> Iterator[UmlSubject]:
    place = pathlib.Path(tempfile.mkdtemp(prefix="nova-uml."))
    place.chmod(0o755)
    subject = UmlSubject(place, guest_image)
    try:
        yield subject
    finally:
        subject.close()
        shutil.rmtree(place)


@pytest.fixture(name="guest", scope="module")
def guest_fixture(uml: UmlSubject) -> Instance:
    """A guest that has booted with a config drive, on which root may log in."""
    instance = uml.server(network_info=[uml.interface(1)], config_drive=True)
    instance.user_data = base64.b64encode(SCRIPT.encode()).decode()
    drive = uml.place / "drive.iso"
    config_drive.build(instance, str(drive), MetadataSettings())
    files = BootFiles(root=uml.files(instance).root, root_format="raw", config_drive=str(drive))
    uml.driver.disks.prepare(instance, files)
    uml.driver.guests.spawn(instance, files)
    uml.wait_until_booted(instance)
    return instance


def place_of(instance: Instance) -> pathlib.Path:
    return pathlib.Path(CONF.instances_path, instance.uuid)


def kernel_of(instance: Instance) -> int:
    return process.kernel_pid(str(place_of(instance))) or 0


def processes_in(place: pathlib.Path) -> list[int]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(path) == str(place):
                found.append(int(path.parent.name))
    return found


def status_of(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":\t" in line)


def test_guest_runs_as_a_user_of_its_own_without_privileges(uml: UmlSubject, guest: Instance) -> None:
    other = uml.server()
    uml.driver.disks.prepare(other, uml.files(other))
    uml.driver.guests.spawn(other, uml.files(other), paused=True)
    users = set()
    for instance in (guest, other):
        status = status_of(kernel_of(instance))
        users |= set(status["Uid"].split())
        assert status["Uid"] == status["Gid"]
        assert (status["Groups"].strip(), status["NoNewPrivs"], int(status["CapEff"], 16)) == ("", "1", 0)
        assert oct((place_of(instance) / "disk.cow").stat().st_mode)[-3:] == "600"
    assert len(users) == 2
    assert "0" not in users
    uml.driver.guests.destroy(other)


def test_guest_reads_its_config_drive_and_no_files_of_the_host(uml: UmlSubject, guest: Instance) -> None:
    log = uml.console(guest).decode()
    assert "source=config-drive" in log
    assert log.count("no host files") == 2
    assert "HOST FILES" not in log


def test_data_survive_power_cycles_snapshots_and_a_larger_flavor(uml: UmlSubject, guest: Instance,
                                                                guest_image: pathlib.Path) -> None:
    image = hashlib.sha256(pathlib.Path(uml.driver.disks.used_images()[0]).read_bytes()).digest()
    shell = Shell(place_of(guest))
    assert shell.run("echo penguin > /root/note; sync; cat /root/note") == "penguin"
    volume = uml.volume(1)
    assert volume.connection is not None
    uml.driver.volumes.attach(guest, volume)
    stored = definition.load(str(place_of(guest)))
    disk = stored.disk(volume.volume_id or "") if stored else None
    assert disk is not None
    shell.run(f"echo data > /dev/ubd{disk.letter}; sync")
    uml.driver.volumes.detach(guest, volume)
    assert pathlib.Path(volume.connection.path).read_bytes()[:5] == b"data\n"
    assert os.stat(volume.connection.path).st_uid == 0
    made = uml.driver.snapshots.take(guest, "5e6c1a0e-0000-4000-8000-000000000003", threading.Event())
    raw = uml.place / "snapshot.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", made.path, str(raw)], check=True, timeout=60)
    note = subprocess.run(["debugfs", "-R", "cat /root/note", str(raw)], capture_output=True, text=True, timeout=60)
    assert note.stdout == "penguin\n", note.stderr
    uml.driver.snapshots.discard(guest)
    shell.close()

    larger = msgspec.structs.replace(guest, flavor=msgspec.structs.replace(guest.flavor, root_gb=1))
    # A host that does not see the disks copies them over the network.
    source = msgspec.structs.replace(uml.driver.cold_migration.open_disks(guest, 60), token="of another host")
    uml.driver.cold_migration.receive_disks(larger, source)
    uml.driver.cold_migration.finish(larger)
    uml.driver.cold_migration.confirm(guest)
    uml.driver.power.on(larger)
    uml.wait_until_booted(larger, 1)
    shell = Shell(place_of(guest))
    assert shell.run("cat /root/note; cat /sys/block/ubda/size; df -m / | tail -n 1 | awk '{ print ($2 > 900) }'") \
        .split() == ["penguin", str(1 << 21), "1"]
    shell.close()
    assert hashlib.sha256((guest_image / "rootfs.img").read_bytes()).digest() == image


def test_guest_that_powers_off_or_crashes_is_reported(uml: UmlSubject, guest: Instance) -> None:
    ends = (("poweroff", states.SHUTDOWN), ("echo c > /proc/sysrq-trigger", states.CRASHED))
    for boots, (command, state) in enumerate(ends, 1):
        uml.driver.power.on(guest)
        uml.wait_until_booted(guest, boots)
        shell = Shell(place_of(guest))
        uml.events.clear()
        shell.send(f"{command}\n", b"\n")
        wait_for(lambda state=state: GuestStatus(uuid=guest.uuid, power_state=state) in uml.events, 30, command)
        assert uml.state(guest) == state
        assert not os.path.exists(f"/sys/class/net/{uml.interface(1).devname}")
        assert processes_in(place_of(guest)) == []
        shell.close()
    uml.driver.power.on(guest)
    assert uml.state(guest) == states.RUNNING


def test_guest_ends_with_its_supervisor_and_leaves_no_processes(uml: UmlSubject) -> None:
    instance = uml.boot()
    place = place_of(instance)
    assert len(processes_in(place)) > 2
    os.kill(int((place / supervisor.PID).read_text().split()[0]), signal.SIGKILL)
    wait_for(lambda: uml.state(instance) != states.RUNNING, 10, "the end of the guest")
    uml.driver.power.off(instance)
    wait_for(lambda: processes_in(place) == [], 10, "the end of all processes")
    uml.driver.power.on(instance)
    assert uml.state(instance) == states.RUNNING
    uml.driver.guests.destroy(instance)


@pytest.mark.parametrize("killed", [False, True], ids=["supervisor", "no supervisor"])
def test_processes_that_left_the_process_group_of_their_guest_end_with_it(uml: UmlSubject, tmp_path: pathlib.Path,
                                                                          killed: bool) -> None:
    """An attacker who controls the kernel can start processes of the host. They would outlive the server, with access
    to the files of the next guest of the user."""
    kernel = uml.place / "kernel"
    kernel.write_text(f'#!/bin/sh\n(cd / && setsid sleep 4321 &)\nexec {CONF.uml.kernel} "$@"\n')
    kernel.chmod(0o755)
    CONF.set_override("kernel", str(kernel), "uml")
    try:
        instance = uml.boot()
    finally:
        CONF.clear_override("kernel", "uml")
    place = place_of(instance)
    uid = place.joinpath("disk.cow").stat().st_uid
    assert uid in process.users()
    subprocess.run(["pgrep", "-u", str(uid), "-x", "sleep"], capture_output=True, check=True, timeout=30)
    if killed:
        os.kill(int((place / supervisor.PID).read_text().split()[0]), signal.SIGKILL)
    started = time.monotonic()
    uml.driver.guests.destroy(instance)
    assert time.monotonic() - started < process._KILL_TIMEOUT
    wait_for(lambda: uid not in process.users(), 10, "the end of all processes")


def test_guest_continues_after_a_kill_of_nova_compute_during_a_snapshot(uml: UmlSubject) -> None:
    instance = uml.boot()
    uml.wait_until_booted(instance)
    guests, uuid = uml.driver._guests, instance.uuid
    with guests.locks.hold(uuid), pytest.raises(KeyboardInterrupt), \
            unittest.mock.patch.object(guests, "end_copy"), guests.stopped_for_copy(uuid):
        raise KeyboardInterrupt
    shell = socket.socket(socket.AF_UNIX)
    shell.connect(str(place_of(instance) / supervisor.CONSOLE_SOCKET))
    shell.settimeout(1)
    shell.sendall(b"\n")
    with contextlib.suppress(TimeoutError):
        while shell.recv(4096):
            pass
    again = uml.make_driver()
    again.start(lambda _guest: None)
    try:
        assert uml.state(instance) == states.RUNNING
        shell.settimeout(60)
        shell.sendall(b"\n")
        assert shell.recv(4096)
    finally:
        shell.close()
        again.stop()
    uml.driver.guests.destroy(instance)


def test_process_with_the_id_of_a_former_guest_is_not_killed(uml: UmlSubject) -> None:
    instance = uml.boot()
    uml.driver.power.off(instance)
    place = place_of(instance)
    with subprocess.Popen(["sleep", "60"]) as innocent:
        identity = supervisor.identity(innocent.pid)
        pid, started, boot = identity.split()
        for recorded in (f"{pid} {int(started) - 1} {boot}", f"{pid} {started} another-boot"):
            for name in (supervisor.PID, supervisor.KERNEL_PID):
                (place / name).write_text(recorded)
            assert uml.state(instance) == states.SHUTDOWN
            uml.driver.power.off(instance)
        uml.driver.guests.destroy(instance)
        assert innocent.poll() is None
        innocent.kill()


def test_management_socket_of_another_guest_is_not_used(uml: UmlSubject) -> None:
    """The user of a guest owns the directory of its socket, and may replace the socket by a link."""
    mine, other = uml.boot(), uml.boot()
    path = place_of(mine) / supervisor.RUN / supervisor.UMID / "mconsole"
    path.unlink()
    path.symlink_to(place_of(other) / supervisor.RUN / supervisor.UMID / "mconsole")
    with pytest.raises(exception.GuestNotRunning):
        uml.driver.power.pause(mine)
    path.parent.rename(path.parent.with_name("away"))
    path.parent.symlink_to(place_of(other) / supervisor.RUN / supervisor.UMID)
    with pytest.raises(exception.GuestNotRunning):
        uml.driver.power.pause(mine)
    assert process.request(other.uuid, str(place_of(other)), "version")
    for instance in (mine, other):
        uml.driver.guests.destroy(instance)
        assert processes_in(place_of(instance)) == []


def test_host_offers_no_more_memory_than_its_file_system_has(uml: UmlSubject, tmp_path: pathlib.Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", tmp_path], check=True, timeout=30)
    CONF.set_override("memory_directory", str(tmp_path), "uml")
    try:
        node, = uml.driver.nodes()
        assert node.provider.inventories["MEMORY_MB"].total == 64
    finally:
        CONF.clear_override("memory_directory", "uml")
        subprocess.run(["umount", tmp_path], check=True, timeout=30)


@pytest.mark.parametrize(("fields", "reason"), [
    ({"flavor": {"vcpus": 2}}, "2 VCPUs"), ({"kernel_id": "k"}, "kernel"),
    ({"properties": {"hw_vm_mode": "hvm"}}, "hw_vm_mode=hvm"), ({"properties": {"img_hv_type": "kvm"}}, "img_hv_type"),
    ({"properties": {"hw_architecture": "aarch64"}}, "aarch64"), ({"properties": {"hw_disk_bus": "scsi"}}, "SCSI"),
    ({"properties": {"hw_firmware_type": "uefi"}}, "UEFI")], ids=str)
def test_unsupported_hardware_is_refused_before_anything_is_created(uml: UmlSubject, fields: dict[str, Any],
                                                                    reason: str) -> None:
    properties = fields.pop("properties", {})
    instance = uml.server(**fields)
    assert instance.image is not None
    instance.image.properties = properties
    with pytest.raises(exception.InvalidInput, match=reason):
        uml.driver.disks.prepare(instance, uml.files(instance))
    assert not place_of(instance).exists()


def test_unsupported_volumes_and_interfaces_are_refused(uml: UmlSubject) -> None:
    instance = uml.server()
    uml.driver.disks.prepare(instance, uml.files(instance))
    uml.driver.guests.spawn(instance, uml.files(instance), paused=True)
    before = (place_of(instance) / supervisor.DEFINITION).read_text()
    usable = uml.volume(3)
    assert usable.connection is not None
    for changes in ({"protocol": "rbd"}, {"format": "qcow2"}, {"below": [("/x", "raw")]}, {"shareable": True},
                    {"limits": {"total_iops_sec": 1}}, {"key": VolumeKey(key_id="k", passphrase="p")}):
        connection: VolumeConnection = msgspec.structs.replace(usable.connection, **changes)
        with pytest.raises(exception.VolumeUnusable, match="does not support"):
            uml.driver.volumes.attach(instance, msgspec.structs.replace(usable, connection=connection))
    vif: VIF = msgspec.structs.replace(uml.interface(5), vif_type="ovs")
    with pytest.raises(exception.NetworkSetupError, match="ovs"):
        uml.driver.interfaces.attach(instance, vif)
    assert (place_of(instance) / supervisor.DEFINITION).read_text() == before
    assert os.stat(usable.connection.path).st_uid == 0
    uml.driver.guests.destroy(instance)


def test_image_with_partitions_boots_from_its_linux_partition(uml: UmlSubject, guest_image: pathlib.Path) -> None:
    instance = uml.server(flavor={"root_gb": 1})
    files = BootFiles(root=str(guest_image / "nova-guest.qcow2"), root_format="qcow2")
    uml.driver.disks.prepare(instance, files)
    uml.driver.guests.spawn(instance, files)
    uml.wait_until_booted(instance)
    assert "root=/dev/ubda2" in (place_of(instance) / supervisor.DEFINITION).read_text()
    uml.driver.guests.destroy(instance)


def test_kernel_that_does_not_start_is_an_error_and_leaves_nothing(uml: UmlSubject) -> None:
    instance = uml.server(network_info=[uml.interface(4)])
    uml.driver.disks.prepare(instance, uml.files(instance))
    CONF.set_override("kernel", "/bin/true", "uml")
    started = time.monotonic()
    try:
        with pytest.raises(exception.NovaException, match="did not start"):
            uml.driver.guests.spawn(instance, uml.files(instance))
    finally:
        CONF.clear_override("kernel", "uml")
    assert time.monotonic() - started < CONF.uml.start_timeout / 2
    assert not os.path.exists(f"/sys/class/net/{uml.interface(4).devname}")
    assert processes_in(place_of(instance)) == []
    uml.driver.guests.destroy(instance)
