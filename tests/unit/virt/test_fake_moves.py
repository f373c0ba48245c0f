"""Migrations and devices of virtual guests: two hosts in one process."""

import threading
import time

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.objects.servers.moves import DiskSource, MigrationProgress
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.fake.driver import FakeDriver
from tests.unit.virt.guests import interface, server

VOLUME = BlockDevice(source="volume", destination="volume", volume_id="vol", device_name="/dev/vdc")
NOBODY = threading.Event()


@pytest.fixture(params=["own disks", "shared disks", "own files", "shared files"])
def hosts(request, tmp_path):
    conf.register()
    CONF.set_override("shared_storage", request.param.startswith("shared"), group="fake")
    if request.param.endswith("files"):
        CONF.set_override("directory", str(tmp_path), group="fake")
    yield started("one"), started("two")
    CONF.clear_override("shared_storage", group="fake")
    CONF.clear_override("directory", group="fake")


def started(host):
    driver = FakeDriver(host)
    driver.start(lambda status: None)
    return driver


def boot(driver, **fields):
    instance = server(**fields)
    driver.disks.prepare(instance, BootFiles())
    driver.guests.spawn(instance, BootFiles())
    return instance


def bigger(instance, root_gb=2):
    instance.flavor = Flavor(flavorid="2", name="m1.more", vcpus=2, memory_mb=256, root_gb=root_gb)
    return instance


@pytest.fixture(autouse=True)
def no_remains():
    """Clear the dictionary shared by all hosts, which would outlive the test."""
    yield
    from nova.virt.fake import disks as fake_disks

    for name in fake_disks._ALL_HOSTS.names():
        fake_disks._ALL_HOSTS.remove(name)


# --- devices ---------------------------------------------------------------------------------------
def test_devices_are_attached_once_and_persist_over_power_cycles(hosts):
    one, _two = hosts
    instance = boot(one)
    for _ in range(2):
        one.volumes.attach(instance, VOLUME)
        one.interfaces.attach(instance, interface(3))
    assert one.guest(instance.uuid).volumes == (("/dev/vdc", "vol"),)
    assert one.guest(instance.uuid).interfaces == (interface(3).mac,)
    instance.block_devices, instance.network_info = [VOLUME], [interface(3)]
    one.power.reboot(instance, hard=True)
    assert one.guest(instance.uuid).volumes == (("/dev/vdc", "vol"),)
    for _ in range(2):
        one.volumes.detach(instance, VOLUME)
        one.interfaces.detach(instance, interface(3))
    assert (one.guest(instance.uuid).volumes, one.guest(instance.uuid).interfaces) == ((), ())


def test_volume_without_device_name_gets_the_next_free_name(hosts):
    one, _two = hosts
    instance = boot(one)
    one.volumes.attach(instance, BlockDevice(source="volume", destination="volume", volume_id="a"))
    one.volumes.attach(instance, BlockDevice(source="volume", destination="volume", volume_id="b"))
    assert one.guest(instance.uuid).volumes == (("/dev/vdb", "a"), ("/dev/vdc", "b"))


def test_attach_to_a_missing_guest_fails_and_detach_succeeds(hosts):
    one, _two = hosts
    with pytest.raises(exception.GuestNotFound):
        one.volumes.attach(server(), VOLUME)
    one.volumes.detach(server(), VOLUME)
    one.interfaces.detach(server(), interface())


# --- cold moves ------------------------------------------------------------------------------------
def move(one, two, instance):
    one.cold_migration.check_resize(instance, bigger(server()).flavor)
    for _ in range(2):
        source = one.cold_migration.open_disks(instance, timeout=1)
    assert one.guests.all() == []
    bigger(instance)
    for _ in range(2):
        two.cold_migration.receive_disks(instance, source)
    for _ in range(2):
        two.cold_migration.finish(instance)
    assert two.guests.power_state(instance.uuid) == states.SHUTDOWN
    two.power.on(instance)


def test_resized_guest_has_its_new_size_on_the_destination(hosts):
    one, two = hosts
    instance = boot(one)
    move(one, two, instance)
    assert [guest.uuid for guest in two.guests.all()] == [instance.uuid]
    assert two.guest(instance.uuid).size.memory_mb == 256
    assert two.disk(instance.uuid).gb == 2
    assert one.disk(instance.uuid, aside=True).gb == 1
    for _ in range(2):
        one.cold_migration.close_disks(instance)
        one.cold_migration.confirm(instance)
    assert one.disk(instance.uuid, aside=True) is None
    assert two.disk(instance.uuid).gb == 2


def test_reverted_guest_has_its_original_size_and_disk(hosts):
    one, two = hosts
    instance = boot(one)
    token = one.disk(instance.uuid).token
    move(one, two, instance)
    for _ in range(2):
        two.guests.destroy(instance)
    instance.flavor = server().flavor
    for _ in range(2):
        one.cold_migration.revert(instance)
    one.power.on(instance)
    assert two.guests.all() == []
    assert one.guest(instance.uuid).size.memory_mb == 128
    assert one.disk(instance.uuid).token == token, "the original disk was replaced"
    assert one.disk(instance.uuid, aside=True) is None


def test_resize_on_the_same_host_replaces_the_disk(hosts):
    one, _two = hosts
    instance = boot(one)
    move_here = one.cold_migration.open_disks(instance)
    bigger(instance)
    one.cold_migration.receive_disks(instance, move_here)
    one.cold_migration.finish(instance)
    one.cold_migration.confirm(instance)
    assert (one.disk(instance.uuid).gb, one.disk(instance.uuid, aside=True)) == (2, None)


def test_resize_to_a_smaller_disk_is_refused(hosts):
    one, _two = hosts
    instance = boot(one, flavor={"root_gb": 5})
    with pytest.raises(exception.ResizeError, match="5 GiB cannot shrink to 2 GiB"):
        one.cold_migration.check_resize(instance, bigger(server()).flavor)
    assert one.guests.power_state(instance.uuid) == states.RUNNING


def test_disk_source_key_is_not_in_its_representation(hosts):
    one, _two = hosts
    source = one.cold_migration.open_disks(boot(one))
    assert source.key
    assert source.key not in f"{source} {source!r}"
    assert isinstance(source, DiskSource)


# --- live migration --------------------------------------------------------------------------------
def prepared(one, two, instance, block=None):
    source = one.live_source.check(instance)
    for _ in range(2):
        target = two.live_target.prepare(instance, source, block)
    return target


def test_live_migration_moves_a_guest_with_its_devices(hosts):
    one, two = hosts
    instance = boot(one, network_info=[interface()], block_devices=[VOLUME])
    target = prepared(one, two, instance)
    assert target.shared == CONF.fake.shared_storage
    assert two.guests.all() == [], "the guest is listed on the destination before the migration"
    seen = []
    for _ in range(2):
        one.live_source.migrate(instance, target, seen.append, NOBODY)
    assert seen[-1].percent == 100
    for _ in range(2):
        two.live_target.finish(instance)
        one.guests.destroy(instance, keep_disks=target.shared)
    assert (one.guests.all(), two.guests.power_state(instance.uuid)) == ([], states.RUNNING)
    assert two.guest(instance.uuid).volumes == (("/dev/vdc", "vol"),)
    assert two.disk(instance.uuid).host == "two"


def test_migrated_guest_runs_on_the_destination_without_finish(hosts):
    one, two = hosts
    instance = boot(one)
    target = prepared(one, two, instance)
    with pytest.raises(exception.GuestNotFound):
        two.guests.power_state(instance.uuid)
    one.live_source.migrate(instance, target, lambda progress: None, NOBODY)
    assert one.guests.all() == []
    if CONF.fake.directory:
        two = started("two")
    assert two.guests.power_state(instance.uuid) == states.RUNNING
    with pytest.raises(exception.MigrationError, match="already runs"):
        two.live_target.rollback(instance, target)
    two.live_target.finish(instance)
    assert [guest.uuid for guest in two.guests.all()] == [instance.uuid]


def test_cancelled_live_migration_reports_progress_and_leaves_the_guest(hosts):
    one, two = hosts
    instance = boot(one)
    target = prepared(one, two, instance)
    one.behaviour.latency["live_migrate"] = 6.0
    seen, cancelled = [], threading.Event()

    def look(progress: MigrationProgress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            cancelled.set()

    with pytest.raises(exception.MigrationCancelled):
        one.live_source.migrate(instance, target, look, cancelled)
    assert seen[0].memory_remaining > seen[-1].memory_remaining > 0
    assert seen[0].memory_total == 128 << 20
    for _ in range(2):
        two.live_target.rollback(instance, target)
    assert one.guests.power_state(instance.uuid) == states.RUNNING
    assert two.guests.all() == []
    assert (two.disk(instance.uuid) is not None) == CONF.fake.shared_storage
    assert one.disk(instance.uuid) is not None


def test_live_migration_ends_when_cancelled_or_forced(hosts):
    one, two = hosts
    instance = boot(one)
    target = prepared(one, two, instance)
    one.behaviour.latency["live_migrate"] = 600.0
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(exception.MigrationCancelled):
        one.live_source.migrate(instance, target, lambda progress: None, cancelled)
    began = time.monotonic()
    one.live_source.migrate(instance, target, lambda progress: one.live_source.force_complete(instance.uuid), NOBODY)
    assert time.monotonic() - began < 300
    two.live_target.finish(instance)


def test_failed_live_migration_leaves_the_guest_on_the_source(hosts):
    one, two = hosts
    instance = boot(one)
    target = prepared(one, two, instance)
    one.behaviour.failure["live_migrate"] = 1.0
    with pytest.raises(exception.NovaException):
        one.live_source.migrate(instance, target, lambda progress: None, NOBODY)
    two.live_target.rollback(instance, target)
    assert one.guests.power_state(instance.uuid) == states.RUNNING


def test_block_migration_request_must_match_the_storage(hosts):
    one, two = hosts
    instance = boot(one)
    source = one.live_source.check(instance)
    with pytest.raises(exception.MigrationPreCheckError, match="share"):
        two.live_target.prepare(instance, source, CONF.fake.shared_storage)
    assert two.live_target.prepare(instance, source, not CONF.fake.shared_storage).host == "two"


def test_live_migration_requires_a_running_guest_and_another_host(hosts):
    one, _two = hosts
    instance = boot(one)
    with pytest.raises(exception.MigrationPreCheckError, match="already"):
        one.live_target.prepare(instance, one.live_source.check(instance))
    one.power.off(instance)
    with pytest.raises(exception.MigrationPreCheckError, match="is not running"):
        one.live_source.check(instance)


# --- leftovers ---------------------------------------------------------------------------------------
def test_evacuation_uses_existing_disks_on_shared_storage(hosts):
    one, two = hosts
    instance = boot(one)
    token = one.disk(instance.uuid).token
    assert two.disks.exist(instance) == CONF.fake.shared_storage
    two.disks.prepare(instance, BootFiles())
    two.guests.spawn(instance, BootFiles())
    one.guests.destroy(instance, keep_disks=True)
    assert (two.disk(instance.uuid).token == token) == CONF.fake.shared_storage


def test_orphaned_guest_is_stopped_or_removed_by_uuid(hosts):
    one, two = hosts
    instance = boot(one)
    one.guests.stop(instance.uuid)
    two.guests.stop(instance.uuid)
    assert one.guests.power_state(instance.uuid) == states.SHUTDOWN
    assert instance.uuid in one.guests.traces()
    one.cold_migration.open_disks(instance)
    assert instance.uuid in one.guests.traces(), "retained disks are missing in the traces"
    for _ in range(2):
        one.guests.remove_orphan(instance.uuid, keep_disks=True)
    assert one.disk(instance.uuid, aside=True) is not None
    one.guests.remove_orphan(instance.uuid)
    assert one.guests.traces() == set()


def test_restarted_host_has_its_guests_and_disks(hosts):
    one, _two = hosts
    instance = boot(one)
    one.cold_migration.open_disks(boot(one, uuid="00000000-0000-4000-8000-000000000000"))
    if CONF.fake.directory:
        again = started("one")
        assert again.guest(instance.uuid) == one.guest(instance.uuid)
        assert again.disk(instance.uuid) == one.disk(instance.uuid)
        assert again.guests.traces() == one.guests.traces()
