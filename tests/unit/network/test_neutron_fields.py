"""Fields of requests to Neutron and of its responses: all are used, refused or listed."""

import logging
import types
import typing

import msgspec
import pytest

import nova.conf
from nova import context, exception
from nova.conf import CONF
from nova.network.neutron import api
from nova.network.neutron.allocator import NeutronAllocator, check_supported
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.networks.network import NetworkRequest, SecurityGroupRule
from nova.objects.servers.instance import Instance
from tests.functional.networks.neutron_server import NeutronServer
from tests.service_recorder import TABLE, Recorder, check_read, check_sent, senders

UUID = "0c8b5f3e-3f0a-4d2e-9a55-1f2e3d4c5b6a"


@pytest.fixture
def neutron():
    nova.conf.register()
    nova.conf.register_external_services()
    server = NeutronServer()
    server.extensions += ["auto-allocated-topology", "dns-integration", "binding-extended", "router", "quota_details"]
    CONF.set_override("endpoint_override", server.url, group="neutron")
    yield server
    CONF.clear_override("endpoint_override", group="neutron")
    server.stop()


class Control:
    """The part of a step's context that interfaces need: an instance in memory."""

    def __init__(self, token, requested):
        self.ctx = context.RequestContext(overwrite=False, project_id="p", auth_token=token)
        self.instance = Instance(
            uuid=UUID, project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
            flavor=Flavor(flavorid="1", name="m1", vcpus=1, memory_mb=512, root_gb=1), requested_networks=requested,
            security_groups=["web"])
        self.interfaces = types.SimpleNamespace(change=lambda change: self.set(change(self.instance.network_info)))

    def set(self, network_info):
        self.instance.network_info = network_info


def use_groups(groups, ctx):
    """Create, change and delete a security group and rules."""
    made = groups.create(ctx, "db", "")
    for rule in (SecurityGroupRule(parent_group_id=0, protocol="tcp", from_port=1, to_port=2, cidr="10.0.0.0/8"),
                 SecurityGroupRule(parent_group_id=0, protocol="icmp", from_port=-1, to_port=-1, cidr="0.0.0.0/0"),
                 SecurityGroupRule(parent_group_id=0, group_uuid=made.uuid)):
        groups.add_rule(ctx, msgspec.structs.replace(rule, parent_uuid=made.uuid))
    assert len(groups.update(ctx, 0, "mail", "", uuid=made.uuid).rules) == 3
    assert {group.name for group in groups.index(ctx, "p")} >= {"mail"}
    for rule in groups.get(ctx, 0, uuid=made.uuid).rules:
        groups.delete_rule(ctx, 0, uuid=rule.uuid)
    groups.delete(ctx, 0, uuid=made.uuid)


def use_floating_ips(floating_ips, ctx):
    """Allocate a floating IP address, associate it with the server of the only port "other", and release it."""
    assert "nova" in floating_ips.pools(ctx)
    made = floating_ips.allocate(ctx, "p")
    floating_ips.give(ctx, "other", made.address)
    assert [floating_ips.get(ctx, made.uuid)] == floating_ips.index(ctx, "p")
    assert floating_ips.get(ctx, made.uuid).instance_uuid == "other"
    floating_ips.take(ctx, "other", made.address)
    floating_ips.release(ctx, made.uuid)


def run_everything(neutron):
    """Call all methods of the back end, so that all requests are sent and all responses are read."""
    blue = neutron.network("blue")
    neutron.rows["subnets"][neutron.rows["networks"][blue]["subnets"][0]]["host_routes"] = [
        {"destination": "10.9.0.0/16", "nexthop": "10.50.0.9"}]
    red = neutron.network("red", cidr="fd00::/64", dns_domain="example.org.")
    neutron._add("security-groups", name="web", tenant_id="p")
    port = neutron.port(blue)["id"]
    allocator = NeutronAllocator()
    control = Control("m:p", [NetworkRequest(network_id=blue, fixed_ip="10.50.0.77"), NetworkRequest(port_id=port)])
    with pytest.raises(exception.NetworkAmbiguous):
        allocator.validate(control.ctx, "p", None)
    allocator.validate(control.ctx, "p", control.instance.requested_networks)
    neutron.policies["policy"] = ["minimum_bandwidth"]
    limited = neutron.network("limited", qos_policy_id="policy", segments=[{}])
    with pytest.raises(exception.NetworkGuaranteesNotSupported):
        allocator.validate(control.ctx, "p", [NetworkRequest(network_id=limited)])
    external = neutron.network("external", shared=False, **{"router:external": True})
    with pytest.raises(exception.ExternalNetworkAttachForbidden):
        allocator.validate(control.ctx, "p", [NetworkRequest(network_id=external)])
    bare = neutron.port(blue, ip_allocation="none")
    neutron.rows["ports"][bare["id"]]["fixed_ips"] = []
    allocator.validate(control.ctx, "p", [NetworkRequest(port_id=bare["id"])])
    del neutron.rows["ports"][bare["id"]]
    allocator.check_groups(control.ctx, "p", ["web"])
    neutron.free_ports = 5
    assert allocator.servers_in_quota(control.ctx, "p", control.instance.requested_networks, 1, 9) == 5
    interfaces = allocator.of_server(control)
    interfaces.take("host1")
    interfaces.bind("host2")
    interfaces.add(NetworkRequest(network_id=red, fixed_ip="fd00::5"), "host2")
    neutron._add("floatingips", port_id=port, floating_ip_address="203.0.113.7")
    assert [vif.floating for vif in interfaces.refreshed() if vif.id == port] == ["203.0.113.7"]
    control.instance.host = "host2"
    assert [vif.bridge for vif in interfaces.bind_also("host3")] == ["br-int"] * 3 == [
        vif.bridge for vif in interfaces.bind_also("host3")]
    interfaces.bind("host3", "host2")
    interfaces.set_group("web", add=True)
    events = allocator.missed_events(control.ctx, "host3", lambda: [control.instance])
    assert [event.name for event in events] == ["network-changed"], "the row lacks the floating address"
    assert allocator.ports_at(control.ctx, "host3") == allocator.ports_of_servers(control.ctx, [UUID])
    use_groups(allocator.groups, control.ctx)
    neutron.network("nova", cidr=None, **{"router:external": True})
    other = neutron.port(blue, device_id="other")["id"]
    use_floating_ips(allocator.floating_ips, control.ctx)
    del neutron.rows["ports"][other]
    assert [network.label for network in allocator.networks.index(control.ctx, "p")].count("blue") == 1
    interfaces.unbind()
    interfaces.release()
    assert [port["id"] for port in neutron.ports()] == [port]
    assert len(allocator.validate(context.RequestContext(overwrite=False, project_id="q"), "q", None, auto=True)) == 1


def test_neutron_fields_are_used_refused_or_listed(neutron, monkeypatch):
    recorder = Recorder(monkeypatch, api)
    run_everything(neutron)
    assert sorted(senders(api) - recorder.methods) == [], "run_everything() has to call these"
    assert recorder.read["Extension"] == {"alias"}
    assert recorder.read["Topology"] == {"id"}
    assert (recorder.read["Quota"], recorder.read["Usage"]) == ({"port"}, {"limit", "used", "reserved"})
    assert (recorder.read["QosPolicy"], recorder.read["QosRule"]) == ({"rules"}, {"type"})
    assert recorder.read["Binding"] == {"vif_type", "vif_details"}
    assert recorder.read["FloatingIp"] == set(typing.get_type_hints(api._FloatingIp))
    assert recorder.read["SecurityGroup"] == {"id", "name", "description", "tenant_id", "security_group_rules"}
    assert recorder.read["Rule"] == set(typing.get_type_hints(api._Rule))
    assert (recorder.read["FixedIp"], recorder.read["Route"]) == (
        {"subnet_id", "ip_address"}, {"destination", "nexthop"})
    for kind, shape in [("neutron port", api._Port), ("neutron network", api._Network),
                        ("neutron subnet", api._Subnet)]:
        check_read(kind, recorder.read[shape.__name__.lstrip("_")], shape)
    check_sent("neutron", recorder.requests("neutron"))


@pytest.mark.parametrize("field", TABLE["neutron port"]["refused"])
def test_port_fields_listed_as_refused_are_refused_by_name(field):
    with pytest.raises(exception.PortFieldNotSupported, match=field):
        check_supported({"id": "port", field: "direct"})


def test_port_on_a_network_with_dns_domain_gets_no_name_after_the_token_was_dropped(neutron, caplog):
    """A later attempt of a build has no token; with Nova's rights the record would belong to Nova's project."""
    control = Control(None, [NetworkRequest(network_id=neutron.network("blue", dns_domain="example.org."))])
    control.instance.security_groups = []
    with caplog.at_level(logging.WARNING):
        NeutronAllocator().of_server(control).take("host1")
    port, = neutron.ports()
    assert (port["binding:host_id"], port.get("dns_name")) == ("host1", None)
    assert f"Port {port['id']} gets no dns_name" in caplog.text
