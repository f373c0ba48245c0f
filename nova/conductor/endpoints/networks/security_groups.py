"""Security groups. A change of rules is sent to the hosts of the affected servers."""

from __future__ import annotations

import logging

from nova import exception
from nova.common import plain_ip
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db.networks import security_groups
from nova.db.networks.security_filters import members_of, rules_of
from nova.objects.networks.network import SecurityGroup, SecurityGroupRule

LOG = logging.getLogger(__name__)


class SecurityGroups:
    """Implements :class:`nova.rpcapi.networks.SecurityGroups`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        if ctx.project_id and project_id in (None, ctx.project_id):
            self._ensure_default(ctx.project_id)
        return self.core.db.read(lambda connection: security_groups.index(connection, project_id))

    def _ensure_default(self, project_id: str) -> None:
        if not self.core.db.read(lambda connection: security_groups.has_default(connection, project_id)):
            self.core.db.write(lambda connection: security_groups.ensure_default(connection, project_id))

    def get(self, ctx: RequestContext, group_id: int, project_id: str | None = None) -> SecurityGroup:
        return self.core.db.read(lambda connection: security_groups.get(connection, group_id, project_id))

    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        project_id = ctx.project_id
        if not project_id:
            raise exception.InvalidInput(reason="a security group needs a project")
        return self.core.db.write(lambda connection: security_groups.create(connection, project_id, name, description))

    def update(self, ctx: RequestContext, group_id: int, name: str, description: str,
               project_id: str | None = None) -> SecurityGroup:
        return self.core.db.write(
            lambda connection: security_groups.update(connection, group_id, name, description, project_id))

    def delete(self, ctx: RequestContext, group_id: int, project_id: str | None = None) -> None:
        had_rules = self.core.db.write(lambda connection: security_groups.delete(connection, group_id, project_id))
        self.core.filters.touch([rules_of(other) for other in had_rules])

    def add_rule(self, ctx: RequestContext, rule: SecurityGroupRule,
                 project_id: str | None = None) -> SecurityGroupRule:
        checked = check_rule(rule)

        stored = self.core.db.write(lambda connection: security_groups.add_rule(connection, checked, project_id))
        # The hosts may not have the members of the remote group yet.
        self.core.filters.touch([rules_of(stored.parent_group_id)]
                                + ([members_of(stored.group_id)] if stored.group_id is not None else []))
        return stored

    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None) -> None:
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
        raise exception.InvalidInput(reason="from_port and to_port belong together")
    if protocol == "icmp":
        if low is not None and high is not None and not (-1 <= low <= 255 and -1 <= high <= 255):
            raise exception.InvalidInput(reason="from_port (icmp type) and to_port (icmp code) must be -1 to 255")
    elif low is not None and high is not None and not 1 <= low <= high <= 65535:
        raise exception.InvalidInput(reason=f"from_port {low} and to_port {high} are not a range within 1 to 65535")
    if rule.cidr is not None and rule.group_id is not None:
        raise exception.InvalidInput(reason="a rule has a cidr or a group_id, not both")
    cidr = None
    if rule.cidr is not None:
        try:
            cidr = str(plain_ip.interface(rule.cidr))  # keep the host bits: clients compare it with their request
        except ValueError as error:
            raise exception.InvalidInput(reason=f"cidr '{rule.cidr}' is not a network") from error
    return SecurityGroupRule(parent_group_id=rule.parent_group_id, protocol=protocol, from_port=low, to_port=high,
                             cidr=cidr, group_id=rule.group_id)
