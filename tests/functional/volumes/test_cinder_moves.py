# ruff: noqa: F811 - fixtures of other modules
"""Moves of servers with Cinder volumes: each host uses an attachment of its own."""

import pytest

from nova.compute.service import ComputeService
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers
from tests.functional.servers.test_zero_sizes import MOVES, check_runs, name_of
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import SECOND, error_of, migration_of, set_service
from tests.functional.volumes.test_cinder import MEMBER, attach, cinder, from_volume, outside, wait_status, way  # noqa: F401

_LIVE = {"host": None, "block_migration": "auto"}


class Ways:
    """Records of the connections that the hosts of a pair received: (host, attachment), in order."""

    def __init__(self, pair, cinder, monkeypatch):
        self.used = []
        for service in (pair.first, pair.second):
            self._listen(service, cinder, monkeypatch)

    def _listen(self, service, cinder, monkeypatch):
        real = service.machine.volumes.connect

        def connect(info, fetch=None, key=None):
            found = cinder.attachments.get(info["attachment_id"])
            self.used.append((service.host, found.connector["host"] if found else None))
            return real(info, fetch, key)

        monkeypatch.setattr(service.machine.volumes, "connect", connect)

    def right(self):
        """Check that no host used the connection of another one."""
        assert self.used
        assert [each for each in self.used if each[0] != each[1]] == []


@pytest.fixture
def hosts(cinder, pair):
    """Start two hosts with external volumes."""
    return pair


@pytest.fixture
def ways(hosts, cinder, monkeypatch):
    return Ways(hosts, cinder, monkeypatch)


@pytest.fixture
def server(hosts, admin, cinder):
    """Create a server that boots from a volume and has another one."""
    return volumes_on(hosts, admin, cinder, hosts.first.host)


def volumes_on(hosts, admin, cinder, host):
    system, data = cinder.new(MEMBER, bootable=True), cinder.new(MEMBER)
    uuid = admin.boot(hosts.flavor, "", availability_zone=f"nova:{host}",
                      block_device_mapping_v2=[from_volume(system)])
    admin.wait(uuid, "ACTIVE")
    attach(admin, uuid, data)
    wait_status(cinder, data, "in-use")
    admin.wait_idle(uuid)
    return uuid


def move(admin, uuid, how, flavor=None):
    """Request the move and return the final status."""
    if how == "live":
        admin.action(uuid, "os-migrateLive", _LIVE, expect=202)
        return "ACTIVE"
    if how == "evacuate":
        admin.action(uuid, "evacuate", {}, version="2.14")
        return "ACTIVE"
    admin.action(uuid, how, {"flavorRef": flavor} if how == "resize" else None, expect=202)
    return "VERIFY_RESIZE"


def is_reached_from(admin, cinder, uuid, service):
    """Check that the guest of this host uses the volumes by one attachment each, recorded in the server's row."""
    volumes = {volume: [service.host] for volume in cinder.volumes}
    wait_for(lambda: {volume: way(cinder, volume) for volume in cinder.volumes} == volumes, 40,
             f"only {service.host} has an attachment")
    assert {volume.status for volume in cinder.volumes.values()} == {"in-use"}
    shown = admin.get(f"/servers/{uuid}/os-volume_attachments", version="2.89")["volumeAttachments"]
    assert {item["attachment_id"] for item in shown} == set(cinder.attachments)
    assert sorted(volume for _device, volume in service.machine.driver.guest(uuid).volumes) == sorted(volumes)


# --- destination -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", ["confirmResize", "revertResize"])
@pytest.mark.parametrize("how", ["migrate", "resize"])
def test_volumes_move_with_a_resized_server_and_return_on_revert(hosts, admin, server, cinder, ways, how, word):
    admin.wait(server, move(admin, server, how, admin.flavor(ram=256, vcpus=2, disk=2)))
    ways.right()
    is_reached_from(admin, cinder, server, hosts.second)
    admin.action(server, word)
    admin.wait(server, "ACTIVE")
    ways.right()
    is_reached_from(admin, cinder, server, hosts.second if word == "confirmResize" else hosts.first)


def test_volume_attached_after_a_migration_moves_back_on_revert(hosts, admin, server, cinder, ways):
    admin.wait(server, move(admin, server, "migrate"))
    late = cinder.new(MEMBER)
    attach(admin, server, late)
    wait_status(cinder, late, "in-use")
    wait_for(lambda: way(cinder, late) == [SECOND])
    admin.action(server, "revertResize")
    admin.wait(server, "ACTIVE")
    ways.right()
    is_reached_from(admin, cinder, server, hosts.first)


def test_both_hosts_have_attachments_during_a_live_migration(hosts, admin, server, cinder, ways, hold):
    held = hold("live_source.migrate")
    move(admin, server, "live")
    wait_for(lambda: held.calls)
    for volume in cinder.volumes:
        assert sorted(way(cinder, volume)) == sorted([hosts.first.host, SECOND])
    held.let_go()
    admin.wait(server, "ACTIVE")
    ways.right()
    is_reached_from(admin, cinder, server, hosts.second)


@pytest.fixture
def lost(suite, hosts, admin, cinder):
    """Create a server with volumes on a host that fails; return it with a function that restores the host."""
    uuid, machine = volumes_on(hosts, admin, cinder, SECOND), hosts.second.machine
    hosts.second.stop()
    set_service(admin, SECOND, forced_down=True)
    back = []

    def returns():
        back.append(ComputeService(suite.transport, host=SECOND, machine=machine))
        back[0].start()

    yield uuid, returns
    # Resources of a host that is down are removed without the host.
    remove_servers(admin)
    for service in back:
        service.stop()


def test_attachment_update_during_a_live_migration_is_preserved(hosts, admin, server, cinder):
    data, path = list(cinder.volumes)[-1], f"/servers/{server}/os-volume_attachments"

    def say(answer):
        admin.put(f"{path}/{data}", {"volumeAttachment": {"volumeId": data, "delete_on_termination": True}},
                  version="2.85")
        return answer

    cinder.twist("delete_attachment", say)
    move(admin, server, "live")
    is_reached_from(admin, cinder, server, hosts.second)
    wait_for(lambda: admin.server(server)["OS-EXT-STS:task_state"] is None)
    admin.wait_idle(server)
    shown = admin.get(path, version="2.79")["volumeAttachments"]
    assert {item["volumeId"]: item["delete_on_termination"] for item in shown}[data] is True


@pytest.mark.parametrize("how", [None, "error after", pytest.param("silence", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["create_attachment", "complete_attachment", "delete_attachment"])
def test_evacuation_moves_volume_attachments(hosts, admin, cinder, ways, lost, verb, how):
    server, returns = lost
    if how:
        cinder.fail(verb, how)
    admin.action(server, "evacuate", {}, version="2.94")
    admin.wait(server, "ACTIVE", seconds=60)
    is_reached_from(admin, cinder, server, hosts.first)
    returns()
    wait_for(lambda: migration_of(admin, server)["status"] == "completed")
    is_reached_from(admin, cinder, server, hosts.first)


def test_failed_evacuation_keeps_the_attachments_of_the_failed_host(hosts, admin, driver, cinder, lost):
    server, _returns = lost
    driver.behaviour.failure["spawn"] = 1.0
    admin.action(server, "evacuate", {}, version="2.94")
    admin.wait(server, "ERROR", seconds=60)
    is_reached_from(admin, cinder, server, hosts.second)
    driver.behaviour.failure.clear()
    admin.action(server, "evacuate", {}, version="2.94")
    admin.wait(server, "ACTIVE", seconds=60)
    is_reached_from(admin, cinder, server, hosts.first)


# --- failures --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["error after", pytest.param("silence", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["create_attachment", "complete_attachment", "delete_attachment"])
@pytest.mark.parametrize("kind", ["migrate", "live"])
def test_cinder_failure_during_a_move_is_retried(hosts, admin, server, cinder, ways, kind, verb, how):
    cinder.fail(verb, how)
    admin.wait(server, move(admin, server, kind), seconds=60)
    ways.right()
    is_reached_from(admin, cinder, server, hosts.second)


@pytest.mark.parametrize("verb", ["create_attachment", "complete_attachment"])
@pytest.mark.parametrize("kind", ["migrate", "live"])
def test_move_refused_by_cinder_changes_nothing(hosts, admin, server, cinder, ways, kind, verb):
    cinder.fail(verb, "refuse")
    move(admin, server, kind)
    shown = admin.wait_idle(server, seconds=60)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", hosts.first.host)
    assert "it was told to refuse" in error_of(admin, server, "migrate" if kind == "migrate" else "live-migration")
    is_reached_from(admin, cinder, server, hosts.first)


def test_live_migration_succeeds_when_the_old_attachment_cannot_be_deleted(hosts, admin, server, cinder):
    cinder.fail("delete_attachment", "refuse")
    move(admin, server, "live")
    shown = admin.wait_idle(server, seconds=60)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", SECOND)
    move(admin, server, "live")  # The next move does not use the remaining attachment.
    wait_for(lambda: admin.server(server)["OS-EXT-SRV-ATTR:host"] == hosts.first.host)
    admin.wait_idle(server, seconds=60)
    is_reached_from(admin, cinder, server, hosts.first)


@pytest.mark.parametrize(("kind", "verb"), [("migrate", "receive_disks"), ("migrate", "open_disks"),
                                            ("live", "prepare_migration"), ("live", "live_migrate")])
@pytest.mark.parametrize("how", [None, "error after"])
def test_failed_move_keeps_the_attachments_of_the_source_host(hosts, admin, server, cinder, ways, kind, verb, how):
    for service in (hosts.first, hosts.second):
        service.machine.driver.behaviour.failure[verb] = 1.0
    if how:
        cinder.fail("delete_attachment", how)
    move(admin, server, kind)
    shown = admin.wait_idle(server, seconds=60)
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", hosts.first.host)
    ways.right()
    is_reached_from(admin, cinder, server, hosts.first)


def test_failed_finish_migration_keeps_volumes_on_the_destination(hosts, admin, server, cinder, ways):
    hosts.second.machine.driver.behaviour.failure["finish_migration"] = 1.0
    move(admin, server, "live")
    assert admin.wait(server, "ERROR", seconds=60)["OS-EXT-SRV-ATTR:host"] == SECOND
    ways.right()
    is_reached_from(admin, cinder, server, hosts.second)


@pytest.mark.parametrize("kind", ["migrate", "live"])
@pytest.mark.parametrize("verb", ["create_attachment", "complete_attachment", "delete_attachment"])
def test_delete_server_while_cinder_hangs_during_a_move(admin, server, cinder, kind, verb):
    asked, release = cinder.hold(verb, after=True)
    move(admin, server, kind)
    assert asked.wait(20)
    admin.delete(f"/servers/{server}")
    release()
    admin.wait_gone(server, 40)
    wait_for(lambda: not cinder.attachments, 40, "all attachments are deleted")


@pytest.mark.parametrize("verb", ["create_attachment", "complete_attachment"])
def test_evacuation_during_a_live_migration_leaves_one_attachment_per_volume(
        suite, hosts, admin, cinder, driver, verb):
    server, machine = volumes_on(hosts, admin, cinder, SECOND), hosts.second.machine
    asked, release = cinder.hold(verb, after=True)
    move(admin, server, "live")
    assert asked.wait(20)
    hosts.second.stop()
    set_service(admin, SECOND, forced_down=True)
    admin.action(server, "evacuate", {}, version="2.94")
    admin.wait(server, "ACTIVE", seconds=60)
    release()
    is_reached_from(admin, cinder, server, hosts.first)
    back = ComputeService(suite.transport, host=SECOND, machine=machine)
    back.start()
    remove_servers(admin)
    back.stop()


# --- costs -----------------------------------------------------------------------------------------------
def test_live_migration_with_volumes_stays_within_its_budget(suite, hosts, admin, server):
    _none, messages, statements = measured(suite, admin, lambda: move(admin, server, "live"))
    assert admin.server(server)["OS-EXT-SRV-ATTR:host"] == SECOND
    assert sum(messages.values()) <= 26, messages
    assert len(statements) <= 70, statements


@pytest.mark.parametrize("life", MOVES, ids=name_of)
def test_server_on_a_volume_with_zero_disk_size_runs_after_each_operation(hosts, admin, cinder, ways, life):
    flavors = admin.flavor(disk=0), admin.flavor(disk=0, vcpus=2)
    volume = cinder.new(MEMBER, bootable=True)
    server = admin.boot(flavors[0], "", availability_zone=f"nova:{hosts.first.host}",
                        block_device_mapping_v2=[from_volume(volume)])
    admin.wait(server, "ACTIVE")
    life(admin, server, flavors)
    check_runs(hosts, admin, server, has_disk=False)
    assert cinder.servers_of(volume) == [server]
    ways.right()


@pytest.mark.parametrize("end", ["confirmResize", "revertResize"])
def test_server_on_a_volume_is_resized_to_a_flavor_with_zero_disk_size(hosts, admin, cinder, server, end):
    """The flavor's root disk does not exist, so its size may become 0."""
    admin.wait(server, move(admin, server, "resize", admin.flavor(disk=0)))
    admin.action(server, end)
    admin.wait(server, "ACTIVE")
    check_runs(hosts, admin, server, has_disk=False)
