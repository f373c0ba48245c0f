"""The tables of the embedded networks: their addresses, security groups and names."""

import sqlalchemy as sa
from sqlalchemy import Column, Index, UniqueConstraint

from nova.db.sql.types import Json, Utc, big_id, table, text
from nova.db.tables.core import ids, optional, required

networks = table(
    "networks",
    *ids(),
    Column("label", text(), nullable=False),
    *required(text(64), "cidr", "gateway"),
    Column("dns", Json(list[str]), nullable=False),
    *optional(text(64), "dhcp_start", "dhcp_end"),
    Column("mtu", sa.Integer, nullable=False),
    Column("bridge", text(15), nullable=False, unique=True),
    Column("vlan", sa.Integer),
    Column("bridge_interface", text(15)),
    Column("vni", sa.Integer),
    *optional(text(64), "cidr_v6", "gateway_v6"),
    Column("ipv6_mode", text(32), nullable=False, server_default="slaac"),
    Column("project_id", text()),
    Column("host", text()),  # host assigned by an administrator (os-networks): stored and shown only
    # Offset, in the IPv4 subnet, of the first address that has no row in fixed_ips yet.
    Column("next_offset", sa.BigInteger, nullable=False),
    Column("created_at", Utc, nullable=False),
    Index("uq_networks_vni", "vni", unique=True),
)

# The hosts of each VXLAN network, with the addresses of their tunnels.
network_hosts = table(
    "network_hosts", Column("network_uuid", text(36), primary_key=True), Column("host", text(), primary_key=True),
    Column("address", text(64), nullable=False), Index("ix_network_hosts_host", "host"))

# Fixed addresses of networks, inserted before they are allocated; instance_uuid null: free.
fixed_ips = table(
    "fixed_ips",
    Column("id", big_id(), primary_key=True),
    Column("network_uuid", text(36), nullable=False),
    Column("address", text(64), nullable=False),
    Column("version", sa.SmallInteger, nullable=False, server_default="4"),
    # MAC address of an interface with this IPv4 address; null until the address is allocated for the first time.
    Column("mac", text(17)),
    *optional(text(36), "instance_uuid", "vif_id"),
    Column("updated_at", Utc),
    # Reserved by an administrator: the current server keeps the address, and no other server gets it.
    Column("reserved", sa.Boolean, nullable=False, server_default=sa.false()),
    UniqueConstraint("network_uuid", "address", name="uq_fixed_ips_network_address"),
    Index("ix_fixed_ips_unused", "network_uuid", "version", "instance_uuid", "updated_at", "id"),
    Index("ix_fixed_ips_instance", "instance_uuid"),
    Index("uq_fixed_ips_mac", "mac", unique=True),
)

# Floating addresses, by which external networks reach servers; project_id null: free.
floating_ips = table(
    "floating_ips",
    *ids(),
    Column("address", text(64), nullable=False, unique=True),
    Column("pool", text(), nullable=False),
    Column("project_id", text()),
    *optional(text(36), "instance_uuid", "vif_id"),
    Column("fixed_address", text(64)),
    Column("updated_at", Utc),
    Index("ix_floating_ips_unused", "pool", "project_id", "id"),
    Index("ix_floating_ips_project", "project_id", "id"),
    Index("ix_floating_ips_instance", "instance_uuid"),
)

security_groups = table(
    "security_groups",
    Column("id", big_id(), primary_key=True),
    *required(text(), "project_id", "name", "description"),
    Column("created_at", Utc, nullable=False),
    UniqueConstraint("project_id", "name", name="uq_security_groups_project_name"),
)

security_group_rules = table(
    "security_group_rules",
    Column("id", big_id(), primary_key=True),
    Column("parent_group_id", sa.BigInteger, nullable=False),
    Column("protocol", text(8)),
    *optional(sa.Integer, "from_port", "to_port"),
    Column("cidr", text(64)),
    Column("group_id", sa.BigInteger),
    Index("ix_security_group_rules_parent", "parent_group_id"),
    Index("ix_security_group_rules_group", "group_id"),
)

# Initial rules of the default group of a project (os-security-group-default-rules).
security_group_default_rules = table(
    "security_group_default_rules", Column("id", big_id(), primary_key=True), Column("protocol", text(8)),
    *optional(sa.Integer, "from_port", "to_port"), Column("cidr", text(64)))

# DNS domains and names of floating addresses (os-floating-ip-dns).
dns_domains = table(
    "dns_domains", Column("domain", text(), primary_key=True), Column("scope", text(16), nullable=False),
    *optional(text(), "availability_zone", "project_id"))

dns_entries = table(
    "dns_entries", Column("domain", text(), primary_key=True), Column("name", text(), primary_key=True),
    Column("project_id", text()), Column("type", text(8), nullable=False), Column("address", text(64), nullable=False),
    Index("ix_dns_entries_address", "domain", "address"))

security_group_members = table(
    "security_group_members", Column("group_id", sa.BigInteger, primary_key=True),
    Column("instance_uuid", text(36), primary_key=True), Index("ix_security_group_members_instance", "instance_uuid"))

# Counters that order the updates for hosts: "rules:PROJECT", "peers:NETWORK", "dns:DOMAIN" (nova.db.versions).
versions = table(
    "versions", Column("name", text(300), primary_key=True), Column("version", sa.BigInteger, nullable=False))
