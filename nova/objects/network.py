"""Networks, the interfaces of servers, and security groups."""

from __future__ import annotations

import datetime
import ipaddress
from typing import Any

from nova.objects import plain_ip
from nova.objects.base import Object

# How a guest learns an address of version 6.
SLAAC = "slaac"
DHCPV6 = "dhcpv6-stateful"
_LINK_LOCAL = plain_ip.v6_network("fe80::/64")


def slaac_address(subnet: ipaddress.IPv6Network, mac: str) -> str:
    """The address that a guest with this MAC address gives itself in a /64 (RFC 4291: modified EUI-64)."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return str(subnet[int.from_bytes(bytes([raw[0] ^ 2, *raw[1:3], 0xff, 0xfe, *raw[3:]]), "big")])


def link_local(mac: str) -> str:
    """The link-local address that belongs to a MAC address."""
    return slaac_address(_LINK_LOCAL, mac)


class Network(Object, kw_only=True):
    """A network with an IPv4 subnet and perhaps an IPv6 one. ``bridge`` is the device name on every host (linuxnet).

    At most one of ``vlan`` and ``vni`` says how the network gets from host to host: as a VLAN of
    ``bridge_interface``, or in VXLAN between the hosts' tunnel addresses.
    """

    id: int = 0
    uuid: str
    label: str
    cidr: str
    gateway: str
    dns: list[str] = []
    dhcp_start: str | None = None
    dhcp_end: str | None = None
    mtu: int = 1500
    bridge: str
    vlan: int | None = None
    bridge_interface: str | None = None
    vni: int | None = None
    cidr_v6: str | None = None
    gateway_v6: str | None = None
    ipv6_mode: str = SLAAC
    project_id: str | None = None
    host: str | None = None
    created_at: datetime.datetime | None = None


class NetworkRequest(Object, kw_only=True):
    """One item of a create request's ``networks``."""

    network_id: str | None = None
    port_id: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class HostRoute(Object, kw_only=True):
    """A route that guests of a subnet have beside the default one: ``destination`` (CIDR) by ``gateway``."""

    destination: str
    gateway: str


class FixedIp(Object, kw_only=True):
    """An address of an interface, and the subnet that it is of.

    ``subnet_id`` is the back end's name of the subnet. ``routes``: of the subnet, beside the default one.
    ``mode`` is how the guest learns it: "dhcp" (version 4), "slaac", "dhcpv6-stateful" or "dhcpv6-stateless"
    (version 6), None: it must be told in another way.
    """

    address: str
    version: int = 4
    prefix: int
    cidr: str = ""
    gateway: str | None = None
    dns: list[str] = []
    mode: str | None = None
    subnet_id: str = ""
    routes: list[HostRoute] = []


class KnownAddress(Object, kw_only=True):
    """An address of a network as administrators see it (os-fixed-ips), with the server that has it.

    ``reserved``: no server gets it (any more).
    """

    address: str
    cidr: str
    reserved: bool = False
    instance_uuid: str | None = None
    hostname: str | None = None
    host: str | None = None


class VIF(Object, kw_only=True):
    """One interface of a server, with all that its host needs to plug it.

    ``vif_type`` names how (as Neutron's binding:vif_type), ``details`` are the back end's own words about it
    (binding:vif_details), ``profile`` is what the owner of the port says of it (binding:profile).
    ``active``: it is plugged, as far as anybody has told. ``awaits_plug``: the back end sends the event
    network-vif-plugged when it is, and the guest does not begin to run before. ``keep``: the port was there before the
    server, and outlives it. ``outside``: an outside service keeps it, with its addresses. ``floating``: the floating
    address that its address of version 4 is reached by (linuxnet).
    """

    id: str
    network_id: str
    label: str
    mac: str
    fixed_ips: list[FixedIp] = []
    mtu: int = 1500
    vif_type: str = "bridge"
    vnic_type: str = "normal"
    details: dict[str, Any] = {}
    profile: dict[str, Any] = {}
    bridge: str = ""
    vlan: int | None = None
    bridge_interface: str | None = None
    vni: int | None = None
    devname: str
    tag: str | None = None
    security: bool = True
    active: bool = True
    awaits_plug: bool = False
    keep: bool = False
    outside: bool = False
    floating: str | None = None

    def addresses(self, version: int | None = None) -> list[str]:
        """Its addresses of a version (None: all), in order."""
        return [fixed.address for fixed in self.fixed_ips if version in (None, fixed.version)]

    def first(self, version: int) -> FixedIp | None:
        """Its first address of a version, None without one."""
        return next((fixed for fixed in self.fixed_ips if fixed.version == version), None)

    @property
    def dns(self) -> list[str]:
        """The name servers of all its subnets, each once."""
        return list(dict.fromkeys(server for fixed in self.fixed_ips for server in fixed.dns))


class FloatingIp(Object, kw_only=True):
    """An address of a pool by which one interface of a server is reached from outside; ``project_id`` None: free."""

    id: int = 0
    uuid: str
    address: str
    pool: str
    project_id: str | None = None
    instance_uuid: str | None = None
    vif_id: str | None = None
    fixed_address: str | None = None


class SecurityGroupRule(Object, kw_only=True):
    """``protocol`` tcp, udp, icmp or None (any); one of ``cidr`` and ``group_id`` is set, or neither (any)."""

    id: int = 0
    parent_group_id: int
    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    cidr: str | None = None
    group_id: int | None = None


class DefaultRule(Object, kw_only=True):
    """One of the rules that the default group of a project begins with (os-security-group-default-rules)."""

    id: int = 0
    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    cidr: str | None = None


class SecurityGroup(Object, kw_only=True):
    id: int = 0
    name: str
    description: str = ""
    project_id: str
    rules: list[SecurityGroupRule] = []


class FilterRule(Object, kw_only=True):
    """One ingress rule, ready for a host's packet filter. From whom: ``sources`` are networks (none: anybody).

    ``group``: from the members of this security group instead.
    """

    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    sources: list[str] = []
    group: int | None = None


class GroupFilter(Object, kw_only=True):
    """A security group as the packet filters of a host need it: what its servers let in, and their own addresses.

    Either part has a version, of two the greater one is newer; None: it is not told. ``macs`` are the MAC addresses of
    the interfaces that have the ``members`` (addresses), in their order: another network may have the same addresses.
    """

    id: int
    rules_version: int | None = None
    rules: list[FilterRule] = []
    members_version: int | None = None
    members: list[str] = []
    macs: list[str] = []

    def joined(self, told: GroupFilter) -> GroupFilter:
        """The newer parts of both."""
        return GroupFilter(id=self.id, **_newer(self, told, "rules"), **_newer(self, told, "members", "macs"))

    def named(self) -> set[int]:
        """The groups whose members its rules let in."""
        return {rule.group for rule in self.rules if rule.group is not None}


def _newer(known: GroupFilter, told: GroupFilter, part: str, *more: str) -> dict[str, Any]:
    version = f"{part}_version"
    mine, theirs = getattr(known, version), getattr(told, version)
    newer = told if theirs is not None and (mine is None or theirs >= mine) else known
    return {name: getattr(newer, name) for name in (version, part, *more)}


class Peers(Object, kw_only=True):
    """The hosts that have a network in tunnels: host -> where its tunnels end. The greater ``version`` is newer."""

    network_id: str
    version: int = 0
    hosts: dict[str, str] = {}


class RuleSet(Object, kw_only=True):
    """What one server lets in. Of two sets for the same server the one with the greater ``version`` is newer.

    ``rules`` hosts of the last release are told, which do not know groups; others the ``groups`` that the server is in.
    ``filters`` are those groups, and the ones that their rules name; a message has each of them once.
    ``floating``: the floating addresses that it is reached by, by the ids of its interfaces.
    """

    version: int = 0
    rules: list[FilterRule] = []
    groups: list[int] = []
    filters: list[GroupFilter] = []
    floating: dict[str, str] = {}
