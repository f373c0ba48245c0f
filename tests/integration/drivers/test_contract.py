"""The contract of hypervisor drivers (see the package's docstring): each verb of each role, on every driver."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Iterator

import msgspec
import pytest

from nova import exception
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from tests.integration.drivers.subject import (
    COVERED,
    OPTIONAL,
    Subject,
    all_verbs,
    covers,
    faster_than,
    refused,
    wait_for,
)
from tests.integration.drivers.subjects import SUBJECTS
from tools.feature_matrix import is_supported

IMAGE_ID = "5e6c1a0e-0000-4000-8000-000000000002"


@pytest.fixture(name="host", scope="module", params=SUBJECTS)
def host_fixture(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The driver under test, started once."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="nova-contract."))
    place.chmod(0o755)
    subject = SUBJECTS[request.param](request, place)
    try:
        yield subject
    finally:
        subject.close()
        shutil.rmtree(place)


@pytest.fixture(name="subject")
def subject_fixture(host: Subject, request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The driver under test, without guests at the end."""
    mark = request.node.get_closest_marker("verbs")
    for verb in mark.args if mark else ():
        if not is_supported(host.driver, verb):
            pytest.skip(f"the driver does not support {verb}")
        if verb in host.elsewhere:
            pytest.skip(f"{host.elsewhere[verb]} tests {verb}")
    host.events.clear()
    yield host
    host.remove_guests()


# --- declarations ------------------------------------------------------------------------------------
def test_every_verb_of_every_role_is_covered() -> None:
    # Verbs between two hosts, and under guests with an agent, are tested in files of the drivers that have them.
    elsewhere = {verb for verb in all_verbs() if verb.startswith(("live_", "volume_swaps.", "volume_files."))}
    elsewhere |= {"snapshots.quiesce", "snapshots.unquiesce", "guests.set_password", "power.trigger_crash_dump",
                  "volumes.extend", "volumes.is_extended"}
    assert all_verbs() - COVERED == elsewhere


def test_unsupported_verbs_are_refused_before_anything_changes(subject: Subject) -> None:
    missing = sorted(verb for verb in all_verbs() - OPTIONAL if not is_supported(subject.driver, verb))
    instance = subject.boot()
    for verb in missing:
        assert refused(subject, verb, instance), verb
        assert subject.state(instance) == states.RUNNING, verb


def test_driver_reports_its_node(subject: Subject) -> None:
    node = subject.driver.nodes()[0]
    assert node.uuid == node.provider.uuid == subject.driver.nodes()[0].uuid
    assert node.host == subject.driver.host
    assert node.supported_instances
    inventories = node.provider.inventories
    assert {"COMPUTE_NODE", "OWNER_NOVA"} <= set(node.provider.traits)
    if subject.bare_metal:
        assert {name: (offered.total, offered.reserved) for name, offered in inventories.items()} == {
            "CUSTOM_GOLD": (1, 0)}
        return
    assert len(subject.driver.nodes()) == 1
    assert all(inventories[name].total > 0 for name in ("VCPU", "MEMORY_MB", "DISK_GB"))
    if subject.measures_cpu_time:
        times = subject.driver.host_cpu()
        assert times.user > 0
        assert times.idle > 0
    assert subject.driver.boot_id()


# --- life cycle --------------------------------------------------------------------------------------
@covers("guests.spawn", "guests.destroy", "guests.all", "guests.power_state", "disks.prepare", "power.on", "power.off",
        "power.reboot", optional=("consoles.output", "disks.exist"))
def test_guest_life_cycle(subject: Subject) -> None:
    driver, instance = subject.driver, subject.server()
    assert not subject.has_disks(instance)
    for _ in range(2):
        driver.disks.prepare(instance, subject.files(instance))
    assert subject.has_disks(instance) != subject.bare_metal
    for _ in range(2):
        driver.guests.spawn(instance, subject.files(instance))
    assert subject.has_disks(instance)
    assert driver.guests.all() == [GuestStatus(uuid=instance.uuid, power_state=states.RUNNING)]
    subject.wait_until_booted(instance)

    with faster_than(subject.shutdown_seconds):
        driver.power.reboot(instance, hard=False, timeout=subject.shutdown_seconds)
    subject.wait_until_booted(instance, 2)
    driver.power.reboot(instance, hard=True)
    assert subject.state(instance) == states.RUNNING
    subject.wait_until_booted(instance, 3)
    if is_supported(driver, "consoles.output"):
        assert driver.consoles.output(instance, 2).strip().count(b"\n") <= 2
    with faster_than(subject.shutdown_seconds):
        driver.power.off(instance, timeout=subject.shutdown_seconds)
    for _ in range(2):
        assert subject.state(instance) == states.SHUTDOWN
        driver.power.off(instance, timeout=subject.shutdown_seconds)
    driver.power.reboot(instance, hard=False)
    for _ in range(2):
        assert subject.state(instance) == states.RUNNING
        driver.power.on(instance)
    for _ in range(2):
        driver.guests.destroy(instance)
    assert driver.guests.all() == []
    assert driver.guests.traces() == set()
    assert not subject.has_disks(instance)


def test_operations_on_a_missing_guest_raise_guest_not_found(subject: Subject) -> None:
    instance = subject.server()
    verbs = ["power.off", "guests.power_state", "guests.diagnostics", "power.pause", "power.unpause", "power.suspend"]
    for verb in (verb for verb in verbs if is_supported(subject.driver, verb)):
        with pytest.raises(exception.GuestNotFound):
            subject.call(verb, instance)
    with pytest.raises(exception.GuestNotFound):
        subject.driver.power.reboot(instance, hard=False)
    subject.driver.guests.destroy(instance)
    subject.driver.guests.stop(instance.uuid)
    subject.driver.guests.remove_orphan(instance.uuid)
    assert subject.driver.guests.traces() == set()


@covers("power.pause", "power.unpause")
def test_paused_guest_continues(subject: Subject) -> None:
    instance = subject.boot()
    for _ in range(2):
        subject.driver.power.pause(instance)
        assert subject.state(instance) == states.POWER_PAUSED
    subject.restart()
    assert subject.state(instance) == states.POWER_PAUSED
    for _ in range(2):
        subject.driver.power.unpause(instance)
        assert subject.state(instance) == states.RUNNING
    subject.driver.power.pause(instance)
    subject.driver.power.reboot(instance, hard=True)
    assert subject.state(instance) == states.RUNNING


@covers("power.pause", "power.unpause")
def test_guest_that_starts_paused_runs_after_unpause(subject: Subject) -> None:
    instance = subject.server()
    subject.driver.disks.prepare(instance, subject.files(instance))
    for _ in range(2):
        subject.driver.guests.spawn(instance, subject.files(instance), paused=True)
        assert subject.state(instance) == states.POWER_PAUSED
    subject.driver.power.unpause(instance)
    subject.wait_until_booted(instance)
    subject.driver.guests.spawn(instance, subject.files(instance), paused=True)
    assert subject.state(instance) == states.RUNNING
    subject.driver.power.off(instance)
    subject.driver.power.on(instance, paused=True)
    assert subject.state(instance) == states.POWER_PAUSED


@covers("power.suspend", "power.resume")
def test_suspended_guest_is_resumed(subject: Subject) -> None:
    instance = subject.boot()
    for _ in range(2):
        subject.driver.power.suspend(instance)
        assert subject.state(instance) == states.POWER_SUSPENDED
    for _ in range(2):
        subject.driver.power.resume(instance)
        assert subject.state(instance) == states.RUNNING


def test_guests_survive_a_restart_of_the_service(subject: Subject) -> None:
    running, off = subject.boot(), subject.boot()
    subject.driver.power.off(off)
    subject.restart()
    expected = [GuestStatus(uuid=running.uuid, power_state=states.RUNNING),
                GuestStatus(uuid=off.uuid, power_state=states.SHUTDOWN)]
    assert sorted(subject.driver.guests.all(), key=lambda guest: guest.power_state) == expected
    subject.driver.power.off(running)
    subject.driver.power.on(off)
    assert (subject.state(running), subject.state(off)) == (states.SHUTDOWN, states.RUNNING)


@covers("guests.stop", "guests.remove_orphan", optional=("guests.traces",))
def test_unknown_guests_are_stopped_and_removed(subject: Subject) -> None:
    instance = subject.boot()
    for _ in range(2):
        subject.driver.guests.stop(instance.uuid)
        assert subject.state(instance) == states.SHUTDOWN
    assert subject.driver.guests.traces() == {instance.uuid}
    for _ in range(2):
        subject.driver.guests.remove_orphan(instance.uuid)
        assert subject.driver.guests.traces() == set()


def test_guest_with_retained_disks_starts_again(subject: Subject) -> None:
    if subject.bare_metal:
        pytest.skip("a node cannot leave its disks behind")
    instance = subject.boot()
    subject.driver.guests.destroy(instance, keep_disks=True)
    assert subject.driver.guests.all() == []
    assert subject.driver.disks.exist(instance)
    subject.driver.power.on(instance)
    assert subject.state(instance) == states.RUNNING


@covers("guests.diagnostics")
def test_diagnostics_of_a_running_and_a_stopped_guest(subject: Subject) -> None:
    instance = subject.boot(network_info=[subject.interface(1)])
    values = subject.driver.guests.diagnostics(instance).values
    assert (values["state"], values["num_cpus"], values["num_nics"], values["num_disks"]) == ("running", 1, 1, 1)
    used = "time" if subject.measures_cpu_time else "utilisation"
    wait_for(lambda: subject.driver.guests.diagnostics(instance).values["cpu_details"][0][used], 30, "use of the CPU")
    assert values["nic_details"][0]["mac_address"] == instance.network_info[0].mac
    assert values["memory_details"]["maximum"] == instance.flavor.memory_mb
    subject.driver.power.off(instance)
    values = subject.driver.guests.diagnostics(instance).values
    assert (values["state"], values["cpu_details"]) == ("shutdown", [])


@covers("consoles.address")
def test_consoles_of_guests_that_do_not_run_are_refused(subject: Subject) -> None:
    instance = subject.boot()
    assert subject.driver.consoles.address(instance.uuid, "no-such-protocol") is None
    subject.driver.power.off(instance)
    with pytest.raises(exception.GuestNotRunning):
        subject.driver.consoles.address(instance.uuid, "serial")


# --- disks -------------------------------------------------------------------------------------------
@covers("disks.replace", optional=("disks.used_images",))
def test_rebuild_replaces_the_disks_once(subject: Subject) -> None:
    instance = subject.boot()
    images = set(subject.driver.disks.used_images())
    for _ in range(2):
        subject.driver.disks.replace(instance, subject.files(instance), "token")
        assert bool(subject.driver.guests.all()) == subject.bare_metal
        assert subject.has_disks(instance)
    assert set(subject.driver.disks.used_images()) == images
    subject.driver.guests.spawn(instance, subject.files(instance))
    assert subject.state(instance) == states.RUNNING
    subject.driver.disks.replace(instance, subject.files(instance), "another token")
    assert bool(subject.driver.guests.all()) == subject.bare_metal


@covers("rescue.begin", "rescue.end")
def test_rescued_guest_returns_to_its_own_disk(subject: Subject) -> None:
    instance = subject.boot()
    for _ in range(2):
        subject.driver.rescue.begin(instance, instance.image or Image(id="i"), subject.files(instance))
        assert subject.state(instance) == states.RUNNING
    for _ in range(2):
        subject.driver.rescue.end(instance)
        assert subject.state(instance) == (states.RUNNING if subject.bare_metal else states.SHUTDOWN)
    subject.driver.power.on(instance)
    assert subject.state(instance) == states.RUNNING


@covers("snapshots.take", "snapshots.discard")
def test_snapshot_of_running_and_stopped_guests(subject: Subject) -> None:
    instance = subject.boot()
    for stop in (False, True):
        if stop:
            subject.driver.power.off(instance)
        expected = subject.state(instance)
        made = subject.driver.snapshots.take(instance, IMAGE_ID, threading.Event())
        assert subject.driver.snapshots.take(instance, IMAGE_ID, threading.Event()) == made
        assert os.path.getsize(made.path) > 0
        assert subject.state(instance) == expected
        for _ in range(2):
            subject.driver.snapshots.discard(instance)
        assert not os.path.exists(made.path)


def bigger(instance: Instance) -> Instance:
    return msgspec.structs.replace(instance, flavor=msgspec.structs.replace(
        instance.flavor, flavorid="2", name="bigger", root_gb=2, memory_mb=instance.flavor.memory_mb + 64))


@covers("cold_migration.check_resize", "cold_migration.open_disks", "cold_migration.close_disks",
        "cold_migration.receive_disks", "cold_migration.finish", "cold_migration.confirm", "cold_migration.revert",
        "guests.define", "guests.device_addresses")
def test_resize_on_the_host_is_confirmed_or_reverted(subject: Subject) -> None:
    moves, instance = subject.driver.cold_migration, subject.boot()
    for confirm in (False, True):
        larger = bigger(instance)
        moves.check_resize(instance, larger.flavor)
        for _ in range(2):
            source = moves.open_disks(instance, 0)
        assert subject.driver.guests.all() == []
        for _ in range(2):
            moves.receive_disks(larger, source)
        for _ in range(2):
            moves.finish(larger)
        subject.driver.power.on(larger)
        assert subject.state(instance) == states.RUNNING
        for _ in range(2):
            moves.close_disks(instance)
        if not confirm:
            subject.driver.guests.destroy(larger)
            for _ in range(2):
                moves.revert(instance)
            assert subject.state(instance) == states.SHUTDOWN
            subject.driver.power.on(instance)
            assert subject.state(instance) == states.RUNNING
    for _ in range(2):
        moves.confirm(larger)
    assert subject.driver.guests.all() == [GuestStatus(uuid=instance.uuid, power_state=states.RUNNING)]
    subject.driver.guests.device_addresses(instance.uuid)
    with pytest.raises(exception.ResizeError):
        moves.check_resize(larger, msgspec.structs.replace(larger.flavor, root_gb=1))


@covers("cold_migration.open_disks", "cold_migration.revert")
def test_move_takes_the_disks_of_the_guest_and_removes_those_of_an_earlier_move(subject: Subject) -> None:
    moves, instance = subject.driver.cold_migration, subject.boot()
    larger = bigger(instance)
    moves.receive_disks(larger, moves.open_disks(instance, 0))
    moves.finish(larger)
    subject.driver.power.on(larger)
    # The request that confirms the move does not reach the host.
    for _ in range(2):
        moves.open_disks(larger, 0)
    assert subject.driver.guests.all() == []
    moves.close_disks(larger)
    moves.revert(larger)
    assert subject.state(instance) == states.SHUTDOWN
    with pytest.raises(exception.ResizeError):
        moves.check_resize(larger, msgspec.structs.replace(larger.flavor, root_gb=1))


# --- devices -----------------------------------------------------------------------------------------
@covers("volumes.attach", "volumes.detach")
def test_volumes_of_running_and_stopped_guests(subject: Subject) -> None:
    instance = subject.boot(wait=True)
    first, second = subject.volume(1), subject.volume(2)
    for _ in range(2):
        subject.driver.volumes.attach(instance, first)
    instance.block_devices = [first]
    subject.driver.power.off(instance)
    for _ in range(2):
        subject.driver.volumes.attach(instance, second)
    instance.block_devices = [first, second]
    subject.driver.power.on(instance)
    assert subject.driver.guests.diagnostics(instance).values["num_disks"] == 3
    for _ in range(2):
        subject.driver.volumes.detach(instance, first)
    instance.block_devices = [second]
    subject.driver.power.off(instance)
    for _ in range(2):
        subject.driver.volumes.detach(instance, second)
    assert subject.driver.guests.diagnostics(instance).values["num_disks"] == 1
    subject.driver.volumes.detach(subject.server(), first)
    with pytest.raises(exception.GuestNotFound):
        subject.driver.volumes.attach(subject.server(), first)


@covers("interfaces.attach", "interfaces.detach")
def test_interfaces_of_running_and_stopped_guests(subject: Subject) -> None:
    instance = subject.boot(wait=True, network_info=[subject.interface(1)])
    second = subject.interface(2)
    for _ in range(2):
        subject.driver.interfaces.attach(instance, second)
    assert subject.driver.guests.diagnostics(instance).values["num_nics"] == 2
    instance.network_info = [subject.interface(1), second]
    subject.driver.power.reboot(instance, hard=True)
    for _ in range(2):
        subject.driver.interfaces.detach(instance, instance.network_info[0])
    assert subject.driver.guests.diagnostics(instance).values["num_nics"] == 1
    subject.driver.power.off(instance)
    for _ in range(2):
        subject.driver.interfaces.detach(instance, second)
    assert subject.driver.guests.diagnostics(instance).values["num_nics"] == 0


def test_changes_of_the_power_state_are_reported(subject: Subject) -> None:
    if not subject.reports_own_changes:
        pytest.skip("the fake driver reports only what a test changes")
    instance = subject.boot()
    for change, state in ((subject.driver.power.on, states.RUNNING), (subject.driver.power.off, states.SHUTDOWN)):
        change(instance)
        status = GuestStatus(uuid=instance.uuid, power_state=state)
        wait_for(lambda status=status: status in subject.events, 10, f"power state {state} is reported")


def test_flavor_too_small_for_the_image_is_refused_before_anything_is_created(subject: Subject,
                                                                            tmp_path: pathlib.Path) -> None:
    if not subject.driver.needs_images:
        pytest.skip("the driver needs no image")
    image = tmp_path / "large.raw"
    image.touch()
    os.truncate(image, 3 << 30)
    instance = subject.server(flavor={"root_gb": 2})
    with pytest.raises(exception.FlavorDiskTooSmall):
        subject.driver.disks.prepare(instance, BootFiles(root=str(image), root_format="raw"))
    assert not subject.driver.disks.exist(instance)
