"""Security groups of the embedded network driver."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.network import SecurityGroup, SecurityGroupRule
from nova.rpcapi import CONDUCTOR


class SecurityGroups(Interface):
    """``project_id`` None looks at every project."""

    topic = CONDUCTOR
    namespace = "security_groups"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        """The default group of the caller's project is made at the first look."""

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
        """Takes effect on the hosts of the group's servers at once. Raises InvalidInput (duplicate)."""

    @call
    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None) -> None:
        """Raises SecurityGroupRuleNotFound."""
