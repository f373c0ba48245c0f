"""The RPC interface of quotas and their usage."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.accounts.quota import Quotas as QuotaSet
from nova.rpcapi import CONDUCTOR


class Quotas(Interface):
    """Quotas by the resource names of quota sets; -1 means no limit."""

    topic = CONDUCTOR
    namespace = "quotas"

    @call
    def get(self, ctx: RequestContext, project_id: str, user_id: str | None = None,
            usage: bool = False) -> QuotaSet:
        """Return the limits in force, with ``usage`` also the used amounts."""

    @call
    def defaults(self, ctx: RequestContext) -> QuotaSet: ...

    @call
    def set(self, ctx: RequestContext, project_id: str, limits: dict[str, int], user_id: str | None = None,
            force: bool = False) -> QuotaSet:
        """Raises QuotaBelowUsage (unless ``force``), QuotaAboveProject (user above project)."""

    @call
    def reset(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> None:
        """Reset the limits to the defaults."""

    @call
    def get_class(self, ctx: RequestContext, name: str) -> QuotaSet: ...

    @call
    def set_class(self, ctx: RequestContext, name: str, limits: dict[str, int]) -> QuotaSet: ...
