"""instance.exists notifications: the servers of an audit period, and a server before its rebuild."""

import threading

import pytest

from nova.conductor.background import usage_audit
from nova.db import tables
from nova.objects.accounts import usage
from nova.objects.base import utcnow
from tests.functional.client import wait_for
from tests.functional.listening import listen
from tests.unit.conductor.books import set_columns


@pytest.fixture
def listener(suite):
    with listen(suite, notification_format="both") as found:
        yield found


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    return uuid


def existed(listener, uuid):
    return [message["payload"]["nova_object.data"] for message in listener.of(uuid, updates=True)
            if message["event_type"] == "instance.exists"]


@pytest.fixture
def last_period(suite, monkeypatch):
    """Let the current audit period be the last one, and return its begin and end. Remove the audit rows afterwards."""
    _before, begin = usage.audit_period("year", utcnow())
    end = begin.replace(year=begin.year + 1)
    monkeypatch.setattr(usage_audit, "audit_period", lambda *_args: (begin, end))
    yield begin, end
    suite.conductor.core.db.write(lambda connection: connection.execute(tables.usage_audits.delete()))


def test_concurrent_audits_notify_each_server_of_a_period_once(suite, admin, flavor, image_id, listener, last_period,
                                                               monkeypatch):
    monkeypatch.setattr(usage_audit, "_PAGE", 2)
    uuids = [admin.boot(flavor, image_id) for _each in range(5)]
    for uuid in uuids:
        admin.wait(uuid, "ACTIVE")
    admin.delete(f"/servers/{uuids[0]}")
    admin.wait_gone(uuids[0])
    audits = [threading.Thread(target=usage_audit.audit, args=(suite.conductor.core,)) for _each in range(3)]
    for audit in audits:
        audit.start()
    for audit in audits:
        audit.join()
    usage_audit.audit(suite.conductor.core)
    wait_for(lambda: all(existed(listener, uuid) for uuid in uuids), reason="the usage of all servers is published")
    begin, end = last_period
    for uuid in uuids:
        [told] = existed(listener, uuid)
        assert told["audit_period"]["nova_object.data"] == {
            "audit_period_beginning": f"{begin:%Y-%m-%dT%H:%M:%SZ}", "audit_period_ending": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    assert existed(listener, uuids[0])[0]["state"] == "deleted"
    twin = next(message for message in listener.unversioned if message["event_type"] == "compute.instance.exists"
                and message["payload"]["instance_id"] == uuids[1])
    assert twin["payload"]["audit_period_beginning"] == f"{begin:%Y-%m-%dT%H:%M:%SZ}"
    assert twin["publisher_id"] == f"nova-compute:{admin.server(uuids[1])['OS-EXT-SRV-ATTR:host']}"


def test_audit_does_not_notify_servers_of_other_periods(suite, admin, server, listener, last_period):
    _begin, end = last_period
    set_columns(suite.conductor.core, tables.instances, tables.instances.c.uuid == server, launched_at=end)
    usage_audit.audit(suite.conductor.core)
    admin.delete(f"/servers/{server}")
    listener.wait(server, "delete.end")
    assert existed(listener, server) == []


def test_instance_exists_is_notified_before_a_rebuild(admin, server, image_id, listener):
    admin.action(server, "rebuild", {"imageRef": image_id})
    admin.wait(server, "ACTIVE")
    listener.wait(server, "rebuild.end")
    [told] = existed(listener, server)
    assert told["task_state"] == "rebuilding"
    period = told["audit_period"]["nova_object.data"]
    assert period["audit_period_beginning"] < period["audit_period_ending"]
