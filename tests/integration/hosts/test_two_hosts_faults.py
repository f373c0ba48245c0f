"""Failures during a live migration: the guest runs on one host, and the other host is cleaned up."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.hosts.two_hosts import RealHost, RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, pytest.mark.root]

# Slow enough (in MiB/s) to inject a fault during the migration.
_OPTIONS = {"libvirt": {"live_migration_bandwidth": 8, "live_migration_monitor_interval": 1}}
# Seconds until a failed migration ends on a loaded machine: libvirtd drops a silent peer after half a minute.
_END = 180.0
# Seconds until a host has reported its inventory again: [DEFAULT]update_resources_interval plus load.
_REPORT = 120.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def cloud(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path) -> Iterator[RealCloud]:
    with real_cloud(rabbitmq, hosts, guest_image, options=_OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def guest(cloud: RealCloud) -> str:
    """A guest on the first host. Every test leaves it there."""
    return cloud.booted("moving", cloud.trio, networks=cloud.wide_network())


@pytest.fixture(autouse=True)
def nothing_left(cloud: RealCloud, guest: str) -> Iterator[None]:
    yield
    first, second = cloud.hosts.hosts
    assert cloud.host_of(guest) is first
    assert cloud.note(guest) == "moving"
    eventually(lambda: not second.leftovers(cloud.instances), 60,
               f"no files are left on {second.name}: {second.leftovers(cloud.instances)}", interval=1.0)
    assert first.host.run(["pgrep", "-c", "qemu-storage-d"], check=False).strip() == "0"
    cloud.nova.audit()


def test_migration_fails_when_qemu_is_killed_at_the_destination(cloud: RealCloud, guest: str) -> None:
    _first, second = cloud.hosts.hosts
    slow_down(cloud, guest)
    cloud.api.action(guest, "os-migrateLive", {"host": second.name, "block_migration": "auto"})
    # Wait for the process rather than for progress: a small guest may have migrated before progress is reported.
    eventually(lambda: qemu_processes(second), _END, "QEMU runs on the other host", interval=0.02)
    kill_qemu(second)
    stayed(cloud, guest)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "status"), [(20_000, "error"), (None, "failed")],
                         ids=["data copied at the start", "data written by the guest"])
def test_migration_fails_when_the_destination_disk_is_full(cloud: RealCloud, guest: str, guest_image: pathlib.Path,
                                                           room: int | None, status: str) -> None:
    first, second = cloud.hosts.hosts
    if room is None:
        with cloud.shell(guest) as shell:
            shell.run("head -c 40000000 /dev/urandom > much; sync", 120)
        own = int(first.host.run(["du", "-sk", str(cloud.instances / guest)]).split()[0])
        room = own + (guest_image / "rootfs.img").stat().st_blocks // 2 - 20_000
    before = size(cloud, second)
    second.host.run(["mount", "-t", "tmpfs", "-o", f"size={room}k,mode=755", "tmpfs", str(cloud.instances)])
    try:
        cloud.api.action(guest, "os-migrateLive", {"host": second.name, "block_migration": "auto"})
        assert stayed(cloud, guest)["status"] == status
        eventually(lambda: not second.leftovers(cloud.instances), 60, "the space on the destination is free again",
                   interval=1.0)
    finally:
        second.host.run(["umount", "-l", str(cloud.instances)])
    # nova-compute may have reported the small disk; later tests need the real size.
    eventually(lambda: size(cloud, second) == before, _REPORT, f"{second.name} is as large as before", interval=1.0)


@pytest.mark.slow
def test_migration_ends_after_the_destination_was_disconnected(cloud: RealCloud, guest: str) -> None:
    """libvirt drops a silent peer after a while; QEMU waits much longer."""
    first, second = cloud.hosts.hosts
    leave(cloud, guest, second)
    second.host.cut()
    try:
        cloud.wait_down(second)
    finally:
        second.host.mend()
    if settled(cloud, guest)["status"] == "completed":
        returned(cloud, guest)
    assert cloud.host_of(guest) is first


@pytest.mark.slow
def test_migration_ends_when_compute_is_killed_at_the_destination(cloud: RealCloud, guest: str) -> None:
    first, second = cloud.hosts.hosts
    leave(cloud, guest, second)
    cloud.nova.kill(f"compute-{second.name}")
    eventually(lambda: "running" not in first.virsh("domstate", name_of(cloud, guest), check=False), _END,
               "the guest has left the source", interval=1.0)
    cloud.nova.start(f"compute-{second.name}")
    assert settled(cloud, guest)["status"] == "completed"
    assert cloud.host_of(guest) is second
    assert cloud.note(guest) == "moving"
    eventually(lambda: not first.leftovers(cloud.instances), 60, "no files are left on the source", interval=1.0)
    returned(cloud, guest)


def slow_down(cloud: RealCloud, uuid: str) -> None:
    """Let migrations of the guest transfer 4 MiB per second, so that a fault comes before their end."""
    cloud.host_of(uuid).virsh("migrate-setspeed", name_of(cloud, uuid), "4")


def leave(cloud: RealCloud, uuid: str, host: RealHost) -> None:
    """Start a live migration and wait until data is being transferred."""
    slow_down(cloud, uuid)
    cloud.api.action(uuid, "os-migrateLive", {"host": host.name, "block_migration": "auto"})
    eventually(lambda: sent(cloud, uuid) > 0, _END, "the migration is sending data", interval=0.1)
    assert host.domains() == [name_of(cloud, uuid)]


def size(cloud: RealCloud, host: RealHost) -> int:
    """Return the disk size of the host in GiB. The newest microversions do not show it."""
    shown = cloud.api.get("/os-hypervisors/detail", version="2.87")["hypervisors"]
    return next(int(one["local_gb"]) for one in shown if one["service"]["host"] == host.name)


def sent(cloud: RealCloud, uuid: str) -> int:
    found = cloud.api.get(f"/servers/{uuid}/migrations")["migrations"]
    assert found or cloud.api.show(uuid)["OS-EXT-STS:task_state"], "the migration ended before the fault was injected"
    # The disk is transferred first and takes longest; the memory may be complete before the fault.
    return sum((one["disk_processed_bytes"] or 0) + (one["memory_processed_bytes"] or 0) for one in found)


def name_of(cloud: RealCloud, uuid: str) -> str:
    return str(cloud.api.show(uuid)["OS-EXT-SRV-ATTR:instance_name"])


def settled(cloud: RealCloud, uuid: str) -> Any:
    """Wait until the server is ACTIVE without a task; return its newest migration."""
    eventually(lambda: cloud.api.show(uuid)["OS-EXT-STS:task_state"] is None, _END, f"{uuid} has settled")
    assert cloud.api.show(uuid)["status"] == "ACTIVE"
    return cloud.api.get(f"/os-migrations?instance_uuid={uuid}")["migrations"][0]


def stayed(cloud: RealCloud, uuid: str) -> Any:
    """Check that the migration failed and the guest still runs on its host; return the migration."""
    migration = settled(cloud, uuid)
    assert migration["status"] in ("failed", "error"), migration
    assert cloud.host_of(uuid) is cloud.hosts.hosts[0]
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    return migration


def returned(cloud: RealCloud, uuid: str) -> None:
    """Migrate the guest back to the first host for the other tests."""
    eventually(lambda: all(service["state"] == "up" for service in cloud.api.get("/os-services")["services"]), 60,
               "all services are up")
    cloud.api.action(uuid, "os-migrateLive", {"host": cloud.hosts.hosts[0].name, "block_migration": "auto"})
    assert settled(cloud, uuid)["status"] == "completed"


def qemu_processes(host: RealHost) -> list[int]:
    """Return the processes of guests. libvirt also runs QEMU to read its capabilities."""
    found = []
    for pid, name in host.host.processes().items():
        with contextlib.suppress(OSError):
            if name.startswith("qemu-system") and b"guest=" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill_qemu(host: RealHost) -> None:
    for pid in qemu_processes(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
