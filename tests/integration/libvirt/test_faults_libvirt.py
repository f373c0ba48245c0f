"""Faults during boots of real guests: all services in this process, with a private libvirtd."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nova import bus, conf, context
from nova.cmd import allinone
from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.db import audit
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.objects.networks.network import Network
from nova.rpcapi.networks import Networks
from tests.functional.client import Client, Failed
from tests.integration.libvirt_fixtures import PrivateLibvirt, needs_libvirt, wait_for
from tests.unit.databases import unfinished

pytestmark = needs_libvirt

# Size of the guests' file system: at least one GiB, or the host reports no disk inventory.
_DISK = 1 << 30
# MiB for cached images.
_CACHE = 256


def _forget_options() -> None:
    CONF.clear()
    CONF.reset()


class Room:
    """All services, the hypervisor, and a private file system for the guests."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.instances = os.path.join(place, "instances")
        with contextlib.ExitStack() as undo:  # so that a failure during setup cleans up
            self._make(undo)
            self._undo = undo.pop_all()

    def _make(self, undo: contextlib.ExitStack) -> None:
        os.mkdir(self.instances)
        # mounted before libvirtd gets its namespaces, so that libvirtd sees the file system, too
        size = _DISK + (_CACHE << 20)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", self.instances],
                       check=True)
        undo.callback(subprocess.run, ["umount", self.instances], check=True)
        self.libvirt = PrivateLibvirt(self.place)
        undo.callback(self.libvirt.stop)
        self.libvirt.start()
        undo.callback(_forget_options)
        self._configure()
        self.suite = allinone.Suite()
        undo.callback(self.suite.stop)
        self.suite.start()
        self.admin = Client(self.suite.url)
        self.flavor = self.admin.flavor(ram=128, disk=1)

    def close(self) -> None:
        self._undo.close()

    def _configure(self) -> None:
        allinone.set_defaults()
        conf.load([], default_files=[])
        for name, value, group in (
                ("state_path", self.place, None), ("instances_path", self.instances, None),
                ("compute_driver", "libvirt", None), ("virt_type", "qemu", "libvirt"),
                ("connection_uri", self.libvirt.uri, "libvirt"), ("port", 0, "api"), ("report_interval", 1, None),
                ("disk_allocation_ratio", 16.0, None), ("size_limit_mb", _CACHE, "image_cache"),
                ("lease", 4, "conductor"), ("recovery_interval", 1, "conductor")):
            CONF.set_override(name, value, group=group)

    def stop_compute(self) -> None:
        self.suite.compute.stop()

    def start_compute(self) -> None:
        """Start a new compute service, as after a restart of the process."""
        fresh = ComputeService(self.suite.transport)
        fresh.start()
        services = self.suite._services
        services[services.index(self.suite.compute)] = self.suite.compute = fresh

    def add_image(self, path: pathlib.Path | str, disk_format: str = "qcow2", **fields: Any) -> str:
        return DirectoryStore().add(str(path), Image(
            id=new_uuid(), name="image", disk_format=disk_format, container_format="bare", visibility="public",
            **fields)).id

    def boot(self, image: str, **values: Any) -> str:
        return self.admin.boot(self.flavor, image, **values)

    def fault(self, uuid: str) -> str:
        """Wait for the server to go to ERROR and return its fault message."""
        shown = self.admin.wait(uuid, "ERROR", "ACTIVE", seconds=60)
        assert shown["status"] == "ERROR"
        assert shown["OS-EXT-SRV-ATTR:host"] is None
        assert shown["addresses"] == {}
        return str(shown["fault"]["message"])

    def domains(self) -> list[str]:
        """Return the UUIDs of all domains in any state."""
        return sorted(self.libvirt.run("virsh", "-c", self.libvirt.uri, "list", "--all", "--uuid").split())

    def usage(self) -> list[int]:
        node = self.admin.get("/os-hypervisors/detail", version="2.87")["hypervisors"][0]
        return [node[name] for name in ("vcpus_used", "memory_mb_used", "local_gb_used", "running_vms")]

    def guest_files(self) -> list[str]:
        """Return the files of guests, without cached images and the file that fills the disk."""
        return sorted(set(os.listdir(self.instances)) - {"_base", "filler"})

    def partial_images(self) -> list[str]:
        base = os.path.join(self.instances, "_base")
        return [name for name in os.listdir(base) if name.endswith((".part", ".conv"))] if os.path.isdir(base) else []

    def delete_all(self) -> None:
        left = [server["id"] for server in self.admin.get("/servers", all_tenants=1)["servers"]]
        for uuid in left:
            with contextlib.suppress(Failed):
                self.admin.delete(f"/servers/{uuid}")
        for uuid in left:
            self.admin.wait_gone(uuid, seconds=60)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        filler = os.path.join(self.instances, "filler")
        block = bytes(1 << 20)
        try:
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while file.write(block) == len(block):
                    pass
            yield
        finally:
            os.unlink(filler)


@pytest.fixture(scope="module")
def shared_room() -> Iterator[Room]:
    with tempfile.TemporaryDirectory(prefix="nova-faults.", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)  # noqa: S103
        room = Room(place)
        try:
            yield room
        finally:
            room.close()


@pytest.fixture
def room(shared_room: Room) -> Iterator[Room]:
    """The shared room. Deletes all servers after the test and checks that nothing of them is left."""
    yield shared_room
    shared_room.delete_all()
    assert shared_room.domains() == []
    assert shared_room.guest_files() == []
    assert shared_room.partial_images() == []
    db = shared_room.suite.conductor.core.db
    wait_for(lambda: not db.read(unfinished), 15, "all operations end")
    assert [str(finding) for finding in audit.audit(db)] == []


@pytest.fixture(scope="module")
def good(shared_room: Room, guest_image: pathlib.Path) -> str:
    return shared_room.add_image(guest_image / "nova-guest.qcow2")


def qcow2(room: Room, size: str) -> str:
    """Create an empty image of this virtual size and return its path."""
    path = os.path.join(room.place, f"{new_uuid()}.qcow2")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, size], check=True)
    return path


def test_boot_fails_when_the_image_is_deleted_before_the_download(room: Room, guest_image: pathlib.Path) -> None:
    networks = bus.client(room.suite.transport, Networks)
    network = networks.create(context.admin(), Network(uuid=new_uuid(), label="n", cidr="10.77.0.0/29", gateway="",
                                                       bridge="")).uuid
    image = room.add_image(guest_image / "nova-guest.qcow2")
    before = room.usage()
    room.stop_compute()
    uuid = room.boot(image, networks=[{"uuid": network}])
    wait_for(lambda: room.admin.server(uuid)["OS-EXT-SRV-ATTR:host"], 10, "the server has a host")
    assert room.usage() != before
    room.admin.delete(f"/images/{image}", version="2.1")
    room.start_compute()
    assert room.fault(uuid) == f"Image {image} could not be found."
    assert room.domains() == []
    assert room.guest_files() == []
    assert room.usage() == before
    networks.delete(context.admin(), network)  # fails while an address is in use


@pytest.mark.parametrize(("damage", "reason"), [
    ("other content", "its content is not in the format qcow2"),
    ("cut off", "is unacceptable: "),
    ("changed", "its md5 checksum does not match"),
    ("gone", "could not be found."),
    ("with a backing file", "refers to another file"),
])
def test_boot_from_a_corrupt_image_fails(room: Room, guest_image: pathlib.Path, damage: str, reason: str) -> None:
    path = pathlib.Path(qcow2(room, "1M"))
    if damage == "other content":
        path.write_bytes(b"no disk at all" * 100)
    elif damage == "cut off":
        os.truncate(path, 40)
    elif damage == "with a backing file":
        path.unlink()
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", str(path), "1M"],
                       check=True)
    image = room.add_image(path)
    stored = pathlib.Path(str(CONF.image.directory), image)
    if damage == "changed":
        data = bytearray(stored.read_bytes())
        data[-1] ^= 1
        stored.write_bytes(data)
    elif damage == "gone":
        stored.unlink()
    uuid = room.boot(image)
    message = room.fault(uuid)
    assert image in message
    assert reason in message
    assert room.place not in message
    assert room.guest_files() == []
    assert not [name for name in os.listdir(os.path.join(room.instances, "_base")) if name.startswith(image)]


def test_boot_fails_when_the_image_is_larger_than_the_flavor_disk(room: Room) -> None:
    image = room.add_image(qcow2(room, "2G"))
    message = room.fault(room.boot(image))
    assert message == ("Flavor's disk is too small for requested image. Flavor disk is 1073741824 bytes, "
                       "image is 2147483648 bytes.")
    known = room.add_image(qcow2(room, "2G"), virtual_size=2 << 30)
    with pytest.raises(Failed) as failed:
        room.boot(known)
    assert (failed.value.code, failed.value.message) == (400, message)


def test_boot_fails_when_the_disk_of_the_host_is_full(room: Room, good: str, guest_image: pathlib.Path) -> None:
    fresh = room.add_image(guest_image / "nova-guest.qcow2")
    with room.full_disk():
        message = room.fault(room.boot(fresh))
        assert message.startswith("The host has not enough free disk space: ")
        assert room.place not in message
        assert room.guest_files() == []
        assert room.partial_images() == []
    uuid = room.boot(fresh)
    room.admin.wait(uuid, "ACTIVE", seconds=60)
    room.delete_all()
    with room.full_disk():  # the image is cached now, so the guest's own disk has no space
        message = room.fault(room.boot(fresh))
        assert message.startswith("The host has not enough free disk space: ")
        assert room.guest_files() == []


def test_boots_resume_after_libvirtd_was_killed(room: Room, good: str) -> None:
    made = [room.boot(good), room.boot(good)]
    wait_for(lambda: all(room.admin.server(uuid)["OS-EXT-SRV-ATTR:host"] for uuid in made), 10,
             "both servers are scheduled")
    room.libvirt.kill_daemon()
    late = room.boot(good)
    time.sleep(3)
    assert room.admin.server(late)["status"] == "BUILD"
    room.libvirt.start_daemon()
    made.append(late)
    for uuid in made:
        assert room.admin.wait(uuid, "ACTIVE", seconds=60)["OS-EXT-STS:power_state"] == 1
    assert room.domains() == sorted(made)
    running = room.libvirt.run("virsh", "-c", room.libvirt.uri, "list", "--uuid").split()
    assert sorted(running) == sorted(made)


def test_unavailable_libvirtd_is_reported_in_the_fault(room: Room, good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nova.compute import runner

    monkeypatch.setattr(runner, "_HYPERVISOR_TIMEOUT", 2.0)
    CONF.set_override("reconnect_timeout", 1, group="libvirt")
    uuid = room.boot(good)
    room.admin.wait(uuid, "ACTIVE", seconds=60)
    room.libvirt.kill_daemon()
    try:
        failed = room.boot(good)
        assert room.fault(failed) == "Connection to the hypervisor is broken."
        room.admin.action(uuid, "pause")
        assert room.admin.wait(uuid, "ACTIVE", seconds=30)["OS-EXT-STS:power_state"] == 1
    finally:
        room.libvirt.start_daemon()
        CONF.clear_override("reconnect_timeout", group="libvirt")
    wait_for(lambda: room.domains() == [uuid], 30, "only the good server's domain is there")
    room.admin.action(uuid, "pause")
    room.admin.wait(uuid, "PAUSED", seconds=30)
    # The next reconciliation removes what could not be cleaned up.
    room.suite.compute.reconciler.compare()
    assert room.guest_files() == [uuid]
    room.admin.delete(f"/servers/{failed}")
    room.admin.wait_gone(failed)


def test_boots_resume_after_compute_was_stopped(room: Room, good: str) -> None:
    made = [room.boot(good) for _ in range(3)]
    room.stop_compute()
    late = room.boot(good)
    room.start_compute()
    for uuid in (*made, late):
        assert room.admin.wait(uuid, "ACTIVE", seconds=60)["OS-EXT-STS:power_state"] == 1
    assert room.domains() == sorted([*made, late])
    room.admin.delete(f"/servers/{late}")
    room.stop_compute()
    room.start_compute()
    room.admin.wait_gone(late, seconds=30)
