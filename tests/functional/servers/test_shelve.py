"""Shelve, offload and unshelve over HTTP."""

import os
import threading

import pytest
import sqlalchemy as sa

from nova import context, exception
from nova.compute.runner import Runner
from nova.conductor.background import overdue
from nova.conductor.resources.server_volumes import ServerVolumes
from nova.conductor.saga.step_executor import StepExecutor
from nova.conf import CONF
from nova.db import tables
from nova.db.servers import evictions
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.objects.servers import states
from nova.operations.framework import placing
from tests.functional.client import Client, wait_for
from tests.functional.several_hosts import (
    SECOND,
    error_of,
    events_of,
    newest_action,
    refused,
    set_service,
    used,
    wait_scheduler,
)

OLD = "2.35"


@pytest.fixture(autouse=True)
def nothing_left(suite, image_id, request):
    """Check that no image of the deleted servers and no file on a host is left."""
    before = images()
    yield before
    from tests.functional.conftest import remove_servers

    remove_servers(Client(suite.url))
    assert images() == before
    files = os.path.join(CONF.state_path, "fake-snapshots")
    assert not os.path.isdir(files) or os.listdir(files) == []


def images():
    return {image.id for image in DirectoryStore().index(None, {})}


@pytest.fixture
def kept(suite):
    """Keep shelved servers on their host until they are offloaded explicitly."""
    CONF.set_override("shelved_offload_time", -1)
    yield
    CONF.clear_override("shelved_offload_time")


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, name="web")
    admin.wait(uuid, "ACTIVE")
    return uuid


def shelved_image(client):
    found, = [image for image in client.get("/images/detail", version=OLD)["images"] if image["name"] == "web-shelved"]
    return found


def steps(admin, uuid, action):
    return [event[:2] for event in events_of(admin, uuid, action)]


def test_shelve_offloads_the_server_and_unshelve_restores_it(suite, admin, server, driver, networks):
    assert used(admin, suite.compute.host) == (1, 1)
    quota = admin.get("/limits")["limits"]["absolute"]["totalCoresUsed"]
    admin.action(server, "shelve")
    shown = admin.wait(server, "SHELVED_OFFLOADED")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["hostId"], shown["OS-EXT-STS:power_state"]) == (None, "", 4)
    assert driver.guests.all() == []
    assert driver.disk(server) is None
    assert used(admin, suite.compute.host) == (0, 0)
    assert admin.get("/limits")["limits"]["absolute"]["totalCoresUsed"] == quota
    saved = shelved_image(admin)
    assert (saved["status"], saved["metadata"]["owner_id"]) == ("ACTIVE", "p")
    assert steps(admin, server, "shelve") == [
        ("compute_shelve_instance", "Success"), ("compute_shelve_offload_instance", "Success")]
    image = shown["image"]["id"]

    admin.action(server, "unshelve")
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["image"]["id"]) == (suite.compute.host, image)
    assert [guest.uuid for guest in driver.guests.all()] == [server]
    assert used(admin, suite.compute.host) == (1, 1)
    assert refused(lambda: admin.get(f"/images/{saved['id']}", version=OLD))[0] == 404
    assert steps(admin, server, "unshelve") == [
        ("get_image_info", "Success"), ("schedule_instances", "Success"), ("compute_unshelve_instance", "Success")]


@pytest.mark.parametrize(("way", "status"), [("os-stop", "SHUTOFF"), ("pause", "PAUSED"), ("suspend", "SUSPENDED")])
def test_unshelve_starts_a_server_that_was_not_running_when_shelved(admin, server, way, status):
    admin.action(server, way)
    admin.wait(server, status)
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    admin.action(server, "unshelve")
    assert admin.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == 1


def test_shelve_without_offload_keeps_the_server_on_its_host(admin, member, server, driver, kept):
    member.action(server, "shelve")
    shown = admin.wait(server, "SHELVED")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (driver.host, 4)
    disk = driver.disk(server)
    assert refused(lambda: admin.action(server, "unshelve", {"availability_zone": "nova"}))[0] == 409
    assert refused(lambda: admin.action(server, "unshelve", {"host": driver.host}))[0] == 409
    saved = shelved_image(admin)["id"]
    member.action(server, "unshelve")
    admin.wait(server, "ACTIVE")
    assert driver.disk(server) == disk
    assert steps(admin, server, "unshelve") == [("compute_start_instance", "Success")]
    assert refused(lambda: admin.get(f"/images/{saved}", version=OLD))[0] == 404

    member.action(server, "shelve")
    admin.wait(server, "SHELVED")
    assert refused(lambda: member.action(server, "shelveOffload"))[0] == 403
    admin.action(server, "shelveOffload")
    assert admin.wait(server, "SHELVED_OFFLOADED")["OS-EXT-SRV-ATTR:host"] is None
    assert driver.disk(server) is None
    assert steps(admin, server, "shelveOffload") == [("compute_shelve_offload_instance", "Success")]
    assert refused(lambda: admin.action(server, "shelveOffload")) == (
        409, f"Cannot 'shelveOffload' instance {server} while it is in vm_state shelved_offloaded")


def test_running_guest_of_a_shelved_server_is_powered_off(admin, server, driver, kept):
    """The guest may run when a host returns that was declared down during an unshelve."""
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED")
    driver.change_by_itself(server, states.RUNNING)
    wait_for(lambda: driver.guests.power_state(server) == states.SHUTDOWN, reason="the guest is powered off again")
    shown = admin.wait(server, "SHELVED")
    assert shown["OS-EXT-STS:power_state"] == states.SHUTDOWN
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


@pytest.mark.parametrize(("seconds", "status"), [(0, "SHELVED_OFFLOADED"), (3600, "SHELVED"), (-1, "SHELVED")])
def test_shelved_server_is_offloaded_after_shelved_offload_time(suite, admin, server, seconds, status):
    CONF.set_override("shelved_offload_time", -1)
    try:
        admin.action(server, "shelve")
        admin.wait(server, "SHELVED")
        CONF.set_override("shelved_offload_time", seconds)
        overdue.offload(suite.conductor.core, suite.conductor.engine)
        assert admin.wait_idle(server)["status"] == status
    finally:
        CONF.clear_override("shelved_offload_time")


def test_offloaded_server_keeps_its_fixed_ips(admin, flavor, image_id, networks):
    network = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="shelf", cidr="10.21.0.0/29", gateway="", bridge=""))
    uuid = admin.boot(flavor, image_id, name="web", networks=[{"uuid": network.uuid}])
    before = admin.wait(uuid, "ACTIVE")["addresses"]
    admin.action(uuid, "shelve")
    assert admin.wait(uuid, "SHELVED_OFFLOADED")["addresses"] == before
    admin.action(uuid, "unshelve")
    assert admin.wait(uuid, "ACTIVE")["addresses"] == before
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    networks.delete(context.admin(), network.uuid)


def test_shelved_image_name_is_truncated_to_255_characters(admin, flavor, image_id, nothing_left):
    uuid = admin.boot(flavor, image_id, name="x" * 255)
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    saved, = images() - nothing_left
    assert DirectoryStore().show(None, saved).name == "x" * 247 + "-shelved"


def test_offloaded_server_keeps_volumes_and_accepts_new_attachments(admin, server, driver):
    volumes = [admin.post("/os-volumes", {"volume": {"size": 1}}, version=OLD)["volume"]["id"] for _ in range(2)]

    def attach(volume):
        admin.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
        wait_for(lambda: admin.get(f"/os-volumes/{volume}", version=OLD)["volume"]["status"] == "in-use")

    attach(volumes[0])
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    attach(volumes[1])
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")
    assert {volume for _device, volume in driver.guest(server).volumes} == set(volumes)
    for volume in volumes:
        admin.delete(f"/servers/{server}/os-volume_attachments/{volume}")
        wait_for(lambda volume=volume: admin.get(
            f"/os-volumes/{volume}", version=OLD)["volume"]["status"] == "available")
        admin.delete(f"/os-volumes/{volume}", version=OLD)


def test_shelve_of_volume_backed_server_creates_no_image(admin, flavor, image_id, driver, nothing_left):
    device = {"boot_index": 0, "uuid": image_id, "source_type": "image", "destination_type": "volume",
              "volume_size": 1, "delete_on_termination": True}
    uuid = admin.boot(flavor, "", name="web", block_device_mapping_v2=[device])
    admin.wait(uuid, "ACTIVE")
    for name, value in (("createImage", {"name": "s"}),
                        ("createBackup", {"name": "s", "backup_type": "d", "rotation": 1})):
        assert refused(lambda name=name, value=value: admin.action(uuid, name, value))[0] == 400
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    assert images() == nothing_left
    admin.action(uuid, "unshelve")
    admin.wait(uuid, "ACTIVE")
    assert len(driver.guest(uuid).volumes) == 1
    assert steps(admin, uuid, "unshelve") == [("schedule_instances", "Success"),
                                              ("compute_unshelve_instance", "Success")]


# --- failures ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("way", "status"), [(None, "ACTIVE"), ("os-stop", "SHUTOFF"), ("pause", "ACTIVE")])
@pytest.mark.parametrize("verb", ["power_off", "snapshot"])
def test_failed_shelve_keeps_the_server_and_deletes_the_image(admin, server, driver, verb, way, status, nothing_left):
    if way:
        admin.action(server, way)
        wait_for(lambda: admin.server(server)["OS-EXT-STS:task_state"] is None)
    driver.behaviour.failure[verb] = 1.0
    admin.action(server, "shelve")
    shown = admin.wait_idle(server)
    if (way, verb) != ("pause", "power_off"):
        assert shown["status"] == status
    assert error_of(admin, server, "shelve") == f"The fake hypervisor is configured to fail at {verb}."
    assert images() == nothing_left


def test_failed_offload_leaves_the_server_shelved_on_its_host(admin, server, driver):
    driver.behaviour.failure["destroy"] = 1.0
    admin.action(server, "shelve")
    shown = admin.wait_idle(server)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("SHELVED", driver.host)
    assert shelved_image(admin)["status"] == "ACTIVE"
    driver.behaviour.failure.clear()
    admin.action(server, "shelveOffload")
    admin.wait(server, "SHELVED_OFFLOADED")
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


def test_unshelve_without_valid_host_keeps_server_offloaded_without_fault(admin, server, suite):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    service = admin.get("/os-services", binary="nova-compute")["services"][0]
    admin.put(f"/os-services/{service['id']}", {"status": "disabled"})
    try:
        wait_scheduler(suite, suite.compute.host, False)
        admin.action(server, "unshelve")
        shown = admin.wait_idle(server)
        assert (shown["status"], "fault" in shown) == ("SHELVED_OFFLOADED", False)
        assert [(event["event"], event["result"]) for event in newest_action(admin, server, "unshelve")["events"]] == [
            ("schedule_instances", "Error"), ("get_image_info", "Success")]
    finally:
        admin.put(f"/os-services/{service['id']}", {"status": "enabled"})
        wait_scheduler(suite, suite.compute.host, True)


def test_failed_unshelve_keeps_the_server_offloaded(suite, admin, server, driver):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    driver.behaviour.failure["spawn"] = 1.0
    admin.action(server, "unshelve")
    shown = admin.wait_idle(server)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("SHELVED_OFFLOADED", None)
    assert error_of(admin, server, "unshelve") == "The fake hypervisor is configured to fail at spawn."
    assert (driver.guests.all(), driver.disk(server)) == ([], None)
    assert used(admin, suite.compute.host) == (0, 0)
    assert shelved_image(admin)["status"] == "ACTIVE"
    driver.behaviour.failure.clear()
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


@pytest.mark.parametrize("fault", ["a step after the start fails", "the host fails"])
def test_failed_unshelve_leaves_power_state_shutdown(suite, admin, server, driver, monkeypatch, fault):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    assert admin.wait_idle(server)["OS-EXT-STS:power_state"] == states.SHUTDOWN

    def fail(*_arguments, **_named):
        raise exception.HostDown(host=suite.compute.host) if fault == "the host fails" else exception.Conflict("no")

    patched = (driver.guests, "spawn") if fault == "the host fails" else (ServerVolumes, "complete")
    monkeypatch.setattr(*patched, fail)
    admin.action(server, "unshelve")
    shown = admin.wait_idle(server)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (
        "SHELVED_OFFLOADED", None, states.SHUTDOWN)


def test_unshelve_after_image_deletion_puts_the_server_in_error(admin, server):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    saved = shelved_image(admin)["id"]
    admin.delete(f"/images/{saved}", version=OLD)
    admin.action(server, "unshelve")
    assert admin.wait(server, "ERROR")["fault"]["message"] == f"Image {saved} could not be found."


def test_unshelve_succeeds_when_its_image_cannot_be_deleted(admin, server, monkeypatch):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    with monkeypatch.context() as patch:
        def broken(*_args, **_more):
            raise RuntimeError("no")

        patch.setattr(DirectoryStore, "delete", broken)
        admin.action(server, "unshelve")
        admin.wait(server, "ACTIVE")
    assert shelved_image(admin)["status"] == "ACTIVE"
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")


@pytest.mark.parametrize("verb", ["power.off", "snapshots.take", "guests.destroy"])
def test_delete_server_during_shelve(admin, server, driver, hold, verb):
    held = hold(verb)
    admin.action(server, "shelve")
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: (driver.guests.all(), driver.disk(server)) == ([], None))


def test_delete_server_during_unshelve(admin, server, driver, hold):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    held = hold("guests.spawn")
    admin.action(server, "unshelve")
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: (driver.guests.all(), driver.disk(server)) == ([], None))


def test_reset_state_during_shelve_restarts_the_guest(admin, server, driver, hold, nothing_left, monkeypatch):
    """The host reports its guest, which shelving has shut down, before it receives the order to start it again."""
    reported, send, after_refusal = threading.Event(), StepExecutor.send, Runner._after_refusal

    def send_after_the_report(executor, ctx, host, order):
        if order.undo:
            reported.wait(10)
        send(executor, ctx, host, order)

    def report(runner, job):
        after_refusal(runner, job)
        reported.set()

    monkeypatch.setattr(StepExecutor, "send", send_after_the_report)
    monkeypatch.setattr(Runner, "_after_refusal", report)
    held = hold("snapshots.take")
    admin.action(server, "shelve")
    held.wait_until_begun()
    admin.action(server, "os-resetState", {"state": "active"})
    held.let_go()
    assert reported.wait(10)
    assert admin.server(server)["status"] == "ACTIVE"
    wait_for(lambda: driver.guests.power_state(server) == states.RUNNING)
    wait_for(lambda: images() == nothing_left)
    assert admin.wait_idle(server)["status"] == "ACTIVE"


def given_up(admin, server, hold):
    """Shelve a server and reset its state while it releases its only host; return the held step."""
    held = hold("guests.destroy")
    admin.action(server, "shelve")
    held.wait_until_begun()
    admin.action(server, "os-resetState", {"state": "active"})
    wait_for(lambda: admin.server(server)["OS-EXT-SRV-ATTR:host"] is None)
    return held


def test_unshelve_waits_for_the_pending_offload_of_the_only_host(suite, admin, server, driver, hold):
    held = given_up(admin, server, hold)
    admin.action(server, "unshelve")
    db = suite.conductor.core.db
    wait_for(lambda: [action.name for action in waiting(db, server)] == ["unshelve"],
             reason="the unshelve waits for its host")
    held.let_go()
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == driver.host
    assert driver.guests.power_state(server) == states.RUNNING
    assert newest_action(admin, server, "unshelve")["message"] is None


def test_unshelve_requests_immediate_removal_of_evicted_guest(suite, admin, server, driver):
    """The periodic check for leftover guests runs only every few minutes."""
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    db = suite.conductor.core.db
    db.write(lambda connection: evictions.add(connection, server, driver.host, False))
    admin.action(server, "unshelve")
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == driver.host
    assert db.read(lambda connection: evictions.hosts(connection, server)) == []


def test_unshelve_fails_when_its_host_does_not_remove_the_old_guest(admin, server, hold, monkeypatch):
    monkeypatch.setattr(placing, "MAX_POLLS", 2)
    held = given_up(admin, server, hold)
    admin.action(server, "unshelve")
    wait_for(lambda: newest_action(admin, server, "unshelve")["message"] == "Error")
    assert "No valid host" in error_of(admin, server, "unshelve")
    held.let_go()
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


def test_unshelve_uses_another_host_while_the_offload_is_pending(admin, pair, hold):
    server = pair.boot()
    held = given_up(admin, server, hold)
    admin.action(server, "unshelve")
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == SECOND
    held.let_go()
    assert pair.only_on(server, pair.second)


def waiting(db, server):
    """Return the parked actions of a server."""
    table = tables.actions
    return db.read(lambda connection: connection.execute(sa.select(table.c.action.label("name")).where(
        table.c.instance_uuid == server, table.c.outcome.is_(None), table.c.owner.is_(None),
        table.c.waits_for.is_not(None))).all())


def test_delete_of_offloaded_server_retries_image_deletion(admin, server, monkeypatch):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    real, away = DirectoryStore.delete, [True]

    def delete(*args, **named):
        if away:
            away.pop()
            raise exception.ImageBackendUnavailable(reason="it is away")
        return real(*args, **named)

    monkeypatch.setattr(DirectoryStore, "delete", delete)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert away == []


def test_offload_from_a_host_that_is_down_and_unshelve_elsewhere(suite, admin, pair, kept):
    uuid = admin.boot(pair.flavor, pair.image_id, name="web", availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED")
    set_service(admin, SECOND, forced_down=True)
    wait_scheduler(suite, SECOND, False)
    admin.action(uuid, "shelveOffload")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    admin.action(uuid, "unshelve")
    assert admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host
    assert pair.where(uuid) == ([pair.first.host, SECOND], [pair.first.host, SECOND]), "the down host removed its guest"
    pair.second.reconciler.compare()
    assert pair.only_on(uuid, pair.first)
    set_service(admin, SECOND, forced_down=False)


# --- destinations --------------------------------------------------------------------------------------------
def pinned(client, uuid):
    return client.server(uuid, version="2.96")["pinned_availability_zone"]


def test_unshelve_to_requested_zone_or_host(admin, pair, member):
    aggregate = admin.post("/os-aggregates", {"aggregate": {"name": "east", "availability_zone": "east"}})["aggregate"]
    path = f"/os-aggregates/{aggregate['id']}/action"
    admin.post(path, {"add_host": {"host": SECOND}})
    try:
        uuid = admin.boot(pair.flavor, pair.image_id, name="web", availability_zone="nova")
        admin.wait(uuid, "ACTIVE")
        assert pinned(admin, uuid) == "nova"

        def again(value, zone, host, client=admin, version="2.96"):
            admin.action(uuid, "shelve")
            admin.wait(uuid, "SHELVED_OFFLOADED")
            client.action(uuid, "unshelve", value, version=version)
            shown = admin.wait(uuid, "ACTIVE")
            assert (shown["OS-EXT-SRV-ATTR:host"], pinned(admin, uuid)) == (host, zone)

        again(None, "nova", pair.first.host)
        again({"availability_zone": "east"}, "east", SECOND, member, version="2.77")
        again({}, "east", SECOND)
        again({"availability_zone": None, "host": pair.first.host}, None, pair.first.host)
        again({"host": SECOND}, None, SECOND)
        again({"availability_zone": "nova", "host": pair.first.host}, "nova", pair.first.host)
        admin.action(uuid, "shelve")
        admin.wait(uuid, "SHELVED_OFFLOADED")
        admin.action(uuid, "unshelve", {"host": SECOND})
        assert admin.wait_idle(uuid)["status"] == "SHELVED_OFFLOADED", "the second host is not in the zone nova"
        assert pinned(admin, uuid) == "nova"
        assert refused(lambda: member.action(uuid, "unshelve", {"host": SECOND}))[0] == 403
        assert refused(lambda: admin.action(uuid, "unshelve", {"host": "nowhere"})) == (
            400, "Compute host nowhere could not be found.")
        assert refused(lambda: admin.action(uuid, "unshelve", {"availability_zone": "mars"})) == (
            400, "The requested availability zone is not available")
        assert refused(lambda: admin.action(uuid, "unshelve", {}, version="2.77"))[0] == 400
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)
    finally:
        admin.post(path, {"remove_host": {"host": SECOND}})
        admin.delete(f"/os-aggregates/{aggregate['id']}")


def test_unshelve_retries_on_another_host_after_a_failed_spawn(admin, pair):
    uuid = pair.boot(name="web")
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    pair.first.machine.driver.behaviour.failure["spawn"] = 1.0
    pair.second.machine.driver.behaviour.latency["spawn"] = 0.1
    admin.action(uuid, "unshelve")
    admin.wait(uuid, "ACTIVE")
    assert pair.only_on(uuid, pair.second)
