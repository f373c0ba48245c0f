"""Notifications about observations of hosts: volume usage of guests, and an unavailable hypervisor."""

import pytest

from nova import exception
from nova.compute.reports import VolumeUsage
from tests.functional.client import wait_for
from tests.functional.listening import listen
from tests.functional.volumes.test_volumes import attach, books, make, no_volumes_left, wait_status  # noqa: F401 (fixtures)


@pytest.fixture
def listener(suite):
    with listen(suite, notification_format="both") as found:
        yield found


def told(listener, event):
    return [message for message in listener.messages if message["event_type"] == event]


def report(suite):
    VolumeUsage(suite.compute.machine, suite.compute._guests).report()


def test_volume_usage_of_guests_is_notified(suite, admin, flavor, image_id, listener):
    server, volume = admin.boot(flavor, image_id), make(admin)
    admin.wait(server, "ACTIVE")
    report(suite)
    attach(admin, server, volume)
    wait_status(admin, volume, "in-use")
    report(suite)
    wait_for(lambda: len(told(listener, "volume.usage")) == 2, reason="the notification is published in both formats")
    versioned, old = sorted((message["payload"] for message in told(listener, "volume.usage")), key=len)
    data = versioned["nova_object.data"]
    # The counters that the fake hypervisor reports for every disk.
    counted = {"reads": 112, "read_bytes": 262144, "writes": 488, "write_bytes": 5778432}
    assert {name: data[name] for name in counted} == {name: old[name] for name in counted} == counted
    assert (data["volume_id"], data["instance_uuid"], data["project_id"]) == (volume, server, "p")
    assert (old["volume_id"], old["instance_id"], old["tenant_id"]) == (volume, server, "p")
    assert {message["publisher_id"] for message in told(listener, "volume.usage")} == {
        f"nova-compute:{suite.compute.host}"}


def test_volume_usage_of_a_stopped_guest_is_not_notified(suite, admin, flavor, image_id, listener):
    server, volume = admin.boot(flavor, image_id), make(admin)
    admin.wait(server, "ACTIVE")
    attach(admin, server, volume)
    wait_status(admin, volume, "in-use")
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    report(suite)
    admin.action(server, "os-start")
    admin.wait(server, "ACTIVE")
    listener_saw = told(listener, "volume.usage")
    report(suite)
    wait_for(lambda: len(told(listener, "volume.usage")) == 2, reason="the usage of the running guest is published")
    assert listener_saw == []


def test_lost_hypervisor_connection_is_notified(suite, driver, listener):
    driver.on_unreachable(exception.HypervisorUnavailable(reason="gone"))
    wait_for(lambda: told(listener, "libvirt.connect.error") and told(listener, "compute.libvirt.error"),
             reason="the notification is published in both formats")
    [message] = told(listener, "libvirt.connect.error")
    data = message["payload"]["nova_object.data"]
    assert data["ip"] == "127.0.0.1"
    assert data["reason"]["nova_object.data"]["exception"] == "HypervisorUnavailable"
    assert (message["publisher_id"], message["priority"]) == (f"nova-compute:{suite.compute.host}", "ERROR")
    [old] = told(listener, "compute.libvirt.error")
    assert (set(old["payload"]), old["priority"]) == ({"ip", "reason", "method"}, "ERROR")
