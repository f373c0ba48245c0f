"""Notifications about actions on servers."""

import pytest
import sqlalchemy as sa

from nova import bus, context
from nova.conf import CONF
from nova.db import tables
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.rpcapi.networks import Networks
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_images
from tests.functional.listening import listen
from tests.functional.services.test_costs import measured


@pytest.fixture
def network(suite, networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="told", cidr="10.31.0.0/24", gateway="", bridge=""))
    yield made.uuid
    for server in (admin := Client(suite.url)).get("/servers")["servers"]:
        admin.delete(f"/servers/{server['id']}")
        admin.wait_gone(server["id"])
    bus.client(suite.transport, Networks).delete(context.admin(), made.uuid)


@pytest.fixture
def key(admin):
    name = admin.post("/os-keypairs", {"keypair": {"name": "told", "user_id": "u"}}, version="2.91")["keypair"]["name"]
    yield name
    admin.delete(f"/os-keypairs/{name}")


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, name="told")
    admin.wait(uuid, "ACTIVE")
    return uuid


def phases(*events):
    return [f"{event}.{phase}" for event in events for phase in ("start", "end")]


def publishers(listener, uuid):
    return {message["publisher_id"] for message in listener.of(uuid)}


def test_boot_and_delete_are_notified_with_start_and_end(suite, admin, flavor, image_id, network, key):
    with listen(suite) as listener:
        uuid = admin.boot(flavor, image_id, networks=[{"uuid": network}], key_name=key, tags=["b", "a"])
        admin.wait(uuid, "ACTIVE")
        told = listener.wait(uuid, "create.end")
        assert listener.types(uuid) == phases("create")
        assert (told["state"], told["task_state"], told["power_state"]) == ("active", None, "running")
        assert told["tags"] == ["a", "b"]
        assert told["keypairs"][0]["nova_object.data"]["fingerprint"]
        assert len(told["ip_addresses"]) == 1
        assert told["action_initiator_user"] == "u"
        begun = listener.wait(uuid, "create.start")
        assert (begun["state"], begun["fault"]) == ("building", None)
        assert begun["request_id"] == told["request_id"]

        admin.delete(f"/servers/{uuid}")
        told = listener.wait(uuid, "delete.end")
        assert listener.types(uuid)[2:] == ["delete.start", *phases("shutdown"), "delete.end"]
        assert told["state"] == "deleted"
        assert told["deleted_at"]
        assert told["ip_addresses"] == []
        assert publishers(listener, uuid) == {f"nova-compute:{suite.compute.host}"}


_WAYS = [("os-stop", None, "SHUTOFF", "power_off"), ("os-start", None, "ACTIVE", "power_on"),
         ("reboot", {"type": "SOFT"}, "ACTIVE", "reboot"), ("reboot", {"type": "HARD"}, "ACTIVE", "reboot"),
         ("pause", None, "PAUSED", "pause"), ("unpause", None, "ACTIVE", "unpause"),
         ("suspend", None, "SUSPENDED", "suspend"), ("resume", None, "ACTIVE", "resume"),
         ("rescue", None, "RESCUE", "rescue"), ("unrescue", None, "ACTIVE", "unrescue"),
         ("createImage", {"name": "i"}, "ACTIVE", "snapshot"),
         ("createBackup", {"name": "b", "backup_type": "d", "rotation": 1}, "ACTIVE", "snapshot"),
         ("trigger_crash_dump", None, "ACTIVE", "trigger_crash_dump")]


def test_server_actions_are_notified_in_order(suite, admin, server, image_id):
    with listen(suite) as listener:
        for action, value, status, event in _WAYS:
            before = len(listener.of(server))
            admin.action(server, action, value)
            wait_for(lambda before=before: len(listener.of(server)) >= before + 2, reason=action)
            assert admin.wait(server, status)
            assert listener.types(server)[before:] == phases(event)
        assert listener.wait(server, "power_off.end")["state"] == "stopped"
        assert listener.wait(server, "power_off.start")["task_state"] == "powering-off"
        assert listener.wait(server, "rescue.start")["rescue_image_ref"] == image_id
        assert listener.wait(server, "snapshot.end")["snapshot_image_id"]
        assert len({message["message_id"] for message in listener.messages}) == len(listener.messages)
    remove_images(image_id)


def test_lock_rebuild_and_shelve_are_notified(suite, admin, server, image_id):
    with listen(suite) as listener:
        admin.action(server, "lock", {"locked_reason": "why"})
        admin.action(server, "unlock")
        admin.action(server, "rebuild", {"imageRef": image_id})
        admin.wait(server, "ACTIVE")
        admin.action(server, "shelve")
        admin.wait(server, "SHELVED_OFFLOADED")
        admin.action(server, "unshelve")
        admin.wait(server, "ACTIVE")
        listener.wait(server, "unshelve.end")
        assert listener.types(server) == [
            "lock", "unlock", *phases("rebuild", "shelve", "shelve_offload", "unshelve")]
        told = listener.wait(server, "lock")
        assert (told["locked"], told["locked_reason"]) == (True, "why")
    remove_images(image_id)


def test_failed_build_is_notified_with_its_fault(suite, admin, flavor, image_id, driver):
    driver.behaviour.failure["spawn"] = 1.0
    with listen(suite) as listener:
        uuid = admin.boot(flavor, image_id)
        admin.wait(uuid, "ERROR")
        told = listener.wait(uuid, "create.error")
        assert listener.types(uuid) == ["create.start", "create.error"]
        assert told["fault"]["nova_object.data"]["exception_message"]
        assert told["fault"]["nova_object.data"]["exception"]


def test_failed_reboot_is_notified_and_failed_pause_has_no_end(suite, admin, server, driver):
    driver.behaviour.failure["reboot"] = driver.behaviour.failure["pause"] = 1.0
    with listen(suite) as listener:
        admin.action(server, "pause")
        admin.wait_idle(server)
        admin.action(server, "reboot", {"type": "HARD"})
        admin.wait_idle(server)
        listener.wait(server, "reboot.error")
        assert listener.types(server) == ["pause.start", "reboot.start", "reboot.error"]
        assert listener.of(server)[-1]["priority"] == "ERROR"


def test_build_ended_by_a_delete_is_notified_as_an_error(suite, admin, flavor, image_id, hold):
    held = hold("guests.spawn")
    with listen(suite) as listener:
        uuid = admin.boot(flavor, image_id)
        held.wait_until_begun()
        admin.delete(f"/servers/{uuid}")
        listener.wait(uuid, "create.error")
        held.let_go()
        admin.wait_gone(uuid)
        listener.wait(uuid, "delete.end")
        assert listener.types(uuid)[:3] == ["create.start", "create.error", "delete.start"]


def test_delete_of_a_server_without_a_host_is_notified_by_the_api(suite, admin, image_id):
    with listen(suite) as listener:
        uuid = admin.boot(admin.flavor(ram=1 << 30), image_id)
        admin.wait(uuid, "ERROR")
        admin.delete(f"/servers/{uuid}")
        listener.wait(uuid, "delete.end")
        assert listener.types(uuid) == phases("delete")
        assert publishers(listener, uuid) == {f"nova-api:{CONF.host}"}


# --- instance.update --------------------------------------------------------------------------------------
def changes(listener, uuid):
    return [tuple(message["payload"]["nova_object.data"]["state_update"]["nova_object.data"][name] for name in (
        "old_state", "state", "old_task_state", "new_task_state")) for message in listener.of(uuid, updates=True)
        if message["event_type"] == "instance.update"]


def test_instance_update_reports_vm_and_task_state_changes(suite, admin, server):
    with listen(suite, notify_on_state_change="vm_and_task_state") as listener:
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
        listener.wait(server, "update", state="stopped")
        found = changes(listener, server)
        assert found[0] == ("active", "active", None, "powering-off")
        assert found[-1] == ("active", "stopped", "powering-off", None)


def test_instance_update_with_vm_state_ignores_task_state_changes(suite, admin, server):
    with listen(suite, notify_on_state_change="vm_state") as listener:
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
        listener.wait(server, "update", state="stopped")
        found = changes(listener, server)
        assert found[0] == ("active", "active", "powering-off", "powering-off")
        assert found[-1] == ("active", "stopped", "powering-off", None)


def test_instance_update_has_the_old_name_after_a_rename_only(suite, admin, server):
    with listen(suite, notify_on_state_change="vm_state") as listener:
        admin.put(f"/servers/{server}", {"server": {"name": "renamed"}})
        admin.put(f"/servers/{server}/tags", {"tags": ["blue"]})
        admin.put(f"/servers/{server}/tags", {"tags": ["blue"]})  # no change
        listener.wait(server, "update", tags=["blue"])
        told = [message["payload"]["nova_object.data"] for message in listener.of(server, updates=True)]
        assert [(data["old_display_name"], data["display_name"]) for data in told] == [
            ("told", "renamed"), (None, "renamed")]


def test_instance_update_is_disabled_by_default(suite, admin, server):
    with listen(suite) as listener:
        admin.put(f"/servers/{server}", {"server": {"name": "renamed"}})
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
        listener.wait(server, "power_off.end")
        assert listener.types(server, updates=True) == phases("power_off")


# --- costs ------------------------------------------------------------------------------------------------
def test_notifications_take_a_statement_per_notifying_transaction(suite, admin, server):
    def counted(status, action):
        _none, messages, statements = measured(suite, admin, lambda: admin.action(server, action))
        assert admin.server(server)["status"] == status
        return sum(messages.values()), [statement for statement in statements if "usage" not in statement]

    messages, off = counted("SHUTOFF", "os-stop")
    counted("ACTIVE", "os-start")
    assert not [statement for statement in off if "outbox" in statement]
    table = tables.actions
    payloads = suite.conductor.core.db.read(lambda connection: list(connection.scalars(
        sa.select(table.c.payload).where(table.c.instance_uuid == server))))
    assert not any("told" in payload for payload in payloads)
    with listen(suite) as listener:
        more, on = counted("SHUTOFF", "os-stop")
        listener.wait(server, "power_off.end")
    assert more == messages
    assert len([statement for statement in on if "outbox" in statement]) == 2  # at start and end
    assert len(on) == len(off) + 2


def test_refused_server_actions_are_not_notified(suite, admin, server):
    with listen(suite, notify_on_state_change="vm_and_task_state") as listener:
        with pytest.raises(Failed):
            admin.action(server, "os-start")
        with pytest.raises(Failed):
            admin.action(server, "unpause")
        admin.action(server, "os-stop")
        listener.wait(server, "power_off.end")
        assert listener.types(server) == phases("power_off")


# --- unversioned notifications ----------------------------------------------------------------------------
def test_versioned_and_unversioned_notifications_match(suite, admin, server):
    with listen(suite, notification_format="both", notify_on_state_change="vm_state") as listener:
        admin.action(server, "lock")
        admin.action(server, "unlock")
        admin.action(server, "os-stop")
        listener.wait(server, "update", state="stopped")
        listener.wait(server, "power_off.end")
        types = [message["event_type"] for message in listener.unversioned]
        assert [name for name in types if name != "compute.instance.update"] == [
            f"compute.instance.{name}" for name in phases("power_off")]
        assert types.count("compute.instance.update") == listener.types(server, updates=True).count("update")
        told = listener.unversioned[-1]["payload"]
        assert (told["instance_id"], told["state"], told["state_description"]) == (server, "stopped", "")
        changed = next(message["payload"] for message in listener.unversioned
                       if message["event_type"].endswith(".update") and message["payload"]["state"] == "stopped")
        assert (changed["old_state"], changed["state"]) == ("active", "stopped")
        assert changed["audit_period_beginning"] < changed["audit_period_ending"]


def test_unversioned_format_emits_no_versioned_notifications(suite, admin, server):
    with listen(suite, notification_format="unversioned") as listener:
        admin.action(server, "os-stop")
        wait_for(lambda: len(listener.messages) == 2)
        assert listener.versioned == []
