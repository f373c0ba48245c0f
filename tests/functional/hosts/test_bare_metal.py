"""Bare metal servers on nodes that two nova-computes share, with a stand-in of Ironic or a real one (NOVA_TEST_IRONIC).
"""

import itertools
import threading

import pytest

from nova import bus, context, exception
from nova.compute.service import ComputeService, machine_of
from nova.conf import CONF, register_external_services
from nova.db.hosts import shared_nodes
from nova.db.servers import evictions
from nova.objects.base import new_uuid
from nova.rpcapi.by_hosts import Guests
from nova.virt.ironic.driver import IronicDriver
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.several_hosts import error_of, newest_action, service_of, set_service, wait_scheduler
from tests.ironic_service import IronicService, start_ironic

HOSTS = ("metal1", "metal2")
NODES = 4


class Metal(IronicDriver):
    virtual = True  # several hosts in one process; they build no config drives


class Host:
    """A nova-compute that can be killed at a request to Ironic."""

    def __init__(self, name):
        self.name = name
        self.reached, self.never = threading.Event(), threading.Event()
        self.start()

    def start(self):
        driver = Metal(self.name)
        self.service = ComputeService(bus.connect(CONF, self.name), host=self.name, machine=machine_of(driver))
        self.service.start()
        self.ironic = driver._ironic

    def die_at(self, method, target, when):
        """Die before or after the first request of this method whose body names ``target``."""
        send = self.ironic._request

        def request(method_sent, path, **more):
            at = method_sent == method and target in str(more.get("json"))
            if at and when == "before":
                self._hang()
            response = send(method_sent, path, **more)
            if at:
                self._hang()
            return response

        self.ironic._request = request

    def _hang(self):
        self.reached.set()
        self.never.wait(120)
        raise exception.NovaException("the process was killed")

    def kill(self, admin):
        """Stop all that the process does, like SIGKILL."""
        self.service.stop_taking()
        self.service.runner._stopping.set()
        for thread in self.service.periodic:
            thread.stop()
        set_service(admin, self.name, forced_down=True)

    def restart(self, admin):
        self.never.set()
        set_service(admin, self.name, forced_down=False)
        self.start()

    def stop(self):
        self.never.set()
        self.service.stop()

    @property
    def managed(self):
        return self.service.machine.driver._guests.managed


class World:
    def __init__(self, ironic, hosts, machines):
        self.ironic, self.hosts, self.machines = ironic, hosts, machines

    def report(self):
        for host in self.hosts.values():
            if not host.service.runner._stopping.is_set():
                host.service.report_nodes()

    def nodes_of(self, uuid):
        """Return the nodes that Ironic associates with a server."""
        return [machine for machine in self.machines if self.ironic.node(machine)["instance_uuid"] == uuid]

    def all_available(self):
        return all(node["provision_state"] == "available" and node["instance_uuid"] is None
                   for node in map(self.ironic.node, self.machines))


def uuids_of(host, number):
    """Return this number of uuids of nodes that the host manages while all hosts are up."""
    uuids = (new_uuid() for _ in itertools.count())
    return list(itertools.islice((uuid for uuid in uuids if shared_nodes.owner_of(uuid, HOSTS) == host), number))


@pytest.fixture(name="world", scope="module")
def world_fixture(suite, tmp_path_factory):
    """Two hosts that share four nodes."""
    ironic = start_ironic(tmp_path_factory.mktemp("ironic"))
    register_external_services()
    CONF.set_override("auth_type", "none", "ironic")
    CONF.set_override("endpoint_override", ironic.url, "ironic")
    CONF.set_override("api_retry_interval", 0.05, "ironic")
    CONF.set_override("peer_list", list(HOSTS), "ironic")
    machines = [ironic.add_node("gold", identity) for host in HOSTS for identity in uuids_of(host, NODES // 2)]
    world = World(ironic, {name: Host(name) for name in HOSTS}, machines)
    yield world
    admin = Client(suite.url)
    for name, host in world.hosts.items():
        host.stop()
        # Otherwise the nodes, with their failed builds, stay in the scheduler until the hosts count as down.
        set_service(admin, name, forced_down=True)
        admin.delete(f"/os-services/{service_of(admin, name)['id']}")
    ironic.stop()
    for option in ("auth_type", "endpoint_override", "api_retry_interval", "peer_list"):
        CONF.clear_override(option, "ironic")


def offered(suite):
    """Return the number of nodes that the scheduler can choose."""
    with suite.scheduler.fleet.view() as view:
        return int((view.alive & view.up & ~view.disabled & (view.free("CUSTOM_GOLD") > 0)).sum())


@pytest.fixture(name="metal")
def metal_fixture(world, suite, admin):
    """Yield the world with both hosts up, and all nodes available and reported."""
    world.report()
    for name in HOSTS:
        wait_scheduler(suite, name, True)
    wait_for(lambda: offered(suite) == NODES, 15, lambda: f"the scheduler offers {offered(suite)} nodes")
    yield world
    for machine in world.machines:
        world.ironic.change(machine, maintenance=False)
    for host in world.hosts.values():
        if host.service.runner._stopping.is_set():
            host.restart(admin)
    remove_servers(admin)
    for host in world.hosts.values():
        host.service.reconciler.compare()
    wait_for(world.all_available, 60, lambda: [world.ironic.node(machine) for machine in world.machines])
    world.report()


@pytest.fixture(name="gold", scope="module")
def gold_fixture(suite):
    admin = Client(suite.url)
    flavor = admin.flavor()
    admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {
        "resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0", "resources:CUSTOM_GOLD": "1"}})
    return flavor


@pytest.fixture(name="boot")
def boot_fixture(admin, gold, image_id):
    return lambda **values: admin.boot(gold, image_id, **values)


def node_of(admin, uuid):
    return admin.server(uuid)["OS-EXT-SRV-ATTR:hypervisor_hostname"]


def host_of(admin, uuid):
    return admin.server(uuid)["OS-EXT-SRV-ATTR:host"]


def test_bare_metal_server_from_create_to_delete(metal, admin, boot, image_id):
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    node = node_of(admin, uuid)
    assert metal.nodes_of(uuid) == [node]
    state = metal.ironic.node(node)
    assert (state["provision_state"], state["power_state"]) == ("active", "power on")
    assert state["instance_info"]["image_source"] == image_id
    for name, value, status in (("os-stop", None, "SHUTOFF"), ("rebuild", {"imageRef": image_id}, "SHUTOFF"),
                                ("os-start", None, "ACTIVE"),
                                ("reboot", {"type": "SOFT"}, "ACTIVE"), ("reboot", {"type": "HARD"}, "ACTIVE"),
                                ("rebuild", {"imageRef": image_id}, "ACTIVE"), ("rescue", None, "RESCUE"),
                                ("unrescue", None, "ACTIVE")):
        admin.action(uuid, name, value)
        admin.wait(uuid, status)
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert metal.nodes_of(uuid) == []


def test_hosts_share_all_nodes_and_each_node_takes_one_server(metal, admin, boot):
    shares = [host.managed for host in metal.hosts.values()]
    assert sorted(node for share in shares for node in share) == sorted(metal.machines)
    servers = [boot() for _ in range(NODES + 1)]
    states = [admin.wait(uuid, "ACTIVE", "ERROR", seconds=60)["status"] for uuid in servers]
    assert sorted(states) == ["ACTIVE"] * NODES + ["ERROR"]
    assert len({node_of(admin, uuid) for uuid in servers} - {None}) == NODES
    shown = admin.get("/os-hypervisors/detail", version="2.88")["hypervisors"]
    assert {node["hypervisor_hostname"] for node in shown if node["service"]["host"] in HOSTS} == set(metal.machines)


def test_nodes_in_maintenance_or_in_use_outside_of_nova_are_not_offered(metal, admin, suite, boot):
    first, *others = metal.machines
    metal.ironic.change(first, maintenance=True)
    strange = "9d1b7a6e-0000-4000-8000-000000000001"
    for other in others:
        metal.ironic.change(other, instance_uuid=strange[:-1] + str(others.index(other)))
    metal.report()
    uuid = boot()
    assert "No valid host" in admin.wait(uuid, "ERROR")["fault"]["message"]
    metal.ironic.change(first, maintenance=False)
    metal.report()
    again = boot()
    admin.wait(again, "ACTIVE")
    assert node_of(admin, again) == first
    for other in others:
        if isinstance(metal.ironic, IronicService):
            metal.ironic.change(other, instance_uuid=None)
        else:
            metal.ironic._call("PATCH", f"/nodes/{other}", [{"op": "remove", "path": "/instance_uuid"}])


def test_node_that_became_unusable_since_the_report_is_replaced_by_another(metal, admin, boot):
    unusable, usable = metal.machines[:2], metal.machines[2:]
    for node in unusable:  # fewer than the nodes that a build tries
        metal.ironic.change(node, maintenance=True)
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    assert node_of(admin, uuid) in usable


@pytest.mark.parametrize(("method", "target", "when"), [
    ("PATCH", "/instance_uuid", "before"), ("PATCH", "/instance_uuid", "after"),
    ("PUT", "'active'", "before"), ("PUT", "'active'", "after"), ("PUT", "power on", "after")])
def test_build_continues_on_another_host_if_its_host_is_killed(metal, admin, boot, method, target, when):
    if target == "power on" and not isinstance(metal.ironic, IronicService):
        pytest.skip("fake-hardware does not power off undeployed nodes")
    for host in metal.hosts.values():
        host.reached.clear()
        host.never.clear()
        host.die_at(method, target, when)
    uuid = boot()
    victim = wait_for(lambda: next((host for host in metal.hosts.values() if host.reached.is_set()), None), 30)
    for host in metal.hosts.values():
        if host is not victim:
            host.ironic.__dict__.pop("_request")
    victim.kill(admin)
    admin.wait(uuid, "ACTIVE", seconds=60)
    assert host_of(admin, uuid) != victim.name
    assert metal.nodes_of(uuid) == [node_of(admin, uuid)]


def test_host_that_was_frozen_leaves_servers_on_nodes_that_were_taken_over(metal, admin, suite, boot):
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    frozen = next(host for host in metal.hosts.values() if host.name != host_of(admin, uuid))
    suite.conductor.core.db.write(lambda connection: evictions.add(connection, uuid, frozen.name, keep_disks=False))
    frozen.service.machine.driver.manage(metal.machines)  # the assignment from before it was frozen
    frozen.service.reconciler.compare()
    assert frozen.managed != set(metal.machines)
    assert metal.nodes_of(uuid) == [node_of(admin, uuid)]
    assert metal.ironic.node(node_of(admin, uuid))["provision_state"] == "active"


def test_servers_of_a_dead_host_are_taken_over(metal, admin, boot):
    servers = [boot() for _ in range(NODES)]
    for uuid in servers:
        admin.wait(uuid, "ACTIVE", seconds=60)
    before = {uuid: (host_of(admin, uuid), node_of(admin, uuid)) for uuid in servers}
    assert {host for host, _node in before.values()} == set(HOSTS)
    dead, alive = metal.hosts.values()
    moved = [uuid for uuid, (host, _node) in before.items() if host == dead.name]
    dead.kill(admin)
    alive.service.report_nodes()
    assert alive.managed == set(metal.machines)
    for uuid in servers:
        assert (host_of(admin, uuid), node_of(admin, uuid)) == (alive.name, before[uuid][1])
    admin.action(moved[0], "os-stop")
    admin.wait(moved[0], "SHUTOFF")
    assert metal.ironic.node(before[moved[0]][1])["power_state"] == "power off"
    admin.delete(f"/servers/{moved[-1]}")
    admin.wait_gone(moved[-1])
    dead.restart(admin)
    metal.report()
    assert not dead.managed & {node for uuid, (_host, node) in before.items() if uuid != moved[-1]}
    assert dead.managed | alive.managed == set(metal.machines)


def test_delete_while_the_host_is_dead_undeploys_the_node(metal, admin, boot):
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    dead = metal.hosts[host_of(admin, uuid)]
    alive, = (host for host in metal.hosts.values() if host is not dead)
    dead.kill(admin)
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid, seconds=60)
    assert metal.nodes_of(uuid)
    alive.service.report_nodes()  # takes the node over, and finds the deleted server on it
    wait_for(lambda: not metal.nodes_of(uuid), 30, "the node is undeployed")


def test_power_event_changes_the_state_of_the_server(metal, admin, boot):
    uuid = boot()
    admin.wait(uuid, "ACTIVE")

    def report(tag, server=uuid):
        admin.post("/os-server-external-events", {"events": [
            {"name": "power-update", "server_uuid": server, "tag": tag}]}, version="2.76")
        shown = admin.server(server)
        return shown["status"], shown["OS-EXT-STS:power_state"]

    assert report("POWER_OFF") == ("SHUTOFF", 4)
    assert report("POWER_ON") == ("ACTIVE", 1)


def test_power_event_about_a_virtual_server_is_ignored(suite, metal, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.post("/os-server-external-events", {"events": [
        {"name": "power-update", "server_uuid": uuid, "tag": "POWER_OFF"}]}, version="2.76")
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_unsupported_operations_leave_the_server_as_it_was(metal, admin, boot, gold):
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    for name, value, action in (("pause", None, "pause"), ("suspend", None, "suspend"), ("shelve", None, "shelve"),
                                ("createImage", {"name": "i"}, "createImage")):
        admin.action(uuid, name, value)
        admin.wait(uuid, "ACTIVE")
        assert "not supported by the driver" in error_of(admin, uuid, action)
    with pytest.raises(Exception, match="Unable to show the console log"):
        admin.action(uuid, "os-getConsoleOutput", {})
    assert metal.ironic.node(node_of(admin, uuid))["provision_state"] == "active"


def test_host_that_is_not_listed_gets_no_nodes(metal, suite):
    guests = bus.client(suite._on_host, Guests)
    with pytest.raises(exception.CallerRefused):
        guests.share_nodes(context.admin(), CONF.host, metal.machines)


def test_listed_host_gets_no_nodes_of_virtual_hosts(metal, suite, admin):
    virtual = next(node["id"] for node in admin.get("/os-hypervisors", version="2.88")["hypervisors"]
                   if node["hypervisor_hostname"] not in metal.machines)
    plan = suite.conductor.core.db.read(lambda connection: shared_nodes.plan(connection, "metal1", [virtual], False))
    assert (plan.own, plan.wanted) == ([], {})


def test_failed_deployment_is_undeployed_and_tried_on_another_node(metal, admin, boot):
    if not isinstance(metal.ironic, IronicService):
        pytest.skip("fake-hardware deploys without errors")
    metal.ironic.failing.add("active")
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    assert metal.nodes_of(uuid) == [node_of(admin, uuid)]
    failures = [event for event in newest_action(admin, uuid, "create")["events"] if event["result"] == "Error"]
    assert "active does not work" in failures[0]["details"]


def test_deployment_that_waits_holds_no_thread_and_can_be_deleted(metal, admin, boot):
    if not isinstance(metal.ironic, IronicService):
        pytest.skip("fake-hardware deploys at once")
    metal.ironic.held.add("deploying")
    uuid = boot()
    wait_for(lambda: any(metal.ironic.node(node)["provision_state"] == "deploying" for node in metal.nodes_of(uuid)))
    host = metal.hosts[wait_for(lambda: host_of(admin, uuid))]
    wait_for(lambda: not any(kind.running for kind in host.service.runner._pool._kinds.values()), 10, "no busy thread")
    assert host.service.runner.busy(uuid)
    admin.delete(f"/servers/{uuid}")
    metal.ironic.held.clear()
    admin.wait_gone(uuid)
    assert metal.nodes_of(uuid) == []


def test_locked_node_is_retried(metal, admin, boot):
    if not isinstance(metal.ironic, IronicService):
        pytest.skip("the lock of a real Ironic cannot be held")
    uuid = boot()
    admin.wait(uuid, "ACTIVE")
    node = node_of(admin, uuid)
    metal.ironic.locked.add(node)
    refused = len(metal.ironic.calls)
    admin.action(uuid, "os-stop")
    wait_for(lambda: len(metal.ironic.calls) > refused + 2)
    assert admin.server(uuid)["OS-EXT-STS:task_state"] == "powering-off"
    metal.ironic.locked.clear()
    admin.wait(uuid, "SHUTOFF")


def test_service_record_of_the_hosts_is_normal(metal, admin):
    for name in HOSTS:
        assert service_of(admin, name)["state"] == "up"
