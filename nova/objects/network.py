"""Networks, the interfaces of servers, and security groups."""

from __future__ import annotations

import datetime

from nova.objects.base import Object


class Network(Object, kw_only=True):
    """A network with one IPv4 subnet. ``bridge`` is the device name on every host (linuxnet)."""

    id: int = 0
    uuid: str
    label: str
    cidr: str
    gateway: str
    dns: list[str] = []
    dhcp_start: str | None = None
    mtu: int = 1500
    bridge: str
    vlan: int | None = None
    bridge_interface: str | None = None
    project_id: str | None = None
    created_at: datetime.datetime | None = None


class NetworkRequest(Object, kw_only=True):
    """One item of a create request's ``networks``."""

    network_id: str | None = None
    port_id: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class VIF(Object, kw_only=True):
    """One interface of a server, with all that its host needs to plug it."""

    id: str
    network_id: str
    label: str
    mac: str
    address: str
    prefix: int
    gateway: str | None = None
    dns: list[str] = []
    cidr: str = ""
    mtu: int = 1500
    bridge: str = ""
    vlan: int | None = None
    bridge_interface: str | None = None
    devname: str
    tag: str | None = None
    security: bool = True


class SecurityGroupRule(Object, kw_only=True):
    """``protocol`` tcp, udp, icmp or None (any); one of ``cidr`` and ``group_id`` is set, or neither (any)."""

    id: int = 0
    parent_group_id: int
    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    cidr: str | None = None
    group_id: int | None = None


class SecurityGroup(Object, kw_only=True):
    id: int = 0
    name: str
    description: str = ""
    project_id: str
    rules: list[SecurityGroupRule] = []


class FilterRule(Object, kw_only=True):
    """One ingress rule with its peers resolved to networks, ready for a host's packet filter."""

    protocol: str | None = None
    from_port: int | None = None
    to_port: int | None = None
    sources: list[str] = []


class Reservation(Object, kw_only=True):
    """An address that a host must hand out by DHCP on a network."""

    mac: str
    address: str
    hostname: str
