"""A real guest on ports of a real Neutron (ML2/OVN): it gets its address, and ports are cleaned up after a crash."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from nova import exception
from nova.conf import CONF, register, register_external_services
from nova.context import RequestContext
from nova.network.neutron.api import NeutronApi
from nova.network.neutron.proxies import NeutronFloatingIps, NeutronNetworks
from tests.integration.databases import Server
from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.network.neutron_lab import NeutronLab, needs_neutron, neutron_lab
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, needs_neutron, pytest.mark.root]

PROJECT = "p" * 32


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def api_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lab(hosts: RealHosts, mariadb: Server, api_port: int) -> Iterator[NeutronLab]:
    database = mariadb.new_database()
    with neutron_lab(hosts.site.directory / "neutron", database, f"http://127.0.0.1:{api_port}/v2.1",
                     hosts.hosts) as made:
        yield made


@pytest.fixture(scope="module")
def cloud(rabbitmq: Rabbit, hosts: RealHosts, lab: NeutronLab, api_port: int,
          guest_image: pathlib.Path) -> Iterator[RealCloud]:
    options = {"network": {"driver": "neutron"}, "neutron": {"endpoint_override": lab.url},
               "api": {"port": api_port}, "DEFAULT": {"force_config_drive": True}}
    with real_cloud(rabbitmq, hosts, guest_image, options=options) as made:
        yield made


def test_guest_uses_neutron_ports_and_deletes_its_own(cloud: RealCloud, lab: NeutronLab) -> None:
    network = lab.network(PROJECT, "10.99.0.0/24")
    mine = lab.port(network, PROJECT)
    uuid = cloud.boot("one", cloud.trio, on=cloud.hosts.hosts[0], networks=[{"port": mine}])
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    port, = lab.ports(device_id=uuid)
    assert (port["id"], port["status"], port["binding:host_id"]) == (mine, "ACTIVE", "nova-host1")
    made = cloud.api.post(f"/servers/{uuid}/os-interface", {"interfaceAttachment": {"net_id": network}})
    second = made["interfaceAttachment"]
    path = f"/servers/{uuid}/os-interface/{second['port_id']}"
    eventually(lambda: cloud.api.get(path)["interfaceAttachment"]["port_state"] == "ACTIVE", BOOT, "the port is active")
    with cloud.shell(uuid) as shell:
        # OVN answers DHCP.
        address = port["fixed_ips"][0]["ip_address"]
        eventually(lambda: address in shell.run("ip -4 address show"), BOOT, "the guest has its address", interval=1)
        assert second["mac_addr"] in shell.run("ip link show")
    cloud.api.delete(path)
    eventually(lambda: [port["id"] for port in lab.ports(device_id=uuid)] == [mine], BOOT, "the second port is deleted")
    cloud.nova.delete_all(60)
    assert [(port["id"], port["device_id"]) for port in lab.ports(network_id=network)
            if not port["device_owner"].startswith("network:")] == [(mine, "")]
    assert _switch_ports(cloud) == []
    cloud.nova.audit()


def test_killed_services_during_boots_leave_no_neutron_port(cloud: RealCloud, lab: NeutronLab) -> None:
    network = lab.network(PROJECT, "10.98.0.0/24")
    uuids = [cloud.boot(f"killed-{number}", cloud.trio, on=cloud.hosts.hosts[0], networks=[{"uuid": network}])
             for number in range(2)]
    eventually(lambda: lab.ports(device_id=uuids[0]) or lab.ports(device_id=uuids[1]), BOOT, "a port is created",
               interval=0.02)
    cloud.nova.kill("conductor-1", "compute-nova-host1")
    cloud.nova.start("conductor-1", "compute-nova-host1")
    cloud.nova.all_active(uuids, BOOT)
    for uuid in uuids:
        assert [port["status"] for port in lab.ports(device_id=uuid)] == ["ACTIVE"]
    assert len(_switch_ports(cloud)) == 2
    cloud.nova.delete_all(60)
    assert [port for port in lab.ports(network_id=network) if not port["device_owner"].startswith("network:")] == []
    assert _switch_ports(cloud) == []
    cloud.nova.audit()


def test_live_migrated_guest_keeps_answering(cloud: RealCloud, lab: NeutronLab) -> None:
    """Pings come from the source host. A port that is bound after the guest has moved loses most of them."""
    one, two = cloud.hosts.hosts
    network = lab.network(PROJECT, "10.97.0.0/24")
    probe = lab.ask("GET", "/ports/" + lab.port(
        network, PROJECT, **{"port_security_enabled": False, "binding:host_id": one.name}))["port"]
    one.host.run(["ovs-vsctl", "add-port", "br-int", "probe", "--", "set", "Interface", "probe", "type=internal",
                  f"mac=\"{probe['mac_address']}\"", f"external_ids:iface-id={probe['id']}"])
    one.host.run(["ip", "address", "add", f"{probe['fixed_ips'][0]['ip_address']}/24", "dev", "probe"])
    one.host.run(["ip", "link", "set", "probe", "up"])
    uuid = cloud.booted("moved", networks=[{"port": lab.port(network, PROJECT, port_security_enabled=False)}])
    address = cloud.address(uuid)
    eventually(lambda: "1 received" in one.host.run(["ping", "-c", "1", "-W", "2", address], check=False), BOOT,
               "the guest answers")
    log = one.host.directory / "pings"
    with (log.open("w") as output,
          subprocess.Popen(one.host.command("ping", "-i", "0.1", address), stdout=output) as ping):
        try:
            cloud.api.action(uuid, "os-migrateLive", {"host": two.name, "block_migration": "auto"})
            eventually(lambda: cloud.api.show(uuid)["OS-EXT-SRV-ATTR:host"] == two.name, BOOT, "the guest has moved")
            cloud.api.wait(uuid, "ACTIVE", BOOT)
            time.sleep(3)
        finally:
            ping.send_signal(signal.SIGINT)
            ping.wait(30)
    counts = re.search(r"(\d+) packets transmitted, (\d+) received", log.read_text())
    assert counts, log.read_text()[-3000:]
    sent, received = map(int, counts.groups())
    print(f"{sent} pings, {received} answers")
    assert received >= sent * 0.9 - 5, log.read_text()[-3000:]
    port, = lab.ports(device_id=uuid)
    bindings = lab.ask("GET", f"/ports/{port['id']}/bindings")["bindings"]
    assert [(binding["host"], binding["status"], binding["profile"]) for binding in bindings] == [
        (two.name, "ACTIVE", {})]
    cloud.nova.delete_all(60)
    lab.ask("DELETE", f"/ports/{probe['id']}")
    cloud.nova.audit()


def test_floating_ips_and_networks_are_those_of_neutron(lab: NeutronLab) -> None:
    """Neutron of the lab has no authentication, so that the caller is an administrator without a project."""
    register(CONF)
    register_external_services()
    CONF.set_override("endpoint_override", lab.url, group="neutron")
    public = lab.ask("POST", "/networks", {"network": {
        "name": "public", "tenant_id": PROJECT, "router:external": True}})["network"]["id"]
    lab.ask("POST", "/subnets", {"subnet": {"network_id": public, "cidr": "203.0.113.0/28", "ip_version": 4,
                                            "tenant_id": PROJECT}})
    private = lab.network(PROJECT, "10.96.0.0/24")
    subnet, = lab.ask("GET", f"/networks/{private}")["network"]["subnets"]
    router = lab.ask("POST", "/routers", {"router": {
        "name": "r", "tenant_id": PROJECT, "external_gateway_info": {"network_id": public}}})["router"]["id"]
    lab.ask("PUT", f"/routers/{router}/add_router_interface", {"subnet_id": subnet})
    ctx = RequestContext(overwrite=False, auth_token="t", project_id=PROJECT)
    floating_ips, networks = NeutronFloatingIps(NeutronApi()), NeutronNetworks(NeutronApi())
    assert floating_ips.pools(ctx) == ["public"]
    assert networks.get(ctx, private).label == "ovn"
    assert private in [network.uuid for network in networks.index(ctx, PROJECT)]
    made = floating_ips.allocate(ctx, PROJECT, "public")
    assert (made.pool, made.instance_uuid, made.address[:10]) == ("public", None, "203.0.113.")
    port = lab.port(private, PROJECT, device_id="server", device_owner="compute:nova")
    floating_ips.give(ctx, "server", made.address)
    shown, = floating_ips.index(ctx)
    fixed = lab.ask("GET", f"/ports/{port}")["port"]["fixed_ips"][0]["ip_address"]
    assert (shown.uuid, shown.instance_uuid, shown.fixed_address) == (made.uuid, "server", fixed)
    floating_ips.take(ctx, "server", made.address)
    assert floating_ips.get(ctx, made.uuid).instance_uuid is None
    floating_ips.release(ctx, made.uuid)
    with pytest.raises(exception.FloatingIpNotFound):
        floating_ips.release(ctx, made.uuid)
    CONF.clear_override("endpoint_override", group="neutron")


def _switch_ports(cloud: RealCloud) -> list[str]:
    """Return the ports plugged for guests."""
    listed = cloud.hosts.hosts[0].host.run(["ovs-vsctl", "list-ports", "br-int"]).split()
    return [name for name in listed if name.startswith("tap")]
