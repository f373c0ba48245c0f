"""Limits and what is in use of them."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.quota import Quotas as QuotaSet
from nova.rpcapi import CONDUCTOR


class Quotas(Interface):
    """Resource names as in quota sets; -1 is unlimited."""

    topic = CONDUCTOR
    namespace = "quotas"

    @call
    def get(self, ctx: RequestContext, project_id: str, user_id: str | None = None,
            usage: bool = False) -> QuotaSet:
        """The limits in force; with ``usage`` also what is in use."""

    @call
    def defaults(self, ctx: RequestContext) -> QuotaSet: ...

    @call
    def set(self, ctx: RequestContext, project_id: str, limits: dict[str, int], user_id: str | None = None,
            force: bool = False) -> QuotaSet:
        """Raises QuotaBelowUsage (unless ``force``), QuotaAboveProject (user above project)."""

    @call
    def reset(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> None:
        """Back to the defaults."""

    @call
    def get_class(self, ctx: RequestContext, name: str) -> QuotaSet: ...

    @call
    def set_class(self, ctx: RequestContext, name: str, limits: dict[str, int]) -> QuotaSet: ...
