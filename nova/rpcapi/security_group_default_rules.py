"""The rules that the default group of a project begins with. Groups that are there already keep theirs."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.network import DefaultRule
from nova.rpcapi import CONDUCTOR


class SecurityGroupDefaultRules(Interface):
    topic = CONDUCTOR
    namespace = "security_group_default_rules"

    @call
    def index(self, ctx: RequestContext) -> list[DefaultRule]:
        """All, oldest first."""

    @call
    def get(self, ctx: RequestContext, rule_id: int) -> DefaultRule:
        """Raises SecurityGroupDefaultRuleNotFound."""

    @call
    def create(self, ctx: RequestContext, rule: DefaultRule) -> DefaultRule:
        """Raises InvalidInput, SecurityGroupDefaultRuleExists, QuotaLimit."""

    @call
    def delete(self, ctx: RequestContext, rule_id: int) -> None:
        """Raises SecurityGroupDefaultRuleNotFound."""
