"""Servers with dedicated CPUs, huge pages and PCI devices, over HTTP on fake hosts."""

import pytest

from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.db.hosts import dedicated_resources
from nova.db.servers import servers
from tests.functional.client import Client, wait_for
from tests.functional.several_hosts import (
    error_of,
    migration_of,
    refused,
    service_of,
    set_service,
    used,
    wait_scheduler,
)

# Two NUMA cells of four CPUs each (two of them dedicated) with huge pages and a PCI device, and two kinds of VGPUs.
_SCENARIO = """
groups:
  - name: cells
    hosts: 2
    vcpus: 8
    memory_mb: 2048
    traits: [CUSTOM_CELLS]
    cells: {count: 2, dedicated: 2, pages: {2048: 64}}
    devices: [{vendor_id: "10de", product_id: "20b0", count: 1, cells: [0, 1]}]
    children: {small: {inventories: {VGPU: 2}}, large: {inventories: {VGPU: 2}, traits: [CUSTOM_BIG]}}
"""
_FIRST, _SECOND = "cells-000", "cells-001"
_PINNED = {"hw:cpu_policy": "dedicated", "trait:CUSTOM_CELLS": "required"}
_GPU = {"pci_passthrough:alias": "gpu:1", "trait:CUSTOM_CELLS": "required"}
_LIVE = {"host": None, "block_migration": "auto"}


@pytest.fixture
def cells(suite, admin, image_id, tmp_path):
    """Start two hosts with NUMA cells and devices; yield their fake drivers by host name."""
    path = tmp_path / "scenario.yaml"
    path.write_text(_SCENARIO)
    CONF.set_override("scenario", str(path), group="fake")
    CONF.set_override("alias", ['{"name": "gpu", "vendor_id": "10de", "product_id": "20b0"}'], group="pci")
    services = [ComputeService(suite.transport, host=host) for host in (_FIRST, _SECOND)]
    CONF.clear_override("scenario", group="fake")
    for service in services:
        service.start()
        wait_scheduler(suite, service.host, True)
    yield {service.host: service.machine.driver for service in services}
    for shown in admin.get("/servers", all_tenants=1)["servers"]:
        admin.delete(f"/servers/{shown['id']}")
        admin.wait_gone(shown["id"])
    for service in services:
        service.stop()
        admin.delete(f"/os-services/{service_of(admin, service.host)['id']}")
    CONF.clear_override("alias", group="pci")


@pytest.fixture
def flavored(admin):
    """Return a function that creates a flavor with extra specs."""
    def make(extra_specs, **values):
        flavor = admin.flavor(**{"vcpus": 2, **values})
        admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": extra_specs})
        return flavor

    return make


@pytest.fixture
def boot(admin, image_id):
    """Return a function that boots a server, optionally on a given host, and waits until it is ACTIVE or in ERROR."""
    def one(flavor, host=None, **values):
        where = {"host": host} if host else {}
        uuid = admin.boot(flavor, image_id, **where, **values)
        admin.wait(uuid, "ACTIVE", "ERROR")
        return uuid

    return one


def guests(driver):
    return [driver.guest(guest.uuid) for guest in driver.guests.all()]


def left(suite):
    """Return (free dedicated CPUs, free devices) as counted by the scheduler."""
    with suite.scheduler.fleet.view() as view:
        found = [known for position in range(len(view)) if (known := view.dedicated_resources(position)) is not None]
    cells = [cell for each in found for cell in each.numa_topology.cells]
    return sum(len(cell.pcpus) - len(cell.pinned) for cell in cells), sum(each.free_devices for each in found)


def freed(suite, *expected):
    wait_for(lambda: left(suite) == expected, reason=f"the scheduler counts {expected} as free")


def nowhere(admin, uuid):
    """Return True if no host had enough free resources. With outdated usage only the claim detects this."""
    shown = admin.server(uuid)
    return shown["status"] == "ERROR" and shown["fault"]["message"].startswith("No valid host was found. ")


def test_pinned_servers_fill_all_cells_and_a_delete_frees_cpus(suite, admin, cells, flavored, boot):
    pinned = flavored(_PINNED)
    booted = [boot(pinned) for _number in range(4)]
    taken = [guest.cpus for driver in cells.values() for guest in guests(driver)]
    assert sorted(taken) == [(2, 3), (2, 3), (6, 7), (6, 7)]
    assert nowhere(admin, boot(pinned))
    gone = admin.server(booted[1])["OS-EXT-SRV-ATTR:host"]
    admin.delete(f"/servers/{booted[1]}")
    admin.wait_gone(booted[1])
    freed(suite, 2, 4)
    last = boot(pinned)
    assert (admin.server(last)["status"], admin.server(last)["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", gone)


def test_server_with_two_numa_nodes_needs_room_in_both_cells(suite, admin, cells, flavored, boot):
    two = flavored({**_PINNED, "hw:numa_nodes": "2"}, vcpus=4)
    boot(flavored(_PINNED, vcpus=1), host=_FIRST)
    assert nowhere(admin, boot(two, host=_FIRST))
    there = boot(two, host=_SECOND)
    assert cells[_SECOND].guest(there).cpus == (2, 3, 6, 7)


def test_server_topology_api_shows_the_pinning_of_the_guest(suite, admin, cells, flavored, boot):
    specs = {**_PINNED, "hw:numa_nodes": "2", "hw:mem_page_size": "2MB", "hw:cpu_threads": "2"}
    uuid = boot(flavored(specs, vcpus=4, ram=128), host=_SECOND)
    shown = admin.get(f"/servers/{uuid}/topology")
    assert shown["pagesize_kb"] == 2048
    assert [(node["vcpu_set"], node["siblings"], node["memory_mb"]) for node in shown["nodes"]] == [
        ([0, 1], [[0, 1]], 64), ([2, 3], [[2, 3]], 64)]
    assert sorted(node["host_node"] for node in shown["nodes"]) == [0, 1]
    pinned = sorted(cpu for node in shown["nodes"] for cpu in node["cpu_pinning"].values())
    assert tuple(pinned) == cells[_SECOND].guest(uuid).cpus == (2, 3, 6, 7)
    reader, stranger = (Client(suite.url, project=project, roles="reader") for project in ("p", "other"))
    nodes = reader.get(f"/servers/{uuid}/topology")["nodes"]
    assert [set(node) for node in nodes] == [{"memory_mb", "siblings", "vcpu_set"}] * 2
    assert refused(lambda: stranger.get(f"/servers/{uuid}/topology"))[0] == 404
    plain = boot(admin.flavor())
    assert admin.get(f"/servers/{plain}/topology") == {"nodes": [], "pagesize_kb": None}


def test_servers_of_a_multi_create_request_get_distinct_cpus(suite, admin, cells, flavored, image_id):
    first = admin.boot(flavored(_PINNED), image_id, min_count=4, max_count=4)
    admin.wait(first, "ACTIVE")
    for shown in admin.get("/servers")["servers"]:
        assert admin.wait(shown["id"], "ACTIVE", "ERROR")["status"] == "ACTIVE"
    assert sorted(guest.cpus for driver in cells.values() for guest in guests(driver)) == [
        (2, 3), (2, 3), (6, 7), (6, 7)]


def test_servers_are_refused_once_huge_pages_are_exhausted(suite, admin, cells, flavored, boot):
    huge = flavored({"hw:mem_page_size": "2MB"}, ram=128, vcpus=1)
    booted = [boot(huge, host=_FIRST) for _number in range(2)]
    assert {admin.server(uuid)["status"] for uuid in booted} == {"ACTIVE"}
    assert nowhere(admin, boot(huge, host=_FIRST))
    assert admin.server(boot(huge))["OS-EXT-SRV-ATTR:host"] == _SECOND


def test_pci_device_is_assigned_to_a_single_server(suite, admin, cells, flavored, boot):
    gpu = flavored(_GPU)
    booted = [boot(gpu) for _number in range(4)]
    taken = [(host, address) for host, driver in cells.items() for guest in guests(driver)
             for address in guest.devices]
    assert len(set(taken)) == len(taken) == 4
    assert nowhere(admin, boot(gpu))
    admin.delete(f"/servers/{booted[0]}")
    admin.wait_gone(booted[0])
    freed(suite, 8, 1)
    assert admin.server(boot(gpu))["status"] == "ACTIVE"


def test_forced_host_without_free_devices_is_refused_by_the_claim(suite, admin, cells, flavored, boot):
    """A forced host skips the filters, so only the claim prevents a second assignment."""
    gpu = flavored(_GPU)
    forced = {"availability_zone": f"nova:{_FIRST}"}
    for _number in range(2):
        assert admin.server(boot(gpu, **forced))["status"] == "ACTIVE"
    fault = admin.server(boot(gpu, **forced))["fault"]
    assert (fault["code"], fault["message"]) == (
        500, "No valid host was found. A selected host cannot take the server: "
        "not enough free NUMA cells or PCI devices for the server.")


@pytest.mark.parametrize("word", ["confirmResize", "revertResize"])
def test_resize_holds_cpus_on_both_hosts_until_confirm_or_revert(suite, admin, cells, flavored, boot, word):
    small, large = flavored(_PINNED, vcpus=1), flavored(_PINNED, vcpus=2)
    uuid = boot(small, host=_FIRST)
    admin.action(uuid, "resize", {"flavorRef": large})
    admin.wait(uuid, "VERIFY_RESIZE")
    assert len(cells[_SECOND].guest(uuid).cpus) == 2
    migration = migration_of(admin, uuid)["uuid"]
    db = suite.conductor.core.db
    held = {consumer: db.read(lambda connection, consumer=consumer: dedicated_resources.of_claim(connection, consumer))
            for consumer in (uuid, migration)}
    assert [len(held[each].numa_topology.cells[0].pinning) for each in (uuid, migration)] == [1, 2]
    admin.action(uuid, word)
    admin.wait(uuid, "ACTIVE")
    host = _SECOND if word == "confirmResize" else _FIRST
    now = db.read(lambda connection: dedicated_resources.of_claim(connection, uuid))
    assert now == held[migration if word == "confirmResize" else uuid]
    assert cells[host].guest(uuid).cpus == tuple(sorted(now.numa_topology.cells[0].pinning.values()))
    admin.action(uuid, "reboot", {"type": "HARD"})
    admin.wait(uuid, "ACTIVE")
    assert cells[host].guest(uuid).cpus == tuple(sorted(now.numa_topology.cells[0].pinning.values()))


def test_resize_to_unpinned_flavor_and_revert_restores_pinning(suite, admin, cells, flavored, boot, flavor):
    uuid = boot(flavored(_PINNED), host=_FIRST)
    plain = flavored({"trait:CUSTOM_CELLS": "required"})
    admin.action(uuid, "resize", {"flavorRef": plain})
    admin.wait(uuid, "VERIFY_RESIZE")
    assert cells[_SECOND].guest(uuid).cpus == ()
    admin.action(uuid, "revertResize")
    admin.wait(uuid, "ACTIVE")
    assert len(cells[_FIRST].guest(uuid).cpus) == 2


def test_live_migration_pins_the_server_to_cpus_of_the_new_host(suite, admin, cells, flavored, boot):
    one = flavored(_PINNED, vcpus=1)
    boot(one, host=_SECOND)
    uuid = boot(flavored(_PINNED), host=_FIRST)
    assert cells[_FIRST].guest(uuid).cpus == (2, 3)
    admin.action(uuid, "os-migrateLive", _LIVE)
    assert admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == _SECOND
    assert cells[_SECOND].guest(uuid).cpus == (6, 7)
    freed(suite, 5, 4)
    admin.action(uuid, "os-migrateLive", _LIVE)
    assert admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == _FIRST


def test_live_migration_without_free_cpus_keeps_server_on_source(suite, admin, cells, flavored, boot):
    pinned = flavored(_PINNED)
    for _number in range(2):
        boot(pinned, host=_SECOND)
    uuid = boot(pinned, host=_FIRST)
    admin.action(uuid, "os-migrateLive", _LIVE)
    admin.wait(uuid, "ACTIVE")
    assert error_of(admin, uuid, "live-migration").startswith("No valid host was found")
    assert cells[_FIRST].guest(uuid).cpus == (2, 3)


def test_server_with_pci_devices_can_only_migrate_cold(suite, admin, cells, flavored, boot):
    uuid = boot(flavored(_GPU), host=_FIRST)
    code, message = refused(lambda: admin.action(uuid, "os-migrateLive", _LIVE))
    assert (code, "PCI devices" in message) == (400, True)
    admin.action(uuid, "migrate")
    admin.wait(uuid, "VERIFY_RESIZE")
    assert len(cells[_SECOND].guest(uuid).devices) == 1
    admin.action(uuid, "confirmResize")
    admin.wait(uuid, "ACTIVE")
    assert used(admin, _FIRST) == (0, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_evacuation_repins_the_server_or_keeps_pinning_on_failure(suite, admin, cells, flavored, boot, fails):
    boot(flavored(_PINNED, vcpus=1), host=_FIRST)
    uuid = boot(flavored(_PINNED), host=_SECOND)
    before = cells[_SECOND].guest(uuid).cpus
    cells[_FIRST].behaviour.failure["spawn"] = float(fails)
    set_service(admin, _SECOND, forced_down=True)
    wait_scheduler(suite, _SECOND, False)
    admin.action(uuid, "evacuate", {"host": _FIRST}, version="2.94")
    shown = admin.wait(uuid, "ERROR" if fails else "ACTIVE")
    assert shown["OS-EXT-SRV-ATTR:host"] == (_SECOND if fails else _FIRST)
    now = suite.conductor.core.db.read(lambda connection: servers.get(connection, uuid)).numa_topology
    mine = tuple(sorted(now.cells[0].pinning.values()))
    assert mine == (before if fails else cells[_FIRST].guest(uuid).cpus)
    assert mine == ((2, 3) if fails else (6, 7))


def test_failed_build_releases_its_cpus(suite, admin, cells, flavored, boot):
    cells[_FIRST].behaviour.failure["spawn"] = 1.0
    pinned = flavored(_PINNED)
    assert admin.server(boot(pinned, availability_zone=f"nova:{_FIRST}"))["status"] == "ERROR"
    cells[_FIRST].behaviour.failure.clear()
    freed(suite, 8, 4)
    booted = [boot(pinned, availability_zone=f"nova:{_FIRST}") for _number in range(2)]
    assert {admin.server(uuid)["status"] for uuid in booted} == {"ACTIVE"}


@pytest.mark.parametrize(("extra_specs", "names"), [
    ({"hw:numa_nodes": "3"}, "evenly distributed"), ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0"}, "hw:numa_mem.0"),
    ({"hw:cpu_thread_policy": "isolate"}, "pinning policy"), ({"pci_passthrough:alias": "none:1"}, "PCI alias none"),
    ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, "group_policy"),
    ({"hw:cpu_policy": "mixed"}, "hw:cpu_dedicated_mask"), ({"resources:PCPU": "7"}, "resources:PCPU"),
])
def test_invalid_resource_extra_specs_are_refused_at_boot(suite, admin, image_id, flavored, extra_specs, names):
    code, message = refused(lambda: admin.boot(flavored(extra_specs), image_id))
    assert (code, names in message) == (400, True), message


# --- child resource providers ----------------------------------------------------------------------
def test_isolated_resource_groups_use_separate_child_providers(suite, admin, cells, flavored, boot):
    alone = flavored({"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"})
    booted = [boot(alone) for _number in range(2)]
    assert {admin.server(uuid)["OS-EXT-SRV-ATTR:host"] for uuid in booted} <= {_FIRST, _SECOND}
    assert nowhere(admin, boot(flavored({"resources:VGPU": "2", "trait:CUSTOM_BIG": "required"})))
    large = flavored({"resources:VGPU": "1", "trait:CUSTOM_BIG": "required"})
    found = [admin.server(boot(large)) for _number in range(2)]
    assert [(server["status"], server.get("fault")) for server in found] == [("ACTIVE", None)] * 2
    assert nowhere(admin, boot(large))


def test_confirmed_resize_with_child_provider_resources(suite, admin, cells, flavored, boot):
    one, two = flavored({"resources:VGPU": "1"}), flavored({"resources1:VGPU": "2", "trait1:CUSTOM_BIG": "required"})
    uuid = boot(one, host=_FIRST)
    admin.action(uuid, "resize", {"flavorRef": two})
    admin.wait(uuid, "VERIFY_RESIZE")
    admin.action(uuid, "confirmResize")
    assert admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == _SECOND


def test_offloaded_server_releases_cpus_and_devices_and_gets_new_ones(suite, admin, cells, flavored, boot):
    flavor = flavored({**_PINNED, **_GPU})
    uuid = boot(flavor, host=_FIRST)
    had = cells[_FIRST].guest(uuid)
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    freed(suite, 8, 4)
    assert admin.server(boot(flavor, host=_FIRST))["status"] == "ACTIVE"
    admin.action(uuid, "unshelve", {"host": _FIRST})
    admin.wait(uuid, "ACTIVE")
    has = cells[_FIRST].guest(uuid)
    assert not set(has.cpus) & set(had.cpus)
    assert not set(has.devices) & set(had.devices)
