"""Soft-deleted servers: restore, force delete and reclaim."""

import datetime

import pytest
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.background.overdue import reclaim
from nova.conf import CONF
from nova.db.servers import servers
from nova.db.sql import clock
from nova.objects.base import utcnow
from nova.objects.servers import states
from nova.rpcapi.servers import Servers
from tests.functional.client import Client, wait_for
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import (
    error_of,
    events_of,
    newest_action,
    refused,
    set_service,
    used,
    wait_scheduler,
)

_QUOTA = ("instances", "cores", "ram")


@pytest.fixture
def patient(suite, admin):
    """Enable soft delete with a reclaim interval of one hour."""
    CONF.set_override("reclaim_instance_interval", 3600)
    yield
    CONF.clear_override("reclaim_instance_interval")
    left = admin.get("/servers", all_tenants=1, soft_deleted=1)["servers"]
    for server in left:
        admin.action(server["id"], "forceDelete")
    for server in left:
        admin.wait_gone(server["id"])


@pytest.fixture
def server(patient, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    return uuid


def soft_deleted(client, uuid):
    client.delete(f"/servers/{uuid}", expect=204)
    return client.wait(uuid, "SOFT_DELETED")


def charged(client):
    detail = client.get(f"/os-quota-sets/{client.project}/detail")["quota_set"]
    return [detail[name]["in_use"] for name in _QUOTA]


def look(suite):
    reclaim(suite.conductor.core, suite.conductor.engine)


def age(suite, uuid, seconds):
    since = utcnow() - datetime.timedelta(seconds=seconds)
    suite.conductor.core.db.write(lambda connection: servers.update(connection, uuid, {"soft_deleted_at": since}))


def test_soft_deleted_server_is_stopped_hidden_and_keeps_its_allocation(suite, admin, driver, server):
    before = used(admin, suite.compute.host)
    shown = soft_deleted(admin, server)
    assert shown["OS-EXT-STS:vm_state"] == "soft-delete"
    assert shown["OS-EXT-STS:power_state"] == states.SHUTDOWN == driver.guests.power_state(server)
    assert used(admin, suite.compute.host) == before
    assert admin.get("/servers")["servers"] == []
    for query in ({"soft_deleted": 1}, {"deleted": 1}, {"status": "SOFT_DELETED"}):
        assert server in [found["id"] for found in admin.get("/servers", **query)["servers"]], query
    assert events_of(admin, server, "delete") == [("compute_soft_delete_instance", "Success", suite.compute.host)]


def test_restored_server_runs_and_counts_towards_the_quota(suite, admin, driver, server):
    before = charged(admin)
    soft_deleted(admin, server)
    assert charged(admin) == [0, 0, 0] != before
    admin.action(server, "restore", expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == states.RUNNING == driver.guests.power_state(server)
    assert charged(admin) == before
    assert events_of(admin, server, "restore") == [("compute_restore_instance", "Success", suite.compute.host)]


def test_restore_above_the_quota_is_refused(suite, patient, flavor, image_id):
    client = Client(suite.url, project="soft", user="s")
    first = client.boot(flavor, image_id)
    client.wait(first, "ACTIVE")
    client.put("/os-quota-sets/soft", {"quota_set": {"instances": 1}})
    soft_deleted(client, first)
    second = client.boot(flavor, image_id)
    client.wait(second, "ACTIVE")
    code, message = refused(lambda: client.action(first, "restore"))
    assert (code, message) == (403, "Quota exceeded for instances: Requested 1, but already used 1 of 1 instances")
    assert client.server(first)["status"] == "SOFT_DELETED"
    client.action(second, "forceDelete", expect=202)
    client.wait_gone(second)
    client.action(first, "restore")
    client.wait(first, "ACTIVE")
    client.delete("/os-quota-sets/soft")


def test_soft_deleted_servers_are_limited_by_the_quota(suite, patient, flavor, image_id):
    """Prevent unlimited use of hosts and addresses by repeated boot and delete."""
    client = Client(suite.url, project="hoard", user="h")
    client.put("/os-quota-sets/hoard", {"quota_set": {"instances": 2}})

    def boot_and_delete():
        uuid = client.boot(flavor, image_id)
        client.wait(uuid, "ACTIVE")
        client.delete(f"/servers/{uuid}", expect=204)
        return uuid

    waiting = [boot_and_delete(), boot_and_delete()]
    for uuid in waiting:
        client.wait(uuid, "SOFT_DELETED")
    client.wait_gone(boot_and_delete())
    client.delete(f"/servers/{waiting[0]}", expect=204)  # the server stays soft-deleted
    assert [client.server(uuid)["status"] for uuid in waiting] == ["SOFT_DELETED", "SOFT_DELETED"]
    client.put("/os-quota-sets/hoard", {"quota_set": {"instances": 5, "cores": 2}})
    client.wait_gone(boot_and_delete())
    client.put("/os-quota-sets/hoard", {"quota_set": {"cores": -1}})
    client.wait(boot_and_delete(), "SOFT_DELETED")
    client.delete("/os-quota-sets/hoard")


def test_repeated_delete_during_soft_delete_stays_a_soft_delete(suite, patient, flavor, image_id, hold):
    """A server that is being soft-deleted does not count as a further soft-deleted server."""
    client = Client(suite.url, project="twice", user="t")
    client.put("/os-quota-sets/twice", {"quota_set": {"instances": 1}})
    uuid = client.boot(flavor, image_id)
    client.wait(uuid, "ACTIVE")
    power_off = hold("power.off")
    client.delete(f"/servers/{uuid}", expect=204)
    power_off.wait_until_begun()
    client.delete(f"/servers/{uuid}", expect=204)
    power_off.let_go()
    client.wait_idle(uuid)
    assert client.server(uuid)["status"] == "SOFT_DELETED"
    client.delete("/os-quota-sets/twice")


def test_second_delete_keeps_the_soft_deletion_time(suite, admin, server):
    soft_deleted(admin, server)
    age(suite, server, 1800)
    before = _since(suite, server)
    soft_deleted(admin, server)
    assert _since(suite, server) == before


def _since(suite, uuid):
    return suite.conductor.core.db.read(lambda connection: servers.get(connection, uuid)).soft_deleted_at


@pytest.mark.parametrize("action", ["os-start", "os-stop", "reboot", "pause", "suspend", "resize", "evacuate"])
def test_actions_on_a_soft_deleted_server_are_refused(admin, server, flavor, action):
    soft_deleted(admin, server)
    body = {"reboot": {"type": "HARD"}, "resize": {"flavorRef": flavor}, "evacuate": {}}.get(action)
    assert refused(lambda: admin.action(server, action, body))[0] == 409


def test_evacuation_during_soft_delete_is_refused(suite, admin, server, hold):
    held = hold("power.off")
    admin.delete(f"/servers/{server}", expect=204)
    held.wait_until_begun()
    set_service(admin, suite.compute.host, forced_down=True)
    try:
        assert refused(lambda: admin.action(server, "evacuate", {}, version="2.14")) == (
            409, f"Cannot 'evacuate' instance {server} while it is in task_state soft-deleting")
        held.let_go()
        admin.wait(server, "SOFT_DELETED")
    finally:
        set_service(admin, suite.compute.host, forced_down=False)
        wait_scheduler(suite, suite.compute.host, True)


def test_restore_of_an_active_server_is_refused(admin, server):
    assert refused(lambda: admin.action(server, "restore")) == (
        409, f"Cannot 'restore' instance {server} while it is in vm_state active")


def test_delete_and_restore_of_a_locked_server_by_its_owner_are_refused(admin, member, server):
    admin.action(server, "lock")
    assert refused(lambda: member.delete(f"/servers/{server}")) == (409, f"Instance {server} is locked")
    soft_deleted(admin, server)
    assert refused(lambda: member.action(server, "restore"))[0] == 409


def test_server_that_failed_to_build_is_deleted_immediately(patient, admin, driver, flavor, image_id):
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    admin.delete(f"/servers/{uuid}", expect=204)
    admin.wait_gone(uuid)


@pytest.fixture
def other(admin, flavor, image_id):
    """Create another server, which counts towards the quota."""
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.action(uuid, "forceDelete")
    admin.wait_gone(uuid)


def test_force_delete_of_a_soft_deleted_server_frees_quota_once(admin, driver, server, other):
    soft_deleted(admin, server)
    admin.action(server, "forceDelete", expect=202)
    admin.wait_gone(server)
    assert [guest.uuid for guest in driver.guests.all()] == [other]
    assert charged(admin) == [1, 1, 128]


def test_soft_deleted_server_is_reclaimed_after_the_reclaim_interval(suite, admin, driver, server, other):
    soft_deleted(admin, server)
    look(suite)
    assert admin.wait(server, "SOFT_DELETED")
    age(suite, server, 3601)
    look(suite)
    admin.wait_gone(server)
    assert [guest.uuid for guest in driver.guests.all()] == [other]
    assert charged(admin) == [1, 1, 128]


def test_due_soft_deleted_servers_are_listed_oldest_first_up_to_a_limit(suite, patient, admin, flavor, image_id):
    uuids = [admin.boot(flavor, image_id) for _number in range(3)]
    for number, uuid in enumerate(uuids):
        admin.wait(uuid, "ACTIVE")
        soft_deleted(admin, uuid)
        age(suite, uuid, 2000 + number)

    def due(seconds, limit):
        before = utcnow() - datetime.timedelta(seconds=seconds)
        return suite.conductor.core.db.read(lambda connection: servers.soft_deleted(connection, before, limit))

    assert due(1000, 2) == [uuids[2], uuids[1]]
    assert due(2001.5, 5) == [uuids[2]]


def test_reclaim_uses_the_clock_of_the_database(suite, admin, server, monkeypatch):
    """A wrong clock may make the deletion appear old; all conductors use the database's clock."""
    soft_deleted(admin, server)
    with monkeypatch.context() as patch:
        there = utcnow() - datetime.timedelta(hours=2)
        patch.setattr(clock, "now", lambda: there)
        age(suite, server, 3601)
        look(suite)
        assert admin.wait_idle(server)["status"] == "SOFT_DELETED"
    look(suite)
    admin.wait_gone(server)


def test_reclaim_of_a_server_restored_in_the_meantime_is_refused(suite, admin, server):
    """A conductor lists the server as due; meanwhile its user restores it and possibly deletes it again."""
    soft_deleted(admin, server)
    due = utcnow()
    admin.action(server, "restore")
    admin.wait(server, "ACTIVE")
    conductor = dict(suite.conductor.endpoints)[Servers]
    with pytest.raises(exception.InstanceInvalidState):
        conductor.operate(context.admin(), server, "reclaim", {"before": due}, None)
    soft_deleted(admin, server)
    with pytest.raises(exception.Conflict):
        conductor.operate(context.admin(), server, "reclaim", {"before": due}, None)
    assert admin.wait(server, "SOFT_DELETED")


def test_soft_delete_in_verify_resize_confirms_the_resize(admin, pair, patient):
    uuid = pair.boot()
    larger = admin.flavor(vcpus=2)
    admin.action(uuid, "resize", {"flavorRef": larger})
    admin.wait(uuid, "VERIFY_RESIZE")
    soft_deleted(admin, uuid)
    assert charged(admin) == [0, 0, 0]
    assert admin.get("/os-migrations", instance_uuid=uuid)["migrations"][0]["status"] == "confirmed"
    admin.action(uuid, "restore")
    assert admin.wait(uuid, "ACTIVE")["flavor"]["vcpus"] == 2
    assert charged(admin)[:2] == [1, 2]


def test_soft_delete_keeps_the_server_active_when_power_off_fails(admin, driver, server):
    driver.behaviour.failure["power_off"] = 1.0
    before = charged(admin)
    admin.delete(f"/servers/{server}", expect=204)
    wait_for(lambda: newest_action(admin, server, "delete")["message"] == "Error")
    assert admin.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == states.RUNNING
    assert charged(admin) == before
    assert "configured to fail at power_off" in error_of(admin, server, "delete")


def test_restore_keeps_the_server_soft_deleted_when_power_on_fails(suite, admin, driver, server):
    soft_deleted(admin, server)
    since = _since(suite, server)
    driver.behaviour.failure["power_on"] = 1.0
    admin.action(server, "restore")
    wait_for(lambda: newest_action(admin, server, "restore")["message"] == "Error")
    assert admin.wait(server, "SOFT_DELETED")
    assert (charged(admin), _since(suite, server)) == ([0, 0, 0], since)


def test_force_delete_during_restore(admin, server, hold):
    soft_deleted(admin, server)
    power_on = hold("power.on")
    admin.action(server, "restore")
    power_on.wait_until_begun()
    admin.action(server, "forceDelete")
    power_on.let_go()
    admin.wait_gone(server)
    assert charged(admin) == [0, 0, 0]


def test_failed_delete_during_restore_leaves_the_server_soft_deleted(admin, driver, server, hold):
    before = charged(admin)
    soft_deleted(admin, server)
    power_on = hold("power.on")
    admin.action(server, "restore")
    power_on.wait_until_begun()
    driver.behaviour.failure["power_off"] = 1.0
    admin.delete(f"/servers/{server}", expect=204)
    power_on.let_go()
    wait_for(lambda: newest_action(admin, server, "delete")["message"] == "Error")
    assert (admin.server(server)["status"], charged(admin)) == ("SOFT_DELETED", [0, 0, 0])
    driver.behaviour.failure.clear()
    admin.action(server, "restore")
    admin.wait(server, "ACTIVE")
    assert charged(admin) == before


def test_reset_state_restores_a_soft_deleted_server(admin, server):
    before = charged(admin)
    soft_deleted(admin, server)
    admin.action(server, "os-resetState", {"state": "active"})
    admin.wait(server, "ACTIVE", "SHUTOFF")  # the guest is off, and the power-state sync may have run
    assert charged(admin) == before


def test_running_guest_of_a_soft_deleted_server_is_powered_off(admin, driver, server):
    soft_deleted(admin, server)
    driver.change_by_itself(server, states.RUNNING)
    wait_for(lambda: driver.guests.power_state(server) == states.SHUTDOWN)
    assert admin.wait(server, "SOFT_DELETED")["OS-EXT-STS:power_state"] == states.SHUTDOWN


def test_returning_host_powers_off_guests_of_soft_deleted_servers(suite, admin, driver, server):
    host = suite.compute.host
    set_service(admin, host, forced_down=True)
    wait_scheduler(suite, host, False)
    assert soft_deleted(admin, server)["OS-EXT-STS:power_state"] == states.NOSTATE
    assert driver.guests.power_state(server) == states.RUNNING
    set_service(admin, host, forced_down=False)
    wait_scheduler(suite, host, True)
    suite.compute.reconciler.compare()
    wait_for(lambda: admin.wait(server, "SOFT_DELETED")["OS-EXT-STS:power_state"] == states.SHUTDOWN)
    assert driver.guests.power_state(server) == states.SHUTDOWN


def test_restore_after_rescue_and_soft_delete_on_a_down_host_uses_own_disk(suite, admin, driver, server):
    host = suite.compute.host
    admin.action(server, "rescue")
    admin.wait(server, "RESCUE")
    set_service(admin, host, forced_down=True)
    wait_scheduler(suite, host, False)
    soft_deleted(admin, server)
    set_service(admin, host, forced_down=False)
    wait_scheduler(suite, host, True)
    admin.action(server, "restore")
    admin.wait(server, "ACTIVE")
    assert (driver.guest(server).rescued, driver.guests.power_state(server)) == ("", states.RUNNING)


def test_soft_delete_and_restore_message_and_statement_count(suite, admin, server):
    _none, messages, statements = measured(suite, admin, lambda: admin.delete(f"/servers/{server}"))
    assert admin.server(server)["status"] == "SOFT_DELETED"
    assert sum(messages.values()) <= 6, messages
    assert len(statements) <= 19, statements
    _none, messages, statements = measured(suite, admin, lambda: admin.action(server, "restore"))
    assert admin.server(server)["status"] == "ACTIVE"
    assert sum(messages.values()) <= 6, messages
    assert len(statements) <= 19, statements


def test_query_for_due_soft_deleted_servers_uses_an_index(suite):
    """The search runs every few seconds among all current and deleted servers."""
    asked = []

    def look(connection):
        sa.event.listen(connection, "before_cursor_execute", lambda *call: asked.append(call[2:4]))
        servers.soft_deleted(connection, utcnow(), 20)
        statement, parameters = asked[0]
        return connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()

    assert "ix_instances_soft_deleted" in str(suite.conductor.core.db.read(look))
