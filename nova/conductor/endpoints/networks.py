"""Endpoints of the embedded networks, their addresses and security groups."""

import contextlib
import functools
import logging

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.common import plain_ip
from nova.conductor.endpoints.derived import Endpoint, or_outside, reads, writes
from nova.context import RequestContext
from nova.db.networks import fixed_ips, floating_ip_dns, floating_ips, networks, security_groups
from nova.db.networks.security_filters import members_of, rules_of
from nova.db.servers import servers
from nova.objects.networks.network import (
    DefaultRule,
    Domain,
    Entry,
    FloatingIp,
    Network,
    SecurityGroup,
    SecurityGroupRule,
)
from nova.objects.servers.instance import Instance
from nova.rpcapi import networks as networks_api

LOG = logging.getLogger(__name__)


class Networks(Endpoint, networks_api.Networks):
    index = or_outside("networks.index", reads(networks.index))
    get = or_outside("networks.get", reads(networks.get))
    associate = writes(networks.associate)
    disassociate = writes(networks.disassociate)
    associate_host = writes(networks.associate_host)

    def create(self, ctx: RequestContext, network: Network) -> Network:
        created = self.core.db.write(lambda connection: networks.create(connection, network))
        LOG.info("Network %s (%s) was created with %s", created.label, created.uuid, created.cidr)
        return created

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.db.write(lambda connection: networks.delete(connection, uuid))
        LOG.info("Network %s was deleted", uuid)


class FixedIps(Endpoint, networks_api.FixedIps):
    show = reads(fixed_ips.show)
    reserve = writes(fixed_ips.reserve)


class FloatingIps(Endpoint, networks_api.FloatingIps):
    """Floating IP addresses. The hosts of a server receive them with its security group rules."""

    pools = or_outside("floating_ips.pools", reads(floating_ips.pools))
    index = or_outside("floating_ips.index", reads(floating_ips.index))
    get = or_outside("floating_ips.get", reads(floating_ips.get))
    on_host = reads(floating_ips.on_host)
    create = writes(floating_ips.create)
    delete = writes(floating_ips.delete)

    @functools.partial(or_outside, "floating_ips.allocate")
    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        tried: list[FloatingIp] = []

        def transaction(connection: sa.Connection) -> FloatingIp:
            tried.append(floating_ips.allocate(connection, project_id, pool))
            return tried[-1]

        def made(connection: sa.Connection) -> FloatingIp | None:
            """Return the address of a transaction whose commit got no response, or None if it was not committed."""
            with contextlib.suppress(exception.FloatingIpNotFound):
                return floating_ips.get(connection, tried[-1].uuid, project_id)
            return None

        floating_ip = self.core.db.write(transaction, made)
        LOG.info("Floating IP %s of pool %s was allocated to project %s", floating_ip.address, floating_ip.pool,
                 project_id)
        return floating_ip

    @functools.partial(or_outside, "floating_ips.release")
    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        server = self.core.db.write(lambda connection: floating_ips.release(connection, uuid, project_id))
        LOG.info("Floating IP %s was released", uuid)
        if server is not None:
            self.core.filters.publish_server(server)

    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        if self.core.allocator.external:
            self.core.db.read(lambda connection: _changeable(ctx, servers.get(connection, instance_uuid, project_id)))
            self.core.allocator.floating_ips.give(ctx, instance_uuid, address, fixed_address)
            return

        def transaction(connection: sa.Connection) -> set[str]:
            instance = servers.get(connection, instance_uuid, project_id)
            former = floating_ips.server_of(connection, address, instance.project_id)
            uuids = {instance_uuid} | ({former} if former else set())
            # Lock in sorted order: a concurrent request may lock the same two servers in the opposite order.
            locked = {uuid: _lock(ctx, connection, uuid, project_id) for uuid in sorted(uuids)}
            try:
                if former is not None:
                    floating_ips.take(connection, locked[former], address)
                floating_ips.give(connection, servers.get(connection, instance_uuid), address, fixed_address)
            except (exception.FloatingIpNotAssociated, exception.FloatingIpInUse) as error:  # address reassigned
                raise db_exception.RetryRequest(error) from error
            return uuids

        for uuid in self.core.db.write(transaction):
            self.core.filters.publish_server(uuid)
        LOG.info("[instance: %s] Floating IP %s was associated", instance_uuid, address)

    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        if self.core.allocator.external:
            self.core.db.read(lambda connection: _changeable(ctx, servers.get(connection, instance_uuid, project_id)))
            self.core.allocator.floating_ips.take(ctx, instance_uuid, address)
            return
        self.core.db.write(lambda connection: floating_ips.take(
            connection, _lock(ctx, connection, instance_uuid, project_id), address))
        self.core.filters.publish_server(instance_uuid)
        LOG.info("[instance: %s] Floating IP %s was disassociated", instance_uuid, address)


def _lock(ctx: RequestContext, connection: sa.Connection, uuid: str, project_id: str | None) -> Instance:
    return _changeable(ctx, servers.lock(connection, uuid, project_id))


def _changeable(ctx: RequestContext, instance: Instance) -> Instance:
    """Return the server unless its user has locked it. Raises InstanceIsLocked."""
    if instance.locked and not ctx.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    return instance


class FloatingIpDns(Endpoint, networks_api.FloatingIpDns):
    """DNS names of floating IP addresses. Hosts receive the names, because their guests query them."""

    index = reads(floating_ip_dns.index)
    entry = reads(floating_ip_dns.entry)
    entries_of = reads(floating_ip_dns.entries_of)

    def put_domain(self, ctx: RequestContext, domain: Domain) -> Domain:
        stored = self.core.db.write(lambda connection: floating_ip_dns.put_domain(connection, domain))
        self.core.names.touch({stored.domain})
        return stored

    def delete_domain(self, ctx: RequestContext, domain: str) -> None:
        self.core.db.write(lambda connection: floating_ip_dns.delete_domain(connection, domain))
        self.core.names.touch({domain.lower()})

    def put_entry(self, ctx: RequestContext, entry: Entry, project_id: str | None = None) -> Entry:
        stored = self.core.db.write(lambda connection: floating_ip_dns.put_entry(connection, entry, project_id))
        self.core.names.touch({stored.domain})
        return stored

    def delete_entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> None:
        self.core.db.write(lambda connection: floating_ip_dns.delete_entry(connection, domain, name, project_id))
        self.core.names.touch({domain.lower()})


class SecurityGroups(Endpoint, networks_api.SecurityGroups):
    """Security groups. A change of rules is sent to the hosts of the affected servers, or passed to an external network
    service."""

    @functools.partial(or_outside, "groups.index")
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        own = ctx.project_id
        if (own and project_id in (None, own)
                and not self.core.db.read(lambda connection: security_groups.has_default(connection, own))):
            self.core.db.write(lambda connection: security_groups.ensure_default(connection, own))
        return self.core.db.read(lambda connection: security_groups.index(connection, project_id))

    @functools.partial(or_outside, "groups.get")
    def get(self, ctx: RequestContext, group_id: int, project_id: str | None = None, uuid: str = "") -> SecurityGroup:
        return self.core.db.read(lambda connection: security_groups.get(connection, group_id, project_id))

    @functools.partial(or_outside, "groups.update")
    def update(self, ctx: RequestContext, group_id: int, name: str, description: str,
               project_id: str | None = None, uuid: str = "") -> SecurityGroup:
        return self.core.db.write(
            lambda connection: security_groups.update(connection, group_id, name, description, project_id))

    @functools.partial(or_outside, "groups.create")
    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        project_id = ctx.project_id
        if not project_id:
            raise exception.InvalidInput(reason="a security group needs a project")
        return self.core.db.write(lambda connection: security_groups.create(connection, project_id, name, description))

    @functools.partial(or_outside, "groups.delete")
    def delete(self, ctx: RequestContext, group_id: int, project_id: str | None = None, uuid: str = "") -> None:
        had_rules = self.core.db.write(lambda connection: security_groups.delete(connection, group_id, project_id))
        self.core.filters.touch([rules_of(other) for other in had_rules])

    def add_rule(self, ctx: RequestContext, rule: SecurityGroupRule,
                 project_id: str | None = None) -> SecurityGroupRule:
        checked = check_rule(rule)
        if self.core.allocator.external:
            return self.core.allocator.groups.add_rule(ctx, checked)  # type: ignore[no-any-return]
        stored = self.core.db.write(lambda connection: security_groups.add_rule(connection, checked, project_id))
        # The hosts may not have the members of the remote group yet.
        self.core.filters.touch([rules_of(stored.parent_group_id)]
                                + ([members_of(stored.group_id)] if stored.group_id is not None else []))
        return stored

    @functools.partial(or_outside, "groups.delete_rule")
    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None, uuid: str = "") -> None:
        self.core.filters.touch([rules_of(self.core.db.write(
            lambda connection: security_groups.delete_rule(connection, rule_id, project_id)))])


def check_rule(rule: SecurityGroupRule) -> SecurityGroupRule:
    """Return the rule with normalized values. Raises InvalidInput, which names the field."""
    protocol = rule.protocol.lower() if rule.protocol else None
    low, high = rule.from_port, rule.to_port
    if protocol not in (None, "tcp", "udp", "icmp"):
        raise exception.InvalidInput(reason=f"ip_protocol '{rule.protocol}' is not tcp, udp or icmp")
    if protocol is None and (low, high) != (None, None):
        raise exception.InvalidInput(reason="from_port and to_port need an ip_protocol")
    if (low is None) != (high is None):
        raise exception.InvalidInput(reason="from_port and to_port require each other")
    if protocol == "icmp":
        if low is not None and high is not None and not (-1 <= low <= 255 and -1 <= high <= 255):
            raise exception.InvalidInput(reason="from_port (icmp type) and to_port (icmp code) must be -1 to 255")
    elif low is not None and high is not None and not 1 <= low <= high <= 65535:
        raise exception.InvalidInput(reason=f"from_port {low} and to_port {high} are not a range within 1 to 65535")
    if rule.cidr is not None and (rule.group_id is not None or rule.group_uuid):
        raise exception.InvalidInput(reason="a rule has a cidr or a group_id, not both")
    cidr = None
    if rule.cidr is not None:
        try:
            cidr = str(plain_ip.interface(rule.cidr))  # keep the host bits: clients compare it with their request
        except ValueError as error:
            raise exception.InvalidInput(reason=f"cidr '{rule.cidr}' is not a network") from error
    return SecurityGroupRule(parent_group_id=rule.parent_group_id, protocol=protocol, from_port=low, to_port=high,
                             cidr=cidr, group_id=rule.group_id, parent_uuid=rule.parent_uuid,
                             group_uuid=rule.group_uuid)


class SecurityGroupDefaultRules(Endpoint, networks_api.SecurityGroupDefaultRules):
    index = reads(security_groups.default_rules)
    get = reads(security_groups.default_rule)
    delete = writes(security_groups.delete_default_rule)

    def create(self, ctx: RequestContext, rule: DefaultRule) -> DefaultRule:
        checked = check_rule(SecurityGroupRule(parent_group_id=0, protocol=rule.protocol, from_port=rule.from_port,
                                               to_port=rule.to_port, cidr=rule.cidr))
        stored = DefaultRule(protocol=checked.protocol, from_port=checked.from_port, to_port=checked.to_port,
                             cidr=checked.cidr)
        return self.core.db.write(lambda connection: security_groups.create_default_rule(connection, stored))
