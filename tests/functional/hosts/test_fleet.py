"""A fleet described by a scenario and simulated by a single nova-compute: several hosts with several nodes."""

import time

import pytest
import yaml

from nova import bus
from nova.compute.service import compute_of
from nova.conf import CONF
from nova.service.periodic import Periodic
from nova.virt.fake import scenario as fake_scenario
from tests.functional.client import Client, wait_for

FLEET = {
    "groups": [
        {"name": "plain", "hosts": 2, "nodes": 3, "vcpus": 8, "aggregates": ["west"]},
        {"name": "fast", "nodes": 2, "inventories": {"CUSTOM_FPGA": 2}, "traits": ["CUSTOM_FAST"],
         "aggregates": ["east"]},
        {"name": "frail", "nodes": 2, "failure": {"prepare": 0.2, "spawn": 0.4, "destroy": 0.2},
         "latency": {"spawn": 0.01}, "aggregates": ["west"]}],
    "aggregates": {"east": {"availability_zone": "east"}, "west": {"availability_zone": "west"}}}
HOSTS = ["plain-000", "plain-001", "fast", "frail"]


@pytest.fixture(scope="module")
def fleet(suite, tmp_path_factory):
    """Start the fleet in the availability zones of its scenario."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    path.write_text(yaml.safe_dump(FLEET))
    CONF.set_override("scenario", str(path), group="fake")
    running = compute_of(suite.transport)
    running.start()
    # Failures are enabled per test: otherwise a failed delete would leave resources to the next test.
    running.failures = {service.host: dict(service.machine.driver.behaviour.failure) for service in running.services}
    _fail(running, {})
    yield running
    running.stop()
    CONF.clear_override("scenario", group="fake")


def _fail(fleet, failures):
    for service in fleet.services:
        failure = service.machine.driver.behaviour.failure
        failure.clear()
        failure.update(failures.get(service.host, {}))


@pytest.fixture
def failing(fleet):
    """Make the hosts fail as configured in the scenario; call the returned function to stop that."""
    assert [host for host, failures in fleet.failures.items() if failures] == ["frail"]
    _fail(fleet, fleet.failures)
    yield lambda: _fail(fleet, {})
    _fail(fleet, {})


@pytest.fixture(scope="module")
def zones(suite, fleet):
    """Create the aggregates of the scenario; remove all resources of the fleet at the end."""
    admin, described = Client(suite.url), fake_scenario.configured()
    made = {}
    for name, wanted in described.aggregates.items():
        made[name] = admin.post("/os-aggregates", {"aggregate": {
            "name": name, "availability_zone": wanted.availability_zone}})["aggregate"]["id"]
        for host in described.hosts_of_aggregate(name):
            admin.post(f"/os-aggregates/{made[name]}/action", {"add_host": {"host": host}})
    wait_for(lambda: zones_of_scheduler(suite) >= {"east", "west"})
    yield
    for name, ident in made.items():
        for host in described.hosts_of_aggregate(name):
            admin.post(f"/os-aggregates/{ident}/action", {"remove_host": {"host": host}})
        admin.delete(f"/os-aggregates/{ident}")
    fleet.stop()
    for service in admin.get("/os-services", binary="nova-compute")["services"]:
        if service["host"] in HOSTS:
            admin.delete(f"/os-services/{service['id']}")
    wait_for(lambda: not zones_of_scheduler(suite) & {"east", "west"})


def zones_of_scheduler(suite):
    with suite.scheduler.fleet.view() as view:
        return {view.at(row).text("zone", 0) for row in range(len(view)) if view.alive[row]}


def settled(admin, ids, seconds=60):
    """Return these servers once no operation runs."""
    end = time.monotonic() + seconds
    while True:
        found = [admin.server(uuid) for uuid in ids]
        if all(server["status"] != "BUILD" and server["OS-EXT-STS:task_state"] is None for server in found):
            return found
        assert time.monotonic() < end, [server["status"] for server in found]
        time.sleep(0.05)


def test_fleet_nodes_are_hypervisors_with_the_resources_of_their_group(admin, zones):
    found = {each["hypervisor_hostname"]: each
             for each in admin.get("/os-hypervisors/detail", version="2.53")["hypervisors"]
             if each["service"]["host"] in HOSTS}
    assert sorted(found) == [
        "fast-00000", "fast-00001", "frail-00000", "frail-00001",
        *(f"plain-{host:03d}-{node:05d}" for host in range(2) for node in range(3))]
    assert found["plain-001-00002"]["vcpus"] == 8
    assert found["fast-00000"]["vcpus"] == CONF.fake.vcpus


def test_custom_resources_and_traits_select_matching_nodes(admin, zones, image_id):
    flavor = admin.flavor()
    admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {
        "resources:CUSTOM_FPGA": "1", "trait:CUSTOM_FAST": "required"}})
    ids = [admin.boot(flavor, image_id, name=f"fpga-{number}") for number in range(5)]
    servers = settled(admin, ids)
    # Four cards in all: two on each of two nodes.
    assert sorted(server["status"] for server in servers) == ["ACTIVE"] * 4 + ["ERROR"]
    assert {server["OS-EXT-SRV-ATTR:host"] for server in servers if server["status"] == "ACTIVE"} == {"fast"}
    nodes = [server["OS-EXT-SRV-ATTR:hypervisor_hostname"] for server in servers if server["status"] == "ACTIVE"]
    assert sorted(nodes) == ["fast-00000", "fast-00000", "fast-00001", "fast-00001"]


def test_scenario_zones_are_respected(admin, zones, flavor, image_id):
    for zone, hosts in (("east", {"fast"}), ("west", {"plain-000", "plain-001", "frail"})):
        servers = settled(admin, [admin.boot(flavor, image_id, name=f"{zone}-{number}", availability_zone=zone)
                                  for number in range(6)])
        assert {server["OS-EXT-AZ:availability_zone"] for server in servers} == {zone}
        assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} <= hosts


def test_servers_on_failing_hosts_end_in_active_or_error(
        admin, fleet, failing, zones, flavor, image_id):
    before = {server["id"] for server in admin.get("/servers")["servers"]}
    admin.boot(flavor, image_id, name="many", availability_zone="west", min_count=40, max_count=40)
    ids = {server["id"] for server in admin.get("/servers", limit=1000)["servers"]} - before
    servers = settled(admin, ids)
    assert len(servers) == 40
    assert {server["status"] for server in servers} <= {"ACTIVE", "ERROR"}
    for server in servers:
        assert ("fault" in server) == (server["status"] == "ERROR")
    failing()
    for uuid in ids:
        admin.delete(f"/servers/{uuid}")
    for uuid in ids:
        admin.wait_gone(uuid)
    for service in fleet.services:
        service.reconciler.compare()  # Removes resources whose cleanup failed.
        assert service.machine.driver.guests.all() == []


def test_unchanged_nodes_are_not_reported_again(fleet):
    bus.SENT.take()
    for service in fleet.services:
        service.report_nodes()
    assert bus.SENT.take().get("guests.report_nodes", 0) == 0
    group = fleet.services[2].machine.driver._group
    group.inventories["CUSTOM_FPGA"] = 3
    for service in fleet.services:
        service.report_nodes()
    told = bus.SENT.take()["guests.report_nodes"]
    group.inventories["CUSTOM_FPGA"] = 2
    fleet.services[2].report_nodes()
    assert told == 2  # A request and a reply.


def test_heartbeat_of_all_hosts_is_one_message_and_few_statements(suite, fleet):
    for each in (suite.compute, fleet):
        each.periodic[0].stop()
    try:
        time.sleep(0.3)
        updates = []
        for _try in range(3):
            bus.SENT.take()
            suite.statements.take()
            fleet._beat_for(fleet.services)
            assert bus.SENT.take().get("heartbeat.beat_all") == 2
            updates.append(len([one for one in suite.statements.take() if one.startswith("UPDATE services")]))
        # Heartbeats of the conductor, the scheduler and the API at the same moment only add statements.
        assert min(updates) == 1
    finally:
        _resume(suite.compute, suite.compute._beat)
        _resume(fleet, lambda: fleet._beat_for(fleet.services))


def _resume(service, beat):
    """Replace the stopped thread of heartbeats, since a periodic task starts once."""
    service.periodic[0] = Periodic("heartbeat", CONF.report_interval, beat)
    service.periodic[0].start()


def test_deleted_services_of_a_running_fleet_register_again(admin, fleet, zones):
    ident = next(service["id"] for service in admin.get("/os-services", binary="nova-compute")["services"]
                 if service["host"] == "plain-001")
    admin.delete(f"/os-services/{ident}")

    def back():
        nodes = [each for each in admin.get("/os-hypervisors/detail", version="2.53")["hypervisors"]
                 if each["service"]["host"] == "plain-001"]
        return len(nodes) == 3

    wait_for(back)
    aggregate = next(each for each in admin.get("/os-aggregates")["aggregates"] if each["name"] == "west")
    admin.post(f"/os-aggregates/{aggregate['id']}/action", {"add_host": {"host": "plain-001"}})
