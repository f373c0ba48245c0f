"""The RPC interface of security groups of embedded networks."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.network import SecurityGroup, SecurityGroupRule
from nova.rpcapi import CONDUCTOR


class SecurityGroups(Interface):
    """Security groups and their rules. ``project_id`` None means all projects."""

    topic = CONDUCTOR
    namespace = "security_groups"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        """Return security groups, and create the default group of the caller's project if it is missing."""

    @call
    def get(self, ctx: RequestContext, group_id: int, project_id: str | None = None) -> SecurityGroup: ...

    @call
    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        """Raises SecurityGroupExists, QuotaLimit."""

    @call
    def update(self, ctx: RequestContext, group_id: int, name: str, description: str,
               project_id: str | None = None) -> SecurityGroup: ...

    @call
    def delete(self, ctx: RequestContext, group_id: int, project_id: str | None = None) -> None:
        """Raises SecurityGroupInUse, InvalidInput (default group)."""

    @call
    def add_rule(self, ctx: RequestContext, rule: SecurityGroupRule,
                 project_id: str | None = None) -> SecurityGroupRule:
        """Add a rule, which takes effect immediately. Raises InvalidInput for a duplicate."""

    @call
    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None) -> None:
        """Raises SecurityGroupRuleNotFound."""
