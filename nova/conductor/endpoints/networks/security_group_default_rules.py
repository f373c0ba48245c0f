"""The initial rules of the default security group of a project."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.conductor.endpoints.networks.security_groups import check_rule
from nova.context import RequestContext
from nova.db.networks import security_group_default_rules
from nova.objects.networks.network import DefaultRule, SecurityGroupRule


class SecurityGroupDefaultRules(Endpoint):
    """Implements :class:`nova.rpcapi.networks.SecurityGroupDefaultRules`."""

    index = reads(security_group_default_rules.index)
    get = reads(security_group_default_rules.get)
    delete = writes(security_group_default_rules.delete)

    def create(self, ctx: RequestContext, rule: DefaultRule) -> DefaultRule:
        checked = check_rule(SecurityGroupRule(parent_group_id=0, protocol=rule.protocol, from_port=rule.from_port,
                                               to_port=rule.to_port, cidr=rule.cidr))
        stored = DefaultRule(protocol=checked.protocol, from_port=checked.from_port, to_port=checked.to_port,
                             cidr=checked.cidr)
        return self.core.db.write(lambda connection: security_group_default_rules.create(connection, stored))
