"""Live migration and evacuation over HTTP on two fake hosts."""

import threading
import types

import pytest
import sqlalchemy as sa

from nova import bus, exception
from nova.compute.service import ComputeService
from nova.conductor.endpoints import hosts
from nova.conf import CONF
from nova.db import tables
from tests.functional.client import wait_for
from tests.functional.several_hosts import (
    SECOND,
    error_of,
    events_of,
    migration_of,
    newest_action,
    refused,
    service_of,
    set_service,
    used,
    wait_scheduler,
)

_LIVE = {"host": None, "block_migration": "auto"}


@pytest.fixture
def server(pair):
    return pair.boot()


# --- live migration ----------------------------------------------------------------------------------
def begun(admin, uuid, status="running"):
    """Wait until the live migration has this status and return its id."""
    def found():
        shown = admin.get(f"/servers/{uuid}/migrations")["migrations"]
        return shown and shown[0]["status"] == status and shown[0]["id"]

    return wait_for(found, reason=f"a migration is {status}")


@pytest.mark.parametrize("value", [_LIVE, {"host": SECOND, "block_migration": True}])
def test_live_migration_moves_a_running_server_to_the_other_host(pair, admin, server, value):
    admin.action(server, "os-migrateLive", value, expect=202)
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"], shown["progress"]) == (SECOND, 1, 0)
    assert pair.only_on(server, pair.second)
    moved = migration_of(admin, server)
    assert (moved["status"], moved["migration_type"], moved["source_compute"], moved["dest_compute"]) == (
        "completed", "live-migration", pair.first.host, SECOND)
    assert moved["dest_host"] == CONF.my_ip
    assert "links" not in moved
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((0, 0), (1, 1))
    told = [event for event, result, _host in events_of(admin, server, "live-migration") if result == "Success"]
    assert told == [
        "conductor_live_migrate_instance", "compute_check_can_live_migrate_source", "compute_pre_live_migration",
        "compute_live_migration", "compute_post_live_migration_at_destination", "compute_post_live_migration"]


def test_live_migration_of_a_paused_server_keeps_it_paused(pair, admin, server):
    admin.action(server, "pause")
    admin.wait(server, "PAUSED")
    admin.action(server, "os-migrateLive", _LIVE)
    shown = admin.wait(server, "PAUSED")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (SECOND, 3)


def test_running_live_migration_shows_status_and_progress(pair, admin, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 3.0
    admin.action(server, "os-migrateLive", _LIVE)
    number = begun(admin, server)
    shown = wait_for(lambda: (found := admin.server(server))["progress"] > 0 and found)
    assert (shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-SRV-ATTR:host"]) == (
        "MIGRATING", "migrating", pair.first.host)
    told = admin.get(f"/servers/{server}/migrations/{number}")["migration"]
    assert told["memory_total_bytes"] == 128 * 2**20
    assert told["memory_processed_bytes"] + told["memory_remaining_bytes"] == told["memory_total_bytes"]
    assert migration_of(admin, server)["links"][0]["href"].endswith(f"/servers/{server}/migrations/{number}")
    for action in ("os-stop", "migrate"):
        assert refused(lambda action=action: admin.action(server, action))[0] == 409
    admin.wait(server, "ACTIVE")
    assert admin.get(f"/servers/{server}/migrations")["migrations"] == []
    assert refused(lambda: admin.get(f"/servers/{server}/migrations/{number}"))[0] == 404


def test_aborted_live_migration_keeps_the_server_on_the_source(pair, admin, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 60.0
    admin.action(server, "os-migrateLive", _LIVE)
    number = begun(admin, server)
    admin.delete(f"/servers/{server}/migrations/{number}", version="2.24", expect=202)
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["progress"]) == (pair.first.host, 0)
    assert pair.only_on(server, pair.first)
    assert migration_of(admin, server)["status"] == "cancelled"
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((1, 1), (0, 0))
    assert events_of(admin, server, "live_migration_cancel") == [
        ("compute_live_migration_abort", "Success", pair.first.host)]
    assert refused(lambda: admin.delete(f"/servers/{server}/migrations/{number}"))[0] == 409


def test_abort_of_a_preparing_live_migration_requires_2_65(pair, admin, server):
    pair.second.machine.driver.behaviour.latency["prepare_migration"] = 1.5
    admin.action(server, "os-migrateLive", _LIVE)
    number = begun(admin, server, "preparing")
    assert refused(lambda: admin.delete(f"/servers/{server}/migrations/{number}", version="2.64")) == (
        400, f"Cannot cancel migration {number} of instance {server} while it is preparing.")
    admin.delete(f"/servers/{server}/migrations/{number}", version="2.65", expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host
    assert pair.only_on(server, pair.first)
    assert migration_of(admin, server)["status"] == "cancelled"


def test_force_complete_of_a_live_migration(pair, admin, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 60.0
    admin.action(server, "os-migrateLive", _LIVE)
    number = begun(admin, server)
    admin.post(f"/servers/{server}/migrations/{number}/action", {"force_complete": None}, expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == SECOND
    assert migration_of(admin, server)["status"] == "completed"
    assert events_of(admin, server, "live_migration_force_complete") == [
        ("compute_live_migration_force_complete", "Success", pair.first.host)]


@pytest.mark.parametrize(("where", "verb", "status"), [
    ("first", "check_migration_source", "error"), ("second", "prepare_migration", "error"),
    ("first", "live_migrate", "failed")])
def test_failed_live_migration_keeps_the_server_on_the_source(pair, admin, server, where, verb, status):
    getattr(pair, where).machine.driver.behaviour.failure[verb] = 1.0
    admin.action(server, "os-migrateLive", _LIVE)
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (pair.first.host, 1)
    assert pair.only_on(server, pair.first)
    assert error_of(admin, server, "live-migration") == f"The fake hypervisor is configured to fail at {verb}."
    assert migration_of(admin, server)["status"] == status
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((1, 1), (0, 0))


def test_source_stops_its_migration_server_when_preparation_fails(pair, admin, server):
    pair.second.machine.driver.behaviour.failure["prepare_migration"] = 1.0
    admin.action(server, "os-migrateLive", _LIVE)
    admin.wait(server, "ACTIVE")
    assert migration_of(admin, server)["status"] == "error"
    assert pair.first.machine.driver.state.serving == set()


def test_live_migration_succeeds_after_the_image_was_deleted(pair, admin, server, monkeypatch):
    def gone():
        raise exception.ImageNotFound(image_id=pair.image_id)

    monkeypatch.setattr(pair.second.machine.driver, "needs_images", True)
    monkeypatch.setattr(pair.second.machine, "images", gone)
    admin.action(server, "os-migrateLive", _LIVE)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == SECOND


def test_delete_server_during_live_migration(pair, admin, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 60.0
    admin.action(server, "os-migrateLive", _LIVE)
    begun(admin, server)
    admin.delete(f"/servers/{server}", expect=204)
    admin.wait_gone(server)
    wait_for(lambda: pair.where(server) == ([], []))
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((0, 0), (0, 0))


def test_live_migration_to_invalid_host_or_of_stopped_server_is_refused(pair, admin, server):
    assert refused(lambda: admin.action(server, "os-migrateLive", {**_LIVE, "host": pair.first.host})) == (
        400, f"Unable to migrate instance ({server}) to current host ({pair.first.host}).")
    assert refused(lambda: admin.action(server, "os-migrateLive", {**_LIVE, "host": "nowhere"})) == (
        400, "Compute host nowhere could not be found.")
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    assert refused(lambda: admin.action(server, "os-migrateLive", _LIVE)) == (
        409, f"Cannot 'os-migrateLive' instance {server} while it is in vm_state stopped")


_CHECKS = [("prepare_migration", "second"), ("check_migration_source", "first")]


def _old_request(version):
    return {"host": None, "block_migration": False, "disk_over_commit": False} if version < "2.25" else _LIVE


@pytest.mark.parametrize("version", ["2.1", "2.24", "2.25", "2.33"])
@pytest.mark.parametrize(("verb", "side"), _CHECKS)
def test_failed_live_migration_check_returns_400_before_2_34(pair, admin, server, verb, side, version):
    getattr(pair, side).machine.driver.behaviour.failure[verb] = 1.0
    code, message = refused(lambda: admin.action(server, "os-migrateLive", _old_request(version), version=version))
    assert (code, bool(message)) == (400, True)
    shown = admin.server(server)
    assert (shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-SRV-ATTR:host"]) == (
        "ACTIVE", None, pair.first.host)
    assert message == error_of(admin, server, "live-migration")
    assert migration_of(admin, server)["status"] == "error"


@pytest.mark.parametrize(("version", "code"), [("2.33", 400), ("2.34", 202)])
def test_live_migration_without_valid_host_returns_400_before_2_34(pair, admin, server, version, code):
    set_service(admin, SECOND, status="disabled")
    if code == 400:
        assert refused(lambda: admin.action(server, "os-migrateLive", _LIVE, version=version))[0] == 400
    else:
        admin.action(server, "os-migrateLive", _LIVE, version=version, expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host
    assert "No valid host was found" in error_of(admin, server, "live-migration")


@pytest.fixture
def third(suite, admin):
    """Start a third compute host."""
    service = ComputeService(bus.connect(CONF, "third"), host="third")
    service.start()
    wait_scheduler(suite, "third", True)
    yield service
    for shown in admin.get("/servers", all_tenants=1)["servers"]:
        admin.delete(f"/servers/{shown['id']}")
        admin.wait_gone(shown["id"])
    service.stop()
    admin.delete(f"/os-services/{service_of(admin, 'third')['id']}")


@pytest.mark.parametrize("version", ["2.33", "2.34"])
@pytest.mark.parametrize("broken", ["second", "third"])
def test_live_migration_without_named_host_retries_on_the_next_host(pair, third, admin, server, broken, version):
    hosts = {"second": pair.second, "third": third}
    hosts[broken].machine.driver.behaviour.failure["prepare_migration"] = 1.0
    admin.action(server, "os-migrateLive", _LIVE, version=version, expect=202)
    wait_for(lambda: migration_of(admin, server)["status"] in ("completed", "error"), reason="the migration ends")
    shown = admin.wait(server, "ACTIVE")
    assert (migration_of(admin, server)["status"], shown["OS-EXT-SRV-ATTR:host"]) == (
        "completed", ({"second", "third"} - {broken}).pop())


def test_live_migration_refused_by_all_hosts_returns_the_reason(pair, third, admin, server):
    for service in (pair.second, third):
        service.machine.driver.behaviour.failure["prepare_migration"] = 1.0
    code, message = refused(lambda: admin.action(server, "os-migrateLive", _LIVE, version="2.33"))
    assert (code, "prepare_migration" in message or "No valid host" in message) == (400, True)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host


def test_live_migration_to_a_named_host_is_not_retried_elsewhere(pair, third, admin, server):
    pair.second.machine.driver.behaviour.failure["prepare_migration"] = 1.0
    admin.action(server, "os-migrateLive", {**_LIVE, "host": pair.second.host}, version="2.34", expect=202)
    wait_for(lambda: migration_of(admin, server)["status"] in ("completed", "error"), reason="the migration ends")
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host


def test_live_migration_checks_run_asynchronously_from_2_34(pair, admin, server):
    pair.second.machine.driver.behaviour.failure["prepare_migration"] = 1.0
    admin.action(server, "os-migrateLive", _LIVE, version="2.34", expect=202)
    admin.wait(server, "ACTIVE")
    assert migration_of(admin, server)["status"] == "error"


def test_live_migration_before_2_34_returns_after_the_checks(pair, admin, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 60.0
    admin.action(server, "os-migrateLive", _LIVE, version="2.33", expect=202)
    number = begun(admin, server)
    admin.delete(f"/servers/{server}/migrations/{number}", expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == pair.first.host


# --- evacuation --------------------------------------------------------------------------------------
@pytest.fixture
def lost(suite, pair, admin):
    """Yield a server on the second host, which is down, and a function that restarts the host."""
    uuid = admin.boot(pair.flavor, pair.image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    machine = pair.second.machine
    pair.second.stop()
    set_service(admin, SECOND, forced_down=True)
    back = []

    def returns():
        back.append(ComputeService(suite.transport, host=SECOND, machine=machine))
        back[0].start()
        return back[0]

    yield uuid, returns
    # While the host counts as down, its servers are deleted without it.
    for shown in admin.get("/servers")["servers"]:
        admin.delete(f"/servers/{shown['id']}")
        admin.wait_gone(shown["id"])
    for service in back:
        service.stop()


@pytest.mark.parametrize(("version", "status"), [("2.94", "ACTIVE"), ("2.95", "SHUTOFF")])
def test_evacuation_recreates_the_server_on_another_host(pair, admin, lost, version, status):
    server, returns = lost
    admin.action(server, "evacuate", {}, version=version, expect=200)
    shown = admin.wait(server, status)
    assert shown["OS-EXT-SRV-ATTR:host"] == pair.first.host
    moved = migration_of(admin, server)
    assert (moved["status"], moved["migration_type"], moved["source_compute"]) == ("done", "evacuation", SECOND)
    assert events_of(admin, server, "evacuate") == [
        ("rebuild_server", "Success", None), ("compute_rebuild_instance", "Success", pair.first.host)]
    assert pair.where(server)[0] == sorted([pair.first.host, SECOND], key=lambda host: host == SECOND)
    code, message = refused(lambda: set_service(admin, SECOND, forced_down=False))
    assert (code, message.startswith("Unable to force up host")) == (400, True)
    returns()
    assert pair.only_on(server, pair.first)
    wait_for(lambda: migration_of(admin, server)["status"] == "completed")


@pytest.fixture
def evacuated(pair, admin):
    """Yield a server evacuated from the second host, which is only forced down: its nova-compute still runs."""
    uuid = admin.boot(pair.flavor, pair.image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    set_service(admin, SECOND, forced_down=True)
    admin.action(uuid, "evacuate", {}, version="2.94")
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_force_up_waits_until_evacuated_guests_are_removed(pair, admin, evacuated):
    set_service(admin, SECOND, forced_down=False)
    assert pair.where(evacuated)[0] == [pair.first.host], "the guest is removed before the host counts as up"
    assert migration_of(admin, evacuated)["status"] == "completed"
    wait_for(lambda: service_of(admin, SECOND)["state"] == "up")


def test_force_up_is_refused_while_evacuated_guests_cannot_be_removed(pair, admin, evacuated, monkeypatch):
    def stuck(uuid, keep_disks):
        raise exception.NovaException("The guest does not go.")

    monkeypatch.setattr(hosts, "_EVICTION_WAIT", 0.5)
    with monkeypatch.context() as broken:
        broken.setattr(pair.second.machine.driver.guests, "remove_orphan", stuck)
        code, message = refused(lambda: set_service(admin, SECOND, forced_down=False))
    assert (code, message) == (400, (
        f"Unable to force up host {SECOND}: servers were evacuated from it, and it has not confirmed the removal of "
        "their guests (1 left). The removal has been requested from nova-compute: repeat this request in a few "
        "seconds. If it is refused again, the log of nova-compute on that host names the guests that it cannot "
        "remove."))
    assert service_of(admin, SECOND)["state"] == "down"
    set_service(admin, SECOND, forced_down=False)
    assert pair.where(evacuated)[0] == [pair.first.host]


def test_force_up_of_a_host_without_running_compute_is_refused(pair, admin, evacuated, suite, monkeypatch):
    def gone(_ctx, _uuid):
        raise exception.NoListeners("Nobody listens there.")

    monkeypatch.setattr(hosts, "_EVICTION_WAIT", 0.5)
    with monkeypatch.context() as ended:
        ended.setattr(suite.conductor.core, "compute_at", lambda _host: types.SimpleNamespace(reap=gone))
        code, message = refused(lambda: set_service(admin, SECOND, forced_down=False))
    assert code == 400
    assert "it has not confirmed the removal" in message
    set_service(admin, SECOND, forced_down=False)


def test_evacuation_password_reaches_the_guest_and_is_not_stored(suite, pair, admin, lost, monkeypatch):
    server, returns = lost
    driver, given = pair.first.machine.driver, []
    spawn = driver.guests.spawn

    def watched(instance, *args, **named):
        given.append(instance.admin_pass)
        spawn(instance, *args, **named)

    monkeypatch.setattr(driver.guests, "spawn", watched)
    admin.action(server, "evacuate", {"adminPass": "correct-horse"}, version="2.94")
    admin.wait(server, "ACTIVE")
    assert given == ["correct-horse"]
    rows = suite.conductor.core.db.read(lambda connection: [
        str(row) for table in (tables.actions, tables.instances) for row in connection.execute(sa.select(table))])
    assert rows
    assert "correct-horse" not in "\n".join(rows)
    returns()
    assert pair.only_on(server, pair.first)


@pytest.fixture
def spawning(pair, monkeypatch):
    """Yield the events (reached, go): the first host pauses before it spawns a guest."""
    spawn, reached, go = pair.first.machine.driver.guests.spawn, threading.Event(), threading.Event()

    def held(*arguments, **named):
        reached.set()
        assert go.wait(60)
        spawn(*arguments, **named)

    monkeypatch.setattr(pair.first.machine.driver.guests, "spawn", held)
    yield reached, go
    go.set()


def test_host_returning_during_evacuation_removes_its_guest_first(pair, admin, lost, spawning):
    (server, returns), (reached, go) = lost, spawning
    driver = pair.second.machine.driver
    admin.action(server, "evacuate", {}, version="2.94")
    assert reached.wait(60)
    assert driver.guests.power_state(server) == 1
    service = returns()
    wait_for(lambda: server not in {guest.uuid for guest in driver.guests.all()},
             reason="the source has removed the guest")
    assert driver.disk(server) is not None, "the source deleted the disks before the evacuation succeeded"
    assert admin.server(server)["OS-EXT-STS:task_state"].startswith("rebuild")
    go.set()
    admin.wait(server, "ACTIVE")
    service.reconciler.compare()  # the periodic task
    assert pair.only_on(server, pair.first)


def test_hard_reboot_on_returned_host_after_a_failed_evacuation(pair, admin, lost, spawning):
    (server, returns), (reached, go) = lost, spawning
    driver = pair.second.machine.driver
    admin.action(server, "evacuate", {}, version="2.94")
    assert reached.wait(60)
    returns()
    wait_for(lambda: server not in {guest.uuid for guest in driver.guests.all()},
             reason="the source has removed the guest")
    pair.first.machine.driver.behaviour.failure["spawn"] = 1.0
    go.set()
    assert admin.wait(server, "ERROR")["OS-EXT-SRV-ATTR:host"] == SECOND
    set_service(admin, SECOND, forced_down=False)
    wait_for(lambda: service_of(admin, SECOND)["state"] == "up")
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    assert pair.only_on(server, pair.second)


def test_evacuation_from_a_running_host_is_refused(pair, admin, server):
    assert refused(lambda: admin.action(server, "evacuate", {})) == (
        400, f"Compute service of {pair.first.host} is still in use.")


def test_evacuation_without_valid_host_keeps_the_server_unchanged(pair, admin, lost):
    server, returns = lost
    set_service(admin, pair.first.host, status="disabled")
    try:
        admin.action(server, "evacuate", {})
        wait_for(lambda: newest_action(admin, server, "evacuate")["message"] == "Error")
    finally:
        set_service(admin, pair.first.host, status="enabled")
    shown = admin.wait(server, "ACTIVE")
    assert shown["OS-EXT-SRV-ATTR:host"] == SECOND
    assert migration_of(admin, server)["status"] == "error"
    returns()
    assert pair.only_on(server, pair.second)


@pytest.mark.parametrize(("host", "code", "message"), [
    (SECOND, 400, "The target host can't be the same one."),
    ("nowhere", 404, "Compute host nowhere could not be found.")])
def test_evacuation_to_same_or_unknown_host_is_refused(admin, lost, host, code, message):
    server, _returns = lost
    assert refused(lambda: admin.action(server, "evacuate", {"host": host})) == (code, message)


# --- hosts with migrating servers --------------------------------------------------------------------
def test_delete_service_with_in_progress_migrations_is_refused(pair, admin, server):
    admin.action(server, "migrate")
    admin.wait(server, "VERIFY_RESIZE")
    code, message = refused(lambda: admin.delete(f"/os-services/{service_of(admin, pair.first.host)['id']}"))
    assert (code, "in-progress migrations" in message) == (409, True)
    assert admin.get("/os-hypervisors", with_servers=True, version="2.75")["hypervisors"]
    admin.action(server, "confirmResize")
    admin.wait(server, "ACTIVE")
