"""Notifications about moves of servers and about attached resources."""

import pytest

from tests.functional.listening import listen
from tests.functional.notifications.test_notifications import phases
from tests.functional.servers.test_interfaces import attach as attach_interface
from tests.functional.servers.test_interfaces import blue, green  # noqa: F401 (fixtures)
from tests.functional.servers.test_live_moves import begun, lost  # noqa: F401 (fixture)
from tests.functional.volumes.test_volumes import attach, books, make, no_volumes_left, wait_status  # noqa: F401 (fixtures)

_LIVE = {"host": None, "block_migration": "auto"}


def by(listener, uuid, service):
    """Return the events of a server that this host published."""
    return [message["event_type"].removeprefix("instance.") for message in listener.of(uuid)
            if message["publisher_id"] == f"nova-compute:{service.host}"]


@pytest.fixture
def server(pair):
    return pair.boot()


def test_resize_is_notified_by_the_participating_hosts(suite, admin, pair, server):
    larger = admin.flavor(vcpus=2)
    with listen(suite) as listener:
        admin.action(server, "resize", {"flavorRef": larger})
        admin.wait(server, "VERIFY_RESIZE")
        admin.action(server, "confirmResize")
        admin.wait(server, "ACTIVE")
        listener.wait(server, "resize_confirm.end")
        assert listener.types(server) == phases("resize_prep", "resize", "resize_finish", "resize_confirm")
        assert by(listener, server, pair.second) == phases("resize_prep", "resize_finish")
        assert listener.wait(server, "resize_finish.end")["state"] == "resized"
        assert listener.wait(server, "resize_prep.start")["new_flavor"]["nova_object.data"]["vcpus"] == 2
        assert listener.wait(server, "resize_prep.start")["flavor"]["nova_object.data"]["vcpus"] == 1


def test_failed_and_reverted_migrations_are_notified(suite, admin, pair, server):
    with listen(suite) as listener:
        pair.first.machine.driver.behaviour.failure["open_disks"] = 1.0
        admin.action(server, "migrate")
        admin.wait_idle(server)
        listener.wait(server, "resize.error")
        assert listener.types(server) == [*phases("resize_prep"), "resize.start", "resize.error"]
        pair.first.machine.driver.behaviour.failure.clear()
        admin.action(server, "migrate")
        admin.wait(server, "VERIFY_RESIZE")
        admin.action(server, "revertResize")
        admin.wait(server, "ACTIVE")
        listener.wait(server, "resize_revert.end")
        assert listener.types(server)[4:] == phases("resize_prep", "resize", "resize_finish", "resize_revert")


def test_live_migration_is_notified_by_source_and_destination(suite, admin, pair, server):
    with listen(suite) as listener:
        admin.action(server, "os-migrateLive", _LIVE)
        admin.wait(server, "ACTIVE")
        listener.wait(server, "live_migration_post.end")
        assert listener.types(server) == [
            *phases("live_migration_pre"), "live_migration_post.start", *phases("live_migration_post_dest"),
            "live_migration_post.end"]
        assert by(listener, server, pair.first) == phases("live_migration_post")


def test_aborted_live_migration_is_notified_as_rolled_back(suite, admin, pair, server):
    pair.first.machine.driver.behaviour.latency["live_migrate"] = 10.0
    with listen(suite) as listener:
        admin.action(server, "os-migrateLive", _LIVE)
        admin.delete(f"/servers/{server}/migrations/{begun(admin, server)}")
        admin.wait(server, "ACTIVE")
        listener.wait(server, "live_migration_rollback.end")
        assert listener.types(server) == [
            *phases("live_migration_pre", "live_migration_abort"), "live_migration_rollback.start",
            *phases("live_migration_rollback_dest"), "live_migration_rollback.end"]
        assert by(listener, server, pair.second) == phases("live_migration_pre", "live_migration_rollback_dest")


def test_evacuation_is_notified_by_api_conductor_and_new_host(suite, admin, pair, lost):  # noqa: F811
    uuid, returns = lost
    with listen(suite) as listener:
        admin.action(uuid, "evacuate", {}, version="2.94")
        admin.wait(uuid, "ACTIVE")
        listener.wait(uuid, "rebuild.end")
        assert listener.types(uuid) == ["evacuate", "rebuild_scheduled", *phases("rebuild")]
        assert by(listener, uuid, pair.first) == phases("rebuild")
    returns()


def test_delete_on_a_down_host_is_notified_by_the_api(suite, admin, pair, lost):  # noqa: F811
    uuid, returns = lost
    with listen(suite) as listener:
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)
        listener.wait(uuid, "delete.end")
        assert listener.types(uuid) == phases("delete")
        assert by(listener, uuid, pair.second) == []
    returns()


def test_volume_attach_and_detach_are_notified_with_block_devices(suite, admin, flavor, image_id, driver):
    server, volume = admin.boot(flavor, image_id), make(admin)
    admin.wait(server, "ACTIVE")
    with listen(suite, bdms_in_notifications=True, notification_format="both") as listener:
        attach(admin, server, volume)
        wait_status(admin, volume, "in-use")
        told = listener.wait(server, "volume_attach.end")
        assert told["volume_id"] == volume
        assert [each["nova_object.data"]["volume_id"] for each in told["block_devices"]] == [volume]
        admin.delete(f"/servers/{server}/os-volume_attachments/{volume}")
        wait_status(admin, volume, "available")
        assert listener.wait(server, "volume_detach.end")["volume_id"] == volume
        assert listener.types(server) == phases("volume_attach", "volume_detach")
        assert [message["event_type"] for message in listener.unversioned] == [
            "compute.instance.volume.attach", "compute.instance.volume.detach"]
        driver.behaviour.failure["attach_volume"] = 1.0
        attach(admin, server, volume)
        told = listener.wait(server, "volume_attach.error")
        assert told["volume_id"] == volume
        assert told["fault"]["nova_object.data"]["exception_message"]


def test_interface_attach_and_detach_are_notified(suite, admin, flavor, image_id, blue, green):  # noqa: F811
    server = admin.boot(flavor, image_id, networks=[{"uuid": blue}])
    admin.wait(server, "ACTIVE")
    with listen(suite) as listener:
        port = attach_interface(admin, server, net_id=green)["port_id"]
        told = listener.wait(server, "interface_attach.end")["ip_addresses"]
        assert {each["nova_object.data"]["label"] for each in told} == {"blue", "green"}
        admin.delete(f"/servers/{server}/os-interface/{port}")
        told = listener.wait(server, "interface_detach.end")["ip_addresses"]
        assert {each["nova_object.data"]["label"] for each in told} == {"blue"}
        assert listener.types(server) == phases("interface_attach", "interface_detach")
