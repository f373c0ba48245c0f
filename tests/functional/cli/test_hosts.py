"""Commands of administrators for hosts, and for servers on them."""

import pytest

from nova.compute.service import ComputeService
from tests.functional.client import wait_for
from tests.functional.several_hosts import SECOND


@pytest.fixture
def placed(pair, project):
    """Return a function that boots a server of the client's project on the first host and returns its id."""
    def placed(name="web"):
        uuid = project.boot(pair.flavor, pair.image_id, name=name, availability_zone=f"nova:{pair.first.host}")
        project.wait(uuid, "ACTIVE")
        return uuid

    return placed


def host_of(nova, uuid):
    return nova("show", uuid, "-f", "json").document["OS-EXT-SRV-ATTR:host"]


def test_service_list_disable_enable_and_force_down(nova, suite):
    host = suite.compute.host
    compute = next(row for row in nova("service-list").rows if row[1] == "nova-compute" and row[2] == host)
    assert compute[4:6] == ["enabled", "up"]
    disabled = nova("service-disable", "--reason", "repair", host)
    assert disabled.rows == [[compute[0], host, "nova-compute", "disabled", "repair"]]
    assert nova("service-list", "--host", host, "--binary", "nova-compute", "-f", "json").document[0][
        "Disabled Reason"] == "repair"
    assert nova("service-enable", compute[0]).rows == [[compute[0], host, "nova-compute", "enabled"]]
    assert nova("service-force-down", host).rows[0][-1] == "True"
    assert nova("service-force-down", "--unset", host).rows[0][-1] == "False"
    assert "There is no service with the name or id nowhere" in nova("service-enable", "nowhere", code=3).err
    assert "since 2.11" not in nova("service-list").err


def test_services_are_changed_by_host_name_in_2_52(nova, suite):
    old = ("--os-compute-api-version", "2.52")
    assert nova(*old, "service-disable", "--reason", "old", suite.compute.host, "-f", "json").document[0][
        "Disabled Reason"] == "old"
    assert nova(*old, "service-enable", suite.compute.host, "-f", "json").document[0]["Status"] == "enabled"
    assert nova(*old, "service-force-down", "--unset", suite.compute.host).rows[0][-1] == "False"


def test_service_of_a_host_with_servers_cannot_be_deleted(nova, suite, server):
    refused = nova("service-delete", suite.compute.host, code=1)
    assert "HTTP 409" in refused.err


def test_hypervisor_list_show_uptime_and_servers(nova, suite, server):
    (uuid, name, state, status), *_ = nova("hypervisor-list").rows
    assert (state, status) == ("up", "enabled")
    assert nova("hypervisor-list", "--matching", name[:-1]).rows[0][0] == uuid
    shown = nova("hypervisor-show", name, "-f", "json").document
    assert shown["id"] == uuid
    assert shown["service_host"] == suite.compute.host
    assert nova("hypervisor-uptime", uuid, "-f", "json").document["id"] == uuid
    assert "HTTP 501" in nova("--os-compute-api-version", "2.60", "hypervisor-uptime", name, code=1).err
    assert nova("hypervisor-servers", name).rows[0][0] == server[1]
    assert nova("--os-compute-api-version", "2.50", "hypervisor-servers", name).rows[0][0] == server[1]
    assert nova("hypervisor-stats", "-f", "json").document["count"] >= 1


def test_availability_zone_list_shows_services(nova, suite):
    rows = nova("availability-zone-list", "-f", "json").document
    assert {"Name": "nova", "Status": "available"} in rows
    assert any(row["Name"] == "| |- nova-compute" and row["Status"].startswith("enabled :-) ") for row in rows)


def test_aggregate_commands(nova, suite, image_id):
    made = nova("aggregate-create", "fast", "zone-1").rows[0]
    assert made[1:5] == ["fast", "zone-1", "", "'availability_zone=zone-1'"]
    assert nova("aggregate-update", "fast", "--name", "faster").rows[0][1] == "faster"
    assert nova("aggregate-set-metadata", "faster", "ssd=true", "cpu=new").rows[0][4] == (
        "'availability_zone=zone-1', 'cpu=new', 'ssd=true'")
    assert "cpu" not in nova("aggregate-set-metadata", "faster", "cpu").rows[0][4]
    assert nova("aggregate-add-host", "faster", suite.compute.host).rows[0][3] == f"'{suite.compute.host}'"
    nova("aggregate-cache-images", "faster", "tiny")
    assert nova("aggregate-show", made[-1]).rows[0][0] == made[0]
    assert nova("aggregate-remove-host", "faster", suite.compute.host).rows[0][3] == ""
    assert "faster" in [row[1] for row in nova("aggregate-list").rows]
    assert "UUID" not in nova("--os-compute-api-version", "2.40", "aggregate-show", "faster").out
    assert "successfully deleted" in nova("aggregate-delete", "faster").out


# --- moves -------------------------------------------------------------------------------------------
def test_resize_confirm_and_revert_commands(nova, project, placed):
    uuid, larger = placed(), project.flavor(ram=256)
    assert "Finished" in nova("resize", "--poll", "web", larger).err
    assert nova("list").rows[0][2] == "VERIFY_RESIZE"
    nova("resize-revert", "web")
    project.wait(uuid, "ACTIVE")
    nova("resize", "--poll", "web", larger)
    nova("resize-confirm", "web")
    project.wait(uuid, "ACTIVE")
    assert nova("show", "web", "-f", "json").document["flavor:ram"] == 256


def test_migration_list_shows_a_cold_migration(nova, project, placed, pair):
    uuid = placed()
    nova("migrate", "--host", SECOND, "--poll", "web")
    nova("resize-confirm", "web")
    project.wait(uuid, "ACTIVE")
    assert host_of(nova, uuid) == SECOND
    (moved,) = nova("migration-list", "--instance-uuid", uuid, "-f", "json").document
    assert (moved["Status"], moved["Type"], moved["Dest Compute"]) == ("confirmed", "migration", SECOND)


def test_live_migration_list_abort_and_force_complete(nova, project, placed, pair, suite):
    driver = pair.first.machine.driver
    uuid = placed()
    driver.behaviour.latency["live_migrate"] = 60
    nova("live-migration", "web", SECOND)
    found = wait_for(lambda: nova("server-migration-list", "web", "-f", "json").document)
    number = found[0]["Id"]
    wait_for(lambda: nova("server-migration-show", "web", number, "-f", "json").document["status"] == "running")
    nova("live-migration-abort", "web", number)
    project.wait(uuid, "ACTIVE")
    assert host_of(nova, uuid) == pair.first.host
    nova("live-migration", "web")
    number = wait_for(lambda: nova("server-migration-list", "web", "-f", "json").document)[0]["Id"]
    wait_for(lambda: nova("server-migration-show", "web", number, "-f", "json").document["status"] == "running")
    nova("live-migration-force-complete", "web", number)
    driver.behaviour.latency.clear()
    project.wait(uuid, "ACTIVE")


def test_move_all_servers_from_a_host(nova, project, placed, pair):
    first, second = placed("a"), placed("b")
    moved = nova("host-evacuate-live", pair.first.host, "--target-host", SECOND, "--max-servers", 1, "-f",
                 "json").document
    assert [row["Live Migration Accepted"] for row in moved] == [True]
    for uuid in (first, second):
        project.wait(uuid, "ACTIVE")
    assert {host_of(nova, first), host_of(nova, second)} == {pair.first.host, SECOND}
    rest = nova("host-servers-migrate", pair.first.host)
    assert [row[1:] for row in rest.rows] == [["True", ""]]
    uuid = rest.rows[0][0]
    project.wait(uuid, "VERIFY_RESIZE")
    nova("resize-confirm", uuid)
    project.wait(uuid, "ACTIVE")
    assert host_of(nova, uuid) == SECOND
    assert "There is no compute host nowhere" in nova("host-evacuate", "nowhere", code=3).err


def test_host_meta_changes_all_servers_of_a_host(nova, placed, pair):
    uuid = placed()
    nova("host-meta", pair.first.host, "set", "drain=now")
    assert nova("show", uuid, "-f", "json").document["metadata"] == {"drain": "now"}
    nova("host-meta", pair.first.host, "delete", "drain", "other")
    assert nova("show", uuid, "-f", "json").document["metadata"] == {}


@pytest.fixture
def lost(suite, pair, project):
    """Return the ids of two servers on the second host, which the test may stop. Start it again after the test."""
    uuids = [project.boot(pair.flavor, pair.image_id, name=name, availability_zone=f"nova:{SECOND}") for name in "ab"]
    for uuid in uuids:
        project.wait(uuid, "ACTIVE")
    yield uuids
    back = ComputeService(suite.transport, host=SECOND, machine=pair.second.machine)
    back.start()
    wait_for(lambda: not pair.second.machine.driver.guests.all(), reason="the host has removed the migrated guests")
    back.stop()


def test_evacuate_and_host_evacuate_commands(nova, project, pair, lost):
    refused = nova("host-evacuate", SECOND)
    assert [row[1] for row in refused.rows if len(row) > 1 and row[0] in lost] == ["False", "False"]
    pair.second.stop()
    nova("service-force-down", SECOND)
    nova("evacuate", "a", pair.first.host)
    project.wait(lost[0], "ACTIVE", "SHUTOFF")
    assert [row[:2] for row in nova("host-evacuate", SECOND).rows] == [[lost[1], "True"]]
    project.wait(lost[1], "ACTIVE", "SHUTOFF")
    assert {host_of(nova, uuid) for uuid in lost} == {pair.first.host}
