"""Networks, the interfaces of servers, and security groups."""

from __future__ import annotations

import datetime
import ipaddress
from typing import Any

import msgspec

from nova.common import plain_ip
from nova.objects.base import Object

# Ways to assign IPv6 addresses to guests.
SLAAC = "slaac"
DHCPV6 = "dhcpv6-stateful"
_LINK_LOCAL = plain_ip.v6_network("fe80::/64")


def slaac_address(subnet: ipaddress.IPv6Network, mac: str) -> str:
    """Return the address that a guest with this MAC address configures in a /64 (RFC 4291: modified EUI-64)."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return str(subnet[int.from_bytes(bytes([raw[0] ^ 2, *raw[1:3], 0xff, 0xfe, *raw[3:]]), "big")])


def link_local(mac: str) -> str:
    return slaac_address(_LINK_LOCAL, mac)


class Network(Object, kw_only=True):
    """A network with an IPv4 subnet and optionally an IPv6 subnet. ``bridge``: device name on every host (linuxnet). At
    most one of ``vlan`` and ``vni`` is set. ``vlan``: traffic between hosts uses a VLAN on ``bridge_interface``.
    ``vni``: traffic uses VXLAN between the hosts' tunnel addresses."""

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
    """An item of ``networks`` in a create request."""

    network_id: str | None = None
    port_id: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class HostRoute(Object, kw_only=True):
    """A route for guests of a subnet, in addition to the default route: ``destination`` (CIDR) via ``gateway``."""

    destination: str
    gateway: str


class FixedIp(Object, kw_only=True):
    """An address of an interface and its subnet. ``subnet_id``: id of the subnet in the back end. ``routes``: of the
    subnet, besides the default route. ``mode``: how the guest gets the address: "dhcp" (IPv4), "slaac",
    "dhcpv6-stateful" or "dhcpv6-stateless" (IPv6); None: only from metadata or config drive."""

    address: str
    version: int = 4
    prefix: int
    cidr: str = ""
    gateway: str | None = None
    dns: list[str] = []
    mode: str | None = None
    subnet_id: str = ""
    routes: list[HostRoute] = []


class NetworkAddress(Object, kw_only=True):
    """An address of a network as shown to administrators (os-fixed-ips), with its server. ``reserved``: the address is
    not assigned to servers."""

    address: str
    cidr: str
    reserved: bool = False
    instance_uuid: str | None = None
    hostname: str | None = None
    host: str | None = None


class VIF(Object, kw_only=True):
    """An interface of a server, with all data that the host needs to plug it.

    ``vif_type``, ``details`` and ``profile``: binding:vif_type, binding:vif_details and binding:profile of Neutron.
    ``active``: the newest report says that the interface is plugged. ``awaits_plug``: the back end sends the event
    network-vif-plugged, and the guest starts only after it. ``keep``: the port existed before the server and is kept
    when the server is deleted. ``outside``: an external service manages the interface and its addresses. ``floating``:
    the floating IP address of the IPv4 address (linuxnet)."""

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
        """Return the addresses of an IP version (None: all), in order."""
        return [fixed.address for fixed in self.fixed_ips if version in (None, fixed.version)]

    def first(self, version: int) -> FixedIp | None:
        """Return the first address of an IP version, or None."""
        return next((fixed for fixed in self.fixed_ips if fixed.version == version), None)

    @property
    def dns(self) -> list[str]:
        """Return the distinct name servers of all subnets."""
        return list(dict.fromkeys(server for fixed in self.fixed_ips for server in fixed.dns))


class FloatingIp(Object, kw_only=True):
    """A floating IP address of a pool, assigned to an interface of a server. ``project_id`` None: free."""

    id: int = 0
    uuid: str
    address: str
    pool: str
    project_id: str | None = None
    instance_uuid: str | None = None
    vif_id: str | None = None
    fixed_address: str | None = None


class DefaultRule(Object, kw_only=True):
    """A rule of new default security groups (os-security-group-default-rules). ``protocol``: tcp, udp, icmp or None
    (any)."""

    id: int = 0
    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    cidr: str | None = None


class SecurityGroupRule(DefaultRule, kw_only=True):
    """A rule of a security group. At most one of ``cidr`` and ``group_id`` is set; neither: any source. ``uuid``,
    ``parent_uuid``, ``group_uuid``: the ids of an external network service, which replace the numbers."""

    parent_group_id: int
    group_id: int | None = None
    uuid: str = ""
    parent_uuid: str = ""
    group_uuid: str = ""


class SecurityGroup(Object, kw_only=True):
    """A security group. ``uuid``: the id in an external network service, which replaces the number."""

    id: int = 0
    uuid: str = ""
    name: str
    description: str = ""
    project_id: str
    rules: list[SecurityGroupRule] = []


class FilterRule(Object, kw_only=True):
    """An ingress rule for a host's packet filter. ``sources``: source networks (empty: any). ``group``: the members of
    this security group are the sources instead."""

    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    sources: list[str] = []
    group: int | None = None


class GroupFilter(Object, kw_only=True):
    """A security group for the packet filters of a host: its rules and the addresses of its members. Rules and members
    have separate versions; the greater version is newer. A version of None means not included. ``macs``: MAC addresses
    of the interfaces with the addresses ``members``, in the same order, because several networks may use the same
    addresses."""

    id: int
    rules_version: int | None = None
    rules: list[FilterRule] = []
    members_version: int | None = None
    members: list[str] = []
    macs: list[str] = []

    def joined(self, other: GroupFilter) -> GroupFilter:
        """Return a filter with the newer rules and the newer members of both."""
        return GroupFilter(id=self.id, **_newer(self, other, "rules"), **_newer(self, other, "members", "macs"))

    def named(self) -> set[int]:
        """Return the ids of groups that the rules refer to."""
        return {rule.group for rule in self.rules if rule.group is not None}


def _newer(first: GroupFilter, second: GroupFilter, field: str, *more: str) -> dict[str, Any]:
    version = f"{field}_version"
    old, new = getattr(first, version), getattr(second, version)
    newer = second if new is not None and (old is None or new >= old) else first
    return {name: getattr(newer, name) for name in (version, field, *more)}


class Peers(Object, kw_only=True):
    """The hosts of a network with tunnels: host -> tunnel address. The greater ``version`` is newer."""

    network_id: str
    version: int = 0
    hosts: dict[str, str] = {}


class RuleSet(Object, kw_only=True):
    """The packet filter rules of a server. The set with the greater ``version`` is newer. ``rules``: from conductors of
    releases without groups. ``groups``: ids of the server's groups. ``filters``: those groups and the groups that their
    rules refer to; a message contains each group once. ``floating``: floating IP addresses by interface id."""

    version: int = 0
    rules: list[FilterRule] = []
    groups: list[int] = []
    filters: list[GroupFilter] = []
    floating: dict[str, str] = {}


class ServedDomain(Object, kw_only=True):
    """DNS records that hosts serve for a domain: relative name -> address. ``removed``: the host must not serve it."""

    domain: str
    version: int
    names: dict[str, str] = {}
    removed: bool = msgspec.field(default=False, name="gone")


class Domain(Object, kw_only=True):
    """A domain. ``scope`` public: names belong to ``project_id`` (None: any project); private: managed by
    administrators."""

    domain: str
    scope: str
    project_id: str | None = None
    availability_zone: str | None = None


class Entry(Object, kw_only=True):
    """A DNS record. ``project_id``: its owner; None: an administrator."""

    domain: str
    name: str
    address: str
    type: str = "A"
    project_id: str | None = None
