"""Live migration of real guests between two hosts, with local disks and on shared storage."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import threading
import time
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import MigrationTarget
from nova.objects.volumes.volume import VolumeConnection
from tests.integration.libvirt.driver_pair import COUNT, LabHost, boot, console, hosts_fixture, wait_for_text  # noqa: F401
from tests.integration.libvirt_fixtures import needs_libvirt, server

pytestmark = needs_libvirt
Hosts = tuple[LabHost, LabHost]


def ticks(host: LabHost, instance: Instance) -> list[int]:
    """Return the output of the counting process in the guest."""
    return [int(number) for number in re.findall(rb"tick (\d+)\r?\n", console(host, instance))]


def wait_for_ticks(host: LabHost, instance: Instance, more_than: int = 0) -> int:
    """Wait until the guest has counted beyond ``more_than``."""
    end = time.monotonic() + 120
    while not (found := [number for number in ticks(host, instance) if number > more_than]):
        assert time.monotonic() < end, f"the counter stays below {more_than}: {console(host, instance)[-300:]!r}"
        time.sleep(0.5)
    return max(found)


def started(hosts: Hosts, image: pathlib.Path, **fields: Any) -> Instance:
    instance = server(**fields)
    boot(hosts[0], instance, image, COUNT)
    wait_for_ticks(hosts[0], instance)
    return instance


def prepared(hosts: Hosts, instance: Instance, there: Instance | None = None) -> MigrationTarget:
    one, two = hosts
    source = one.driver.live_source.check(instance)
    for _ in range(2):
        target = two.driver.live_target.prepare(there or instance, source)
    return target


def finished(hosts: Hosts, instance: Instance, target: MigrationTarget, there: Instance | None = None) -> None:
    one, two = hosts
    for _ in range(2):
        two.driver.live_target.finish(there or instance)
        one.driver.guests.destroy(instance, keep_disks=target.shared)
    assert one.driver.guests.all() == []
    assert [guest.uuid for guest in two.driver.guests.all()] == [instance.uuid]


class Running(threading.Thread):
    """A live migration in its own thread. ``error`` is the exception that ended the migration."""

    def __init__(self, host: LabHost, instance: Instance, target: MigrationTarget) -> None:
        super().__init__(daemon=True)
        self.host, self.instance, self.target = host, instance, target
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.host.driver.live_migrate(self.instance, self.target)
        except BaseException as error:
            self.error = error

    def wait_until_it_sends(self) -> None:
        end = time.monotonic() + 60
        while "memory" not in self._job():
            assert time.monotonic() < end
            assert self.is_alive(), self.error
            time.sleep(0.2)

    def _job(self) -> str:
        with contextlib.suppress(subprocess.CalledProcessError):
            return self.host.run("virsh", "-c", self.host.libvirt.uri, "domjobinfo", self.instance.uuid).lower()
        return ""

    def ended(self) -> BaseException | None:
        self.join(240)
        assert not self.is_alive()
        return self.error


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["block", "shared"])
def test_guest_process_continues_during_live_migration(hosts: Hosts, guest_image: pathlib.Path, shared: bool) -> None:
    one, two = hosts
    if shared:
        for host in hosts:
            host.start_driver(shared=True)
    for host, bridge in ((one, "br-one"), (two, "br-two")):
        with contextlib.suppress(subprocess.CalledProcessError):
            host.run("ip", "link", "add", bridge, "type", "bridge")
    vif = VIF(id="v", network_id="n", label="l", mac="fa:16:3e:11:22:55", bridge="br-one", devname="taplive")
    instance = started(hosts, guest_image, network_info=[vif])
    there = msgspec.structs.replace(instance, network_info=[msgspec.structs.replace(vif, bridge="br-two")])
    target = prepared(hosts, instance, there)
    assert target.shared == shared
    assert target.copied == ([] if shared else ["disk"])
    assert two.driver.guests.all() == []

    before = wait_for_ticks(one, instance)
    one.driver.live_migrate(instance, target)
    told = one.driver.progress()
    assert all(progress.memory_total >= 128 << 20 for progress in told), "the progress of disks hides the memory"
    assert all(bool(progress.disk_total) != shared for progress in told)
    assert told[-1].percent == 100
    assert told[-1].memory_processed > 0
    one.driver.live_migrate(instance, target)
    assert two.driver.guests.power_state(instance.uuid) == states.RUNNING
    finished(hosts, instance, target, there)
    wait_for_ticks(two, instance, more_than=before)
    assert 1 not in ticks(two, instance) or shared, "the guest booted instead of continuing"
    assert "master br-two" in two.run("ip", "link", "show", "taplive")
    assert one.files(shared) == ({"_base", instance.uuid} if shared else {"_base"})
    assert one.processes("qemu-storage-daemon") == []

    one.driver.guests.destroy(instance)  # a late order, after the migration
    two.driver.power.reboot(there, hard=True)
    wait_for_text(two, instance, b"nova guest ready")
    two.driver.guests.destroy(there)
    assert two.files(shared) == {"_base"}


@pytest.mark.slow
def test_cancelled_live_migration_keeps_the_guest_on_the_source(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    one.start_driver(live_migration_bandwidth=1, live_migration_monitor_interval=1)
    instance = started(hosts, guest_image)
    for stop in (one.driver.cancel, lambda: one.run("virsh", "-c", one.libvirt.uri, "domjobabort", instance.uuid)):
        running = Running(one, instance, prepared(hosts, instance))
        running.wait_until_it_sends()
        assert two.driver.guests.all() == [], "the destination lists the guest before its arrival"
        with pytest.raises(exception.GuestNotFound):
            two.driver.guests.power_state(instance.uuid)
        stop()
        assert isinstance(running.ended(), exception.MigrationCancelled)
        for _ in range(2):
            two.driver.live_target.rollback(instance, running.target)
        assert two.driver.guests.traces() == set()
        assert one.driver.guests.power_state(instance.uuid) == states.RUNNING
        wait_for_ticks(one, instance, more_than=wait_for_ticks(one, instance))
    two.driver.live_source.force_complete(instance.uuid)


@pytest.mark.slow
def test_live_migration_continues_without_compute_and_is_resumed(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    one.start_driver(live_migration_bandwidth=8, live_migration_monitor_interval=1)
    instance = started(hosts, guest_image)
    target = prepared(hosts, instance)
    running = Running(one, instance, target)
    running.wait_until_it_sends()
    one.start_driver(live_migration_monitor_interval=1)
    assert running.ended() is not None, "the call did not end with its process"
    one.driver.live_migrate(instance, target)
    with pytest.raises(exception.MigrationError, match="guest already runs"):
        two.driver.live_target.rollback(instance, target)
    finished(hosts, instance, target)
    wait_for_ticks(two, instance)


@pytest.mark.slow
def test_live_migration_is_forced_to_complete(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    one.start_driver(live_migration_bandwidth=8, live_migration_monitor_interval=1)
    instance = started(hosts, guest_image)
    target = prepared(hosts, instance)
    running = Running(one, instance, target)
    running.wait_until_it_sends()
    one.driver.live_source.force_complete(instance.uuid)
    assert running.ended() is None
    finished(hosts, instance, target)
    assert two.driver.guests.power_state(instance.uuid) == states.RUNNING
    wait_for_ticks(two, instance)


@pytest.mark.slow
def test_live_migration_is_aborted_after_the_completion_timeout(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    one.start_driver(live_migration_bandwidth=1, live_migration_completion_timeout=1)
    instance = started(hosts, guest_image)
    target = prepared(hosts, instance)
    error = Running(one, instance, target).ended()
    assert isinstance(error, exception.MigrationError)
    assert "did not end within" in str(error)
    two.driver.live_target.rollback(instance, target)
    assert one.driver.guests.power_state(instance.uuid) == states.RUNNING


def test_live_migration_checks_refuse_incompatible_guests(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    instance = server()
    with pytest.raises(exception.MigrationPreCheckError, match="is not running"):
        one.driver.live_source.check(instance)
    boot(one, instance, guest_image, COUNT)
    source = one.driver.live_source.check(instance)
    odd = "<cpu mode='custom' match='exact'><model>EPYC-Milan</model><feature policy='require' name='no-such'/></cpu>"
    for change, word in (({"machine": "pc-i440fx-99"}, "machine type"), ({"hypervisor_version": 99_000_000}, "older"),
                         ({"cpu": odd}, "CPU")):
        with pytest.raises(exception.MigrationPreCheckError, match=word):
            two.driver.live_target.prepare(instance, msgspec.structs.replace(source, **change))
    with pytest.raises(exception.MigrationPreCheckError, match="do not share"):
        two.driver.live_target.prepare(instance, source, False)
    with pytest.raises(exception.MigrationPreCheckError, match="already"):
        one.driver.live_target.prepare(instance, source)
    assert two.driver.guests.traces() == set()
    one.driver.cold_migration.close_disks(instance)
    assert one.processes("qemu-storage-daemon") == []


@pytest.mark.slow
def test_live_migration_uses_volume_paths_of_the_destination(hosts: Hosts, guest_image: pathlib.Path) -> None:
    one, two = hosts
    pool = pathlib.Path(one.place).parent / "pool"
    pool.mkdir(mode=0o755, exist_ok=True)
    path = pool / "volume"
    subprocess.run(["qemu-img", "create", "-q", "-f", "raw", str(path), "32M"], check=True, timeout=60)

    def device(where: pathlib.Path) -> BlockDevice:
        return BlockDevice(source="volume", destination="volume", volume_id="v", device_name="/dev/vdd",
                           connection=VolumeConnection(volume_id="v", path=str(where), serial="v"))

    (pool / "seen-otherwise").unlink(missing_ok=True)
    (pool / "seen-otherwise").symlink_to(path)
    instance = started(hosts, guest_image, block_devices=[device(path)])
    there = msgspec.structs.replace(instance, block_devices=[device(pool / "seen-otherwise")])
    target = prepared(hosts, instance, there)
    one.driver.live_migrate(instance, target)
    finished(hosts, instance, target, there)
    shown = two.run("virsh", "-c", two.libvirt.uri, "domblklist", instance.uuid)
    assert re.search(r"vdd\s+\S*/seen-otherwise", shown)
    two.driver.volumes.detach(there, device(path))
    assert "vdd" not in two.run("virsh", "-c", two.libvirt.uri, "domblklist", instance.uuid)
