"""The RPC interface of the rules of new default security groups. Existing groups are not changed."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.network import DefaultRule
from nova.rpcapi import CONDUCTOR


class SecurityGroupDefaultRules(Interface):
    topic = CONDUCTOR
    namespace = "security_group_default_rules"

    @call
    def index(self, ctx: RequestContext) -> list[DefaultRule]:
        """Return all rules, oldest first."""

    @call
    def get(self, ctx: RequestContext, rule_id: int) -> DefaultRule:
        """Raises SecurityGroupDefaultRuleNotFound."""

    @call
    def create(self, ctx: RequestContext, rule: DefaultRule) -> DefaultRule:
        """Raises InvalidInput, SecurityGroupDefaultRuleExists, QuotaLimit."""

    @call
    def delete(self, ctx: RequestContext, rule_id: int) -> None:
        """Raises SecurityGroupDefaultRuleNotFound."""
